//! NFS calls with their replies, PIM, Multipath TCP, frame relay, and ICMPv6 messages of nodes and routers.

use trawl_packet::build::Icmp;
use trawl_packet::checksum::Sum;

use super::{A4, A6, B4, Cases, ethernet, v4, v4_raw, v6};

pub fn add(cases: &mut Cases) {
    nfs(cases);
    multipath(cases);
    pim(cases);
    nodes(cases);
    frame_relay(cases);
    let stack = [0, 6, 0x40, 64, 0, 0xc, 0x81, 64];
    let inner = super::bare(v4().icmp(Icmp::echo_request(7, 1)));
    let packet = [&stack[..], &inner].concat();
    cases.frame("MPLS over UDP", v4().udp(50_000, 6635).payload(packet));
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_be_bytes()).collect()
}

fn text(bytes: &[u8]) -> Vec<u8> {
    let mut out = words(&[bytes.len() as u32]);
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// A call and its reply, which is meaningless without it.
struct Exchange {
    names: [&'static str; 2],
    version: u32,
    procedure: u32,
    asked: Vec<Vec<u8>>,
    answered: Vec<Vec<u8>>,
}

fn nfs(cases: &mut Cases) {
    let handle = text(&[9; 32]);
    let attributes = words(&[1, 0o100_644, 1, 1000, 1000, 0, 5000, 0, 8192, 0, 0, 0, 7, 0, 77, 5, 6, 7, 8, 9, 10]);
    let present = [&words(&[1])[..], &attributes].concat();
    let changed = [&words(&[1, 0, 5, 1, 2, 3, 4])[..], &present].concat();
    let new = words(&[1, 0o644, 0, 1, 7, 0, 2, 5, 6, 0]);
    let old = words(&[1, 0o100_644, 1, 0, u32::MAX - 1, 500, 512, 0, 1, 2, 3, 1, 2, 3, 4, 5, 6]);
    let exchange = |names, procedure, asked: &[&[u8]], answered: &[&[u8]]| Exchange {
        names,
        version: 3,
        procedure,
        asked: asked.iter().map(|part| part.to_vec()).collect(),
        answered: answered.iter().map(|part| part.to_vec()).collect(),
    };
    let name = text(b"name");
    let good = words(&[0]);
    let exchanges = [
        exchange(["NFS getattr", "NFS attributes"], 1, &[&handle], &[&good, &attributes]),
        exchange(["NFS lookup", "NFS found"], 3, &[&handle, &name], &[&good, &handle, &present, &present]),
        exchange(["NFS lookup in vain", "NFS not found"], 3, &[&handle, &name], &[&words(&[2, 0])]),
        exchange(["NFS access", "NFS rights"], 4, &[&handle, &words(&[0x1f])], &[&good, &present, &words(&[0x1f])]),
        exchange(["NFS readlink", "NFS link"], 5, &[&handle], &[&good, &present, &text(b"target")]),
        exchange(
            ["NFS read", "NFS data"],
            6,
            &[&handle, &words(&[0, 4096, 8192])],
            &[&good, &present, &words(&[4, 1]), &text(b"data")],
        ),
        exchange(
            ["NFS write", "NFS written"],
            7,
            &[&handle, &words(&[0, 0, 5, 2]), &text(b"hello")],
            &[&good, &changed, &words(&[5, 2, 0x1234_5678, 9])],
        ),
        exchange(
            ["NFS create", "NFS created"],
            8,
            &[&handle, &name, &words(&[0]), &new],
            &[&good, &words(&[1]), &handle, &present, &changed],
        ),
        exchange(
            ["NFS symlink", "NFS symlink made"],
            10,
            &[&handle, &name, &new, &text(b"to")],
            &[&good, &words(&[0]), &present, &changed],
        ),
        exchange(
            ["NFS mknod", "NFS node"],
            11,
            &[&handle, &name, &words(&[4]), &new, &words(&[8, 1])],
            &[&good, &words(&[1]), &handle, &present, &changed],
        ),
        exchange(["NFS rename", "NFS renamed"], 14, &[&handle, &name, &handle, &name], &[&good, &changed, &changed]),
        exchange(["NFS hard link", "NFS linked"], 15, &[&handle, &handle, &name], &[&words(&[13]), &present, &changed]),
        exchange(
            ["NFS readdirplus", "NFS entries"],
            17,
            &[&handle, &words(&[0, 0, 1, 2, 512, 4096])],
            &[&good, &present, &words(&[1, 2, 0, 1])],
        ),
        exchange(
            ["NFS fsstat", "NFS figures"],
            18,
            &[&handle],
            &[&good, &present, &words(&[0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 7])],
        ),
        exchange(
            ["NFS fsinfo", "NFS limits"],
            19,
            &[&handle],
            &[&good, &present, &words(&[1, 2, 3, 4, 5, 6, 7, 0, 8, 1, 2, 3])],
        ),
        exchange(["NFS pathconf", "NFS names"], 20, &[&handle], &[&good, &present, &words(&[1, 255, 1, 0, 1, 0])]),
        exchange(
            ["NFS commit", "NFS committed"],
            21,
            &[&handle, &words(&[0, 1, 2])],
            &[&good, &changed, &words(&[3, 4])],
        ),
        Exchange {
            version: 2,
            ..exchange(["NFS 2 lookup", "NFS 2 found"], 4, &[&[9; 32], &name], &[&good, &[9; 32], &old])
        },
        Exchange {
            version: 2,
            ..exchange(["NFS 2 statfs", "NFS 2 figures"], 17, &[&[9; 32]], &[&words(&[0, 1, 2, 3, 4, 5])])
        },
    ];
    let back = ethernet().ipv4(B4, A4).udp(2049, 800);
    for (id, exchange) in (100..).zip(exchanges) {
        let Exchange { names: [call, reply], version, procedure, asked, answered } = exchange;
        let head = words(&[id, 0, 2, 100_003, version, procedure, 1, 4, 7, 0, 0]);
        let message = [head, asked.concat()].concat();
        cases.frame(call, v4().udp(800, 2049).payload(message));
        let message = [words(&[id, 1, 0, 0, 0, 0]), answered.concat()].concat();
        cases.frame(reply, back.clone().payload(message));
    }
    for (name, message) in [
        ("NFS reply without a call", words(&[1, 1, 0, 0, 0, 0])),
        ("NFS reply to a stranger", words(&[1, 1, 1, 1, 2])),
        ("NFS reply to a version", words(&[1, 1, 1, 0, 2, 3])),
    ] {
        cases.frame(name, back.clone().payload(message));
    }
}

fn multipath(cases: &mut Cases) {
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    let mut segment = |name, flags: u8, option: &[u8]| {
        let mut options = option.to_vec();
        options.resize(options.len().next_multiple_of(4), 1);
        let offset = ((20 + options.len()) / 4) as u8;
        let header =
            [&[0x9c, 0x40, 0, 81, 0, 0, 0, 1, 0, 0, 0, 0][..], &[offset << 4, flags, 3, 232, 0, 0, 0, 0], &options];
        cases.frame(name, v4_raw(6, header.concat()));
    };
    let key = [1, 2, 3, 4, 5, 6, 7, 8];
    let with = |head: &[u8], tail: &[u8]| [head, tail].concat();
    segment("MPTCP capable", SYN, &with(&[30, 12, 0, 0x81], &key));
    segment("MPTCP capable 1", SYN, &[30, 4, 1, 1]);
    segment("MPTCP capable, both keys", ACK, &with(&[30, 20, 1, 1], &[key, key].concat()));
    segment("MPTCP join", SYN, &with(&[30, 12, 0x11, 3], &key));
    segment("MPTCP join, answered", SYN | ACK, &with(&[30, 16, 0x10, 3], &[9; 12]));
    segment("MPTCP join, agreed", ACK, &with(&[30, 24, 0x10, 0], &[7; 20]));
    segment("MPTCP sequence", ACK, &with(&[30, 28, 0x20, 0x1f], &[5; 24]));
    segment("MPTCP short sequence", ACK, &with(&[30, 18, 0x20, 0x05], &[5; 14]));
    segment("MPTCP address", ACK, &[30, 10, 0x34, 5, 10, 0, 0, 9, 31, 144]);
    segment("MPTCP address 6", ACK, &with(&[30, 28, 0x30, 5], &[2; 24]));
    segment("MPTCP removal", ACK, &[30, 6, 0x40, 7, 8, 9]);
    segment("MPTCP priority", ACK, &[30, 4, 0x51, 6]);
    segment("MPTCP failure", ACK, &with(&[30, 12, 0x60, 0], &key));
    segment("MPTCP end", ACK, &with(&[30, 12, 0x70, 0], &key));
}

fn pim(cases: &mut Cases) {
    let group = [1, 0, 0, 32, 239, 1, 1, 1];
    let wide = [1, 0, 0, 24, 239, 1, 1, 0];
    let neighbor = [1, 0, 10, 0, 0, 9];
    let source = [1, 0, 7, 32, 10, 0, 0, 1];
    let option =
        |kind: u16, value: &[u8]| [&kind.to_be_bytes()[..], &(value.len() as u16).to_be_bytes(), value].concat();
    let hello = [
        option(1, &[0, 105]),
        option(2, &[0x81, 0xf4, 9, 0xc4]),
        option(19, &[0, 0, 0, 1]),
        option(20, &[0, 0, 0x30, 0x39]),
        option(21, &[1, 60, 0, 0]),
        option(22, &[]),
        option(24, &neighbor),
        option(99, b"xyz"),
    ];
    let join = [&[0, 1, 0, 210][..], &group, &[0, 1, 0, 1], &source, &[1, 0, 12, 32, 10, 0, 0, 3]].concat();
    let registered = super::bare(v4().udp(5, 6));
    let election = [&neighbor[..], &words(&[1, 2])].concat();
    let backoff = [&election[..], &neighbor, &words(&[3, 4]), &[1, 244]].concat();
    for (name, kind, subtype, body) in [
        ("PIM hello with options", 0, 0, hello.concat()),
        ("PIM register", 1, 0, [&[0x40, 0, 0, 0][..], &registered].concat()),
        ("PIM register stop", 2, 0, [&group[..], &neighbor].concat()),
        ("PIM join", 3, 0, [&neighbor[..], &join].concat()),
        (
            "PIM bootstrap",
            4,
            0,
            [&[0x12, 0x34, 30, 192][..], &neighbor, &wide, &[1, 1, 0, 0], &neighbor, &[0, 150, 7, 0]].concat(),
        ),
        ("PIM assert", 5, 0, [&group[..], &neighbor, &words(&[0x8000_0001, 20])].concat()),
        ("PIM graft", 6, 0, [&neighbor[..], &join].concat()),
        ("PIM graft answered", 7, 0, join),
        ("PIM candidate", 8, 0, [&[1, 192, 0, 150][..], &neighbor, &wide].concat()),
        ("PIM DF offer", 10, 1, election),
        ("PIM DF backoff", 10, 3, backoff),
    ] {
        let mut message = [&[0x20 | kind, subtype << 4, 0, 0][..], &body].concat();
        let sum = Sum::default().add(&message).finish();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        cases.frame(name, v4_raw(103, message));
    }
    let mut register = [&[0x21, 0, 0xab, 0xcd, 0x40, 0, 0, 0][..], &registered].concat();
    register.resize(200, 0);
    cases.cut("PIM register cut", v4_raw(103, register), 14 + 20 + 100);
    let body = [
        &[10, 0, 0, 9, 0, 0, 0, 210, 0, 32, 4, 1, 239, 1, 1, 1][..],
        &[255, 255, 255, 255, 0, 1, 0, 0, 5, 0x60, 10, 0, 0, 1],
    ]
    .concat();
    for (name, kind) in [
        ("PIM 1 query", 0),
        ("PIM 1 register", 1),
        ("PIM 1 register stop", 2),
        ("PIM 1 join", 3),
        ("PIM 1 reachable", 4),
        ("PIM 1 assert", 5),
        ("PIM 1 unknown", 9),
    ] {
        let mut message = [&[0x14, kind, 0, 0, 0x10, 0, 0, 0][..], &body].concat();
        let sum = Sum::default().add(&message).finish();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        cases.frame(name, v4_raw(2, message));
    }
}

fn nodes(cases: &mut Cases) {
    let mut message = |name, kind, code, rest, more: &[&[u8]]| {
        let icmp = Icmp { kind, code, rest };
        cases.frame(name, v6().icmpv6(icmp).payload(more.concat()));
    };
    let nonce = [1, 2, 3, 4, 5, 6, 7, 8];
    let address = A6.map(u16::to_be_bytes).concat();
    let full = b"\x04host\x07example\x03com\0";
    message("node noop", 139, 1, [0; 4], &[&nonce]);
    message("node name of an address", 139, 0, [0, 2, 0, 0], &[&nonce, &address]);
    message("node name of a name", 139, 1, [0, 2, 0, 0], &[&nonce, full, &[0]]);
    message("node addresses", 139, 2, [0, 3, 0, 0x3e], &[&nonce, &[10, 0, 0, 2]]);
    message("node has a name", 140, 0, [0, 2, 0, 0], &[&nonce, &[0, 0, 0, 60], full]);
    message("node has addresses", 140, 0, [0, 3, 0, 0x3f], &[&nonce, &[0, 0, 0, 60], &address]);
    message("node refuses", 140, 1, [0, 3, 0, 0], &[&nonce]);
    let matched = [&[1, 7, 1, 48, 0, 64, 0, 0][..], &address].concat();
    let used = [&[48, 16, 0xc0, 0x80, 0, 0, 14, 16, 255, 255, 255, 255, 0x80, 0, 0, 0][..], &address].concat();
    message("renumbering", 138, 0, [0, 0, 0, 5], &[&[0, 0xe0, 0, 100, 0, 0, 0, 0], &matched, &used]);
    message("renumbering done", 138, 1, [0, 0, 0, 5], &[&[2, 0x18, 0, 0, 0, 0, 0, 0]]);
    let quoted = super::bare(v6().udp(1, 2));
    message("incomplete header chain 6", 4, 3, [0, 0, 0, 40], &[&quoted]);
    message("unknown unreachable 6", 1, 7, [0; 4], &[&quoted]);
    let record = [&[5, 0, 0, 9][..], &address].concat();
    message("listener report 6 of wrong counts", 143, 0, [0, 0, 0, 2], &[&record]);
    message("agents 6", 144, 0, [1, 2, 0, 0], &[]);
    message("agents found 6", 145, 0, [1, 2, 0, 0], &[&address]);
    message("prefix wanted 6", 146, 0, [1, 2, 0, 0], &[]);
}

fn frame_relay(cases: &mut Cases) {
    let echo = super::bare(v4().icmp(Icmp::echo_request(7, 1)));
    let mut frame = |name, head: &[u8], inner: &[u8]| {
        cases.link(name, 107, [head, inner].concat());
    };
    frame("frame relay IP", &[0x18, 0x41, 3, 0xcc], &echo);
    frame("frame relay SNAP", &[0x18, 0x4f, 3, 0, 0x80, 0, 0, 0, 8, 0], &echo);
    frame("frame relay of Cisco", &[0x18, 0x41, 8, 0], &echo);
    frame("frame relay, long address", &[0x1a, 0x40, 2, 0x13, 3, 0xcc], &echo);
    frame("frame relay, fragment", &[0x18, 0x41, 3, 0xb1, 0xc0, 5], b"abcd");
    frame("frame relay without an end", &[0x18, 0x40, 0x40, 0x40], b"abcd");
    frame("frame relay asks for its state", &[0, 1, 3, 8, 0, 0x75, 0x95], &[1, 1, 0, 3, 2, 5, 6]);
    frame(
        "frame relay tells its state",
        &[0, 1, 3, 8, 0, 0x7d],
        &[0x51, 1, 0, 0x53, 2, 5, 6, 0x57, 3, 6, 0xc0, 0x82, 0x11, 1, 9],
    );
}
