use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use trawl_packet::build::{Arp, Icmp, Layer, Tcp, Template, Udp, Vlan};

use super::*;

const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
const NEW: [u8; 6] = [6, 5, 4, 3, 2, 1];

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn applied(rewrite: &Rewrite, frame: &[u8]) -> Vec<u8> {
    let mut room = frame.to_vec();
    room.resize(frame.len() + rewrite.growth(), 0xee);
    let length = rewrite.apply(&mut room, frame.len());
    room.truncate(length);
    room
}

/// Returns a frame of one of many kinds with these addresses and tags.
fn frame(kind: u8, v4: [Ipv4Addr; 2], v6: [Ipv6Addr; 2], tags: &[u16], payload: &[u8]) -> Vec<u8> {
    let outside = tags.iter().fold(Template::new().ethernet(A, B), |template, id| {
        template.layer(Layer::Vlan(Vlan { id: *id, priority: 5, service: tags.len() > 1, ..Vlan::default() }))
    });
    let over4 = || outside.clone().ipv4(v4[0], v4[1]);
    let over6 = || outside.clone().ipv6(v6[0], v6[1]);
    let unchecked = Udp { src: 1, dst: 2, checksum: false };
    let hop_by_hop = Layer::Raw { bytes: vec![17, 0, 1, 4, 0, 0, 0, 0], ethertype: None, protocol: Some(0) };
    let inside = match kind {
        0 => over4().udp(1, 2),
        1 => over4().tcp(Tcp::default()),
        2 => over4().icmp(Icmp::echo_request(1, 2)),
        3 => over4().layer(Layer::Udp(unchecked)),
        4 => over6().udp(1, 2),
        5 => over6().tcp(Tcp::default()),
        6 => over6().icmpv6(Icmp::echo_request(1, 2)),
        7 => over6().layer(hop_by_hop).layer(Layer::Udp(unchecked)),
        _ => outside.arp(Arp::request(A, v4[0], v4[1])),
    };
    inside.payload(payload).build()
}

fn addresses() -> impl Strategy<Value = ([Ipv4Addr; 2], [Ipv6Addr; 2])> {
    any::<([u32; 2], [u128; 2])>().prop_map(|(v4, v6)| (v4.map(Ipv4Addr::from_bits), v6.map(Ipv6Addr::from_bits)))
}

proptest! {
    /// The result equals a frame built with the new addresses, including its checksums.
    #[test]
    fn rewritten_frame_equals_one_built_anew(
        kind in 0..9u8,
        before in addresses(),
        after in addresses(),
        tags in prop::collection::vec(1..4095u16, 0..3),
        payload in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let rewrite = Rewrite {
            source_v4: Some(after.0[0]),
            destination_v4: Some(after.0[1]),
            source_v6: Some(after.1[0]),
            destination_v6: Some(after.1[1]),
            ..Rewrite::default()
        };
        let old = frame(kind, before.0, before.1, &tags, &payload);
        let new = frame(kind, after.0, after.1, &tags, &payload);
        let rewritten = applied(&rewrite, &old);
        // A sum of zero has two forms in an IP header or in TCP: both are right.
        let differing: Vec<(u8, u8)> = rewritten
            .iter()
            .zip(&new)
            .filter(|(one, other)| one != other)
            .map(|(one, other)| (*one, *other))
            .collect();
        prop_assert_eq!(rewritten.len(), new.len());
        let zeroes = |pairs: &[(u8, u8)]| pairs.iter().all(|p| *p == (0xff, 0) || *p == (0, 0xff));
        prop_assert!(zeroes(&differing), "{differing:?}");
    }

    #[test]
    fn wrong_checksums_stay_wrong(before in addresses(), after in addresses(), other in 1..255u8) {
        let rewrite = Rewrite {
            source_v4: Some(after.0[0]),
            ..Rewrite::default()
        };
        let right = applied(&rewrite, &frame(0, before.0, before.1, &[], b"abcd"));
        let mut wrong = frame(0, before.0, before.1, &[], b"abcd");
        let last = wrong.len() - 1;
        wrong[last] ^= other;
        let wrong = applied(&rewrite, &wrong);
        prop_assert_eq!(&wrong[..last], &right[..last]);
    }

    /// For any bytes, only the frame is changed, and nothing panics.
    #[test]
    fn any_bytes_are_accepted(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        ethertype in prop::sample::select(vec![0x0800u16, 0x86dd, 0x0806, 0x8100, 0x1234]),
        tag in prop::sample::select(vec![None, Some(TagChange::Set(7)), Some(TagChange::Remove)]),
    ) {
        if bytes.len() >= 15 {
            bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
            bytes[14] = if ethertype == 0x86dd { 0x60 } else { 0x45 };
        }
        let rewrite = Rewrite {
            source_mac: Some(NEW),
            prefixes: vec![(prefix("0.0.0.0/0"), prefix("10.0.0.0/8")), (prefix("::/0"), prefix("fd00::/64"))],
            tag,
            ..Rewrite::default()
        };
        let length = applied(&rewrite, &bytes).len();
        prop_assert!(length <= bytes.len() + 4 && length + 4 >= bytes.len());
    }
}

const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::new(192, 168, 7, 9)];
const V6: [Ipv6Addr; 2] = [Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 2)];

#[test]
fn prefixes_keep_what_follows_them() {
    let rewrite = Rewrite {
        prefixes: vec![
            (prefix("10.0.0.0/8"), prefix("172.16.0.0/12")),
            (prefix("192.168.7.9"), prefix("1.2.3.4")),
            (prefix("fd00:1::/32"), prefix("2001:db8::/32")),
        ],
        ..Rewrite::default()
    };
    let moved = applied(&rewrite, &frame(0, V4, V6, &[], b"x"));
    let expected = [Ipv4Addr::new(172, 17, 2, 3), Ipv4Addr::new(1, 2, 3, 4)];
    assert_eq!(moved, frame(0, expected, V6, &[], b"x"));
    let moved = applied(&rewrite, &frame(5, V4, V6, &[9], b"x"));
    let expected = [Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), V6[1]];
    assert_eq!(moved, frame(5, V4, expected, &[9], b"x"));
}

#[test]
fn tags_are_added_changed_and_removed() {
    let with = |tag| Rewrite { tag: Some(tag), ..Rewrite::default() };
    let plain = frame(0, V4, V6, &[], b"hello");
    let tagged = applied(&with(TagChange::Set(42)), &plain);
    assert_eq!(tagged.len(), plain.len() + 4);
    assert_eq!(tagged[12..16], [0x81, 0, 0, 42]);
    let other = applied(&with(TagChange::Set(43)), &tagged);
    assert_eq!(other[12..16], [0x81, 0, 0, 43]);
    assert_eq!(applied(&with(TagChange::Remove), &other), plain);
    assert_eq!(applied(&with(TagChange::Remove), &plain), plain);
    // The priority stays.
    let double = applied(&with(TagChange::Set(8)), &frame(0, V4, V6, &[1, 2], b""));
    assert_eq!(double, frame(0, V4, V6, &[8, 2], b""));
    let mapped = Rewrite { tags: vec![(1, 100)], ..Rewrite::default() };
    assert_eq!(applied(&mapped, &frame(0, V4, V6, &[1], b"")), frame(0, V4, V6, &[100], b""));
    assert_eq!(applied(&mapped, &frame(0, V4, V6, &[2], b"")), frame(0, V4, V6, &[2], b""));
}

#[test]
fn macs_change_in_arp_too() {
    let rewrite = Rewrite { macs: vec![(A, NEW)], ..Rewrite::default() };
    let arp = applied(&rewrite, &frame(8, V4, V6, &[], b""));
    assert_eq!(arp[6..12], NEW);
    assert_eq!(arp[22..28], NEW);
    // The requested MAC address is unknown, and stays zero.
    assert_eq!(arp[32..38], [0; 6]);
    assert_eq!(arp[0..6], frame(8, V4, V6, &[], b"")[0..6]);
}

#[test]
fn later_fragments_have_no_transport_header() {
    let mut fragment = frame(0, V4, V6, &[], b"abcdefgh");
    fragment[20..22].copy_from_slice(&[0x00, 0x10]);
    let rewrite = Rewrite { source_v4: Some([9, 9, 9, 9].into()), ..Rewrite::default() };
    assert_eq!(applied(&rewrite, &fragment)[34..], fragment[34..]);
}
