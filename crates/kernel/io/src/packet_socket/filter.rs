//! Classic socket filters: they choose the packets that enter the ring, and the number of bytes of each.

use std::os::fd::BorrowedFd;

pub use trawl_filter::Instruction;

/// An interface to capture on, and the settings of its sockets.
#[derive(Clone, Copy, Debug)]
pub struct PacketRequest<'a> {
    /// Index of the interface.
    pub interface: u32,
    /// Name of the interface, for messages.
    pub name: &'a str,
    /// Omits the link layer: packets begin at the network header.
    pub network_layer: bool,
    pub sockets: usize,
    /// Memory of each socket's ring.
    pub ring_size: usize,
    /// Maximum number of bytes of a packet that the kernel copies.
    pub snaplen: u32,
    pub received: bool,
    pub sent: bool,
    /// Requests the network card's time stamps, if it has any.
    pub hardware_time: bool,
    /// True if somebody waits for the packets: the kernel hands them over within milliseconds.
    pub prompt: bool,
    pub filter: Option<Filter<'a>>,
    /// Table of `InterfaceKey` and `InterfacePlace`: packets of those interfaces are wanted, and rejections count at
    /// their points. The sockets are then bound to no interface.
    pub interfaces: Option<BorrowedFd<'a>>,
}

/// A queue that receives or sends the wanted packets.
#[derive(Clone, Copy, Debug)]
pub struct PacketQueue {
    pub number: u32,
    /// Offset that the kernel adds to the queue number of a received packet. A packet without a number counts for queue
    /// 0, as it does for the kernel's generic XDP.
    pub received_offset: u32,
}

/// The packets to capture. Their contents are checked by an eBPF program that counts its rejections or, if there is
/// none or the kernel refuses it, by a classic one that does not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter<'a> {
    pub queue: Option<PacketQueue>,
    /// CPU that handles the packets.
    pub cpu: Option<u32>,
    /// Instructions as crates/filter lowers them for a socket; it describes the registers at their start. If they are
    /// empty, every packet matches.
    pub block: Option<&'a [trawl_ebpf::Insn]>,
    pub classic: Option<&'a [Instruction]>,
}

/// A program that rejects every packet.
pub const NOTHING: [Instruction; 1] = [accept(0)];

const PACKET_OUTGOING: u32 = libc::PACKET_OUTGOING as u32;

const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction::new(code as u16, jt, jf, k)
}

/// Ends the program: accepts this many bytes.
const fn accept(bytes: u32) -> Instruction {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, bytes)
}

const fn load(what: libc::c_int) -> Instruction {
    let from = (libc::SKF_AD_OFF + what) as u32;
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, from)
}

/// Skips `if_so` instructions if the value matches, otherwise `if_not`.
const fn skip_if_is(value: u32, if_so: u8, if_not: u8) -> Instruction {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, if_so, if_not, value)
}

/// Returns the program: the direction, the queue, the CPU and then the given filter. Jumps are relative, so the parts
/// can be concatenated.
pub fn program(request: &PacketRequest<'_>) -> Vec<Instruction> {
    let mut program = Vec::new();
    if !(request.received && request.sent) {
        let (if_sent, if_received) = if request.sent { (1, 0) } else { (0, 1) };
        program.extend([load(libc::SKF_AD_PKTTYPE), skip_if_is(PACKET_OUTGOING, if_sent, if_received), accept(0)]);
    }
    if let Some(queue) = request.filter.and_then(|filter| filter.queue) {
        program.extend(queue_of_packet(queue));
        program.extend([skip_if_is(queue.number, 1, 0), accept(0)]);
    }
    if let Some(cpu) = request.filter.and_then(|filter| filter.cpu) {
        program.extend([load(libc::SKF_AD_CPU), skip_if_is(cpu, 1, 0), accept(0)]);
    }
    match request.filter.and_then(|filter| filter.classic) {
        Some(filter) => program.extend_from_slice(filter),
        // A packet of which no byte is wanted must still be accepted, and 0 would reject it.
        None => program.push(accept(request.snaplen.max(1))),
    }
    program
}

/// Loads the packet's queue into the accumulator.
fn queue_of_packet(queue: PacketQueue) -> [Instruction; 7] {
    let subtract = libc::BPF_ALU | libc::BPF_SUB | libc::BPF_K;
    [
        load(libc::SKF_AD_PKTTYPE),
        skip_if_is(PACKET_OUTGOING, 4, 0),
        load(libc::SKF_AD_QUEUE),
        skip_if_is(0, 3, 0),
        instruction(subtract, 0, 0, queue.received_offset),
        // Jumps over the load for packets that are sent.
        instruction(libc::BPF_JMP | libc::BPF_JA, 0, 0, 1),
        load(libc::SKF_AD_QUEUE),
    ]
}
