//! `trawl read --dedup` keeps one sighting of each packet, and every retransmission.

use std::fs;

use trawl_packet::build::Template;
use trawl_packet::pcap;
use trawl_packet::pcapng::{Interface, write};
use trawl_tests::bundled::done;
use trawl_tests::lab::Directory;
use trawl_tests::tools_or_skip;
use trawl_tests::witness::{output, tshark};
use trawl_tests::{args, binary};

const MS: u64 = 1_000_000;
const START: u64 = 1_700_000_000_000_000_000;

/// Returns a datagram to this port, optionally with a VLAN tag or the padding of short frames.
fn frame(port: u16, vlan: Option<u16>, padded: bool) -> Vec<u8> {
    let template = Template::new().ethernet([2; 6], [4; 6]);
    let template = match vlan {
        Some(number) => template.vlan(number),
        None => template,
    };
    let mut frame = template.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(5, port).build();
    if padded {
        frame.resize(60, 0);
    }
    frame
}

/// Returns a file with the sightings of a veth, a bridge and a VLAN: interface, milliseconds, frame.
fn recording(sightings: &[(u32, u64, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    write::section_header(&mut out, &write::SectionHeader::default());
    for name in ["veth0", "br0", "eth0"] {
        let interface = Interface { name: Some(name.to_owned()), ..Interface::default() };
        write::interface_description(&mut out, &interface);
    }
    for (interface_id, ms, frame) in sightings {
        let packet = write::EnhancedPacket {
            interface_id: *interface_id,
            timestamp_ns: START + ms * MS,
            captured: frame,
            original_len: frame.len() as u32,
            ..write::EnhancedPacket::default()
        };
        write::enhanced_packet(&mut out, &packet);
    }
    out
}

#[test]
fn copies_at_other_interfaces_are_left_out_and_retransmissions_stay() {
    if !tools_or_skip(&["tshark"]) {
        return;
    }
    let directory = Directory::new();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let [file, out] = ["in.pcapng", "out.pcapng"].map(path);
    let sightings = [
        (0, 0, frame(1, None, false)),
        (1, 1, frame(1, None, false)),
        (2, 2, frame(1, Some(7), true)),
        (0, 2, frame(2, None, false)),
        // The first packet is sent again along the same path.
        (0, 3, frame(1, None, false)),
        (1, 4, frame(1, None, false)),
        (2, 4, frame(1, Some(7), true)),
        // This sighting is too late for a copy.
        (2, 9, frame(2, None, false)),
    ];
    fs::write(&file, recording(&sightings)).expect("a file");
    let arguments = args!("read {file} --dedup 5ms -w {out}");
    let trawl = binary::path().display().to_string();
    let said = output(&trawl, &arguments);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("left out 4 packets"), "{said}");
    let rows = tshark(&out, &["frame.interface_name", "udp.dstport"]);
    let expected = [["veth0", "1"], ["veth0", "2"], ["veth0", "1"], ["eth0", "2"]];
    assert_eq!(rows, expected);
    let counted = done(&args!("read {file} --dedup 5ms --count udp port 1"));
    assert_eq!(counted.lines().next(), Some("2 packets"));
}

/// Two files of tcpdump are two points at which copies can be recorded.
#[test]
fn copies_in_another_file_are_left_out() {
    let directory = Directory::new();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let files = ["left.pcap", "right.pcap"].map(path);
    for (number, file) in files.iter().enumerate() {
        let mut bytes = Vec::new();
        pcap::file_header(&mut bytes, 1, 0);
        for packet in 0..5u64 {
            // Packets 0 and 4 have the same bytes.
            let frame = frame(packet as u16 % 4, None, number == 1);
            let time = START + packet * MS + number as u64 * 100;
            pcap::record(&mut bytes, time, &frame, frame.len() as u32);
        }
        fs::write(file, bytes).expect("a file");
    }
    let [left, right] = &files;
    let counted = done(&args!("read {left} {right} --dedup 2ms --count"));
    assert_eq!(counted.lines().next(), Some("5 packets"));
}
