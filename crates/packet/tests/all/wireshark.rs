//! Checks written pcapng by Wireshark's tools: they must show every option correctly.

use crate::common::{Scratch, have, run};
use trawl_packet::pcapng::note::keys::FIELDS;
use trawl_packet::pcapng::{Direction, Interface, PacketProcess, Verdict, block, write};

fn frame() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    frame.resize(61, 0x5a);
    frame
}

/// Returns a file with every option.
fn file() -> Vec<u8> {
    let mut out = Vec::new();
    write::section_header(
        &mut out,
        &write::SectionHeader {
            hardware: Some("x86_64 test"),
            os: Some("Linux 6.18"),
            userappl: Some("trawl 0.1.0"),
            comment: Some("section comment"),
        },
    );
    for (name, mac) in [("veth0", 1), ("veth1", 2)] {
        write::interface_description(
            &mut out,
            &Interface {
                link_type: block::LINKTYPE_ETHERNET,
                snaplen: 262_144,
                name: Some(name.into()),
                description: Some("xdp exit".into()),
                filter: Some("udp port 53".into()),
                speed: Some(10_000_000_000),
                mac: Some([2, 0, 0, 0, 0, mac]),
                hardware: Some("veth driver".into()),
                os: Some("Linux".into()),
                comments: vec!["first".into(), "second".into()],
                ..Interface::default()
            },
        );
    }
    let frame = frame();
    let packet = write::EnhancedPacket {
        interface_id: 0,
        timestamp_ns: 1_700_000_000_123_456_789,
        captured: &frame,
        original_len: 1500,
        flags: Some(Direction::In.flags()),
        queue: Some(3),
        packet_id: Some(0x0102_0304_0506_0708),
        drop_count: Some(17),
        verdict: Some(Verdict::Xdp(1)),
        process: Some(PacketProcess { id: 1234, thread: 0 }),
        comment: Some("a packet"),
    };
    write::enhanced_packet(&mut out, &packet);
    let second = write::EnhancedPacket {
        interface_id: 1,
        flags: Some(Direction::Out.flags()),
        verdict: Some(Verdict::Tc(2)),
        comment: None,
        ..packet
    };
    write::enhanced_packet(&mut out, &second);
    write::interface_statistics(
        &mut out,
        &write::InterfaceStatistics {
            interface_id: 0,
            timestamp_ns: 1_700_000_001_000_000_000,
            start_ns: Some(1_700_000_000_000_000_000),
            end_ns: Some(1_700_000_001_000_000_000),
            if_received: Some(100),
            if_dropped: Some(5),
            filter_accepted: Some(50),
            os_dropped: Some(6),
            user_delivered: Some(44),
            comment: Some("statistics comment"),
        },
    );
    out
}

#[test]
fn tshark_shows_every_packet_option() {
    if !have("tshark") {
        return;
    }
    let scratch = Scratch::new("tshark");
    let path = scratch.write("all.pcapng", &file());
    let mut args = vec!["-T", "fields", "-E", "separator=|"];
    for field in [
        "frame.time_epoch",
        "frame.interface_name",
        "frame.interface_description",
        "frame.packet_id",
        "frame.interface_queue",
        "frame.verdict.ebpf_xdp",
        "frame.verdict.ebpf_tc",
        "frame.packet_flags_direction",
        "frame.drop_count",
        "frame.comment",
        "frame.cap_len",
        "frame.len",
    ] {
        args.extend(["-e", field]);
    }
    args.push("-r");
    let text = run("tshark", &args, &path);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "1700000000.123456789|veth0|xdp exit|72623859790382856|3|1||0x00000001|17|a packet|61|1500",
            "1700000000.123456789|veth1|xdp exit|72623859790382856|3||2|0x00000002|17||61|1500",
        ]
    );
}

#[test]
fn tshark_knows_the_names_of_addresses() {
    if !have("tshark") {
        return;
    }
    let addresses = ["10.1.2.3", "2001:db8::7"].map(|text| text.parse().expect("an address"));
    let mut out = file();
    write::names(&mut out, addresses.map(|address| (address, "default/web-0")));
    let scratch = Scratch::new("names");
    let path = scratch.write("names.pcapng", &out);
    let text = run("tshark", &["-q", "-z", "hosts", "-r"], &path);
    for address in addresses {
        let line = format!("{address}\tdefault/web-0");
        assert!(text.lines().any(|shown| shown == line), "{text}");
    }
}

/// capinfos shows only the first comment of an interface.
#[test]
fn capinfos_shows_section_interfaces_and_statistics() {
    if !have("capinfos") {
        return;
    }
    let scratch = Scratch::new("capinfos");
    let path = scratch.write("all.pcapng", &file());
    let text = run("capinfos", &[], &path);
    for expected in [
        "Number of packets:   2",
        "Capture hardware:    x86_64 test",
        "Capture oper-sys:    Linux 6.18",
        "Capture application: trawl 0.1.0",
        "Capture comment:     section comment",
        "Number of interfaces in file: 2",
        "Name = veth0",
        "Name = veth1",
        "Description = xdp exit",
        "Hardware = veth driver",
        "Encapsulation = Ethernet",
        "Capture length = 262144",
        "Speed = 10000000000",
        "Time precision = nanoseconds (9)",
        "Time ticks per second = 1000000000",
        "Time resolution = 0x09",
        "Filter string = udp port 53",
        "Operating system = Linux",
        "Comment = first",
        "Number of stat entries = 1",
        "Number of packets = 1",
    ] {
        assert!(text.contains(expected), "capinfos does not show {expected:?}:\n{text}");
    }
}

/// The post-dissector that the packages install.
const DISSECTOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/wireshark/trawl.lua");

/// Comments of packets, and the fields of each. Several values of a field have a semicolon between them.
const COMMENTS: &[(&str, &[(&str, &str)])] = &[
    (
        "drop=SOCKET_RCVBUFF at=__udp_enqueue+0x1 netns=pb segs=3 sock=udp:53 addr=10.9.2.2 pid=4711 comm=dnsd rcvbuf=212992 stack=a+0x1,b+0x2",
        &[
            ("trawl.drop.reason", "SOCKET_RCVBUFF"),
            ("trawl.drop.location", "__udp_enqueue+0x1"),
            ("trawl.drop.function", "__udp_enqueue"),
            ("trawl.drop.namespace", "pb"),
            ("trawl.drop.stack", "a+0x1;b+0x2"),
            ("trawl.drop.fix", "raise SO_RCVBUF or net.core.rmem_max, or read faster"),
            ("trawl.segments", "3"),
            ("trawl.socket.protocol", "udp"),
            ("trawl.socket.port", "53"),
            ("trawl.socket.address", "10.9.2.2"),
            ("trawl.socket.receive_buffer", "212992"),
            ("trawl.process.pid", "4711"),
            ("trawl.process.name", "dnsd"),
        ],
    ),
    (
        "drop=NETFILTER_DROP at=nft_do_chain+0x3e8 netns=pb rule=inet,f,in,18446744073709551615",
        &[
            ("trawl.drop.reason", "NETFILTER_DROP"),
            ("trawl.drop.location", "nft_do_chain+0x3e8"),
            ("trawl.drop.function", "nft_do_chain"),
            ("trawl.drop.namespace", "pb"),
            ("trawl.drop.rule", "rule 18446744073709551615 of inet f in"),
            ("trawl.drop.rule.family", "inet"),
            ("trawl.drop.rule.table", "f"),
            ("trawl.drop.rule.chain", "in"),
            ("trawl.drop.rule.handle", "18446744073709551615"),
            ("trawl.drop.fix", "rule 18446744073709551615 of inet f in: ip netns exec pb nft list chain inet f in"),
        ],
    ),
    (
        "drop=NETFILTER_DROP at=x+0x1 netns=4026531840 rule=ip,filter,INPUT loss=no by=cgroup:77 unknown=word",
        &[
            ("trawl.drop.reason", "NETFILTER_DROP"),
            ("trawl.drop.location", "x+0x1"),
            ("trawl.drop.function", "x"),
            ("trawl.drop.namespace", "4026531840"),
            ("trawl.drop.rule", "policy of ip filter INPUT"),
            ("trawl.drop.rule.family", "ip"),
            ("trawl.drop.rule.table", "filter"),
            ("trawl.drop.rule.chain", "INPUT"),
            ("trawl.drop.no_loss", "no"),
            ("trawl.drop.cgroup", "77"),
            ("trawl.drop.fix", "policy of ip filter INPUT: nft list chain ip filter INPUT"),
        ],
    ),
    (
        "drop=7 at=x+0x1 socket=5_cgroup=/a_b_owner=shared",
        &[
            ("trawl.drop.reason", "7"),
            ("trawl.drop.location", "x+0x1"),
            ("trawl.drop.function", "x"),
            ("trawl.socket.cookie", "5"),
            ("trawl.socket.cgroup", "/a_b"),
            ("trawl.process.owner", "shared"),
        ],
    ),
    (
        "step=postrouting side=last found=buffer number=7 ct=established,reply nat=src,dst by=dns_d[7] netns=pb segs=2",
        &[
            ("trawl.step", "postrouting"),
            ("trawl.step.side", "last"),
            ("trawl.step.found", "buffer"),
            ("trawl.step.number", "7"),
            ("trawl.step.tracking", "established,reply"),
            ("trawl.step.reader", "dns_d"),
            ("trawl.step.reader.pid", "7"),
            ("trawl.step.namespace", "pb"),
            ("trawl.nat.source", "1"),
            ("trawl.nat.destination", "1"),
            ("trawl.segments", "2"),
        ],
    ),
    (
        "step=dropped drop=NO_SOCKET at=__udp4_lib_rcv+0x1 found=memory number=9 ct=new nat=dst netns=pb",
        &[
            ("trawl.step", "dropped"),
            ("trawl.step.found", "memory"),
            ("trawl.step.number", "9"),
            ("trawl.step.tracking", "new"),
            ("trawl.step.location", "__udp4_lib_rcv+0x1"),
            ("trawl.step.namespace", "pb"),
            ("trawl.nat.destination", "1"),
            ("trawl.drop.reason", "NO_SOCKET"),
            ("trawl.drop.location", "__udp4_lib_rcv+0x1"),
            ("trawl.drop.function", "__udp4_lib_rcv"),
            ("trawl.drop.namespace", "pb"),
            ("trawl.drop.fix", "no socket listens there: ip netns exec pb ss -lntu"),
        ],
    ),
    (
        "process=a[1] uid=2[9] uid=1000 container=0123456789ab pod=8a6e",
        &[
            ("trawl.process.name", "a[1] uid=2"),
            ("trawl.process.pid", "9"),
            ("trawl.process.uid", "1000"),
            ("trawl.process.container", "0123456789ab"),
            ("trawl.process.pod", "8a6e"),
        ],
    ),
    ("process=tmux: server[9]", &[("trawl.process.name", "tmux: server"), ("trawl.process.pid", "9")]),
    (
        "socket=77 cgroup=/a owner=shared b owner=listener",
        &[
            ("trawl.socket.cookie", "77"),
            ("trawl.socket.cgroup", "/a owner=shared b"),
            ("trawl.process.owner", "listener"),
        ],
    ),
    ("owner=shared  ", &[("trawl.process.owner", "shared")]),
    ("segs=00045", &[("trawl.segments", "45")]),
    (
        "redirect to interface 3 (map 5, key 0)",
        &[
            ("trawl.redirect", "interface 3 (map 5, key 0)"),
            ("trawl.redirect.interface", "3"),
            ("trawl.redirect.map", "5"),
            ("trawl.redirect.key", "0"),
        ],
    ),
    (
        "redirect to CPU 1 (map 5, key 2)",
        &[
            ("trawl.redirect", "CPU 1 (map 5, key 2)"),
            ("trawl.redirect.cpu", "1"),
            ("trawl.redirect.map", "5"),
            ("trawl.redirect.key", "2"),
        ],
    ),
    ("seen at eth0 tc ingress, br0 tc ingress", &[("trawl.seen_at", "eth0 tc ingress;br0 tc ingress")]),
    (
        "trigger 2: a signal at 2026-11-30T09:00:00.000000000Z; 4 packets of 0.1 s before it",
        &[
            ("trawl.trigger", "2: a signal at 2026-11-30T09:00:00.000000000Z; 4 packets of 0.1 s before it"),
            ("trawl.trigger.number", "2"),
        ],
    ),
    ("within trigger 2: a signal", &[("trawl.trigger", "2: a signal"), ("trawl.trigger.number", "2")]),
    ("slow: the peer does not read", &[("trawl.slow", "the peer does not read")]),
    ("difference: DROP becomes PASS", &[("trawl.difference", "DROP becomes PASS")]),
    ("a comment of another program, drop=x", &[]),
    ("drops=none", &[]),
];

/// The fields of each packet: of its interface, its verdict and its number.
const USUAL: &[(&str, &str)] = &[
    ("trawl.interface", "pb:veth0"),
    ("trawl.hook", "xdp exit"),
    ("trawl.program", "filter"),
    ("trawl.program.id", "7"),
    ("trawl.program.tag", "0011223344556677"),
    ("trawl.program.plain_tag", "8899aabbccddeeff"),
    ("trawl.pod", "default/web-0"),
    ("trawl.pod.labels", "app:web,tier:db"),
    ("trawl.verdict", "PASS"),
    ("trawl.verdict.kind", "xdp"),
    ("trawl.packet", "9223653511831486465"),
    ("trawl.packet.short", "d1.1"),
];

fn commented() -> Vec<u8> {
    let mut out = Vec::new();
    write::section_header(&mut out, &write::SectionHeader::default());
    let program = "xdp_program=filter xdp_id=7 xdp_tag=0011223344556677 xdp_plain_tag=8899aabbccddeeff";
    let pod = "pod=default/web-0 labels=app:web,tier:db";
    let interface = Interface {
        name: Some("pb:veth0 (xdp exit)".to_owned()),
        description: Some(format!("xdp exit (native), time stamps from the system clock, a note, {program}, {pod}")),
        ..Interface::default()
    };
    write::interface_description(&mut out, &interface);
    let frame = frame();
    for (comment, _) in COMMENTS {
        let packet = write::EnhancedPacket {
            timestamp_ns: 1_700_000_000_000_000_000,
            captured: &frame,
            original_len: 61,
            packet_id: Some(1 << 63 | 1 << 48 | 1),
            verdict: Some(Verdict::Xdp(2)),
            comment: Some(comment),
            ..write::EnhancedPacket::default()
        };
        write::enhanced_packet(&mut out, &packet);
    }
    out
}

/// Each field of the table is the field of a comment, with its value.
#[test]
fn post_dissector_shows_each_field() {
    if !have("tshark") {
        return;
    }
    let scratch = Scratch::new("dissector");
    let path = scratch.write("comments.pcapng", &commented());
    let script = format!("lua_script:{DISSECTOR}");
    let mut args = vec!["-X", &script, "-T", "fields", "-E", "separator=|", "-E", "aggregator=;"];
    for field in FIELDS {
        args.extend(["-e", field.name]);
    }
    args.push("-r");
    let text = run("tshark", &args, &path);
    assert_eq!(text.lines().count(), COMMENTS.len(), "{text}");
    let mut shown = std::collections::BTreeSet::new();
    for (line, (comment, expected)) in text.lines().zip(COMMENTS) {
        let values = FIELDS.iter().map(|field| field.name).zip(line.split('|'));
        let values: Vec<(&str, &str)> = values.filter(|(_, value)| !value.is_empty()).collect();
        let wanted = |name: &str| USUAL.iter().chain(*expected).find(|(one, _)| *one == name).map(|(_, value)| *value);
        for (name, value) in &values {
            assert_eq!(Some(*value), wanted(name), "{name} of {comment}");
        }
        assert_eq!(values.len(), USUAL.len() + expected.len(), "{values:?} of {comment}");
        shown.extend(values.iter().map(|(name, _)| *name));
    }
    for field in FIELDS {
        assert!(shown.contains(field.name), "no comment has {field:?}");
    }
}

/// A packet that the kernel or a program lost is a warning, others are not.
#[test]
fn drops_are_expert_information() {
    if !have("tshark") {
        return;
    }
    let scratch = Scratch::new("expert");
    let path = scratch.write("comments.pcapng", &commented());
    let script = format!("lua_script:{DISSECTOR}");
    let count = |filter: &str| {
        let args = ["-X", &script, "-Y", filter, "-T", "fields", "-e", "frame.comment", "-r"];
        run("tshark", &args, &path).lines().count()
    };
    let dropped = COMMENTS.iter().filter(|(comment, _)| comment.contains("drop=") && !comment.starts_with("a comment"));
    let lost = dropped.clone().filter(|(comment, _)| !comment.contains(" loss=")).count();
    assert_eq!(count("trawl.expert.dropped"), lost);
    assert_eq!(count("trawl.expert.dropped && _ws.expert.severity == \"Warning\""), lost);
    assert_eq!(count("trawl.expert.freed"), dropped.count() - lost);
    assert_eq!(count("trawl.expert.slow"), 1);
    assert_eq!(count("trawl.expert.trigger"), 2);
    assert_eq!(count("trawl.socket.port == 53 && trawl.drop.reason matches \"RCVBUFF$\""), 1);
    assert_eq!(count("trawl.packet == 9223653511831486465"), COMMENTS.len());
}
