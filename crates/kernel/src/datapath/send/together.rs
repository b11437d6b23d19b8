//! Many UDP frames in one call: the kernel is given them as one long one, and takes it apart (UDP segmentation).
//!
//! What that saves: the kernel allocates once, enters the driver once with interrupts of the network held off, and so a
//! veth's other end is polled once for all of them instead of once for each.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::packet::{bound, explain};
use crate::error::Result;
use crate::ethtool::{Ethtool, FeatureNumber};
use crate::netlink::Netlink;
use crate::socket_option;

/// The device would take the long frame whole.
const SEGMENTATION: &str = "tx-udp-segmentation";
/// Devices without one hand frames to the driver at once.
const NO_QUEUE: &str = "noqueue";
const UDP_CHECKSUM: u16 = 6;
const UDP_HEADER: u16 = 8;
const NEEDS_CHECKSUM: u8 = 1;
const GSO_UDP_L4: u8 = 5;
/// struct virtio_net_hdr.
const HEADER: usize = 10;
/// Of a longer frame only the headers are put into one piece of the kernel's memory.
const ONE_PIECE: usize = 4096;

/// How a long frame is to be taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Together {
    /// Where the UDP header begins.
    pub transport: u16,
    /// How much of the payload each frame gets.
    pub payload: u16,
}

/// What became of a long frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    Taken,
    /// At least the last one found no room.
    Refused,
    /// This kernel does not do it.
    Unsupported,
}

/// How the device stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub mtu: u32,
    /// Frames that it threw away for want of room so far.
    pub dropped: u64,
}

/// A socket for long frames.
#[derive(Debug)]
pub struct TogetherSender {
    socket: OwnedFd,
    name: String,
    netlink: Netlink,
    features: Ethtool,
    segmentation: Option<FeatureNumber>,
}

impl TogetherSender {
    /// For an interface of the calling thread's namespace; `None` where the kernel does not do it.
    pub fn open(name: &str) -> Result<Option<Self>> {
        let mut netlink = Netlink::here()?;
        let socket = bound(name, netlink.link(name)?.index)?;
        let on: libc::c_int = 1;
        if socket_option::set(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on).is_err() {
            return Ok(None);
        }
        let features = Ethtool::open(None, name)?;
        Ok(Some(Self {
            segmentation: features.number_of(SEGMENTATION)?,
            socket,
            name: name.to_owned(),
            netlink,
            features,
        }))
    }

    /// `None` while frames have to be handed over one by one: the device has a queue, which would take the long one
    /// for one frame, or takes it whole itself, as a veth without an XDP program at its other end does.
    pub fn state(&mut self) -> Result<Option<State>> {
        let link = self.netlink.link(&self.name)?;
        let apart = match self.segmentation {
            Some(feature) => !self.features.is_on(feature)?,
            None => true,
        };
        let ready = apart && link.qdisc == NO_QUEUE && link.is_running();
        Ok(ready.then_some(State {
            mtu: link.mtu,
            dropped: link.statistics.tx_dropped,
        }))
    }

    /// Frames that the device threw away for want of room so far.
    pub fn dropped(&mut self) -> Result<u64> {
        Ok(self.netlink.link(&self.name)?.statistics.tx_dropped)
    }

    /// Offers a frame whose UDP payload is that of several.
    pub fn offer(&self, frame: &[u8], how: Together) -> Result<Offered> {
        let mut header = [0u8; HEADER];
        header[0] = NEEDS_CHECKSUM;
        header[1] = GSO_UDP_L4;
        let one_piece = if frame.len() <= ONE_PIECE {
            frame.len() as u16
        } else {
            how.transport + UDP_HEADER
        };
        let words = [one_piece, how.payload, how.transport, UDP_CHECKSUM];
        for (place, word) in header[2..].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let mut parts = [&header[..], frame].map(|part| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        });
        // SAFETY: all zeroes are a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        // SAFETY: the message points to two parts that outlive the call, and the kernel only reads what they point to.
        let result = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, 0) };
        if result >= 0 {
            return Ok(Offered::Taken);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOBUFS | libc::EINTR | libc::EAGAIN) => Ok(Offered::Refused),
            Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EMSGSIZE) => Ok(Offered::Unsupported),
            _ => Err(explain(&self.name, error, frame.len())),
        }
    }
}
