//! One walk over a packet's headers: where they are and what they say, without a copy and without an allocation, for
//! statistics, live views and whoever else asks about many packets. Whatever is not there or makes no sense is left
//! out, and the walk ends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::pcapng::block;

/// Tunnels inside tunnels, at most.
const MAX_DEPTH: u8 = 4;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const VLAN: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x9200];
const IPV6: u16 = 0x86dd;
const MPLS: [u16; 2] = [0x8847, 0x8848];
const PPPOE_SESSION: u16 = 0x8864;

const TCP: u8 = 6;
const UDP: u8 = 17;
const DCCP: u8 = 33;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;
/// Extension headers of IPv6 whose length is in their second byte.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;

/// What the outermost headers of a packet say, and where its payload is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Headers<'a> {
    /// Destination and source.
    pub macs: Option<([u8; 6], [u8; 6])>,
    /// The one inside VLAN tags.
    pub ethertype: Option<u16>,
    /// The outermost tag's number, and how many tags there are.
    pub vlan: Option<u16>,
    pub vlans: u8,
    pub mpls_label: Option<u32>,
    pub ip: Option<Ip>,
    pub ports: Option<(u16, u16)>,
    pub tcp: Option<Tcp>,
    /// What follows the last header that was understood, as far as it was captured.
    pub payload: &'a [u8],
    /// How long the payload is by the headers.
    pub payload_len: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ip {
    pub src: IpAddr,
    pub dst: IpAddr,
    /// What follows the header and its extensions.
    pub protocol: u8,
    pub ttl: u8,
    /// Differentiated services and congestion bits.
    pub tos: u8,
    /// A part of a packet; only the first one has the transport's header.
    pub fragment: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tcp {
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
}

/// Reads the headers of a packet; `link_type` is a LINKTYPE_ value.
pub fn walk(link_type: u16, bytes: &[u8]) -> Headers<'_> {
    let mut headers = Headers {
        payload: bytes,
        payload_len: bytes.len(),
        ..Headers::default()
    };
    let _ended_early = match link_type {
        block::LINKTYPE_ETHERNET => ethernet(&mut headers, bytes),
        block::LINKTYPE_LINUX_SLL => typed(&mut headers, bytes, 14, 16),
        block::LINKTYPE_LINUX_SLL2 => typed(&mut headers, bytes, 0, 20),
        block::LINKTYPE_RAW => ip(&mut headers, bytes),
        block::LINKTYPE_NULL => bytes.get(4..).and_then(|rest| ip(&mut headers, rest)),
        _ => None,
    };
    headers
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn ethernet<'a>(headers: &mut Headers<'a>, bytes: &'a [u8]) -> Option<()> {
    let (dst, rest) = bytes.split_first_chunk()?;
    let (src, _) = rest.split_first_chunk()?;
    headers.macs = Some((*dst, *src));
    typed(headers, bytes, 12, 14)
}

/// What follows a link header of `len` bytes with an ethertype at `at`.
fn typed<'a>(headers: &mut Headers<'a>, bytes: &'a [u8], at: usize, len: usize) -> Option<()> {
    let mut kind = half(bytes, at)?;
    let mut rest = bytes.get(len..)?;
    while VLAN.contains(&kind) {
        let tag = half(rest, 0)?;
        headers.vlan.get_or_insert(tag & 0xfff);
        headers.vlans = headers.vlans.saturating_add(1);
        kind = half(rest, 2)?;
        rest = rest.get(4..)?;
    }
    headers.ethertype = Some(kind);
    follow(headers, kind, rest)
}

fn follow<'a>(headers: &mut Headers<'a>, kind: u16, rest: &'a [u8]) -> Option<()> {
    headers.payload = rest;
    headers.payload_len = rest.len();
    match kind {
        IPV4 | IPV6 => ip(headers, rest),
        PPPOE_SESSION => match half(rest, 6)? {
            0x21 => ip(headers, rest.get(8..)?),
            0x57 => ip(headers, rest.get(8..)?),
            _ => None,
        },
        _ if MPLS.contains(&kind) => {
            let mut rest = rest;
            loop {
                let entry = word(rest, 0)?;
                headers.mpls_label.get_or_insert(entry >> 12);
                rest = rest.get(4..)?;
                if entry & 0x100 != 0 {
                    break;
                }
            }
            match rest.first()? >> 4 {
                4 | 6 => ip(headers, rest),
                _ => None,
            }
        }
        _ => None,
    }
}

fn ip<'a>(headers: &mut Headers<'a>, bytes: &'a [u8]) -> Option<()> {
    match bytes.first()? >> 4 {
        4 => ipv4(headers, bytes),
        6 => ipv6(headers, bytes),
        _ => None,
    }
}

/// The bytes of a packet that a header gives a length, without what pads the frame.
fn trimmed(bytes: &[u8], len: usize) -> &[u8] {
    bytes.get(..len).unwrap_or(bytes)
}

fn ipv4<'a>(headers: &mut Headers<'a>, bytes: &'a [u8]) -> Option<()> {
    let header_len = usize::from(bytes.first()? & 0xf) * 4;
    let total = usize::from(half(bytes, 2)?);
    let place = half(bytes, 6)?;
    let address = |at| Some(Ipv4Addr::from(word(bytes, at)?));
    let offset = place & 0x1fff;
    headers.ip = Some(Ip {
        src: address(12)?.into(),
        dst: address(16)?.into(),
        protocol: *bytes.get(9)?,
        ttl: *bytes.get(8)?,
        tos: *bytes.get(1)?,
        fragment: place & 0x3fff != 0,
    });
    if header_len < 20 {
        return None;
    }
    // A length of zero is a segment that the card is still to cut up.
    let total = if total < header_len {
        bytes.len()
    } else {
        total
    };
    headers.payload = trimmed(bytes, total).get(header_len..)?;
    headers.payload_len = total.saturating_sub(header_len);
    if offset != 0 {
        return None;
    }
    transport(headers)
}

fn ipv6<'a>(headers: &mut Headers<'a>, bytes: &'a [u8]) -> Option<()> {
    let address = |at: usize| {
        let bytes: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
        Some(Ipv6Addr::from(bytes))
    };
    let payload_len = usize::from(half(bytes, 4)?);
    let mut next = *bytes.get(6)?;
    let mut fragment = false;
    let described = Ip {
        src: address(8)?.into(),
        dst: address(24)?.into(),
        protocol: next,
        ttl: *bytes.get(7)?,
        tos: (half(bytes, 0)? >> 4) as u8,
        fragment: false,
    };
    headers.ip = Some(described);
    let all = bytes.get(40..)?;
    let len = if payload_len == 0 {
        all.len()
    } else {
        payload_len
    };
    let mut rest = trimmed(all, len);
    let mut left = len;
    let mut first = true;
    loop {
        let header_len = match next {
            FRAGMENT => {
                let place = half(rest, 2)?;
                fragment |= place & 0xfff9 != 0;
                first &= place & 0xfff8 == 0;
                8
            }
            AUTHENTICATION => (usize::from(*rest.get(1)?) + 2) * 4,
            _ if EXTENSIONS.contains(&next) => (usize::from(*rest.get(1)?) + 1) * 8,
            _ => break,
        };
        next = *rest.first()?;
        rest = rest.get(header_len..)?;
        left = left.saturating_sub(header_len);
        headers.ip = Some(Ip {
            protocol: next,
            fragment,
            ..described
        });
        if !first {
            break;
        }
    }
    headers.payload = rest;
    headers.payload_len = left;
    if first { transport(headers) } else { None }
}

fn transport(headers: &mut Headers<'_>) -> Option<()> {
    let bytes = headers.payload;
    let header_len = match headers.ip?.protocol {
        TCP => {
            headers.ports = Some((half(bytes, 0)?, half(bytes, 2)?));
            let tcp = Tcp {
                seq: word(bytes, 4)?,
                ack: word(bytes, 8)?,
                flags: *bytes.get(13)?,
                window: half(bytes, 14)?,
            };
            headers.tcp = Some(tcp);
            usize::from(bytes.get(12)? >> 4) * 4
        }
        UDP | UDP_LITE => {
            headers.ports = Some((half(bytes, 0)?, half(bytes, 2)?));
            8
        }
        SCTP => {
            headers.ports = Some((half(bytes, 0)?, half(bytes, 2)?));
            12
        }
        DCCP => {
            headers.ports = Some((half(bytes, 0)?, half(bytes, 2)?));
            return None;
        }
        _ => return None,
    };
    headers.payload = bytes.get(header_len..)?;
    headers.payload_len = headers.payload_len.saturating_sub(header_len);
    Some(())
}

impl<'a> Headers<'a> {
    /// The packet inside a VXLAN, GENEVE, GRE or IP-in-IP tunnel.
    pub fn inner(&self) -> Option<Headers<'a>> {
        inner(self, 0)
    }

    /// The innermost headers that can be read.
    pub fn innermost(&self) -> Headers<'a> {
        let mut headers = *self;
        for depth in 0..MAX_DEPTH {
            match inner(&headers, depth) {
                Some(deeper) => headers = deeper,
                None => break,
            }
        }
        headers
    }

    pub fn is_arp(&self) -> bool {
        self.ethertype == Some(ARP)
    }
}

fn inner<'a>(headers: &Headers<'a>, depth: u8) -> Option<Headers<'a>> {
    const VXLAN_PORT: u16 = 4789;
    const GENEVE_PORT: u16 = 6081;
    let as_ethernet = |bytes| walk(block::LINKTYPE_ETHERNET, bytes);
    let as_ip = |bytes| walk(block::LINKTYPE_RAW, bytes);
    let bytes = headers.payload;
    if depth >= MAX_DEPTH || headers.ip?.fragment {
        return None;
    }
    match (headers.ip?.protocol, headers.ports) {
        (UDP, Some((_, VXLAN_PORT))) => Some(as_ethernet(bytes.get(8..)?)),
        (UDP, Some((_, GENEVE_PORT))) => {
            let options = usize::from(bytes.first()? & 0x3f) * 4;
            let rest = bytes.get(8 + options..)?;
            Some(match half(bytes, 2)? {
                0x6558 => as_ethernet(rest),
                _ => as_ip(rest),
            })
        }
        (4 | 41, _) => Some(as_ip(bytes)),
        (47, _) => {
            let flags = half(bytes, 0)?;
            let optional = [0x8000, 0x2000, 0x1000];
            let words = optional.iter().filter(|bit| flags & **bit != 0).count();
            let rest = bytes.get(4 + words * 4..)?;
            Some(match half(bytes, 2)? {
                0x6558 => as_ethernet(rest),
                _ => as_ip(rest),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Template;

    #[test]
    fn tags_addresses_ports_and_payload() {
        let frame = Template::new()
            .ethernet([2; 6], [4; 6])
            .vlan(7)
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
            .udp(5, 6)
            .payload(b"hello")
            .build();
        let headers = walk(1, &frame);
        assert_eq!((headers.vlan, headers.ethertype), (Some(7), Some(IPV4)));
        assert_eq!(
            (headers.ports, headers.payload),
            (Some((5, 6)), &b"hello"[..])
        );
        let ip = headers.ip.unwrap();
        assert_eq!(
            (ip.src.to_string(), ip.protocol),
            ("10.0.0.1".to_owned(), UDP)
        );
    }

    #[test]
    fn a_frame_inside_vxlan() {
        let frame = Template::new()
            .ethernet([2; 6], [4; 6])
            .ipv6([1; 8], [2; 8])
            .udp(5, 4789)
            .vxlan(99)
            .ethernet([2; 6], [4; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
            .udp(7, 8)
            .build();
        assert_eq!(walk(1, &frame).innermost().ports, Some((7, 8)));
    }

    #[test]
    fn any_cut_is_taken() {
        let frame = Template::new()
            .ethernet([2; 6], [4; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
            .udp(5, 4789)
            .vxlan(99)
            .ethernet([2; 6], [4; 6])
            .ipv6([1; 8], [2; 8])
            .udp(7, 8)
            .build();
        for cut in 0..frame.len() {
            for link_type in [0, 1, 101, 113, 276] {
                let _ = walk(link_type, &frame[..cut]).innermost();
            }
        }
    }
}
