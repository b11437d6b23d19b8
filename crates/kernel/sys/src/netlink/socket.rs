//! A netlink socket that sends one request at a time and waits for the whole answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use crate::error::{Error, Result};
use crate::netlink::socket_option;
use crate::netns::{Namespace, run_maybe_in};

const NLMSGERR_ATTR_MSG: u16 = 1;
/// Routing is netlink's protocol 0, which rustix spells as no protocol.
const NETLINK_ROUTE: Option<Protocol> = None;

/// The kernel's refusal: the errno, and the kernel's own message if it sent one.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub errno: i32,
    pub says: Option<String>,
}

impl Refusal {
    /// Returns the refusal as an error about `what`, with the fix for missing privileges.
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
        Self { errno: error.raw_os_error().unwrap_or(libc::EIO), says: None }
    }
}

impl From<rustix::io::Errno> for Refusal {
    fn from(errno: rustix::io::Errno) -> Self {
        Self { errno: errno.raw_os_error(), says: None }
    }
}

/// One reply message, without its header.
#[derive(Clone, Debug)]
pub struct Reply {
    pub kind: u16,
    pub payload: Vec<u8>,
}

/// A socket of one netlink family. It stays in the namespace it was opened in.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket for links, addresses, routes and tc, in `namespace` or the current one.
    pub fn route(namespace: Option<&Namespace>) -> Result<Self> {
        Self::open(namespace, NETLINK_ROUTE, 0)
    }

    /// Opens a socket of generic netlink.
    pub fn generic(namespace: Option<&Namespace>) -> Result<Self> {
        Self::open(namespace, Some(rustix::net::netlink::GENERIC), 0)
    }

    /// Opens a routing socket that receives changes in these groups (a mask of `RTMGRP_…`).
    pub fn route_events(namespace: Option<&Namespace>, groups: u32) -> Result<Self> {
        Self::open(namespace, NETLINK_ROUTE, groups)
    }

    /// Opens a socket of netfilter that receives reports of these groups (a mask).
    pub fn netfilter(namespace: Option<&Namespace>, groups: u32) -> Result<Self> {
        Self::open(namespace, Some(rustix::net::netlink::NETFILTER), groups)
    }

    fn open(namespace: Option<&Namespace>, protocol: Option<Protocol>, groups: u32) -> Result<Self> {
        let opened = run_maybe_in(namespace, || {
            let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
            bind(&fd, &SocketAddrNetlink::new(0, groups))?;
            Ok::<_, rustix::io::Errno>(fd)
        })?;
        let fd = opened.map_err(|e| Error::os("cannot open a netlink socket", e.into()))?;
        // Older kernels lack these options: messages are then less clear, and dumps longer.
        set_option(&fd, libc::NETLINK_EXT_ACK);
        set_option(&fd, libc::NETLINK_CAP_ACK);
        set_option(&fd, libc::NETLINK_GET_STRICT_CHK);
        Ok(Self { fd, sequence: 0, buffer: vec![0; 64 * 1024] })
    }

    /// Sends a change and waits for the kernel's answer.
    pub fn change(&mut self, request: NetlinkRequest) -> Result<(), Refusal> {
        self.transact(request, libc::NLM_F_ACK as u16).map(|_| ())
    }

    /// Sends the messages of a batch, which the kernel carries out as a whole or not at all, and waits for an error or
    /// the acknowledgement that one of them asks for.
    pub fn change_together<const N: usize>(&mut self, requests: [NetlinkRequest; N]) -> Result<(), Refusal> {
        let first = self.sequence.wrapping_add(1);
        let mut batch = Vec::new();
        for request in requests {
            self.sequence = self.sequence.wrapping_add(1);
            batch.extend(request.finish(self.sequence));
        }
        send(&self.fd, &batch, SendFlags::empty())?;
        loop {
            let length = receive(&self.fd, &mut self.buffer, RecvFlags::empty())?;
            for message in messages(&self.buffer[..length]) {
                let is_ours = (message.sequence.wrapping_sub(first) as usize) < N;
                if is_ours && i32::from(message.kind) == libc::NLMSG_ERROR {
                    return acknowledged(&message, Vec::new()).map(|_| ());
                }
            }
        }
    }

    /// Asks for one object.
    pub fn get(&mut self, request: NetlinkRequest) -> Result<Reply, Refusal> {
        let replies = self.transact(request, libc::NLM_F_ACK as u16)?;
        let nothing = Refusal { errno: libc::ENOENT, says: None };
        replies.into_iter().next().ok_or(nothing)
    }

    /// Asks for all objects of a kind.
    pub fn dump(&mut self, mut make: impl FnMut() -> NetlinkRequest) -> Result<Vec<Reply>, Refusal> {
        // The kernel marks a dump that a change interrupted; asking again gets a whole one.
        for _ in 0..8 {
            match self.transact(make(), libc::NLM_F_DUMP as u16) {
                Err(refusal) if refusal.errno == libc::EINTR => continue,
                result => return result,
            }
        }
        Err(Refusal { errno: libc::EINTR, says: None })
    }

    fn transact(&mut self, mut request: NetlinkRequest, flags: u16) -> Result<Vec<Reply>, Refusal> {
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
                        return Err(Refusal { errno: libc::EINTR, says: None });
                    }
                    libc::NLMSG_DONE => return done(message.payload, replies),
                    libc::NLMSG_ERROR => return acknowledged(&message, replies),
                    _ => replies.push(Reply { kind: message.kind, payload: message.payload.to_vec() }),
                }
            }
        }
    }

    /// Waits until an event arrives, or the time is up.
    pub(super) fn wait(&self, at_most: Duration) -> Result<(), Refusal> {
        let limit = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Returns the events that arrived, without waiting; empty if none did.
    pub(super) fn events(&mut self) -> Result<Vec<Reply>, Refusal> {
        match receive(&self.fd, &mut self.buffer, RecvFlags::DONTWAIT) {
            Ok(length) => Ok(messages(&self.buffer[..length])
                .map(|m| Reply { kind: m.kind, payload: m.payload.to_vec() })
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
        Some(code) if code < 0 => Err(Refusal { errno: -code, says: None }),
        _ => Ok(replies),
    }
}

fn acknowledged(message: &NetlinkMessage<'_>, replies: Vec<Reply>) -> Result<Vec<Reply>, Refusal> {
    let code = read_i32(message.payload, 0).unwrap_or(-libc::EPROTO);
    if code == 0 {
        return Ok(replies);
    }
    // After the error follow the request (only its header if NLM_F_CAPPED is set) and then attributes.
    let capped = message.flags & libc::NLM_F_CAPPED as u16 != 0;
    let echoed = if capped { 16 } else { read_u32(message.payload, 4).unwrap_or(16) as usize };
    let tail = message.payload.get(4 + echoed.next_multiple_of(4)..).unwrap_or(&[]);
    let has_tail = message.flags & libc::NLM_F_ACK_TLVS as u16 != 0;
    let says = has_tail.then(|| find(tail, NLMSGERR_ATTR_MSG).map(read_text)).flatten();
    Err(Refusal { errno: -code, says })
}

fn set_option(fd: &OwnedFd, option: libc::c_int) {
    let on: libc::c_int = 1;
    // Older kernels lack the option.
    let _ = socket_option::set(fd, libc::SOL_NETLINK, option, &on);
}

// Netlink messages as bytes: attributes written into requests and read out of replies.
//
// No crate is used for this: crates leave most attributes that trawl needs (XDP attachments, tc's bpf options, the
// netdev family) as raw bytes, and fail on an attribute that a newer kernel adds.

const HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
const NESTED: u16 = 1 << 15;
const TYPE_MASK: u16 = 0x3fff;

/// A request under construction: netlink header, family header, attributes.
#[derive(Debug)]
pub struct NetlinkRequest {
    bytes: Vec<u8>,
}

impl NetlinkRequest {
    pub fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        let flags = flags | libc::NLM_F_REQUEST as u16;
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Self { bytes }
    }

    /// Appends the family's own header (ifinfomsg, tcmsg, …), as bytes.
    pub fn family_header(mut self, header: &[u8]) -> Self {
        self.raw(header);
        self
    }

    pub fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let length = (ATTRIBUTE_HEADER + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.raw(value);
        self
    }

    pub fn u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// Appends a string with the final zero that the kernel requires.
    pub fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        fill(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// Appends bytes as they are, padded to a multiple of four.
    pub fn raw(&mut self, value: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(value);
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
        self
    }

    /// Asks for an acknowledgement, for a message of a batch.
    pub fn with_acknowledgement(mut self) -> Self {
        self.add_flags(libc::NLM_F_ACK as u16);
        self
    }

    fn add_flags(&mut self, flags: u16) {
        let all = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) | flags;
        self.bytes[6..8].copy_from_slice(&all.to_ne_bytes());
    }

    pub(super) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// One message of a datagram that the kernel sent.
#[derive(Clone, Copy, Debug)]
pub struct NetlinkMessage<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub payload: &'a [u8],
}

/// Iterates over the messages of a datagram; ends at the first one that does not fit into it.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = NetlinkMessage<'_>> {
    std::iter::from_fn(move || {
        let length = read_u32(datagram, 0)? as usize;
        let payload = datagram.get(HEADER..length)?;
        let message = NetlinkMessage {
            kind: read_u16(datagram, 4)?,
            flags: read_u16(datagram, 6)?,
            sequence: read_u32(datagram, 8)?,
            payload,
        };
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(message)
    })
}

/// Iterates over the attributes in a run of bytes, type flags removed; ends at the first malformed one.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = read_u16(bytes, 0)? as usize;
        let kind = read_u16(bytes, 2)? & TYPE_MASK;
        let value = bytes.get(ATTRIBUTE_HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// Returns the first attribute of that type.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

pub fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub fn read_i32(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Reads a string up to its zero, or to its end.
pub fn read_text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_attributes_are_read_back() {
        let mut request = NetlinkRequest::new(16, 0).family_header(&[7; 16]);
        request.text(3, "veth0").u32(4, 1500).nest(18, |inner| {
            inner.text(1, "veth");
        });
        let bytes = request.finish(42);
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].kind, all[0].flags, all[0].sequence), (16, 1, 42));
        let found: Vec<_> = attributes(&all[0].payload[16..]).collect();
        assert_eq!(found[0], (3, &b"veth0\0"[..]));
        assert_eq!(read_u32(found[1].1, 0), Some(1500));
        assert_eq!(found[2].0, 18);
        assert_eq!(read_text(find(found[2].1, 1).unwrap()), "veth");
    }

    #[test]
    fn lengths_that_lie_end_the_walk() {
        assert_eq!(attributes(&[0, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[200, 0, 1, 0, 1, 2]).count(), 0);
        assert_eq!(attributes(&[5, 0, 1]).count(), 0);
        let mut bytes = NetlinkRequest::new(1, 0).finish(1);
        bytes[0] = 15;
        assert_eq!(messages(&bytes).count(), 0);
        bytes[0] = 200;
        assert_eq!(messages(&bytes).count(), 0);
    }
}
