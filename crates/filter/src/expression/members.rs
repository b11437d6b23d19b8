//! Operands that lists consist of: an address, a network or a port, and the qualifiers before it.

use std::net::{Ipv4Addr, Ipv6Addr};
use trawl_packet::net::parse_mac;

/// A condition of an operand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Member(Family),
    /// Text common to all operands of the list.
    Same(String),
}

/// A list in an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct List {
    pub(super) parts: Vec<Part>,
    pub(super) rows: Vec<Vec<Span>>,
}

/// Kind of a list's members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum MemberKind {
    Ipv4,
    Ipv6,
    Port,
    /// An Ethernet address, with its last four bytes first, in libpcap's order of comparison.
    Mac,
}

/// A leaf's qualifiers, and the kind of its number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Family {
    pub(super) qualifiers: String,
    pub(super) kind: MemberKind,
}

/// A range of members, both ends included.
pub(super) type Span = (u128, u128);

/// The 32-bit words of a number, in libpcap's order of comparison.
type Words = Vec<u32>;

impl MemberKind {
    fn shifts(self) -> &'static [u32] {
        match self {
            MemberKind::Ipv4 | MemberKind::Port => &[0],
            MemberKind::Ipv6 => &[96, 64, 32, 0],
            MemberKind::Mac => &[32, 0],
        }
    }

    pub(super) fn words(self) -> usize {
        self.shifts().len()
    }

    /// Returns the ranges of a span's words. A span is a single number or a prefix, or has one word.
    pub(super) fn ranges(self, (from, to): Span) -> impl Iterator<Item = (u32, u32)> {
        let shifts = self.shifts().iter();
        shifts.map(move |shift| ((from >> shift) as u32, (to >> shift) as u32))
    }

    /// Returns a representative member in libpcap's syntax, and its words. Each position in an operand has two such
    /// members, which no other position has.
    pub(super) fn stand_in(self, index: usize, second: bool) -> (String, Words) {
        let own = 2 * index as u32 + u32::from(second);
        match self {
            MemberKind::Ipv4 => {
                let word = 0x0908_0706 + (own << 16);
                (format!("host {}", Ipv4Addr::from(word)), vec![word])
            }
            MemberKind::Ipv6 => {
                let words = [0x2a01_0203, 0x0405_0607, 0x0809_1011, 0x1213_1415].map(|word: u32| word + (own << 16));
                let bits = words.iter().fold(0u128, |bits, &w| bits << 32 | u128::from(w));
                (format!("host {}", Ipv6Addr::from(bits)), words.to_vec())
            }
            MemberKind::Mac => {
                let low = 0x2c2d_2e2f + (own << 16);
                let [c, d, e, f] = low.to_be_bytes();
                let b = 0x20 + own;
                (format!("host 2a:{b:x}:{c:x}:{d:x}:{e:x}:{f:x}"), vec![low, 0x2a00 | b])
            }
            MemberKind::Port => {
                let port = 21001 + own;
                (format!("port {port}"), vec![port])
            }
        }
    }
}

impl Family {
    /// Returns true if neither source nor destination is given: a member matches as either.
    pub(super) fn has_sides(&self) -> bool {
        let mut words = self.qualifiers.split_whitespace();
        !words.any(|word| word == "src" || word == "dst")
    }

    pub(super) fn of_side(&self, side: &str) -> Self {
        Family { qualifiers: format!("{} {side}", self.qualifiers), kind: self.kind }
    }
}

/// Parses a leaf as a member of a list, if possible.
pub(super) fn member(leaf: &str) -> Option<(Family, Span)> {
    let mut words: Vec<&str> = leaf.split_whitespace().collect();
    let number = words.pop()?;
    let keyword = words.pop()?;
    let is_ethernet = words.contains(&"ether");
    let (kind, span) = match keyword {
        "host" | "src" | "dst" if is_ethernet => {
            if keyword != "host" {
                words.push(keyword);
            }
            let address = mac(number)?;
            (MemberKind::Mac, (address, address))
        }
        "host" | "net" => address(number, keyword == "net")?,
        "src" | "dst" => {
            words.push(keyword);
            address(number, false)?
        }
        "port" => (MemberKind::Port, port(number).map(|port| (port, port))?),
        "portrange" => {
            let (from, to) = number.split_once('-')?;
            (MemberKind::Port, (port(from)?, port(to)?))
        }
        _ => return None,
    };
    // With `and`, one member has to be on both sides, which a list cannot express. `or` equals no side.
    if words.iter().any(|word| ["and", "&&"].contains(word)) {
        return None;
    }
    if words.iter().any(|word| ["or", "||"].contains(word)) {
        words.retain(|word| !["src", "dst", "or", "||"].contains(word));
    }
    let qualifiers = words.join(" ");
    (span.0 <= span.1).then_some((Family { qualifiers, kind }, span))
}

/// Parses an address or a network. Values that libpcap refuses are left to libpcap.
fn address(text: &str, is_net: bool) -> Option<(MemberKind, Span)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) if is_net => (address, Some(length.parse::<u32>().ok()?)),
        None => (text, None),
        _ => return None,
    };
    let (kind, value, bits) = match address.parse::<Ipv4Addr>() {
        Ok(address) => (MemberKind::Ipv4, u128::from(u32::from(address)), 32),
        Err(_) => {
            let address: Ipv6Addr = address.parse().ok()?;
            (MemberKind::Ipv6, u128::from(address), 128)
        }
    };
    // A network without a length has its class's length, or is useless for IPv6.
    let length = match length {
        Some(length) => length,
        None if is_net => return None,
        None => bits,
    };
    let host = 1u128.checked_shl(bits.checked_sub(length)?).map_or(u128::MAX, |size| size - 1);
    (value & host == 0).then_some((kind, (value, value | host)))
}

/// Parses six bytes in libpcap's usual notation, with the last four before the others.
fn mac(text: &str) -> Option<u128> {
    let [a, b, c, d, e, f] = parse_mac(text)?;
    let [low, high] = [u32::from_be_bytes([c, d, e, f]), u32::from_be_bytes([0, 0, a, b])];
    Some(u128::from(low) << 32 | u128::from(high))
}

fn port(text: &str) -> Option<u128> {
    let is_plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    let port: u16 = text.parse().ok().filter(|_| is_plain)?;
    Some(port.into())
}
