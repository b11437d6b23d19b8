//! Address prefixes, as networks are written: `192.0.2.0/24`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network: an address of which the first `length` bits count; the others are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// Creates a prefix; `None` if an address has fewer bits. Bits after the length are dropped.
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let address = match address {
            IpAddr::V4(v4) if length <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                Ipv4Addr::from_bits(v4.to_bits() & mask).into()
            }
            IpAddr::V6(v6) if length <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                Ipv6Addr::from_bits(v6.to_bits() & mask).into()
            }
            _ => return None,
        };
        Some(Self { address, length })
    }

    /// Returns the prefix of a single address.
    pub fn host(address: IpAddr) -> Self {
        let length = if address.is_ipv4() { 32 } else { 128 };
        Self { address, length }
    }

    /// Returns the network of exactly these addresses; `None` if it is none.
    pub fn between(first: IpAddr, last: IpAddr) -> Option<Self> {
        let length = match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => (first.to_bits() ^ last.to_bits()).leading_zeros(),
            (IpAddr::V6(first), IpAddr::V6(last)) => (first.to_bits() ^ last.to_bits()).leading_zeros(),
            _ => return None,
        };
        let prefix = Self::new(first, u8::try_from(length).ok()?)?;
        (prefix.address == first && prefix.last() == last).then_some(prefix)
    }

    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Returns the address whose bits after the length are set.
    pub fn last(self) -> IpAddr {
        let length = u32::from(self.length);
        match self.address {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() | u32::MAX.checked_shr(length).unwrap_or(0)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() | u128::MAX.checked_shr(length).unwrap_or(0)).into(),
        }
    }

    pub fn length(self) -> u8 {
        self.length
    }

    pub fn is_ipv6(self) -> bool {
        self.address.is_ipv6()
    }

    pub fn contains(self, address: IpAddr) -> bool {
        Self::new(address, self.length).is_some_and(|other| other == self)
    }

    /// Returns an address with this prefix and the rest of the given address; `None` if one is IPv4 and the other IPv6.
    pub fn substitute(self, address: IpAddr) -> Option<IpAddr> {
        let network = Self::new(address, self.length)?;
        match (self.address, address, network.address) {
            (IpAddr::V4(new), IpAddr::V4(old), IpAddr::V4(network)) => {
                Some(Ipv4Addr::from_bits(new.to_bits() | old.to_bits() ^ network.to_bits()).into())
            }
            (IpAddr::V6(new), IpAddr::V6(old), IpAddr::V6(network)) => {
                Some(Ipv6Addr::from_bits(new.to_bits() | old.to_bits() ^ network.to_bits()).into())
            }
            _ => None,
        }
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a prefix; write for example 192.0.2.0/24, 2001:db8::/32 or an address");
        let Some((address, length)) = text.split_once('/') else {
            return text.parse().map(Self::host).map_err(|_| wrong());
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        if !length.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(wrong());
        }
        let length = length.parse().map_err(|_| wrong())?;
        let prefix = Self::new(address, length).ok_or_else(wrong)?;
        // Bits after the length are more likely a slip than an intention.
        if prefix.address == address {
            Ok(prefix)
        } else {
            Err(format!("'{text}' has bits set after its length; did you mean {prefix} or {address}?"))
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::host(self.address) {
            self.address.fmt(f)
        } else {
            write!(f, "{}/{}", self.address, self.length)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read_and_written() {
        for text in ["192.0.2.0/24", "0.0.0.0/0", "192.0.2.1", "2001:db8::/32", "::/0", "2001:db8::1"] {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), text);
        }
        assert_eq!("10.0.0.1/32".parse::<Prefix>().unwrap().to_string(), "10.0.0.1");
        for text in ["", "x", "1.2.3.4/33", "::/129", "1.2.3.4/", "1.2.3.4/+8", "1.2.3/8", "1.2.3.4/-1"] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
        let error = "10.0.0.1/8".parse::<Prefix>().unwrap_err();
        assert!(error.contains("10.0.0.0/8 or 10.0.0.1"), "{error}");
    }

    #[test]
    fn prefix_contains_addresses_that_begin_with_it() {
        let prefix: Prefix = "10.1.0.0/16".parse().unwrap();
        assert!(prefix.contains("10.1.255.1".parse().unwrap()));
        assert!(!prefix.contains("10.2.0.1".parse().unwrap()));
        assert!(!prefix.contains("::1".parse().unwrap()));
        assert!("::/0".parse::<Prefix>().unwrap().contains("::1".parse().unwrap()));
    }

    #[test]
    fn prefix_is_known_by_its_first_and_last_address() {
        for text in ["10.0.0.0/8", "0.0.0.0/0", "192.0.2.1", "2001:db8::/33", "::/0", "::1"] {
            let prefix: Prefix = text.parse().unwrap();
            assert_eq!(Prefix::between(prefix.address(), prefix.last()), Some(prefix), "{text}");
        }
        for (first, last) in [("10.0.0.1", "10.0.0.2"), ("10.0.0.0", "10.0.0.2"), ("10.0.0.1", "::1")] {
            assert_eq!(Prefix::between(first.parse().unwrap(), last.parse().unwrap()), None);
        }
    }

    #[test]
    fn substitution_keeps_the_rest_of_the_address() {
        for (prefix, old, new) in [
            ("172.16.0.0/12", "10.1.2.3", "172.17.2.3"),
            ("1.2.3.4", "192.168.7.9", "1.2.3.4"),
            ("0.0.0.0/0", "10.1.2.3", "10.1.2.3"),
            ("2001:db8::/32", "fd00:1::1", "2001:db8::1"),
        ] {
            let found = prefix.parse::<Prefix>().unwrap().substitute(old.parse().unwrap());
            assert_eq!(found, Some(new.parse().unwrap()), "{prefix} {old}");
        }
        assert_eq!("::/8".parse::<Prefix>().unwrap().substitute([10, 0, 0, 1].into()), None);
    }
}
