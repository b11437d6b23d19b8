//! Where in a frame the addresses are, and the checksums that cover them.

use std::net::IpAddr;
use std::ops::Range;

use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_packet::walk::{ICMPV6, TCP, UDP, UDP_LITE, walk};

/// Ethernet, IPv4, six and four bytes of address.
const ARP_KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    pub at: usize,
    /// UDP: zero stands for no checksum.
    pub zero_is_none: bool,
}

/// The outermost IP header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    at: usize,
    version: u8,
    /// The header's own.
    pub checksum: Option<Checksum>,
    /// The one after it that covers the addresses.
    pub transport: Option<Checksum>,
    /// A routing header says that the packet goes elsewhere in the end: the transport checksum covers that address.
    routed_on: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// All of it is there.
    Arp {
        at: usize,
    },
    Ip(Ip),
}

impl Ip {
    fn length(&self) -> usize {
        if self.version == 4 { 4 } else { 16 }
    }

    pub fn source(&self) -> Range<usize> {
        let at = self.at + if self.version == 4 { 12 } else { 8 };
        at..at + self.length()
    }

    pub fn destination(&self) -> Range<usize> {
        let at = self.source().end;
        at..at + self.length()
    }

    pub fn address(&self, bytes: &[u8]) -> Option<IpAddr> {
        if self.version == 4 {
            bytes.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes))
        } else {
            bytes.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes))
        }
    }

    /// Whether the transport's checksum covers this address.
    pub fn in_pseudo_header(&self, is_source: bool) -> bool {
        is_source || !self.routed_on
    }
}

/// The outermost header of a frame that holds addresses.
pub fn headers(frame: &[u8]) -> Option<Headers> {
    let walked = walk(LINKTYPE_ETHERNET, frame);
    let at = walked.network_at?;
    if walked.arp.is_some() {
        let is_known = frame.get(at..)?.starts_with(&ARP_KIND);
        return is_known.then_some(Headers::Arp { at });
    }
    let ip = walked.ip?;
    let is_v4 = ip.src.is_ipv4();
    Some(Headers::Ip(Ip {
        at,
        version: if is_v4 { 4 } else { 6 },
        checksum: is_v4.then_some(Checksum {
            at: at + 10,
            zero_is_none: false,
        }),
        transport: walked
            .transport_at
            .and_then(|at| transport(ip.protocol, at)),
        routed_on: ip.routed_on,
    }))
}

/// The checksum of a transport header at this place, if it covers the addresses.
fn transport(protocol: u8, at: usize) -> Option<Checksum> {
    let (offset, zero_is_none) = match protocol {
        TCP => (16, false),
        UDP => (6, true),
        UDP_LITE => (6, false),
        ICMPV6 => (2, false),
        _ => return None,
    };
    Some(Checksum {
        at: at + offset,
        zero_is_none,
    })
}
