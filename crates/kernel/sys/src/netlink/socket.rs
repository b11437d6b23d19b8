//! A netlink socket that asks one question at a time and waits for the whole answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send,
    socket_with,
};

use super::wire::{self, Request, messages, read_i32, read_text};
use crate::error::{Error, Result};
use crate::netns::{Namespace, run_maybe_in};
use crate::socket_option;

const NLMSGERR_ATTR_MSG: u16 = 1;
/// Routing is netlink's protocol 0, which rustix spells as no protocol.
const NETLINK_ROUTE: Option<Protocol> = None;

/// A refusal of the kernel: the errno and, where it gave one, its own sentence.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub errno: i32,
    pub says: Option<String>,
}

impl Refusal {
    /// The refusal as an error about `what`, with the fix for missing privileges.
    pub fn about(self, what: impl Into<String>) -> Error {
        let mut error = Error::os(what, io::Error::from_raw_os_error(self.errno));
        if let Some(says) = self.says {
            error = error.fix(format!("the kernel says: {says}"));
        }
        if self.errno == libc::EPERM {
            error = error.fix("this requires root (CAP_NET_ADMIN)");
        }
        error
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self {
            errno: error.raw_os_error().unwrap_or(libc::EIO),
            says: None,
        }
    }
}

impl From<rustix::io::Errno> for Refusal {
    fn from(errno: rustix::io::Errno) -> Self {
        Self {
            errno: errno.raw_os_error(),
            says: None,
        }
    }
}

/// One reply message, header taken off.
#[derive(Clone, Debug)]
pub struct Reply {
    pub kind: u16,
    pub payload: Vec<u8>,
}

/// A socket of one netlink family. It belongs for good to the namespace it was opened in.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Links, addresses, routes, tc: in `namespace`, or here for `None`.
    pub fn route(namespace: Option<&Namespace>) -> Result<Self> {
        Self::open(namespace, NETLINK_ROUTE, 0)
    }

    /// Generic netlink.
    pub fn generic(namespace: Option<&Namespace>) -> Result<Self> {
        Self::open(namespace, Some(rustix::net::netlink::GENERIC), 0)
    }

    /// A routing socket that is told about changes in these groups (a mask of `RTMGRP_…`).
    pub fn route_events(namespace: Option<&Namespace>, groups: u32) -> Result<Self> {
        Self::open(namespace, NETLINK_ROUTE, groups)
    }

    fn open(
        namespace: Option<&Namespace>,
        protocol: Option<Protocol>,
        groups: u32,
    ) -> Result<Self> {
        let opened = run_maybe_in(namespace, || {
            let fd = socket_with(
                AddressFamily::NETLINK,
                SocketType::RAW,
                SocketFlags::CLOEXEC,
                protocol,
            )?;
            bind(&fd, &SocketAddrNetlink::new(0, groups))?;
            Ok::<_, rustix::io::Errno>(fd)
        })?;
        let fd = opened.map_err(|e| Error::os("cannot open a netlink socket", e.into()))?;
        // Older kernels know neither: messages are then only less clear and dumps less narrow.
        set_option(&fd, libc::NETLINK_EXT_ACK);
        set_option(&fd, libc::NETLINK_CAP_ACK);
        set_option(&fd, libc::NETLINK_GET_STRICT_CHK);
        Ok(Self {
            fd,
            sequence: 0,
            buffer: vec![0; 64 * 1024],
        })
    }

    /// Sends a change and waits for the kernel's yes or no.
    pub fn change(&mut self, request: Request) -> Result<(), Refusal> {
        self.transact(request, libc::NLM_F_ACK as u16).map(|_| ())
    }

    /// Asks for one object.
    pub fn get(&mut self, request: Request) -> Result<Reply, Refusal> {
        let replies = self.transact(request, libc::NLM_F_ACK as u16)?;
        let nothing = Refusal {
            errno: libc::ENOENT,
            says: None,
        };
        replies.into_iter().next().ok_or(nothing)
    }

    /// Asks for all objects of a kind.
    pub fn dump(&mut self, mut make: impl FnMut() -> Request) -> Result<Vec<Reply>, Refusal> {
        // The kernel marks a dump that was overtaken by a change; asking again gets a whole one.
        for _ in 0..8 {
            match self.transact(make(), libc::NLM_F_DUMP as u16) {
                Err(refusal) if refusal.errno == libc::EINTR => continue,
                result => return result,
            }
        }
        Err(Refusal {
            errno: libc::EINTR,
            says: None,
        })
    }

    fn transact(&mut self, mut request: Request, flags: u16) -> Result<Vec<Reply>, Refusal> {
        request.add_flags(flags);
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        send(&self.fd, &request.finish(sequence), SendFlags::empty())?;
        let mut replies = Vec::new();
        let mut interrupted = false;
        loop {
            let length = receive(&self.fd, &mut self.buffer, RecvFlags::empty())?;
            for message in messages(&self.buffer[..length]) {
                if message.sequence != sequence {
                    continue;
                }
                interrupted |= message.flags & libc::NLM_F_DUMP_INTR as u16 != 0;
                match i32::from(message.kind) {
                    libc::NLMSG_DONE if interrupted => {
                        return Err(Refusal {
                            errno: libc::EINTR,
                            says: None,
                        });
                    }
                    libc::NLMSG_DONE => return done(message.payload, replies),
                    libc::NLMSG_ERROR => return acknowledged(&message, replies),
                    _ => replies.push(Reply {
                        kind: message.kind,
                        payload: message.payload.to_vec(),
                    }),
                }
            }
        }
    }

    /// Waits until something comes in unasked, or the time is up.
    pub(super) fn wait(&self, at_most: Duration) -> Result<(), Refusal> {
        let limit = Timespec {
            tv_sec: at_most.as_secs() as i64,
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// What came in unasked, without waiting; empty when there is nothing.
    pub(super) fn events(&mut self) -> Result<Vec<Reply>, Refusal> {
        match receive(&self.fd, &mut self.buffer, RecvFlags::DONTWAIT) {
            Ok(length) => Ok(messages(&self.buffer[..length])
                .map(|m| Reply {
                    kind: m.kind,
                    payload: m.payload.to_vec(),
                })
                .collect()),
            Err(refusal) if refusal.errno == libc::EAGAIN => Ok(Vec::new()),
            Err(refusal) => Err(refusal),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Receives one datagram whole, growing the buffer to its size first.
fn receive(fd: &OwnedFd, buffer: &mut Vec<u8>, flags: RecvFlags) -> Result<usize, Refusal> {
    loop {
        let peek = flags | RecvFlags::PEEK | RecvFlags::TRUNC;
        match recv(fd, &mut [0u8; 0][..], peek) {
            Ok((_, length)) if length > buffer.len() => buffer.resize(length, 0),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        }
        match recv(fd, &mut buffer[..], flags) {
            Ok((length, _)) => return Ok(length),
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        }
    }
}

fn done(payload: &[u8], replies: Vec<Reply>) -> Result<Vec<Reply>, Refusal> {
    match read_i32(payload, 0) {
        Some(code) if code < 0 => Err(Refusal {
            errno: -code,
            says: None,
        }),
        _ => Ok(replies),
    }
}

fn acknowledged(message: &wire::Message<'_>, replies: Vec<Reply>) -> Result<Vec<Reply>, Refusal> {
    let code = read_i32(message.payload, 0).unwrap_or(-libc::EPROTO);
    if code == 0 {
        return Ok(replies);
    }
    // The error is followed by the request it is about (only its header where NLM_F_CAPPED is set)
    // and then by attributes.
    let capped = message.flags & libc::NLM_F_CAPPED as u16 != 0;
    let echoed = if capped {
        16
    } else {
        wire::read_u32(message.payload, 4).unwrap_or(16) as usize
    };
    let tail = message
        .payload
        .get(4 + echoed.next_multiple_of(4)..)
        .unwrap_or(&[]);
    let has_tail = message.flags & libc::NLM_F_ACK_TLVS as u16 != 0;
    let says = has_tail
        .then(|| wire::find(tail, NLMSGERR_ATTR_MSG).map(read_text))
        .flatten();
    Err(Refusal { errno: -code, says })
}

fn set_option(fd: &OwnedFd, option: libc::c_int) {
    let on: libc::c_int = 1;
    // Older kernels go without.
    let _ = socket_option::set(fd, libc::SOL_NETLINK, option, &on);
}
