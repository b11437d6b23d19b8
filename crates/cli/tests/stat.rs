//! `trawl stat` on files that this test writes, beside capinfos.

use std::process::{Command, Output};

use serde_json::Value;
use trawl_packet::build::{Tcp, Template, flags};
use trawl_packet::pcap;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trawl"))
        .arg("stat")
        .args(arguments)
        .env("TZ", "UTC")
        .output()
        .expect("trawl runs")
}

fn json(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["--json"]].concat());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn segment(seq: u32, len: usize) -> Vec<u8> {
    Template::new()
        .ethernet([2; 6], [4; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        .tcp(Tcp {
            src: 1234,
            dst: 80,
            seq,
            ack: 1,
            flags: flags::ACK,
            ..Tcp::default()
        })
        .payload(vec![1; len])
        .build()
}

/// Ten segments of which two are sent twice, ten datagrams, with a pause of five seconds in the middle.
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
        let frame = Template::new()
            .ethernet([2; 6], [4; 6])
            .ipv6([1; 8], [2; 8])
            .udp(5, 53)
            .payload(vec![0; 20])
            .build();
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
    assert_eq!(report["tcp_retransmissions"], 2);
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
    assert_eq!(
        report["groups"][0]["values"],
        serde_json::json!(["10.0.0.2", "80"])
    );
    assert_eq!(json(&[&file, "udp"])["packets"], 10);
    let text = run(&[&file]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for part in [
        "packets           20",
        "2023-11-14 22:13:20.000000000",
        "TCP retransmissions: 2",
        "10.0.0.1.1234 > 10.0.0.2.80 tcp",
        "rate over time",
        "5.000000 s after",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    std::fs::remove_file(file).expect("it was there");
}

/// A SYN takes a sequence number, but is no keep-alive when it comes again (issue 17).
#[test]
fn a_repeated_syn_is_a_retransmission_and_a_keep_alive_is_not() {
    let syn = |flags| {
        let segment = Tcp {
            src: 1234,
            dst: 80,
            seq: 999,
            flags,
            ..Tcp::default()
        };
        Template::new()
            .ethernet([2; 6], [4; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
            .tcp(segment)
            .build()
    };
    let mut out = Vec::new();
    pcap::file_header(&mut out, 1, 0);
    let keep_alive = segment(1099, 1);
    for frame in [
        syn(flags::SYN),
        syn(flags::SYN),
        segment(1000, 100),
        keep_alive,
    ] {
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
    let tool = Command::new("capinfos")
        .args(["-T", "-r", "-c", "-d", "-u", "-x", "-z", "-M", &file])
        .output();
    let Ok(output) = tool else {
        eprintln!("SKIPPED: capinfos is not installed");
        return;
    };
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let fields: Vec<f64> = line
        .split_whitespace()
        .rev()
        .take(5)
        .filter_map(|field| field.parse().ok())
        .collect();
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
fn a_wrong_field_or_file_is_told() {
    let wrong = run(&["x.pcap", "--by", "colour"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("verdict"));
    assert_eq!(run(&["/no/such/file"]).status.code(), Some(1));
}
