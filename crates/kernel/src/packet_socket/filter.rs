//! Classic socket filters: which packets get into the ring, and how many bytes of them.

use super::Request;

/// One instruction of a classic filter.
pub type Instruction = libc::sock_filter;

/// Rejects every packet.
pub const NOTHING: [Instruction; 1] = [give(0)];

const PACKET_OUTGOING: u32 = libc::PACKET_OUTGOING as u32;

const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// Ends the program: so many bytes are wanted.
const fn give(bytes: u32) -> Instruction {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, bytes)
}

/// The direction first, then the CPU and the filter asked for. Jumps are relative, so one may stand behind the other.
pub fn program(request: &Request<'_>) -> Vec<Instruction> {
    let mut program = Vec::new();
    if !(request.received && request.sent) {
        let packet_type = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
        let (if_sent, if_received) = if request.sent { (1, 0) } else { (0, 1) };
        program.extend([
            instruction(
                libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
                0,
                0,
                packet_type,
            ),
            instruction(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                if_sent,
                if_received,
                PACKET_OUTGOING,
            ),
            give(0),
        ]);
    }
    if let Some(cpu) = request.filter.and_then(|filter| filter.cpu) {
        let this_cpu = (libc::SKF_AD_OFF + libc::SKF_AD_CPU) as u32;
        program.extend([
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, this_cpu),
            instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, cpu),
            give(0),
        ]);
    }
    match request.filter.and_then(|filter| filter.classic) {
        Some(filter) => program.extend_from_slice(filter),
        // A packet of which no byte is wanted is wanted all the same, and 0 would reject it.
        None => program.push(give(request.snaplen.max(1))),
    }
    program
}
