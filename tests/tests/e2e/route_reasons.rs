//! Packets that the router leaves to the stack: each reason is counted exactly, and no other packet is forwarded.

use std::net::Ipv4Addr;

use trawl_lab::Line;
use trawl_packet::build::{Arp, Ipv4, Ipv6, Layer, Template};
use trawl_tests::bundled::{Counts, done};
use trawl_tests::lab::place;
use trawl_tests::witness::{nothing_attached, run};
use trawl_tests::{LineLab, frames};

/// Number of frames for each reason.
const EACH: u64 = 20;

fn ethernet(line: &Line) -> Template {
    Template::new().ethernet(line.a.mac, line.left.mac)
}

fn ipv4(line: &Line, change: impl FnOnce(&mut Ipv4)) -> Vec<u8> {
    let mut ip = Ipv4::new(line.a.ipv4, line.b.ipv4);
    change(&mut ip);
    let frame = ethernet(line).layer(Layer::Ipv4(ip)).udp(40_000, 9);
    frame.payload(vec![1; 30]).build()
}

fn ipv6(line: &Line, change: impl FnOnce(&mut Ipv6)) -> Vec<u8> {
    let mut ip = Ipv6::new(line.a.ipv6, line.b.ipv6);
    change(&mut ip);
    let frame = ethernet(line).layer(Layer::Ipv6(ip)).udp(40_000, 9);
    frame.payload(vec![1; 30]).build()
}

fn with(mut frame: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    frame[at] = byte;
    frame
}

/// Returns each frame with the name of its counter.
fn frames_for(line: &Line) -> Vec<(Vec<u8>, &'static str)> {
    let to4 = |address: [u8; 4]| ipv4(line, |ip| ip.dst = address.into());
    let from4 = |address: [u8; 4]| ipv4(line, |ip| ip.src = address.into());
    let to6 = |address: &str| ipv6(line, |ip| ip.dst = address.parse().expect("an address"));
    let from6 = |address: &str| ipv6(line, |ip| ip.src = address.parse().expect("an address"));
    let plain4 = || ipv4(line, |_| {});
    let plain6 = || ipv6(line, |_| {});
    let arp = Arp::request(line.a.mac, line.a.ipv4, line.left.ipv4);
    let tagged = |tags: u16| {
        let frame = (0..tags).fold(ethernet(line), |frame, tag| frame.vlan(300 + tag));
        frame.ipv4(line.a.ipv4, line.b.ipv4).udp(40_000, 9).payload(vec![1; 30]).build()
    };
    const NOT_IP: &str = "to the stack: not IP";
    const NOT_OURS: &str = "to the stack: not addressed to the port";
    const VLAN: &str = "to the stack: a VLAN without interface";
    const MULTICAST: &str = "to the stack: multicast";
    const MARTIAN: &str = "to the stack: an address that is not forwarded";
    const MALFORMED: &str = "to the stack: malformed";
    const OPTIONS: &str = "to the stack: options";
    const TTL: &str = "to the stack: time to live is over";
    const LOCAL: &str = "to the stack: for this host, or no route";
    vec![
        (ethernet(line).arp(arp).frame_len(60).build(), NOT_IP),
        (with(plain4(), 0, 0x06), NOT_OURS),
        (with(plain6(), 5, 0xff), NOT_OURS),
        (tagged(1), VLAN),
        (tagged(2), VLAN),
        (tagged(3), VLAN),
        (to4([224, 0, 0, 9]), MULTICAST),
        (to6("ff0e::1"), MULTICAST),
        (to4([127, 0, 0, 1]), MARTIAN),
        (to4([255, 255, 255, 255]), MARTIAN),
        (from4([0, 0, 0, 0]), MARTIAN),
        (from4([127, 1, 2, 3]), MARTIAN),
        (from4([239, 1, 1, 1]), MARTIAN),
        (from6("::1"), MARTIAN),
        (from6("::"), MARTIAN),
        (from6("fe80::1"), MARTIAN),
        (to6("fe80::1"), MARTIAN),
        (from6("ff02::1"), MARTIAN),
        // These have a wrong version, a header beyond the packet, a length that is too large, one that is too small,
        // and a wrong checksum.
        (with(plain4(), 14, 0x55), MALFORMED),
        (with(plain4(), 14, 0x44), MALFORMED),
        (with(plain4(), 16, 0x01), MALFORMED),
        (with(plain4(), 17, 0x03), MALFORMED),
        (with(plain4(), 24, 0xaa), MALFORMED),
        (plain4()[..33].to_vec(), MALFORMED),
        (with(plain6(), 14, 0x50), MALFORMED),
        (with(plain6(), 18, 0x02), MALFORMED),
        (plain6()[..53].to_vec(), MALFORMED),
        (ipv4(line, |ip| ip.options = vec![1, 1, 1, 0]), OPTIONS),
        (with(plain6(), 20, 0), OPTIONS),
        (ipv4(line, |ip| ip.ttl = 1), TTL),
        (ipv4(line, |ip| ip.ttl = 0), TTL),
        (ipv6(line, |ip| ip.hop_limit = 1), TTL),
        (to4(line.left.ipv4.octets()), LOCAL),
        (to4(line.right.ipv4.octets()), LOCAL),
        (to4([203, 0, 113, 7]), LOCAL),
        (to6(&line.left.ipv6.to_string()), LOCAL),
        (to6("2001:db8::1"), LOCAL),
        // This packet is sent to the broadcast address of the other link.
        (to4([10, 77, 2, 255]), LOCAL),
        (to4([198, 51, 100, 1]), "to the stack: unreachable or prohibited"),
        (to4([198, 51, 100, 2]), "to the stack: unreachable or prohibited"),
        (to6("2001:db8:1::1"), "to the stack: unreachable or prohibited"),
        (to4([198, 51, 100, 3]), "dropped by a blackhole route"),
        (to6("2001:db8:2::1"), "dropped by a blackhole route"),
        (to4([10, 77, 2, 77]), "to the stack: neighbour to be found"),
        (to6("fd00:77:2::77"), "to the stack: neighbour to be found"),
        (to4([192, 0, 2, 9]), "to the stack: leaves by another interface"),
        (big(line), "to the stack: larger than the MTU"),
        // Fragments are forwarded unchanged. The first ones go through the stack, which resolves the neighbour.
        (ipv4(line, |ip| ip.more_fragments = true), "forwarded, IPv4"),
        (ipv4(line, |ip| ip.fragment_offset = 64), "forwarded, IPv4"),
        (plain4(), "forwarded, IPv4"),
        (plain6(), "forwarded, IPv6"),
    ]
}

fn big(line: &Line) -> Vec<u8> {
    let frame = ethernet(line).ipv4(line.a.ipv4, Ipv4Addr::new(198, 51, 100, 4));
    frame.udp(40_000, 9).payload(vec![1; 1400]).build()
}

fn set_routes(line: &Line) {
    let ip = |arguments: &str| {
        let words: Vec<&str> = arguments.split(' ').collect();
        run("ip", &[&["-n", &line.left.name][..], &words].concat());
    };
    ip("route add unreachable 198.51.100.1");
    ip("route add prohibit 198.51.100.2");
    ip("route add blackhole 198.51.100.3");
    ip(&format!("route add 198.51.100.4 via {} mtu lock 1300", line.b.ipv4));
    ip("route add unreachable 2001:db8:1::/48");
    ip("route add blackhole 2001:db8:2::/48");
    // Packets to this neighbour leave by an interface that is no port.
    ip("link add aside type veth peer name beyond");
    ip("link set beyond up");
    ip("link set aside up");
    ip("address add 192.0.2.1/24 dev aside");
    ip("neighbour replace 192.0.2.9 lladdr 02:00:00:00:00:09 dev aside nud permanent");
    // Otherwise the kernel would treat the neighbours as needing no resolution.
    ip("link set right arp on");
    for address in [line.b.ipv4.to_string(), line.b.ipv6.to_string()] {
        let mac: Vec<String> = line.b.mac.iter().map(|byte| format!("{byte:02x}")).collect();
        let mac = mac.join(":");
        ip(&format!("neighbour replace {address} lladdr {mac} dev right nud permanent"));
    }
}

fn reasons(mode: &str) {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    set_routes(line);
    let (left, right) = (place(&line.left), place(&line.right));
    done(&["route", "load", &left, &right, "--mode", mode]);
    let mut before = Counts::of_port(&left);
    let mut total = before.packets();
    for (number, (frame, words)) in frames_for(line).into_iter().enumerate() {
        // Each packet is a frame of its own, because a repeated live frame would be sent again with its changes.
        lab.send_packets(&vec![frame.clone(); EACH as usize]);
        total += EACH;
        let counts = Counts::wait(|| Counts::of_port(&left), total);
        let refresh = "to the stack: so that it looks after the neighbour";
        let grown = |name: &str| counts.outcome(name) - before.outcome(name);
        let refreshing = if words.starts_with("forwarded") { grown(refresh) } else { 0 };
        let counted = grown(words) + refreshing;
        assert_eq!(counted, EACH, "frame {number}, {words}: {before:?} then {counts:?}");
        assert_eq!(counts.bytes() - before.bytes(), EACH * frame.len() as u64, "frame {number}, {words}");
        before = counts;
    }
    done(&["route", "unload", &left, &right]);
    nothing_attached(&line.left);
    nothing_attached(&line.right);
}

#[test]
fn each_reason_is_counted_native() {
    reasons("native");
}

#[test]
fn each_reason_is_counted_skb() {
    reasons("skb");
}

#[test]
fn stack_gets_all_packets_without_forwarding() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let namespace = format!("--net=/run/netns/{}", line.left.name);
    for family in ["ipv4", "ipv6"] {
        let setting = format!("net.{family}.conf.all.forwarding=0");
        run("nsenter", &[&namespace, "sysctl", "-qw", &setting]);
    }
    let (left, right) = (place(&line.left), place(&line.right));
    let said = done(&["route", "load", &left, &right]);
    assert!(said.contains("forwarding of IPv4 is off"), "{said}");
    assert!(said.contains("sysctl -w net.ipv6.conf.all.forwarding=1"), "{said}");
    let before = Counts::of_port(&left).packets();
    lab.send_packets(&[ipv4(line, |_| {}), ipv6(line, |_| {}), frames::silent(60)]);
    let counts = Counts::wait(|| Counts::of_port(&left), before + 3);
    assert_eq!(counts.outcome("to the stack: forwarding is off"), 2, "{counts:?}");
}
