//! A block of packets as the kernel hands it over, and the packets in it.

use std::marker::PhantomData;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{tpacket_hdr_v1, tpacket3_hdr};
use trawl_sys::Result;
use trawl_sys::memory::Mapping;

use super::option;

/// A block begins with two words that say nothing of interest.
const HEADER_V1: usize = 8;
const STATUS: usize = HEADER_V1 + offset_of!(tpacket_hdr_v1, block_status);
const PACKETS: usize = HEADER_V1 + offset_of!(tpacket_hdr_v1, num_pkts);
const FIRST: usize = HEADER_V1 + offset_of!(tpacket_hdr_v1, offset_to_first_pkt);

/// Behind a packet's header stands the address it came from, and in it how it came.
const ADDRESS: usize = size_of::<tpacket3_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);
const PACKET_TYPE: usize = ADDRESS + offset_of!(libc::sockaddr_ll, sll_pkttype);
const INTERFACE: usize = ADDRESS + offset_of!(libc::sockaddr_ll, sll_ifindex);
const FRAME_HEADER: usize = ADDRESS + size_of::<libc::sockaddr_ll>();

/// Packets that the kernel will not touch until the block is dropped.
#[derive(Debug)]
pub struct Block<'a> {
    start: *mut u8,
    size: usize,
    packets: u32,
    ring: PhantomData<&'a mut Mapping>,
    socket: &'a OwnedFd,
}

/// One packet in a block.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// The time is the network card's.
    pub hardware_time: bool,
    /// The packet's length; fewer bytes may be at hand.
    pub original: u32,
    pub bytes: &'a [u8],
    /// The VLAN tag that was taken out of the bytes, as it stood there.
    pub tag: Option<[u8; 4]>,
    pub way: PacketType,
    /// The number of the interface, where the socket is for many.
    pub interface: u32,
}

/// How a packet came, or that it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketType {
    /// Received, and meant for this host.
    ToUs,
    /// Received as a broadcast.
    ToAll,
    /// Received as a multicast.
    ToGroup,
    /// Received although meant for another: promiscuous mode.
    ToOthers,
    Sent,
}

impl PacketType {
    pub(super) fn of(packet_type: u8) -> Self {
        match packet_type {
            libc::PACKET_BROADCAST => Self::ToAll,
            libc::PACKET_MULTICAST => Self::ToGroup,
            libc::PACKET_OTHERHOST => Self::ToOthers,
            libc::PACKET_OUTGOING => Self::Sent,
            _ => Self::ToUs,
        }
    }
}

/// The words of a block's header are changed by the kernel at any time.
fn word<'a>(start: *mut u8, offset: usize) -> &'a AtomicU32 {
    // SAFETY: callers pass the start of a block inside a live mapping; it is aligned to pages, and the offsets are
    // those of u32 members of its header.
    unsafe { AtomicU32::from_ptr(start.wrapping_add(offset).cast()) }
}

/// Whether the kernel holds the block and has put no packet into it.
pub fn is_open_and_empty(ring: &Mapping, offset: usize) -> bool {
    let start = ring.at(offset);
    word(start, STATUS).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0
        && word(start, PACKETS).load(Ordering::Acquire) == 0
}

impl<'a> Block<'a> {
    /// The block at the offset, if the kernel has handed it over.
    pub(super) fn take(
        socket: &'a OwnedFd,
        ring: &'a mut Mapping,
        offset: usize,
        size: usize,
    ) -> Option<Self> {
        let start = ring.at(offset);
        assert!(offset + size <= ring.length());
        let status = word(start, STATUS).load(Ordering::Acquire);
        (status & libc::TP_STATUS_USER != 0).then(|| Self {
            start,
            size,
            packets: word(start, PACKETS).load(Ordering::Relaxed),
            ring: PhantomData,
            socket,
        })
    }

    /// How many packets were dropped for want of room between the block before and this one.
    pub fn losses_before(&self) -> Result<u64> {
        let status = word(self.start, STATUS).load(Ordering::Relaxed);
        match status & libc::TP_STATUS_LOSING {
            0 => Ok(0),
            _ => option::drops(self.socket),
        }
    }

    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// The packets in order. There are fewer than `packets` says only if the block is damaged.
    pub fn frames(&self) -> Frames<'_> {
        // SAFETY: the block lies within the mapping (checked when it was taken), whose exclusive borrow this block
        // holds, and the kernel does not write to it before it is handed back.
        let bytes = unsafe { std::slice::from_raw_parts(self.start, self.size) };
        let first = word(self.start, FIRST).load(Ordering::Relaxed);
        Frames {
            bytes,
            next: first as usize,
            left: self.packets,
        }
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        // The kernel does so too, but only when it opens the block again; until then it counts as empty.
        word(self.start, PACKETS).store(0, Ordering::Relaxed);
        word(self.start, STATUS).store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}

/// The packets of a block, one after the other.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    bytes: &'a [u8],
    next: usize,
    left: u32,
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        self.left = self.left.checked_sub(1)?;
        let here = self.bytes.get(self.next..)?;
        let header: &[u8; FRAME_HEADER] = here.first_chunk()?;
        let u32_at = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| header[at + i]));
        let u16_at = |at: usize| u16::from_ne_bytes(std::array::from_fn(|i| header[at + i]));
        let start = usize::from(u16_at(offset_of!(tpacket3_hdr, tp_mac)));
        let length = u32_at(offset_of!(tpacket3_hdr, tp_snaplen)) as usize;
        let status = u32_at(offset_of!(tpacket3_hdr, tp_status));
        let seconds = u32_at(offset_of!(tpacket3_hdr, tp_sec));
        let nanoseconds = u32_at(offset_of!(tpacket3_hdr, tp_nsec));
        let variant = offset_of!(tpacket3_hdr, hv1);
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let tci = u32_at(variant + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tci)) as u16;
            let protocol = match status & libc::TP_STATUS_VLAN_TPID_VALID {
                0 => libc::ETH_P_8021Q as u16,
                _ => u16_at(variant + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tpid)),
            };
            let ([a, b], [c, d]) = (protocol.to_be_bytes(), tci.to_be_bytes());
            [a, b, c, d]
        });
        self.next += u32_at(offset_of!(tpacket3_hdr, tp_next_offset)) as usize;
        Some(Frame {
            time: u64::from(seconds) * 1_000_000_000 + u64::from(nanoseconds),
            hardware_time: status & libc::TP_STATUS_TS_RAW_HARDWARE != 0,
            original: u32_at(offset_of!(tpacket3_hdr, tp_len)),
            bytes: here.get(start..start + length)?,
            tag,
            way: PacketType::of(header[PACKET_TYPE]),
            interface: u32_at(INTERFACE),
        })
    }
}
