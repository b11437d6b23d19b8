//! A raw packet socket: many frames a system call, past the qdisc.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use trawl_sys::error::{Error, Result};
use trawl_sys::netlink::Netlink;
use trawl_sys::socket_option;

/// The most frames that one call offers.
pub const BATCH: usize = 64;

/// A socket bound to the interface that the frames leave by.
#[derive(Debug)]
pub struct PacketSender {
    socket: OwnedFd,
    name: String,
}

impl PacketSender {
    /// For an interface of the calling thread's namespace, past the queueing discipline.
    pub fn open(name: &str) -> Result<Self> {
        let sender = Self::queued(name)?;
        let on: libc::c_int = 1;
        // A refusal only means that frames take the longer way through the qdisc.
        let _ = socket_option::set(
            &sender.socket,
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            &on,
        );
        Ok(sender)
    }

    /// The same through the queueing discipline, as sockets are without further ado.
    pub fn queued(name: &str) -> Result<Self> {
        let index = Netlink::here()?.link(name)?.index;
        Ok(Self {
            socket: bound(name, index)?,
            name: name.to_owned(),
        })
    }

    /// Offers up to [`BATCH`] frames with one call; how many were taken before one was refused for want of room.
    pub fn offer(&self, frames: &[&[u8]]) -> Result<usize> {
        let frames = &frames[..frames.len().min(BATCH)];
        // SAFETY: all zeroes are a valid iovec.
        let mut parts: [libc::iovec; BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: all zeroes are a valid mmsghdr.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        for ((message, part), frame) in messages.iter_mut().zip(&mut parts).zip(frames) {
            part.iov_base = frame.as_ptr().cast_mut().cast();
            part.iov_len = frame.len();
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
        }
        let count = frames.len() as u32;
        // SAFETY: `count` messages are given, each points to an iovec of its own that outlives the call, and the
        // kernel only reads the frames after them.
        let taken =
            unsafe { libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), count, 0) };
        if taken >= 0 {
            return Ok(taken as usize);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOBUFS | libc::EINTR | libc::EAGAIN) => Ok(0),
            _ => Err(self.explain(error, frames.first().map_or(0, |frame| frame.len()))),
        }
    }

    pub(super) fn explain(&self, error: io::Error, length: usize) -> Error {
        explain(&self.name, error, length)
    }
}

/// A packet socket that only sends.
pub(super) fn bound(name: &str, index: u32) -> Result<OwnedFd> {
    let os = |error: io::Error| {
        let privileges = error.raw_os_error() == Some(libc::EPERM);
        let error = Error::os(format!("cannot open a packet socket on {name}"), error);
        if privileges {
            error.fix("this requires root (CAP_NET_RAW)")
        } else {
            error
        }
    };
    // Protocol 0: a socket that only sends is not to see every packet of the machine.
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(os(io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zeroes are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = index as i32;
    // SAFETY: the address is a whole sockaddr_ll and its size is given.
    let bound = unsafe {
        libc::bind(
            fd,
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    if bound < 0 {
        return Err(os(io::Error::last_os_error()));
    }
    Ok(socket)
}

/// What became of sending a frame, for a person to read.
pub(super) fn explain(name: &str, error: io::Error, length: usize) -> Error {
    let what = format!("cannot send a frame of {length} bytes out of {name}");
    match error.raw_os_error() {
        Some(libc::EMSGSIZE) => Error::os(what, error).fix("raise the interface's MTU"),
        Some(libc::ENXIO | libc::ENODEV) => Error::failed(what, "the interface is gone"),
        Some(libc::ENETDOWN) => super::down_or_gone(what, name),
        _ => Error::os(what, error),
    }
}
