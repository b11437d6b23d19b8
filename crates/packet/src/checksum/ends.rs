//! Positions of the addresses that a transport checksum covers. They may be in IP options or extension headers instead
//! of the fixed header.

use std::ops::Range;

use crate::net::protocol::{AUTHENTICATION, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING};

const V4_FIXED: usize = 20;
const V6_FIXED: usize = 40;
const V4_END: u8 = 0;
const V4_NO_OPERATION: u8 = 1;
/// Loose and strict source routes.
pub(crate) const SOURCE_ROUTES: [u8; 2] = [131, 137];
const V6_PAD_1: u8 = 0;
pub(crate) const HOME_ADDRESS: u8 = 201;
/// Routing headers that contain whole addresses: source route, mobile host, segments.
const SOURCE_ROUTE: u8 = 0;
const MOBILE: u8 = 2;
const SEGMENTS: u8 = 4;

/// Positions of the addresses in a pseudo-header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    pub source: Range<usize>,
    pub destination: Range<usize>,
}

impl Ends {
    /// Returns the positions in the IP header at `network`, whose options or extension headers end at `end`.
    pub fn of(bytes: &[u8], network: usize, end: usize) -> Option<Self> {
        match bytes.get(network)? >> 4 {
            4 => Some(ends_v4(bytes, network, end)),
            6 => Some(ends_v6(bytes, network, end)),
            _ => None,
        }
    }
}

fn ends_v4(bytes: &[u8], network: usize, end: usize) -> Ends {
    let mut ends = Ends { source: network + 12..network + 16, destination: network + 16..network + 20 };
    let options = network + V4_FIXED..end;
    for (kind, place) in options_v4(bytes, options).0 {
        let pointer = bytes.get(place.start + 2).copied().map(usize::from);
        let addresses = place.len().saturating_sub(3) / 4;
        // The packet has not reached the last address of its route.
        if SOURCE_ROUTES.contains(&kind) && addresses > 0 && pointer.is_some_and(|at| at <= place.len()) {
            let last = place.start + 3 + (addresses - 1) * 4;
            ends.destination = last..last + 4;
        }
    }
    ends
}

/// Returns the options of IPv4 or TCP in a range by kind and position, without padding, and the end of the last one.
pub(crate) fn options_v4(bytes: &[u8], range: Range<usize>) -> (Vec<(u8, Range<usize>)>, usize) {
    let mut found = Vec::new();
    let mut at = range.start;
    let end = range.end.min(bytes.len());
    while at < end {
        let kind = bytes[at];
        if kind == V4_NO_OPERATION {
            at += 1;
            continue;
        }
        let length = bytes.get(at + 1).copied().map_or(0, usize::from);
        if kind == V4_END || length < 2 || at + length > end {
            break;
        }
        found.push((kind, at..at + length));
        at += length;
    }
    (found, at)
}

fn ends_v6(bytes: &[u8], network: usize, end: usize) -> Ends {
    let mut ends = Ends { source: network + 8..network + 24, destination: network + 24..network + 40 };
    for (kind, place) in extensions_v6(bytes, network, end) {
        match kind {
            DESTINATION_OPTIONS => {
                let options = options_v6(bytes, place.start + 2..place.end);
                for (_, value) in options.into_iter().filter(|(kind, value)| *kind == HOME_ADDRESS && value.len() == 16)
                {
                    ends.source = value;
                }
            }
            ROUTING if bytes[place.start + 3] > 0 => {
                // Segments are in reverse order.
                let addresses = routed_v6(bytes, &place);
                let last = match bytes[place.start + 2] {
                    SEGMENTS => addresses.into_iter().next(),
                    _ => addresses.into_iter().next_back(),
                };
                ends.destination = last.unwrap_or(ends.destination);
            }
            _ => {}
        }
    }
    ends
}

/// Returns the extension headers of the IPv6 header at `network` by kind and position, up to `end`.
pub(crate) fn extensions_v6(bytes: &[u8], network: usize, end: usize) -> Vec<(u8, Range<usize>)> {
    let mut found = Vec::new();
    let mut kind = bytes.get(network + 6).copied().unwrap_or_default();
    let mut at = network + V6_FIXED;
    let end = end.min(bytes.len());
    while at + 8 <= end {
        let units = usize::from(bytes[at + 1]);
        let length = match kind {
            FRAGMENT => 8,
            AUTHENTICATION => (units + 2) * 4,
            HOP_BY_HOP | DESTINATION_OPTIONS | ROUTING => (units + 1) * 8,
            _ => break,
        };
        let place = at..(at + length).min(end);
        at = place.end;
        found.push((kind, place.clone()));
        kind = bytes[place.start];
    }
    found
}

/// Returns the options in a range of an IPv6 extension header: kinds and positions of their values, without padding of
/// one byte.
pub(crate) fn options_v6(bytes: &[u8], range: Range<usize>) -> Vec<(u8, Range<usize>)> {
    let mut found = Vec::new();
    let mut at = range.start;
    while at + 2 <= range.end {
        if bytes[at] == V6_PAD_1 {
            at += 1;
            continue;
        }
        let value = at + 2..(at + 2 + usize::from(bytes[at + 1])).min(range.end);
        found.push((bytes[at], value.clone()));
        at = value.end;
    }
    found
}

/// Returns the positions of the addresses in a routing header.
pub(crate) fn routed_v6(bytes: &[u8], header: &Range<usize>) -> Vec<Range<usize>> {
    let first = header.start + 8;
    let whole = header.end.saturating_sub(first) / 16;
    let count = match bytes[header.start + 2] {
        SOURCE_ROUTE | MOBILE => whole,
        SEGMENTS => whole.min(usize::from(bytes[header.start + 4]) + 1),
        _ => 0,
    };
    (first..).step_by(16).take(count).map(|at| at..at + 16).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_route_ends_at_its_last_address_until_it_is_reached() {
        let header = |pointer: u8| {
            let mut header = [0; 32];
            header[0] = 0x48;
            header[20..23].copy_from_slice(&[131, 11, pointer]);
            Ends::of(&header, 0, 32).expect("IPv4").destination
        };
        assert_eq!(header(4), 27..31);
        assert_eq!(header(12), 16..20);
    }

    #[test]
    fn home_address_is_the_source() {
        let mut packet = [0; 64];
        packet[0] = 0x60;
        packet[6] = DESTINATION_OPTIONS;
        packet[40..44].copy_from_slice(&[17, 2, 1, 2]);
        packet[46..48].copy_from_slice(&[HOME_ADDRESS, 16]);
        let ends = Ends::of(&packet, 0, packet.len()).expect("IPv6");
        assert_eq!((ends.source, ends.destination), (48..64, 24..40));
    }
}
