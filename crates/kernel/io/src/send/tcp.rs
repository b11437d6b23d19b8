//! TCP connections: opened without blocking, and waited for many at a time.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

/// Events of a connection: awaited ones, and then the ones that occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    pub read: bool,
    pub write: bool,
}

/// Begins to connect, in the calling thread's namespace. The stream becomes writable when the connection succeeds or
/// fails: [`TcpStream::take_error`] distinguishes them.
pub fn begin(to: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    if let Some(from) = from {
        bind(&socket, &SocketAddr::new(from, 0))?;
    }
    match connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(e) => Err(e.into()),
    }
}

/// Returns the number of bytes written to the stream that its other end has not acknowledged.
pub fn unacknowledged(stream: &TcpStream) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the kernel writes one int, which outlives the call.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Waits until one of the streams is ready for its wanted events, or the time is up; `wanted` then holds the events
/// that occurred.
pub fn wait(streams: &[&TcpStream], wanted: &mut [Readiness], at_most: Duration) -> io::Result<()> {
    let pairs = streams.iter().zip(wanted.iter());
    let mut set: Vec<PollFd<'_>> = pairs
        .map(|(stream, wanted)| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, wanted.read);
            flags.set(PollFlags::OUT, wanted.write);
            PollFd::from_borrowed_fd(stream.as_fd(), flags)
        })
        .collect();
    let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) as _ };
    match poll(&mut set, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    for (wanted, polled) in wanted.iter_mut().zip(&set) {
        let found = polled.revents();
        let over = found.intersects(PollFlags::ERR | PollFlags::HUP);
        *wanted = Readiness {
            read: found.contains(PollFlags::IN) || (over && wanted.read),
            write: found.contains(PollFlags::OUT) || (over && wanted.write),
        };
    }
    Ok(())
}
