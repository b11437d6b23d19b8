//! Negotiations and advertisements of routers: PPP options, BGP families, OSPF opaque advertisements, and labels in
//! ICMP errors.

use trawl_packet::checksum::Sum;

use super::{A4, B4, Cases, bare, typed, v4, v4_raw};

pub fn add(cases: &mut Cases) {
    ppp(cases);
    icmp_extensions(cases);
    opaque(cases);
    bgp(cases);
    let mut bfd = vec![0x20, 0xc4, 3, 48];
    bfd.extend([0, 0, 0, 1, 0, 0, 0, 2, 0, 4, 0x93, 0xe0, 0, 4, 0x93, 0xe0, 0, 0, 0, 0]);
    for (name, tail) in [
        ("BFD password", &[1, 9, 2, b's', b'e', b'c', b'r', b'e', b't'][..]),
        ("BFD digest", &[3, 24, 2, 0, 0, 0, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
        ("BFD of a wrong length", &[5, 27, 2, 0, 0, 0, 0, 5]),
    ] {
        let message = [&bfd[..], tail].concat();
        cases.frame(name, v4().udp(50_000, 3784).payload(message));
    }
}

/// Returns a control packet of PPP: code, identifier, length, options.
fn control(code: u8, options: &[u8]) -> Vec<u8> {
    let len = (4 + options.len()) as u16;
    [&[code, 7][..], &len.to_be_bytes(), options].concat()
}

fn ppp(cases: &mut Cases) {
    let mut session = |name, protocol: u16, content: Vec<u8>| {
        let len = (2 + content.len()) as u16;
        let head = [&[0x11, 0, 0, 9][..], &len.to_be_bytes(), &protocol.to_be_bytes()].concat();
        cases.frame(name, typed(0x8864, [head, content].concat()));
    };
    let lcp = [
        &[1, 4, 5, 220, 2, 6, 0, 0, 0, 0, 3, 5, 0xc2, 0x23, 5][..],
        &[3, 4, 0xc0, 0x23, 4, 8, 0xc0, 0x25, 0, 0, 0, 1, 5, 6, 1, 2, 3, 4],
        &[7, 2, 8, 2, 13, 3, 6, 17, 4, 5, 220, 19, 9, 3, 2, 0, 0, 0, 0, 1],
        &[23, 4, 0, 1, 9, 3, 1, 40, 3, 0],
    ]
    .concat();
    session("LCP request", 0xc021, control(1, &lcp));
    session("LCP option of a wrong length", 0xc021, control(1, &[1, 5, 0, 0, 0, 5, 6, 1, 2, 3, 4]));
    session("LCP option too long", 0xc021, control(3, &[5, 60, 1, 2, 3, 4]));
    session("LCP echo", 0xc021, control(9, &[1, 2, 3, 4, 9, 9]));
    session("LCP protocol reject", 0xc021, control(8, &[0x80, 0x57, 1, 2, 0, 4]));
    session("LCP terminate", 0xc021, control(5, b"bye"));
    session("LCP identification", 0xc021, control(12, b"\0\0\0\x01trawl"));
    session("LCP unknown code", 0xc021, control(77, &[1, 2]));
    let ipcp = [
        &[3, 6, 10, 0, 0, 9, 129, 6, 10, 0, 0, 53, 131, 6, 0, 0, 0, 0, 2, 6, 0, 0x2d, 15, 1][..],
        &[2, 14, 0, 0x61, 0, 16, 0, 8, 1, 0, 0, 5, 0, 168, 99, 4, 1, 2],
    ]
    .concat();
    session("IPCP nack", 0x8021, control(3, &ipcp));
    session("IP6CP", 0x8057, control(2, &[1, 10, 2, 0, 0, 0xff, 0xfe, 0, 0, 1]));
    session("CCP", 0x80fd, control(1, &[26, 4, 0x78, 0, 21, 3, 0x2f, 18, 6, 0, 0, 0, 1]));
    session("BACP", 0xc02b, control(1, &[1, 6, 1, 2, 3, 4]));
    session("PAP request", 0xc023, control(1, b"\x04user\x06secret"));
    session("PAP answer", 0xc023, control(3, b"\x02no"));
    session("CHAP challenge", 0xc223, control(1, b"\x04\x01\x02\x03\x04router"));
    session("CHAP success", 0xc223, control(3, b"welcome"));
    session("MLPPP", 0x003d, vec![0xc0, 5, 1, 2]);
    session("PPP of an unknown protocol", 0x4321, vec![1, 2, 3]);
    session("LQR", 0xc025, vec![1, 2, 3]);
}

fn icmp_extensions(cases: &mut Cases) {
    let quoted = {
        let mut packet = bare(v4().udp(40_000, 33_434).payload([1; 12]));
        packet.resize(128, 0);
        packet
    };
    let object = |class, kind, value: &[u8]| {
        let len = (4 + value.len()) as u16;
        [&len.to_be_bytes()[..], &[class, kind], value].concat()
    };
    let label = object(1, 1, &[0x01, 0x89, 0x61, 0x01]);
    let interface = object(2, 0x0e, &[0, 0, 0, 15, 0, 1, 0, 0, 10, 0, 0, 1]);
    for (name, version, length, objects) in [
        ("ICMP with a label", 0x20, 32, label.clone()),
        ("ICMP with a label and no length", 0x20, 0, label.clone()),
        ("ICMP with an interface", 0x20, 32, [label.clone(), interface].concat()),
        ("ICMP extension of another version", 0x10, 32, label.clone()),
        ("ICMP object too long", 0x20, 32, [&[0, 90, 2, 1][..], &[1; 8]].concat()),
    ] {
        let mut extension = [&[version, 0, 0, 0][..], &objects].concat();
        let sum = Sum::default().add(&extension).finish();
        extension[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut message = [&[11, 0, 0, 0, 0, length, 0, 0][..], &quoted, &extension].concat();
        let sum = Sum::default().add(&message).finish();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        cases.frame(name, v4_raw(1, message));
    }
}

/// Returns a type, a length and a value, which is padded to 32 bits.
fn padded(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = value.len() as u16;
    let mut out = [&kind.to_be_bytes()[..], &len.to_be_bytes(), value].concat();
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

fn opaque(cases: &mut Cases) {
    let mut update = |name, kind: u8, content: &[u8]| {
        let len = (20 + content.len()) as u16;
        let advertisement =
            [&[0, 7, 2, 10, kind, 0, 0, 3, 1, 1, 1, 1, 0x80, 0, 0, 2, 0xab, 0xcd][..], &len.to_be_bytes(), content]
                .concat();
        let len = (28 + advertisement.len()) as u16;
        let head = [
            &[2, 4][..],
            &len.to_be_bytes(),
            &[1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        ]
        .concat();
        cases.frame(name, v4_raw(89, [head, advertisement].concat()));
    };
    let rate = 1_250_000f32.to_bits().to_be_bytes();
    let switching = [&[1, 2, 0, 0][..], &rate.repeat(8)].concat();
    let link = [
        padded(1, &[1]),
        padded(2, &[10, 0, 0, 2]),
        padded(3, &[10, 0, 0, 1]),
        padded(4, &[10, 0, 0, 2]),
        padded(5, &[0, 0, 0, 63]),
        padded(6, &rate),
        padded(8, &rate.repeat(8)),
        padded(9, &[0, 0, 0, 5]),
        padded(11, &[0, 0, 0, 1, 0, 0, 0, 2]),
        padded(14, &[0x12, 0, 0, 0]),
        padded(15, &switching),
        padded(17, &[&[1, 0, 0, 0][..], &rate.repeat(2)].concat()),
        padded(99, &[1, 2, 3, 4]),
        // tcpdump reads too far after these.
        padded(16, &[0, 0, 0, 7, 0, 0, 0, 8]),
    ]
    .concat();
    update("OSPF link of traffic engineering", 1, &padded(2, &link));
    update("OSPF router of traffic engineering", 1, &padded(1, &[1, 1, 1, 1]));
    let wrong = padded(2, &padded(9, &[1, 2]));
    update("OSPF link of a wrong length", 1, &wrong);
    let grace = [padded(1, &[0, 0, 0, 40]), padded(2, &[2]), padded(3, &[10, 0, 0, 1])].concat();
    update("OSPF grace", 3, &grace);
    update("OSPF router information", 4, &padded(1, &[0, 0, 0, 0x30]));
    update("OSPF information of a wrong length", 4, &padded(1, &[0, 0, 0, 0x30, 0, 0]));
    update("OSPF opaque of an unknown type", 7, &[1, 2, 3, 4]);
}

fn bgp(cases: &mut Cases) {
    let mut update = |name, attributes: &[Vec<u8>]| {
        let attributes = attributes.concat();
        let len = (23 + attributes.len()) as u16;
        let message =
            [&[0xff; 16][..], &len.to_be_bytes(), &[2, 0, 0], &(attributes.len() as u16).to_be_bytes(), &attributes]
                .concat();
        let segment = trawl_packet::build::Tcp { src: 40_000, dst: 179, seq: 7, ack: 9, ..Default::default() };
        cases.frame(name, v4().tcp(segment).payload(message));
    };
    let attribute = |kind: u8, value: &[u8]| [&[0xc0, kind, value.len() as u8][..], value].concat();
    let distinguisher = [0, 0, 0xfd, 0xe8, 0, 0, 0, 7];
    let vpn4 = [
        &[0, 1, 128, 12][..],
        &distinguisher,
        &A4,
        &[0, 112, 0, 0x40, 0x11],
        &distinguisher,
        &[10, 1, 2],
        &[120, 0, 0x40, 0x10, 0, 1, 10, 0, 0, 1, 0, 9],
        &B4,
    ]
    .concat();
    let targets = [
        &[0, 2, 0xfd, 0xe8, 0, 0, 0, 7, 0x03, 0x0c, 0, 0, 0, 0, 0, 8][..],
        &[0x03, 0x06, 0, 0, 0, 1, 5, 1, 0, 9, 0xfd, 0xe8, 0, 0, 0, 0],
        &[0x01, 0x0b, 10, 0, 0, 1, 0, 7, 0x80, 0x00, 0, 0, 0, 0, 1, 0],
        &[0x01, 0x07, 10, 0, 0, 1, 0, 0],
    ]
    .concat();
    update("BGP VPN routes", &[attribute(14, &vpn4), attribute(16, &targets)]);
    let next = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let vpn6 =
        [&[0, 2, 128, 24][..], &[0; 8], &next, &[0, 136, 0, 0x40, 0x11, 0, 2, 0, 1, 0, 0, 0, 7], &next[..6]].concat();
    update("BGP VPN routes of IPv6", &[attribute(14, &vpn6)]);
    update("BGP labelled routes", &[attribute(14, &[0, 1, 4, 4, 10, 0, 0, 1, 0, 48, 0, 1, 0x41, 10, 1, 1])]);
    update("BGP labelled routes go", &[attribute(15, &[0, 1, 4, 48, 0x80, 0, 0, 10, 1, 1])]);
    let wanted = [
        &[0, 1, 132, 4, 10, 0, 0, 1, 0, 0, 96, 0, 0, 0xfd, 0xe8, 0, 2, 0xfd, 0xe8, 0, 0, 0, 7][..],
        &[32, 0, 0, 0, 22, 44, 0, 0, 0, 22, 0, 0x20],
    ]
    .concat();
    update("BGP route targets", &[attribute(14, &wanted)]);
    let tree = [&[0, 1, 66, 4, 10, 0, 0, 1, 0, 128][..], &distinguisher, &A4, &[239, 1, 1, 1]].concat();
    update("BGP default tree", &[attribute(14, &tree)]);
    update(
        "BGP tunnel, cost, set",
        &[
            attribute(22, &[1, 6, 0, 0x40, 0x10, 10, 0, 0, 1]),
            attribute(22, &[0, 1, 0, 0x40, 0x10, 10, 0, 0, 1, 0, 0, 0, 9]),
            attribute(26, &[1, 0, 11, 0, 0, 0, 0, 0, 0, 1, 0]),
            attribute(128, &[0, 0, 0xfd, 0xe9, 0x40, 1, 1, 0, 0x40, 5, 4, 0, 0, 0, 44]),
        ],
    );
    update("BGP prefix beyond its address", &[attribute(14, &[0, 1, 4, 4, 10, 0, 0, 1, 0, 99, 0, 1, 0x41])]);
    update("BGP flow specification", &[attribute(14, &[0, 1, 133, 0, 0, 5, 1, 24, 10, 1, 1])]);
    let evpn =
        [&[0, 25, 70, 4, 10, 0, 0, 1, 0, 2, 33][..], &distinguisher, &[0; 14], &[48, 2, 0, 0, 0, 0, 1, 0, 0, 0, 101]]
            .concat();
    update("BGP EVPN", &[attribute(14, &evpn)]);
}
