//! Anonymized packets equal the packets that a host with the other addresses would have sent with zeroes as payload.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::{Addresses, Anonymizer};
use crate::build::{Arp, Icmp, Ipv4, Layer, Tcp, Template};

const ETHERNET: u16 = 1;

fn anonymizer(key: u8) -> Anonymizer {
    Anonymizer::new(Addresses::new(&[key; 32]).expect("a long key"))
}

/// The addresses of a packet.
#[derive(Debug, Clone)]
struct Hosts {
    macs: [[u8; 6]; 4],
    v4: [Ipv4Addr; 4],
    v6: [Ipv6Addr; 4],
}

impl Hosts {
    fn replaced(&self, addresses: &mut Addresses) -> Self {
        Self {
            macs: self.macs.map(|one| addresses.mac(one)),
            v4: self.v4.map(|one| addresses.v4(one)),
            v6: self.v6.map(|one| addresses.v6(one)),
        }
    }

    /// Returns true if an address is part of these bytes.
    fn is_in(&self, bytes: &[u8]) -> bool {
        let has = |address: &[u8]| bytes.windows(address.len()).any(|part| part == address);
        self.macs.iter().any(|one| has(one))
            || self.v4.iter().any(|one| has(&one.octets()))
            || self.v6.iter().any(|one| has(&one.octets()))
    }
}

prop_compose! {
    fn hosts()(
        macs: [[u8; 6]; 4],
        v4 in [1 << 28..7u32 << 28, 1 << 28..7u32 << 28, 1 << 28..7u32 << 28, 1 << 28..7u32 << 28],
        v6 in [1 << 120..u128::MAX, 1 << 120..u128::MAX, 1 << 120..u128::MAX, 1 << 120..u128::MAX],
    ) -> Hosts {
        Hosts {
            // Addresses of groups are excluded, because they follow from the IP address.
            macs: macs.map(|[a, b, c, d, e, f]| [a & 0xfe | 2, b, c, d, e, f]),
            v4: v4.map(Ipv4Addr::from),
            v6: v6.map(Ipv6Addr::from),
        }
    }
}

fn tcp() -> Tcp {
    Tcp {
        src: 40_000,
        dst: 443,
        seq: 7,
        ack: 8,
        flags: 0x18,
        window: 512,
        options: vec![1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8],
        ..Tcp::default()
    }
}

const SHAPES: usize = 14;

/// Returns a packet of a kind, and the length of its kept part. Only a packet with a payload has an unknown option.
fn packet(shape: usize, hosts: &Hosts, payload: &[u8]) -> (Vec<u8>, usize) {
    let unknown = if payload.iter().all(|byte| *byte == 0) { [0, 0] } else { [99, 1] };
    let Hosts { macs, v4, v6 } = hosts;
    let frame = || Template::new().ethernet(macs[0], macs[1]);
    let over_v4 = || frame().ipv4(v4[0], v4[1]);
    let over_v6 = || frame().ipv6(v6[0], v6[1]);
    let error = Icmp { kind: 3, code: 1, rest: [0; 4] };
    let solicitation = Icmp { kind: 135, ..Icmp::default() };
    let mut body = payload.to_vec();
    let template = match shape {
        0 => over_v4().tcp(tcp()),
        1 => over_v6().tcp(tcp()),
        2 => over_v4().udp(1, 2),
        3 => over_v6().udp(1, 2),
        4 => over_v4().icmp(Icmp::echo_request(1, 2)),
        5 => over_v6().icmpv6(Icmp::echo_request_v6(1, 2)),
        6 => frame().vlan(7).arp(Arp::reply(macs[2], v4[2], macs[3], v4[3])),
        7 => over_v4().udp(5, 4789).vxlan(99).ethernet(macs[2], macs[3]).ipv6(v6[2], v6[3]).tcp(tcp()),
        8 => over_v6().ipv4(v4[2], v4[3]).udp(5, 6),
        9 => {
            let quoted = Template::new().ipv4(v4[2], v4[3]).udp(7, 8).payload(payload);
            body = quoted.build();
            over_v4().icmp(error)
        }
        10 => {
            let quoted = Template::new().ipv6(v6[2], v6[3]).tcp(tcp()).payload(payload);
            body = quoted.build();
            over_v6().icmpv6(Icmp { kind: 1, ..error })
        }
        11 => {
            let target = v6[2].octets();
            body = [&target[..], &[1, 1], &macs[2], &unknown, payload].concat();
            over_v6().icmpv6(solicitation)
        }
        12 => {
            let route = [&[7, 11, 12][..], &v4[2].octets(), &v4[3].octets(), &[0]].concat();
            frame().layer(Layer::Ipv4(Ipv4 { options: route, ..Ipv4::new(v4[0], v4[1]) })).udp(5, 6)
        }
        _ => {
            // GRE with a checksum that is not set.
            let bytes = vec![0x20, 0, 8, 0, 0, 0, 0, 9];
            let (ethertype, protocol) = (None, Some(47));
            over_v4().layer(Layer::Raw { bytes, ethertype, protocol }).ipv4(v4[2], v4[3]).udp(7, 8)
        }
    };
    let headers = template.build().len();
    let whole = template.payload(body).build();
    let kept = match shape {
        9 => headers + 28,
        10 => headers + 40 + 32,
        11 => headers + 24,
        _ => headers,
    };
    (whole, kept)
}

proptest! {
    #[test]
    fn packets_are_those_of_hosts_with_other_addresses(
        shape in 0..SHAPES, hosts in hosts(), key: u8, payload in proptest::collection::vec(1..=255u8, 8..60),
    ) {
        let mut anonymizer = anonymizer(key);
        let (before, kept) = packet(shape, &hosts, &payload);
        let zeroes = vec![0; payload.len()];
        let (expected, _) = packet(shape, &hosts.replaced(&mut anonymizer.addresses), &zeroes);
        let after = anonymizer.packet(ETHERNET, &before, usize::MAX);
        prop_assert!(after.is_known);
        prop_assert_eq!(after.bytes, &expected[..kept]);
        prop_assert!(!hosts.is_in(after.bytes));
        let is_payload = |part: &[u8]| payload.windows(8).any(|bytes| bytes == part);
        prop_assert!(!after.bytes.windows(8).any(is_payload));
    }

    #[test]
    fn any_bytes_are_accepted(
        shape in 0..SHAPES, hosts in hosts(), cut in 0..200usize,
        changes in proptest::collection::vec((12..120usize, any::<u8>()), 0..6),
    ) {
        let (mut bytes, _) = packet(shape, &hosts, &[0x41; 60]);
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(cut);
        for link_type in [0, 1, 101, 113, 228, 276, 9999] {
            let mut anonymizer = anonymizer(1);
            let after = anonymizer.packet(link_type, &bytes, usize::MAX);
            prop_assert!(after.bytes.len() <= bytes.len());
        }
    }
}

#[test]
fn bytes_of_unknown_packets_are_left_out() {
    let mut anonymizer = anonymizer(1);
    let lldp = [&[1, 0x80, 0xc2, 0, 0, 14, 2, 0, 0, 0, 0, 1, 0x88, 0xcc][..], &[7; 40]].concat();
    let after = anonymizer.packet(ETHERNET, &lldp, usize::MAX);
    assert_eq!((after.bytes.len(), after.is_known), (14, false));
    let after = anonymizer.packet(105, &lldp, usize::MAX);
    assert_eq!((after.bytes.len(), after.is_known), (0, false));
}

#[test]
fn later_fragments_and_unknown_protocols_keep_the_ip_header() {
    let (source, destination) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let with = |ip| {
        let frame = Template::new().ethernet([2; 6], [4; 6]);
        frame.layer(Layer::Ipv4(ip)).payload([0x41; 80]).build()
    };
    let ip = Ipv4::new(source.into(), destination.into());
    let fragment = Ipv4 { fragment_offset: 1480, protocol: Some(6), ..ip.clone() };
    for ip in [fragment, ip] {
        let mut anonymizer = anonymizer(1);
        assert_eq!(anonymizer.packet(ETHERNET, &with(ip), usize::MAX).bytes.len(), 34);
    }
}

/// Multipath TCP announces addresses in an option, and options of IPv6 hold the address of a mobile host.
#[test]
fn options_with_addresses_are_replaced_or_padded() {
    let announced = [30, 8, 0x34, 1, 10, 9, 8, 7];
    let frame = Template::new().ethernet([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let frame = frame.tcp(Tcp { options: announced.to_vec(), ..tcp() });
    let mut anonymizer = anonymizer(1);
    let after = anonymizer.packet(ETHERNET, &frame.build(), usize::MAX);
    assert_eq!(after.bytes[54..], [1; 8]);

    let home: Ipv6Addr = "2001:db8::77".parse().expect("an address");
    let extension = [&[17, 2, 1, 2, 0, 0, 201, 16][..], &home.octets()].concat();
    let frame = Template::new().ethernet([2; 6], [4; 6]).ipv6([1; 8], [2; 8]);
    let frame = frame.layer(Layer::Raw { bytes: extension, ethertype: None, protocol: Some(60) });
    let frame = frame.udp(5, 6).payload([0x41; 9]).build();
    let new = anonymizer.addresses.v6(home);
    let after = anonymizer.packet(ETHERNET, &frame, usize::MAX);
    assert_eq!(after.bytes.len(), 14 + 40 + 24 + 8);
    assert_eq!(after.bytes[62..78], new.octets());
}

/// The transport checksum covers the last address of a route that is not reached yet.
#[test]
fn checksum_of_a_routed_packet_stays_right() {
    let [source, next, last]: [Ipv6Addr; 3] =
        ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(|text| text.parse().expect("an address"));
    let packet = |source: Ipv6Addr, next: Ipv6Addr, last: Ipv6Addr, payload: [u8; 9]| {
        // Segment routing: next header UDP, two addresses, one of them left, the last one first.
        let addresses = [last.octets(), next.octets()].concat();
        let route = [&[17, 4, 4, 1, 1, 0, 0, 0][..], &addresses].concat();
        let datagram = Template::new().ipv6(source, last).udp(5, 6);
        let datagram = datagram.payload(payload).build().split_off(40);
        let frame = Template::new().ethernet([2; 6], [4; 6]).ipv6(source, next);
        let frame = frame.layer(Layer::Raw { bytes: route, ethertype: None, protocol: Some(43) });
        frame.payload(datagram).build()
    };
    let mut anonymizer = anonymizer(1);
    let [a, b, c] = [source, next, last].map(|address| anonymizer.addresses.v6(address));
    let expected = packet(a, b, c, [0; 9]);
    let before = packet(source, next, last, [0x41; 9]);
    let after = anonymizer.packet(ETHERNET, &before, usize::MAX);
    assert_eq!(after.bytes.len(), 14 + 40 + 40 + 8);
    assert_eq!(after.bytes[14..], expected[14..after.bytes.len()]);
}
