//! Replacement of addresses under a key, as in Crypto-PAn: two addresses with k equal leading bits have exactly k equal
//! leading bits afterwards. SHA-256 under the key decides for each prefix whether the next bit is inverted.
//!
//! Bits that identify the kind of an address stay: a loopback, multicast (with its scope), link-local or global address
//! is replaced by one of the same kind. Addresses that name no host stay unchanged.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha2::{Digest, Sha256};

/// Maximum number of remembered replacements of a family.
const REMEMBERED: usize = 1 << 18;
const SHORTEST_KEY: usize = 32;
/// Length of the part of a message that SHA-256 processes at once.
const HASH_BLOCK: usize = 64;

/// A key is too short to keep addresses secret.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("it has {found} bytes, and a key has at least {SHORTEST_KEY}")]
pub struct ShortKey {
    found: usize,
}

/// A prefix of addresses of a kind. The bits that distinguish it from others stay.
struct Class<const N: usize> {
    prefix: [u8; N],
    length: usize,
    /// True if the addresses stay as they are.
    stays: bool,
}

impl<const N: usize> Class<N> {
    const fn new(prefix: [u8; N], length: usize, stays: bool) -> Self {
        Self { prefix, length, stays }
    }

    /// Returns true if the class keeps the bit at this position of an address.
    fn keeps(&self, address: [u8; N], position: usize) -> bool {
        let common = common_bits(self.prefix, address);
        position < self.length.min(common + 1) || self.stays && common >= self.length
    }
}

const fn class_v4(prefix: [u8; 4], length: usize, stays: bool) -> Class<4> {
    Class::new(prefix, length, stays)
}

const fn class_v6(prefix: [u16; 8], length: usize, stays: bool) -> Class<16> {
    let [a, b, c, d, e, f, g, h] = prefix;
    Class::new(Ipv6Addr::new(a, b, c, d, e, f, g, h).octets(), length, stays)
}

const CLASSES_V4: [Class<4>; 6] = [
    class_v4([0; 4], 8, false),
    class_v4([127, 0, 0, 0], 8, true),
    class_v4([169, 254, 0, 0], 16, false),
    class_v4([224, 0, 0, 0], 4, false),
    class_v4([224, 0, 0, 0], 24, true),
    class_v4([224, 0, 1, 0], 24, true),
];

/// Classes of IPv6 addresses. Multicast groups are listed without flags and scope.
const CLASSES_V6: [Class<16>; 6] = [
    class_v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3, false),
    class_v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 64, false),
    class_v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 16, false),
    class_v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 112, true),
    class_v6([0xff00, 0, 0, 0, 0, 0, 1, 0], 112, true),
    // Solicited nodes: the last bits are those of an address.
    class_v6([0xff00, 0, 0, 0, 0, 1, 0xff00, 0], 104, false),
];

/// Groups of link-layer protocols: bridges, Cisco, precision time.
const MAC_CONSTANTS: [[u8; 3]; 3] = [[0x01, 0x80, 0xc2], [0x01, 0x00, 0x0c], [0x01, 0x1b, 0x19]];
const MAC_OF_V4_GROUP: [u8; 3] = [0x01, 0x00, 0x5e];
const MAC_OF_V6_GROUP: [u8; 2] = [0x33, 0x33];
/// Positions of the bits for groups and for locally administered addresses.
const MAC_BITS: [usize; 2] = [6, 7];

/// The replacements under one key.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// State of the hash after the key.
    keyed: Sha256,
    v4: HashMap<[u8; 4], [u8; 4]>,
    v6: HashMap<[u8; 16], [u8; 16]>,
    macs: HashMap<[u8; 6], [u8; 6]>,
}

impl Addresses {
    /// Makes the replacements of a key, the contents of a file; a line feed at its end does not count.
    pub fn new(key: &[u8]) -> Result<Self, ShortKey> {
        if key.len() < SHORTEST_KEY {
            return Err(ShortKey { found: key.len() });
        }
        let key = key.strip_suffix(b"\n").unwrap_or(key);
        let mut block = [0; HASH_BLOCK];
        block[..32].copy_from_slice(&Sha256::digest(key));
        Ok(Self { keyed: Sha256::new_with_prefix(block), v4: HashMap::new(), v6: HashMap::new(), macs: HashMap::new() })
    }

    pub fn ip(&mut self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(address) => self.v4(address).into(),
            IpAddr::V6(address) => self.v6(address).into(),
        }
    }

    pub fn v4(&mut self, address: Ipv4Addr) -> Ipv4Addr {
        if address.is_unspecified() || address.is_broadcast() {
            return address;
        }
        let keyed = &self.keyed;
        remembered(&mut self.v4, address.octets(), |octets| {
            let keeps = |at| CLASSES_V4.iter().any(|class| class.keeps(octets, at));
            permuted(keyed, octets, keeps)
        })
        .into()
    }

    pub fn v6(&mut self, address: Ipv6Addr) -> Ipv6Addr {
        if address.is_unspecified() || address.is_loopback() {
            return address;
        }
        let keyed = &self.keyed;
        remembered(&mut self.v6, address.octets(), |octets| {
            let mut unscoped = octets;
            if address.is_multicast() {
                unscoped[1] = 0;
            }
            let keeps = |at| CLASSES_V6.iter().any(|class| class.keeps(unscoped, at));
            permuted(keyed, octets, keeps)
        })
        .into()
    }

    pub fn mac(&mut self, address: [u8; 6]) -> [u8; 6] {
        let is_constant = MAC_CONSTANTS.iter().any(|one| address.starts_with(one));
        if is_constant || address == [0; 6] || address == [0xff; 6] {
            return address;
        }
        let keyed = &self.keyed;
        remembered(&mut self.macs, address, |octets| {
            let mut new = permuted(keyed, octets, |at| MAC_BITS.contains(&at));
            if octets.starts_with(&MAC_OF_V4_GROUP) {
                new[..3].copy_from_slice(&MAC_OF_V4_GROUP);
            } else if octets.starts_with(&MAC_OF_V6_GROUP) {
                new[..2].copy_from_slice(&MAC_OF_V6_GROUP);
            }
            new
        })
    }

    /// Returns the new MAC address of a frame to an IP address. The MAC address of a multicast group follows from the
    /// group's new address.
    pub fn mac_to(&mut self, address: [u8; 6], to: Option<IpAddr>) -> [u8; 6] {
        match to {
            Some(group) if mac_of_group(group) == Some(address) => mac_of_group(self.ip(group)).unwrap_or(address),
            _ => self.mac(address),
        }
    }

    /// Returns the pseudonym of a name.
    pub fn name(&self, name: &[u8]) -> String {
        let digest = self.keyed.clone().chain_update(b"name").chain_update(name);
        let [a, b, c, d, ..] = <[u8; 32]>::from(digest.finalize());
        format!("host-{:08x}", u32::from_be_bytes([a, b, c, d]))
    }
}

/// Inverts bits of an address, except those that stay. The 256 bits of a hash over the preceding octets decide for each
/// of the 255 prefixes within an octet.
fn permuted<const N: usize>(keyed: &Sha256, address: [u8; N], keeps: impl Fn(usize) -> bool) -> [u8; N] {
    let mut new = address;
    for (at, octet) in address.iter().enumerate() {
        let before = keyed.clone().chain_update([N as u8, at as u8]);
        let decisions = before.chain_update(&address[..at]).finalize();
        for bit in (0..8).filter(|bit| !keeps(at * 8 + bit)) {
            let prefix = 1 << bit | usize::from(*octet) >> (8 - bit);
            let inverts = decisions[prefix / 8] >> (prefix % 8) & 1;
            new[at] ^= inverts << (7 - bit);
        }
    }
    new
}

fn remembered<A: Copy + Eq + Hash>(known: &mut HashMap<A, A>, address: A, make: impl FnOnce(A) -> A) -> A {
    if known.len() >= REMEMBERED {
        known.clear();
    }
    *known.entry(address).or_insert_with(|| make(address))
}

/// Returns the number of equal leading bits.
fn common_bits<const N: usize>(one: [u8; N], other: [u8; N]) -> usize {
    let mut octets = one.iter().zip(other).map(|(one, other)| one ^ other);
    match octets.by_ref().position(|different| different != 0) {
        Some(at) => at * 8 + (one[at] ^ other[at]).leading_zeros() as usize,
        None => N * 8,
    }
}

/// Returns the MAC address of a multicast group.
fn mac_of_group(group: IpAddr) -> Option<[u8; 6]> {
    if !group.is_multicast() {
        return None;
    }
    Some(match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = group.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = group.octets();
            [0x33, 0x33, a, b, c, d]
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn addresses(key: u8) -> Addresses {
        Addresses::new(&[key; 32]).expect("a long key")
    }

    fn kind_v6(address: Ipv6Addr) -> (bool, bool, u8) {
        let is_group = address.is_multicast();
        let scope = if is_group { address.octets()[1] } else { 0 };
        (is_group, address.is_unicast_link_local(), scope)
    }

    proptest! {
        #[test]
        fn common_prefix_of_two_addresses_keeps_its_length(
            one: [u8; 16], other: [u8; 16], shared in 0..=128usize, key: u8,
        ) {
            let mut other = other;
            for bit in 0..shared {
                let mask = 0x80 >> (bit % 8);
                other[bit / 8] = other[bit / 8] & !mask | one[bit / 8] & mask;
            }
            let mut map = addresses(key);
            let v6 = [one, other].map(|octets| map.v6(octets.into()).octets());
            prop_assert_eq!(common_bits(one, other), common_bits(v6[0], v6[1]));
            let short = |octets: [u8; 16]| [octets[0], octets[1], octets[2], octets[3]];
            let v4 = [one, other].map(|octets| map.v4(short(octets).into()).octets());
            prop_assert_eq!(common_bits(short(one), short(other)), common_bits(v4[0], v4[1]));
        }

        #[test]
        fn kinds_stay_and_the_same_key_gives_the_same_addresses(v4: u32, v6: u128, mac: [u8; 6], key: u8) {
            let (v4, v6) = (Ipv4Addr::from(v4), Ipv6Addr::from(v6));
            let mut map = addresses(key);
            let new = (map.v4(v4), map.v6(v6), map.mac(mac));
            prop_assert_eq!(new, (map.v4(v4), map.v6(v6), map.mac(mac)));
            let mut again = addresses(key);
            prop_assert_eq!(new, (again.v4(v4), again.v6(v6), again.mac(mac)));
            let kind = |a: Ipv4Addr| (a.is_multicast(), a.is_loopback(), a.is_link_local(), a.octets()[0] >= 240);
            prop_assert_eq!(kind(v4), kind(new.0));
            prop_assert_eq!(kind_v6(v6), kind_v6(new.1));
            prop_assert_eq!(mac[0] & 3, new.2[0] & 3);
        }
    }

    #[test]
    fn constants_stay_and_others_change() {
        let mut map = addresses(1);
        for constant in ["0.0.0.0", "255.255.255.255", "127.0.0.1", "224.0.0.251", "::", "::1", "ff02::1", "ff05::1:3"]
        {
            let address: IpAddr = constant.parse().expect("an address");
            assert_eq!(map.ip(address), address);
        }
        for other in [
            "10.0.0.1",
            "192.168.1.2",
            "169.254.3.4",
            "239.1.2.3",
            "2001:db8::1",
            "fe80::2",
            "fd00::1",
            "ff02::1:ff01:203",
        ] {
            let address: IpAddr = other.parse().expect("an address");
            assert_ne!(map.ip(address), address);
        }
        assert_eq!(map.mac([0xff; 6]), [0xff; 6]);
        assert_ne!(map.mac([2, 0, 0, 0, 0, 1]), [2, 0, 0, 0, 0, 1]);
        let group = "239.1.2.3".parse().ok();
        let [.., b, c, d] = map.v4([239, 1, 2, 3].into()).octets();
        let mac = map.mac_to([1, 0, 0x5e, 1, 2, 3], group);
        assert_eq!(mac, [1, 0, 0x5e, b & 0x7f, c, d]);
    }

    #[test]
    fn another_key_gives_other_addresses_and_a_short_one_is_refused() {
        let address = "2001:db8::1".parse().expect("an address");
        assert_ne!(addresses(1).v6(address), addresses(2).v6(address));
        let refused = Addresses::new(b"0123456789abcdef0123456789abcde").err();
        assert_eq!(refused, Some(ShortKey { found: 31 }));
    }
}
