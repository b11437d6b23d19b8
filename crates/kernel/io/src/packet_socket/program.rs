//! A packet socket's filter as an eBPF program that counts its rejections: the counts of a socket do not include
//! packets that its filter rejected.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use trawl_bpf::layout::RING_MAX_POINTS;
use trawl_bpf::loading;
use trawl_bpf::map;
use trawl_bpf::program::{LoadOptions, SOCKET_FILTER};
use trawl_ebpf::{Insn, helper, op};
use trawl_sys::Result;
use trawl_sys::memory::Mapping;

use super::filter::{Filter, PacketQueue, PacketRequest};

/// Stack space of the filter's block: SCRATCH_SIZE of crates/filter.
const SCRATCH: i32 = 256;
/// Number of counters. Each has a cache line of its own, so that CPUs do not contend for it; on machines with more
/// CPUs, several share a counter.
const SLOTS: i32 = 64;
const SLOT_SIZE_LOG2: i32 = 6;
const COUNTS_SIZE: usize = (SLOTS as usize) << SLOT_SIZE_LOG2;
/// Number of rows of a program for several interfaces, each with a counter for each point; more CPUs share a row.
const WIDE_SLOTS: i32 = 16;
const WIDE_SLOT_SIZE_LOG2: i32 = (RING_MAX_POINTS * 8).ilog2() as i32;
const WIDE_COUNTS_SIZE: usize = (WIDE_SLOTS as usize) << WIDE_SLOT_SIZE_LOG2;
/// Stack offsets below the filter's part: the interface to look up, and its point.
const KEY: i32 = -SCRATCH - 16;
const POINT: i16 = (-SCRATCH - 8) as i16;

/// Offsets in `struct __sk_buff`.
mod skb {
    pub const PACKET_TYPE: i16 = 4;
    pub const QUEUE_MAPPING: i16 = 12;
    pub const IFINDEX: i16 = 40;
}

/// Counts of the packets that a filter has rejected.
#[derive(Debug)]
pub struct Rejected {
    counts: Mapping,
    /// Map of the counts, held open for the mapping.
    _map: OwnedFd,
}

impl Rejected {
    pub fn count(&self) -> u64 {
        self.sum((0..SLOTS as usize).map(|slot| slot << SLOT_SIZE_LOG2))
    }

    /// Returns the count of one point of a program for several interfaces.
    pub fn count_at(&self, point: u32) -> u64 {
        let within = size_of::<u64>() * (point as usize % RING_MAX_POINTS);
        self.sum((0..WIDE_SLOTS as usize).map(|slot| (slot << WIDE_SLOT_SIZE_LOG2) + within))
    }

    fn sum(&self, slots: impl Iterator<Item = usize>) -> u64 {
        slots
            .map(|slot| {
                let at = self.counts.at(slot);
                // SAFETY: the counter lies within the mapping, aligned to eight bytes; programs change it atomically.
                unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Relaxed)
            })
            .sum()
    }
}

/// Loads the program for all sockets of a request, and its counters.
pub fn load(request: &PacketRequest<'_>, filter: &Filter<'_>, block: &[Insn]) -> Result<(OwnedFd, Rejected)> {
    let size = match request.interfaces {
        Some(_) => WIDE_COUNTS_SIZE,
        None => COUNTS_SIZE,
    };
    let map = map::create_mmapable_array("trawl_rejected", size as u32, 1).map_err(|e| match e.errno() {
        Some(libc::EPERM) => e.fix("this requires root (CAP_BPF)"),
        _ => e,
    })?;
    let counts = Mapping::of_map(map.as_fd(), size)?;
    let program = loading::load(
        &instructions(request, filter, block, map.as_raw_fd()),
        &LoadOptions::new("trawl_socket", SOCKET_FILTER),
    )?;
    Ok((program, Rejected { counts, _map: map }))
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

/// Returns the program. The direction comes first: packets of the other direction are not counted. The queue, the CPU
/// and the filter follow.
fn instructions(request: &PacketRequest<'_>, filter: &Filter<'_>, block: &[Insn], map: i32) -> Vec<Insn> {
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
    if let Some(table) = request.interfaces {
        program.extend(point_of_interface(table.as_raw_fd()));
    }
    let reject = count_and_reject(map, request.interfaces.is_some());
    let length = reject.len() as i16;
    if let Some(queue) = filter.queue {
        program.extend(queue_of_packet(queue));
        program.push(op::jump_if(op::JEQ, R0, queue.number as i32, length));
        program.extend(&reject);
    }
    if let Some(cpu) = filter.cpu {
        program.extend([op::call(helper::GET_SMP_PROCESSOR_ID), op::jump_if(op::JEQ, R0, cpu as i32, length)]);
        program.extend(&reject);
    }
    if !block.is_empty() {
        program.extend([op::mov(R1, CONTEXT), op::mov(R5, STACK), op::alu_imm(op::ADD, R5, -SCRATCH)]);
        program.extend(block);
        program.push(op::jump_if(op::JNE, R0, 0, length));
        program.extend(&reject);
    }
    // A packet of which no byte is wanted must still be accepted, and 0 would reject it.
    program.extend([op::mov32_imm(R0, request.snaplen.max(1)), op::exit()]);
    program
}

/// Loads the packet's queue into R0.
fn queue_of_packet(queue: PacketQueue) -> [Insn; 5] {
    [
        read(R0, skb::QUEUE_MAPPING),
        read(R1, skb::PACKET_TYPE),
        op::jump_if(op::JEQ, R1, i32::from(libc::PACKET_OUTGOING), 2),
        op::jump_if(op::JEQ, R0, 0, 1),
        op::alu_imm(op::SUB, R0, queue.received_offset as i32),
    ]
}

/// Stores the number of the interface's point on the stack. Packets of other interfaces are not counted.
fn point_of_interface(table: i32) -> Vec<Insn> {
    let [address, upper_half] = op::load_immediate(op::MAP, R1, table);
    vec![
        read(R0, skb::IFINDEX),
        op::store(op::W, STACK, KEY as i16, R0),
        op::store_imm(op::W, STACK, KEY as i16 + 4, 0),
        address,
        upper_half,
        op::mov(R2, STACK),
        op::alu_imm(op::ADD, R2, KEY),
        op::call(helper::MAP_LOOKUP_ELEM),
        op::jump_if(op::JNE, R0, 0, 2),
        op::mov32_imm(R0, 0),
        op::exit(),
        op::load(op::W, R0, R0, 0),
        op::alu_imm(op::AND, R0, RING_MAX_POINTS as i32 - 1),
        op::store(op::DW, STACK, POINT, R0),
    ]
}

fn count_and_reject(map: i32, by_point: bool) -> Vec<Insn> {
    let [address, upper_half] = op::load_immediate(op::MAP_VALUE, R1, map);
    let (slots, size) = if by_point { (WIDE_SLOTS, WIDE_SLOT_SIZE_LOG2) } else { (SLOTS, SLOT_SIZE_LOG2) };
    let mut count = vec![
        op::call(helper::GET_SMP_PROCESSOR_ID),
        op::alu_imm(op::AND, R0, slots - 1),
        op::alu_imm(op::LSH, R0, size),
        address,
        upper_half,
        op::alu(op::ADD, R1, R0),
    ];
    if by_point {
        count.extend([
            op::load(op::DW, R0, STACK, POINT),
            // After the filter, the verifier no longer knows the bounds of the value on the stack.
            op::alu_imm(op::AND, R0, RING_MAX_POINTS as i32 - 1),
            op::alu_imm(op::LSH, R0, 3),
            op::alu(op::ADD, R1, R0),
        ]);
    }
    count.extend([
        op::mov32_imm(R2, 1),
        // The addition is atomic: CPUs may share a counter, and an interrupt may run the program a second time.
        op::atomic_add(op::DW, R1, 0, R2),
        op::mov32_imm(R0, 0),
        op::exit(),
    ]);
    count
}
