//! Link layers, ARP, and protocols directly on top of Ethernet.

use super::{A, A4, B, B4, Cases, bare, ethernet, typed, v4, v6};
use trawl_packet::build::{Arp, Layer, Template, Vlan};

pub fn add(cases: &mut Cases) {
    vlans(cases);
    arp(cases);
    carriers(cases);
    llc(cases);
    other_links(cases);
}

fn vlans(cases: &mut Cases) {
    let inside = |t: Template| t.ipv4(A4, B4).udp(1111, 2222).payload(b"x");
    cases.frame("802.1Q", inside(ethernet().vlan(5)));
    let tag = Vlan { id: 100, service: true, priority: 3, drop_eligible: true, ..Vlan::default() };
    cases.frame("802.1ad", inside(ethernet().layer(Layer::Vlan(tag)).vlan(7)));
    cases.frame("QinQ with 0x8100 twice", inside(ethernet().vlan(5).vlan(7)));
    let unknown = Vlan { id: 9, ethertype: Some(0x1234), ..Vlan::default() };
    cases.frame("802.1Q with an unknown type", ethernet().layer(Layer::Vlan(unknown)).payload(b"abcdef"));
    cases.cut("cut in a VLAN tag", inside(ethernet().vlan(5)), 16);
    cases.cut("cut in the Ethernet header", v4().udp(1, 2), 10);
}

fn arp(cases: &mut Cases) {
    let request = Arp::request(A, A4.into(), B4.into());
    cases.frame("ARP request", ethernet().arp(request).frame_len(60));
    cases.frame("ARP reply", ethernet().arp(Arp::reply(B, B4.into(), A, A4.into())));
    cases.frame("ARP request to a known address", ethernet().arp(Arp { target_mac: B, ..request }));
    cases.frame("ARP of an unknown operation", ethernet().arp(Arp { operation: 77, ..request }));
    cases.frame("reverse ARP request", ethernet().arp(Arp { operation: 3, target_mac: A, ..request }));
    cases.frame("reverse ARP reply", ethernet().arp(Arp { operation: 4, target_mac: A, ..request }));
    cases.cut("cut in ARP", ethernet().arp(request), 30);
    let mut odd = bare(ethernet().arp(request));
    odd[2..4].copy_from_slice(&0x86ddu16.to_be_bytes());
    cases.frame("ARP for another protocol", typed(0x0806, odd));
}

fn carriers(cases: &mut Cases) {
    cases.frame("unknown ethertype", typed(0x88b5, b"0123456789abcdefghijk".to_vec()));
    let udp = bare(v4().udp(1111, 2222).payload(b"x"));
    let udp6 = bare(v6().udp(1111, 2222).payload(b"x"));
    let labels = [[0, 0x06, 0x40, 64], [0, 0x06, 0x57, 63]].concat();
    cases.frame("MPLS with IPv4", typed(0x8847, [&labels[..], &udp].concat()));
    cases.frame("MPLS with IPv6", typed(0x8847, [&labels[4..], &udp6].concat()));
    cases.frame("MPLS explicit null", typed(0x8847, [&[0, 0, 1, 64][..], &udp].concat()));
    cases.frame("MPLS with something else", typed(0x8847, [&labels[4..], &[0x12; 20]].concat()));
    let session = |ip: &[u8], protocol: u16| {
        let len = (ip.len() + 2) as u16;
        [&[0x11, 0, 0, 0x11][..], &len.to_be_bytes(), &protocol.to_be_bytes(), ip].concat()
    };
    cases.frame("PPPoE with IPv4", typed(0x8864, session(&udp, 0x0021)));
    cases.frame("PPPoE with IPv6", typed(0x8864, session(&udp6, 0x0057)));
    let padi = [0x11, 9, 0, 0, 0, 12, 1, 1, 0, 0, 1, 3, 0, 4, 0xaa, 0xbb, 0xcc, 0xdd];
    cases.frame("PPPoE discovery", typed(0x8863, padi.to_vec()));
    let lldp = [&[2, 7, 4, 2, 0, 0, 0, 0, 1, 4, 3, 7][..], b"p1", &[6, 2, 0, 120, 10, 7], b"switch1", &[0, 0]];
    cases.frame("LLDP", typed(0x88cc, lldp.concat()));
    let slow = [&[1, 1, 1, 20][..], &[0; 106]].concat();
    cases.frame("LACP", typed(0x8809, slow));
    cases.frame("EAPOL start", typed(0x888e, vec![1, 1, 0, 0]));
    let loopback = [0, 0, 1, 0, 5, 0, 1, 2, 3, 4];
    cases.frame("loopback", typed(0x9000, loopback.to_vec()));
}

fn llc(cases: &mut Cases) {
    let config = stp(0, 0x01);
    let frame = |bytes: &[u8]| typed(bytes.len() as u16, bytes.to_vec());
    cases.frame("STP", frame(&config).frame_len(60));
    cases.frame("rapid STP", frame(&[&stp(2, 0x3e)[..], &[0]].concat()).frame_len(60));
    cases.frame("STP topology change", frame(&[0x42, 0x42, 3, 0, 0, 0, 0x80]).frame_len(60));
    let udp = bare(v4().udp(1111, 2222).payload(b"x"));
    let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &udp].concat();
    cases.frame("SNAP with IPv4", frame(&snap));
}

fn stp(version: u8, flags: u8) -> Vec<u8> {
    let kind = if version == 0 { 0 } else { 2 };
    let mut bytes = vec![0x42, 0x42, 3, 0, 0, version, kind, flags];
    bytes.extend([0x80, 1, 2, 0, 0, 0, 0, 9, 0, 0, 0, 4]);
    bytes.extend([0x80, 2, 2, 0, 0, 0, 0, 8, 0x80, 5]);
    bytes.extend([0, 0, 20, 0, 2, 0, 15, 0]);
    bytes
}

fn other_links(cases: &mut Cases) {
    let udp = bare(v4().udp(1111, 2222).payload(b"x"));
    let udp6 = bare(v6().udp(1111, 2222).payload(b"x"));
    cases.link("raw IPv4", 101, udp.clone());
    cases.link("raw IPv6", 101, udp6.clone());
    cases.link("raw something", 101, vec![0x12; 20]);
    let cooked = |kind: u8, ethertype: u16| {
        let mut header = vec![0, kind, 0, 1, 0, 6];
        header.extend(A);
        header.extend([0, 0]);
        header.extend(ethertype.to_be_bytes());
        header
    };
    cases.link("cooked IPv4", 113, [cooked(0, 0x0800), udp.clone()].concat());
    cases.link("cooked IPv6 out", 113, [cooked(4, 0x86dd), udp6.clone()].concat());
    cases.link("cooked unknown", 113, [cooked(2, 0x1234), vec![1; 8]].concat());
    let cooked2 = |kind: u8, ethertype: u16| {
        let mut header = ethertype.to_be_bytes().to_vec();
        header.extend([0, 0, 0, 0, 0, 99, 0, 1, kind, 6]);
        header.extend(B);
        header.extend([0, 0]);
        header
    };
    cases.link("cooked 2 IPv4", 276, [cooked2(0, 0x0800), udp.clone()].concat());
    cases.link("cooked 2 out", 276, [cooked2(4, 0x86dd), udp6].concat());
    cases.link("null IPv4", 0, [&[2, 0, 0, 0][..], &udp].concat());
    cases.link("null IPv4 swapped", 0, [&[0, 0, 0, 2][..], &udp].concat());
}
