//! Arenas: memory that programs and user space share, at one address in every process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::param::page_size;
use trawl_sys::memory::Mapping;
use trawl_sys::{Error, Result};

use super::{info, map};

pub const KIND: u32 = libbpf_sys::BPF_MAP_TYPE_ARENA;
/// Size of the largest arena.
pub const LARGEST: u64 = 1 << SHIFT;
/// Number of low address bits that hold the distance from the arena's start.
const SHIFT: u32 = 32;
/// Addresses between the usual location of programs and the region of mappings without a requested address.
const FIRST: u64 = 0x1000;
const PLACES: u64 = 0x4000;

/// Returns an address that a process is unlikely to use otherwise; two arenas with different seeds can be mapped by one
/// process at the same time.
pub fn address_of(seed: u64) -> u64 {
    (FIRST + seed % PLACES) << SHIFT
}

/// Creates a zeroed arena, which uses memory only where it is touched. All processes map it at the address.
pub fn create(name: &str, length: u64, address: u64) -> io::Result<OwnedFd> {
    let pages = length.div_ceil(page_size() as u64) as u32;
    map::create_with(name, KIND, (0, 0), pages, |opts| {
        opts.map_flags = libbpf_sys::BPF_F_MMAPABLE;
        opts.map_extra = address;
    })
}

pub fn map(arena: BorrowedFd<'_>) -> Result<Mapping> {
    let about = info::map(arena).map_err(|e| Error::os("cannot read an arena's properties", e))?;
    Mapping::of_arena(arena, about.extra, about.max_entries as usize * page_size())
}

/// Returns when every program that is running now has ended.
pub fn wait_for_programs() -> Result<()> {
    const NAME: &str = "trawl_wait";
    // Filling a slot of an array of maps waits for these programs.
    let map = SharedArray::create(NAME, 8, 1)?;
    let slot = create_slot(NAME, map.as_fd())?;
    fill_slot(slot.as_fd(), map.as_fd()).map_err(|e| Error::os("cannot wait for the programs that run", e))
}

// Arrays whose memory user space has mapped, and slots for such arrays in an array of maps.

/// A mapped array map. Programs may read it and write to it at the same time.
#[derive(Debug)]
pub struct SharedArray {
    fd: OwnedFd,
    memory: Mapping,
}

impl SharedArray {
    /// Creates a zeroed array that fits into an array of maps with others of any length.
    pub fn create(name: &str, value_size: u32, entries: u32) -> Result<Self> {
        let flags = libbpf_sys::BPF_F_MMAPABLE | libbpf_sys::BPF_F_INNER_MAP;
        let fd = map::create(name, libbpf_sys::BPF_MAP_TYPE_ARRAY, (4, value_size), entries, flags);
        let fail = |e| {
            let size = u64::from(value_size) * u64::from(entries);
            Error::os(format!("cannot make the map {name} ({size} bytes)"), e)
        };
        Self::of(fd.map_err(fail)?)
    }

    /// Opens an existing array.
    pub fn open_by_id(id: u32) -> Result<Self> {
        let fd = map::open_by_id(id).map_err(|e| Error::os(format!("cannot open map {id}"), e))?;
        Self::of(fd)
    }

    fn of(fd: OwnedFd) -> Result<Self> {
        let about = info::map(fd.as_fd()).map_err(|e| Error::os("cannot read a shared array's properties", e))?;
        let length = (about.value_size as usize).next_multiple_of(8) * about.max_entries as usize;
        let memory = Mapping::of_map(fd.as_fd(), length)?;
        Ok(Self { fd, memory })
    }

    pub fn memory(&self) -> &Mapping {
        &self.memory
    }

    pub fn memory_mut(&mut self) -> &mut Mapping {
        &mut self.memory
    }
}

impl AsFd for SharedArray {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Creates a map with one slot for a map like this one.
pub fn create_slot(name: &str, like: BorrowedFd<'_>) -> Result<OwnedFd> {
    map::create_array_of_maps(name, like, 1)
}

/// Puts a map into the slot. When this returns, no program uses the previous one.
pub fn fill_slot(slot: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<()> {
    // In arrays of programs and of maps alike, the value is a descriptor.
    super::map::set_program(slot, 0, map)
}

/// Returns the identifier of the map in the slot.
pub fn in_slot(slot: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    super::map::program_in(slot, 0)
}

#[cfg(test)]
mod tests {
    use trawl_sys::testing::root_or_skip;

    use super::*;
    use crate::probe::KernelFeature;

    #[test]
    fn written_data_remains_when_the_arena_is_mapped_again() {
        if !root_or_skip() {
            return;
        }
        if let Some(reason) = KernelFeature::Arena.reason_to_skip() {
            return eprintln!("SKIPPED: {reason}");
        }
        let arena = create("trawl_test", 4 * page_size() as u64, address_of(7)).unwrap();
        let mut memory = map(arena.as_fd()).unwrap();
        memory.write(page_size(), &7u64.to_ne_bytes());
        // An address has room for one mapping.
        assert!(map(arena.as_fd()).is_err());
        drop(memory);
        let memory = map(arena.as_fd()).unwrap();
        assert_eq!((memory.number(page_size()), memory.number(0)), (Some(7), Some(0)));
        assert_eq!(memory.number(4 * page_size()), None);
        wait_for_programs().unwrap();
    }

    #[test]
    fn arrays_of_any_length_take_turns_in_a_slot() {
        if !root_or_skip() {
            return;
        }
        let mut short = SharedArray::create("trawl_test", 64, 1).unwrap();
        let long = SharedArray::create("trawl_test", 64, 1000).unwrap();
        short.memory_mut().write(8, &7u64.to_ne_bytes());
        let slot = create_slot("trawl_test", short.as_fd()).unwrap();
        assert_eq!(in_slot(slot.as_fd()).unwrap(), None);
        for array in [&short, &long] {
            fill_slot(slot.as_fd(), array.as_fd()).unwrap();
            let id = info::map(array.as_fd()).unwrap().id;
            assert_eq!(in_slot(slot.as_fd()).unwrap(), Some(id));
        }
        let memory = short.memory();
        assert_eq!((memory.length(), memory.number(8), memory.number(64)), (64, Some(7), None));
        assert_eq!(memory.read(8, 8).as_deref(), Some(&7u64.to_ne_bytes()[..]));
        assert_eq!(memory.read(60, 8), None);
    }
}
