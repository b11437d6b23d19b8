//! The rings that an AF_XDP socket shares with the kernel: one side writes, the other reads.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::memory::Mapping;

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

/// Frames to be sent, which we write.
#[derive(Debug)]
pub(super) struct Descriptors {
    ring: Ring,
    size: u32,
    /// How many were written; the kernel has been told of those up to its own word.
    written: u32,
}

impl Descriptors {
    pub fn new(ring: Ring, size: u32) -> Self {
        let written = ring.word(ring.producer).load(Ordering::Relaxed);
        Self {
            ring,
            size,
            written,
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
    pub fn put(&mut self, place: u64, length: u32) {
        let index = (self.written & (self.size - 1)) as usize;
        let at = self.ring.entries + index * size_of::<libc::xdp_desc>();
        let descriptor = libc::xdp_desc {
            addr: place,
            len: length,
            options: 0,
        };
        let to: *mut libc::xdp_desc = self.ring.memory.at(at).cast();
        // SAFETY: the entry lies in the mapping, aligned, and the kernel does not read it before it is published.
        unsafe { to.write(descriptor) };
        self.written = self.written.wrapping_add(1);
    }

    pub fn publish(&mut self) {
        let word = self.ring.word(self.ring.producer);
        word.store(self.written, Ordering::Release);
    }
}

/// Slots that the kernel gives back, which we read.
#[derive(Debug)]
pub(super) struct Places {
    ring: Ring,
    size: u32,
    read: u32,
}

impl Places {
    pub fn new(ring: Ring, size: u32) -> Self {
        let read = ring.word(ring.consumer).load(Ordering::Relaxed);
        Self { ring, size, read }
    }

    pub fn take(&mut self) -> Option<u64> {
        let produced = self.ring.word(self.ring.producer).load(Ordering::Acquire);
        if produced == self.read {
            return None;
        }
        let index = (self.read & (self.size - 1)) as usize;
        let from: *mut u64 = self
            .ring
            .memory
            .at(self.ring.entries + index * size_of::<u64>())
            .cast();
        // SAFETY: the entry lies in the mapping, aligned, and the kernel has published it.
        let place = unsafe { from.read() };
        self.read = self.read.wrapping_add(1);
        self.ring
            .word(self.ring.consumer)
            .store(self.read, Ordering::Release);
        Some(place)
    }
}
