//! Files at the limits of their format: records longer than the file's limit, times that a format cannot hold, files
//! that end before their header does.

use trawl_packet::pcap;
use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::write::{
    EnhancedPacket, SectionHeader, enhanced_packet, interface_description, section_header,
};
use trawl_packet::read::CaptureReader;

use super::{START, Scratch, a_pcapng, frame, read, run, tool};

fn lengths(file: &str) -> Vec<usize> {
    let bytes = std::fs::read(file).expect("a file");
    let mut reader = CaptureReader::new(&bytes[..]).expect("a header");
    let mut lengths = Vec::new();
    while let Some(packet) = reader.next_packet().expect("whole packets") {
        lengths.push(packet.captured.len());
    }
    lengths
}

/// Guards the bytes of records longer than their file's snaplen, which libpcap truncates.
#[test]
fn records_longer_than_the_snaplen_are_written_whole() {
    let scratch = Scratch::new("longer-records");
    let whole = frame(9000);
    let length = whole.len();
    let mut bytes = Vec::new();
    pcap::file_header(&mut bytes, 1, 50);
    for captured in [&whole[..50], &whole[..], &whole[..40]] {
        pcap::record(&mut bytes, START, captured, length as u32);
    }
    let short = scratch.write("short.pcap", &bytes);
    let other = scratch.path("other.pcap");
    let mut header = Vec::new();
    pcap::file_header(&mut header, 1, 60);
    std::fs::write(&other, &header).expect("a file");
    let expected = [50, length, 40];
    for (files, written) in [
        (&[&short][..], "o.pcapng"),
        (&[&short], "o.pcap"),
        (&[&short, &other], "merged.pcap"),
        (&[&short, &other], "merged.pcapng"),
    ] {
        let written = scratch.path(written);
        let mut arguments: Vec<&str> = files.iter().map(|file| file.as_str()).collect();
        arguments.extend(["-w", &written]);
        read(&arguments);
        let captured = tool("tshark", &["-r", &written, "-T", "fields", "-e", "frame.cap_len"]);
        let Some(captured) = captured else { return };
        let captured: Vec<usize> = captured.lines().map(|one| one.parse().unwrap()).collect();
        assert_eq!(captured, expected, "{written}");
        // libpcap refuses packets longer than the snaplen of their interface, and cuts them in pcap files.
        if !written.ends_with("o.pcap") {
            let lines = tool("tcpdump", &["-nr", &written]).expect("tcpdump is there");
            assert_eq!(lines.lines().count(), expected.len(), "{written}");
            assert_eq!(lengths(&written), expected, "{written}");
        }
    }
    let report = std::process::Command::new(env!("CARGO_BIN_EXE_trawl"))
        .args(["stat", "--json", &short])
        .output()
        .expect("trawl runs");
    let said = String::from_utf8_lossy(&report.stderr);
    assert!(report.status.success(), "{:?}: {said}", report.status);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let file = &report["files"][0];
    assert_eq!((&file["cut"], &file["inferred_limit_max"]), (&2.into(), &50.into()), "{report}");
}

/// Returns a packet at `ticks` of an interface whose clock has this unit and began `tsoffset` seconds after 1970.
fn a_packet_at(ticks: u64, tsresol: u8, tsoffset: i64) -> Vec<u8> {
    let mut out = Vec::new();
    section_header(&mut out, &SectionHeader::default());
    let interface = Interface { tsresol, tsoffset, ..Interface::default() };
    interface_description(&mut out, &interface);
    let captured = frame(9000);
    let packet = EnhancedPacket {
        timestamp_ns: ticks,
        captured: &captured,
        original_len: captured.len() as u32,
        ..EnhancedPacket::default()
    };
    enhanced_packet(&mut out, &packet);
    out
}

/// Guards times from 2106 on, which wrapped in pcap files.
#[test]
fn times_that_pcap_cannot_hold_are_refused() {
    let scratch = Scratch::new("late-times");
    let written = scratch.path("o.pcap");
    let last = scratch.write("last.pcapng", &a_packet_at(u64::from(u32::MAX), 0, 0));
    read(&[&last, "-w", &written]);
    assert!(read(&["-tt", &written]).starts_with("4294967295.000000000 "));
    let late = scratch.write("late.pcapng", &a_packet_at(4_323_283_200, 0, 0));
    let refused = run(&[&late, "-w", &written]);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("4323283200 seconds after 1970") && stderr.contains("--format pcapng"), "{stderr}");
    assert!(!std::path::Path::new(&written).exists());
    let again = scratch.path("o.pcapng");
    read(&[&late, "-w", &again]);
    assert!(read(&["-tt", &again]).starts_with("4323283200.000000 "));
}

/// Guards against times that look right but are only the nearest that can be shown.
#[test]
fn times_that_cannot_be_shown_are_counted() {
    let scratch = Scratch::new("times-beyond");
    let late = a_packet_at(20_000_000_000, 0, 0);
    let early = a_packet_at(5, 0, -10);
    let sound = a_packet_at(5, 0, 10);
    for (bytes, warned) in [(late, true), (early, true), (sound, false)] {
        let file = scratch.write("a.pcapng", &bytes);
        for arguments in [&["-tt", &file][..], &["--json", &file]] {
            let shown = run(arguments);
            let stderr = String::from_utf8_lossy(&shown.stderr);
            assert!(shown.status.success(), "{stderr}");
            let says = stderr.contains("1 packet has a time outside 1970-01-01 to 2554-07-21");
            assert_eq!(says, warned, "{stderr}");
        }
    }
}

/// Times with a fraction of a second or more are shown by their sum, with a warning.
#[test]
fn fractions_of_a_second_or_more_are_counted() {
    let scratch = Scratch::new("large-fraction");
    for (fraction, warned) in [(999_999u32, false), (1_000_000, true)] {
        let mut bytes =
            [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1, 5, fraction, 14, 14].map(u32::to_le_bytes).concat();
        bytes.extend([0; 14]);
        let file = scratch.write("a.pcap", &bytes);
        for arguments in [&["-tt", &file][..], &["--json", &file]] {
            let shown = run(arguments);
            let stderr = String::from_utf8_lossy(&shown.stderr);
            assert!(shown.status.success(), "{stderr}");
            let says = stderr.contains("1 packet has a time with a fraction of a second or more");
            assert_eq!(says, warned, "{stderr}");
        }
    }
}

/// Guards empty files: a file that is cut in its header becomes one without packets.
#[test]
fn file_cut_in_its_header_becomes_a_valid_file() {
    let scratch = Scratch::new("cut-header");
    let cut = scratch.write("cut.pcapng", &a_pcapng()[..20]);
    for written in ["o.pcapng", "o.pcap"] {
        let written = scratch.path(written);
        let done = run(&[&cut, "-w", &written]);
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("is cut at byte 0"), "{stderr}");
        assert_eq!(lengths(&written), [0; 0]);
        assert_eq!(read(&[&written]), "");
    }
}

/// Guards the names of interfaces that later sections describe: they are shown once two differ.
#[test]
fn names_of_later_sections_are_shown() {
    let scratch = Scratch::new("names-of-sections");
    let section = |name: &str| {
        let mut out = Vec::new();
        section_header(&mut out, &SectionHeader::default());
        let interface = Interface { name: Some(name.to_owned()), ..Interface::default() };
        interface_description(&mut out, &interface);
        let captured = frame(9000);
        let packet = EnhancedPacket {
            timestamp_ns: START,
            captured: &captured,
            original_len: captured.len() as u32,
            ..EnhancedPacket::default()
        };
        enhanced_packet(&mut out, &packet);
        out
    };
    let file = [section("eth0"), section("eth0"), section("eth1"), section("eth0")];
    let shown = read(&["-t", &scratch.write("a.pcapng", &file.concat())]);
    let named = |line: &str| line.split(' ').next().map(str::to_owned);
    let names: Vec<_> = shown.lines().filter_map(named).collect();
    assert_eq!(names, ["IP", "IP", "eth1", "eth0"], "{shown}");
}
