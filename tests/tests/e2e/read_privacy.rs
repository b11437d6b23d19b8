//! `trawl read --anonymize` and `--headers` write files that can be passed on, as tshark shows.

use std::fs;

use trawl_packet::build::{Arp, Icmp, Tcp, Template, flags};
use trawl_packet::pcap;
use trawl_packet::pcapng::{Interface, write};
use trawl_packet::read::CaptureReader;
use trawl_tests::bundled::{done, refused};
use trawl_tests::lab::Directory;
use trawl_tests::witness::{capinfos, run, tshark};
use trawl_tests::{binary, tools_or_skip};

const A: [u8; 6] = [2, 0, 0, 0x77, 0, 1];
const B: [u8; 6] = [2, 0, 0, 0x77, 0, 2];
const A6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1];
const B6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2];
const PAYLOAD: &[u8] = b"confidential";

fn frames() -> Vec<Vec<u8>> {
    let v4 = || Template::new().ethernet(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let v6 = || Template::new().ethernet(A, B).ipv6(A6, B6);
    let syn = || Tcp {
        src: 40_000,
        dst: 443,
        flags: flags::SYN,
        window: 1000,
        options: vec![2, 4, 5, 0xb4],
        ..Tcp::default()
    };
    let solicitation = Icmp { kind: 135, ..Icmp::default() };
    let target = [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[2, 1, 1], &A].concat();
    let quoted = Template::new().ipv4([10, 0, 0, 2], [10, 0, 0, 1]).udp(5, 6).build();
    let unreachable = Icmp { kind: 3, code: 3, rest: [0; 4] };
    [
        v4().tcp(syn()),
        v6().tcp(syn()),
        v6().icmpv6(solicitation).payload(target),
        v4().icmp(unreachable).payload(quoted),
        v4().udp(5, 4789).vxlan(7).ethernet(B, A).ipv6(A6, B6).tcp(syn()),
        Template::new().ethernet(A, B).arp(Arp::reply(A, [10, 0, 0, 1].into(), B, [10, 0, 0, 2].into())),
        v4().udp(5, 53).payload(PAYLOAD),
        v6().tcp(syn()).payload(PAYLOAD),
    ]
    .iter()
    .map(Template::build)
    .collect()
}

/// Returns a recording whose filter and comments also contain addresses.
fn recording() -> Vec<u8> {
    let mut out = Vec::new();
    write::section_header(&mut out, &write::SectionHeader::default());
    let interface = Interface {
        name: Some("eth0".to_owned()),
        filter: Some("host 10.0.0.1".to_owned()),
        mac: Some(A),
        ..Interface::default()
    };
    write::interface_description(&mut out, &interface);
    for (number, frame) in frames().iter().enumerate() {
        let packet = write::EnhancedPacket {
            timestamp_ns: 1_700_000_000_000_000_000 + number as u64,
            captured: frame,
            original_len: frame.len() as u32,
            comment: Some("from 10.0.0.1"),
            ..write::EnhancedPacket::default()
        };
        write::enhanced_packet(&mut out, &packet);
    }
    write::interface_statistics(&mut out, &write::InterfaceStatistics::default());
    out
}

/// Fails if a file contains addresses or payload.
#[track_caller]
fn assert_anonymous(bytes: &[u8]) {
    let addresses = [&A[..], &B, &[10, 0, 0, 1], &[10, 0, 0, 2], &[0x20, 1, 0xd, 0xb8]];
    for secret in addresses.into_iter().chain([PAYLOAD, b"10.0.0.1"]) {
        let is_there = bytes.windows(secret.len()).any(|part| part == secret);
        assert!(!is_there, "{secret:?} is in the file");
    }
}

#[test]
fn anonymized_files_have_right_checksums_and_no_payload() {
    if !tools_or_skip(&["tshark", "capinfos"]) {
        return;
    }
    let directory = Directory::new();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let [file, key, out] = ["in.pcapng", "key", "out.pcapng"].map(path);
    fs::write(&file, recording()).expect("a file");
    fs::write(&key, "0123456789abcdef".repeat(4) + "\n").expect("a key");
    done(&["read", &file, "--anonymize", &key, "-w", &out]);

    assert_anonymous(&fs::read(&out).expect("the file"));
    let count = frames().len();
    let rows = tshark(&out, &["frame.len", "frame.cap_len", "frame.interface_name"]);
    let originals = tshark(&file, &["frame.len", "frame.cap_len", "frame.interface_name"]);
    assert_eq!(rows.len(), count);
    for (number, (row, original)) in rows.iter().zip(&originals).enumerate() {
        assert_eq!((&row[0], &row[2]), (&original[0], &original[2]));
        let has_payload = number >= count - 2;
        assert_eq!(row[1] != original[1], has_payload, "{number}: {row:?}");
    }
    let statuses = |file: &str| {
        let mut arguments = vec!["-n", "-r", file, "-T", "fields"];
        for check in ["ip", "udp", "tcp"].map(|one| format!("{one}.check_checksum:TRUE").leak()) {
            arguments.extend(["-o", check]);
        }
        let fields = ["ip.checksum.status", "tcp.checksum.status", "icmp.checksum.status", "icmpv6.checksum.status"];
        arguments.extend(fields.into_iter().flat_map(|field| ["-e", field]));
        let text = run("tshark", &arguments);
        text.lines().take(count - 2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(statuses(&out), statuses(&file), "checksums of whole packets");
    let hosts = tshark(&out, &["ip.src", "ip.dst"]);
    let shared = |row: &Vec<String>| row[0].rsplit_once('.').map(|(net, _)| net.to_owned());
    assert_eq!(shared(&hosts[0]), shared(&vec![hosts[0][1].clone()]));

    // The same key gives the same addresses, in every format and from a pipe.
    for name in ["again.pcapng.gz", "again.pcap"] {
        let (again, plain) = (path(name), path("plain.pcapng"));
        let trawl = binary::path().display();
        let command = format!("cat {file} | {trawl} read - --anonymize {key} -w {again}");
        run("sh", &["-c", &command]);
        done(&["read", &again, "-w", &plain]);
        assert_anonymous(&fs::read(&plain).expect("the file"));
        assert_eq!(tshark(&plain, &["ip.src", "ip.dst"]), hosts);
    }
    assert_eq!(capinfos(&out, "Number of packets"), count.to_string());
}

/// A checksum over a payload of one byte reveals the byte.
#[test]
fn typed_password_cannot_be_computed_from_checksums() {
    const PASSWORD: &[u8] = b"hunter2!";
    const TCP_AT: usize = 14 + 20;
    let segment = |number: usize, payload: &[u8]| {
        let frame = Template::new().ethernet(A, B);
        let frame = frame.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(Tcp {
            src: 40_000,
            dst: 23,
            seq: 1000 + number as u32,
            flags: flags::ACK,
            window: 500,
            ..Tcp::default()
        });
        frame.payload(payload).build()
    };
    let directory = Directory::new();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let [file, key, out] = ["in.pcap", "key", "out.pcap"].map(path);
    let mut recording = Vec::new();
    pcap::file_header(&mut recording, 1, 65_535);
    for (number, byte) in PASSWORD.iter().enumerate() {
        let frame = segment(number, &[*byte]);
        pcap::record(&mut recording, 1, &frame, frame.len() as u32);
    }
    fs::write(&file, recording).expect("a file");
    fs::write(&key, "0123456789abcdef".repeat(4)).expect("a key");
    for arguments in [&["--headers"][..], &["--anonymize", &key], &["--headers", "--anonymize", &key]] {
        done(&[&["read", &file, "-w", &out][..], arguments].concat());
        let bytes = fs::read(&out).expect("the file");
        let mut reader = CaptureReader::new(&bytes[..]).expect("a header");
        let mut checked = 0;
        while let Some(packet) = reader.next_packet().expect("whole records") {
            // This is the frame for a typed zero, with the addresses in the file.
            let ip = |at: usize| <[u8; 4]>::try_from(&packet.captured[at..at + 4]).expect("an address");
            let zero = Template::new().ethernet(A, B).ipv4(ip(26), ip(30)).tcp(Tcp {
                src: 40_000,
                dst: 23,
                seq: 1000 + checked as u32,
                flags: flags::ACK,
                window: 500,
                ..Tcp::default()
            });
            let zero = zero.payload([0]).build();
            assert_eq!(packet.captured[TCP_AT..], zero[TCP_AT..zero.len() - 1], "{arguments:?}");
            checked += 1;
        }
        assert_eq!(checked, PASSWORD.len());
    }
}

#[test]
fn headers_alone_keep_addresses_and_comments() {
    if !tools_or_skip(&["tshark"]) {
        return;
    }
    let directory = Directory::new();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let [file, out] = ["in.pcapng", "out.pcapng"].map(path);
    fs::write(&file, recording()).expect("a file");
    done(&["read", &file, "--headers", "-w", &out, "port 53 or port 443"]);
    let rows = tshark(&out, &["ip.src", "frame.len", "frame.cap_len", "frame.comment"]);
    let expected = [
        ["10.0.0.1", "58", "58", "from 10.0.0.1"],
        ["", "78", "78", "from 10.0.0.1"],
        ["10.0.0.1", "54", "42", "from 10.0.0.1"],
        ["", "90", "78", "from 10.0.0.1"],
    ];
    assert_eq!(rows, expected);
}

#[test]
fn keys_that_are_short_or_missing_leave_no_file() {
    let directory = Directory::new();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let [file, key, out] = ["in.pcapng", "key", "out.pcapng"].map(path);
    fs::write(&file, recording()).expect("a file");
    let arguments = ["read", &file, "--anonymize", &key, "-w", &out];
    let missing = refused(&arguments, 1);
    assert!(missing.contains("openssl rand -hex 32"), "{missing}");
    fs::write(&key, "0123456789abcdef").expect("a key");
    let short = refused(&arguments, 1);
    assert!(short.contains("16 bytes") && !short.contains("0123456789"), "{short}");
    assert!(!directory.path().join("out.pcapng").exists());
    // Printed lines also need a key.
    refused(&["read", &file, "--anonymize", &key], 1);
}
