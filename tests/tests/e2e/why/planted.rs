//! Planted faults: each row, counter and advice names exactly the fault.

use std::net::{SocketAddrV4, TcpListener, UdpSocket};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde_json::Value;
use trawl_sys::netns::run_in;
use trawl_tests::witness::{output, run};
use trawl_tests::{Lab, Running, args, skip, trawl, wait_until};

use super::rules::without_handle;
use super::{row, while_running};

/// Returns the rows other than the one of the packet that `while_running` sends last.
#[track_caller]
fn planted(report: &Value) -> Vec<&Value> {
    let rows = report["rows"].as_array().expect("rows").iter();
    rows.filter(|row| row["flows"][0]["flow"] != "udp to 9").collect()
}

#[track_caller]
fn advice(row: &Value) -> &str {
    let advice = row["advice"].as_str();
    advice.unwrap_or_else(|| panic!("no advice: {row}"))
}

/// A rule with a counter dropped as many packets as its counter shows, so the only other candidate dropped the rest.
#[test]
fn only_remaining_rule_is_named() {
    let Some(lab) = Lab::open() else { return };
    lab.nft(
        "table inet f {
            chain in {
                type filter hook input priority 0
                udp dport 5001 counter drop
                udp dport 5002-5003 reject
            }
        }",
    );
    let (first, second) = ("udp dport 5001 drop", "udp dport 5002-5003 reject");
    for (ports, expected) in
        [(&[5001, 5001, 5002][..], &[(first, Some(2)), (second, Some(1))][..]), (&[5003, 5003], &[(second, None)])]
    {
        let arguments = ["why", "--netns", &lab.pair.b.name, "--json"];
        let why = Running::start_without("fexit", &arguments, "looking");
        let frames: Vec<_> = ports.iter().map(|port| lab.udp(*port)).collect();
        lab.send_long(&frames);
        let report = why.stop().json();
        let culprits = row(&report, "NETFILTER_DROP")["culprits"].as_array();
        let found = culprits.expect("culprits").iter().map(|one| {
            assert_eq!(one["is_certain"], true, "{report}");
            let name = without_handle(one["name"].as_str().expect("a name"));
            (name.replace("inet f in: ", ""), one["packets"].as_u64())
        });
        let expected = expected.iter().map(|(name, packets)| ((*name).to_owned(), *packets));
        assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{report}");
    }
}

/// With an expression, the report from a file also leaves out the rules of other packets.
#[test]
fn rules_of_left_out_packets_are_left_out() {
    let Some(lab) = Lab::open() else { return };
    lab.nft(
        "table inet f {
            chain in {
                type filter hook input priority 0
                udp dport 5001 counter drop
                udp dport 5002 counter drop
            }
        }",
    );
    let file = lab.file("drops.pcapng");
    let arguments = args!("why --netns {} --json --record {file}", lab.pair.b.name);
    let why = Running::start_without("fexit", &arguments, "looking");
    lab.send_long(&[5001, 5001, 5002].map(|port| lab.udp(port)));
    why.stop();
    let done = trawl(&["why", &file, "--json", "udp dst port 5001"]);
    let report: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let culprits = row(&report, "NETFILTER_DROP")["culprits"].as_array();
    let culprits = culprits.expect("culprits");
    assert_eq!(culprits.len(), 1, "{report}");
    let name = culprits[0]["name"].as_str().expect("a name");
    assert!(name.ends_with("udp dport 5001 drop"), "{report}");
    assert_eq!(culprits[0]["packets"], 2, "{report}");
}

/// Drops of a command's flows count in any namespace, and trawl ends with the command's status.
#[test]
fn drops_of_a_commands_flows_are_its_own() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let connect = |address: &str| format!("exec 3<>/dev/tcp/{address}/1");
    let here = connect("127.0.0.1");
    let there = connect(&b.ipv4.to_string());
    for (command, place) in [
        (vec!["bash", "-c", &here], None),
        (vec!["ip", "netns", "exec", &a.name, "bash", "-c", &there], Some(b.name.as_str())),
    ] {
        let done = trawl(&[&["why", "--json", "--"][..], &command].concat());
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let report: Value = serde_json::from_slice(&done.stdout).expect("JSON");
        let rows = report["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 1, "{report}: {said}");
        assert_eq!(rows[0]["reason"], "NO_SOCKET", "{report}");
        assert_eq!(rows[0]["packets"], 1, "{report}");
        if let Some(place) = place {
            assert_eq!(rows[0]["netns"], place, "{report}");
        }
        assert!(!said.contains("process is unknown"), "{said}");
        assert_eq!(done.status.code(), Some(1), "{said}");
    }
}

#[test]
fn status_is_the_commands() {
    let Some(_lab) = Lab::open() else { return };
    for (script, status) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        let done = trawl(&["why", "--", "sh", "-c", script]);
        assert_eq!(done.status.code(), Some(status), "{script}: {done:?}");
    }
}

#[test]
fn refusing_routes_are_told_apart() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    lab.inside("sysctl -qw net.ipv4.ip_forward=1");
    let route = args!("-n {} route add 10.99.0.0/16 via {}", a.name, b.ipv4);
    run("ip", &route);
    for kind in ["blackhole", "unreachable", "prohibit"] {
        lab.inside(&format!("ip route add {kind} 10.99.1.0/24"));
        let report = while_running(&lab, &b.name, || {
            let socket = run_in(&a.namespace, || UdpSocket::bind((a.ipv4, 0)));
            let socket = socket.expect("a namespace").expect("a port");
            socket.send_to(b"x", ("10.99.1.1", 53)).expect("sent");
        });
        let rows = planted(&report);
        assert_eq!(rows.len(), 1, "{report}");
        let flow = &rows[0]["flows"][0]["flow"];
        assert_eq!(flow, "udp to 10.99.1.1:53", "{report}");
        let given = advice(rows[0]);
        let expected = format!("a route of type {kind} ");
        assert!(given.starts_with(&expected), "{kind}: {given}");
        lab.inside(&format!("ip route del {kind} 10.99.1.0/24"));
    }
}

/// The kernel drops a packet with a tag that no interface has as another host's packet.
#[test]
fn tag_without_an_interface_is_named() {
    let Some(lab) = Lab::open() else { return };
    let mut tagged = lab.udp(7);
    tagged.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
    let mut foreign = lab.udp(7);
    foreign[..6].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    for (frame, expected) in
        [(tagged, "with a VLAN tag that no interface here has"), (foreign, "addressed to another MAC")]
    {
        let report = while_running(&lab, &lab.pair.b.name, || lab.send_long(&[frame]));
        let given = advice(row(&report, "OTHERHOST"));
        assert!(given.contains(expected), "{given}");
    }
}

#[test]
fn port_of_a_closed_client_is_no_missing_service() {
    let Some(lab) = Lab::open() else { return };
    for (port, expected) in
        [(45_000, "the port is a client's, whose socket is closed"), (53, "no socket listens there")]
    {
        let why = Running::start(&["why", "--netns", &lab.pair.b.name], "looking");
        lab.send_long(&[lab.udp(port)]);
        let shown = why.stop().stdout;
        assert!(shown.contains(expected), "{shown}");
    }
}

/// netem loses packets on purpose, and, like any other queue, if it is full. The advice distinguishes these losses.
#[test]
fn losses_of_queues_are_told_apart() {
    let Some(lab) = Lab::open() else { return };
    let b = &lab.pair.b;
    let ping = args!("netns exec {} ping -c 9 -i 0.002 -W 1 -q {}", b.name, lab.pair.a.ipv4);
    for (qdisc, expected) in [
        ("netem loss 100%", "netem loses packets on purpose"),
        ("netem delay 9s limit 1", "its queue is full"),
        ("tbf rate 8kbit burst 200 limit 200", "its queue is full"),
    ] {
        let (name, interface) = (&b.name, &b.interface);
        let add = args!("netns exec {name} tc qdisc replace dev {interface} root {qdisc}");
        if !output("ip", &add).status.success() {
            skip(&format!("the kernel has no {qdisc}"));
            continue;
        }
        let report = while_running(&lab, name, || drop(output("ip", &ping)));
        let rows = planted(&report);
        assert!(!rows.is_empty(), "{qdisc}: {report}");
        for row in rows {
            let given = advice(row);
            assert!(given.starts_with(expected), "{qdisc}: {row}");
        }
    }
}

/// The line about a full accept queue names the port and the process. The kernel counts the same connections twice.
#[test]
fn full_accept_queue_names_port_and_process() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let listener = run_in(&b.namespace, || {
        let listener = TcpListener::bind((b.ipv4, 8080)).expect("a port");
        rustix::net::listen(&listener, 1).expect("a shorter queue");
        listener
    });
    let listener = listener.expect("a namespace");
    let overflows = || {
        let text = lab.inside("nstat -asz TcpExtListenOverflows");
        let words = text.split_whitespace().collect::<Vec<_>>();
        let at = words.iter().position(|one| *one == "TcpExtListenOverflows");
        words[at.expect("a counter") + 1] != "0"
    };
    let report = while_running(&lab, &b.name, || {
        let connect = |_| {
            let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
            let one = rustix::net::socket_with(family, kind, SocketFlags::NONBLOCK, None);
            let one = one.expect("a socket");
            let _ = rustix::net::connect(&one, &SocketAddrV4::new(b.ipv4, 8080));
            one
        };
        let connections = run_in(&a.namespace, || (0..8).map(connect).collect::<Vec<_>>());
        wait_until("the queue is full", overflows);
        drop(connections);
    });
    let counters = report["counters"].as_array().expect("counters");
    let line = |name: &str| {
        let found = counters.iter().find(|one| one["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {report}"))
    };
    let full = line("TcpExtListenOverflows");
    let what = full["what"].as_str().expect("text");
    assert!(what.starts_with("accept queue full: "), "{what}");
    let socket = format!("{}:8080 of ", b.ipv4);
    let process = format!("[{}]", std::process::id());
    assert!(what.contains(&socket) && what.contains(&process), "{what}");
    assert!(advice(full).contains("somaxconn"), "{full}");
    assert_eq!(line("TcpExtListenDrops")["counter_only"], 0, "{report}");
    drop(listener);
}

/// Hostile names in advised commands are single words for a shell, so that none of the commands creates the file P.
#[test]
fn hostile_names_are_single_words_of_commands() {
    let Some(lab) = Lab::open() else { return };
    let (device, space) = ("x;>P;#", format!("n;>P;#{}", std::process::id()));
    run("ip", &["netns", "add", &space]);
    let end = AtEnd(|| drop(output("ip", &["netns", "del", &space])));
    let ip = |command: &[&str]| run("ip", &[&["-n", &space], command].concat());
    ip(&["link", "add", device, "type", "veth", "peer", "name", "y;>P;#"]);
    ip(&["addr", "add", "10.5.0.1/24", "dev", device]);
    let place = format!("{space}:{device}");
    let file = lab.file("f;>P;#.pcap");
    let missing = lab.file("g;>P;#.pcap");
    std::fs::write(&file, "no packets").expect("a file");
    let mut texts = Vec::new();
    for command in [
        &["doctor", "-i", &place][..],
        &["doctor", "--json", "-i", &place],
        &["taps", "-i", &place],
        &["capture", "-i", &place, "--queue", "99", "-c", "1"],
        &["capture", "-i", &place, "--tap", "xdp", "--xdp-mode", "offload", "-c", "1"],
        &["capture", "-r", &file],
        &["read", &missing],
        &["read", &file],
        &["why", &missing],
        &["gen", "udp", "-i", &place, "--dst", "10.5.0.2", "--count", "1"],
        &["xdp", "status", "-i", &place],
        &["xdp", "stats", &place],
        &["xdp", "load", &place, "tx"],
        &["xdp", "load", &place, "drop"],
        &["xdp", "load", &place, "drop"],
        &["doctor", "-i", &place],
        &["xdp", "load", &place, "pass", "--prio", "5"],
        &["xdp", "load", &place, &file],
        &["route", "load", &place],
        &["xdp", "unload", &place],
        &["route", "load", &place],
        &["route", "stats", &place],
        &["route", "unload", &place],
        &["balance", "stats", "--on", &place],
        &["balance", "load", &place],
        &["balance", "unload", &place],
        &["guard", "list", "--netns", &space],
        &["guard", "deny", "--netns", &space, "--proto", "udp", "--port", "9"],
        &["guard", "unload", &place],
        &["guard", "load", &place],
        &["doctor", "-i", &place],
        &["xdp", "unload", &place],
        &["guard", "unload", &place],
        &["lab", "down", device],
        &[device],
        &["capture", device],
    ] {
        let done = trawl(command);
        for text in [&done.stdout, &done.stderr] {
            texts.push(String::from_utf8_lossy(text).into_owned());
        }
    }
    // The namespace has a row, because the neighbour of its interface is down.
    ip(&["link", "set", "lo", "up"]);
    for end in [device, "y;>P;#"] {
        ip(&["link", "set", end, "up"]);
    }
    for form in [&[][..], &["--json"]] {
        let arguments = [&["why", "--netns", &space][..], form].concat();
        let why = Running::start(&arguments, "looking");
        let send = args!("netns exec {space} bash -c");
        let words = [&send[..], &["echo > /dev/udp/127.0.0.1/9; echo > /dev/udp/10.5.0.9/9"]].concat();
        let _ = output("ip", &words);
        let ping = args!("netns exec {space} ping -c 1 -W 1 10.5.0.9");
        let _ = output("ip", &ping);
        let done = why.stop();
        assert!(done.stdout.contains("NO_SOCKET"), "{}", done.stdout);
        texts.push(done.stdout.replace("\\\\", "\\"));
    }
    drop(end);
    let empty = lab.file("empty");
    std::fs::create_dir(&empty).expect("a directory");
    let mut count = 0;
    for text in &texts {
        for command in text.lines().flat_map(commands) {
            let shell = std::process::Command::new("/bin/bash")
                .args(["-c", &command])
                // The shell finds no programs, so that only the shell itself acts.
                .env("PATH", "/nowhere")
                .current_dir(&empty)
                .output();
            shell.expect("a shell");
            let made = std::path::Path::new(&empty).join("P");
            assert!(!made.exists(), "{command}\nof: {text}");
            count += usize::from(command.contains(";>P;#"));
        }
    }
    assert!(count >= 10, "{count} commands with such names: {texts:#?}");
}

/// Returns the commands in a line: from a known program to the end of a phrase.
fn commands(line: &str) -> Vec<String> {
    let programs = ["trawl ", "ip ", "nsenter ", "ethtool ", "tc ", "nft ", "rm ", "sysctl ", "ss ", "bpftool "];
    let phrases = line.split("; ").flat_map(|one| one.split(": "));
    let mut found = Vec::new();
    for phrase in phrases.flat_map(|one| one.split(", ")) {
        let phrase = phrase.trim_start_matches("or ").trim_start_matches("trawl: ");
        if programs.iter().any(|program| phrase.starts_with(program)) {
            // In JSON, the command ends at the end of the text.
            let end = phrase.find('"').unwrap_or(phrase.len());
            found.push(phrase[..end].to_owned());
        }
    }
    found
}

/// Calls a function when it is dropped.
pub struct AtEnd<F: Fn()>(pub F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
