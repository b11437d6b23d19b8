//! The other ways to read a packet socket, for comparison: a call for each packet (recvmsg) or for many (recvmmsg), and
//! a ring with a slot for each packet (TPACKET_V2).

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, tpacket2_hdr};
use serde::{Deserialize, Serialize};
use trawl_sys::memory::Mapping;
use trawl_sys::socket_option::set;

use super::block::{Frame, PacketType};

/// How the kernel hands packets over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    Recvmsg,
    Recvmmsg,
    V2,
    #[default]
    V3,
}

/// How the sockets of a group share the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fanout {
    /// By flow.
    Hash,
    /// By the CPU that handles the packet.
    #[default]
    Cpu,
    /// By a program, which says the CPU too.
    Ebpf,
}

/// This many packets are read before the reader looks around.
const AT_ONCE: usize = 64;
/// Packets of one call of recvmmsg.
const BATCH: usize = 32;
/// A slot of the ring; a longer packet comes by the socket's queue.
const SLOT: usize = 2048;
const BLOCK: usize = 256 << 10;
/// Room for the time stamp and what the kernel says of the packet.
const CONTROL: usize = 128;

const TPACKET_V2: c_int = 1;
const PACKET_COPY_THRESH: c_int = 7;
const ADDRESS: usize = size_of::<tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);
const TP_STATUS_COPY: u32 = 2;

/// libc's `tpacket_auxdata`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Auxiliary {
    status: u32,
    length: u32,
    captured: u32,
    mac: u16,
    network: u16,
    tag: u16,
    tag_protocol: u16,
}

/// What a socket is read by.
#[derive(Debug)]
pub(super) enum Intake {
    Calls(Calls),
    Slots(Slots),
}

impl Intake {
    /// Prepares a socket that is not bound yet.
    pub(super) fn new(
        socket: &OwnedFd,
        reading: Reading,
        room: usize,
        snaplen: u32,
    ) -> io::Result<Option<Self>> {
        let calls = |batch| {
            Calls::new(socket, batch, room, snaplen)
                .map(Self::Calls)
                .map(Some)
        };
        match reading {
            Reading::V3 => Ok(None),
            Reading::Recvmsg => calls(1),
            Reading::Recvmmsg => calls(BATCH),
            Reading::V2 => Slots::new(socket, room, snaplen).map(Self::Slots).map(Some),
        }
    }

    /// Shows packets that are there until the reader wants no more; tells how many were shown.
    pub(super) fn each(
        &mut self,
        socket: &OwnedFd,
        see: &mut dyn FnMut(&Frame<'_>) -> bool,
    ) -> io::Result<usize> {
        match self {
            Self::Calls(calls) => calls.each(socket, see),
            Self::Slots(slots) => slots.each(socket, see),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Calls(calls) => calls.empty,
            Self::Slots(slots) => {
                slots.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0
            }
        }
    }
}

/// Packets by system calls.
#[derive(Debug)]
pub(super) struct Calls {
    batch: usize,
    bytes: Vec<Vec<u8>>,
    empty: bool,
}

impl Calls {
    fn new(socket: &OwnedFd, batch: usize, room: usize, snaplen: u32) -> io::Result<Self> {
        let on: c_int = 1;
        set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &on)?;
        set(socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &on)?;
        enlarge_queue(socket, room);
        Ok(Self {
            batch,
            bytes: vec![vec![0; snaplen.max(1) as usize]; batch],
            empty: true,
        })
    }

    fn each(
        &mut self,
        socket: &OwnedFd,
        see: &mut dyn FnMut(&Frame<'_>) -> bool,
    ) -> io::Result<usize> {
        let mut shown = 0;
        while shown < AT_ONCE {
            let got = receive(socket, &mut self.bytes, self.batch)?;
            self.empty = got.len() < self.batch;
            for (one, bytes) in got.iter().zip(&self.bytes) {
                shown += 1;
                if !see(&one.frame(bytes)) {
                    return Ok(shown);
                }
            }
            if self.empty {
                break;
            }
        }
        Ok(shown)
    }
}

/// A packet that a call brought, but for its bytes.
struct Received {
    time: u64,
    original: u32,
    captured: usize,
    tag: Option<[u8; 4]>,
    way: PacketType,
}

impl Received {
    fn frame<'a>(&self, bytes: &'a [u8]) -> Frame<'a> {
        Frame {
            time: self.time,
            hardware_time: false,
            original: self.original,
            bytes: &bytes[..self.captured.min(bytes.len())],
            tag: self.tag,
            way: self.way,
            interface: 0,
        }
    }
}

/// One call; nothing where no packet waits.
fn receive(socket: &OwnedFd, bytes: &mut [Vec<u8>], batch: usize) -> io::Result<Vec<Received>> {
    /// Aligned as the kernel's headers of control messages are.
    #[repr(C, align(8))]
    #[derive(Clone, Copy)]
    struct Control([u8; CONTROL]);

    let mut control = [Control([0; CONTROL]); BATCH];
    // SAFETY: all zeroes are a valid address and a valid message: no name, no pieces, no control data.
    let (mut addresses, mut messages): ([libc::sockaddr_ll; BATCH], [libc::mmsghdr; BATCH]) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut pieces: Vec<libc::iovec> = bytes
        .iter_mut()
        .take(batch)
        .map(|bytes| libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        })
        .collect();
    for (at, piece) in pieces.iter_mut().enumerate() {
        let message = &mut messages[at].msg_hdr;
        message.msg_name = (&raw mut addresses[at]).cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as u32;
        message.msg_iov = piece;
        message.msg_iovlen = 1;
        message.msg_control = control[at].0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    let descriptor = socket.as_raw_fd();
    let got = if batch == 1 {
        // SAFETY: the message names an address, bytes and control data of the lengths given, which outlive the call.
        let length = unsafe { libc::recvmsg(descriptor, &mut messages[0].msg_hdr, flags) };
        messages[0].msg_len = length.max(0) as u32;
        if length < 0 { -1 } else { 1 }
    } else {
        let count = pieces.len() as u32;
        // SAFETY: as above, for this many messages; no time-out is given.
        unsafe {
            libc::recvmmsg(
                descriptor,
                messages.as_mut_ptr(),
                count,
                flags,
                std::ptr::null_mut(),
            )
        }
    };
    if got < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(Vec::new()),
            // It is told by the wait for packets, which asks whether the interface is gone.
            Some(libc::ENETDOWN) => Ok(Vec::new()),
            _ => Err(error),
        };
    }
    Ok((0..got as usize)
        .map(|at| {
            let way = PacketType::of(addresses[at].sll_pkttype);
            described(&messages[at], way)
        })
        .collect())
}

/// Reads the control data of a message that was received.
fn described(message: &libc::mmsghdr, way: PacketType) -> Received {
    let mut received = Received {
        time: trawl_sys::clock::wall(),
        original: message.msg_len,
        captured: message.msg_len as usize,
        tag: None,
        way,
    };
    let header = &message.msg_hdr;
    // SAFETY: the kernel has filled the control data and set its length; CMSG_NXTHDR stays within it. What is read is
    // as long as the kernel's structure of that level and type, which need not be aligned.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while !next.is_null() {
            let data = libc::CMSG_DATA(next);
            match ((*next).cmsg_level, (*next).cmsg_type) {
                (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS) => {
                    let time = data.cast::<libc::timespec>().read_unaligned();
                    received.time = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
                }
                (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                    let auxiliary = data.cast::<Auxiliary>().read_unaligned();
                    received.original = auxiliary.length;
                    received.captured = auxiliary.captured as usize;
                    received.tag = tag(auxiliary.status, auxiliary.tag, auxiliary.tag_protocol);
                }
                _ => {}
            }
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
    received
}

/// A ring with a slot for each packet. One that is longer than a slot comes whole by the socket's queue.
#[derive(Debug)]
pub(super) struct Slots {
    ring: Mapping,
    count: usize,
    current: usize,
    long: Vec<Vec<u8>>,
}

impl Slots {
    fn new(socket: &OwnedFd, room: usize, snaplen: u32) -> io::Result<Self> {
        // Half for the slots, half for the queue.
        let blocks = (room / 2 / BLOCK).max(1);
        let count = blocks * (BLOCK / SLOT);
        set(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &TPACKET_V2)?;
        let threshold: c_int = 1;
        set(socket, libc::SOL_PACKET, PACKET_COPY_THRESH, &threshold)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: SLOT as u32,
            tp_frame_nr: count as u32,
        };
        set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let on: c_int = 1;
        set(socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &on)?;
        enlarge_queue(socket, room / 2);
        let ring = Mapping::of_map(socket.as_fd(), BLOCK * blocks)
            .map_err(|e| io::Error::from_raw_os_error(e.errno().unwrap_or(libc::ENOMEM)))?;
        Ok(Self {
            ring,
            count,
            current: 0,
            long: vec![vec![0; snaplen.max(1) as usize]],
        })
    }

    fn status(&self) -> &AtomicU32 {
        self.ring.short(self.current * SLOT)
    }

    fn each(
        &mut self,
        socket: &OwnedFd,
        see: &mut dyn FnMut(&Frame<'_>) -> bool,
    ) -> io::Result<usize> {
        let mut shown = 0;
        while shown < AT_ONCE {
            let status = self.status().load(Ordering::Acquire);
            if status & libc::TP_STATUS_USER == 0 {
                break;
            }
            shown += 1;
            let start = self.ring.at(self.current * SLOT);
            // SAFETY: the slot lies within the mapping, and the kernel does not write to it before it is handed back.
            let slot = unsafe { std::slice::from_raw_parts(start, SLOT) };
            let u32_at = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| slot[at + i]));
            let u16_at = |at: usize| u16::from_ne_bytes(std::array::from_fn(|i| slot[at + i]));
            let begin = usize::from(u16_at(offset_of!(tpacket2_hdr, tp_mac)));
            let captured = u32_at(offset_of!(tpacket2_hdr, tp_snaplen)) as usize;
            let seconds = u32_at(offset_of!(tpacket2_hdr, tp_sec));
            let nanoseconds = u32_at(offset_of!(tpacket2_hdr, tp_nsec));
            let mut bytes = slot.get(begin..begin + captured).unwrap_or(&[]);
            if status & TP_STATUS_COPY != 0 {
                let got = receive(socket, &mut self.long, 1)?;
                if let Some(one) = got.first() {
                    bytes = &self.long[0][..one.captured.min(self.long[0].len())];
                }
            }
            let more = see(&Frame {
                time: u64::from(seconds) * 1_000_000_000 + u64::from(nanoseconds),
                hardware_time: status & libc::TP_STATUS_TS_RAW_HARDWARE != 0,
                original: u32_at(offset_of!(tpacket2_hdr, tp_len)),
                bytes,
                tag: tag(
                    status,
                    u16_at(offset_of!(tpacket2_hdr, tp_vlan_tci)),
                    u16_at(offset_of!(tpacket2_hdr, tp_vlan_tpid)),
                ),
                way: PacketType::of(slot[ADDRESS + offset_of!(libc::sockaddr_ll, sll_pkttype)]),
                interface: 0,
            });
            self.status()
                .store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.current = (self.current + 1) % self.count;
            if !more {
                break;
            }
        }
        Ok(shown)
    }
}

/// The VLAN tag that the kernel took out of the bytes.
fn tag(status: u32, tag: u16, protocol: u16) -> Option<[u8; 4]> {
    (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
        let protocol = match status & libc::TP_STATUS_VLAN_TPID_VALID {
            0 => libc::ETH_P_8021Q as u16,
            _ => protocol,
        };
        let ([a, b], [c, d]) = (protocol.to_be_bytes(), tag.to_be_bytes());
        [a, b, c, d]
    })
}

/// Without the privilege to go beyond the system's limit, up to that.
fn enlarge_queue(socket: &OwnedFd, room: usize) {
    let room = c_int::try_from(room).unwrap_or(c_int::MAX);
    if set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &room).is_err() {
        let _ = set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &room);
    }
}
