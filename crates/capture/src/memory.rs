//! The memory of a capture, divided for this machine.

use trawl_plan::options::Memory;
use trawl_ring::{Geometry, SHARE_MIN};
use trawl_sys::{Result, events, host};

/// Divides the memory for a machine with this many CPUs and this much memory available.
pub fn geometry(memory: Memory, cpus: usize, available: u64) -> Result<Geometry> {
    match memory {
        Memory::Usual => Geometry::by_default(cpus, available),
        Memory::Total(bytes) => Geometry::for_total(bytes, cpus),
        Memory::ForEachCpu(bytes) => Geometry::for_share(bytes, cpus),
    }
}

/// Returns that many bytes, or less on machines and in containers with little memory, for commands without an option.
pub fn at_most(bytes: u64) -> Memory {
    let least = SHARE_MIN * events::cpu_count() as u64;
    Memory::Total(bytes.min(host::available_memory() / 8).max(least))
}

/// Divides the memory on this machine between the rings and the queues of an output's readers. Returns the rings'
/// memory, and the bytes for all queues together: a quarter or more.
pub fn with_readers(memory: Memory) -> Result<(Memory, usize)> {
    let all = on_this_host(memory)?.pool_size;
    let rings = Memory::Total(all as u64 / 4 * 3);
    Ok(match on_this_host(rings) {
        Ok(geometry) => (rings, all - geometry.pool_size),
        // Rings of the minimum size cannot shrink.
        Err(_) => (memory, all / 4),
    })
}

/// Divides the memory for this machine.
pub(crate) fn on_this_host(memory: Memory) -> Result<Geometry> {
    geometry(memory, events::cpu_count(), host::available_memory())
}
