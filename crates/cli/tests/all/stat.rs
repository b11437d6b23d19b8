//! Compares `trawl stat` on files that this test writes with capinfos.

use std::process::{Command, Output};

use serde_json::Value;
use trawl_packet::build::{Tcp, Template, flags};
use trawl_packet::pcap;
use trawl_packet::pcapng::{Interface, write};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trawl")).arg("stat").args(arguments).env("TZ", "UTC").output().expect("trawl runs")
}

fn json(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn segment(seq: u32, len: usize) -> Vec<u8> {
    Template::new()
        .ethernet([2; 6], [4; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        .tcp(Tcp { src: 1234, dst: 80, seq, ack: 1, flags: flags::ACK, ..Tcp::default() })
        .payload(vec![1; len])
        .build()
}

/// Returns ten segments of which two are sent twice, ten datagrams, with a pause of five seconds in the middle.
fn a_file(name: &str) -> String {
    let mut out = Vec::new();
    pcap::file_header(&mut out, 1, 0);
    let mut time = 1_700_000_000_000_000_000;
    let mut add = |frame: Vec<u8>, gap| {
        pcap::record(&mut out, time, &frame, frame.len() as u32);
        time += gap;
    };
    for index in [0, 1, 2, 3, 2, 3, 4, 5, 6, 7] {
        add(segment(1000 + index * 100, 100), 1_000_000);
    }
    for index in 0..10 {
        let frame =
            Template::new().ethernet([2; 6], [4; 6]).ipv6([1; 8], [2; 8]).udp(5, 53).payload(vec![0; 20]).build();
        add(frame, if index == 4 { 5_000_000_000 } else { 1_000_000 });
    }
    let path = std::env::temp_dir().join(format!("trawl-stat-{}-{name}.pcap", std::process::id()));
    std::fs::write(&path, out).expect("a file");
    path.display().to_string()
}

#[test]
fn figures_of_a_file() {
    let file = a_file("figures");
    let report = json(&[&file, "--by", "dst,dport"]);
    assert_eq!(report["packets"], 20);
    // By Wireshark's rule: one is less than 3 ms late, the other repeats the last segment.
    assert_eq!(report["tcp_retransmissions"], 1);
    assert_eq!(report["tcp_out_of_order"], 1);
    assert_eq!(report["flow_count"], 2);
    assert_eq!(report["in_time_order"], true);
    assert_eq!(report["gaps"][0]["seconds"], 5.0);
    assert_eq!(report["talkers"][0]["address"], "10.0.0.1");
    assert_eq!(report["flows"][0]["dst_port"], 80);
    let protocols: Vec<&str> = report["protocols"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|protocol| protocol["name"].as_str())
        .collect();
    assert_eq!(protocols, ["dns", "http", "ipv4", "ipv6", "tcp", "udp"]);
    assert_eq!(report["groups"][0]["values"], serde_json::json!(["10.0.0.2", "80"]));
    assert_eq!(json(&[&file, "udp"])["packets"], 10);
    let text = run(&[&file]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for part in [
        "packets           20",
        "2023-11-14 22:13:20.000000000",
        "TCP retransmissions: 1, out of order: 1,",
        "10.0.0.1.1234 > 10.0.0.2.80 tcp",
        "rate over time",
        "5.000000 s after",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    std::fs::remove_file(file).expect("it was there");
}

/// A SYN uses a sequence number, but is no keep-alive when it is repeated.
#[test]
fn a_repeated_syn_is_a_retransmission_and_a_keep_alive_is_not() {
    let syn = |flags| {
        let segment = Tcp { src: 1234, dst: 80, seq: 999, flags, ..Tcp::default() };
        Template::new().ethernet([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(segment).build()
    };
    let mut out = Vec::new();
    pcap::file_header(&mut out, 1, 0);
    let keep_alive = segment(1099, 1);
    for frame in [syn(flags::SYN), syn(flags::SYN), segment(1000, 100), keep_alive] {
        pcap::record(&mut out, 0, &frame, frame.len() as u32);
    }
    let path = std::env::temp_dir().join(format!("trawl-stat-{}-syn.pcap", std::process::id()));
    std::fs::write(&path, out).expect("a file");
    let report = json(&[&path.display().to_string()]);
    std::fs::remove_file(path).expect("it was there");
    assert_eq!(report["tcp_retransmissions"], 1);
}

#[test]
fn capinfos_has_the_same_figures() {
    let file = a_file("capinfos");
    let tool = Command::new("capinfos").args(["-T", "-r", "-c", "-d", "-u", "-x", "-z", "-M", &file]).output();
    let Ok(output) = tool else {
        eprintln!("SKIPPED: capinfos is not installed");
        return;
    };
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let fields: Vec<f64> = line.split_whitespace().rev().take(5).filter_map(|field| field.parse().ok()).collect();
    let report = json(&[&file]);
    // From the end: packets a second, packet size, data size, duration, packets, in the order of the options.
    let ours = [
        report["packets"].as_f64(),
        report["bytes"].as_f64(),
        report["duration_seconds"].as_f64(),
        report["average_length"].as_f64(),
        report["packets_per_second"].as_f64(),
    ];
    for figure in ours.into_iter().flatten() {
        let near = |theirs: &f64| (theirs - figure).abs() <= figure * 0.01 + 0.01;
        assert!(fields.iter().any(near), "{figure} in {line}");
    }
    std::fs::remove_file(file).expect("it was there");
}

#[test]
fn a_wrong_field_or_file_is_reported() {
    let wrong = run(&["x.pcap", "--by", "colour"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("verdict"));
    assert_eq!(run(&["/no/such/file"]).status.code(), Some(1));
}

/// Several files are one in the order of time, and each is described separately.
#[test]
fn files_are_merged_by_time_and_described() {
    let directory = std::env::temp_dir().join(format!("trawl-stat-{}-merge", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let place = |name: &str| directory.join(name).display().to_string();
    let frame = segment(1000, 100);
    let mut odd = Vec::new();
    pcap::file_header(&mut odd, 1, 68);
    for second in [1, 3, 5] {
        let time = second * 1_000_000_000;
        pcap::record(&mut odd, time, &frame[..68], frame.len() as u32);
    }
    std::fs::write(place("odd.pcap"), odd).expect("a file");
    let mut even = Vec::new();
    write::section_header(
        &mut even,
        &write::SectionHeader {
            os: Some("Plan 9"),
            userappl: Some("snoopy"),
            comment: Some("two\nlines"),
            ..Default::default()
        },
    );
    let interface =
        Interface { name: Some("ether0".to_owned()), filter: Some("tcp".to_owned()), ..Interface::default() };
    write::interface_description(&mut even, &interface);
    for second in [2, 4] {
        let packet = write::EnhancedPacket {
            timestamp_ns: second * 1_000_000_000,
            captured: &frame,
            original_len: frame.len() as u32,
            ..Default::default()
        };
        write::enhanced_packet(&mut even, &packet);
    }
    let dropped = write::EnhancedPacket {
        timestamp_ns: 6_000_000_000,
        captured: &frame,
        original_len: frame.len() as u32,
        comment: Some("drop=NO_SOCKET at=tcp_v4_rcv+0x10"),
        ..Default::default()
    };
    write::enhanced_packet(&mut even, &dropped);
    std::fs::write(place("even.pcapng"), &even).expect("a file");
    let both = [place("odd.pcap"), place("even.pcapng")];
    let report = json(&[&both[0], &both[1], "--by", "reason"]);
    assert_eq!(report["in_time_order"], true);
    assert_eq!(report["packets"], 6);
    assert_eq!(report["gaps"][0]["seconds"], 1.0);
    assert_eq!(report["verdicts"][0]["reason"], "NO_SOCKET");
    assert_eq!(report["group_count"], 2);
    let [odd, even] = [0, 1].map(|index| &report["files"][index]);
    assert_eq!(odd["format"], "nanosecond pcap");
    assert_eq!((&odd["snaplen"], &odd["cut"], &odd["inferred_limit_max"]), (&68.into(), &3.into(), &68.into()));
    assert_eq!(even["format"], "pcapng");
    assert_eq!(even["sections"][0]["application"], "snoopy");
    assert_eq!(even["interfaces"][0]["name"], "ether0");
    assert_eq!(even["interfaces"][0]["packets"], 3);
    let text = run(&[&both[0], &both[1]]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for part in ["Plan 9", "two\\nlines", "filter tcp", "NO_SOCKET"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    if let Ok(output) = Command::new("capinfos").args(&both).output() {
        let theirs = String::from_utf8_lossy(&output.stdout).into_owned();
        for file in [odd, even] {
            let hash = file["sha256"].as_str().expect("a hash");
            assert!(theirs.contains(hash), "{hash} in {theirs}");
        }
    }
    std::fs::remove_dir_all(directory).expect("it was there");
}
