//! The rings that an AF_XDP socket shares with the kernel: one side writes, the other reads.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use trawl_sys::memory::Mapping;

/// Where the parts of a ring are in its mapping.
#[derive(Debug)]
pub(super) struct Ring {
    pub memory: Mapping,
    pub producer: usize,
    pub consumer: usize,
    pub entries: usize,
}

impl Ring {
    fn word(&self, offset: usize) -> &AtomicU32 {
        let at: *mut u32 = self.memory.at(offset).cast();
        // SAFETY: the kernel told this offset of an aligned u32 in the mapping, which lives as long as the borrow; both
        // sides access it atomically only.
        unsafe { AtomicU32::from_ptr(at) }
    }
}

/// What the two kinds of rings hold.
pub(super) trait Entry: Copy {}
/// A place in the memory that is shared.
impl Entry for u64 {}
/// A frame: its place and its length.
impl Entry for libc::xdp_desc {}

/// A ring that we write: frames to be sent, or slots to receive into.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Ring,
    size: u32,
    /// How many were written; the kernel has been told of those up to its own word.
    written: u32,
    entry: PhantomData<T>,
}

impl<T: Entry> Producer<T> {
    pub fn new(ring: Ring, size: u32) -> Self {
        let written = ring.word(ring.producer).load(Ordering::Relaxed);
        Self {
            ring,
            size,
            written,
            entry: PhantomData,
        }
    }

    /// How many the kernel has taken, modulo 2^32.
    pub fn consumed(&self) -> u32 {
        self.ring.word(self.ring.consumer).load(Ordering::Acquire)
    }

    pub fn waiting(&self) -> u32 {
        self.written.wrapping_sub(self.consumed())
    }

    pub fn has_room(&self) -> bool {
        self.waiting() < self.size
    }

    /// Only where there is room.
    pub fn put(&mut self, entry: T) {
        let index = (self.written & (self.size - 1)) as usize;
        let at = self.ring.entries + index * size_of::<T>();
        let to: *mut T = self.ring.memory.at(at).cast();
        // SAFETY: the entry lies in the mapping, aligned, and the kernel does not read it before it is published.
        unsafe { to.write(entry) };
        self.written = self.written.wrapping_add(1);
    }

    pub fn publish(&mut self) {
        let word = self.ring.word(self.ring.producer);
        word.store(self.written, Ordering::Release);
    }
}

/// A ring that we read: slots that the kernel gives back, or frames that it received.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Ring,
    size: u32,
    read: u32,
    entry: PhantomData<T>,
}

impl<T: Entry> Consumer<T> {
    pub fn new(ring: Ring, size: u32) -> Self {
        let read = ring.word(ring.consumer).load(Ordering::Relaxed);
        Self {
            ring,
            size,
            read,
            entry: PhantomData,
        }
    }

    pub fn take(&mut self) -> Option<T> {
        let produced = self.ring.word(self.ring.producer).load(Ordering::Acquire);
        if produced == self.read {
            return None;
        }
        let index = (self.read & (self.size - 1)) as usize;
        let at = self.ring.entries + index * size_of::<T>();
        let from: *mut T = self.ring.memory.at(at).cast();
        // SAFETY: the entry lies in the mapping, aligned, and the kernel has published it.
        let entry = unsafe { from.read() };
        self.read = self.read.wrapping_add(1);
        self.ring
            .word(self.ring.consumer)
            .store(self.read, Ordering::Release);
        Some(entry)
    }
}
