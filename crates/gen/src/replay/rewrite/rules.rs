//! What is to be changed, as it is asked for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

pub type Mac = [u8; 6];

/// What becomes of the outermost VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagChange {
    /// The one that is there has this number from now on; where there is none, one is put in.
    Set(u16),
    Remove,
}

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// The changes to each frame. Without any, frames are sent as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    pub source_mac: Option<Mac>,
    pub destination_mac: Option<Mac>,
    /// MAC addresses and what stands in their place, on both sides.
    pub macs: Vec<(Mac, Mac)>,
    pub source_v4: Option<Ipv4Addr>,
    pub source_v6: Option<Ipv6Addr>,
    pub destination_v4: Option<Ipv4Addr>,
    pub destination_v6: Option<Ipv6Addr>,
    /// Prefixes and what stands in their place, on both sides; the first that fits counts.
    pub prefixes: Vec<(Prefix, Prefix)>,
    pub tag: Option<TagChange>,
    /// VLAN numbers and what stands in their place.
    pub tags: Vec<(u16, u16)>,
}

impl Rewrite {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn changes_addresses(&self) -> bool {
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

    /// What stands in the place of an address; `None` where it stays.
    pub(super) fn address(&self, is_source: bool, now: IpAddr) -> Option<IpAddr> {
        let fixed = match (now, is_source) {
            (IpAddr::V4(_), true) => self.source_v4.map(IpAddr::V4),
            (IpAddr::V4(_), false) => self.destination_v4.map(IpAddr::V4),
            (IpAddr::V6(_), true) => self.source_v6.map(IpAddr::V6),
            (IpAddr::V6(_), false) => self.destination_v6.map(IpAddr::V6),
        };
        let by_prefix = || {
            let (_, to) = self.prefixes.iter().find(|(from, _)| from.holds(now))?;
            to.in_place_of(now)
        };
        fixed.or_else(by_prefix)
    }
}

impl Prefix {
    pub fn is_v4(&self) -> bool {
        self.address.is_ipv4()
    }

    pub fn length(&self) -> u8 {
        self.length
    }

    fn holds(&self, address: IpAddr) -> bool {
        let alike = |one: u128, other: u128, bits: u32| {
            (one ^ other)
                .checked_shr(bits - u32::from(self.length))
                .is_none_or(|rest| rest == 0)
        };
        match (self.address, address) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                alike(one.to_bits().into(), other.to_bits().into(), 32)
            }
            (IpAddr::V6(one), IpAddr::V6(other)) => alike(one.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }

    /// An address that begins as this prefix and ends as the one given.
    fn in_place_of(&self, address: IpAddr) -> Option<IpAddr> {
        let rest = |bits: u32| u128::MAX.checked_shr(128 - bits + u32::from(self.length));
        match (self.address, address) {
            (IpAddr::V4(new), IpAddr::V4(old)) => {
                let rest = rest(32).unwrap_or(0) as u32;
                Some(Ipv4Addr::from_bits(new.to_bits() & !rest | old.to_bits() & rest).into())
            }
            (IpAddr::V6(new), IpAddr::V6(old)) => {
                let rest = rest(128).unwrap_or(0);
                Some(Ipv6Addr::from_bits(new.to_bits() & !rest | old.to_bits() & rest).into())
            }
            _ => None,
        }
    }
}

impl FromStr for Prefix {
    type Err = String;

    /// `10.0.0.0/8`, or an address alone.
    fn from_str(text: &str) -> Result<Self, String> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let wrong = || format!("'{text}' is not an address or a prefix such as 10.0.0.0/8");
        let address: IpAddr = address.trim().parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            Some(length) => length.trim().parse().map_err(|_| wrong())?,
            None => most,
        };
        if length > most {
            return Err(format!(
                "'{text}': a prefix of this kind has at most {most} bits"
            ));
        }
        Ok(Self { address, length })
    }
}
