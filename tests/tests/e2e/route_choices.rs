//! The router chooses like the kernel among several routes, which rules or several next hops make.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use trawl_lab::{Line, Station};
use trawl_packet::build::Template;
use trawl_tests::bundled::{Counts, done};
use trawl_tests::lab::{Files, place};
use trawl_tests::witness::{nothing_attached, run};
use trawl_tests::{Capture, LineLab};

const REFRESH: &str = "to the stack: so that it looks after the neighbour";
const FLOWS: u16 = 200;
const EACH: usize = 3;
const FIRST_PORT: u16 = 20_000;
/// MAC addresses of the two next hops. No hosts have them, and frames to them are recorded on the wire.
const HOPS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 0x71], [2, 0, 0, 0, 0, 0x72]];

fn ip(station: &Station, arguments: &str) {
    let words: Vec<&str> = arguments.split(' ').collect();
    run("ip", &[&["-n", &station.name][..], &words].concat());
}

fn sysctl(station: &Station, setting: &str) {
    let namespace = format!("--net=/run/netns/{}", station.name);
    run("nsenter", &[&namespace, "sysctl", "-qw", setting]);
}

fn udp(line: &Line, to: IpAddr, ports: (u16, u16)) -> Vec<u8> {
    let ethernet = Template::new().ethernet(line.a.mac, line.left.mac);
    let addressed = match to {
        IpAddr::V4(to) => ethernet.ipv4(line.a.ipv4, to),
        IpAddr::V6(to) => ethernet.ipv6(line.a.ipv6, to),
    };
    addressed.udp(ports.0, ports.1).payload(b"x").build()
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[test]
fn rules_decide_by_source_and_port() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let (left, right) = (place(&line.left), place(&line.right));
    // Otherwise the kernel would treat the neighbours as needing no resolution.
    ip(&line.left, "link set right arp on");
    for (family, from, hop) in [
        ("-4", line.a.ipv4.to_string(), line.b.ipv4.to_string()),
        ("-6", line.a.ipv6.to_string(), line.b.ipv6.to_string()),
    ] {
        let neighbour = format!("{hop} lladdr {} dev right nud permanent", text(line.b.mac));
        ip(&line.left, &format!("neighbour replace {neighbour}"));
        for rule in [
            "ipproto udp dport 4001 prohibit".to_owned(),
            "ipproto udp dport 4002 blackhole".to_owned(),
            format!("from {from} ipproto udp sport 4003 lookup 100"),
            "iif right ipproto udp dport 4004 blackhole".to_owned(),
        ] {
            ip(&line.left, &format!("{family} rule add {rule}"));
        }
        ip(&line.left, &format!("{family} route add blackhole default table 100"));
    }
    done(&["route", "load", &left, &right]);
    let forwarded = ["forwarded, IPv4", "forwarded, IPv6"];
    for (to, forwarded) in [IpAddr::from(line.b.ipv4), line.b.ipv6.into()].into_iter().zip(forwarded) {
        // For IPv6 the kernel does not report the kind of a rule, and the stack handles kinds that need it.
        let by_rule = |outcome| match to {
            IpAddr::V4(_) => outcome,
            IpAddr::V6(_) => "to the stack: for this host, or no route",
        };
        for (ports, outcome) in [
            ((40_000, 9), forwarded),
            ((40_000, 4001), by_rule("to the stack: unreachable or prohibited")),
            ((40_000, 4002), by_rule("dropped by a blackhole route")),
            ((4003, 9), "dropped by a blackhole route"),
            // The rule for this port applies to the source port, not to the destination port.
            ((40_000, 4004), forwarded),
        ] {
            let before = Counts::of_port(&left);
            lab.send_packets(&vec![udp(line, to, ports); EACH]);
            let total = before.packets() + EACH as u64;
            let after = Counts::wait(|| Counts::of_port(&left), total);
            let grown = |name: &str| after.outcome(name) - before.outcome(name);
            let refreshed = if outcome == forwarded { grown(REFRESH) } else { 0 };
            assert_eq!(grown(outcome) + refreshed, EACH as u64, "{to} {ports:?}: {after:?}");
        }
    }
    done(&["route", "unload", &left, &right]);
    nothing_attached(&line.left);
}

fn over_two_hops(to: IpAddr, hops: [IpAddr; 2]) {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let (left, right) = (place(&line.left), place(&line.right));
    ip(&line.left, "link set right arp on");
    for (hop, mac) in hops.into_iter().zip(HOPS) {
        let neighbour = format!("{hop} lladdr {} dev right nud permanent", text(mac));
        ip(&line.left, &format!("neighbour replace {neighbour}"));
    }
    let [one, other] = hops;
    ip(
        &line.left,
        &format!("route add {to} nexthop via {one} dev right weight 1 nexthop via {other} dev right weight 1"),
    );
    // The kernel's choice then includes the ports.
    let family = if to.is_ipv4() { "ipv4" } else { "ipv6" };
    sysctl(&line.left, &format!("net.{family}.fib_multipath_hash_policy=1"));
    done(&["route", "load", &left, &right]);
    let flows = FIRST_PORT..FIRST_PORT + FLOWS;
    let sent: Vec<Vec<u8>> = flows.flat_map(|port| vec![udp(line, to, (port, 9)); EACH]).collect();
    let file = lab.file("file.pcapng");
    let contents = Capture::received(&lab, &line.b, &file, sent.len(), || lab.send_packets(&sent));
    let source_port_at = if to.is_ipv4() { 34 } else { 54 };
    let mut by_flow: BTreeMap<[u8; 2], Vec<[u8; 6]>> = BTreeMap::new();
    for frame in contents.frames() {
        let port = [frame[source_port_at], frame[source_port_at + 1]];
        let mac: [u8; 6] = frame[..6].try_into().expect("a whole frame");
        by_flow.entry(port).or_default().push(mac);
    }
    assert_eq!(by_flow.len(), usize::from(FLOWS));
    // All packets of a flow use one next hop, including those that go through the stack.
    let ways: Vec<[u8; 6]> = by_flow
        .into_iter()
        .map(|(port, macs)| {
            assert_eq!(macs, vec![macs[0]; EACH], "port {port:?}");
            macs[0]
        })
        .collect();
    for hop in HOPS {
        let share = ways.iter().filter(|mac| **mac == hop).count();
        assert!(share >= usize::from(FLOWS) / 4, "{share} by {hop:02x?}");
    }
    let counts = Counts::of_port(&left);
    let forwarded = counts.outcome("forwarded, IPv4") + counts.outcome("forwarded, IPv6");
    assert!(forwarded > sent.len() as u64 / 2, "{counts:?}");
    assert_eq!(forwarded + counts.outcome(REFRESH), sent.len() as u64, "{counts:?}");
    done(&["route", "unload", &left, &right]);
}

#[test]
fn flows_are_spread_over_two_hops_ipv4() {
    let hop = |last| IpAddr::from(Ipv4Addr::new(10, 77, 2, last));
    let to = Ipv4Addr::new(198, 51, 100, 20);
    over_two_hops(to.into(), [hop(0x71), hop(0x72)]);
}

#[test]
fn flows_are_spread_over_two_hops_ipv6() {
    let hop = |last| IpAddr::from(Ipv6Addr::new(0xfd00, 0x77, 2, 0, 0, 0, 0, last));
    let to = Ipv6Addr::new(0x2001, 0xdb8, 0x20, 0, 0, 0, 0, 1);
    over_two_hops(to.into(), [hop(0x71), hop(0x72)]);
}

/// IPv4 is forwarded over an IPv6 next hop (RFC 5549), which needs no IPv4 addresses between two routers.
#[test]
fn ipv4_is_forwarded_over_an_ipv6_next_hop() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let (left, right) = (place(&line.left), place(&line.right));
    ip(&line.left, "link set right arp on");
    let neighbour = format!("fe80::71 lladdr {} dev right nud permanent", text(HOPS[0]));
    ip(&line.left, &format!("neighbour replace {neighbour}"));
    let to = Ipv4Addr::new(198, 51, 100, 30);
    ip(&line.left, &format!("route add {to} via inet6 fe80::71 dev right"));
    done(&["route", "load", &left, &right]);
    let sent: Vec<Vec<u8>> = (0..20).map(|flow| udp(line, to.into(), (FIRST_PORT + flow, 9))).collect();
    let expected = sent.iter().map(|frame| {
        let mut out = frame.clone();
        out[..6].copy_from_slice(&HOPS[0]);
        out[6..12].copy_from_slice(&line.right.mac);
        out[22] -= 1;
        // A decremented upper half of a 16-bit field increments the upper half of the checksum, if that does not wrap.
        assert!(out[24] < 0xfe, "a checksum that wraps");
        out[24] += 1;
        out
    });
    let mut expected: Vec<Vec<u8>> = expected.collect();
    let file = lab.file("file.pcapng");
    let contents = Capture::received(&lab, &line.b, &file, sent.len(), || lab.send_packets(&sent));
    let mut arrived = contents.frames();
    arrived.sort();
    expected.sort();
    assert_eq!(arrived, expected);
    let counts = Counts::of_port(&left);
    assert_eq!(counts.outcome("forwarded, IPv4") + counts.outcome(REFRESH), sent.len() as u64, "{counts:?}");
    done(&["route", "unload", &left, &right]);
    nothing_attached(&line.left);
}
