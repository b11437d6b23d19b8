//! Where in a frame the addresses are, and the checksums that cover them. Frames are anything: nothing is believed.

use std::net::IpAddr;
use std::ops::Range;

const ETHERTYPE_AT: usize = 12;
const TYPE_IPV4: u16 = 0x0800;
const TYPE_ARP: u16 = 0x0806;
const TYPE_IPV6: u16 = 0x86dd;
/// More tags than anybody stacks.
const MOST_TAGS: usize = 4;

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_ICMPV6: u8 = 58;
const PROTOCOL_UDP_LITE: u8 = 136;

/// IPv6 extension headers.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOST_EXTENSIONS: usize = 8;

const ARP_LENGTH: usize = 28;
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
    /// The one behind it that covers the addresses.
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

pub fn is_tag(ethertype: [u8; 2]) -> bool {
    matches!(u16::from_be_bytes(ethertype), 0x8100 | 0x88a8 | 0x9100)
}

fn word(bytes: &[u8], at: usize) -> Option<[u8; 2]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// What is behind the Ethernet header and its tags, where it is something with addresses.
pub fn headers(frame: &[u8]) -> Option<Headers> {
    let mut at = ETHERTYPE_AT;
    for _ in 0..MOST_TAGS {
        if !is_tag(word(frame, at)?) {
            break;
        }
        at += 4;
    }
    let ethertype = u16::from_be_bytes(word(frame, at)?);
    let inside = at + 2;
    let bytes = frame.get(inside..)?;
    match ethertype {
        TYPE_ARP if bytes.len() >= ARP_LENGTH && bytes.starts_with(&ARP_KIND) => {
            Some(Headers::Arp { at: inside })
        }
        TYPE_IPV4 => ipv4(bytes, inside).map(Headers::Ip),
        TYPE_IPV6 => ipv6(bytes, inside).map(Headers::Ip),
        _ => None,
    }
}

fn ipv4(bytes: &[u8], at: usize) -> Option<Ip> {
    let header = bytes.first_chunk::<20>()?;
    let length = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || length < 20 {
        return None;
    }
    let is_later_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
    let transport = if is_later_fragment {
        None
    } else {
        transport(header[9], at + length)
    };
    Some(Ip {
        at,
        version: 4,
        checksum: Some(Checksum {
            at: at + 10,
            zero_is_none: false,
        }),
        transport,
        routed_on: false,
    })
}

fn ipv6(bytes: &[u8], at: usize) -> Option<Ip> {
    let header = bytes.first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let mut ip = Ip {
        at,
        version: 6,
        checksum: None,
        transport: None,
        routed_on: false,
    };
    let (mut next, mut offset) = (header[6], 40);
    for _ in 0..MOST_EXTENSIONS {
        let Some(extension) = bytes.get(offset..).and_then(|rest| rest.first_chunk::<4>()) else {
            break;
        };
        let units = usize::from(extension[1]);
        let length = match next {
            HOP_BY_HOP | DESTINATION_OPTIONS => (units + 1) * 8,
            ROUTING => {
                ip.routed_on |= extension[3] != 0;
                (units + 1) * 8
            }
            FRAGMENT => {
                if u16::from_be_bytes([extension[2], extension[3]]) & 0xfff8 != 0 {
                    return Some(ip);
                }
                8
            }
            AUTHENTICATION => (units + 2) * 4,
            protocol => {
                ip.transport = transport(protocol, at + offset);
                break;
            }
        };
        next = extension[0];
        offset += length;
    }
    Some(ip)
}

/// The checksum of a transport header at this place, if it covers the addresses.
fn transport(protocol: u8, at: usize) -> Option<Checksum> {
    let (offset, zero_is_none) = match protocol {
        PROTOCOL_TCP => (16, false),
        PROTOCOL_UDP => (6, true),
        PROTOCOL_UDP_LITE => (6, false),
        PROTOCOL_ICMPV6 => (2, false),
        _ => return None,
    };
    Some(Checksum {
        at: at + offset,
        zero_is_none,
    })
}
