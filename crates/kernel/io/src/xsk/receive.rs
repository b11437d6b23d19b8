//! AF_XDP sockets that receive, for experiments: the tap of this kind would take the packets away from others that
//! want them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_sys::error::Result;
use trawl_sys::memory::Mapping;
use trawl_sys::netlink::Netlink;

use super::ring::{Consumer, Producer};
use super::{ROOM, bind_patiently, explain, socket};

/// Slots for frames, and the size of the rings.
const SLOTS: u32 = 8192;

/// Frames that did not get through, by the kernel's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// For want of room in the ring of what was received.
    pub full: u64,
    /// For other reasons, such as want of a slot or being too long.
    pub other: u64,
}

/// A socket that receives what an XDP program redirects to it from one queue of an interface.
#[derive(Debug)]
pub struct XskReceiver {
    socket: OwnedFd,
    name: String,
    memory: Mapping,
    fill: Producer<u64>,
    received: Consumer<libc::xdp_desc>,
}

impl XskReceiver {
    /// For a queue of an interface of the calling thread's namespace.
    pub fn open(name: &str, queue: u32) -> Result<Self> {
        let index = Netlink::here()?.link(name)?.index;
        let fail = |e: std::io::Error| explain("receive by AF_XDP from", name, queue, e);
        let memory = Mapping::anonymous(ROOM * SLOTS as usize)?;
        let socket = socket::open().map_err(fail)?;
        socket::register_memory(&socket, &memory, ROOM as u32).map_err(fail)?;
        let rings = socket::make_receiving_rings(&socket, SLOTS).map_err(fail)?;
        bind_patiently(&socket, index, queue).map_err(fail)?;
        let mut fill = Producer::new(rings.fill, SLOTS);
        for slot in 0..u64::from(SLOTS) {
            fill.put(slot * ROOM as u64);
        }
        fill.publish();
        Ok(Self {
            fill,
            received: Consumer::new(rings.received, SLOTS),
            name: name.to_owned(),
            socket,
            memory,
        })
    }

    /// Shows each frame that is there, and gives its slot back; how many there were.
    pub fn drain<E>(&mut self, mut see: impl FnMut(&[u8]) -> Result<(), E>) -> Result<u64, E> {
        let mut count = 0;
        while let Some(frame) = self.received.take() {
            let (place, length) = (frame.addr as usize, frame.len as usize);
            if place + length <= self.memory.length() {
                let start = self.memory.at(place);
                // SAFETY: the frame lies within the memory, as was just checked, and the kernel does not touch its slot
                // before it is put into the fill ring again.
                see(unsafe { std::slice::from_raw_parts(start, length) })?;
            }
            // As many slots as entries: there is always room.
            self.fill.put(frame.addr / ROOM as u64 * ROOM as u64);
            count += 1;
            if count % 64 == 0 {
                self.fill.publish();
            }
        }
        self.fill.publish();
        Ok(count)
    }

    pub fn missed(&self) -> Result<Missed> {
        let counted = socket::statistics(&self.socket)
            .map_err(|e| explain("count what was lost by AF_XDP at", &self.name, 0, e))?;
        Ok(Missed {
            // A frame for which there is no slot is among those that were dropped.
            full: counted.rx_ring_full,
            other: counted.rx_dropped + counted.rx_invalid_descs,
        })
    }
}

impl AsFd for XskReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
