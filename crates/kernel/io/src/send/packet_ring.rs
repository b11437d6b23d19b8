//! A packet socket with a transmit ring (PACKET_TX_RING): frames are written where the kernel reads them, and one call
//! sends all that wait.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, tpacket2_hdr};
use trawl_sys::error::{Error, Result};
use trawl_sys::memory::Mapping;
use trawl_sys::socket_option::set;

use super::PacketSender;

const TPACKET_V2: c_int = 1;
/// The frame follows the header at once.
const FRAME: usize = size_of::<tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);
const SLOTS: usize = 1024;
const PAGE: usize = 4096;

/// Frames in a ring, and the socket that sends them.
#[derive(Debug)]
pub struct PacketRing {
    sender: PacketSender,
    ring: Mapping,
    slot: usize,
    /// The slot that is filled next, and the first one that the device has not taken.
    next: usize,
    first: usize,
    waiting: usize,
}

impl PacketRing {
    /// For an interface of the calling thread's namespace, and frames up to that length.
    pub fn open(name: &str, longest: usize) -> Result<Self> {
        let sender = PacketSender::open(name)?;
        let slot = (FRAME + longest).next_power_of_two().max(2048);
        let block = slot.max(PAGE);
        let request = libc::tpacket_req {
            tp_block_size: block as u32,
            tp_block_nr: (SLOTS * slot / block) as u32,
            tp_frame_size: slot as u32,
            tp_frame_nr: SLOTS as u32,
        };
        let fail = |e| Error::os(format!("cannot make a ring to send out of {name}"), e);
        set(
            sender.socket(),
            libc::SOL_PACKET,
            libc::PACKET_VERSION,
            &TPACKET_V2,
        )
        .map_err(fail)?;
        set(
            sender.socket(),
            libc::SOL_PACKET,
            libc::PACKET_TX_RING,
            &request,
        )
        .map_err(fail)?;
        let ring = Mapping::of_file(sender.socket().as_fd(), SLOTS * slot, 0)?;
        Ok(Self {
            sender,
            ring,
            slot,
            next: 0,
            first: 0,
            waiting: 0,
        })
    }

    fn word(&self, slot: usize, offset: usize) -> &AtomicU32 {
        let at: *mut u32 = self.ring.at(slot * self.slot + offset).cast();
        // SAFETY: an aligned u32 of a slot's header in the mapping, which lives as long as the borrow; the kernel
        // changes it at any time, so it is accessed atomically only.
        unsafe { AtomicU32::from_ptr(at) }
    }

    fn status(&self, slot: usize) -> &AtomicU32 {
        self.word(slot, offset_of!(tpacket2_hdr, tp_status))
    }

    /// Frames that the device has not taken yet.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Has `write` fill a free slot with a frame of the length that it returns, and queues it. `None` where it wrote
    /// none, or no slot is free.
    pub fn queue<E>(
        &mut self,
        write: impl FnOnce(&mut [u8]) -> Result<Option<usize>, E>,
    ) -> Result<Option<usize>, E> {
        let slot = self.next;
        if self.waiting == SLOTS
            || self.status(slot).load(Ordering::Acquire) != libc::TP_STATUS_AVAILABLE
        {
            return Ok(None);
        }
        let start = self.ring.at(slot * self.slot + FRAME);
        // SAFETY: the rest of the slot lies within the mapping, and the kernel leaves a slot alone that is available.
        let room = unsafe { std::slice::from_raw_parts_mut(start, self.slot - FRAME) };
        let Some(length) = write(room)? else {
            return Ok(None);
        };
        let told = self.word(slot, offset_of!(tpacket2_hdr, tp_len));
        told.store(length as u32, Ordering::Relaxed);
        let status = self.status(slot);
        status.store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.next = (slot + 1) % SLOTS;
        self.waiting += 1;
        Ok(Some(length))
    }

    /// Has the kernel send what waits, and tells how many frames the device took. Those that it had no room for wait on.
    pub fn kick(&mut self) -> Result<usize> {
        // SAFETY: no data and no address are passed.
        let result = unsafe {
            libc::sendto(
                self.sender.socket().as_raw_fd(),
                std::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
        if result < 0 {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR) => {}
                _ => {
                    let length = self.word(self.first, offset_of!(tpacket2_hdr, tp_len));
                    let length = length.load(Ordering::Relaxed) as usize;
                    return Err(self.sender.explain(error, length));
                }
            }
        }
        let mut taken = 0;
        while self.waiting > 0 {
            let status = self.status(self.first).load(Ordering::Acquire);
            if status & libc::TP_STATUS_SEND_REQUEST != 0 {
                break;
            }
            self.first = (self.first + 1) % SLOTS;
            self.waiting -= 1;
            taken += 1;
        }
        Ok(taken)
    }

    /// Whether the kernel still reads any slot.
    pub fn is_busy(&self) -> bool {
        (0..SLOTS)
            .any(|slot| self.status(slot).load(Ordering::Acquire) != libc::TP_STATUS_AVAILABLE)
    }
}
