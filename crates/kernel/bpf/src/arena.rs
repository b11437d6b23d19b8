//! Arenas: memory that programs and user space share, at one address in every process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::param::page_size;
use trawl_sys::memory::Mapping;
use trawl_sys::{Error, Result};

use super::{info, map, shared_array};

pub const KIND: u32 = libbpf_sys::BPF_MAP_TYPE_ARENA;
/// What the largest arena holds.
pub const LARGEST: u64 = 1 << SHIFT;
/// The lower half of an address in an arena is the distance from its beginning.
const SHIFT: u32 = 32;
/// Addresses between where programs usually lie and where the kernel maps what asks for no address of its own.
const FIRST: u64 = 0x1000;
const PLACES: u64 = 0x4000;

/// An address that a process is unlikely to use for anything else; two arenas with different seeds can be mapped by one
/// process at the same time.
pub fn address_of(seed: u64) -> u64 {
    (FIRST + seed % PLACES) << SHIFT
}

/// A new one, of zeroes, which takes memory where it is touched. All processes map it at the address.
pub fn create(name: &str, length: u64, address: u64) -> io::Result<OwnedFd> {
    let pages = length.div_ceil(page_size() as u64) as u32;
    map::create_with(name, KIND, (0, 0), pages, |opts| {
        opts.map_flags = libbpf_sys::BPF_F_MMAPABLE;
        opts.map_extra = address;
    })
}

pub fn map(arena: BorrowedFd<'_>) -> Result<Mapping> {
    let about = info::map(arena).map_err(|e| Error::os("cannot look at an arena", e))?;
    Mapping::of_arena(arena, about.extra, about.max_entries as usize * page_size())
}

/// Returns when every program that runs at this moment has ended.
pub fn wait_for_programs() -> Result<()> {
    const NAME: &str = "trawl_wait";
    // The process that fills a slot of an array of maps waits for that.
    let map = shared_array::SharedArray::create(NAME, 8, 1)?;
    let slot = shared_array::create_slot(NAME, map.as_fd())?;
    shared_array::fill_slot(slot.as_fd(), map.as_fd())
        .map_err(|e| Error::os("cannot wait for the programs that run", e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Feature;
    use trawl_sys::testing::root_or_skip;

    #[test]
    fn what_is_written_is_there_when_it_is_mapped_again() {
        if !root_or_skip() {
            return;
        }
        if let Some(reason) = Feature::Arena.reason_to_skip() {
            return eprintln!("SKIPPED: {reason}");
        }
        let arena = create("trawl_test", 4 * page_size() as u64, address_of(7)).unwrap();
        let mut memory = map(arena.as_fd()).unwrap();
        memory.write(page_size(), &7u64.to_ne_bytes());
        // One address, one mapping.
        assert!(map(arena.as_fd()).is_err());
        drop(memory);
        let memory = map(arena.as_fd()).unwrap();
        assert_eq!(
            (memory.number(page_size()), memory.number(0)),
            (Some(7), Some(0))
        );
        assert_eq!(memory.number(4 * page_size()), None);
        wait_for_programs().unwrap();
    }
}
