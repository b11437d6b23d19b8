//! `trawl guard`: floods dropped and counted beside real traffic, rules that come and go, and nothing left behind.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use trawl_kernel::netns::{self, run_in};
use trawl_lab::sender::Engine;
use trawl_packet::build::{Arp, Icmp, Ipv4, Ipv6, Layer, Tcp, Template, flags};
use trawl_tests::frames::{self, FROM, TO};
use trawl_tests::lab::send_from;
use trawl_tests::witness::{is_loaded, output, run, xdp_on};
use trawl_tests::{Lab, binary, trawl, wait_until};

const A4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const B4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const STRANGER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 66);

/// `trawl guard` in the receiving namespace of a lab.
struct Guarded<'a> {
    lab: &'a Lab,
}

impl<'a> Guarded<'a> {
    #[track_caller]
    fn load(lab: &'a Lab, options: &[&str]) -> Self {
        let guarded = Self { lab };
        guarded.well(&[&["load", &lab.pair.b.interface], options].concat());
        guarded
    }

    /// Sends frames, and returns when all have been counted.
    fn send(&self, frames: &[Vec<u8>], count: u64) {
        let seen = || self.figures(&["seen"])[0];
        let before = seen();
        self.lab.send(frames, count);
        wait_until("all packets are counted", || seen() >= before + count);
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let place = ["--netns", &self.lab.pair.b.name];
        trawl(&[&["guard"], arguments, &place].concat())
    }

    #[track_caller]
    fn well(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What it says when it refuses.
    #[track_caller]
    fn refused(&self, status: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        said
    }

    #[track_caller]
    fn list(&self) -> Value {
        serde_json::from_str(&self.well(&["list", "--json"])).expect("JSON")
    }

    fn rule(&self, id: u64) -> Option<Value> {
        let list = self.list();
        let rules = list["rules"].as_array().expect("rules");
        rules.iter().find(|rule| rule["id"] == id).cloned()
    }

    #[track_caller]
    fn hits(&self, id: u64) -> u64 {
        self.rule(id).expect("the rule is there")["hits"]
            .as_u64()
            .expect("a number")
    }

    #[track_caller]
    fn stats(&self) -> Value {
        let all: Value = serde_json::from_str(&self.well(&["stats", "--json"])).expect("JSON");
        let interfaces = all["interfaces"].as_array().expect("a list");
        let is_it = |one: &&Value| {
            one["interface"]
                .as_str()
                .is_some_and(|name| name.ends_with("veth0"))
        };
        interfaces
            .iter()
            .find(is_it)
            .expect("it is guarded")
            .clone()
    }

    #[track_caller]
    fn figures(&self, names: &[&str]) -> Vec<u64> {
        let stats = self.stats();
        names
            .iter()
            .map(|name| {
                stats[name]
                    .as_u64()
                    .unwrap_or_else(|| panic!("{name}: {stats}"))
            })
            .collect()
    }

    fn apply(&self, rules: &str) -> Output {
        let file = self.lab.file("rules.toml");
        std::fs::write(&file, rules).expect("a file");
        self.run(&["apply", &file])
    }

    /// Where its maps are pinned.
    fn directory(&self) -> PathBuf {
        let cookie = netns::cookie(Some(&self.lab.pair.b.namespace)).expect("a cookie");
        PathBuf::from(format!("/sys/fs/bpf/trawl/guard-{cookie}"))
    }
}

fn frame(source: Ipv4Addr) -> Template {
    Template::new().ethernet(FROM, TO).ipv4(source, B4)
}

fn udp_from(source: Ipv4Addr, port: u16) -> Vec<u8> {
    frame(source).udp(4000, port).payload([0; 22]).build()
}

fn syn_from(source: Ipv4Addr) -> Vec<u8> {
    let tcp = Tcp {
        src: 4000,
        dst: 80,
        flags: flags::SYN,
        ..Tcp::default()
    };
    frame(source).tcp(tcp).frame_len(64).build()
}

fn ping_from(source: Ipv4Addr) -> Vec<u8> {
    frame(source)
        .icmp(Icmp::echo_request(1, 1))
        .frame_len(64)
        .build()
}

const SIZE: usize = 8 << 20;

fn pattern() -> Vec<u8> {
    (0..SIZE).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// A transfer from a to b and back that is going on while `meanwhile` runs, and ends only after it.
fn transfer_during(lab: &Lab, meanwhile: impl FnOnce()) {
    let listener =
        run_in(&lab.pair.b.namespace, || TcpListener::bind((B4, 7000))).expect("the namespace");
    let listener = listener.expect("a listener");
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut got = vec![0; SIZE];
            stream.read_exact(&mut got).expect("all of it");
            stream.write_all(&got).expect("all of it back");
        });
        let stream = run_in(&lab.pair.a.namespace, || TcpStream::connect((B4, 7000)))
            .expect("the namespace");
        let mut stream = stream.expect("a connection");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a time");
        let sent = pattern();
        // The first half before, the rest during and after the flood.
        stream.write_all(&sent[..SIZE / 2]).expect("the first half");
        let mut writer = stream.try_clone().expect("a second handle");
        let rest = sent[SIZE / 2..].to_vec();
        let writing = scope.spawn(move || writer.write_all(&rest).expect("the rest"));
        meanwhile();
        let mut back = vec![0; SIZE];
        stream.read_exact(&mut back).expect("all of it comes back");
        assert!(back == sent, "bytes were changed");
        writing.join().expect("no panic");
        echo.join().expect("no panic");
    });
}

#[test]
fn floods_are_dropped_while_a_connection_holds() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    guarded.well(&["deny", "--proto", "udp", "--port", "9"]);
    guarded.well(&["preset", "syn-flood", "--rate", "50"]);
    guarded.well(&["preset", "ping-flood"]);
    const FLOOD: u64 = 150_000;
    let start = Instant::now();
    transfer_during(&lab, || {
        for flood in [udp_from(A4, 9), syn_from(A4), ping_from(A4)] {
            guarded.send(&[flood], FLOOD);
        }
    });
    let seconds = start.elapsed().as_secs() + 1;
    assert_eq!(guarded.hits(1), FLOOD);
    // What is under the rate passes: so many a second, and a tenth of a second's worth at once. One is the client's own.
    for (rule, rate) in [(2, 50), (3, 10)] {
        let hits = guarded.hits(rule);
        let allowed = rate * seconds + rate / 10 + 2;
        assert!(
            hits <= FLOOD + 1 && hits + allowed >= FLOOD,
            "rule {rule}: {hits} of {FLOOD}"
        );
    }
    let figures = guarded.figures(&["seen", "passed", "dropped", "rule_denied", "over_rate"]);
    assert_eq!(figures[0], figures[1] + figures[2]);
    assert_eq!(figures[3], FLOOD);
    assert_eq!(figures[4], guarded.hits(2) + guarded.hits(3));
}

#[test]
fn a_default_of_deny_lets_in_what_rules_allow_and_counts_the_rest() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &["--default", "deny"]);
    guarded.well(&[
        "allow",
        "--src",
        "10.77.0.0/24",
        "--proto",
        "tcp",
        "--port",
        "7000-7001",
    ]);
    transfer_during(&lab, || guarded.send(&[udp_from(A4, 7000)], 1000));
    let arp = Template::new()
        .ethernet(FROM, TO)
        .arp(Arp::request(FROM, A4, B4))
        .frame_len(60)
        .build();
    let solicitation = Template::new()
        .ethernet(FROM, TO)
        .layer(Layer::Ipv6(Ipv6 {
            src: "fd00:77::1".parse().expect("an address"),
            dst: "fd00:77::2".parse().expect("an address"),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 255,
            next_header: None,
        }))
        .icmpv6(Icmp {
            kind: 135,
            ..Icmp::default()
        })
        .payload([0; 20])
        .build();
    for frame in [
        frames::ipv6_udp(0),
        frames::ipv4_udp(1),
        frames::ipv6_udp(2),
        arp,
        solicitation,
        frames::silent(64),
    ] {
        guarded.send(&[frame], 100);
    }
    let cut_short = udp_from(A4, 9)[..36].to_vec();
    guarded.send(&[cut_short], 10);
    let names = [
        "default_denied",
        "not_ip",
        "discovery",
        "malformed",
        "rule_denied",
        "over_rate",
        "default_allowed",
    ];
    assert_eq!(guarded.figures(&names), [1300, 200, 100, 10, 0, 0, 0]);
    let default = &guarded.list()["defaults"][0];
    assert_eq!(
        (default["action"].as_str(), default["hits"].as_u64()),
        (Some("deny"), Some(1300))
    );
}

#[test]
fn generic_mode_and_both_cpus_count_the_same() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &["--mode", "skb"]);
    assert_eq!(
        xdp_on(&lab.pair.b).map(|(_, mode)| mode).as_deref(),
        Some("skb")
    );
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    for cpu in 0..2 {
        send_from(
            &lab.pair.a,
            &[udp_from(STRANGER, 9)],
            5_000,
            Engine::Packet,
            Some(cpu),
            None,
        );
    }
    wait_until("all are counted", || guarded.hits(1) == 10_000);
    assert_eq!(guarded.figures(&["seen", "dropped"]), [10_000, 10_000]);
    guarded.well(&["load", "veth0", "--mode", "native"]);
    assert_eq!(
        xdp_on(&lab.pair.b).map(|(_, mode)| mode).as_deref(),
        Some("native")
    );
    lab.send_from_two_cpus(&[udp_from(STRANGER, 9)], 50_000);
    // The rule's hits go on; the interface's totals are those of the program that is there.
    assert_eq!(guarded.hits(1), 110_000);
    assert_eq!(guarded.figures(&["seen", "dropped"]), [100_000, 100_000]);
}

#[test]
fn later_fragments_follow_what_lets_their_first_one_pass() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &["--default", "deny"]);
    guarded.well(&["allow", "--proto", "udp", "--port", "53"]);
    let fragment = |offset: u16, protocol: u8| {
        let ip = Ipv4 {
            fragment_offset: offset,
            dont_fragment: false,
            protocol: Some(protocol),
            ..Ipv4::new(A4, B4)
        };
        Template::new()
            .ethernet(FROM, TO)
            .layer(Layer::Ipv4(ip))
            .payload([7; 40])
            .build()
    };
    guarded.send(&[fragment(1480, 17)], 100);
    guarded.send(&[fragment(1480, 6)], 10);
    // Made to write over the flags of the first one.
    guarded.send(&[fragment(8, 6)], 1);
    assert_eq!(
        guarded.figures(&["rule_allowed", "default_denied", "malformed"]),
        [100, 10, 1]
    );
}

#[test]
fn a_rule_ends_by_itself() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    guarded.well(&["deny", "--src", &STRANGER.to_string(), "--for", "1h"]);
    guarded.well(&[
        "deny",
        "--src",
        &STRANGER.to_string(),
        "--proto",
        "udp",
        "--for",
        "400ms",
    ]);
    let left = guarded.rule(1).expect("it is there")["expires_in"]
        .as_f64()
        .expect("a number");
    assert!(left > 3_000.0 && left <= 3_600.0, "{left}");
    wait_until("the rule is over", || guarded.rule(2).is_none());
    guarded.send(&[udp_from(STRANGER, 9)], 1000);
    assert_eq!(guarded.hits(1), 1000);
    // The kernel looks at the time itself: no command is needed in between.
    guarded.well(&["deny", "--src", "192.0.2.67", "--for", "100ms"]);
    wait_until("the rule is over in the kernel", || {
        let before = guarded.figures(&["default_allowed"])[0];
        guarded.send(&[udp_from(Ipv4Addr::new(192, 0, 2, 67), 9)], 10);
        guarded.figures(&["default_allowed"])[0] == before + 10
    });
}

#[test]
fn a_rate_holds_for_each_source() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &["--default", "deny"]);
    guarded.well(&["allow", "--proto", "udp", "--rate", "100"]);
    let start = Instant::now();
    for last in 1..=3 {
        guarded.send(&[udp_from(Ipv4Addr::new(192, 0, 2, last), 9)], 20_000);
    }
    let most = 3 * (start.elapsed().as_secs() + 1) * 100 + 3 * 11;
    let rule = guarded.rule(1).expect("it is there");
    let (passed, limited) = (
        rule["hits"].as_u64().expect("a number"),
        rule["limited"].as_u64().expect("a number"),
    );
    assert_eq!(passed + limited, 60_000);
    assert!((3 * 10..=most).contains(&passed), "{passed} passed");
    assert_eq!(
        guarded.figures(&["rule_allowed", "over_rate"]),
        [passed, limited]
    );
}

#[test]
fn a_file_is_applied_as_a_whole_or_not_at_all() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    let by_source = "[[rule]]\naction = \"deny\"\nsrc = \"192.0.2.0/24\"\n";
    let by_port = "[[rule]]\naction = \"deny\"\nproto = \"udp\"\nport = 9\n";
    assert!(guarded.apply(by_source).status.success());
    let before = guarded.list();
    for (bad, place) in [
        (
            "[[rule]]\naction = \"deny\"\n[[rule]]\naction = \"allow\"\nsrc = \"300.0.0.1\"\n",
            "line 5, column 7",
        ),
        (
            "default = \"deny\"\n[[rule]]\naction = \"deny\"\non = \"nowhere\"\n",
            "nowhere",
        ),
        ("nonsense", "line 1"),
    ] {
        let output = guarded.apply(bad);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(place), "{said}");
        assert_eq!(guarded.list(), before);
    }
    // Either set drops each of these frames; half of both would let some pass.
    const FLOOD: u64 = 1_000_000;
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| guarded.send(&[udp_from(STRANGER, 9)], FLOOD));
        let mut applied = 0;
        while !flood.is_finished() || applied == 0 {
            let rules = if applied % 2 == 0 { by_port } else { by_source };
            assert!(guarded.apply(rules).status.success());
            applied += 1;
        }
        flood.join().expect("no panic");
    });
    assert_eq!(
        guarded.figures(&["seen", "rule_denied", "passed"]),
        [FLOOD, FLOOD, 0]
    );
}

#[test]
fn hits_are_kept_through_changes() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    const FLOOD: u64 = 600_000;
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| guarded.send(&[udp_from(STRANGER, 9)], FLOOD));
        let mut other = 1;
        while !flood.is_finished() && other < 200 {
            guarded.well(&["deny", "--src", &format!("10.1.1.{other}")]);
            other += 1;
        }
        flood.join().expect("no panic");
    });
    assert_eq!(guarded.hits(1), FLOOD);
    assert_eq!(
        guarded.well(&["deny", "--src", &STRANGER.to_string(), "--for", "1h"]),
        format!("rule 1: deny --src {STRANGER} (in the place of the one about the same packets)\n")
    );
    assert_eq!(guarded.hits(1), FLOOD);
}

#[test]
fn a_hundred_thousand_prefixes() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    let list: String = (0..100_000u32)
        .map(|number| format!("{}\n", Ipv4Addr::from_bits(0x0b00_0000 + number * 3)))
        .collect();
    std::fs::write(lab.path("list"), list).expect("a file");
    let applied = guarded.apply("[[rule]]\naction = \"deny\"\nsrc-file = \"list\"\n");
    assert_eq!(
        String::from_utf8_lossy(&applied.stdout),
        "100000 rules in force\n"
    );
    for number in [0u32, 3, 6, 150_000, 299_997] {
        for beside in 0..3 {
            guarded.send(
                &[udp_from(
                    Ipv4Addr::from_bits(0x0b00_0000 + number + beside),
                    9,
                )],
                10,
            );
        }
    }
    assert_eq!(
        guarded.figures(&["rule_denied", "default_allowed"]),
        [50, 100]
    );
    assert_eq!(
        guarded.list()["rules"].as_array().map(Vec::len),
        Some(100_000)
    );
    assert_eq!(guarded.well(&["remove", "--all"]), "removed 100000 rules\n");
}

/// trawl as typed in a session, whose variables these are.
fn in_session(connection: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(binary::path());
    command
        .args(arguments)
        .env("SSH_CONNECTION", connection)
        .stdin(Stdio::null());
    let output = command.output().expect("trawl runs");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn the_session_that_it_is_typed_in_is_not_cut() {
    let Some(lab) = Lab::open() else { return };
    let name = lab.pair.b.name.clone();
    let session = "10.77.0.1 50000 10.77.0.2 22";
    let guard = |arguments: &[&str]| {
        in_session(
            session,
            &[&["guard"], arguments, &["--netns", &name]].concat(),
        )
    };
    let (status, said) = guard(&["load", "veth0", "--default", "deny"]);
    assert_eq!(status, Some(1), "{said}");
    assert_eq!(xdp_on(&lab.pair.b), None);
    let remedy = "trawl guard allow --src 10.77.0.1 --proto tcp --port 22";
    assert!(said.contains(remedy) && said.contains("--yes"), "{said}");
    // What it says lets it in.
    let words: Vec<&str> = remedy.split(' ').skip(2).collect();
    assert_eq!(guard(&words).0, Some(0));
    assert_eq!(guard(&["load", "veth0", "--default", "deny"]).0, Some(0));
    let before = Guarded { lab: &lab }.list();
    std::fs::write(lab.path("empty.toml"), "").expect("a file");
    for cuts in [
        vec!["remove", "1"],
        vec!["remove", "--all"],
        vec![
            "deny",
            "--src",
            "10.77.0.1",
            "--proto",
            "tcp",
            "--port",
            "22",
        ],
        vec!["deny", "--src", "10.77.0.1", "--dst", "10.77.0.2"],
        vec![
            "allow",
            "--src",
            "10.77.0.1",
            "--proto",
            "tcp",
            "--port",
            "22",
            "--for",
            "1h",
        ],
        vec!["apply", &lab.file("empty.toml")],
    ] {
        let (status, said) = guard(&cuts);
        assert_eq!(status, Some(1), "{cuts:?}: {said}");
        assert!(said.contains("session from 10.77.0.1"), "{said}");
        assert_eq!(Guarded { lab: &lab }.list(), before, "{cuts:?}");
    }
    // Rules that leave it alone are taken, and sessions elsewhere do not matter.
    assert_eq!(guard(&["deny", "--src", "10.77.0.9"]).0, Some(0));
    assert_eq!(guard(&["remove", "1", "--yes"]).0, Some(0));
    let here = in_session(
        "127.0.0.1 50000 127.0.0.1 22",
        &["guard", "list", "--netns", &name],
    );
    assert_eq!(here.0, Some(0));
}

#[test]
fn a_session_by_another_interface_does_not_matter() {
    let Some(lab) = Lab::open() else { return };
    let name = &lab.pair.b.name;
    for command in [
        vec![
            "link", "add", "side0", "type", "veth", "peer", "name", "side1",
        ],
        vec!["address", "add", "10.88.0.1/24", "dev", "side0"],
        vec!["link", "set", "side0", "up"],
    ] {
        run("ip", &[&["-n", name.as_str()], command.as_slice()].concat());
    }
    let load = [
        "guard",
        "load",
        "veth0",
        "--default",
        "deny",
        "--netns",
        name,
    ];
    let (status, said) = in_session("10.77.0.1 50000 10.77.0.2 22", &load);
    assert_eq!(status, Some(1), "{said}");
    let (status, said) = in_session("10.88.0.9 50000 10.88.0.1 22", &load);
    assert_eq!(status, Some(0), "{said}");
}

#[test]
fn rules_before_an_interface_and_nothing_after_the_last() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded { lab: &lab };
    assert!(!guarded.directory().exists());
    assert_eq!(guarded.list()["rules"].as_array().map(Vec::len), Some(0));
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    guarded.well(&["remove", "1"]);
    assert!(
        !guarded.directory().exists(),
        "without rules and interfaces there is nothing to keep"
    );
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    guarded.well(&["deny", "--icmp", "echo-request", "--on", "lo"]);
    guarded.well(&["load", "veth0"]);
    guarded.well(&["load", "lo"]);
    guarded.send(&[udp_from(STRANGER, 9), ping_from(A4)], 200);
    assert_eq!((guarded.hits(1), guarded.hits(2)), (100, 0));
    let (program, _) = xdp_on(&lab.pair.b).expect("it is guarded");
    assert!(guarded.directory().exists());
    let about = run(
        "bpftool",
        &["-j", "prog", "show", "id", &program.to_string()],
    );
    let about: Value = serde_json::from_str(&about).expect("JSON");
    let maps = about["map_ids"].as_array().cloned().unwrap_or_default();
    guarded.well(&["unload", "lo"]);
    assert_eq!(guarded.hits(1), 100);
    guarded.well(&["unload", "veth0"]);
    assert_eq!(xdp_on(&lab.pair.b), None);
    assert!(!guarded.directory().exists());
    wait_until("the program is unloaded", || !is_loaded(program));
    guarded.refused(1, &["unload", "veth0"]);
    for map in maps {
        wait_until("its maps are gone", || {
            !output("bpftool", &["map", "show", "id", &map.to_string()])
                .status
                .success()
        });
    }
}

#[test]
fn an_interface_that_vanishes_takes_its_default_along() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &["--default", "deny"]);
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    run("ip", &["-n", &lab.pair.b.name, "link", "del", "veth0"]);
    guarded.well(&["remove", "--all"]);
    assert!(!guarded.directory().exists());
}

#[test]
fn wrong_rules_are_wrong_usage() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded { lab: &lab };
    for (arguments, words) in [
        (vec!["deny", "--src", "10.0.0.1/8"], "10.0.0.0/8"),
        (vec!["deny", "--proto", "gre", "--port", "5"], "no ports"),
        (vec!["deny", "--proto", "tpc"], "protocol"),
        (vec!["deny", "--port", "9-8"], "ends before"),
        (vec!["deny", "--icmp", "echo"], "echo-request"),
        (vec!["deny", "--rate", "0"], "rate"),
        (vec!["deny", "--for", "soon"], "time"),
        (
            vec!["deny", "--src", "::1", "--dst", "10.0.0.1"],
            "IP version",
        ),
        (vec!["preset", "flood"], "syn-flood"),
        (vec!["remove"], "ID"),
    ] {
        let said = guarded.refused(2, &arguments);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    let said = guarded.refused(1, &["deny", "--on", "nowhere"]);
    assert!(said.contains("nowhere"), "{said}");
    let said = guarded.refused(1, &["remove", "7"]);
    assert!(said.contains("none"), "{said}");
    guarded.refused(1, &["stats"]);
    assert!(!guarded.directory().exists());
    // Somebody else's program stays.
    let held = output("ip", &["-n", &lab.pair.b.name, "link", "show", "veth0"]);
    assert!(held.status.success());
}
