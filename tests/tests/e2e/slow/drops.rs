//! Recordings with the packets that the kernel dropped name the drop behind a loss, a silent server or a reset.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use trawl_lab::Station;
use trawl_sys::netns::run_in;
use trawl_tests::lab::place;
use trawl_tests::stage::{Stage, counted};
use trawl_tests::traffic::{converse, transfer};
use trawl_tests::wire::Path;
use trawl_tests::witness::{inside, run};
use trawl_tests::{Running, args, tools_or_skip, trawl};

use super::{NOT, causes, milliseconds};

/// Records packets at these stations, and drops, with one process and with two; returns the verdicts of both.
fn recorded<T>(stage: &Stage, at: &[&Station], traffic: impl FnOnce() -> T) -> [Value; 2] {
    let interfaces: String = at.iter().map(|station| format!("-i {} ", place(station))).collect();
    let server = format!("-i {} ", place(&stage.server));
    let all = if interfaces.contains(&server) { interfaces.clone() } else { format!("{server}{interfaces}") };
    let [one, packets, drops] = ["one", "packets", "drops"].map(|name| stage.file(&format!("{name}.pcapng")));
    let captures = [
        Running::start(&args!("capture {all}--tap packet,drop -s 128 -w {one} tcp"), "at drop"),
        Running::start(&args!("capture {interfaces}--tap packet -s 128 -w {packets} tcp"), "capturing on"),
        Running::start(&args!("why --all-namespaces --record {drops} tcp"), "looking for drops"),
    ];
    drop(traffic());
    for capture in captures {
        let ended = capture.stop();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    }
    [vec![&one], vec![&packets, &drops]].map(|files| {
        let names: Vec<&str> = files.into_iter().map(String::as_str).collect();
        let found = trawl(&[&["slow", "--json"], &names[..]].concat());
        assert!(found.status.success(), "{found:?}");
        serde_json::from_slice(&found.stdout).expect("JSON")
    })
}

/// Checks that a report names the drop of a rule, and the rule if `trawl why` has recorded it, as the only cause, but
/// for a reader without a CPU.
#[track_caller]
fn names_rule(reports: &[Value; 2], cause: &str, table: &str) {
    let [one, two] = reports.each_ref().map(|report| {
        let findings = report["findings"].as_array().expect("a list");
        let others: Vec<&Value> = findings.iter().filter(|one| one["cause"] != "slow_reader").collect();
        assert!(others.len() == 1 && others[0]["cause"] == cause, "{report}");
        others[0]["drop"].as_str().expect("a drop")
    });
    assert!(one.starts_with("NETFILTER_DROP at "), "{one}");
    assert!(two.starts_with("NETFILTER_DROP in ") && two.contains(&format!("rule 2 of {table}")), "{two}");
}

/// Both connections have the same addresses and ports, and sequence numbers that overlap: they begin by a clock.
#[test]
fn drops_belong_to_the_connection_of_their_namespace() {
    if !tools_or_skip(&["nft"]) {
        return;
    }
    let delay = milliseconds(4);
    let Some(here) = Stage::over(Path { delay, ..Path::default() }) else { return };
    let Some(other) = Stage::over(Path { delay, lose: Some(50), ..Path::default() }) else { return };
    for stage in [&here, &other] {
        let ports = "net.ipv4.ip_local_port_range=40000 40000";
        run("ip", &["netns", "exec", &stage.client.name, "sysctl", "-q", "-w", ports]);
    }
    here.rule(&here.server, "prerouting", "tcp dport 8080 meta length > 1000 numgen inc mod 50 == 0", "drop");
    let mut dropped = 0;
    for server in here.servers() {
        let reports = recorded(&here, &[&here.server, &other.server], || {
            thread::scope(|scope| {
                for ends in [&here, &other].map(|stage| stage.connect(server)) {
                    scope.spawn(move || transfer(ends, 4 << 20, NOT));
                }
            });
        });
        let now = counted(&here.server);
        for report in &reports {
            assert_eq!(report["connections"], 2, "{report}");
            assert_eq!(causes(report), ["loss_here", "loss"], "{report}");
            let [here, other] = [0, 1].map(|at| &report["findings"][at]);
            let joined = here["joined"].as_u64().expect("a count");
            assert!(joined * 100 >= 95 * (now - dropped) && joined <= now - dropped, "{dropped} {now} {report}");
            assert!(here["drop"].as_str().is_some_and(|drop| drop.starts_with("NETFILTER_DROP")), "{report}");
            assert!(other["repeated"].as_u64() > Some(20), "{report}");
        }
        dropped = now;
    }
}

/// A dropped buffer contains many segments.
#[test]
fn drop_of_large_buffers_is_named_at_both_ends() {
    let Some(stage) = Stage::open() else { return };
    if !tools_or_skip(&["nft"]) {
        return;
    }
    stage.rule(&stage.server, "prerouting", "tcp dport 8080 meta length > 1000 numgen inc mod 40 == 0", "drop");
    for server in stage.servers() {
        for end in [&stage.client, &stage.server] {
            let reports = recorded(&stage, &[end], || transfer(stage.connect(server), 24 << 20, NOT));
            names_rule(&reports, "loss_here", "inet lab prerouting");
        }
    }
}

#[test]
fn rule_that_drops_or_rejects_requests_is_named() {
    let Some(stage) = Stage::open() else { return };
    if !tools_or_skip(&["nft"]) {
        return;
    }
    let try_connection = |server: &SocketAddr| {
        let time = milliseconds(1500);
        let connected = run_in(&stage.client.namespace, || TcpStream::connect_timeout(server, time));
        assert!(connected.expect("a namespace").is_err());
    };
    for (action, cause) in [("drop", "loss_here"), ("reject with tcp reset", "reset_here")] {
        stage.rule(&stage.server, "input", "tcp dport 8080", action);
        for server in stage.servers() {
            let reports = recorded(&stage, &[&stage.client], || try_connection(&server));
            names_rule(&reports, cause, "inet lab input");
        }
        inside(&stage.server, "nft flush ruleset");
    }
}

#[test]
fn rule_that_resets_a_connection_is_named() {
    let Some(stage) = Stage::open() else { return };
    if !tools_or_skip(&["nft"]) {
        return;
    }
    stage.rule(&stage.server, "input", "tcp dport 8080 meta length > 100", "reject with tcp reset");
    for server in stage.servers() {
        let reports = recorded(&stage, &[&stage.client], || {
            let [mut client, _server] = stage.connect(server);
            client.write_all(&[2; 100]).expect("a question");
            assert!(client.read(&mut [0; 10]).is_err());
        });
        names_rule(&reports, "reset_here", "inet lab input");
    }
}

#[test]
fn process_of_the_packets_is_named() {
    let Some(stage) = Stage::open() else { return };
    let file = stage.file("process.pcapng");
    let interface = place(&stage.server);
    let what = args!("capture -i {interface} --tap tc --process -s 128 -w {file} tcp");
    let capture = Running::start(&what, "capturing on");
    converse(stage.connect(stage.servers()[0]), 4, milliseconds(150), Duration::ZERO);
    let ended = capture.stop();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let found = trawl(&["slow", "--json", &file]);
    let report: Value = serde_json::from_slice(&found.stdout).expect("JSON");
    let finding = &report["findings"][0];
    assert_eq!((&finding["cause"], &finding["pid"]), (&"slow_answer".into(), &std::process::id().into()), "{report}");
    let name = finding["process"].as_str().expect("a process");
    assert_eq!(finding["who"], format!("{name}[{}]", std::process::id()));
}
