//! The memory of a capture, divided for this machine.

use trawl_plan::options::{Memory, MemorySize};
use trawl_ring::Geometry;
use trawl_sys::{Result, events, host};

/// Divides the memory for a machine with this many CPUs and this much memory available.
pub fn geometry(memory: Memory, cpus: usize, available: u64) -> Result<Geometry> {
    let geometry = match memory.size {
        MemorySize::Usual => Geometry::by_default(cpus, available),
        MemorySize::Total(bytes) => Geometry::for_total(bytes, cpus),
        MemorySize::ForEachCpu(bytes) => Geometry::for_share(bytes, cpus),
    }?;
    Ok(match memory.at_first {
        Some(bytes) => geometry.growing_from(bytes),
        None => geometry,
    })
}

/// Divides the memory on this machine between the rings and the queues of an output's readers. Returns the rings'
/// memory, and the bytes for all queues together: a quarter or more.
pub fn with_readers(memory: Memory) -> Result<(Memory, usize)> {
    let all = on_this_host(memory)?.pool_size;
    let rings = Memory { size: MemorySize::Total(all as u64 / 4 * 3), ..memory };
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
