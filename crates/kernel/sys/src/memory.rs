//! Shared memory: mappings of BPF maps and of plain anonymous memory, unmapped when dropped.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::{Error, Result};

/// A readable and writable mapping that other parties write to as well.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is plain shared memory; the ring's protocol governs access to each part, not the thread that
// created it.
unsafe impl Send for Mapping {}
// SAFETY: as above; all access goes through raw pointers and atomics.
unsafe impl Sync for Mapping {}

/// Returns memory to the kernel that was needed for a start only.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator's own function, which moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Lets all threads that are started later share one heap. By default each has its own, full of gaps if one thread frees
/// what another has allocated.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a plain call, which sets a number that the allocator reads when a thread first allocates.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}

impl Mapping {
    /// Maps a memory-mappable BPF map.
    pub fn of_map(map: BorrowedFd<'_>, length: usize) -> Result<Self> {
        Self::of_file(map, length, 0)
    }

    /// Maps part of any file that can be mapped.
    pub fn of_file(file: BorrowedFd<'_>, length: usize, offset: u64) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no existing memory.
        let start = unsafe {
            mmap(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, offset)
        };
        Self::from_result(start, length)
    }

    /// Excludes the mapping from child processes, for which the kernel would have to walk all of its pages.
    pub fn not_for_children(self) -> Self {
        self.hide_from_children();
        self
    }

    /// Does the same, for what is mapped now.
    pub fn hide_from_children(&self) {
        // SAFETY: the range is this mapping. Children do not have it, and get no reference to it.
        let advised = unsafe { madvise(self.start.as_ptr().cast(), self.length, Advice::LinuxDontFork) };
        // If the kernel refuses, children inherit it and fork takes longer.
        let _ = advised;
    }

    /// Maps an arena, whose address is the same in every process.
    pub fn of_arena(map: BorrowedFd<'_>, address: u64, length: usize) -> Result<Self> {
        // SAFETY: the kernel refuses an address where something is mapped already.
        let start = unsafe {
            mmap(
                ptr::without_provenance_mut(address as usize),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED_NOREPLACE,
                map,
                0,
            )
        };
        Self::from_result(start, length)
    }

    /// Maps memory of this process only, zeroed; pages are allocated on first access.
    pub fn anonymous(length: usize) -> Result<Self> {
        // SAFETY: as in `of_file`.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED) };
        Self::from_result(start, length)
    }

    /// Reserves addresses that have no memory yet.
    pub fn reserved(length: usize) -> Result<Self> {
        // SAFETY: as in `of_file`.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), length, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        Self::from_result(start, length)
    }

    /// Maps a BPF map into reserved addresses that are still unused.
    pub fn map_at(&self, offset: usize, map: BorrowedFd<'_>, length: usize) -> Result<()> {
        let _ = self.at(offset + length);
        // SAFETY: the range was just checked to lie within this mapping, and nothing points into it yet.
        let start = unsafe {
            mmap(
                self.at(offset).cast(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                map,
                0,
            )
        };
        start.map(drop).map_err(|e| Error::os(format!("cannot map {length} bytes of shared memory"), e.into()))
    }

    /// Gives the memory of a range of an anonymous mapping back: it is zero when it is used again. The range must have whole
    /// pages, and nobody may need its contents.
    pub fn discard(&self, offset: usize, length: usize) {
        let _ = self.at(offset + length);
        // SAFETY: the range was just checked to lie within this mapping, and no reference of Rust's points into it.
        let advised = unsafe { madvise(self.at(offset).cast(), length, Advice::LinuxRemove) };
        // A kernel that refuses keeps the memory.
        let _ = advised;
    }

    /// Gives the memory of a range back, whose addresses stay reserved. Nothing may point into it.
    pub fn unmap_at(&self, offset: usize, length: usize) -> Result<()> {
        let _ = self.at(offset + length);
        // SAFETY: the range was just checked to lie within this mapping, and the caller has no use for its contents.
        let start = unsafe {
            mmap_anonymous(
                self.at(offset).cast(),
                length,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            )
        };
        start.map(drop).map_err(|e| Error::os(format!("cannot give back {length} bytes of shared memory"), e.into()))
    }

    fn from_result(start: rustix::io::Result<*mut core::ffi::c_void>, length: usize) -> Result<Self> {
        let start = start.map_err(|e| Error::os(format!("cannot map {length} bytes of shared memory"), e.into()))?;
        let start =
            NonNull::new(start.cast()).ok_or_else(|| Error::failed("cannot map shared memory", "null address"))?;
        Ok(Self { start, length })
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns a pointer `offset` bytes into the mapping. Panics if it lies outside: offsets are trawl's own.
    #[inline]
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.length, "offset {offset} lies outside a mapping of {} bytes", self.length);
        // SAFETY: the offset was just checked to lie within the mapping or one past its end.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Writes bytes to a range that no other party reads or writes at the time; panics if they do not fit.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.put(offset, bytes);
    }

    /// Writes bytes to a shared mapping; other readers learn from another field when the bytes are valid.
    pub(crate) fn put(&self, offset: usize, bytes: &[u8]) {
        let _ = self.at(offset + bytes.len());
        // SAFETY: the range was just checked to lie within the mapping, which no reference of Rust's points into.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset), bytes.len()) }
    }

    /// Copies a range that no other party writes to; `None` if it is not all inside.
    pub fn read(&self, offset: usize, length: usize) -> Option<Vec<u8>> {
        if offset.checked_add(length)? > self.length {
            return None;
        }
        let mut bytes = vec![0; length];
        // SAFETY: the range was just checked to lie within the mapping, and the vector is as long.
        unsafe { ptr::copy_nonoverlapping(self.at(offset), bytes.as_mut_ptr(), length) }
        Some(bytes)
    }

    /// Reads a number that others may be writing at this moment; `None` for an offset outside or unaligned.
    pub fn number(&self, offset: usize) -> Option<u64> {
        if !offset.is_multiple_of(8) || offset.checked_add(8)? > self.length {
            return None;
        }
        // SAFETY: eight aligned bytes inside of the mapping; volatile, since others write there.
        Some(unsafe { self.at(offset).cast::<u64>().read_volatile() })
    }

    /// Returns a number that others read and write at this moment; panics for an offset outside or unaligned.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.length,
            "no number at {offset} of {} bytes",
            self.length
        );
        // SAFETY: eight aligned bytes inside of the mapping, which live as long as it; others use them as one too.
        unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }
    }

    /// Returns a 32-bit number that others read at this moment, along with all earlier writes; panics for an offset
    /// outside or unaligned.
    pub fn short(&self, offset: usize) -> &AtomicU32 {
        assert!(
            offset.is_multiple_of(4) && offset + 4 <= self.length,
            "no number at {offset} of {} bytes",
            self.length
        );
        // SAFETY: four aligned bytes inside of the mapping, which live as long as it; others use them as one too.
        unsafe { AtomicU32::from_ptr(self.at(offset).cast()) }
    }
}

/// The bytes of a file that no process changes. They are mapped if the file allows it, and take no memory then.
#[derive(Debug)]
pub struct ConstantBytes(Contents);

#[derive(Debug)]
enum Contents {
    /// A mapping that may only be read.
    Mapped(Mapping),
    Read(Vec<u8>),
}

impl ConstantBytes {
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no existing memory.
        let start = unsafe { mmap(ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) };
        match start.ok().and_then(|start| NonNull::new(start.cast())) {
            Some(start) => Ok(Self(Contents::Mapped(Mapping { start, length }))),
            None => Ok(Self(Contents::Read(std::fs::read(path)?))),
        }
    }
}

impl From<Vec<u8>> for ConstantBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Contents::Read(bytes))
    }
}

impl Deref for ConstantBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: the mapping is readable, as long as this, and lives as long as `self`; its file does not change.
            Contents::Mapped(mapping) => unsafe {
                std::slice::from_raw_parts(mapping.start.as_ptr().cast_const(), mapping.length)
            },
            Contents::Read(bytes) => bytes,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this type created the mapping with this length, and no borrow of it outlives it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
