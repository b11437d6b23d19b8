//! Arrays whose memory user space has mapped, and the slots of an array of maps that such arrays are put into.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use trawl_sys::memory::Mapping;
use trawl_sys::{Error, Result};

use super::{info, map};

/// An array map, mapped. Programs may read it and write to it at the same time.
#[derive(Debug)]
pub struct SharedArray {
    fd: OwnedFd,
    memory: Mapping,
}

impl SharedArray {
    /// A new one, of zeroes, that fits into an array of maps beside others of any length.
    pub fn create(name: &str, value_size: u32, entries: u32) -> Result<Self> {
        let flags = libbpf_sys::BPF_F_MMAPABLE | libbpf_sys::BPF_F_INNER_MAP;
        let fd = map::create(
            name,
            libbpf_sys::BPF_MAP_TYPE_ARRAY,
            (4, value_size),
            entries,
            flags,
        );
        let fail = |e| {
            let size = u64::from(value_size) * u64::from(entries);
            Error::os(format!("cannot make the map {name} ({size} bytes)"), e)
        };
        Self::of(fd.map_err(fail)?)
    }

    /// One that exists.
    pub fn open_by_id(id: u32) -> Result<Self> {
        let fd = map::open_by_id(id).map_err(|e| Error::os(format!("cannot open map {id}"), e))?;
        Self::of(fd)
    }

    fn of(fd: OwnedFd) -> Result<Self> {
        let about =
            info::map(fd.as_fd()).map_err(|e| Error::os("cannot look at a shared array", e))?;
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

/// A map with one slot for a map like this one.
pub fn create_slot(name: &str, like: BorrowedFd<'_>) -> Result<OwnedFd> {
    let kind = libbpf_sys::BPF_MAP_TYPE_ARRAY_OF_MAPS;
    map::create_with(name, kind, (4, 4), 1, |opts| {
        opts.inner_map_fd = like.as_raw_fd() as u32;
    })
    .map_err(|e| Error::os(format!("cannot make the map {name}"), e))
}

/// Puts a map into the slot. When this returns, no program looks at the one that was there before.
pub fn fill_slot(slot: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<()> {
    // Of arrays of programs and of maps alike, the value is a descriptor.
    super::map::set_program(slot, 0, map)
}

/// The identifier of the map in the slot.
pub fn in_slot(slot: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    super::map::program_in(slot, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_sys::testing::root_or_skip;

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
        assert_eq!(
            (memory.length(), memory.number(8), memory.number(64)),
            (64, Some(7), None)
        );
        assert_eq!(memory.read(8, 8).as_deref(), Some(&7u64.to_ne_bytes()[..]));
        assert_eq!(memory.read(60, 8), None);
    }
}
