//! A packet socket's filter as an eBPF program, which counts what it rejects: the figures of a socket say nothing of
//! packets that its filter did not let in.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use trawl_ebpf::{Insn, helper, op};

use super::{Filter, Queue, Request};
use crate::Result;
use crate::bpf::map;
use crate::bpf::program::{self, LoadOptions, SOCKET_FILTER};
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
    block: &[Insn],
) -> Result<(OwnedFd, Rejected)> {
    let map =
        map::create_mmapable_array("trawl_rejected", COUNTS_SIZE as u32, 1).map_err(|e| match e
            .errno()
        {
            Some(libc::EPERM) => e.fix(crate::fix::Fix::Root {
                capabilities: "CAP_BPF".to_owned(),
            }),
            _ => e,
        })?;
    let counts = Mapping::of_map(map.as_fd(), COUNTS_SIZE)?;
    let program = program::load(
        &instructions(request, filter, block, map.as_raw_fd()),
        &LoadOptions::new("trawl_socket", SOCKET_FILTER),
    )?;
    Ok((program, Rejected { counts, _map: map }))
}

/// The program of a fanout group: the socket's number is that of the CPU.
pub fn load_choice_by_cpu() -> Result<OwnedFd> {
    program::load(
        &[op::call(helper::GET_SMP_PROCESSOR_ID), op::exit()],
        &LoadOptions::new("trawl_fanout", SOCKET_FILTER),
    )
}

const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R5: u8 = 5;
const CONTEXT: u8 = 6;
const STACK: u8 = 10;

fn read(to: u8, offset: i16) -> Insn {
    op::load(op::W, to, CONTEXT, offset)
}

/// The direction first: packets that go the other way are not seen, and so not counted. Then the queue, the CPU and
/// the filter.
fn instructions(request: &Request<'_>, filter: &Filter<'_>, block: &[Insn], map: i32) -> Vec<Insn> {
    let mut program = vec![op::mov(CONTEXT, R1)];
    if !(request.received && request.sent) {
        let is_wanted = if request.sent { op::JEQ } else { op::JNE };
        let sent = i32::from(libc::PACKET_OUTGOING);
        program.extend([
            read(R0, skb::PACKET_TYPE),
            op::jump_if(is_wanted, R0, sent, 2),
            op::mov32_imm(R0, 0),
            op::exit(),
        ]);
    }
    if let Some(queue) = filter.queue {
        program.extend(queue_of_packet(queue));
        program.push(op::jump_if(op::JEQ, R0, queue.number as i32, COUNT_LENGTH));
        program.extend(count_and_reject(map));
    }
    if let Some(cpu) = filter.cpu {
        program.extend([
            op::call(helper::GET_SMP_PROCESSOR_ID),
            op::jump_if(op::JEQ, R0, cpu as i32, COUNT_LENGTH),
        ]);
        program.extend(count_and_reject(map));
    }
    if !block.is_empty() {
        program.extend([
            op::mov(R1, CONTEXT),
            op::mov(R5, STACK),
            op::alu_imm(op::ADD, R5, -SCRATCH),
        ]);
        program.extend(block);
        program.push(op::jump_if(op::JNE, R0, 0, COUNT_LENGTH));
        program.extend(count_and_reject(map));
    }
    // A packet of which no byte is wanted must still be accepted, and 0 would reject it.
    program.extend([op::mov32_imm(R0, request.snaplen.max(1)), op::exit()]);
    program
}

/// To R0.
fn queue_of_packet(queue: Queue) -> [Insn; 5] {
    [
        read(R0, skb::QUEUE_MAPPING),
        read(R1, skb::PACKET_TYPE),
        op::jump_if(op::JEQ, R1, i32::from(libc::PACKET_OUTGOING), 2),
        op::jump_if(op::JEQ, R0, 0, 1),
        op::alu_imm(op::SUB, R0, queue.received_offset as i32),
    ]
}

const COUNT_LENGTH: i16 = 10;

fn count_and_reject(map: i32) -> [Insn; COUNT_LENGTH as usize] {
    let [address, upper_half] = op::load_immediate(op::MAP_VALUE, R1, map);
    [
        op::call(helper::GET_SMP_PROCESSOR_ID),
        op::alu_imm(op::AND, R0, PLACES - 1),
        op::alu_imm(op::LSH, R0, PLACE_SIZE_LOG2),
        address,
        upper_half,
        op::alu(op::ADD, R1, R0),
        op::mov32_imm(R2, 1),
        // CPUs may share a place, and a CPU may be interrupted by itself.
        op::atomic_add(op::DW, R1, 0, R2),
        op::mov32_imm(R0, 0),
        op::exit(),
    ]
}
