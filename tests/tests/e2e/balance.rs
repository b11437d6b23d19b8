//! The load balancer: packets at the backends, refusals, and counters.

mod backends;
mod beside_ipvs;
mod in_lab;
mod limits;

use serde_json::Value;
use trawl_lab::{Line, Station};
use trawl_packet::build::{Icmp, Layer, Tcp, Template, flags};
use trawl_sys::netns::run_in;
use trawl_tests::bundled::{done, refused};
use trawl_tests::lab::{Files, place};
use trawl_tests::wait::wait_until;
use trawl_tests::witness::{nothing_attached, run, tshark};
use trawl_tests::{Capture, LineLab, args, trawl};

const VIP: [u8; 4] = [192, 0, 2, 80];

fn ip(station: &Station, arguments: &str) {
    let words: Vec<&str> = arguments.split(' ').collect();
    run("ip", &[&["-n", &station.name][..], &words].concat());
}

/// Returns TCP segments to the virtual address, one for each flow.
fn to_vip(line: &Line, flows: u16, set: u8) -> Vec<Vec<u8>> {
    let one = |flow| {
        let tcp = Tcp { src: 10_000 + flow, dst: 80, flags: set, ..Tcp::default() };
        let ethernet = Template::new().ethernet(line.a.mac, line.left.mac);
        ethernet.ipv4(line.a.ipv4, VIP).tcp(tcp).payload([7; 100]).build()
    };
    (0..flows).map(one).collect()
}

fn json(arguments: &[&str]) -> Value {
    let output = trawl(&[arguments, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{arguments:?}: {said}"))
}

/// Loads a balancer with a small flow table: the kernel needs half a second to allocate one of the default size, and
/// ten seconds in an emulated processor.
fn load(left: &str, more: &[&str]) {
    done(&[&["balance", "load", left, "--flows", "10000"], more].concat());
}

/// Returns the stats once they count this many packets for virtual and other addresses.
fn counted(left: &str, packets: u64) -> Value {
    let mut last = Value::Null;
    wait_until(&format!("{packets} packets are counted"), || {
        last = json(&["balance", "stats", "--on", left]);
        last["packets"].as_u64() >= Some(packets)
    });
    last
}

fn outcome(counts: &Value, name: &str) -> u64 {
    let all = counts["outcomes"].as_array().expect("a list");
    let found = all.iter().find(|one| one["name"] == name);
    found.map_or(0, |one| one["packets"].as_u64().expect("a number"))
}

fn add(left: &str, line: &Line, forward: &str) {
    done(&args!("balance vip add tcp:192.0.2.80:80 --forward {forward} --on {left}"));
    let backend = line.b.ipv4.to_string();
    done(&args!("balance backend add tcp:192.0.2.80:80 {backend} --on {left}"));
}

#[test]
fn tunnelled_packets_arrive_whole() {
    for forward in ["ipip", "gue"] {
        let Some(lab) = LineLab::open() else { return };
        let line = &lab.line;
        let left = place(&line.left);
        load(&left, &[]);
        // The balancer sends through another interface, and prepares it, if backends are behind that one.
        add(&left, line, forward);
        load(&left, &["--tappable"]);
        let sent = to_vip(line, 20, flags::SYN);
        let file = lab.file("file.pcapng");
        let b = Capture::received(&lab, &line.b, &file, sent.len(), || lab.send_packets(&sent));
        let header = if forward == "gue" { 28 } else { 20 };
        for frame in b.frames() {
            assert_eq!(frame[..6], line.b.mac);
            assert_eq!(frame[6..12], line.right.mac);
            let inner = &frame[14 + header..];
            assert!(sent.iter().any(|one| &one[14..] == inner), "{forward}");
        }
        let rows = tshark(&file, &["ip.dst", "ip.src"]);
        let backend = line.b.ipv4.to_string();
        let sources: std::collections::HashSet<&String> = rows.iter().map(|row| &row[1]).collect();
        assert!(rows.iter().all(|row| row[0].starts_with(&backend)), "{rows:?}");
        assert!(sources.len() > 10, "{sources:?}");
        let counts = counted(&left, 20);
        assert_eq!(counts["vips"][0]["packets"], 20, "{counts}");
        assert_eq!(counts["vips"][0]["backends"][0]["packets"], 20, "{counts}");
        assert_eq!(outcome(&counts, "forwarded_new_flow"), 20, "{counts}");
        done(&["balance", "unload", &left]);
        nothing_attached(&line.left);
    }
}

#[test]
fn direct_return_changes_only_the_link_addresses() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let left = place(&line.left);
    let table = lab.file("table.toml");
    let text = format!(
        "[[vip]]\naddress = \"192.0.2.80\"\nport = 80\nprotocol = \"tcp\"\nforward = \"direct\"\n[[vip.backend]]\naddress = \"{}\"\n",
        line.b.ipv4
    );
    std::fs::write(&table, text).expect("a file");
    load(&left, &[&table]);
    let sent = to_vip(line, 10, flags::SYN);
    let file = lab.file("file.pcapng");
    let b = Capture::received(&lab, &line.b, &file, sent.len(), || lab.send_packets(&sent));
    for frame in b.frames() {
        assert_eq!(frame[..6], line.b.mac);
        assert!(sent.iter().any(|one| one[12..] == frame[12..]));
    }
}

#[test]
fn counters_add_up() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let left = place(&line.left);
    load(&left, &[]);
    add(&left, line, "ipip");
    let ethernet = || Template::new().ethernet(line.a.mac, line.left.mac);
    let mut sent = to_vip(line, 30, flags::SYN);
    sent.extend(to_vip(line, 30, flags::ACK));
    // The balancer leaves to the stack a packet to a wrong port, an echo request, and a frame without IP.
    sent.push(ethernet().ipv4(line.a.ipv4, VIP).udp(1, 80).payload([0; 30]).build());
    sent.push(ethernet().ipv4(line.a.ipv4, VIP).icmp(Icmp::echo_request(1, 1)).build());
    sent.push(ethernet().layer(Layer::Raw { bytes: vec![0; 46], ethertype: Some(0x88b5), protocol: None }).build());
    lab.send_packets(&sent);
    let counts = counted(&left, sent.len() as u64);
    assert_eq!(counts["packets"], sent.len());
    assert_eq!(outcome(&counts, "forwarded_new_flow"), 30, "{counts}");
    assert_eq!(outcome(&counts, "forwarded_known_flow"), 30, "{counts}");
    assert_eq!(outcome(&counts, "to_stack_not_virtual"), 2, "{counts}");
    assert_eq!(outcome(&counts, "to_stack_not_ip"), 1, "{counts}");
    assert_eq!(counts["vips"][0]["packets"], 60);
    assert_eq!(counts["vips"][0]["backends"][0]["packets"], 60);
    // Draining leaves no backend for new flows, while existing flows continue.
    let backend = line.b.ipv4.to_string();
    done(&args!("balance backend drain tcp:192.0.2.80:80 {backend} --on {left}"));
    let mut more = to_vip(line, 30, flags::ACK);
    more.extend(to_vip(line, 5, flags::SYN));
    lab.send_packets(&more);
    let counts = counted(&left, (sent.len() + more.len()) as u64);
    assert_eq!(outcome(&counts, "forwarded_known_flow"), 60, "{counts}");
    assert_eq!(outcome(&counts, "dropped_no_backend"), 5, "{counts}");
    assert_eq!(counts["vips"][0]["packets"], 95, "{counts}");
}

#[test]
fn packets_too_big_for_the_tunnel_are_answered() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let left = place(&line.left);
    load(&left, &[]);
    add(&left, line, "ipip");
    let (file, a) = (lab.file("file.pcapng"), place(&line.a));
    let capture = Capture::start(&lab, &["-i", &a, "--tap", "packet", "-Q", "in", "-c", "1", "-w", &file, "icmp"]);
    let tcp = Tcp { src: 4000, dst: 80, flags: flags::ACK, ..Tcp::default() };
    let large = Template::new().ethernet(line.a.mac, line.left.mac).ipv4(line.a.ipv4, VIP).tcp(tcp);
    lab.send_packets(&[large.payload(vec![0; 1450]).build()]);
    capture.wait().summary_of_success();
    let rows = tshark(&file, &["icmp.type", "icmp.code", "icmp.mtu", "icmp.checksum.status"]);
    assert_eq!(rows, [["3", "4", "1480", "1"]]);
}

#[test]
fn invalid_table_changes_nothing() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let left = place(&line.left);
    load(&left, &[]);
    add(&left, line, "ipip");
    let before = json(&["balance", "vip", "list", "--on", &left]);
    let vip = "tcp:192.0.2.80:80";
    let backend = line.b.ipv4.to_string();
    for (arguments, says) in [
        (vec!["vip", "add", "tcp:192.0.2.80"], "overlap"),
        (vec!["vip", "add", vip], "overlap"),
        (vec!["backend", "add", vip, &backend], "duplicate backend"),
        (vec!["backend", "weight", vip, &backend, "0"], "weight of zero"),
        (vec!["backend", "add", vip, "203.0.113.9"], "no route"),
        (vec!["backend", "remove", vip, "203.0.113.9"], "no backend"),
        (vec!["vip", "remove", "udp:192.0.2.80:80"], "cannot find the virtual address"),
    ] {
        let said = refused(&[&["balance"], &arguments[..], &["--on", &left]].concat(), 1);
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
    let table = lab.file("table.toml");
    let text = "[[vip]]\naddress = \"192.0.2.81\"\nprotocol = \"tcp\"\n[[vip.backend]]\naddress = \"203.0.113.9\"\n";
    std::fs::write(&table, text).expect("a file");
    let said = refused(&["balance", "load", &left, &table], 1);
    assert!(said.contains("no route"), "{said}");
    assert_eq!(json(&["balance", "vip", "list", "--on", &left]), before);
    refused(&["balance", "vip", "add", "sctp:1.2.3.4"], 2);
}

#[test]
fn unresponsive_backends_are_disabled() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let left = place(&line.left);
    load(&left, &[]);
    add(&left, line, "direct");
    ip(&line.b, "address add 192.0.2.80 dev lo");
    // No process listens at the backend's port.
    let found = json(&["balance", "check", "--on", &left]);
    assert_eq!(found["backends"][0]["failure"], "refused", "{found}");
    assert_eq!(found["backends"][0]["path"], "direct", "{found}");
    let state = |state: &str| {
        let list = json(&["balance", "vip", "list", "--on", &left]);
        assert_eq!(list["vips"][0]["backends"][0]["state"], state, "{list}");
    };
    state("active");
    refused(&["balance", "check", "--apply", "--on", &left], 1);
    state("down");
}

/// A backend that serves at its own address, but accepts no tunnel, times out for every client.
#[test]
fn a_backend_without_a_tunnel_device_is_not_healthy() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let left = place(&line.left);
    let listener = run_in(&line.b.namespace, || std::net::TcpListener::bind((line.b.ipv4, 80)));
    let _listener = listener.expect("the namespace of b").expect("a port");
    load(&left, &[]);
    for forward in ["ipip", "gue", "direct"] {
        add(&left, line, forward);
        let arguments = ["balance", "check", "--timeout", "300ms", "--on", &left];
        let found = json(&arguments);
        assert_eq!(found["backends"][0]["healthy"], false, "{found}");
        assert_eq!(found["backends"][0]["failure"], "no_path", "{found}");
        let said = trawl(&arguments);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.contains("though its own address answers"), "{said}");
        done(&args!("balance vip remove tcp:192.0.2.80:80 --on {left}"));
    }
    // With the virtual address, the backend answers frames to its MAC address.
    ip(&line.b, "address add 192.0.2.80 dev lo");
    let vip = run_in(&line.b.namespace, || std::net::TcpListener::bind("192.0.2.80:80"));
    let _vip = vip.expect("the namespace of b").expect("a port");
    add(&left, line, "direct");
    let found = json(&["balance", "check", "--on", &left]);
    assert_eq!(found["backends"][0]["healthy"], true, "{found}");
}

#[test]
fn balancer_needs_routes_and_goes_with_its_interface() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let left = place(&line.left);
    let none = refused(&["balance", "stats", "--netns", &line.left.name], 1);
    assert!(none.contains("no balancer is loaded"), "{none}");
    load(&left, &[]);
    add(&left, line, "ipip");
    ip(&line.left, "route add blackhole 203.0.113.0/24");
    let blackhole = args!("balance backend add tcp:192.0.2.80:80 203.0.113.1 --on {left}");
    refused(&blackhole, 1);
    done(&["balance", "unload", "--netns", &line.left.name]);
    nothing_attached(&line.left);
}

#[test]
fn ipv6_is_tunnelled_by_ip6ip6_and_too_big_is_answered() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let left = place(&line.left);
    let vip: std::net::Ipv6Addr = "2001:db8::80".parse().expect("an address");
    load(&left, &[]);
    done(&args!("balance vip add udp:[2001:db8::80]:53 --on {left}"));
    let backend = line.b.ipv6.to_string();
    done(&args!("balance backend add udp:[2001:db8::80]:53 {backend} --on {left}"));
    let udp = |length: usize| {
        let ethernet = Template::new().ethernet(line.a.mac, line.left.mac);
        let udp = ethernet.ipv6(line.a.ipv6, vip).udp(4000, 53);
        udp.payload(vec![7; length]).build()
    };
    let file = lab.file("file.pcapng");
    let sent = [udp(100)];
    let b = Capture::received(&lab, &line.b, &file, 1, || lab.send_packets(&sent));
    let frame = &b.frames()[0];
    // The outer header has next header 41 and the backend's address; the inner packet is unchanged.
    assert_eq!((frame[20], &frame[38..54]), (41, &line.b.ipv6.octets()[..]));
    assert_eq!(frame[54..], sent[0][14..]);
    let (file, a) = (lab.file("answer.pcapng"), place(&line.a));
    let capture = Capture::start(&lab, &["-i", &a, "--tap", "packet", "-Q", "in", "-c", "1", "-w", &file, "icmp6"]);
    lab.send_packets(&[udp(1440)]);
    capture.wait().summary_of_success();
    let fields = ["icmpv6.type", "icmpv6.mtu", "icmpv6.checksum.status"];
    assert_eq!(tshark(&file, &fields), [["2", "1460", "1"]]);
}

#[test]
fn captures_see_packets_at_a_tappable_balancer() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let left = place(&line.left);
    load(&left, &["--tappable"]);
    add(&left, line, "ipip");
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &left, "--tap", "tailcall", "-c", "5", "-w", &file]);
    lab.send_packets(&to_vip(line, 5, flags::SYN));
    capture.wait().summary_of_success();
    assert_eq!(tshark(&file, &["frame.len"]).len(), 5);
}
