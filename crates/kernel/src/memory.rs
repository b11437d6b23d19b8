//! Shared memory: mappings of BPF maps and of plain anonymous memory, unmapped when dropped.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::{Error, Result};

/// A readable and writable mapping that other parties write to as well.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is plain shared memory; who may touch which part is governed by the ring's protocol, not by
// the thread that made it.
unsafe impl Send for Mapping {}
// SAFETY: as above; all access goes through raw pointers and atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a memory-mappable BPF map.
    pub fn of_map(map: BorrowedFd<'_>, length: usize) -> Result<Self> {
        Self::of_file(map, length, 0)
    }

    /// Maps part of anything that can be mapped.
    pub fn of_file(file: BorrowedFd<'_>, length: usize, offset: u64) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no existing memory.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                offset,
            )
        };
        Self::from_result(start, length)
    }

    /// Memory of this process only, zeroed; pages come into being as they are touched.
    pub fn anonymous(length: usize) -> Result<Self> {
        // SAFETY: as in `of_file`.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        };
        Self::from_result(start, length)
    }

    fn from_result(
        start: rustix::io::Result<*mut core::ffi::c_void>,
        length: usize,
    ) -> Result<Self> {
        let start = start.map_err(|e| {
            Error::os(
                format!("cannot map {length} bytes of ring memory"),
                e.into(),
            )
        })?;
        let start = NonNull::new(start.cast())
            .ok_or_else(|| Error::failed("cannot map ring memory", "null address"))?;
        Ok(Self { start, length })
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// A pointer `offset` bytes into the mapping. Panics where that lies outside: offsets are trawl's own.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(
            offset <= self.length,
            "offset {offset} lies outside a mapping of {} bytes",
            self.length
        );
        // SAFETY: the offset was just checked to lie within the mapping or one past its end.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by us with this length, and nothing borrowed from it outlives it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
