//! Packets inside packets.

use super::{A, A4, A6, B, B4, B6, Cases, bare, ethernet, extension, v4, v4_raw, v6};
use trawl_packet::build::{Layer, Template};

pub fn add(cases: &mut Cases) {
    let frame = || ethernet().ipv4([192, 168, 0, 1], [192, 168, 0, 2]).udp(3333, 4444).payload(b"in");
    let outer = |port| v4().udp(50_000, port);
    let inside = |t: Template| t.ethernet(A, B).ipv4([192, 168, 0, 1], [192, 168, 0, 2]).udp(3333, 4444).payload(b"in");
    cases.frame("VXLAN", inside(outer(4789).vxlan(77)));
    cases.frame("VXLAN with ARP", outer(4789).vxlan(0xabcdef).payload(arp_frame()));
    cases.cut("cut in VXLAN", inside(outer(4789).vxlan(77)), 14 + 20 + 8 + 5);
    cases.cut("cut inside VXLAN", inside(outer(4789).vxlan(77)), 14 + 20 + 8 + 8 + 20);
    let geneve = |kind: u16, payload: Vec<u8>| {
        let [a, b] = kind.to_be_bytes();
        outer(6081).payload([&[0, 0, a, b, 0, 0, 100, 0][..], &payload].concat())
    };
    cases.frame("Geneve", geneve(0x6558, frame().build()));
    cases.frame("Geneve with IPv4", geneve(0x0800, bare(frame())));
    cases.frame("Geneve with something", geneve(0x1234, vec![1; 9]));
    let with_options = [&[1, 0x40, 0x65, 0x58, 0, 0, 100, 0, 1, 2, 3, 0][..], &frame().build()].concat();
    cases.frame("Geneve with options", outer(6081).payload(with_options));
    gre(cases, &frame().build());
    cases.frame("IP in IP", v4().ipv4([192, 168, 0, 1], [192, 168, 0, 2]).udp(3333, 4444).payload(b"x"));
    cases.frame("IPv6 in IPv4", v4().ipv6(A6, B6).udp(3333, 4444).payload(b"x"));
    cases.frame("IPv4 in IPv6", v6().ipv4(A4, B4).udp(3333, 4444).payload(b"x"));
    cases.frame("Ethernet in IPv6", v6().layer(extension(143, frame().build())));
}

fn arp_frame() -> Vec<u8> {
    let request = trawl_packet::build::Arp::request(A, A4.into(), B4.into());
    ethernet().layer(Layer::Arp(request)).build()
}

fn gre(cases: &mut Cases, frame: &[u8]) {
    let ip = &frame[14..];
    let tunnel = |header: &[u8], payload: &[u8]| v4_raw(47, [header, payload].concat());
    cases.frame("GRE with IPv4", tunnel(&[0, 0, 8, 0], ip));
    cases.frame("GRE with a frame", tunnel(&[0, 0, 0x65, 0x58], frame));
    cases.frame("GRE with key", tunnel(&[0x20, 0, 8, 0, 0, 0, 0, 42], ip));
    let all = [0xb0, 0, 8, 0, 0x12, 0x34, 0, 0, 0, 0, 0, 42, 0, 0, 0, 7];
    cases.frame("GRE with checksum, key, sequence", tunnel(&all, ip));
    cases.frame("GRE with something", tunnel(&[0, 0, 0x12, 0x34], ip));
    cases.frame("GRE of version 1", tunnel(&[0x30, 0x81, 0x88, 0x0b, 0, 9, 0, 3, 0, 0, 0, 7, 0, 0, 0, 6, 0, 0x21], ip));
    cases.cut("cut in GRE", tunnel(&[0x20, 0, 8, 0, 0, 0, 0, 42], ip), 14 + 20 + 6);
}
