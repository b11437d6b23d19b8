//! The kept part of a packet reveals nothing about its payload except the length.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::build::{Icmp, Layer, Tcp, Template};
use crate::checksum::Addresses;
use crate::walk::headers_len;

const ETHERNET: u16 = 1;
const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const A6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

fn v4() -> Template {
    Template::new().ethernet([2; 6], [4; 6]).ipv4(A, B)
}

fn v6() -> Template {
    Template::new().ethernet([2; 6], [4; 6]).ipv6(A6, B6)
}

fn raw(protocol: u8, bytes: Vec<u8>) -> Layer {
    Layer::Raw { bytes, ethertype: None, protocol: Some(protocol) }
}

/// Returns a message of a protocol whose template knows no checksum, with an Internet checksum at an offset.
fn summed(protocol: u8, header: &[u8], at: usize, payload: &[u8], pseudo: bool) -> Template {
    let mut message = [header, payload].concat();
    let sum = if pseudo { Addresses::V4(A, B).pseudo_header(protocol, message.len()) } else { Sum::default() };
    let sum = sum.add(&message).finish().to_be_bytes();
    message[at..at + 2].copy_from_slice(&sum);
    let payload = message.split_off(header.len());
    v4().layer(raw(protocol, message)).payload(payload)
}

fn sctp(payload: &[u8]) -> Template {
    let mut header = [0x9c, 0x40, 0x0f, 0x1c, 1, 2, 3, 4, 0, 0, 0, 0];
    let sum = crc32c(header.iter().chain(payload));
    header[8..].copy_from_slice(&sum.to_le_bytes());
    v4().layer(raw(SCTP, header.to_vec())).payload(payload)
}

fn tcp(options: Vec<u8>) -> Tcp {
    Tcp { src: 40_000, dst: 23, options, ..Tcp::default() }
}

/// Returns the packets that each have a checksum over their payload, with names.
fn packets(payload: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let length = (8 + payload.len() as u16).to_be_bytes();
    let error = Icmp { kind: 3, code: 3, rest: [0; 4] };
    let quoted_v4 = Template::new().ipv4(B, A).udp(5, 6).payload(payload).build();
    let quoted_v6 = Template::new().ipv6(B6, A6).tcp(tcp(vec![])).payload(payload).build();
    let redirect = [&[0; 32][..], &[4, (8 + quoted_v6.len()).div_ceil(8) as u8, 0, 0, 0, 0, 0, 0], &quoted_v6].concat();
    let redirect_kind = Icmp { kind: 137, ..Icmp::default() };
    let md5 = [&[19, 18][..], &[payload[0]; 16], &[1, 1]].concat();
    let data_sequence = [&[30, 16, 0x20, 4][..], &[0; 10], &[payload[0]; 2]].concat();
    let signed = [&[17, 4, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1][..], &[payload[0]; 12]].concat();
    let inner = |outer: Template| outer.ipv4(B, A).udp(5, 6).payload(payload);
    let gre = inner(Template::new()).build();
    let gre_payload = summed(GRE, &[0x80, 0, 8, 0, 0, 0, 0, 0], 4, &gre, false);
    let templates = [
        ("tcp", v4().tcp(tcp(vec![])).payload(payload)),
        ("tcp over IPv6", v6().tcp(tcp(vec![])).payload(payload)),
        ("signed tcp", v4().tcp(tcp(md5)).payload(payload)),
        ("multipath tcp", v4().tcp(tcp(data_sequence)).payload(payload)),
        ("udp", v4().udp(5, 6).payload(payload)),
        ("udp over IPv6", v6().udp(5, 6).payload(payload)),
        ("udp-lite", summed(UDP_LITE, &[0, 5, 0, 6, 0, 0, 0, 0], 6, payload, true)),
        ("udp-lite, covered", summed(UDP_LITE, &[&[0, 5, 0, 6][..], &length, &[0, 0]].concat(), 6, payload, true)),
        ("dccp", summed(DCCP, &[0, 5, 0, 6, 4, 0, 0, 0, 4, 0, 0, 1], 6, payload, true)),
        ("icmp", v4().icmp(Icmp::echo_request(1, 2)).payload(payload)),
        ("icmpv6", v6().icmpv6(Icmp::echo_request_v6(1, 2)).payload(payload)),
        ("igmp", summed(IGMP, &[0x11, 0, 0, 0, 224, 0, 0, 9], 2, payload, false)),
        ("sctp", sctp(payload)),
        ("icmp quoting udp", v4().icmp(error).payload(quoted_v4.clone())),
        ("icmp quoting the start of udp", v4().icmp(error).payload(&quoted_v4[..28])),
        ("icmpv6 quoting tcp", v6().icmpv6(Icmp { kind: 1, ..error }).payload(quoted_v6)),
        ("redirect quoting tcp", v6().icmpv6(redirect_kind).payload(redirect)),
        ("ip in ip", inner(v4())),
        ("vxlan", inner(v6().udp(5, 4789).vxlan(7).ethernet([2; 6], [4; 6]))),
        ("gre", gre_payload),
        ("authentication header", v4().layer(raw(51, signed)).udp(5, 6).payload(payload)),
    ];
    templates.into_iter().map(|(name, template)| (name, template.build())).collect()
}

/// Returns the kept part of a packet twice: up to the end of its headers, and without the last `payload_len` bytes, so
/// that an ICMP message keeps the headers that it quotes.
fn kept(bytes: &[u8], payload_len: usize) -> [Vec<u8>; 2] {
    let lengths = [headers_len(ETHERNET, bytes), bytes.len() - payload_len];
    lengths.map(|length| {
        let mut after = bytes[..length.min(bytes.len())].to_vec();
        cover_kept(ETHERNET, bytes, &mut after);
        after
    })
}

/// Guards captures of one-byte telnet segments, whose checksums would give whole passwords away.
#[test]
fn kept_part_is_the_same_for_every_payload_of_a_byte() {
    for (number, (name, _)) in packets(&[0]).iter().enumerate() {
        let of = |payload: u8, damage: u8| {
            let mut bytes = packets(&[payload]).swap_remove(number).1;
            // The last header has a wrong checksum, by bits that depend on the payload.
            let quoted = if name.contains("the start of") { 0 } else { 1 };
            if let Some(last) = bytes.last_mut().filter(|_| quoted == 1) {
                *last ^= damage;
            }
            kept(&bytes, quoted)
        };
        let right = of(0, 0);
        let wrong = of(0, 1);
        for payload in 1..=255 {
            assert_eq!(of(payload, 0), right, "{name}, payload {payload}");
            assert_eq!(of(payload, payload | 1), wrong, "{name}, payload {payload}, wrong");
        }
    }
}

#[test]
fn checksums_of_zeroes_stay_and_wrong_ones_stay_wrong() {
    for (name, bytes) in packets(&[0; 4]) {
        // Signatures do not stay, and checksums over them change with them.
        let is_signed = ["signed", "multipath", "authentication"].iter().any(|word| name.contains(word));
        let mut whole = bytes.clone();
        cover_kept(ETHERNET, &bytes, &mut whole);
        assert!(is_signed || whole == bytes, "{name}");
        let mut damaged = bytes.clone();
        *damaged.last_mut().expect("a payload") ^= 1;
        let mut after = bytes;
        cover_kept(ETHERNET, &damaged, &mut after);
        let is_cut_quote = name.contains("the start of");
        let is_sum_of_signature = name.contains("authentication");
        assert!(is_cut_quote || is_sum_of_signature || after != whole, "{name}");
    }
}

#[test]
fn half_of_a_checksum_is_not_kept() {
    let bytes = v4().tcp(tcp(vec![])).payload(b"x").build();
    let cut = &bytes[..14 + 20 + 17];
    let mut after = cut.to_vec();
    cover_kept(ETHERNET, cut, &mut after);
    assert_eq!(after.last(), Some(&0));
}

#[test]
fn unchecked_udp_stays_unchecked() {
    let unchecked = crate::build::Udp { src: 5, dst: 6, checksum: false };
    let bytes = v4().layer(Layer::Udp(unchecked)).payload(b"x").build();
    let [headers, _] = kept(&bytes, 1);
    assert_eq!(headers[40..42], [0, 0]);
}
