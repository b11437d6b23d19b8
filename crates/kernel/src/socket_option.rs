//! The one call that sets a socket's option.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::c_int;

/// A value with pointers in it must be given together with what they lead to: the kernel reads that as well.
pub(crate) fn set<T>(socket: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes at most from the value, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            length,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
