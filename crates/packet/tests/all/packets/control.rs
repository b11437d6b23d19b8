//! Packets between routers, bridges and clocks: OSPFv3, LLDP of data centres, NTP control.

use super::{Cases, extension, typed, v4, v6};

pub fn add(cases: &mut Cases) {
    ospf3(cases);
    lldp(cases);
    clocks_and_switches(cases);
    key_exchange(cases);
    let head = [0x16, 0x82, 0, 9, 6, 0x18, 0, 1, 0, 0, 0, 4];
    let control = [&head[..], b"a=1,"].concat();
    cases.frame("NTP control", v4().udp(123, 123).payload(control));
    let lying = [0x16, 0x82, 0, 9, 6, 0x18, 0, 1, 0, 0, 1, 0].to_vec();
    cases.frame("NTP control of a wrong length", v4().udp(123, 123).payload(lying));
}

/// Returns a frame of a protocol with one of Cisco's numbers in SNAP.
fn cisco(kind: u16, content: &[u8]) -> trawl_packet::build::Template {
    let [high, low] = kind.to_be_bytes();
    let payload = [&[0xaa, 0xaa, 3, 0, 0, 0xc, high, low][..], content].concat();
    typed(payload.len() as u16, payload)
}

fn clocks_and_switches(cases: &mut Cases) {
    let ptp = |kind: u8, content: &[u8]| {
        let len = (34 + content.len()) as u8;
        [
            &[kind, 2, 0, len, 3, 0, 2, 0][..],
            &[0; 8],
            &[0; 4],
            &[0, 0x1b, 0x19, 0xff, 0xfe, 0, 0, 1, 0, 1, 0, 7, 0, 0],
            content,
        ]
        .concat()
    };
    let time = [0, 0, 0x65, 0x53, 0xf1, 0, 0, 0, 0, 5];
    cases.frame("PTP sync", typed(0x88f7, ptp(0, &time)));
    cases.frame("PTP follow up", v4().udp(320, 320).payload(ptp(8, &time)));
    let announced =
        [&time[..], &[0, 37, 0, 128, 6, 0x21, 0x4e, 0x5d, 128], &[0, 0x1b, 0x19, 0xff, 0xfe, 0, 0, 1, 0, 2, 0x20]]
            .concat();
    let announce = ptp(11, &announced);
    cases.frame("PTP announce", v4().udp(320, 320).payload(announce));

    let hello = [&[0, 0, 16, 3, 10, 100, 1, 0][..], b"cisco\0\0\0", &[10, 0, 0, 254]].concat();
    cases.frame("HSRP hello", v4().udp(1985, 1985).payload(hello));
    let second = [
        &[1, 40, 2, 0, 6, 4, 0, 9, 2, 0, 0, 0, 0, 1, 0, 0, 0, 100][..],
        &[0, 0, 0, 3, 0, 0, 0, 10, 10, 0, 0, 254],
        &[0; 12],
    ]
    .concat();
    cases.frame("HSRP version 2", v4().udp(1985, 1985).payload(second));

    let mut summary = [&[1, 1, 0, 3][..], b"lab"].concat();
    summary.resize(72, 0);
    cases.frame("VTP summary", cisco(0x2003, &summary));
    let device = [0, 1, 0, 6, b's', b'w'];
    cases.frame("UDLD probe", cisco(0x0111, &[&[0x21, 1, 0x12, 0x34][..], &device].concat()));

    let secured = |flags: u8| {
        let tag = [flags, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0, 1];
        typed(0x88e5, [&tag[..], &[0xab; 48]].concat())
    };
    cases.frame("MACsec encrypted", secured(0x2d));
    let packet = super::bare(v4().udp(1, 2).payload(b"signed"));
    let signed = [&[0x01, 0, 0, 0, 0, 9, 8, 0][..], &packet, &[0xcd; 16]].concat();
    cases.frame("MACsec signed", typed(0x88e5, signed));

    let atm = [&[0, 19, 8, 0, 20, 0, 0, 1, 4, 20, 0, 4][..], &[0x47; 20], &[10, 0, 0, 1], &[0x48; 20], &[10, 0, 0, 2]]
        .concat();
    cases.frame("ARP over ATM", typed(0x0806, atm));
}

fn key_exchange(cases: &mut Cases) {
    let message = |responder: u8, version: u8, kind: u8, flags: u8, id: u8| {
        [&[1; 8][..], &[responder; 8], &[0, version, kind, flags, 0, 0, 0, id, 0, 0, 0, 28]].concat()
    };
    for (name, content) in [
        ("IKE first", message(0, 0x20, 34, 0x08, 0)),
        ("IKE answer", message(2, 0x20, 34, 0x20, 0)),
        ("IKE 1 main", message(0, 0x10, 2, 0, 0)),
        ("IKE 1 quick", message(2, 0x10, 32, 1, 9)),
    ] {
        cases.frame(name, v4().udp(500, 500).payload(content));
    }
    let inside = [&[0; 4][..], &message(2, 0x20, 37, 0x08, 3)].concat();
    cases.frame("IKE inside UDP", v4().udp(4500, 4500).payload(inside));
    // One byte holds the lengths of both ids: 5 + 3, and none.
    let google = [&[0xc3][..], b"Q046", &[0x50], &[7; 8], &[0; 30]].concat();
    cases.frame("QUIC of Google", v4().udp(40_000, 443).payload(google));
}

/// Returns an advertisement with its header.
fn advertisement(kind: u16, content: &[u8]) -> Vec<u8> {
    let len = (20 + content.len()) as u16;
    [
        &[0, 7][..],
        &kind.to_be_bytes(),
        &[0, 0, 0, 5, 1, 1, 1, 1, 0x80, 0, 0, 2, 0xab, 0xcd],
        &len.to_be_bytes(),
        content,
    ]
    .concat()
}

fn ospf3(cases: &mut Cases) {
    let message = |kind: u8, area: u8, content: &[u8], trailer: &[u8]| {
        let len = (16 + content.len()) as u16;
        let head = [&[3, kind][..], &len.to_be_bytes(), &[1, 1, 1, 1, 0, 0, 0, area, 0x12, 0x34, area, 0]].concat();
        v6().layer(extension(89, [&head[..], content, trailer].concat()))
    };
    let hello = [&[0, 0, 0, 6, 100, 0, 6, 0x13, 0, 30, 0, 120][..], &[3, 3, 3, 3, 2, 2, 2, 2, 9, 9, 9, 9]].concat();
    let signaling = [0xff, 0xf6, 0, 4];
    let digest = [&[0, 1, 0, 20, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9][..], &[5; 4]].concat();
    let trailer = [&signaling[..], &digest].concat();
    cases.frame("OSPFv3 hello", message(1, 0, &hello, &trailer));

    let prefix = [64, 0x02, 0, 10, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 1];
    let heads = advertisement(0xa001, &[]);
    let description = [&[0, 0, 1, 0x33, 5, 220, 0, 7, 0, 0, 0x1d, 0x46][..], &heads].concat();
    cases.frame("OSPFv3 description", message(2, 1, &description, &[]));
    let request = [0, 0, 0x40, 5, 0, 0, 0, 1, 1, 1, 1, 1];
    cases.frame("OSPFv3 request", message(3, 1, &request, &[]));
    cases.frame("OSPFv3 acknowledgement", message(5, 1, &heads, &[]));

    let link = |kind| {
        let head = [kind, 0, 0, 64, 0, 0, 0, 6];
        [&head[..], &[0, 0, 0, 7, 3, 3, 3, 3]].concat()
    };
    let router = [&[3, 0, 0, 0x33][..], &link(1), &link(2), &link(4)].concat();
    let local = [&[100, 0, 0, 0x33, 0xfe, 0x80][..], &[0; 13], &[1]].concat();
    let local = [&local[..], &[0, 0, 0, 1], &prefix].concat();
    let within = [&[0, 1, 0x20, 1, 0, 0, 0, 0, 1, 1, 1, 1][..], &prefix].concat();
    let outside = [&[3, 0, 0, 20][..], &prefix, &[0x20; 16], &[0, 0, 0, 99]].concat();
    let all = [
        advertisement(0x2001, &router),
        advertisement(0x2002, &[0, 0, 0, 0x33, 1, 1, 1, 1, 2, 2, 2, 2]),
        advertisement(0x2003, &[&[0, 0, 0, 74][..], &prefix].concat()),
        advertisement(0x4005, &outside),
        advertisement(0x0008, &local),
        advertisement(0x2009, &within),
        advertisement(0xe123, &[1, 2, 3, 4]),
    ];
    let count = [0, 0, 0, all.len() as u8];
    let update = [&count[..], &all.concat()].concat();
    cases.frame("OSPFv3 update", message(4, 0, &update, &[]));
    let bogus = advertisement(0x2003, &[0, 0, 0, 1, 200, 0, 0, 0]);
    let update = [&[0, 0, 0, 1][..], &bogus].concat();
    cases.frame("OSPFv3 update of a wrong prefix", message(4, 0, &update, &[]));
}

fn lldp(cases: &mut Cases) {
    let element = |kind: u16, value: &[u8]| {
        let head = kind << 9 | value.len() as u16;
        [&head.to_be_bytes()[..], value].concat()
    };
    let begin = [element(1, &[4, 2, 0, 0, 0, 0, 1]), element(2, b"\x07p1"), element(3, &[0, 120])].concat();
    let mut frame = |name, organization: &[u8]| {
        let all = [&begin[..], &element(127, organization), &element(0, &[])].concat();
        cases.frame(name, typed(0x88cc, all));
    };
    frame("LLDP EVB", &[0, 0x80, 0xc2, 13, 7, 0x1f, 0x75, 0xbe, 0x6f]);
    let channels = [0, 0x80, 0xc2, 14, 0x98, 0, 0, 167, 0, 0x10, 1, 0, 0x20, 2];
    frame("LLDP CDCP", &channels);
    let exchange = [
        &[0, 0x1b, 0x21, 2][..],
        &element(1, &[0, 0, 0, 0, 0, 3, 0, 0, 0, 2]),
        &element(2, &[0, 0, 0xc0, 0, 0x01, 0x23, 0x45, 0x67, 50, 50, 0, 0, 0, 0, 0, 0, 8]),
        &element(3, &[0, 0, 0x80, 0, 8, 8]),
        &element(4, &[0, 0, 0x80, 0, 0x89, 6, 0, 0x1b, 0x21, 8, 0xc, 0xbc, 0x40, 0x1b, 0x21, 0x10]),
        &element(9, &[1, 2, 3]),
    ]
    .concat();
    frame("LLDP DCBX", &exchange);
    frame("LLDP DCBX of the first revision", &[0, 0x1b, 0x21, 1, 1]);
}
