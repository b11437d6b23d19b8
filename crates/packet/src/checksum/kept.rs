//! Checksums of packets whose payload was left out. A checksum over the payload gives a short payload away, because all
//! its other terms are in the file, so it is computed as if the bytes left out were zeroes. A checksum that was wrong
//! stays wrong, by one bit. Fields that only the sender can compute (AH, signatures in TCP options) become zeroes.

use std::ops::Range;

use super::ends::{Ends, extensions_v6, options_v4};
use super::{Sum, crc32c};
use crate::net::protocol::{AUTHENTICATION, DCCP, GRE, ICMP, ICMPV6, IGMP, SCTP, TCP, UDP, UDP_LITE};
use crate::pcapng::block;
use crate::walk::{Headers, MAX_DEPTH, half, walk};

/// The bit by which a wrong checksum differs from the right one.
const WRONG: u8 = 0x80;
const IPV4_FIXED: usize = 20;
const AH_FIXED: usize = 12;
const TCP_FIXED: usize = 20;

/// Options of TCP that hold a sum over the payload: alternate checksum, MD5 signature, authentication, multipath.
const TCP_CHECKSUM: u8 = 15;
const TCP_MD5: u8 = 19;
const TCP_AUTHENTICATION: u8 = 29;
const TCP_MULTIPATH: u8 = 30;
/// Subtypes of the multipath option that may end with a checksum.
const MULTIPATH_CAPABLE: u8 = 0;
const MULTIPATH_DATA: u8 = 2;

/// Computes the checksums in `after`, the kept beginning of the packet `before`, as if the bytes left out were zeroes.
/// Bytes of `after` may differ, but their positions do not. `link_type` is a LINKTYPE_ value.
pub fn cover_kept(link_type: u16, before: &[u8], after: &mut [u8]) {
    let headers = walk(link_type, before);
    Kept { before, after }.packet(0, &headers, 0);
}

struct Kept<'a> {
    before: &'a [u8],
    after: &'a mut [u8],
}

/// The part of a packet that a checksum covers.
struct Covered {
    captured: Range<usize>,
    /// Length according to the headers.
    length: usize,
    /// True for a fragment, and if lengths contradict each other: the checksum cannot be verified.
    is_unclear: bool,
}

impl Covered {
    /// Returns the first `length` bytes; a transport header of at least 8 bytes states this length.
    fn first(self, length: usize) -> Self {
        if length < 8 || length > self.length {
            return Self { is_unclear: true, ..self };
        }
        let Range { start, end } = self.captured;
        Self { captured: start..end.min(start + length), length, ..self }
    }

    fn can_be_verified(&self) -> bool {
        !self.is_unclear && self.captured.len() == self.length
    }
}

impl Kept<'_> {
    /// Computes the checksums of the packet whose headers begin `at` an offset, the innermost first.
    fn packet(&mut self, at: usize, headers: &Headers<'_>, depth: u8) {
        let (Some(ip), Some(network)) = (headers.ip, headers.network_at) else {
            return;
        };
        let network = at + network;
        let end = match headers.transport_at {
            Some(transport) => at + transport,
            None => at + headers.payload_at,
        };
        if ip.src.is_ipv4() {
            self.ipv4_header(network);
        }
        self.authentication(network, end);
        let Some(ends) = headers.transport_at.and(Ends::of(self.before, network, end)) else {
            return;
        };
        let payload_end = at + headers.payload_at + headers.payload.len();
        let length = at + headers.payload_at + headers.payload_len - end;
        let message = Covered { captured: end..payload_end, length, is_unclear: ip.fragment };
        self.inside(at, headers, &message, depth);
        let pseudo = |length: usize| Some((&ends, ip.protocol, length));
        match ip.protocol {
            TCP => self.internet(16, &message, pseudo(length), false),
            UDP => {
                // A length of zero marks a large segment that the card has yet to split.
                let covered = match self.half(end + 4) {
                    0 => message,
                    claimed => message.first(claimed),
                };
                let length = covered.length;
                self.internet(6, &covered, pseudo(length), true);
            }
            UDP_LITE => {
                let covered = match self.half(end + 4) {
                    0 => message,
                    coverage => message.first(coverage),
                };
                self.internet(6, &covered, pseudo(length), false);
            }
            DCCP => {
                let header = usize::from(self.byte(end + 4)) * 4;
                let covered = match usize::from(self.byte(end + 5) & 0xf) {
                    0 => message,
                    words => message.first(header + (words - 1) * 4),
                };
                self.internet(6, &covered, pseudo(length), false);
            }
            ICMPV6 => self.internet(2, &message, pseudo(length), false),
            ICMP | IGMP => self.internet(2, &message, None, false),
            GRE if self.byte(end) & 0x80 != 0 => self.internet(4, &message, None, false),
            SCTP => self.sctp(&message),
            _ => {}
        }
    }

    /// Computes the checksums of the packet inside a tunnel or an error message, and clears signatures in options of
    /// TCP.
    fn inside(&mut self, at: usize, headers: &Headers<'_>, message: &Covered, depth: u8) {
        if let Some((inner_at, inner)) = headers.inner_at(depth) {
            return self.packet(at + inner_at, &inner, depth + 1);
        }
        let start = message.captured.start;
        if headers.ip.is_some_and(|ip| ip.protocol == TCP) {
            let header = usize::from(self.byte(start + 12) >> 4) * 4;
            return self.tcp_options(start + TCP_FIXED..(start + header).min(message.captured.end));
        }
        let before = self.before;
        if depth < MAX_DEPTH
            && let Some(quoted_at) = headers.quoted_at()
            && let Some(bytes) = before.get(at + quoted_at..message.captured.end)
        {
            let quoted = walk(block::LINKTYPE_RAW, bytes);
            self.packet(at + quoted_at, &quoted, depth + 1);
        }
    }

    fn ipv4_header(&mut self, network: usize) {
        let length = usize::from(self.byte(network) & 0xf) * 4;
        let end = self.before.len().min(network + length);
        let header = Covered { captured: network..end, length, is_unclear: false };
        if length >= IPV4_FIXED {
            self.internet(10, &header, None, false);
        }
    }

    /// Clears the signatures of authentication headers between the IP header and the transport header.
    fn authentication(&mut self, network: usize, end: usize) {
        let places = match self.byte(network) >> 4 {
            4 if self.byte(network + 9) == AUTHENTICATION => {
                vec![(AUTHENTICATION, network + usize::from(self.byte(network) & 0xf) * 4..end)]
            }
            6 => extensions_v6(self.before, network, end),
            _ => Vec::new(),
        };
        for (kind, place) in places {
            if kind == AUTHENTICATION {
                self.clear(place.start + AH_FIXED..place.end);
            }
        }
    }

    fn tcp_options(&mut self, range: Range<usize>) {
        for (kind, place) in options_v4(self.after, range).0 {
            let subtype = self.after.get(place.start + 2).map(|byte| byte >> 4);
            let flags = self.after.get(place.start + 3).copied().unwrap_or_default();
            let sum = match (kind, subtype) {
                (TCP_CHECKSUM | TCP_MD5, _) => place.start + 2,
                (TCP_AUTHENTICATION, _) => place.start + 4,
                (TCP_MULTIPATH, Some(MULTIPATH_CAPABLE)) if place.len() == 24 => place.end - 2,
                (TCP_MULTIPATH, Some(MULTIPATH_DATA)) if place.len() == data_sequence_len(flags) + 2 => place.end - 2,
                _ => continue,
            };
            self.clear(sum..place.end);
        }
    }

    /// Computes an Internet checksum at an offset from the start of the covered part. `pseudo` holds the addresses, the
    /// protocol and the length of the pseudo-header. If `zero_is_none`, a stored zero means that there is no checksum.
    fn internet(&mut self, offset: usize, covered: &Covered, pseudo: Option<(&Ends, u8, usize)>, zero_is_none: bool) {
        let at = covered.captured.start + offset;
        let Some(stored) = half(self.before, at) else {
            return self.clear(at..at + 2);
        };
        if zero_is_none && stored == 0 {
            return self.clear(at..at + 2);
        }
        let sum = |bytes: &[u8]| {
            let part = |range: &Range<usize>| bytes.get(range.start..range.end.min(bytes.len())).unwrap_or_default();
            let sum = match pseudo {
                Some((ends, protocol, length)) => {
                    let sum = Sum::default().add(part(&ends.source)).add(part(&ends.destination));
                    sum.add_u32(u32::from(protocol)).add_u32(length as u32)
                }
                None => Sum::default(),
            };
            sum.add(part(&covered.captured))
        };
        let is_wrong = covered.can_be_verified() && sum(self.before).finish() != 0;
        self.clear(at..at + 2);
        let [mut high, mut low] = sum(self.after).finish().to_be_bytes();
        if is_wrong {
            high ^= WRONG;
        }
        if zero_is_none && [high, low] == [0, 0] {
            [high, low] = [0xff, 0xff];
        }
        self.put(at, &[high, low]);
    }

    fn sctp(&mut self, message: &Covered) {
        const AT: usize = 8;
        let Range { start, end } = message.captured;
        let at = start + AT;
        let stored = self.before.get(at..).and_then(|rest| rest.first_chunk());
        let stored = u32::from_le_bytes(stored.copied().unwrap_or_default());
        if stored == 0 {
            return self.clear(at..at + 4);
        }
        let sum = |bytes: &[u8]| {
            let rest = bytes.get(at + 4..end.min(bytes.len())).unwrap_or_default();
            let header = bytes.get(start..at).unwrap_or_default();
            let missing = message.length.saturating_sub(AT + 4 + rest.len());
            let zeroes = std::iter::repeat_n(&0, missing);
            crc32c(header.iter().chain(&[0; 4]).chain(rest).chain(zeroes))
        };
        let is_wrong = message.can_be_verified() && sum(self.before) != stored;
        let mut new = sum(self.after).to_le_bytes();
        if is_wrong {
            new[0] ^= WRONG;
        }
        self.put(at, &new);
    }

    fn byte(&self, at: usize) -> u8 {
        self.before.get(at).copied().unwrap_or_default()
    }

    fn half(&self, at: usize) -> usize {
        half(self.before, at).map_or(0, usize::from)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let room = self.after.get_mut(at..).unwrap_or_default();
        room.iter_mut().zip(bytes).for_each(|(room, byte)| *room = *byte);
    }

    fn clear(&mut self, range: Range<usize>) {
        let end = range.end.min(self.after.len());
        self.after.get_mut(range.start..end).unwrap_or_default().fill(0);
    }
}

/// Returns the length of a multipath option with data sequence numbers, without the checksum after them.
fn data_sequence_len(flags: u8) -> usize {
    let acknowledgment = match flags & 3 {
        1 => 4,
        3 => 8,
        _ => 0,
    };
    let mapping = match flags >> 2 & 3 {
        1 => 4 + 6,
        3 => 8 + 6,
        _ => return usize::MAX - 2,
    };
    4 + acknowledgment + mapping
}

#[cfg(test)]
mod tests;
