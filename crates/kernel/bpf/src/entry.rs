//! The calls that write, read and remove a map's entry.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::check;

/// Writes an entry whether it exists or not.
pub const ANY: u64 = libbpf_sys::BPF_ANY as u64;
/// Writes an entry that does not exist.
pub const NEW_ONLY: u64 = libbpf_sys::BPF_NOEXIST as u64;

/// Writes a value under a key.
///
/// # Safety
/// Key and value must be as long as the map's.
pub(crate) unsafe fn update<K, V>(map: BorrowedFd<'_>, key: *const K, value: *const V, flags: u64) -> io::Result<()> {
    // SAFETY: as the caller asserts.
    let result = unsafe { libbpf_sys::bpf_map_update_elem(map.as_raw_fd(), key.cast(), value.cast(), flags) };
    check(result).map(drop)
}

/// Reads the value under a key; returns false if it has none.
///
/// # Safety
/// The key must be as long as the map's, with room for a whole value.
pub(crate) unsafe fn lookup<K, V>(map: BorrowedFd<'_>, key: *const K, value: *mut V) -> io::Result<bool> {
    // SAFETY: as the caller asserts.
    exists(unsafe { libbpf_sys::bpf_map_lookup_elem(map.as_raw_fd(), key.cast(), value.cast()) })
}

/// Reads the value under a key and removes the entry; returns false if it has none.
///
/// # Safety
/// The key must be as long as the map's, with room for a whole value.
pub(crate) unsafe fn take<K, V>(map: BorrowedFd<'_>, key: *const K, value: *mut V) -> io::Result<bool> {
    let (key, value) = (key.cast(), value.cast());
    // SAFETY: as the caller asserts.
    exists(unsafe { libbpf_sys::bpf_map_lookup_and_delete_elem(map.as_raw_fd(), key, value) })
}

/// Removes an entry; returns true if it existed.
///
/// # Safety
/// The key must be as long as the map's.
pub(crate) unsafe fn delete<K>(map: BorrowedFd<'_>, key: *const K) -> io::Result<bool> {
    // SAFETY: as the caller asserts.
    exists(unsafe { libbpf_sys::bpf_map_delete_elem(map.as_raw_fd(), key.cast()) })
}

/// Returns false for the answer that an entry does not exist.
pub(crate) fn exists(result: i32) -> io::Result<bool> {
    match check(result) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(e) => Err(e),
    }
}
