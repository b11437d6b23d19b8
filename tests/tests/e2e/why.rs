//! `trawl why`: rows add up, counters equal the account, and advice names the cause.

use std::net::{SocketAddrV4, UdpSocket};
use std::process::Command;

use serde_json::Value;
use trawl_bpf::probe::kernel_is_at_least;
use trawl_bpf::program;
use trawl_sys::netns::run_in;
use trawl_tests::witness::{nstat, run};
use trawl_tests::xdp::succeeds;
use trawl_tests::{Lab, Running, binary, skip, trawl, wait_until};

use crate::drop::reasons::shoots;

mod culprits;
mod drops;
mod faults;
mod healthy;
mod planted;
mod record;
mod rules;
mod traced;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;

/// Drops the packets to port 5555.
const DROPS_5555: &str = "table inet f { chain in { type filter hook input priority 0; udp dport 5555 drop; }; }";

fn sum(rows: &Value, name: &str) -> u64 {
    let rows = rows.as_array().expect("a list");
    rows.iter().map(|row| row[name].as_u64().unwrap_or(0)).sum()
}

#[track_caller]
fn row<'v>(report: &'v Value, reason: &str) -> &'v Value {
    let rows = report["rows"].as_array().expect("rows");
    let found = rows.iter().find(|row| row["reason"] == reason);
    found.unwrap_or_else(|| panic!("no {reason} in {report}"))
}

/// Rows add up to the total, and counters equal rows.
#[test]
fn rows_and_counters_agree() {
    let Some(lab) = Lab::open() else { return };
    let name = &lab.pair.b.name;
    lab.nft(DROPS_5555);
    let why = Running::start(&["why", "--netns", name, "--json", "--duration", "1h"], "looking");
    let mut wrong = lab.udp(7);
    wrong[14] = 0x44;
    let frames = [lab.udp(5555), lab.udp(5555), lab.udp(7), lab.udp(7), lab.udp(7), wrong];
    lab.send_long(&frames);
    why.signal(Signal::INT);
    let done = why.wait();
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let account = &report["account"];
    assert_eq!(sum(&report["rows"], "packets"), account["recorded"].as_u64().unwrap());
    assert_eq!(account["seen"], 6, "{report}");
    let dropped = row(&report, "NETFILTER_DROP");
    assert_eq!(dropped["packets"], 2);
    assert_eq!(dropped["hook"], "input");
    assert_eq!(dropped["interface"], "veth0");
    assert_eq!(dropped["netns"], name.as_str());
    let advice = dropped["advice"].as_str().expect("advice");
    assert!(advice.contains("nft list chain inet f in"), "{advice}");
    assert_eq!(row(&report, "NO_SOCKET")["packets"], 3);
    for (counter, count) in [("UdpNoPorts", 3), ("IpInHdrErrors", 1)] {
        let counters = report["counters"].as_array().expect("counters");
        let found = counters.iter().find(|one| one["name"] == counter);
        let found = found.unwrap_or_else(|| panic!("no {counter} in {report}"));
        assert_eq!((&found["difference"], &found["in_rows"]), (&count.into(), &count.into()));
    }
}

/// The advice names iptables tables of both kinds, and programs at tc and XDP by number and name.
#[test]
fn advice_names_the_dropping_object() {
    let Some(lab) = Lab::open() else { return };
    let name = &lab.pair.b.name;
    let inside = |command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        run("ip", &[&["netns", "exec", name], &words[..]].concat())
    };
    let advice = |reason: &str| -> String {
        let why = Running::start(&["why", "--netns", name, "--json", "udp dst port 5555"], "looking");
        lab.send_long(&[lab.udp(5555)]);
        why.signal(Signal::INT);
        let report: Value = serde_json::from_str(&why.wait().stdout).expect("JSON");
        let row = row(&report, reason);
        row["advice"].as_str().expect("advice").to_owned()
    };
    inside("iptables-nft -A INPUT -p udp --dport 5555 -j DROP");
    let expected = format!("ip netns exec {name} iptables-nft -t filter -vnL INPUT");
    assert_eq!(advice("NETFILTER_DROP"), expected);
    inside("iptables-nft -F INPUT");
    let legacy = ["netns", "exec", name, "iptables-legacy", "-t", "raw"];
    let rule = ["-A", "PREROUTING", "-p", "udp", "-j", "DROP"];
    let added = Command::new("ip").args(legacy).args(rule).output().unwrap();
    if added.status.success() {
        let expected = format!("ip netns exec {name} iptables-legacy -t raw -vnL PREROUTING");
        assert_eq!(advice("NETFILTER_DROP"), expected);
        inside("iptables-legacy -t raw -F PREROUTING");
    } else {
        skip("the kernel has no iptables of the older kind");
    }
    if let Some(link) = shoots(&lab.pair.b, program::ATTACH_TCX_INGRESS) {
        let given = advice("TC_INGRESS");
        assert!(given.starts_with("tc program shoots (id "), "{given}");
        let capture = format!("trawl capture --tap tc -i {name}:veth0 -Q in");
        assert!(given.ends_with(&capture), "{given}");
        drop(link);
    }
    let receiver = lab.receiver();
    trawl(&["xdp", "load", &receiver, "drop", "--mode", "skb"]);
    let given = advice("XDP");
    trawl(&["xdp", "unload", &receiver]);
    assert!(given.starts_with("XDP program trawl_drop (id "), "{given}");
    assert!(given.contains(&format!("trawl xdp stats {receiver}")), "{given}");
    // A capture sees verdicts of a program without a hook only if the kernel allows tracing programs.
    let is_traced = trawl_bpf::probe::KernelFeature::Fexit.probe().is_supported();
    assert_eq!(given.contains("--verdict drop,aborted"), is_traced, "{given}");
}

#[track_caller]
fn counter<'v>(report: &'v Value, name: &str) -> &'v Value {
    let counters = report["counters"].as_array().expect("counters");
    let found = counters.iter().find(|one| one["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// Full receive buffers are rows, and full accept queues only counters. Both equal the differences of nstat.
#[test]
fn receive_buffers_and_accept_queues_match_nstat() {
    let Some(lab) = Lab::open() else { return };
    let b = &lab.pair.b;
    let address = b.ipv4;
    let socket = run_in(&b.namespace, || UdpSocket::bind((address, 7)).expect("a port"));
    let listener = run_in(&b.namespace, || {
        let listener = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrV4::new(address, 8080)).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        listener
    });
    let names = ["UdpRcvbufErrors", "TcpExtListenOverflows"];
    let before = names.map(|name| nstat(b, name));
    let why = Running::start(&["why", "--netns", &b.name, "--json"], "looking");
    let mut long = lab.udp(7);
    long.resize(1400, 0);
    long[16..18].copy_from_slice(&1386u16.to_be_bytes());
    long[38..42].copy_from_slice(&[0x05, 0x56, 0, 0]);
    sum_up(&mut long);
    lab.send_long(&vec![long; 1000]);
    // Two connections are accepted. The kernel drops the first segments of the others.
    let connections = run_in(&lab.pair.a.namespace, || {
        let connect = |_| {
            let one = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None);
            let one = one.unwrap();
            let _ = rustix::net::connect(&one, &SocketAddrV4::new(address, 8080));
            one
        };
        (0..8).map(connect).collect::<Vec<_>>()
    });
    wait_until("both have overflowed", || names.iter().zip(before).all(|(name, before)| nstat(b, name) > before));
    drop(connections);
    // On a slow machine, another segment may be dropped between the command's reading of the counters and nstat's.
    let least = names.map(|name| nstat(b, name));
    why.signal(Signal::INT);
    let done = why.wait();
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    for ((name, before), least) in names.into_iter().zip(before).zip(least) {
        let found = counter(&report, name);
        let difference = found["difference"].as_u64().expect("a count");
        let between = least - before..=nstat(b, name) - before;
        assert!(between.contains(&difference), "{name}: {between:?}: {report}");
        assert_eq!(found["netns"], b.name.as_str());
    }
    let full = counter(&report, "UdpRcvbufErrors");
    assert_eq!((&full["in_rows"], &full["counter_only"]), (&full["difference"], &0.into()));
    let rows = row(&report, "SOCKET_RCVBUFF");
    assert_eq!(rows["packets"], full["difference"]);
    if let Some(process) = rows["process"].as_object() {
        assert_eq!(process["pid"], std::process::id());
        assert!(rows["receive_buffer"].as_u64().is_some_and(|bytes| bytes > 0));
        assert_eq!(rows["socket"], format!("udp {address}:7"));
    }
    let queue = counter(&report, "TcpExtListenOverflows");
    let advice = queue["advice"].as_str().unwrap_or_default();
    assert!(advice.contains("net.core.somaxconn"), "{queue}");
    drop((socket, listener));
}

/// Stores the checksum of the IPv4 header in it.
fn sum_up(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let words = frame[14..34].chunks_exact(2);
    let mut sum: u32 = words.map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Drops by XDP without a socket buffer are counted by program, interface, error and mode; drops of a socket buffer are
/// rows.
#[test]
fn xdp_drops_are_reported_once() {
    let Some(lab) = Lab::open() else { return };
    let (receiver, name) = (lab.receiver(), &lab.pair.b.name);
    let inside = |command: &[&str]| run("ip", &[&["-n", name], command].concat());
    inside(&["link", "add", "left", "type", "veth", "peer", "name", "right"]);
    for mode in ["native", "skb"] {
        for verdict in ["aborted", "redirect"] {
            for end in ["left", "right"] {
                inside(&["link", "set", end, "up"]);
            }
            let target = format!("{name}:right");
            trawl(&["xdp", "load", &target, "pass"]);
            let mut load = vec!["xdp", "load", &receiver, verdict, "--mode", mode];
            if verdict == "redirect" {
                load.extend(["--to", "left"]);
            }
            let loaded = trawl(&load);
            assert!(loaded.status.success(), "{loaded:?}");
            trawl(&["xdp", "unload", &target]);
            inside(&["link", "set", "left", "down"]);
            let why = Running::start(&["why", "-i", &receiver, "--json"], "looking");
            lab.send(&[lab.udp(7)], 100);
            why.signal(Signal::INT);
            let done = why.wait();
            let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
            let (event, errno) = match verdict {
                "aborted" => ("xdp:xdp_exception", Value::Null),
                _ => ("xdp:xdp_redirect_err", 100.into()),
            };
            let found = counter(&report, event);
            assert_eq!(found["difference"], 100, "{report}");
            assert_eq!(found["mode"], mode, "{report}");
            assert_eq!(found["errno"], errno, "{report}");
            assert_eq!(found["verdict"], verdict.to_uppercase(), "{report}");
            assert_eq!(found["program"]["name"], format!("trawl_{verdict}"));
            assert_eq!((&found["interface"], &found["netns"]), (&"veth0".into(), &name.as_str().into()));
            let rows = sum(&report["rows"], "packets");
            let counters = sum(&report["counters"], "counter_only");
            let expected = if mode == "native" { (0, 100) } else { (100, 0) };
            assert_eq!((rows, counters), expected, "{verdict}, {mode}: {report}");
            trawl(&["xdp", "unload", &receiver]);
        }
    }
}

#[test]
fn text_names_reason_function_and_flows() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let why = Running::start(&["why", "-i", &receiver, "udp"], "looking for drops on");
    lab.send_long(&[lab.udp(7), lab.udp(7), lab.udp(8)]);
    why.signal(Signal::INT);
    let done = why.wait();
    let first = done.stdout.lines().next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    assert_eq!(words[..2], ["3", "NO_SOCKET"], "{first}");
    assert!(first.ends_with("udp to 7 (2), udp to 8 (1)"), "{first}");
    let end = "trawl: more about NO_SOCKET: trawl why --explain NO_SOCKET\ntrawl: 3 packets dropped\n";
    assert!(done.stderr.ends_with(end), "{}", done.stderr);
}

/// Every reason of the running kernel has a page, and with it advice. The virtual machine runs this test on other
/// kernels.
#[test]
fn every_reason_of_the_kernel_has_a_page() {
    let listed = trawl(&["capture", "--tap", "drop", "--reason", "help"]);
    let listed = String::from_utf8(listed.stdout).expect("text");
    let reasons = listed.lines().filter_map(|line| line.split_whitespace().next());
    let reasons: Vec<&str> = reasons.collect();
    assert!(reasons.contains(&"NO_SOCKET"), "{listed}");
    let without = reasons.iter().filter(|reason| trawl_explain::why::drops::find(reason).is_none());
    assert_eq!(without.collect::<Vec<_>>(), [&""; 0]);
}

#[test]
fn wrong_usage_is_reported() {
    for arguments in [&["why", "--duration", "x"][..], &["why", "no such word"], &["why", "--explain", "NONE_SUCH"]] {
        assert_eq!(trawl(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

/// Returns `why`'s report on a namespace while `traffic` runs in the lab.
fn while_running(lab: &Lab, namespace: &str, traffic: impl FnOnce()) -> Value {
    let why = Running::start(&["why", "--netns", namespace, "--json"], "looking");
    traffic();
    // This packet is always dropped, and recorded after all others.
    lab.send_long(&[lab.udp(9)]);
    why.signal(Signal::INT);
    serde_json::from_str(&why.wait().stdout).expect("JSON")
}

/// A row names the process with the most packets, even if it lived for milliseconds, and counts the other processes.
#[test]
fn row_names_most_frequent_process() {
    let Some(lab) = Lab::open() else { return };
    if !kernel_is_at_least(6, 3) {
        skip("before Linux 6.3, only processes are named that still have their sockets");
        return;
    }
    let b = &lab.pair.b;
    for rule in [
        "add table inet f",
        "add chain inet f out { type filter hook output priority 0; }",
        "add rule inet f out udp dport 5555 drop",
    ] {
        run("ip", &["netns", "exec", &b.name, "nft", rule]);
    }
    let mut most_frequent = 0;
    let report = while_running(&lab, &b.name, || {
        for lines in ["1", "1 2 3", "1 2"] {
            let address = lab.pair.a.ipv4;
            let script = format!("exec 3<>/dev/udp/{address}/5555; for i in {lines}; do echo >&3; done 2>/dev/null");
            let child = inside(&b.name, &["bash", "-c", &script]).spawn();
            let mut child = child.expect("bash runs");
            child.wait().expect("bash ends");
            if lines == "1 2 3" {
                most_frequent = child.id();
            }
        }
    });
    let row = row(&report, "NETFILTER_DROP");
    assert_eq!((&row["packets"], &row["other_processes"]), (&6.into(), &2.into()), "{report}");
    assert_eq!(row["process"], serde_json::json!({ "name": "bash", "pid": most_frequent, "packets": 3 }));
}

fn inside(namespace: &str, command: &[&str]) -> Command {
    let mut all = Command::new("ip");
    all.args(["netns", "exec", namespace]).args(command);
    all
}

/// Answered pings are no losses, although raw sockets read clones of the replies, reject each other's, and the kernel
/// frees the originals.
#[test]
fn answered_pings_are_no_losses() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    for target in [a.ipv4.to_string(), a.ipv6.to_string()] {
        let report = while_running(&lab, &b.name, || {
            let ping = || {
                let words = ["ping", "-c", "10", "-i", "0.02", "-q", &target];
                let mut command = inside(&b.name, &words);
                command.stdout(std::process::Stdio::piped()).spawn().expect("ping runs")
            };
            let both = [ping(), ping()];
            for ping in both {
                let output = ping.wait_with_output().expect("ping ends");
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(said.contains("10 received"), "{said}");
            }
        });
        let rows = report["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 1, "{report}");
        assert_eq!(rows[0]["flows"][0]["flow"], "udp to 9");
        let only = report["counters"].as_array().expect("counters");
        assert!(only.iter().all(|one| one["counter_only"] == 0), "{report}");
    }
}

#[test]
fn connections_and_their_ends_are_no_losses() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let listener = run_in(&b.namespace, || std::net::TcpListener::bind((b.ipv4, 80)));
    let listener = listener.expect("the namespace of b").expect("a port");
    let report = while_running(&lab, &b.name, || {
        for round in 0..20 {
            let connect = || std::net::TcpStream::connect((b.ipv4, 80));
            let client = run_in(&a.namespace, connect).expect("the namespace of a");
            let mut client = client.expect("a connection");
            let (mut server, _) = listener.accept().expect("a connection");
            use std::io::{Read, Write};
            server.write_all(b"hello").expect("an answer");
            // Client and server alternate in closing first. In every third round, unread data causes a reset.
            let mut answer = [0; 5];
            if round % 3 != 0 {
                client.read_exact(&mut answer).expect("the answer");
            }
            match round % 2 {
                0 => drop(client),
                _ => drop(server),
            }
        }
    });
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 1, "{report}");
    assert_eq!(rows[0]["reason"], "NO_SOCKET");
}

#[test]
fn other_namespaces_are_included_only_on_request() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let find = |arguments: &[&str]| -> Vec<Value> {
        let why = Running::start(&[&["why", "--json"], arguments].concat(), "looking");
        lab.send_long(&[lab.udp(4321)]);
        why.signal(Signal::INT);
        let report: Value = serde_json::from_str(&why.wait().stdout).expect("JSON");
        let rows = report["rows"].as_array().expect("rows").clone();
        let is_ours = |row: &Value| row["netns"] == b.name.as_str();
        rows.into_iter().filter(is_ours).collect()
    };
    assert_eq!(find(&["udp dst port 4321"]).len(), 0);
    assert_eq!(find(&["--netns", &a.name]).len(), 0);
    assert_eq!(find(&["--netns", &a.name, "--netns", &b.name]).len(), 1);
    assert_eq!(find(&["--all-namespaces", "udp dst port 4321"]).len(), 1);
}

/// Returns the commands in a line of advice: from a colon up to the next semicolon.
fn commands(advice: &str) -> Vec<String> {
    let starts = ["trawl ", "ip ", "tc ", "bpftool ", "ss ", "nft "];
    let pieces = advice.split("; ").flat_map(|piece| piece.split(": "));
    let commands = pieces.filter(|piece| starts.iter().any(|start| piece.starts_with(start)));
    commands.map(str::to_owned).collect()
}

/// Runs each command of an advice as given. Captures end on their own.
fn run_commands(advice: &str) {
    let all = commands(advice);
    assert!(!all.is_empty(), "no command in: {advice}");
    for command in all {
        let mut words: Vec<&str> = command.split_whitespace().collect();
        let trawl_path = binary::path().to_string_lossy().into_owned();
        if words[0] == "trawl" {
            words[0] = &trawl_path;
            if words[1] == "capture" {
                words.extend(["--duration", "100ms"]);
            }
        }
        let output = Command::new(words[0]).args(&words[1..]).output().expect("it runs");
        assert!(output.status.success(), "{command}: {output:?}");
    }
}

#[test]
fn advice_about_xdp_programs_can_be_followed() {
    let Some(lab) = Lab::open() else { return };
    let b = &lab.pair.b;
    let place = lab.receiver();
    let advice = |load: &[&str], unload: &[&str]| -> String {
        succeeds(load);
        if load[0] == "guard" {
            succeeds(&["guard", "deny", "--netns", &b.name, "--proto", "udp", "--port", "9"]);
        }
        let why = Running::start(&["why", "-i", &place, "--json"], "looking");
        lab.send_long(&[lab.udp(9)]);
        why.signal(Signal::INT);
        let report: Value = serde_json::from_str(&why.wait().stdout).expect("JSON");
        let advice = row(&report, "XDP")["advice"].as_str().expect("advice").to_owned();
        run_commands(&advice);
        succeeds(unload);
        advice
    };
    // In skb mode, programs see socket buffers, whose drops have rows.
    let guard = advice(&["guard", "load", &place, "--mode", "skb"], &["guard", "unload", &place]);
    assert!(guard.contains("rule 1 (deny --proto udp --port 9)"), "{guard}");
    assert!(guard.contains("trawl guard list --netns"), "{guard}");
    let bundled = advice(&["xdp", "load", &place, "drop", "--mode", "skb"], &["xdp", "unload", &place]);
    assert!(bundled.contains("trawl xdp stats"), "{bundled}");
    let tappable = advice(&["xdp", "load", &place, "drop", "--mode", "skb", "--tappable"], &["xdp", "unload", &place]);
    assert!(tappable.contains("--verdict drop,aborted"), "{tappable}");
}

#[test]
fn protocol_without_a_handler_has_advice() {
    let Some(lab) = Lab::open() else { return };
    let b = &lab.pair.b;
    let mut frame = lab.udp(9);
    // The protocol becomes IP in IP, with the matching header checksum.
    frame[23] = 4;
    frame[24..26].copy_from_slice(&[0, 0]);
    let sum: u32 = frame[14..34].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let why = Running::start(&["why", "--netns", &b.name, "--json"], "looking");
    lab.send_long(&[frame]);
    why.signal(Signal::INT);
    let report: Value = serde_json::from_str(&why.wait().stdout).expect("JSON");
    let tunnel = report["rows"][0]["function"] == "tunnel4_rcv";
    let reason = if tunnel { "NOT_SPECIFIED" } else { "IP_NOPROTO" };
    let advice = row(&report, reason)["advice"].as_str().expect("advice").to_owned();
    assert!(advice.contains("type ipip"), "{advice}");
    run_commands(&advice);
}
