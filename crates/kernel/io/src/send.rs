//! Sends frames out of an interface, as live XDP frames or through a packet socket.
//!
//! Both engines work in the network namespace of the calling thread, so they are opened and used inside
//! [`trawl_sys::netns::run_in`].

mod accepted;
mod live;
pub mod tcp;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use trawl_sys::error::{Error, Result};
use trawl_sys::netlink::Netlink;
use trawl_sys::netlink::socket_option;
use trawl_sys::words::word;

pub use live::{LARGEST_RUN, LivePlan, LiveSender, dry_run};

/// Length of the shortest frame: an Ethernet header.
const SHORTEST_FRAME: usize = 14;

/// Counts of a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Burst {
    /// Frames that the interface accepted.
    pub sent: u64,
    /// Frames that it refused because the other end was full.
    pub refused: u64,
}

/// Pins the calling thread to one CPU; with a veth that also chooses the receiving queue.
pub fn pin_to_cpu(cpu: usize) -> Result<()> {
    let what = format!("cannot stay on CPU {cpu}");
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(Error::failed(what, "there is no such CPU"));
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| match e {
        rustix::io::Errno::INVAL => Error::failed(what, "there is no such CPU, or it is not allowed here"),
        e => Error::os(what, e.into()),
    })
}

/// Explains ENETDOWN: the interface is down, or it was deleted.
pub(crate) fn down_or_gone(what: String, name: &str) -> Error {
    match Netlink::current().and_then(|mut netlink| netlink.find_link(name)) {
        Ok(None) => Error::failed(what, "the interface is gone"),
        _ => Error::failed(what, "the interface is down").fix(format!("ip link set {} up", word(name))),
    }
}

fn check_frame(frame: &[u8]) -> Result<()> {
    if frame.len() < SHORTEST_FRAME {
        return Err(Error::usage(
            format!("cannot send a frame of {} bytes", frame.len()),
            format!("an Ethernet frame has at least {SHORTEST_FRAME}"),
        ));
    }
    Ok(())
}

// A raw packet socket: many frames for each system call, past the qdisc.

/// Maximum number of frames of one call.
pub const PACKET_BATCH: usize = 64;

/// A socket bound to the outgoing interface.
#[derive(Debug)]
pub struct PacketSender {
    socket: OwnedFd,
    name: String,
}

impl PacketSender {
    /// Opens a socket for an interface of the calling thread's namespace, past the queueing discipline.
    pub fn open(name: &str) -> Result<Self> {
        let sender = Self::queued(name)?;
        let on: libc::c_int = 1;
        // A refusal only means that frames go through the qdisc.
        let _ = socket_option::set(&sender.socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &on);
        Ok(sender)
    }

    /// Opens a socket that sends through the queueing discipline, which is the default of the kernel.
    pub fn queued(name: &str) -> Result<Self> {
        let index = Netlink::current()?.link(name)?.index;
        Ok(Self { socket: bound(name, index)?, name: name.to_owned() })
    }

    /// Offers up to [`PACKET_BATCH`] frames with one call, and returns the number accepted before one was refused for
    /// lack of room.
    pub fn offer(&self, frames: &[&[u8]]) -> Result<usize> {
        let frames = &frames[..frames.len().min(PACKET_BATCH)];
        // SAFETY: all zeroes are a valid iovec.
        let mut parts: [libc::iovec; PACKET_BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: all zeroes are a valid mmsghdr.
        let mut messages: [libc::mmsghdr; PACKET_BATCH] = unsafe { std::mem::zeroed() };
        for ((message, part), frame) in messages.iter_mut().zip(&mut parts).zip(frames) {
            part.iov_base = frame.as_ptr().cast_mut().cast();
            part.iov_len = frame.len();
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
        }
        let count = frames.len() as u32;
        // SAFETY: `count` messages are passed. Each points to an iovec of its own that outlives the call, and the
        // kernel only reads the frames that the iovecs point to.
        let taken = unsafe { libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), count, 0) };
        if taken >= 0 {
            return Ok(taken as usize);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOBUFS | libc::EINTR | libc::EAGAIN) => Ok(0),
            _ => Err(self.explain(error, frames.first().map_or(0, |frame| frame.len()))),
        }
    }

    fn explain(&self, error: io::Error, length: usize) -> Error {
        explain(&self.name, error, length)
    }
}

/// Opens a packet socket that only sends.
fn bound(name: &str, index: u32) -> Result<OwnedFd> {
    let os = |error: io::Error| {
        let privileges = error.raw_os_error() == Some(libc::EPERM);
        let error = Error::os(format!("cannot open a packet socket on {name}"), error);
        if privileges { error.fix("this requires root (CAP_NET_RAW)") } else { error }
    };
    // Protocol 0 keeps a socket that only sends from receiving every packet of the machine.
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(os(io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zeroes are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = index as i32;
    // SAFETY: the address is a whole sockaddr_ll and its size is given.
    let bound = unsafe { libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as libc::socklen_t) };
    if bound < 0 {
        return Err(os(io::Error::last_os_error()));
    }
    Ok(socket)
}

/// Explains the error of sending a frame to a person.
fn explain(name: &str, error: io::Error, length: usize) -> Error {
    let what = format!("cannot send a frame of {length} bytes out of {name}");
    match error.raw_os_error() {
        Some(libc::EMSGSIZE) => Error::os(what, error).fix("raise the interface's MTU"),
        Some(libc::ENXIO | libc::ENODEV) => Error::failed(what, "the interface is gone"),
        Some(libc::ENETDOWN) => down_or_gone(what, name),
        _ => Error::os(what, error),
    }
}
