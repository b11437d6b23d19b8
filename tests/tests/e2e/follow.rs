//! `trawl follow`: the steps of single packets, across namespaces, to their end; and no step of another packet.

pub mod labs;
mod translation;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use trawl_bpf::probe::kernel_is_at_least;
use trawl_lab::Station;
use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::Engine;
use trawl_packet::build::Template;
use trawl_sys::netns::run_in;
use trawl_tests::lab::send_from;
use trawl_tests::witness::{bpf_objects, has_bpf_object, run};
use trawl_tests::{Capture, Lab, Running, amount, args, skip, trawl, wait_until};

fn udp(lab: &Lab, port: u16, id: u16) -> Vec<u8> {
    let mut payload = [0; 22];
    payload[..2].copy_from_slice(&id.to_be_bytes());
    Template::new()
        .ethernet(lab.pair.a.mac, lab.pair.b.mac)
        .ipv4(lab.pair.a.ipv4.octets(), lab.pair.b.ipv4.octets())
        .udp(1024 + id, port)
        .payload(payload)
        .build()
}

fn ways(output: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).expect("a JSON object a line");
    output.lines().map(parse).collect()
}

fn steps(way: &Value) -> Vec<&str> {
    let steps = way["steps"].as_array().expect("steps");
    steps.iter().filter_map(|step| step["step"].as_str()).collect()
}

/// Steps of a datagram from one namespace to another without a listener.
const WAY: [&str; 12] = [
    "output",
    "postrouting",
    "tc_egress",
    "queued",
    "transmitted",
    "backlog",
    "received",
    "tc_ingress",
    "prerouting",
    "routed",
    "input",
    "dropped",
];

/// Returns true if the kernel has this step. Older kernels lack some.
fn is_there(step: &str) -> bool {
    match step {
        "output" | "postrouting" | "prerouting" | "routed" | "input" => kernel_is_at_least(6, 4),
        "tc_egress" | "tc_ingress" => kernel_is_at_least(6, 6),
        _ => true,
    }
}

/// Returns the option that excludes other tests' namespaces.
fn within(lab: &Lab) -> String {
    format!("{},{}", lab.pair.a.name, lab.pair.b.name)
}

/// Follows one datagram of six bytes to a port of the receiver, and sends it.
fn follow_datagram(lab: &Lab, port: u16) -> Running {
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let arguments = args!("follow --json -c 1 --netns {} --within {} 'udp dst port {port}'", a.name, within(lab));
    let follow = Running::start(&arguments, "following packets on");
    let send = format!("echo hello > /dev/udp/{}/{port}", b.ipv4);
    run("ip", &["netns", "exec", &a.name, "bash", "-c", &send]);
    follow
}

/// Runs a Python program at a station, as `ip netns exec` does.
fn python(at: &Station, program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &at.name, "python3", "-c", program]);
    command
}

/// Answers datagrams and connections, until its input ends.
const SERVER: &str = "
import socket, sys, threading
address = (sys.argv[1], 7000)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(address)
listening = socket.create_server(address, backlog=128)
def echo():
    while True:
        data, sender = datagrams.recvfrom(2048)
        datagrams.sendto(data, sender)
def answer():
    while True:
        connection = listening.accept()[0]
        data = connection.recv(4096)
        connection.sendall(data * 30)
        connection.close()
for work in (echo, answer):
    threading.Thread(target=work, daemon=True).start()
print('ready', flush=True)
sys.stdin.read()
";
/// Asks by connections of three kinds, and by datagrams.
const CLIENT: &str = "
import socket, sys
address, count = (sys.argv[1], 7000), int(sys.argv[2])
for number in range(count):
    client = socket.create_connection(address)
    client.sendall(b'x' * 100)
    if number % 3 == 1:
        client.shutdown(socket.SHUT_WR)
    while client.recv(4096):
        pass
    client.close()
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect(address)
for number in range(count):
    client.send(b'%d' % number)
    client.recv(2048)
";

/// No packet of healthy traffic is dropped, or ends unseen.
#[test]
fn healthy_traffic_has_neither_drops_nor_gaps() {
    let Some(lab) = Lab::open() else { return };
    let (a, b, count) = (&lab.pair.a, &lab.pair.b, amount(300).to_string());
    let address = b.ipv4.to_string();
    let mut server = python(b, SERVER);
    server.arg(&address).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = server.spawn().expect("ip");
    let mut line = String::new();
    let mut said = BufReader::new(server.stdout.take().expect("a pipe"));
    said.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    let arguments = args!(
        "follow --json -i {} -i {} --memory 1GiB 'host {address} and (tcp or udp or icmp)'",
        lab.sender(),
        lab.receiver()
    );
    let follow = Running::start(&arguments, "following packets on");
    let client = python(a, CLIENT).args([&address, &count]).status();
    assert!(client.expect("ip").success());
    let ping = format!("ping -q -i 0.002 -c {count} {address}");
    run("ip", &[&["netns", "exec", &a.name][..], &args!("{ping}")].concat());
    follow.signal(Signal::INT);
    let done = follow.wait();
    drop(server.stdin.take());
    server.wait().expect("it ends");
    let ways = ways(&done.stdout);
    let strange = |way: &&Value| !["delivered", "consumed", "joined"].contains(&way["end"].as_str().expect("an end"));
    let strange: Vec<_> = ways.iter().filter(strange).collect();
    assert!(strange.is_empty(), "{} {:#?} {}", strange.len(), strange[0], done.stderr);
    // Each round has a TCP exchange of at least ten segments, a datagram and an echo, both of which are answered.
    let least = 14 * amount(300) as usize;
    assert!(ways.len() >= least, "{} {}", ways.len(), done.stderr);
}

/// Packets that wait in a queue are followed when a softirq sends them, whichever program it interrupts. One packet in
/// a thousand may be missed, because some kernels run no programs at tracepoints while a process of the machine's
/// provider is interrupted.
#[test]
fn delayed_packets_are_followed_to_their_end() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let shaped = "tc qdisc add dev veth0 root tbf rate 40mbit burst 5000 latency 1s";
    run("ip", &[&["netns", "exec", &a.name][..], &args!("{shaped}")].concat());
    let receiver = run_in(&b.namespace, || UdpSocket::bind((b.ipv4, 7000)).expect("a port"));
    let arguments = args!("follow --json --netns {} --within {} 'udp dst port 7000'", a.name, b.name);
    let follow = Running::start(&arguments, "following packets on");
    let count = amount(2000) as usize;
    let sender = run_in(&a.namespace, || UdpSocket::bind((a.ipv4, 0)).expect("a port"));
    let sender = sender.expect("a namespace");
    let receiver = receiver.expect("a namespace");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..count {
                receiver.recv(&mut [0; 2048]).expect("a datagram");
            }
        });
        for number in 0..count {
            let text = format!("{number:0900}");
            sender.send_to(text.as_bytes(), (b.ipv4, 7000)).expect("it is sent");
            if number % 8 == 7 {
                std::thread::yield_now();
            }
        }
    });
    follow.signal(Signal::INT);
    let done = follow.wait();
    let ways = ways(&done.stdout);
    let strange = |way: &&Value| way["end"] != "delivered" || way["steps"][0]["step"] == "received";
    let strange: Vec<_> = ways.iter().filter(strange).collect();
    assert!(strange.len() <= count / 1000, "{} {:#?} {}", strange.len(), strange[0], done.stderr);
    assert_eq!(ways.len(), count, "{}", done.stderr);
}

/// Sends a datagram from a to port 7000 of b.
fn send_one(lab: &Lab) {
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let sender = run_in(&a.namespace, || UdpSocket::bind((a.ipv4, 0)).expect("a port"));
    sender.expect("a namespace").send_to(b"x", (b.ipv4, 7000)).expect("it is sent");
}

/// A program with only an exit hook, which runs other programs at its end, has no hook at its entry.
#[test]
fn packet_ends_at_the_exit_of_a_program_with_one_hook() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let _program = Loaded::native(Does::DropWithHook, b).expect("the program");
    let arguments = args!("follow --json -c 1 --netns {} --within {} 'udp dst port 7000'", a.name, b.name);
    let follow = Running::start(&arguments, "following packets on");
    send_one(&lab);
    let done = follow.wait();
    assert!(!done.stderr.contains("not shown"), "{}", done.stderr);
    let way = &ways(&done.stdout)[0];
    assert_eq!(way["end"], "dropped", "{way}");
    let last = way["steps"].as_array().and_then(|steps| steps.last());
    let last = last.expect("a step");
    assert_eq!((&last["step"], &last["verdict"]), (&"xdp".into(), &"DROP".into()));
}

/// A packet is not called sent if an XDP program on the other end of the cable received it, and dropped it unseen.
#[test]
fn packet_that_a_hidden_program_drops_ends_there() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let _program = Loaded::native(Does::Drop, b).expect("the program");
    let arguments = args!("follow --json -c 1 --netns {} 'udp dst port 7000'", a.name);
    let follow = Running::start(&arguments, "following packets on");
    send_one(&lab);
    let done = follow.wait();
    let way = &ways(&done.stdout)[0];
    if steps(way).contains(&"xdp") {
        assert_eq!(way["end"], "dropped", "{way}");
    } else {
        assert_eq!(way["end"], "at_xdp", "{way}");
        let place = format!(" on veth0 ({})", b.name);
        assert!(way["program"].as_str().is_some_and(|text| text.ends_with(&place)), "{way}");
    }
}

/// `--within` adds namespaces to the one in which packets are first seen.
#[test]
fn other_namespaces_leave_the_first_one_its_steps() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let arguments = args!("follow --json -c 1 --netns {} --within {} 'udp dst port 53'", a.name, b.name);
    let follow = Running::start(&arguments, "following packets on");
    let send = format!("echo hello > /dev/udp/{}/53", b.ipv4);
    run("ip", &["netns", "exec", &a.name, "bash", "-c", &send]);
    let done = follow.wait();
    let expected: Vec<&str> = WAY.into_iter().filter(|step| is_there(step)).collect();
    assert_eq!(steps(&ways(&done.stdout)[0]), expected);
}

#[test]
fn packet_is_followed_into_another_namespace() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    if is_there("input") {
        // The rule must follow connection tracking, which has the second-last priority at the input of IPv6.
        let inside = |words: &[&str]| run("ip", &[&["netns", "exec", &b.name, "nft"], words].concat());
        inside(&["add table inet t"]);
        inside(&["add chain inet t i { type filter hook input priority 0; }"]);
        inside(&["add rule inet t i ct state invalid drop"]);
    }
    let follow = follow_datagram(&lab, 53);
    let done = follow.wait();
    assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
    let ways = ways(&done.stdout);
    let expected: Vec<&str> = WAY.into_iter().filter(|step| is_there(step)).collect();
    assert_eq!(steps(&ways[0]), expected);
    assert_eq!(ways[0]["end"], "dropped");
    let steps = ways[0]["steps"].as_array().expect("steps");
    let (first, last) = (&steps[0], &steps[steps.len() - 1]);
    assert_eq!(first["netns"], a.name.as_str());
    assert_eq!(last["netns"], b.name.as_str());
    assert_eq!(last["reason"], "NO_SOCKET");
    let times: Vec<u64> = steps.iter().filter_map(|step| step["time_ns"].as_u64()).collect();
    assert!(times.is_sorted(), "{times:?}");
}

/// A raw socket reads a clone of the reply; the kernel frees the original as if no socket listened.
#[test]
fn answered_ping_is_delivered() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let arguments = args!("follow --json -c 1 --netns {} 'icmp[icmptype] = icmp-echoreply'", b.name);
    let follow = Running::start(&arguments, "following packets on");
    let target = b.ipv4.to_string();
    run("ip", &["netns", "exec", &a.name, "ping", "-c", "1", "-q", &target]);
    let done = follow.wait();
    assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
    assert_eq!(ways(&done.stdout)[0]["end"], "delivered", "{}", done.stdout);
}

/// Socket buffers are reused at once, but a packet never gets a step of another one.
#[test]
fn reused_buffers_make_no_false_link() {
    let Some(lab) = Lab::open() else { return };
    let count = amount(10_000) as u16;
    let receiver = lab.receiver();
    let arguments = args!("follow --json -c {count} -i {receiver} --within {} 'udp dst port 53'", within(&lab));
    let follow = Running::start(&arguments, "following packets on");
    let frames: Vec<Vec<u8>> = (0..count).map(|id| udp(&lab, 53, id)).collect();
    // The next packets are sent once little of the memory is in use, so that all are followed.
    let mut sent = 0;
    for some in frames.chunks(500) {
        let number = some.len() as u64;
        send_from(&lab.pair.a, some, number, Engine::Packet, None, Some(5_000));
        sent += some.len();
        wait_until("the packets are shown", || follow.shown().lines().count() >= sent);
    }
    let done = follow.wait();
    let ways = ways(&done.stdout);
    assert_eq!(ways.len(), usize::from(count));
    for way in &ways {
        // The packets do not change on their path, so a different text would belong to another packet's step.
        let all = way["steps"].as_array().expect("steps");
        assert!(all.iter().all(|step| step["packet"].is_null()), "{way}");
        let expected: Vec<&str> = WAY.into_iter().filter(|step| is_there(step)).collect();
        let arrival = expected.iter().position(|step| *step == "backlog").unwrap_or(0);
        assert_eq!(steps(way), expected[arrival..], "{way}");
    }
    let mut first: Vec<&str> = ways.iter().filter_map(|way| way["packet"].as_str()).collect();
    first.sort_unstable();
    first.dedup();
    assert_eq!(first.len(), usize::from(count), "each packet once");
}

/// A packet is followed from an XDP program in native mode through receive offload, tc and netfilter to the socket.
#[test]
fn packet_is_followed_from_an_xdp_program_to_its_socket() {
    let Some(lab) = Lab::open() else { return };
    if !kernel_is_at_least(6, 2) {
        skip("before Linux 6.2 packets cannot be followed at XDP programs");
        return;
    }
    let b = &lab.pair.b;
    let receiver = lab.receiver();
    let loaded = trawl(&args!("xdp load {receiver} pass --tappable --mode native"));
    assert!(loaded.status.success(), "{loaded:?}");
    let socket = run_in(&b.namespace, || UdpSocket::bind((b.ipv4, 5300)).expect("a port")).unwrap();
    let follow = follow_datagram(&lab, 5300);
    let mut text = [0; 16];
    assert_eq!(socket.recv(&mut text).expect("a datagram"), 6);
    let done = follow.wait();
    trawl(&["xdp", "unload", &receiver]);
    let ways = ways(&done.stdout);
    let all = ways[0]["steps"].as_array().expect("steps");
    let here: Vec<&str> =
        all.iter().filter(|step| step["netns"] == b.name.as_str()).filter_map(|step| step["step"].as_str()).collect();
    let expected = ["gro", "received", "tc_ingress", "prerouting", "routed", "input"];
    let expected: Vec<&str> = expected.into_iter().filter(|step| is_there(step)).collect();
    let begin = here.iter().position(|step| *step == "gro");
    let begin = begin.unwrap_or_else(|| panic!("no receive offload in {}", ways[0]));
    assert_eq!(here[begin..begin + expected.len()], expected, "{}", ways[0]);
    assert!(steps(&ways[0]).contains(&"xdp"), "{}", ways[0]);
    if kernel_is_at_least(6, 3) {
        let own = std::fs::read_to_string("/proc/self/comm").expect("a name");
        let socket = all.iter().find(|step| step["step"] == "socket");
        let socket = socket.unwrap_or_else(|| panic!("no socket in {}", ways[0]));
        assert_eq!(socket["socket"], "udp:5300");
        let by = format!("{}[{}]", own.trim_end(), std::process::id());
        assert_eq!(socket["by"], by.as_str(), "{}", ways[0]);
        assert_eq!(ways[0]["end"], "delivered", "{}", ways[0]);
    }
}

/// Each segment that receive offload joins is reported as a part of the packet, with its position in the TCP stream.
#[test]
fn segments_are_joined_to_their_packet() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    for (station, features) in [(a, &["tso", "off", "gso", "off"][..]), (b, &["gro", "on"][..])] {
        let fixed = ["netns", "exec", &station.name, "ethtool", "-K", "veth0"];
        run("ip", &[&fixed[..], features].concat());
    }
    let address = (b.ipv4, 8080);
    let listener = run_in(&b.namespace, || TcpListener::bind(address));
    let listener = listener.unwrap().unwrap();
    let receiver = lab.receiver();
    let within = within(&lab);
    let arguments = args!("follow --json -i {receiver} --within {within} 'tcp dst port 8080'");
    let follow = Running::start(&arguments, "following packets on");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
        });
        let sender = run_in(&a.namespace, || TcpStream::connect(address));
        sender.unwrap().unwrap().write_all(&[7; 1 << 20]).unwrap();
    });
    follow.signal(Signal::INT);
    let ways = ways(&follow.wait().stdout);
    let range = |way: &Value| -> (u32, u32) {
        let text = way["packet"].as_str().expect("a packet");
        let range = text.split("seq ").nth(1).expect("a sequence number");
        let range = range.split(',').next().expect("its end");
        let (from, to) = range.split_once(':').expect("a segment");
        (from.parse().expect("a number"), to.parse().expect("a number"))
    };
    let mut joined = 0;
    for way in ways.iter().filter(|way| way["end"] == "joined") {
        joined += 1;
        let into = ways
            .iter()
            .find(|other| other["packet_id"] == way["joined_into"])
            .unwrap_or_else(|| panic!("{way} is part of no packet"));
        let segments = into["steps"].as_array().expect("steps").iter();
        let segments = segments.filter_map(|step| step["segments"].as_u64()).max();
        let (first, (from, to)) = (range(into), range(way));
        let length = first.1.wrapping_sub(first.0) * segments.expect("segments") as u32;
        assert!(from.wrapping_sub(first.0) < length, "{way} in {into}");
        assert!(to.wrapping_sub(first.0) <= length, "{way} in {into}");
    }
    assert!(joined > 0, "{} ways", ways.len());
}

#[test]
fn killed_follow_leaves_nothing() {
    let Some(lab) = Lab::open() else { return };
    let arguments = ["follow", "--within", &within(&lab), "udp port 9"];
    let follow = Running::start(&arguments, "following packets on");
    let held = bpf_objects(follow.id());
    for kind in ["prog", "link"] {
        assert!(held.iter().any(|(one, _)| *one == kind), "no {kind} in {held:?}");
    }
    assert!(held.iter().all(has_bpf_object), "{held:?}");
    follow.kill();
    wait_until("nothing is left", || !held.iter().any(has_bpf_object));
}

#[test]
fn wrong_usage_is_reported() {
    for arguments in [&["follow"][..], &["follow", "no such word"]] {
        assert_eq!(trawl(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
