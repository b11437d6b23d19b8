//! A walk over a packet's headers: their positions and key fields, without a copy or an allocation. JSON, statistics,
//! the index, live views and the replay's rewriting use it. Headers that are absent or contradict themselves are left
//! out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::net::ethertype::{ARP, BRIDGED_ETHERNET, IPV4, IPV6, MPLS, MPLS_MULTICAST, PPPOE_SESSION, TAGS};
use crate::net::protocol::{
    AUTHENTICATION, DCCP, DESTINATION_OPTIONS, ESP, FRAGMENT, GRE, HOP_BY_HOP, ICMP, ICMPV6, IGMP, ROUTING, SCTP, TCP,
    UDP, UDP_LITE,
};
use crate::pcapng::block;

/// Maximum depth of tunnels inside tunnels.
pub(crate) const MAX_DEPTH: u8 = 4;

pub(crate) const VXLAN_PORT: u16 = 4789;
pub(crate) const GENEVE_PORT: u16 = 6081;
/// Maximum number of VLAN tags whose numbers are kept; further ones are only counted.
const MAX_TAGS: usize = 4;

const ICMP_HEADER: usize = 8;
/// ICMP messages that quote a packet: unreachable, quench, redirect, exceeded, bad parameter.
pub(crate) const ICMP_ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
/// The option of neighbour discovery that quotes a packet.
const REDIRECTED_HEADER: u8 = 4;

/// The outermost headers of a packet, and its payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Headers<'a> {
    /// Destination and source.
    pub macs: Option<([u8; 6], [u8; 6])>,
    /// Ethertype inside of VLAN tags.
    pub ethertype: Option<u16>,
    /// Numbers of the VLAN tags, the outermost first, and the number of tags.
    vlan_numbers: [u16; MAX_TAGS],
    pub vlans: u8,
    pub mpls_label: Option<u32>,
    pub arp: Option<Arp<'a>>,
    pub ip: Option<Ip>,
    /// Offset of the ARP or IP header.
    pub network_at: Option<usize>,
    /// Offset of the header after it, except in a later fragment.
    pub transport_at: Option<usize>,
    pub ports: Option<(u16, u16)>,
    pub tcp: Option<Tcp>,
    /// Type and code of ICMP and ICMPv6.
    pub icmp: Option<(u8, u8)>,
    /// The captured bytes end inside a header, or a header contradicts itself.
    pub incomplete: bool,
    /// Length of the input.
    len: usize,
    /// Captured bytes after the last recognised header.
    pub payload: &'a [u8],
    /// Offset of the payload.
    pub payload_at: usize,
    /// Length of the payload according to the headers.
    pub payload_len: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ip {
    pub src: IpAddr,
    pub dst: IpAddr,
    /// Protocol after the header and its extensions.
    pub protocol: u8,
    pub ttl: u8,
    /// Differentiated services and congestion bits.
    pub tos: u8,
    /// True for a fragment; only the first one has the transport header.
    pub fragment: bool,
    /// True if an IPv6 routing header names another final destination.
    pub routed_on: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arp<'a> {
    pub operation: u16,
    pub sender_mac: &'a [u8],
    pub sender_ip: &'a [u8],
    pub target_mac: &'a [u8],
    pub target_ip: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tcp {
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
}

/// Returns true if a sequence number of TCP comes before another one.
pub fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Reads the headers of a packet; `link_type` is a LINKTYPE_ value.
pub fn walk(link_type: u16, bytes: &[u8]) -> Headers<'_> {
    let mut headers = Headers { payload: bytes, payload_len: bytes.len(), len: bytes.len(), ..Headers::default() };
    let understood = match link_type {
        block::LINKTYPE_ETHERNET => ethernet(&mut headers, bytes),
        block::LINKTYPE_LINUX_SLL => typed(&mut headers, bytes, 14, 16),
        block::LINKTYPE_LINUX_SLL2 => typed(&mut headers, bytes, 0, 20),
        block::LINKTYPE_RAW | block::LINKTYPE_IPV4 | block::LINKTYPE_IPV6 => ip(&mut headers, bytes),
        block::LINKTYPE_NULL => bytes.get(4..).and_then(|rest| ip(&mut headers, rest)),
        _ => Some(()),
    };
    headers.incomplete = understood.is_none();
    headers
}

/// Returns whether this ethertype belongs to a VLAN tag.
pub fn is_tag(ethertype: u16) -> bool {
    TAGS.contains(&ethertype)
}

pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn ethernet<'a>(headers: &mut Headers<'a>, bytes: &'a [u8]) -> Option<()> {
    let (dst, rest) = bytes.split_first_chunk()?;
    let (src, _) = rest.split_first_chunk()?;
    headers.macs = Some((*dst, *src));
    typed(headers, bytes, 12, 14)
}

/// Reads the packet after a link header of `len` bytes with an ethertype at `at`.
fn typed<'a>(headers: &mut Headers<'a>, bytes: &'a [u8], at: usize, len: usize) -> Option<()> {
    let mut kind = half(bytes, at)?;
    let mut rest = bytes.get(len..)?;
    headers.ethertype = Some(kind);
    while is_tag(kind) {
        let tag = half(rest, 0)?;
        if let Some(number) = headers.vlan_numbers.get_mut(usize::from(headers.vlans)) {
            *number = tag & 0xfff;
        }
        headers.vlans = headers.vlans.saturating_add(1);
        kind = half(rest, 2)?;
        rest = rest.get(4..)?;
        headers.ethertype = Some(kind);
    }
    follow(headers, kind, rest)
}

fn follow<'a>(headers: &mut Headers<'a>, kind: u16, rest: &'a [u8]) -> Option<()> {
    headers.payload = rest;
    headers.payload_at = headers.len - rest.len();
    headers.payload_len = rest.len();
    match kind {
        IPV4 | IPV6 => ip(headers, rest),
        ARP => arp(headers, rest),
        PPPOE_SESSION => match half(rest, 6)? {
            0x21 | 0x57 => ip(headers, rest.get(8..)?),
            _ => Some(()),
        },
        MPLS | MPLS_MULTICAST => {
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
                _ => Some(()),
            }
        }
        _ => Some(()),
    }
}

fn arp<'a>(headers: &mut Headers<'a>, bytes: &'a [u8]) -> Option<()> {
    headers.network_at = Some(headers.len - bytes.len());
    let [mac, address] = *bytes.get(4..)?.first_chunk()?;
    let (mac, address) = (usize::from(mac), usize::from(address));
    let (sender_mac, rest) = bytes.get(8..)?.split_at_checked(mac)?;
    let (sender_ip, rest) = rest.split_at_checked(address)?;
    let (target_mac, rest) = rest.split_at_checked(mac)?;
    headers.arp =
        Some(Arp { operation: half(bytes, 6)?, sender_mac, sender_ip, target_mac, target_ip: rest.get(..address)? });
    Some(())
}

fn ip<'a>(headers: &mut Headers<'a>, bytes: &'a [u8]) -> Option<()> {
    headers.network_at = Some(headers.len - bytes.len());
    match bytes.first()? >> 4 {
        4 => ipv4(headers, bytes),
        6 => ipv6(headers, bytes),
        _ => None,
    }
}

/// Returns the bytes of a packet up to the length in its header, without the frame's padding.
fn trimmed(bytes: &[u8], len: usize) -> &[u8] {
    bytes.get(..len).unwrap_or(bytes)
}

fn ipv4<'a>(headers: &mut Headers<'a>, bytes: &'a [u8]) -> Option<()> {
    let header_len = usize::from(bytes.first()? & 0xf) * 4;
    let total = usize::from(half(bytes, 2)?);
    let fragmentation = half(bytes, 6)?;
    let address = |at| Some(Ipv4Addr::from(word(bytes, at)?));
    let offset = fragmentation & 0x1fff;
    if header_len < 20 {
        return None;
    }
    headers.ip = Some(Ip {
        src: address(12)?.into(),
        dst: address(16)?.into(),
        protocol: *bytes.get(9)?,
        ttl: *bytes.get(8)?,
        tos: *bytes.get(1)?,
        fragment: fragmentation & 0x3fff != 0,
        routed_on: false,
    });
    // A length of zero marks a large segment that the card has yet to split.
    let total = if total < header_len { bytes.len() } else { total };
    headers.payload = trimmed(bytes, total).get(header_len..)?;
    headers.payload_at = headers.len - bytes.len() + header_len;
    headers.payload_len = total.saturating_sub(header_len);
    if offset != 0 {
        return Some(());
    }
    if headers.ip?.protocol != AUTHENTICATION {
        return transport(headers, header_len);
    }
    let extension = (usize::from(*headers.payload.get(1)?) + 2) * 4;
    headers.ip.as_mut()?.protocol = *headers.payload.first()?;
    headers.payload = headers.payload.get(extension..)?;
    headers.payload_at += extension;
    headers.payload_len = headers.payload_len.saturating_sub(extension);
    transport(headers, header_len + extension)
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
        routed_on: false,
    };
    headers.ip = Some(described);
    let all = bytes.get(40..)?;
    let len = if payload_len == 0 { all.len() } else { payload_len };
    let mut rest = trimmed(all, len);
    let mut left = len;
    let (mut first, mut routed_on) = (true, false);
    loop {
        let header_len = match next {
            FRAGMENT => {
                let fragmentation = half(rest, 2)?;
                fragment |= fragmentation & 0xfff9 != 0;
                first &= fragmentation & 0xfff8 == 0;
                8
            }
            AUTHENTICATION => (usize::from(*rest.get(1)?) + 2) * 4,
            ROUTING => {
                routed_on |= *rest.get(3)? != 0;
                (usize::from(*rest.get(1)?) + 1) * 8
            }
            HOP_BY_HOP | DESTINATION_OPTIONS => (usize::from(*rest.get(1)?) + 1) * 8,
            _ => break,
        };
        next = *rest.first()?;
        rest = rest.get(header_len..)?;
        left = left.saturating_sub(header_len);
        headers.ip = Some(Ip { protocol: next, fragment, routed_on, ..described });
        if !first {
            break;
        }
    }
    headers.payload = rest;
    headers.payload_len = left;
    let after = 40 + len.min(all.len()) - rest.len();
    headers.payload_at = headers.len - bytes.len() + after;
    if first { transport(headers, after) } else { Some(()) }
}

/// Reads the header at this offset `after` the start of the network header.
fn transport(headers: &mut Headers<'_>, after: usize) -> Option<()> {
    headers.transport_at = headers.network_at.map(|at| at + after);
    let bytes = headers.payload;
    let protocol = headers.ip?.protocol;
    if matches!(protocol, TCP | UDP | UDP_LITE | SCTP | DCCP) {
        headers.ports = Some((half(bytes, 0)?, half(bytes, 2)?));
    }
    let header_len = match protocol {
        ICMP | ICMPV6 => {
            let [kind, code, ..] = *bytes.first_chunk::<4>()?;
            headers.icmp = Some((kind, code));
            return Some(());
        }
        TCP => {
            headers.tcp = Some(Tcp {
                seq: word(bytes, 4)?,
                ack: word(bytes, 8)?,
                flags: *bytes.get(13)?,
                window: half(bytes, 14)?,
            });
            Some(usize::from(bytes.get(12)? >> 4) * 4).filter(|len| *len >= 20)?
        }
        UDP | UDP_LITE => 8,
        SCTP => 12,
        _ => return Some(()),
    };
    headers.payload = bytes.get(header_len..)?;
    headers.payload_at += header_len;
    headers.payload_len = headers.payload_len.saturating_sub(header_len);
    Some(())
}

/// Returns the length of the header of this protocol at the start of `bytes`, limited to their length.
pub(crate) fn transport_len(protocol: u8, bytes: &[u8]) -> usize {
    let len = match protocol {
        TCP => match bytes.get(12) {
            Some(offset) => usize::from(offset >> 4).max(5) * 4,
            None => 20,
        },
        UDP | UDP_LITE | ICMP | ICMPV6 | IGMP | ESP => 8,
        SCTP | DCCP => 12,
        GRE => {
            let flags = bytes.first().copied().unwrap_or_default();
            // The flags for the checksum, the key and the sequence number each add four bytes.
            let optional = [0x80, 0x20, 0x10];
            4 + 4 * optional.iter().filter(|bit| flags & **bit != 0).count()
        }
        _ => 0,
    };
    len.min(bytes.len())
}

/// Returns the length of a packet's headers, with those inside tunnels: up to the end of the innermost transport
/// header. If no transport header is known, the network or link header is the last.
pub fn headers_len(link_type: u16, bytes: &[u8]) -> usize {
    let (at, headers) = walk(link_type, bytes).innermost();
    at + headers.end()
}

/// A packet, split into the part that may change on its path through bridges, veth and VLANs, and the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bridged<'a> {
    /// The link header, with tags and labels.
    pub link: &'a [u8],
    /// The bytes from the network header on, without the frame's padding, before and after the checksum of TCP or UDP,
    /// which a card may compute later.
    pub same: [&'a [u8]; 2],
}

/// Splits a packet; `link_type` is a LINKTYPE_ value.
pub fn bridged(link_type: u16, bytes: &[u8]) -> Bridged<'_> {
    let headers = walk(link_type, bytes);
    let at = headers.network_at.unwrap_or(headers.payload_at);
    let end = match headers.network_at {
        Some(_) if headers.arp.is_some() => headers.end(),
        Some(network) if headers.payload_at > network => headers.payload_at + headers.payload.len(),
        _ => bytes.len(),
    };
    let checksum = match headers.ip.map(|ip| ip.protocol) {
        Some(TCP) => Some(16),
        Some(UDP) => Some(6),
        _ => None,
    };
    let checksum = headers.transport_at.zip(checksum);
    let before = checksum.map_or(end, |(transport, offset)| transport + offset);
    let part = |range: std::ops::Range<usize>| bytes.get(range).unwrap_or_default();
    Bridged { link: part(0..at), same: [part(at..before.min(end)), part(before + 2..end)] }
}

impl<'a> Headers<'a> {
    /// Returns the offset of the end of the last header.
    fn end(&self) -> usize {
        let known = self.payload_at;
        let Some(network) = self.network_at else {
            return known;
        };
        if let Some(arp) = &self.arp {
            return network + 8 + 2 * (arp.sender_mac.len() + arp.sender_ip.len());
        }
        let Some(ip) = self.ip else {
            return known;
        };
        if known <= network {
            // The header is cut, or contradicts itself.
            let fixed = if ip.src.is_ipv4() { 20 } else { 40 };
            return network + fixed;
        }
        match self.transport_at {
            Some(at) if at == known => known + transport_len(ip.protocol, self.payload),
            _ => known,
        }
    }

    /// Returns the offset of the packet inside a tunnel, and its headers; `depth` is the number of tunnels around this
    /// packet.
    pub(crate) fn inner_at(&self, depth: u8) -> Option<(usize, Headers<'a>)> {
        let inner = inner(self, depth)?;
        Some((self.payload_at + self.payload.len() - inner.len, inner))
    }

    /// Returns the offset of the innermost packet that can be read, and its headers.
    pub fn innermost(&self) -> (usize, Headers<'a>) {
        let (mut at, mut headers) = (0, *self);
        for depth in 0..MAX_DEPTH {
            let Some((inner_at, inner)) = headers.inner_at(depth) else {
                break;
            };
            (at, headers) = (at + inner_at, inner);
        }
        (at, headers)
    }

    /// Returns the offset of the packet that an ICMP error or a redirect quotes.
    pub(crate) fn quoted_at(&self) -> Option<usize> {
        let message = self.payload;
        let (kind, _) = self.icmp?;
        let options = match (self.ip?.protocol, kind) {
            (ICMP, kind) if ICMP_ERRORS.contains(&kind) => {
                return Some(self.payload_at + ICMP_HEADER);
            }
            (ICMPV6, 1..=4) => return Some(self.payload_at + ICMP_HEADER),
            (ICMPV6, 133) => ICMP_HEADER,
            (ICMPV6, 134) => ICMP_HEADER + 8,
            (ICMPV6, 135 | 136) => ICMP_HEADER + 16,
            (ICMPV6, 137) => ICMP_HEADER + 32,
            _ => return None,
        };
        let mut at = options;
        while *message.get(at)? != REDIRECTED_HEADER {
            let length = usize::from(*message.get(at + 1)?) * 8;
            at += Some(length).filter(|length| *length > 0)?;
        }
        Some(self.payload_at + at + 8)
    }

    /// Returns the numbers of the VLAN tags, the outermost first.
    pub fn vlan_numbers(&self) -> &[u16] {
        let known = usize::from(self.vlans).min(MAX_TAGS);
        self.vlan_numbers.get(..known).unwrap_or_default()
    }
}

fn inner<'a>(headers: &Headers<'a>, depth: u8) -> Option<Headers<'a>> {
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
            tunnelled(half(bytes, 2)?, rest)
        }
        (4 | 41, _) => Some(as_ip(bytes)),
        (GRE, _) => {
            let rest = bytes.get(transport_len(GRE, bytes)..)?;
            tunnelled(half(bytes, 2)?, rest)
        }
        _ => None,
    }
}

/// Reads a packet of this ethertype in a tunnel.
fn tunnelled(kind: u16, bytes: &[u8]) -> Option<Headers<'_>> {
    match kind {
        BRIDGED_ETHERNET => Some(walk(block::LINKTYPE_ETHERNET, bytes)),
        IPV4 | IPV6 => Some(walk(block::LINKTYPE_RAW, bytes)),
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
        assert_eq!((headers.vlan_numbers(), headers.ethertype), (&[7][..], Some(IPV4)));
        assert_eq!((headers.ports, headers.payload), (Some((5, 6)), &b"hello"[..]));
        let ip = headers.ip.unwrap();
        assert_eq!((ip.src.to_string(), ip.protocol), ("10.0.0.1".to_owned(), UDP));
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
        assert_eq!(walk(1, &frame).innermost().1.ports, Some((7, 8)));
    }

    #[test]
    fn bridged_copies_of_a_packet_differ_in_the_link_header_only() {
        let of = |template: Template| {
            let packet = template.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(5, 6);
            packet.payload(b"hello").build()
        };
        let plain = of(Template::new().ethernet([2; 6], [4; 6]));
        let padded = [&plain[..], &[0; 13]].concat();
        let tagged = of(Template::new().ethernet([2; 6], [6; 6]).vlan(7));
        let parts = bridged(1, &plain);
        let lengths = (parts.link.len(), parts.same.map(<[u8]>::len));
        assert_eq!(lengths, (14, [26, 5]));
        assert_eq!(bridged(1, &padded), parts);
        assert_eq!(bridged(1, &tagged).link.len(), 18);
        let mut partial = tagged;
        partial[44..46].fill(0);
        assert_eq!(bridged(1, &partial).same, parts.same);
        assert_eq!(bridged(9999, &plain).same, [&plain[..], &[]]);
    }

    #[test]
    fn any_cut_is_accepted() {
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
                assert!(headers_len(link_type, &frame[..cut]) <= cut);
                let parts = bridged(link_type, &frame[..cut]);
                assert!(parts.link.len() + parts.same.concat().len() <= cut);
            }
        }
    }
}
