//! `trawl slow`: each planted fault is named from captures at either end, and healthy traffic is not.

mod drops;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use trawl_sys::netns::run_in;
use trawl_tests::stage::Stage;
use trawl_tests::traffic::{Names, converse, transfer};
use trawl_tests::wire::Path;
use trawl_tests::witness::{inside, run};
use trawl_tests::{Running, args, tools_or_skip, trawl};

/// Captures the traffic at both ends with 128 bytes of each packet, and returns the files' verdicts, client first.
fn verdicts<T>(stage: &Stage, name: &str, traffic: impl FnOnce() -> T) -> [Value; 2] {
    let ends = [("client", &stage.client), ("server", &stage.server)];
    let ends = ends.map(|(end, station)| (end, format!("{}:{}", station.name, station.interface)));
    let files = ends.each_ref().map(|(end, _)| stage.file(&format!("{name}-{end}.pcapng")));
    let captures = [0, 1].map(|end| {
        let (interface, file) = (&ends[end].1, &files[end]);
        Running::start(&args!("capture -i {interface} --tap packet -s 128 -w {file} tcp or udp"), "capturing on")
    });
    drop(traffic());
    for capture in captures {
        capture.signal(Signal::INT);
        let ended = capture.wait();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    }
    files.map(|file| {
        let found = trawl(&["slow", "--json", &file]);
        assert!(found.status.success(), "{found:?}");
        serde_json::from_slice(&found.stdout).expect("JSON")
    })
}

fn causes(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().map(|one| one["cause"].as_str().expect("a cause")).collect()
}

/// Checks that both ends' files show this cause and no other.
#[track_caller]
fn both_show(reports: &[Value; 2], cause: &[&str]) {
    for report in reports {
        assert_eq!(causes(report), cause, "{report}");
    }
}

const NOT: Duration = Duration::ZERO;

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn slow_application_is_named_and_pauses_of_the_client_are_not() {
    let Some(stage) = Stage::open() else { return };
    for server in stage.servers() {
        let slow =
            verdicts(&stage, "think", || converse(stage.connect(server), 8, milliseconds(150), milliseconds(20)));
        both_show(&slow, &["slow_answer"]);
        let finding = &slow[0]["findings"][0];
        assert_eq!((&finding["by"], &finding["answers"]), (&"server".into(), &8.into()), "{finding}");
        assert_eq!(finding["who"], server.to_string());
        let healthy = verdicts(&stage, "pauses", || converse(stage.connect(server), 8, NOT, milliseconds(150)));
        both_show(&healthy, &[]);
    }
}

#[test]
fn slow_reader_is_named_and_bulk_is_not() {
    let Some(stage) = Stage::open() else { return };
    for server in stage.servers() {
        let slow = verdicts(&stage, "reader", || transfer(stage.connect(server), 12 << 20, milliseconds(10)));
        both_show(&slow, &["slow_reader"]);
        assert_eq!(slow[1]["findings"][0]["at"], "server");
        let bulk = verdicts(&stage, "bulk", || transfer(stage.connect(server), 12 << 20, NOT));
        both_show(&bulk, &[]);
    }
}

#[test]
fn refused_and_silent_servers_are_named() {
    let Some(stage) = Stage::open() else { return };
    if !tools_or_skip(&["nft"]) {
        return;
    }
    let try_connection = |server: &SocketAddr| {
        let connected =
            run_in(&stage.client.namespace, || TcpStream::connect_timeout(server, Duration::from_millis(1500)));
        assert!(connected.expect("a namespace").is_err());
    };
    for server in stage.servers() {
        both_show(&verdicts(&stage, "refused", || try_connection(&server)), &["refused"]);
    }
    stage.rule(&stage.server, "input", "tcp dport 8080", "drop");
    for server in stage.servers() {
        both_show(&verdicts(&stage, "silent", || try_connection(&server)), &["no_answer"]);
    }
}

#[test]
fn loss_is_told_from_a_firewalls_reset() {
    let Some(stage) = Stage::open() else { return };
    if !tools_or_skip(&["nft"]) {
        return;
    }
    let rule = |packets: &str, action: &str| {
        stage.rule(&stage.server, "input", &format!("tcp dport 8080 meta length > 100{packets}"), action);
    };
    rule(" numgen inc mod 6 == 0", "drop");
    for server in stage.servers() {
        let lossy = verdicts(&stage, "loss", || converse(stage.connect(server), 24, NOT, NOT));
        both_show(&lossy, &["loss"]);
        assert_eq!(lossy[0]["findings"][0]["why"], "loss behind this place");
    }
    inside(&stage.server, "nft flush ruleset");
    rule("", "reject with tcp reset");
    for server in stage.servers() {
        let reset = verdicts(&stage, "reset", || {
            let [mut client, _server] = stage.connect(server);
            client.write_all(&[2; 100]).expect("a question");
            assert!(client.read(&mut [0; 10]).is_err());
        });
        both_show(&reset, &["reset"]);
        assert_eq!(reset[0]["findings"][0]["by"], "server");
    }
}

#[test]
fn large_packets_that_vanish_are_named() {
    let Some(stage) = Stage::open() else { return };
    if !tools_or_skip(&["nft", "ethtool"]) {
        return;
    }
    for station in [&stage.client, &stage.server] {
        let features = ["tso", "off", "gso", "off", "gro", "off"];
        run("ip", &[&["netns", "exec", &station.name, "ethtool", "-K", "veth0"][..], &features].concat());
    }
    stage.rule(&stage.server, "prerouting", "meta length > 1300", "drop");
    for server in stage.servers() {
        let [report, _] = verdicts(&stage, "mtu", || {
            let [mut client, mut server] = stage.connect(server);
            client.write_all(&[2; 100]).expect("a question");
            server.read_exact(&mut [0; 100]).expect("a question");
            client.write_all(&[2; 5000]).expect("it waits in the buffer");
            thread::sleep(milliseconds(2500));
        });
        assert_eq!(causes(&report), ["large_segments"], "{report}");
        assert!(report["findings"][0]["passed"].as_u64() < Some(1300), "{report}");
    }
}

#[test]
fn slow_and_silent_name_servers_are_named() {
    let Some(stage) = Stage::open() else { return };
    for address in [IpAddr::V4(stage.server.ipv4), stage.server.ipv6.into()] {
        let ask = |answered: u16, took: Duration| {
            let mut names = Names::at(&stage, address);
            for _ in 0..answered {
                names.resolve(took);
            }
            for _ in answered..6 {
                names.ask();
            }
            // Later packets show how long there was no answer.
            thread::sleep(milliseconds(1100));
            names.send_other();
        };
        both_show(&verdicts(&stage, "names", || ask(6, NOT)), &[]);
        both_show(&verdicts(&stage, "slow-names", || ask(6, milliseconds(150))), &["slow_names"]);
        both_show(&verdicts(&stage, "silent-names", || ask(3, NOT)), &["silent_names"]);
    }
}

/// Judges a transfer, or a conversation, over an emulated path by both versions of IP.
fn over(path: Path, name: &str, traffic: fn([TcpStream; 2]) -> [TcpStream; 2]) -> Vec<[Value; 2]> {
    let Some(stage) = Stage::over(path) else { return Vec::new() };
    let judged = stage.servers().map(|server| verdicts(&stage, name, || traffic(stage.connect(server))));
    judged.into()
}

fn upload(ends: [TcpStream; 2]) -> [TcpStream; 2] {
    transfer(ends, 2 << 20, NOT)
}

#[test]
fn path_without_faults_is_not_blamed() {
    for reports in over(Path::default(), "plain", upload) {
        both_show(&reports, &[]);
    }
    let far = Path { delay: milliseconds(30), ..Path::default() };
    for reports in over(far, "far-bulk", |ends| transfer(ends, 24 << 20, NOT)) {
        both_show(&reports, &[]);
    }
}

#[test]
fn distance_is_named_at_both_ends() {
    let far = Path { delay: milliseconds(40), ..Path::default() };
    for reports in over(far, "distance", |ends| converse(ends, 12, NOT, NOT)) {
        both_show(&reports, &["distance"]);
        let round_trip = reports[1]["findings"][0]["round_trip_ns"].as_u64();
        assert!(round_trip.is_some_and(|ns| (80_000_000..200_000_000).contains(&ns)), "{round_trip:?}");
    }
}

#[test]
fn loss_on_the_path_is_before_the_server_and_behind_the_client() {
    for reports in over(Path { delay: milliseconds(2), lose: Some(40), ..Path::default() }, "lossy", upload) {
        both_show(&reports, &["loss"]);
        let places = reports.each_ref().map(|report| report["findings"][0]["why"].as_str().unwrap_or_default());
        assert_eq!(places, ["loss behind this place", "loss before this place"]);
    }
}

/// The sender may wait long enough for late segments, and repeats none.
#[test]
fn reordering_is_no_loss() {
    let late = Path { delay: milliseconds(5), late: Some(10), ..Path::default() };
    for [client, server] in over(late, "late", upload) {
        assert_eq!(causes(&server), ["reordering"], "{server}");
        assert!(causes(&client).iter().all(|cause| *cause == "reordering"), "{client}");
    }
}

/// A capture at the server does not show the queue in front of it.
#[test]
fn queue_is_named_at_its_sender() {
    let narrow = Path { delay: milliseconds(2), rate: Some((600_000, 200_000)), ..Path::default() };
    for [client, server] in over(narrow, "queue", upload) {
        assert_eq!(causes(&client), ["queue"], "{client}");
        assert_eq!(causes(&server), [""; 0], "{server}");
    }
}

#[test]
fn text_has_the_evidence_and_other_files_are_refused() {
    let Some(stage) = Stage::open() else { return };
    let server = stage.servers()[0];
    verdicts(&stage, "text", || converse(stage.connect(server), 4, milliseconds(150), NOT));
    let shown = trawl(&["slow", &stage.file("text-client.pcapng")]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("answers slowly") && text.contains("of 4 answers; profile the process"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let filtered = trawl(&args!("slow {} tcp port 9", stage.file("text-client.pcapng")));
    let text = String::from_utf8_lossy(&filtered.stdout).into_owned();
    assert_eq!(text, "0 connections in 0 packets: no cause of delay found\n");
    assert_eq!(trawl(&["slow", "/dev/null"]).status.code(), Some(1));
}
