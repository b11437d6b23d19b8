//! Slow connections as metrics of processes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use trawl_lab::sender::Engine;
use trawl_packet::build::{Tcp, Template, flags};
use trawl_sys::netns::run_in;
use trawl_tests::lab::send_from;
use trawl_tests::stage::{Stage, counted};
use trawl_tests::traffic::{converse, transfer};
use trawl_tests::wire::Path;
use trawl_tests::witness::{connection_values, inside, nstat, run};
use trawl_tests::{Running, args, tools_or_skip, wait_until};

use super::{lint, metrics, serve, value};

const THINK: Duration = Duration::from_millis(300);
const NOT: Duration = Duration::ZERO;
const COUNT: u64 = 3;

/// Returns the label of this process, which has both ends of all connections.
fn process() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").expect("a name");
    format!("process=\"{}\"", name.trim())
}

/// Adds up the seconds of the series of a metric that have all these labels.
fn seconds(text: &str, name: &str, labels: &[&str]) -> f64 {
    let of_metric = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    let chosen = of_metric.filter(|line| labels.iter().all(|label| line.contains(label)));
    chosen.map(|line| line.rsplit_once(' ').expect("a value").1.parse::<f64>().expect("a number")).sum()
}

/// Returns the number of repetitions of this process with these labels, as of the last second.
fn repeated(text: &str, labels: &[&str]) -> u64 {
    value(text, "trawl_retransmissions_total", &[&[process().as_str()], labels].concat())
}

/// Returns the number of repetitions whose reason is not known. Without floods of drops by other tests there are none.
fn unknown(text: &str) -> u64 {
    let count = repeated(text, &["drop_reason=\"unknown\""]);
    assert!(count == 0 || value(text, "trawl_connection_measures_lost_total", &[]) > 0, "{text}");
    count
}

/// Serves the metrics of the connections of both ends.
fn serve_both(stage: &Stage, more: &[&str]) -> (Running, String) {
    let both = args!("--slow --netns {} --netns {}", stage.client.name, stage.server.name);
    serve(&[&both[..], more].concat())
}

/// A server that thinks, a path that loses and a server that refuses are metrics of their process, whether or not the
/// packets of processes are counted too. No label has an address.
#[test]
fn slow_connections_are_metrics() {
    let Some(stage) = Stage::open() else { return };
    if !tools_or_skip(&["nft"]) {
        return;
    }
    let process = process();
    let of_test = [process.as_str()];
    for more in [&[][..], &["--process"]] {
        let (running, address) = serve_both(&stage, more);
        let count = |metric: &str, labels: &[&str]| value(&metrics(&address), metric, &[&of_test, labels].concat());
        for server in stage.servers() {
            drop(converse(stage.connect(server), COUNT as u32, THINK, NOT));
        }
        for metric in ["think", "response"] {
            let metric = format!("trawl_connection_{metric}_seconds");
            let all = || count(&format!("{metric}_count"), &[]);
            wait_until(&metric, || all() == 2 * COUNT);
            let text = metrics(&address);
            let seconds = seconds(&text, &format!("{metric}_sum"), &of_test);
            assert!((1.8..3.0).contains(&seconds), "{seconds} s\n{text}");
            let short = format!("{metric}_bucket");
            assert_eq!(value(&text, &short, &[&process, "le=\"0.262144\""]), 0, "{text}");
            assert_eq!(value(&text, &short, &[&process, "le=\"+Inf\""]), 2 * COUNT, "{text}");
        }
        assert!(count("trawl_connection_handshake_seconds_count", &[]) >= 2);
        assert!(count("trawl_connection_read_wait_seconds_count", &[]) >= 2 * COUNT);
        assert_eq!(repeated(&metrics(&address), &[]), 0);
        stage.rule(&stage.server, "input", "tcp dport 8080 meta length > 100 numgen inc mod 6 == 0", "drop");
        for server in stage.servers() {
            drop(converse(stage.connect(server), 12, NOT, NOT));
        }
        wait_until("retransmissions", || repeated(&metrics(&address), &[]) >= 4);
        inside(&stage.server, "nft flush ruleset");
        for server in stage.servers() {
            let refused = run_in(&stage.client.namespace, || TcpStream::connect(server)).expect("a namespace");
            assert!(refused.is_err());
        }
        let refused = ["who=\"peer\"", "reason=\"refused\""];
        wait_until("resets", || count("trawl_resets_total", &refused) == 2);
        let text = metrics(&address);
        lint(&text);
        for address in stage.servers().map(|server| server.ip().to_string()) {
            assert!(!text.contains(&address), "{address} in {text}");
        }
        running.stop();
    }
}

const BY_RULE: &str = "drop_reason=\"NETFILTER_DROP\"";
const BY_NONE: &str = "drop_reason=\"\"";

/// Each segment that a rule dropped is behind one repetition. The rule, and the counters of both ends, say how many.
#[test]
fn retransmissions_have_the_reason_of_the_drop() {
    let Some(stage) = Stage::open() else { return };
    if !tools_or_skip(&["nft", "nstat"]) {
        return;
    }
    let (running, address) = serve_both(&stage, &[]);
    let text = || metrics(&address);
    assert_eq!(repeated(&text(), &[]), 0);
    stage.rule(&stage.server, "input", "tcp dport 8080 meta length > 100 numgen inc mod 6 == 0", "drop");
    for server in stage.servers() {
        drop(converse(stage.connect(server), 24, NOT, NOT));
    }
    let dropped = counted(&stage.server);
    let sent_again: u64 = [&stage.client, &stage.server].map(|end| nstat(end, "TcpRetransSegs")).iter().sum();
    assert!(dropped >= 8, "{dropped}");
    wait_until(&format!("{sent_again} repetitions"), || repeated(&text(), &[]) >= sent_again);
    let found = text();
    assert_eq!(repeated(&found, &[]), sent_again, "{found}");
    let [by_rule, by_none] = [BY_RULE, BY_NONE].map(|reason| repeated(&found, &[reason]));
    assert!(by_rule <= dropped && by_none <= sent_again - dropped, "{found}");
    assert_eq!(by_rule + by_none + unknown(&found), sent_again, "{found}");
    inside(&stage.server, "nft flush ruleset");
    // Requests for connections that a rule drops.
    let first = "tcp dport 8080 tcp flags & (syn | ack) == syn numgen inc mod 2 == 0";
    stage.rule(&stage.server, "prerouting", first, "drop");
    for server in stage.servers() {
        drop(stage.connect(server));
    }
    assert_eq!(counted(&stage.server), 2);
    let requests = "cause=\"connect\"";
    wait_until("repeated requests", || repeated(&text(), &[requests]) == 2);
    assert!(repeated(&text(), &[requests, BY_RULE]) + unknown(&text()) >= 2, "{}", text());
    lint(&text());
    running.stop();
}

/// A path that loses, and drops copies of all frames, is no drop of this host.
#[test]
fn losses_on_the_path_have_no_drop_reason() {
    let path = Path { delay: Duration::from_millis(5), lose: Some(60), drops_copies: true, ..Path::default() };
    let Some(stage) = Stage::over(path) else { return };
    if !tools_or_skip(&["nstat"]) {
        return;
    }
    let (running, address) = serve_both(&stage, &[]);
    for server in stage.servers() {
        drop(transfer(stage.connect(server), 1 << 20, NOT));
    }
    let sent_again = nstat(&stage.client, "TcpRetransSegs");
    assert!(sent_again.min(stage.wire().lost()) > 10);
    wait_until("all repetitions", || repeated(&metrics(&address), &[]) >= sent_again);
    let text = metrics(&address);
    assert_eq!(repeated(&text, &[BY_NONE]) + unknown(&text), repeated(&text, &[]), "{text}");
    running.stop();
}

/// While more segments are dropped than there is room for, a repetition has no wrong reason.
#[test]
fn missed_drops_leave_the_reason_unknown() {
    let Some(stage) = Stage::alone() else { return };
    if !tools_or_skip(&["nft", "nstat", "tc"]) {
        return;
    }
    let (running, address) = serve_both(&stage, &[]);
    let (a, b) = (&stage.client, &stage.server);
    let [mut client, _end] = converse(stage.connect(stage.servers()[0]), 1, NOT, NOT);
    stage.rule(b, "input", "tcp dport 9", "drop");
    let tcp = Tcp { src: 1, dst: 9, flags: flags::ACK, ..Tcp::default() };
    let segment = Template::new().ethernet(a.mac, b.mac).ipv4(a.ipv4, b.ipv4).tcp(tcp).payload(b"data").build();
    send_from(a, &[segment], 200_000, Engine::Packet, None, None);
    assert!(counted(b) > 100_000, "not planted: drops");
    let text = || metrics(&address);
    wait_until("lost events", || value(&text(), "trawl_connection_measures_lost_total", &[]) > 0);
    // All packets vanish without a drop.
    run("tc", &args!("-n {} qdisc add dev {} clsact", b.name, b.interface));
    run("tc", &args!("-n {} filter add dev {} ingress bpf da bytecode '1,6 0 0 4'", b.name, b.interface));
    client.write_all(&[2; 100]).expect("a question");
    wait_until("a repetition", || nstat(a, "TcpRetransSegs") >= 2);
    wait_until("an unknown reason", || unknown(&text()) >= 2);
    assert_eq!(repeated(&text(), &[BY_NONE]) + repeated(&text(), &[BY_RULE]), 0, "{}", text());
    lint(&text());
    running.stop();
}

/// A reset with another time to live than the data is a device's for its receiver, and this host's for its sender.
#[test]
fn resets_are_metrics_by_who_and_why() {
    let Some(stage) = Stage::open() else { return };
    if !tools_or_skip(&["nft", "nstat"]) {
        return;
    }
    let (running, address) = serve_both(&stage, &[]);
    let process = process();
    let resets = |who: &str, why: &str| {
        let labels = [process.clone(), format!("who=\"{who}\""), format!("reason=\"{why}\"")];
        value(&metrics(&address), "trawl_resets_total", &labels.each_ref().map(String::as_str))
    };
    // Resets the connection with a pending question, or when all are answered.
    let reset = |server, is_pending: bool| {
        let [mut client, mut end] = converse(stage.connect(server), 1, NOT, NOT);
        if is_pending {
            client.write_all(&[2; 100]).expect("a question");
            end.read_exact(&mut [0; 100]).expect("a question");
        }
        sockopt::set_socket_linger(&end, Some(NOT)).expect("a reset at the end");
        drop(end);
        client.read(&mut [0; 10]).expect_err("a reset");
    };
    for server in stage.servers() {
        reset(server, true);
        reset(server, false);
    }
    let sent = || nstat(&stage.server, "TcpOutRsts");
    assert_eq!(sent(), 4);
    for who in ["here", "peer"] {
        wait_until(who, || [resets(who, "early"), resets(who, "idle")] == [2, 2]);
    }
    assert_eq!(resets("peer", "device"), 0);
    let is_reset = "tcp flags & rst == rst";
    stage.rule(&stage.server, "output", &format!("meta nfproto ipv4 {is_reset}"), "ip ttl set 33");
    stage.rule(&stage.server, "output", &format!("meta nfproto ipv6 {is_reset}"), "ip6 hoplimit set 33");
    for server in stage.servers() {
        reset(server, true);
    }
    assert_eq!((sent(), counted(&stage.server)), (6, 2));
    wait_until("resets by a device", || resets("peer", "device") == 2);
    assert_eq!([resets("here", "early"), resets("here", "idle")], [4, 2]);
    assert_eq!([resets("peer", "early"), resets("peer", "idle")], [2, 2]);
    lint(&metrics(&address));
    running.stop();
}

/// The sender waits for room in the buffer that its process has chosen, for much of the time. With the kernel's choice it
/// does not.
#[test]
fn small_send_buffer_is_a_metric() {
    let path = Path { delay: Duration::from_millis(20), ..Path::default() };
    let Some(stage) = Stage::over(path) else { return };
    if !tools_or_skip(&["ss"]) {
        return;
    }
    let (running, address) = serve_both(&stage, &[]);
    let process = process();
    let waited = || seconds(&metrics(&address), "trawl_limited_seconds_total", &[&process, "by=\"send_buffer\""]);
    // Returns the time that one more transfer took, and the time in which it waited.
    let refused = || value(&metrics(&address), "trawl_resets_total", &["reason=\"refused\""]);
    let send = |server, size: Option<usize>| {
        let ends = stage.connect(server);
        if let Some(size) = size {
            sockopt::set_socket_send_buffer_size(&ends[0], size).expect("a size");
        }
        let (begun, before, resets) = (Instant::now(), waited(), refused());
        let ends = transfer(ends, 1 << 20, NOT);
        let took = begun.elapsed().as_secs_f64();
        // What happens later is in no earlier metrics.
        run_in(&stage.client.namespace, || TcpStream::connect(server)).expect("a namespace").expect_err("no server");
        wait_until("a later reset", || refused() > resets);
        (took, waited() - before, ends)
    };
    for server in stage.servers() {
        let (took, waited, _ends) = send(server, Some(16 << 10));
        assert_eq!(connection_values(&stage.client, "tb"), [f64::from(32 << 10)]);
        assert!(took > 0.5 && (took / 4.0..=took).contains(&waited), "{waited} s of {took} s");
    }
    let (took, waited, _ends) = send(stage.servers()[0], None);
    assert!(waited == 0.0, "{waited} s of {took} s");
    lint(&metrics(&address));
    running.stop();
}
