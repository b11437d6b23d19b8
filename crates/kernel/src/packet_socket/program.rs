//! A packet socket's filter as an eBPF program, which counts what it rejects: the figures of a socket say nothing of
//! packets that its filter did not let in.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_sys::bpf_insn;

use super::{Filter, Queue, Request};
use crate::Result;
use crate::bpf::program::{self, LoadOptions, SOCKET_FILTER};
use crate::bpf::{map, splice};
use crate::memory::Mapping;

/// What the filter's block may use of the stack: SCRATCH_SIZE of crates/filter.
const SCRATCH: i32 = 256;
/// CPUs count in places of their own, a cache line each, so that they do not wait for each other. Where there are
/// more CPUs, some share one.
const PLACES: i32 = 64;
const PLACE_SIZE_LOG2: i32 = 6;
const COUNTS_SIZE: usize = (PLACES as usize) << PLACE_SIZE_LOG2;

/// Offsets in `struct __sk_buff`.
mod skb {
    pub const PACKET_TYPE: i16 = 4;
    pub const QUEUE_MAPPING: i16 = 12;
}

const GET_SMP_PROCESSOR_ID: i32 = 8;

/// How many packets a filter has rejected.
#[derive(Debug)]
pub struct Rejected {
    counts: Mapping,
    /// The program holds on to its map by itself; this is for the mapping.
    _map: OwnedFd,
}

impl Rejected {
    pub fn count(&self) -> u64 {
        (0..PLACES as usize)
            .map(|place| {
                let at = self.counts.at(place << PLACE_SIZE_LOG2);
                // SAFETY: the place lies within the mapping, aligned to its size; programs change it atomically.
                unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Relaxed)
            })
            .sum()
    }
}

/// The program for all sockets of a request, and what it will have counted.
pub fn load(
    request: &Request<'_>,
    filter: &Filter<'_>,
    block: &[u64],
) -> Result<(OwnedFd, Rejected)> {
    let map =
        map::create_mmapable_array("trawl_rejected", COUNTS_SIZE as u32, 1).map_err(|e| match e
            .errno()
        {
            Some(libc::EPERM) => e.fix("run as root, or with CAP_BPF"),
            _ => e,
        })?;
    let counts = Mapping::of_map(map.as_fd(), COUNTS_SIZE)?;
    let program = program::load(
        &instructions(request, filter, block, map.as_raw_fd()),
        &LoadOptions {
            name: "trawl_socket",
            kind: SOCKET_FILTER,
            license: "GPL",
            expected_attach_type: 0,
            flags: 0,
            ifindex: 0,
            traced: None,
        },
    )?;
    Ok((program, Rejected { counts, _map: map }))
}

/// The program of a fanout group: the socket's number is that of the CPU.
pub fn load_choice_by_cpu() -> Result<OwnedFd> {
    program::load(
        &[call(GET_SMP_PROCESSOR_ID), give_r0()],
        &LoadOptions {
            name: "trawl_fanout",
            kind: SOCKET_FILTER,
            license: "GPL",
            expected_attach_type: 0,
            flags: 0,
            ifindex: 0,
            traced: None,
        },
    )
}

const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R5: u8 = 5;
const CONTEXT: u8 = 6;
const STACK: u8 = 10;

fn instruction(code: u32, to: u8, from: u8, off: i16, imm: i32) -> bpf_insn {
    let mut instruction = bpf_insn {
        code: code as u8,
        off,
        imm,
        ..bpf_insn::default()
    };
    instruction.set_dst_reg(to);
    instruction.set_src_reg(from);
    instruction
}

fn copy(to: u8, from: u8) -> bpf_insn {
    use libbpf_sys::{BPF_ALU64, BPF_MOV, BPF_X};
    instruction(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0)
}

fn set(to: u8, value: u32) -> bpf_insn {
    use libbpf_sys::{BPF_ALU, BPF_K, BPF_MOV};
    instruction(BPF_ALU | BPF_MOV | BPF_K, to, 0, 0, value as i32)
}

fn calculate(operation: u32, to: u8, value: i32) -> bpf_insn {
    use libbpf_sys::{BPF_ALU64, BPF_K};
    instruction(BPF_ALU64 | operation | BPF_K, to, 0, 0, value)
}

fn read(to: u8, offset: i16) -> bpf_insn {
    use libbpf_sys::{BPF_LDX, BPF_MEM, BPF_W};
    instruction(BPF_LDX | BPF_MEM | BPF_W, to, CONTEXT, offset, 0)
}

/// Skips so many instructions if the condition holds.
fn skip_if(condition: u32, register: u8, value: i32, instructions: i16) -> bpf_insn {
    use libbpf_sys::{BPF_JMP, BPF_K};
    instruction(
        BPF_JMP | condition | BPF_K,
        register,
        0,
        instructions,
        value,
    )
}

fn call(helper: i32) -> bpf_insn {
    use libbpf_sys::{BPF_CALL, BPF_JMP};
    instruction(BPF_JMP | BPF_CALL, 0, 0, 0, helper)
}

fn give_r0() -> bpf_insn {
    use libbpf_sys::{BPF_EXIT, BPF_JMP};
    instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)
}

/// The direction first: packets that go the other way are not seen, and so not counted. Then the queue, the CPU and
/// the filter.
fn instructions(
    request: &Request<'_>,
    filter: &Filter<'_>,
    block: &[u64],
    map: i32,
) -> Vec<bpf_insn> {
    use libbpf_sys::{BPF_ADD, BPF_JEQ, BPF_JNE};
    let mut program = vec![copy(CONTEXT, R1)];
    if !(request.received && request.sent) {
        let is_wanted = if request.sent { BPF_JEQ } else { BPF_JNE };
        let sent = i32::from(libc::PACKET_OUTGOING);
        program.extend([
            read(R0, skb::PACKET_TYPE),
            skip_if(is_wanted, R0, sent, 2),
            set(R0, 0),
            give_r0(),
        ]);
    }
    if let Some(queue) = filter.queue {
        program.extend(queue_of_packet(queue));
        program.push(skip_if(BPF_JEQ, R0, queue.number as i32, COUNT_LENGTH));
        program.extend(count_and_reject(map));
    }
    if let Some(cpu) = filter.cpu {
        program.extend([
            call(GET_SMP_PROCESSOR_ID),
            skip_if(BPF_JEQ, R0, cpu as i32, COUNT_LENGTH),
        ]);
        program.extend(count_and_reject(map));
    }
    if !block.is_empty() {
        program.extend([
            copy(R1, CONTEXT),
            copy(R5, STACK),
            calculate(BPF_ADD, R5, -SCRATCH),
        ]);
        program.extend(splice::from_words(block));
        program.push(skip_if(BPF_JNE, R0, 0, COUNT_LENGTH));
        program.extend(count_and_reject(map));
    }
    // A packet of which no byte is wanted is wanted all the same, and 0 would reject it.
    program.extend([set(R0, request.snaplen.max(1)), give_r0()]);
    program
}

/// To R0.
fn queue_of_packet(queue: Queue) -> [bpf_insn; 5] {
    use libbpf_sys::{BPF_JEQ, BPF_SUB};
    [
        read(R0, skb::QUEUE_MAPPING),
        read(R1, skb::PACKET_TYPE),
        skip_if(BPF_JEQ, R1, i32::from(libc::PACKET_OUTGOING), 2),
        skip_if(BPF_JEQ, R0, 0, 1),
        calculate(BPF_SUB, R0, queue.received_offset as i32),
    ]
}

const COUNT_LENGTH: i16 = 10;

fn count_and_reject(map: i32) -> [bpf_insn; COUNT_LENGTH as usize] {
    use libbpf_sys::{
        BPF_ADD, BPF_ALU64, BPF_AND, BPF_ATOMIC, BPF_DW, BPF_IMM, BPF_LD, BPF_LSH,
        BPF_PSEUDO_MAP_VALUE, BPF_STX, BPF_X,
    };
    let of_map = BPF_PSEUDO_MAP_VALUE as u8;
    [
        call(GET_SMP_PROCESSOR_ID),
        calculate(BPF_AND, R0, PLACES - 1),
        calculate(BPF_LSH, R0, PLACE_SIZE_LOG2),
        instruction(BPF_LD | BPF_IMM | BPF_DW, R1, of_map, 0, map),
        instruction(0, 0, 0, 0, 0),
        instruction(BPF_ALU64 | BPF_ADD | BPF_X, R1, R0, 0, 0),
        set(R2, 1),
        // CPUs may share a place, and a CPU may be interrupted by itself.
        instruction(BPF_STX | BPF_ATOMIC | BPF_DW, R1, R2, 0, BPF_ADD as i32),
        set(R0, 0),
        give_r0(),
    ]
}
