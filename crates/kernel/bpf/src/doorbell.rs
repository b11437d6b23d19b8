//! A doorbell: BPF programs wake a process that waits for their records.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use trawl_sys::{Error, Result};

/// The part of a doorbell that a process waits for.
#[derive(Debug)]
pub struct Doorbell {
    buffer: NonNull<libbpf_sys::ring_buffer>,
    map: OwnedFd,
}

impl Doorbell {
    /// Listens to the doorbell of this map, which is a ring buffer.
    pub fn of_map(map: BorrowedFd<'_>) -> Result<Self> {
        let fail = |why| Error::os("cannot listen to the doorbell of the programs", why);
        let map = map.try_clone_to_owned().map_err(fail)?;
        let number = map.as_raw_fd();
        // SAFETY: the descriptor is open, and the callback uses none of its arguments.
        let buffer =
            unsafe { libbpf_sys::ring_buffer__new(number, Some(ignore), std::ptr::null_mut(), std::ptr::null()) };
        let buffer = NonNull::new(buffer).ok_or_else(|| fail(std::io::Error::last_os_error()))?;
        Ok(Self { buffer, map })
    }

    /// Empties the ring buffer. Returns true if a program has rung since the last call.
    pub fn hush(&self) -> bool {
        // SAFETY: the buffer lives as long as this value, which only its thread has. The one failure, an interrupted
        // call, leaves some rings for the next one.
        unsafe { libbpf_sys::ring_buffer__consume(self.buffer.as_ptr()) > 0 }
    }
}

impl AsFd for Doorbell {
    /// Becomes readable once a program rings.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        // SAFETY: the buffer is libbpf's own, and not used any more.
        unsafe { libbpf_sys::ring_buffer__free(self.buffer.as_ptr()) };
    }
}

extern "C" fn ignore(_context: *mut c_void, _data: *mut c_void, _size: libbpf_sys::size_t) -> c_int {
    0
}
