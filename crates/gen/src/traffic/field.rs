//! Values of a field in text form: one value, a range, a prefix, a list, or random ones.
//!
//! `1000`, `1000-2000`, `1000-2000/10` (in steps of ten), `10.0.0.0/24`, `1,5,7`, and `random:` in front of a range or
//! a prefix. Ranges, prefixes and lists are used in order.

use std::net::{Ipv4Addr, Ipv6Addr};
pub use trawl_packet::net::mac;

use crate::pattern::Edit;

/// Kind of a field's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A number of up to that many bits.
    Number(u32),
    Dscp,
    Mac,
    V4,
    V6,
}

/// The values of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValues {
    Fixed(u128),
    /// `count` values from `first` on; 0 means more than 2^64.
    Step {
        first: u128,
        step: u128,
        count: u64,
    },
    /// Random ones of `count` values from `first` on.
    Random {
        first: u128,
        count: u128,
    },
    List(Vec<u128>),
}

impl FieldKind {
    pub fn bits(self) -> u32 {
        match self {
            Self::Number(bits) => bits,
            Self::Dscp => 6,
            Self::Mac => 48,
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// Parses one value.
    pub fn value(self, text: &str) -> Result<u128, String> {
        let text = text.trim();
        match self {
            Self::Number(bits) => {
                let number = match text.strip_prefix("0x") {
                    Some(digits) => u64::from_str_radix(digits, 16),
                    None => text.parse(),
                };
                let number = number.map_err(|_| format!("'{text}' is not a number"))?;
                let most = u64::MAX >> (64 - bits);
                if number > most {
                    return Err(format!("{number} is more than {most}"));
                }
                Ok(u128::from(number))
            }
            Self::Dscp => dscp(text),
            Self::Mac => mac(text).map(|mac| mac.iter().fold(0, |all, byte| all << 8 | u128::from(*byte))),
            Self::V4 => match text.parse::<Ipv4Addr>() {
                Ok(address) => Ok(u128::from(u32::from(address))),
                Err(_) => Err(format!("'{text}' is not an IPv4 address")),
            },
            Self::V6 => match text.parse::<Ipv6Addr>() {
                Ok(address) => Ok(u128::from(address)),
                Err(_) => Err(format!("'{text}' is not an IPv6 address")),
            },
        }
    }

    /// Parses the values of a field.
    pub fn values(self, text: &str) -> Result<FieldValues, String> {
        let (random, rest) = match text.trim().strip_prefix("random:") {
            Some(rest) => (true, rest.trim()),
            None => (false, text.trim()),
        };
        if text.trim() == "random" {
            return self.whole();
        }
        if rest.contains(',') {
            if random {
                return Err("a list is sent in order; 'random:' requires a range or a prefix".to_owned());
            }
            let values: Result<Vec<u128>, String> = rest.split(',').map(|one| self.value(one)).collect();
            return values.map(FieldValues::List);
        }
        if let Some((first, rest)) = rest.split_once('-') {
            return self.range(first, rest, random);
        }
        match rest.split_once('/') {
            Some((address, length)) if self.has_prefixes() => self.prefix(address, length, random),
            _ if random => Err(format!("'{rest}' is not a range")),
            _ => self.value(rest).map(FieldValues::Fixed),
        }
    }

    fn has_prefixes(self) -> bool {
        matches!(self, Self::V4 | Self::V6 | Self::Mac)
    }

    fn whole(self) -> Result<FieldValues, String> {
        match self {
            Self::V4 | Self::V6 => Err("random addresses require a prefix, for example random:10.0.0.0/8".to_owned()),
            // Random MAC addresses are unicast and locally administered.
            Self::Mac => Ok(FieldValues::Random { first: 0x0200_0000_0000, count: 1 << 40 }),
            _ => Ok(FieldValues::Random { first: 0, count: 1 << self.bits() }),
        }
    }

    fn range(self, first: &str, rest: &str, random: bool) -> Result<FieldValues, String> {
        let (last, step) = match rest.split_once('/') {
            Some((last, step)) => (last, FieldKind::Number(64).value(step)?),
            None => (rest, 1),
        };
        let (first, last) = (self.value(first)?, self.value(last)?);
        if last < first {
            return Err("the range ends before it begins".to_owned());
        }
        if step == 0 {
            return Err("a step of 0 is not allowed".to_owned());
        }
        let count = (last - first) / step + 1;
        if random {
            if step != 1 {
                return Err("random values have no step".to_owned());
            }
            if count > 1 << 32 && !count.is_power_of_two() {
                return Err("a range for random values has at most 2^32 of them; a prefix may have more".to_owned());
            }
            return Ok(FieldValues::Random { first, count });
        }
        Ok(FieldValues::Step {
            first,
            step,
            count: u64::try_from(count).map_err(|_| "the range is too long".to_owned())?,
        })
    }

    /// Returns all addresses of a prefix; for IPv4 without the network's own and the broadcast address.
    fn prefix(self, address: &str, length: &str, random: bool) -> Result<FieldValues, String> {
        let bits = self.bits();
        let length = match length.parse::<u32>() {
            Ok(length) if length <= bits => length,
            _ => {
                return Err(format!("'/{length}' is not a prefix length: the maximum is {bits}"));
            }
        };
        let address = self.value(address)?;
        let free = bits - length;
        if free == 0 {
            return Ok(FieldValues::Fixed(address));
        }
        let size = 1u128.checked_shl(free).unwrap_or(0);
        let network = address & !size.wrapping_sub(1);
        let (first, count) = match self {
            Self::V4 if free > 1 => (network + 1, size - 2),
            _ => (network, size),
        };
        Ok(if random {
            FieldValues::Random { first, count }
        } else {
            FieldValues::Step { first, step: 1, count: u64::try_from(count).unwrap_or(0) }
        })
    }
}

impl FieldValues {
    /// Returns the value in the first frame, from which the other frames are made.
    pub fn first(&self) -> u128 {
        match self {
            Self::Fixed(value) => *value,
            Self::Step { first, .. } | Self::Random { first, .. } => *first,
            Self::List(values) => values[0],
        }
    }

    /// Returns the number of values before they repeat; `None` for random ones.
    pub fn period(&self) -> Option<u64> {
        match self {
            Self::Fixed(_) => Some(1),
            Self::Step { count, .. } => Some(*count),
            Self::List(values) => Some(values.len() as u64),
            Self::Random { .. } => None,
        }
    }

    /// Returns the edit that varies a field of up to 64 bits, without its offset.
    pub fn edit(&self, seed: u64) -> Option<Edit> {
        Some(match self {
            Self::Fixed(_) => return None,
            Self::Step { first, step, count } => Edit::step(*first as u64, *step as u64, *count),
            Self::Random { first, count } => Edit::random(*first as u64, u64::try_from(*count).unwrap_or(0), seed),
            Self::List(values) => Edit::list(values.iter().map(|v| *v as u64).collect()),
        })
    }

    /// Returns the edits that vary an IPv6 address at this offset. Steps carry nothing into the upper half: 2^64
    /// addresses are more than any run counts.
    pub fn edits_v6(&self, offset: usize, seed: u64) -> Vec<Edit> {
        let high = match self {
            Self::Random { first, count } if *count == 0 || count >> 64 > 1 => {
                Some(Edit::random((first >> 64) as u64, (count >> 64) as u64, !seed))
            }
            Self::List(values) => Some(Edit::list(values.iter().map(|value| (value >> 64) as u64).collect())),
            _ => None,
        };
        let high = high.map(|edit| edit.at(offset, 8, 0, 64));
        let low = self.edit(seed).map(|edit| edit.at(offset + 8, 8, 0, 64));
        high.into_iter().chain(low).collect()
    }
}

/// Parses a number, or a name of RFC 2474, 2597, 3246, 5865 or 8622.
fn dscp(text: &str) -> Result<u128, String> {
    let lower = text.to_ascii_lowercase();
    let digit = |at: usize| lower.as_bytes().get(at).map(|b| u128::from(b.wrapping_sub(b'0')));
    match (lower.as_str(), digit(2), digit(3)) {
        ("ef", ..) => Ok(46),
        ("va", ..) => Ok(44),
        ("le", ..) => Ok(1),
        ("be" | "df", ..) => Ok(0),
        (name, Some(class @ 0..=7), None) if name.starts_with("cs") => Ok(class * 8),
        (name, Some(class @ 1..=4), Some(drop @ 1..=3)) if name.starts_with("af") && name.len() == 4 => {
            Ok(class * 8 + drop * 2)
        }
        _ => FieldKind::Number(6)
            .value(text)
            .map_err(|why| format!("{why}; a DSCP is a number up to 63 or a name such as ef, cs6, af41")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: FieldKind = FieldKind::Number(16);

    #[test]
    fn fields_are_parsed() {
        assert_eq!(PORT.values("53"), Ok(FieldValues::Fixed(53)));
        assert_eq!(PORT.values("0x35"), Ok(FieldValues::Fixed(53)));
        let step = |first, step, count| Ok(FieldValues::Step { first, step, count });
        assert_eq!(PORT.values("1000-1999"), step(1000, 1, 1000));
        assert_eq!(PORT.values("10-20/5"), step(10, 5, 3));
        assert_eq!(PORT.values("1,5,7"), Ok(FieldValues::List(vec![1, 5, 7])));
        let random = |first, count| Ok(FieldValues::Random { first, count });
        assert_eq!(PORT.values("random:1-6"), random(1, 6));
        assert_eq!(PORT.values("random"), random(0, 65536));
        assert_eq!(FieldKind::V4.values("10.0.0.0/24"), step(0x0a00_0001, 1, 254));
        assert_eq!(FieldKind::V4.values("10.0.0.7/32"), Ok(FieldValues::Fixed(0x0a00_0007)));
        assert_eq!(FieldKind::V4.values("random:10.0.0.0/8"), random(0x0a00_0001, (1 << 24) - 2));
        assert_eq!(FieldKind::V6.values("fd00::/64"), step(0xfd00 << 112, 1, 0));
        assert_eq!(FieldKind::Mac.values("02:00:00:00:00:00/40"), step(2 << 40, 1, 256));
        assert_eq!(FieldKind::Dscp.values("ef,cs6,af41,10"), Ok(FieldValues::List(vec![46, 48, 34, 10])));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "-1", "65536", "5-1", "1-5/0", "random:5", "random:1,2", "a", "1-", "1,,2"] {
            assert!(PORT.values(text).is_err(), "{text}");
        }
        for text in ["10.0.0.0/33", "10.0.0", "::1", "random:10.0.0.0-10.0.0.9/2", "random"] {
            assert!(FieldKind::V4.values(text).is_err(), "{text}");
        }
        for text in ["02:00:00:00:00", "02:00:00:00:00:00:00", "02:00:00:00:00:0g", "2:::::"] {
            assert!(FieldKind::Mac.values(text).is_err(), "{text}");
        }
        assert!(FieldKind::V6.values("random:fd00::-fd01::").is_err());
        assert!(FieldKind::Dscp.values("af44").is_err());
    }
}
