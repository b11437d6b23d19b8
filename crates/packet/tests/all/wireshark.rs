//! Checks written pcapng by Wireshark's tools: they must show every option correctly.

use crate::common::{Scratch, have, run};
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
