//! Socket options: set and read.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libc::c_int;

/// Sets an option. A value with pointers in it must come with the memory they point to: the kernel reads that as well.
pub fn set<T>(socket: &impl AsFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes at most from the value, which outlives the call.
    let result = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option. `T` must be valid for any bit pattern: the kernel fills it, or the first part of it.
pub fn get<T: Copy>(socket: &impl AsFd, level: c_int, option: c_int, mut value: T) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes `length` bytes at most to the value, of types made of plain integers.
    let result = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Makes the kernel end a TCP connection whose other host does not answer for about a minute.
pub fn keep_alive(socket: &impl AsFd) -> io::Result<()> {
    use rustix::net::sockopt;
    const QUIET: Duration = Duration::from_secs(30);
    const EVERY: Duration = Duration::from_secs(10);
    sockopt::set_tcp_keepidle(socket, QUIET)?;
    sockopt::set_tcp_keepintvl(socket, EVERY)?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// Limits the bytes that a TCP socket accepts before it can send them. A larger limit makes room at once.
pub fn limit_unsent(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &bytes)
}
