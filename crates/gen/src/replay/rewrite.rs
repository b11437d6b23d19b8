//! Other addresses and tags in recorded frames, with checksums that stay as right, or as wrong, as they were.

mod headers;
mod rules;

pub use rules::{Prefix, Rewrite, TagChange};

use std::net::IpAddr;

use headers::{Checksum, Headers, Ip, headers};
use trawl_packet::walk::is_tag;

const TAG: usize = 4;
/// Where a tag goes: after the two addresses.
const TAG_AT: usize = 12;
const VLAN: [u8; 2] = [0x81, 0x00];

impl Rewrite {
    /// How much longer a frame may become.
    pub fn growth(&self) -> usize {
        if matches!(self.tag, Some(TagChange::Set(_))) {
            TAG
        } else {
            0
        }
    }

    /// Changes a frame; `room` begins with it and has [`Self::growth`] bytes more. Returns its new length. Fields that
    /// are not in the frame, since it is short or of another kind, are not changed.
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

    /// Hardware and protocol addresses of IPv4 over Ethernet.
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

/// What is to be added to a one's complement sum over these bytes when they change (RFC 1624).
fn difference(before: &[u8], after: &[u8]) -> u32 {
    let sum = |bytes: &[u8], keep: u16| -> u32 {
        let (words, _) = bytes.as_chunks::<2>();
        words
            .iter()
            .map(|word| u32::from(u16::from_be_bytes(*word) ^ keep))
            .sum()
    };
    sum(before, 0xffff) + sum(after, 0)
}

fn fix(frame: &mut [u8], checksum: Checksum, change: u32) {
    let Some(stored) = frame.get(checksum.at..).and_then(|rest| rest.first_chunk()) else {
        return;
    };
    let stored = u16::from_be_bytes(*stored);
    if checksum.zero_is_none && stored == 0 {
        return;
    }
    let mut sum = u32::from(!stored) + change;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let mut new = !(sum as u16);
    if checksum.zero_is_none && new == 0 {
        new = 0xffff;
    }
    frame[checksum.at..checksum.at + 2].copy_from_slice(&new.to_be_bytes());
}

/// For the fuzzer and its seeds: everything is changed in a frame that may be anything. The first byte chooses what
/// becomes of its tag.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) {
    let Some((choice, frame)) = bytes.split_first() else {
        return;
    };
    let prefix = |old: &str, new: &str| Some((old.parse().ok()?, new.parse().ok()?));
    let prefixes = [
        prefix("0.0.0.0/1", "10.0.0.0/8"),
        prefix("::/0", "fd00::/64"),
    ];
    let rewrite = Rewrite {
        source_mac: Some([2; 6]),
        macs: vec![([0xff; 6], [4; 6])],
        destination_v4: Some([192, 0, 2, 1].into()),
        prefixes: prefixes.into_iter().flatten().collect(),
        tag: match choice % 3 {
            0 => None,
            1 => Some(TagChange::Remove),
            _ => Some(TagChange::Set(u16::from(*choice))),
        },
        tags: vec![(0, 1)],
        ..Rewrite::default()
    };
    let mut room = frame.to_vec();
    room.resize(frame.len() + rewrite.growth(), 0);
    let length = rewrite.apply(&mut room, frame.len());
    assert!(length <= room.len() && length + TAG >= frame.len());
}

#[cfg(test)]
mod tests;
