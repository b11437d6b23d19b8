//! Changes of addresses and tags in recorded frames; right checksums stay right, and wrong ones stay wrong.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use trawl_packet::checksum::{adjusted, difference};
pub use trawl_packet::net::prefix::Prefix;
use trawl_packet::net::protocol::{ICMPV6, TCP, UDP, UDP_LITE};
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_packet::walk::{is_tag, walk};

const TAG: usize = 4;
/// Offset of a tag: after the two addresses.
const TAG_AT: usize = 12;
const VLAN: [u8; 2] = [0x81, 0x00];

impl Rewrite {
    /// Returns the largest growth of a frame.
    pub fn growth(&self) -> usize {
        if matches!(self.tag, Some(TagChange::Set(_))) { TAG } else { 0 }
    }

    /// Changes a frame; `room` begins with it and has [`Self::growth`] bytes more. Returns its new length. Fields that
    /// are missing, because the frame is short or of another kind, are not changed.
    pub fn apply(&self, room: &mut [u8], length: usize) -> usize {
        if self.is_empty() || length < TAG_AT + 2 {
            return length;
        }
        let length = self.change_tag(room, length);
        let frame = &mut room[..length];
        self.change_macs(frame);
        if self.changes_addresses() {
            self.change_addresses(frame);
        }
        length
    }

    fn change_tag(&self, room: &mut [u8], length: usize) -> usize {
        let tagged = is_tag(u16::from_be_bytes([room[12], room[13]])) && length >= TAG_AT + TAG + 2;
        match self.tag {
            Some(TagChange::Remove) if tagged => {
                room.copy_within(TAG_AT + TAG..length, TAG_AT);
                length - TAG
            }
            Some(TagChange::Set(id)) if tagged => {
                set_tag(room, id);
                length
            }
            Some(TagChange::Set(id)) if length + TAG <= room.len() => {
                room.copy_within(TAG_AT..length, TAG_AT + TAG);
                room[TAG_AT..TAG_AT + 2].copy_from_slice(&VLAN);
                room[TAG_AT + 2..TAG_AT + 4].fill(0);
                set_tag(room, id);
                length + TAG
            }
            None if tagged => {
                let now = u16::from_be_bytes([room[14], room[15]]) & 0xfff;
                if let Some((_, to)) = self.tags.iter().find(|(from, _)| *from == now) {
                    set_tag(room, *to);
                }
                length
            }
            _ => length,
        }
    }

    fn change_macs(&self, frame: &mut [u8]) {
        let (destination, rest) = frame.split_at_mut(6);
        change_mac(self.destination_mac, &self.macs, destination);
        change_mac(self.source_mac, &self.macs, &mut rest[..6]);
    }

    fn change_addresses(&self, frame: &mut [u8]) {
        let Some(headers) = headers(frame) else {
            return;
        };
        match headers {
            Headers::Arp { at } => self.change_arp(&mut frame[at..]),
            Headers::Ip(ip) => self.change_ip(frame, &ip),
        }
    }

    /// Changes the hardware and protocol addresses of IPv4 over Ethernet.
    fn change_arp(&self, arp: &mut [u8]) {
        change_mac(self.source_mac, &self.macs, &mut arp[8..14]);
        if arp[18..24] != [0; 6] {
            change_mac(self.destination_mac, &self.macs, &mut arp[18..24]);
        }
        for (is_source, at) in [(true, 14..18), (false, 24..28)] {
            if let Some(now) = arp[at.clone()].first_chunk::<4>()
                && let Some(IpAddr::V4(new)) = self.address(is_source, IpAddr::from(*now))
            {
                arp[at].copy_from_slice(&new.octets());
            }
        }
    }

    fn change_ip(&self, frame: &mut [u8], ip: &Ip) {
        for (is_source, at) in [(true, ip.source()), (false, ip.destination())] {
            let now = ip.address(&frame[at.clone()]);
            let Some(new) = now.and_then(|now| self.address(is_source, now)) else {
                continue;
            };
            let before = frame[at.clone()].to_vec();
            match new {
                IpAddr::V4(new) => frame[at.clone()].copy_from_slice(&new.octets()),
                IpAddr::V6(new) => frame[at.clone()].copy_from_slice(&new.octets()),
            }
            let change = difference(&before, &frame[at]);
            let pseudo = ip.in_pseudo_header(is_source).then_some(ip.transport);
            for checksum in [ip.checksum, pseudo.flatten()].into_iter().flatten() {
                fix(frame, checksum, change);
            }
        }
    }
}

fn set_tag(room: &mut [u8], id: u16) {
    let priority = u16::from_be_bytes([room[14], room[15]]) & 0xf000;
    room[14..16].copy_from_slice(&(priority | id & 0xfff).to_be_bytes());
}

fn change_mac(fixed: Option<[u8; 6]>, map: &[([u8; 6], [u8; 6])], at: &mut [u8]) {
    let new = fixed.or_else(|| map.iter().find(|(from, _)| from == at).map(|(_, to)| *to));
    if let Some(new) = new {
        at.copy_from_slice(&new);
    }
}

fn fix(frame: &mut [u8], checksum: Checksum, change: u64) {
    let Some(stored) = frame.get(checksum.at..).and_then(|rest| rest.first_chunk()) else {
        return;
    };
    let stored = u16::from_be_bytes(*stored);
    if checksum.zero_is_none && stored == 0 {
        return;
    }
    let mut new = adjusted(stored, change);
    if checksum.zero_is_none && new == 0 {
        new = 0xffff;
    }
    frame[checksum.at..checksum.at + 2].copy_from_slice(&new.to_be_bytes());
}

// Offsets of a frame's addresses, and of the checksums that cover them.

/// ARP header for Ethernet and IPv4, with addresses of six and four bytes.
const ARP_KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    pub at: usize,
    /// True for UDP, where zero means no checksum.
    pub zero_is_none: bool,
}

/// The outermost IP header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    at: usize,
    version: u8,
    /// The header's own checksum.
    pub checksum: Option<Checksum>,
    /// The transport checksum, which covers the addresses.
    pub transport: Option<Checksum>,
    /// True if a routing header names another final address, which the transport checksum covers.
    routed_on: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// A complete ARP packet.
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

    /// Returns true if the transport's checksum covers this address.
    pub fn in_pseudo_header(&self, is_source: bool) -> bool {
        is_source || !self.routed_on
    }
}

/// Finds the outermost header of a frame that holds addresses.
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
        checksum: is_v4.then_some(Checksum { at: at + 10, zero_is_none: false }),
        transport: walked.transport_at.and_then(|at| transport(ip.protocol, at)),
        routed_on: ip.routed_on,
    }))
}

/// Finds the checksum of a transport header at this offset, if it covers the addresses.
fn transport(protocol: u8, at: usize) -> Option<Checksum> {
    let (offset, zero_is_none) = match protocol {
        TCP => (16, false),
        UDP => (6, true),
        UDP_LITE => (6, false),
        ICMPV6 => (2, false),
        _ => return None,
    };
    Some(Checksum { at: at + offset, zero_is_none })
}

// The changes, as requested.

pub type Mac = [u8; 6];

/// Change of the outermost VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagChange {
    /// Sets the number of the tag; a tag is added if the frame has none.
    Set(u16),
    Remove,
}

/// The changes to each frame. Without any, frames are sent unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    pub source_mac: Option<Mac>,
    pub destination_mac: Option<Mac>,
    /// MAC addresses and their replacements, on both sides.
    pub macs: Vec<(Mac, Mac)>,
    pub source_v4: Option<Ipv4Addr>,
    pub source_v6: Option<Ipv6Addr>,
    pub destination_v4: Option<Ipv4Addr>,
    pub destination_v6: Option<Ipv6Addr>,
    /// Prefixes and their replacements, on both sides; the first match counts.
    pub prefixes: Vec<(Prefix, Prefix)>,
    pub tag: Option<TagChange>,
    /// VLAN numbers and their replacements.
    pub tags: Vec<(u16, u16)>,
}

impl Rewrite {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn changes_addresses(&self) -> bool {
        // ARP has MAC addresses inside.
        let Self {
            source_mac,
            destination_mac,
            macs,
            source_v4,
            source_v6,
            destination_v4,
            destination_v6,
            prefixes,
            tag: _,
            tags: _,
        } = self;
        source_mac.is_some()
            || destination_mac.is_some()
            || !macs.is_empty()
            || source_v4.is_some()
            || source_v6.is_some()
            || destination_v4.is_some()
            || destination_v6.is_some()
            || !prefixes.is_empty()
    }

    /// Returns the replacement of an address; `None` if it stays.
    fn address(&self, is_source: bool, now: IpAddr) -> Option<IpAddr> {
        let fixed = match (now, is_source) {
            (IpAddr::V4(_), true) => self.source_v4.map(IpAddr::V4),
            (IpAddr::V4(_), false) => self.destination_v4.map(IpAddr::V4),
            (IpAddr::V6(_), true) => self.source_v6.map(IpAddr::V6),
            (IpAddr::V6(_), false) => self.destination_v6.map(IpAddr::V6),
        };
        let by_prefix = || {
            let (_, to) = self.prefixes.iter().find(|(from, _)| from.contains(now))?;
            to.substitute(now)
        };
        fixed.or_else(by_prefix)
    }
}

#[cfg(test)]
mod tests;
