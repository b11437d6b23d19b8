//! Text forms of rule values: MAC addresses, protocols and types of ICMP, rates and times.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use trawl_packet::net::prefix::Prefix;
use trawl_packet::net::protocol::{DCCP, ICMP, ICMPV6, SCTP, TCP, UDP, UDP_LITE};
use trawl_packet::net::{mac_text, parse_mac};

const MAC_BITS: u8 = 48;

/// A MAC address of which the first `length` bits count; the others are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacPrefix {
    address: u64,
    length: u8,
}

/// Returns an address as a number, its first byte being the highest.
pub fn mac_number(bytes: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = bytes;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Returns the mask of the first `length` bits; the bits above the address are set too.
fn mac_mask(length: u8) -> u64 {
    u64::MAX << (MAC_BITS - length)
}

impl MacPrefix {
    /// Creates a prefix; `None` if no address has that length. Bits after the length are dropped.
    pub fn new(address: u64, length: u8) -> Option<Self> {
        let fits = (1..=MAC_BITS).contains(&length) && address >> MAC_BITS == 0;
        fits.then(|| Self { address: address & mac_mask(length), length })
    }

    pub fn address(self) -> u64 {
        self.address
    }

    pub fn length(self) -> u8 {
        self.length
    }

    pub fn mask(self) -> u64 {
        mac_mask(self.length)
    }

    pub fn contains(self, address: [u8; 6]) -> bool {
        (mac_number(address) ^ self.address) & self.mask() == 0
    }

    /// Encodes the address for the program's line: an empty mask stands for no address.
    pub(crate) fn fields(of: Option<Self>) -> (u64, u64) {
        of.map_or((0, 0), |mac| (mac.address, mac.mask()))
    }

    pub(crate) fn from_fields((address, mask): (u64, u64)) -> Option<Self> {
        let above = u64::BITS - u32::from(MAC_BITS);
        Self::new(address, mask.count_ones().checked_sub(above)? as u8)
    }
}

impl FromStr for MacPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is not a MAC address; write for example 02:00:5e:00:53:01, or 02:00:5e:00:00:00/24 for all \
                 that begin with these bytes"
            )
        };
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let (address, length) = match text.split_once('/') {
            None => (text, MAC_BITS),
            Some((address, length)) => {
                let length = Some(length).filter(|text| is_digits(text));
                (address, length.and_then(|text| text.parse().ok()).ok_or_else(wrong)?)
            }
        };
        let address = mac_number(parse_mac(address).ok_or_else(wrong)?);
        let mac = Self::new(address, length).ok_or_else(wrong)?;
        // Bits after the length are more likely a mistake than intended.
        if mac.address == address {
            Ok(mac)
        } else {
            Err(format!("'{text}' has bits after its length; did you mean {mac}?"))
        }
    }
}

impl fmt::Display for MacPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, _, a, b, c, d, e, g] = self.address.to_be_bytes();
        f.write_str(&mac_text([a, b, c, d, e, g]))?;
        match self.length {
            MAC_BITS => Ok(()),
            length => write!(f, "/{length}"),
        }
    }
}

/// The protocols that have ports.
pub const WITH_PORTS: [u8; 5] = [TCP, UDP, DCCP, SCTP, UDP_LITE];

const PROTOCOLS: [(&str, u8); 21] = [
    ("icmp", ICMP),
    ("igmp", 2),
    ("ipip", 4),
    ("tcp", TCP),
    ("egp", 8),
    ("udp", UDP),
    ("dccp", 33),
    ("ipv6", 41),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", ICMPV6),
    ("ipv6-icmp", ICMPV6),
    ("icmp6", ICMPV6),
    ("eigrp", 88),
    ("ospf", 89),
    ("pim", 103),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", 132),
    ("udplite", 136),
];

/// Parses a protocol's name or number.
pub fn protocol(text: &str) -> Result<u8, String> {
    let lower = text.to_ascii_lowercase();
    let named = PROTOCOLS.iter().find(|(name, _)| *name == lower);
    match (named, lower.parse::<u8>()) {
        (Some((_, number)), _) => Ok(*number),
        (None, Ok(number)) => Ok(number),
        _ => Err(format!(
            "'{text}' is not a protocol; write a number up to 255, or one of {}",
            PROTOCOLS.map(|(name, _)| name).join(", ")
        )),
    }
}

/// Returns the name of a protocol.
pub fn protocol_name(number: u8) -> String {
    let named = PROTOCOLS.iter().find(|(_, known)| *known == number);
    named.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

/// Names with the type in ICMP and in ICMPv6.
const ICMP_TYPES: [(&str, Option<u8>, Option<u8>); 25] = [
    ("echo-reply", Some(0), Some(129)),
    ("destination-unreachable", Some(3), Some(1)),
    ("source-quench", Some(4), None),
    ("redirect", Some(5), Some(137)),
    ("echo-request", Some(8), Some(128)),
    ("router-advertisement", Some(9), Some(134)),
    ("router-solicitation", Some(10), Some(133)),
    ("time-exceeded", Some(11), Some(3)),
    ("parameter-problem", Some(12), Some(4)),
    ("timestamp-request", Some(13), None),
    ("timestamp-reply", Some(14), None),
    ("address-mask-request", Some(17), None),
    ("address-mask-reply", Some(18), None),
    ("packet-too-big", None, Some(2)),
    ("mld-listener-query", None, Some(130)),
    ("mld-listener-report", None, Some(131)),
    ("mld-listener-done", None, Some(132)),
    ("mld2-listener-report", None, Some(143)),
    ("neighbour-solicitation", None, Some(135)),
    ("neighbour-advertisement", None, Some(136)),
    // Other spellings.
    ("ping", Some(8), Some(128)),
    ("pong", Some(0), Some(129)),
    ("unreachable", Some(3), Some(1)),
    ("neighbor-solicitation", None, Some(135)),
    ("neighbor-advertisement", None, Some(136)),
];

/// Returns the names of ICMP types.
pub fn icmp_types() -> impl Iterator<Item = &'static str> {
    ICMP_TYPES.into_iter().map(|(name, ..)| name)
}

/// Returns the type in ICMP and in ICMPv6 for a name or a number.
pub fn icmp_type(text: &str) -> Result<(Option<u8>, Option<u8>), String> {
    let lower = text.to_ascii_lowercase();
    if let Ok(number) = lower.parse() {
        return Ok((Some(number), Some(number)));
    }
    let named = ICMP_TYPES.iter().find(|(name, ..)| *name == lower);
    named.map(|(_, v4, v6)| (*v4, *v6)).ok_or_else(|| {
        format!(
            "'{text}' is not a type of ICMP; write a number up to 255, or one of {}",
            ICMP_TYPES.map(|(name, ..)| name).join(", ")
        )
    })
}

/// Returns a name for the result of [`icmp_type`], from which it parses to the same types if possible.
pub fn icmp_type_name(v4: Option<u8>, v6: Option<u8>) -> String {
    if let (Some(one), Some(other)) = (v4, v6)
        && one == other
    {
        return one.to_string();
    }
    let exact = ICMP_TYPES.iter().find(|(_, a, b)| (*a, *b) == (v4, v6));
    let named = exact.or_else(|| {
        let fits = |(_, a, b): &&(_, _, _)| (v4.is_none() || *a == v4) && (v6.is_none() || *b == v6);
        ICMP_TYPES.iter().find(fits)
    });
    match (named, v4.or(v6)) {
        (Some((name, ..)), _) => (*name).to_owned(),
        (None, Some(number)) => number.to_string(),
        (None, None) => String::new(),
    }
}

/// Highest rate that the program can enforce.
const FASTEST: u64 = 100_000_000;
/// A hundred years.
const LONGEST: u64 = 100 * 365 * 86_400;

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    (text[..end].trim(), text[end..].trim())
}

/// Parses packets per second: a number, with k or M for thousands and millions.
pub fn rate(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor = match unit.trim_end_matches("pps") {
        "" => 1,
        "k" | "K" => 1_000,
        "m" | "M" => 1_000_000,
        _ => return Err(format!("'{unit}' is not a unit of rate; use k or M")),
    };
    let number: u64 = number.parse().map_err(|_| format!("'{text}' is not a rate; write for example 100 or 10k"))?;
    match number.checked_mul(factor) {
        Some(rate) if (1..=FASTEST).contains(&rate) => Ok(rate),
        _ => Err(format!("'{text}' is out of range: a rate is 1 to {FASTEST} packets a second")),
    }
}

/// Parses a rule's duration: a number with a unit, or several, as in 1h30m.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a time; write for example 10m or 1h30m");
    let mut sum = 0.0;
    let mut rest = text;
    loop {
        let (number, after) = split(rest);
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, others) = (after[..end].trim(), &after[end..]);
        let seconds = match unit {
            // A number without a unit is in seconds.
            "" if rest.len() == text.len() => 1.0,
            "" => return Err(wrong()),
            "s" | "sec" => 1.0,
            "ms" => 1e-3,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            "w" => 7.0 * 86_400.0,
            _ => {
                return Err(format!("'{unit}' is not a unit of time; use ms, s, m, h, d or w"));
            }
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        sum += number * seconds;
        if others.is_empty() {
            break;
        }
        rest = others;
    }
    if sum > LONGEST as f64 {
        return Err(format!("'{text}' is too long: a rule without a time has no end"));
    }
    match Duration::try_from_secs_f64(sum) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(format!("'{text}' is not a time above zero")),
    }
}

/// Formats a time for people, in two units at most.
pub fn short_duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{}s", time.as_secs_f64().ceil()),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, ..) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_their_first_bits() {
        for (text, shown) in [
            ("02:00:5e:00:53:01", "02:00:5e:00:53:01"),
            ("2-0-5E-0-53-1", "02:00:5e:00:53:01"),
            ("02:00:5e:00:00:00/24", "02:00:5e:00:00:00/24"),
            ("01:00:00:00:00:00/8", "01:00:00:00:00:00/8"),
        ] {
            let mac: MacPrefix = text.parse().unwrap();
            assert_eq!(mac.to_string(), shown);
            assert_eq!(MacPrefix::from_fields((mac.address, mac.mask())), Some(mac));
        }
        let vendor: MacPrefix = "02:00:5e:00:00:00/24".parse().unwrap();
        assert!(vendor.contains([2, 0, 0x5e, 9, 9, 9]));
        assert!(!vendor.contains([2, 0, 0x5f, 9, 9, 9]));
        assert_eq!(MacPrefix::from_fields((0, 0)), None);
    }

    #[test]
    fn invalid_mac_addresses_are_refused() {
        for text in [
            "",
            ":",
            "02:00:5e:00:53",
            "02:00:5e:00:53:01:02",
            "02:00:5e:00:53:001",
            "02:00:5e:00:53:g1",
            "02:00:5e:00:53:+1",
            "02:00:5e:00:53:01/",
            "02:00:5e:00:53:01/0",
            "02:00:5e:00:53:01/49",
            "02:00:5e:00:53:01/+8",
            "02:00:5e:00:53:01/24",
            "10.0.0.1",
            "02-00:5e:00:53:01",
        ] {
            assert!(text.parse::<MacPrefix>().is_err(), "{text}");
        }
    }

    #[test]
    fn protocols_by_name_and_number() {
        assert_eq!(protocol("TCP"), Ok(6));
        assert_eq!(protocol("132"), Ok(132));
        assert_eq!(protocol("ipv6-icmp"), Ok(58));
        assert!(protocol("256").is_err());
        assert!(protocol("tpc").is_err());
        assert_eq!((protocol_name(58), protocol_name(253)), ("icmpv6".to_owned(), "253".to_owned()));
    }

    #[test]
    fn icmp_types_by_name_and_number() {
        assert_eq!(icmp_type("echo-request"), Ok((Some(8), Some(128))));
        assert_eq!(icmp_type("13"), Ok((Some(13), Some(13))));
        assert_eq!(icmp_type("packet-too-big"), Ok((None, Some(2))));
        assert!(icmp_type("echo").is_err());
        for (name, v4, v6) in &ICMP_TYPES[..20] {
            assert_eq!(icmp_type_name(*v4, *v6), *name);
        }
        assert_eq!(icmp_type_name(Some(8), None), "echo-request");
        assert_eq!(icmp_type_name(Some(200), None), "200");
    }

    #[test]
    fn rates() {
        for (text, expected) in [("1", 1), ("10k", 10_000), ("2M", 2_000_000), ("500pps", 500), ("3 kpps", 3_000)] {
            assert_eq!(rate(text), Ok(expected), "{text}");
        }
        for text in ["", "0", "-1", "k", "1.5k", "1G", "101M", "99999999999999999999"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, expected) in [
            ("10m", 600.0),
            ("1.5h", 5_400.0),
            ("250ms", 0.25),
            ("90", 90.0),
            ("2d", 172_800.0),
            ("1w", 604_800.0),
            ("1h30m", 5_400.0),
            ("1d 12h", 129_600.0),
            ("59m59s", 3_599.0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(expected)), "{text}");
        }
        for text in [
            "",
            "0",
            "-1s",
            "s",
            "10 fortnights",
            "nan",
            "inf",
            "0.0000000001ms",
            "9999999999d",
            "1h30",
            "1h-30m",
            "h30m",
            "1hm",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
        for (seconds, text) in [(0.2, "1s"), (59.0, "59s"), (600.0, "10m0s"), (5_400.0, "1h30m"), (180_000.0, "2d2h")] {
            assert_eq!(short_duration(Duration::from_secs_f64(seconds)), text);
        }
    }
}
