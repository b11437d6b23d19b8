//! `trawl slow`: each planted fault is named from captures at either end, and healthy traffic is not.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use trawl_lab::Station;
use trawl_sys::netns::run_in;
use trawl_tests::lab::Files;
use trawl_tests::wire::{Path, Wire};
use trawl_tests::witness::run;
use trawl_tests::{Lab, LineLab, Running, args, tools_or_skip, trawl};

/// A client and a server, and a place for files.
struct Stage<'a> {
    client: &'a Station,
    server: &'a Station,
    files: &'a dyn Files,
}

impl<'a> Stage<'a> {
    fn of(lab: &'a Lab) -> Self {
        Self { client: &lab.pair.a, server: &lab.pair.b, files: lab }
    }

    /// Returns the server's addresses by both versions of IP.
    fn servers(&self) -> [SocketAddr; 2] {
        [IpAddr::V4(self.server.ipv4), IpAddr::V6(self.server.ipv6)].map(|address| SocketAddr::new(address, 8080))
    }

    /// Connects the client to the server; returns both ends.
    fn connect(&self, server: SocketAddr) -> [TcpStream; 2] {
        let listener =
            run_in(&self.server.namespace, || TcpListener::bind(server)).expect("a namespace").expect("a port");
        let client = run_in(&self.client.namespace, || TcpStream::connect(server)).expect("a namespace");
        [client.expect("a server"), listener.accept().expect("a client").0]
    }
}

/// Captures the traffic at both ends with 128 bytes of each packet, and returns the files' verdicts, client first.
fn verdicts(stage: &Stage<'_>, name: &str, traffic: impl FnOnce()) -> [Value; 2] {
    let ends = [("client", stage.client), ("server", stage.server)];
    let ends = ends.map(|(end, station)| (end, format!("{}:{}", station.name, station.interface)));
    let files = ends.each_ref().map(|(end, _)| stage.files.file(&format!("{name}-{end}.pcapng")));
    let captures = [0, 1].map(|end| {
        let (interface, file) = (&ends[end].1, &files[end]);
        Running::start(&args!("capture -i {interface} --tap packet -s 128 -w {file} tcp or udp"), "capturing on")
    });
    traffic();
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

/// Exchanges questions and answers; the server and the client wait that long before each.
fn converse([mut client, mut server]: [TcpStream; 2], count: u32, think: Duration, pause: Duration) {
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut question = [0; 100];
            for _ in 0..count {
                server.read_exact(&mut question).expect("a question");
                thread::sleep(think);
                server.write_all(&[1; 300]).expect("an answer");
            }
        });
        let mut answer = [0; 300];
        for _ in 0..count {
            client.write_all(&[2; 100]).expect("a question");
            client.read_exact(&mut answer).expect("an answer");
            thread::sleep(pause);
        }
    });
}

/// Sends bytes to a server that reads them in pieces, with pauses.
fn transfer([mut client, mut server]: [TcpStream; 2], bytes: usize, pause: Duration) {
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut piece = vec![0; 16 << 10];
            while server.read(&mut piece).expect("data") > 0 {
                thread::sleep(pause);
            }
        });
        client.write_all(&vec![3; bytes]).expect("sent");
        client.shutdown(Shutdown::Write).expect("the end");
    });
}

/// Returns a set of rules in the syntax of nftables' files, with one rule at a hook.
fn rule(hook: &str, rule: &str) -> String {
    format!("table inet lab {{\nchain c {{\ntype filter hook {hook} priority 0\n{rule}\n}}\n}}\n")
}

const NOT: Duration = Duration::ZERO;

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn slow_application_is_named_and_pauses_of_the_client_are_not() {
    let Some(lab) = Lab::open() else { return };
    let stage = Stage::of(&lab);
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
    let Some(lab) = Lab::open() else { return };
    let stage = Stage::of(&lab);
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
    let Some(lab) = Lab::open() else { return };
    let stage = Stage::of(&lab);
    if !tools_or_skip(&["nft"]) {
        return;
    }
    let try_connection = |server: &SocketAddr| {
        let connected =
            run_in(&lab.pair.a.namespace, || TcpStream::connect_timeout(server, Duration::from_millis(1500)));
        assert!(connected.expect("a namespace").is_err());
    };
    for server in stage.servers() {
        both_show(&verdicts(&stage, "refused", || try_connection(&server)), &["refused"]);
    }
    lab.nft(&rule("input", "tcp dport 8080 drop"));
    for server in stage.servers() {
        both_show(&verdicts(&stage, "silent", || try_connection(&server)), &["no_answer"]);
    }
}

#[test]
fn loss_is_told_from_a_firewalls_reset() {
    let Some(lab) = Lab::open() else { return };
    let stage = Stage::of(&lab);
    if !tools_or_skip(&["nft"]) {
        return;
    }
    let rules = |action: &str| rule("input", &format!("tcp dport 8080 meta length > 100 {action}"));
    lab.nft(&rules("numgen inc mod 6 == 0 drop"));
    for server in stage.servers() {
        let lossy = verdicts(&stage, "loss", || converse(stage.connect(server), 24, NOT, NOT));
        both_show(&lossy, &["loss"]);
        assert_eq!(lossy[0]["findings"][0]["why"], "loss behind this place");
    }
    lab.inside("nft flush ruleset");
    lab.nft(&rules("reject with tcp reset"));
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
    let Some(lab) = Lab::open() else { return };
    let stage = Stage::of(&lab);
    if !tools_or_skip(&["nft", "ethtool"]) {
        return;
    }
    for station in [&lab.pair.a, &lab.pair.b] {
        let features = ["tso", "off", "gso", "off", "gro", "off"];
        run("ip", &[&["netns", "exec", &station.name, "ethtool", "-K", "veth0"][..], &features].concat());
    }
    lab.nft(&rule("prerouting", "meta length > 1300 drop"));
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
    let Some(lab) = Lab::open() else { return };
    let stage = Stage::of(&lab);
    for address in [IpAddr::V4(lab.pair.b.ipv4), IpAddr::V6(lab.pair.b.ipv6)] {
        let server = SocketAddr::new(address, 53);
        let ask = |answered: u16, took: Duration| {
            let bind = |at: SocketAddr| move || UdpSocket::bind(at);
            let resolver = run_in(&lab.pair.b.namespace, bind(server)).expect("a namespace").expect("a port");
            let from = SocketAddr::new(if address.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() }, 0);
            let host = run_in(&lab.pair.a.namespace, bind(from)).expect("a namespace").expect("a port");
            for id in 0..6_u16 {
                let [high, low] = id.to_be_bytes();
                let question = [high, low, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1];
                host.send_to(&question, server).expect("sent");
                let mut message = [0; 64];
                let (length, asker) = resolver.recv_from(&mut message).expect("a question");
                if id < answered {
                    thread::sleep(took);
                    // The name does not exist.
                    message[2..4].copy_from_slice(&[0x81, 0x83]);
                    resolver.send_to(&message[..length], asker).expect("an answer");
                    host.recv_from(&mut [0; 64]).expect("an answer");
                }
            }
            // Later packets show how long there was no answer.
            thread::sleep(milliseconds(1100));
            host.send_to(&[0; 20], SocketAddr::new(address, 9)).expect("sent");
        };
        both_show(&verdicts(&stage, "names", || ask(6, NOT)), &[]);
        both_show(&verdicts(&stage, "slow-names", || ask(6, milliseconds(150))), &["slow_names"]);
        both_show(&verdicts(&stage, "silent-names", || ask(3, NOT)), &["silent_names"]);
    }
}

/// Judges a transfer, or a conversation, over an emulated path by both versions of IP.
fn over(path: Path, name: &str, traffic: fn([TcpStream; 2])) -> Vec<[Value; 2]> {
    let Some(lab) = LineLab::open() else { return Vec::new() };
    if !tools_or_skip(&["ethtool"]) {
        return Vec::new();
    }
    let stage = Stage { client: &lab.line.a, server: &lab.line.b, files: &lab };
    let _wire = Wire::between(&lab.line, path);
    let judged = stage.servers().map(|server| verdicts(&stage, name, || traffic(stage.connect(server))));
    judged.into()
}

fn upload(ends: [TcpStream; 2]) {
    transfer(ends, 2 << 20, NOT);
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
    let Some(lab) = Lab::open() else { return };
    let stage = Stage::of(&lab);
    let server = stage.servers()[0];
    verdicts(&stage, "text", || converse(stage.connect(server), 4, milliseconds(150), NOT));
    let shown = trawl(&["slow", &lab.file("text-client.pcapng")]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("answers slowly") && text.contains("of 4 answers; profile the process"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let filtered = trawl(&args!("slow {} tcp port 9", lab.file("text-client.pcapng")));
    let text = String::from_utf8_lossy(&filtered.stdout).into_owned();
    assert_eq!(text, "0 connections in 0 packets: no cause of delay found\n");
    assert_eq!(trawl(&["slow", "/dev/null"]).status.code(), Some(1));
    assert_eq!(trawl(&["slow"]).status.code(), Some(2));
}
