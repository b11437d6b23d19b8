//! A raw packet socket: many frames a system call, past the qdisc.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Burst, Sender, check_frame};
use crate::error::{Error, Result};
use crate::netlink::Netlink;

const BATCH: usize = 64;

/// A socket bound to the interface that the frames leave by.
#[derive(Debug)]
pub struct PacketSender {
    socket: OwnedFd,
    name: String,
}

impl PacketSender {
    /// For an interface of the calling thread's namespace.
    pub fn open(name: &str) -> Result<Self> {
        let index = Netlink::here()?.link(name)?.index;
        let what = || format!("cannot open a packet socket on {name}");
        let os = |error: io::Error| {
            let privileges = error.raw_os_error() == Some(libc::EPERM);
            let error = Error::os(what(), error);
            if privileges {
                error.mend("it takes root (CAP_NET_RAW)")
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
        let on: libc::c_int = 1;
        // A refusal only means that frames take the longer way through the qdisc.
        // SAFETY: the value is an int that outlives the call, and its size is given.
        unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_PACKET,
                libc::PACKET_QDISC_BYPASS,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        Ok(Self {
            socket,
            name: name.to_owned(),
        })
    }

    /// Offers the frame up to [`BATCH`] times with one call; how many were taken before one was refused.
    fn offer(&self, frame: &[u8], count: usize) -> io::Result<usize> {
        let mut part = libc::iovec {
            iov_base: frame.as_ptr().cast_mut().cast(),
            iov_len: frame.len(),
        };
        // SAFETY: all zeroes are a valid mmsghdr.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        for message in &mut messages {
            message.msg_hdr.msg_iov = &raw mut part;
            message.msg_hdr.msg_iovlen = 1;
        }
        let count = count.min(BATCH) as u32;
        // SAFETY: `count` messages are given, all of them point to the one iovec, and the kernel only
        // reads the frame behind it.
        let taken =
            unsafe { libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), count, 0) };
        if taken < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(taken as usize)
        }
    }
}

impl Sender for PacketSender {
    fn burst(&mut self, frame: &[u8], count: u64) -> Result<Burst> {
        check_frame(frame)?;
        let mut burst = Burst::default();
        while burst.sent + burst.refused < count {
            let left = count - burst.sent - burst.refused;
            match self.offer(frame, usize::try_from(left).unwrap_or(BATCH)) {
                Ok(taken) => burst.sent += taken as u64,
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => burst.refused += 1,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    let what = format!(
                        "cannot send a frame of {} bytes out of {}",
                        frame.len(),
                        self.name
                    );
                    let too_long = e.raw_os_error() == Some(libc::EMSGSIZE);
                    let error = Error::os(what, e);
                    return Err(if too_long {
                        error.mend("raise the interface's MTU")
                    } else {
                        error
                    });
                }
            }
        }
        Ok(burst)
    }

    fn largest_burst(&self) -> u64 {
        1024
    }
}
