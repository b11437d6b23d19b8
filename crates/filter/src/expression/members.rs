//! What the operands say that lists are made of: an address, a network or a port, and the words before it.

use std::net::{Ipv4Addr, Ipv6Addr};

/// What a list's members are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Ipv4,
    Ipv6,
    Port,
    /// An Ethernet address, with its last four bytes first: so libpcap asks for them.
    Mac,
}

/// A leaf's words before its number, and what the number is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Family {
    pub(super) qualifiers: String,
    pub(super) kind: Kind,
}

/// Members from a first one to a last one.
pub(super) type Span = (u128, u128);

/// The words of a number of a kind, in the order in which libpcap asks for them.
type Words = Vec<u32>;

impl Kind {
    fn shifts(self) -> &'static [u32] {
        match self {
            Kind::Ipv4 | Kind::Port => &[0],
            Kind::Ipv6 => &[96, 64, 32, 0],
            Kind::Mac => &[32, 0],
        }
    }

    pub(super) fn words(self) -> usize {
        self.shifts().len()
    }

    /// A span's words, each from a first one to a last one. A span is one number, a prefix, or has one word.
    pub(super) fn ranges(self, (from, to): Span) -> impl Iterator<Item = (u32, u32)> {
        let shifts = self.shifts().iter();
        shifts.map(move |shift| ((from >> shift) as u32, (to >> shift) as u32))
    }

    /// A member that stands for all, in libpcap's words, and its words. Each place in an operand has two of its own.
    pub(super) fn stand_in(self, place: usize, second: bool) -> (String, Words) {
        let own = 2 * place as u32 + u32::from(second);
        match self {
            Kind::Ipv4 => {
                let word = 0x0908_0706 + (own << 16);
                (format!("host {}", Ipv4Addr::from(word)), vec![word])
            }
            Kind::Ipv6 => {
                let words = [0x2a01_0203, 0x0405_0607, 0x0809_1011, 0x1213_1415]
                    .map(|word: u32| word + (own << 16));
                let bits = words
                    .iter()
                    .fold(0u128, |bits, &w| bits << 32 | u128::from(w));
                (format!("host {}", Ipv6Addr::from(bits)), words.to_vec())
            }
            Kind::Mac => {
                let low = 0x2c2d_2e2f + (own << 16);
                let [c, d, e, f] = low.to_be_bytes();
                let b = 0x20 + own;
                (
                    format!("host 2a:{b:x}:{c:x}:{d:x}:{e:x}:{f:x}"),
                    vec![low, 0x2a00 | b],
                )
            }
            Kind::Port => {
                let port = 21001 + own;
                (format!("port {port}"), vec![port])
            }
        }
    }
}

impl Family {
    /// Neither source nor destination: a member matches as either.
    pub(super) fn has_sides(&self) -> bool {
        let mut words = self.qualifiers.split_whitespace();
        !words.any(|word| word == "src" || word == "dst")
    }

    pub(super) fn of_side(&self, side: &str) -> Self {
        Family {
            qualifiers: format!("{} {side}", self.qualifiers),
            kind: self.kind,
        }
    }
}

/// What a leaf says, if it is one that lists are made of.
pub(super) fn member(leaf: &str) -> Option<(Family, Span)> {
    let mut words: Vec<&str> = leaf.split_whitespace().collect();
    let number = words.pop()?;
    let what = words.pop()?;
    let is_ethernet = words.contains(&"ether");
    let (kind, span) = match what {
        "host" | "src" | "dst" if is_ethernet => {
            if what != "host" {
                words.push(what);
            }
            let address = mac(number)?;
            (Kind::Mac, (address, address))
        }
        "host" | "net" => address(number, what == "net")?,
        "src" | "dst" => {
            words.push(what);
            address(number, false)?
        }
        "port" => (Kind::Port, port(number).map(|port| (port, port))?),
        "portrange" => {
            let (from, to) = number.split_once('-')?;
            (Kind::Port, (port(from)?, port(to)?))
        }
        _ => return None,
    };
    // One member has to be on both sides; that each side has some member says less. `or` is what no side says.
    if words.iter().any(|word| ["and", "&&"].contains(word)) {
        return None;
    }
    if words.iter().any(|word| ["or", "||"].contains(word)) {
        words.retain(|word| !["src", "dst", "or", "||"].contains(word));
    }
    let qualifiers = words.join(" ");
    (span.0 <= span.1).then_some((Family { qualifiers, kind }, span))
}

/// An address or a network. What libpcap refuses is left for it to refuse.
fn address(text: &str, is_net: bool) -> Option<(Kind, Span)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) if is_net => (address, Some(length.parse::<u32>().ok()?)),
        None => (text, None),
        _ => return None,
    };
    let (kind, value, bits) = match address.parse::<Ipv4Addr>() {
        Ok(address) => (Kind::Ipv4, u128::from(u32::from(address)), 32),
        Err(_) => {
            let address: Ipv6Addr = address.parse().ok()?;
            (Kind::Ipv6, u128::from(address), 128)
        }
    };
    // A network without a length is that of its class, or of no use for IPv6.
    let length = match length {
        Some(length) => length,
        None if is_net => return None,
        None => bits,
    };
    let host = 1u128
        .checked_shl(bits.checked_sub(length)?)
        .map_or(u128::MAX, |size| size - 1);
    (value & host == 0).then_some((kind, (value, value | host)))
}

/// Six bytes in libpcap's usual way of writing them, with the last four before the others.
fn mac(text: &str) -> Option<u128> {
    let mut bytes = [0u8; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| (1..=2).contains(&part.len()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    let [a, b, c, d, e, f] = bytes;
    let [low, high] = [
        u32::from_be_bytes([c, d, e, f]),
        u32::from_be_bytes([0, 0, a, b]),
    ];
    parts
        .next()
        .is_none()
        .then_some(u128::from(low) << 32 | u128::from(high))
}

fn port(text: &str) -> Option<u128> {
    let is_plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    let port: u16 = text.parse().ok().filter(|_| is_plain)?;
    Some(port.into())
}
