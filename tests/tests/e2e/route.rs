//! The router: forwarded packets, and ports that come and go.

use trawl_bpf::probe;
use trawl_lab::{Line, LineOptions, Station};
use trawl_packet::build::{Ipv4, Ipv6, Layer, Tcp, Template};
use trawl_tests::bundled::{Counts, done, refused};
use trawl_tests::lab::{Files, place};
use trawl_tests::witness::{nothing_attached, run, tshark, xdp_on};
use trawl_tests::{Capture, LineLab};

fn ip(station: &Station, arguments: &str) {
    let words: Vec<&str> = arguments.split(' ').collect();
    run("ip", &[&["-n", &station.name][..], &words].concat());
}

/// Returns frames to the other host: UDP and TCP of both families and of several lengths, with all fields that a router
/// does not change.
fn to_b(line: &Line) -> Vec<Vec<u8>> {
    let ethernet = || Template::new().ethernet(line.a.mac, line.left.mac);
    let ipv4 = |ttl: u8, tos: u8| {
        let mut ip = Ipv4::new(line.a.ipv4, line.b.ipv4);
        (ip.ttl, ip.tos, ip.id) = (ttl, tos, 0x1234);
        ethernet().layer(Layer::Ipv4(ip))
    };
    let ipv6 = |hops: u8| {
        let mut ip = Ipv6::new(line.a.ipv6, line.b.ipv6);
        ip.hop_limit = hops;
        ethernet().layer(Layer::Ipv6(ip))
    };
    let tcp = || Tcp { src: 40_000, dst: 9, ..Tcp::default() };
    let mut frames = Vec::new();
    for length in [0, 1, 18, 100, 1400] {
        frames.push(ipv4(64, 0).udp(40_000, 9).payload(vec![7; length]).build());
        frames.push(ipv4(2, 0xb8).tcp(tcp()).payload(vec![7; length]).build());
        frames.push(ipv6(255).udp(40_000, 9).payload(vec![7; length]).build());
        frames.push(ipv6(2).tcp(tcp()).payload(vec![7; length]).build());
    }
    // The header checksum of some of these frames wraps around.
    frames.extend((1..=255u8).map(|tos| ipv4(tos.max(2), tos).udp(40_000, 9).payload(vec![tos; 8]).build()));
    // These frames are padded like frames of a card, or of a switch that removed a tag.
    frames.push(ipv4(64, 0).udp(40_000, 9).frame_len(60).build());
    frames.push(ipv6(64).udp(40_000, 9).frame_len(64).build());
    frames
}

/// Returns the frame as it should arrive: from the router to b, with a decremented time to live and a new checksum.
fn forwarded(line: &Line, frame: &[u8]) -> Vec<u8> {
    let mut out = frame.to_vec();
    out[..6].copy_from_slice(&line.b.mac);
    out[6..12].copy_from_slice(&line.right.mac);
    if out[12..14] == [0x86, 0xdd] {
        out[21] -= 1;
        return out;
    }
    out[22] -= 1;
    out[24..26].fill(0);
    let words = out[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    out[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    out
}

fn arrives(mode: &str) {
    // In skb mode a veth passes live frames on only with GRO. In native mode, the router enables GRO.
    let options = LineOptions { gro: mode == "skb", ..LineOptions::default() };
    let Some(lab) = LineLab::with(&options) else {
        return;
    };
    let line = &lab.line;
    let (left, right) = (place(&line.left), place(&line.right));
    done(&["route", "load", &left, &right, "--mode", mode]);
    assert_eq!(xdp_on(&line.right).map(|(_, mode)| mode).as_deref(), Some(mode));
    let sent = to_b(line);
    let file = lab.file("file.pcapng");
    let contents = Capture::received(&lab, &line.b, &file, sent.len(), || lab.send_packets(&sent));
    // The kernel forwards no padding, and neither does the router.
    let trim = |frame: &[u8]| match frame[12..14] {
        [0x08, 0x00] => frame[..14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]))].to_vec(),
        _ => frame[..54 + usize::from(u16::from_be_bytes([frame[18], frame[19]]))].to_vec(),
    };
    let mut got = contents.frames();
    let mut wanted: Vec<Vec<u8>> = sent.iter().map(|frame| trim(&forwarded(line, frame))).collect();
    got.sort();
    wanted.sort();
    assert!(
        got == wanted,
        "{} frames differ from the expected ones",
        got.iter().zip(&wanted).filter(|(a, b)| a != b).count()
    );
    let checks = ["ip.checksum.status", "udp.checksum.status", "tcp.checksum.status"];
    let rows = tshark_checking(&file, &checks);
    assert!(rows.iter().flatten().all(|status| status.is_empty() || status == "1"), "{rows:?}");

    let counts = Counts::of_port(&left);
    assert_eq!(counts.packets(), sent.len() as u64, "{counts:?}");
    let bytes: usize = sent.iter().map(Vec::len).sum();
    assert_eq!(counts.bytes(), bytes as u64, "{counts:?}");
    let refreshed = counts.outcome("to the stack: so that it looks after the neighbour");
    let forwarded = counts.outcome("forwarded, IPv4") + counts.outcome("forwarded, IPv6");
    assert_eq!(forwarded + refreshed, sent.len() as u64, "{counts:?}");
    assert!(counts.outcome("forwarded, IPv6") >= 8 && forwarded > 200, "{counts:?}");
    done(&["route", "unload", &left, &right]);
    nothing_attached(&line.left);
    nothing_attached(&line.right);
    let gro = |station: &Station| station.ethtool().and_then(|e| e.feature("rx-gro")).expect("ethtool");
    assert_eq!(gro(&line.b), Some(mode == "skb"), "the feature is restored");
}

/// Runs tshark with checksum validation, which is off by default.
fn tshark_checking(file: &str, fields: &[&str]) -> Vec<Vec<String>> {
    let mut arguments = vec!["-n", "-r", file, "-T", "fields"];
    for option in ["ip.check_checksum:TRUE", "udp.check_checksum:TRUE", "tcp.check_checksum:TRUE"] {
        arguments.extend(["-o", option]);
    }
    arguments.extend(fields.iter().flat_map(|field| ["-e", field]));
    let text = run("tshark", &arguments);
    assert!(!text.is_empty() && tshark(file, &["frame.len"]).len() == text.lines().count());
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

#[test]
fn forwarded_packets_arrive_correctly_native() {
    arrives("native");
}

#[test]
fn forwarded_packets_arrive_correctly_skb() {
    arrives("skb");
}

#[test]
fn stack_answers_for_the_router() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let (left, right) = (place(&line.left), place(&line.right));
    done(&["route", "load", &left, &right]);
    ip(&line.left, "route add 198.51.100.1 mtu lock 1300 dev right");
    let (file, a) = (lab.file("file.pcapng"), place(&line.a));
    let capture = Capture::start(&lab, &["-i", &a, "--tap", "packet", "-Q", "in", "-c", "2", "-w", &file, "icmp"]);
    let ethernet = || Template::new().ethernet(line.a.mac, line.left.mac);
    let mut last_hop = Ipv4::new(line.a.ipv4, line.b.ipv4);
    last_hop.ttl = 1;
    let large = ethernet().ipv4(line.a.ipv4, [198, 51, 100, 1]).udp(40_000, 9);
    lab.send_packets(&[
        ethernet().layer(Layer::Ipv4(last_hop)).udp(40_000, 9).payload(b"x").build(),
        large.payload(vec![0; 1400]).build(),
    ]);
    capture.wait().summary_of_success();
    let rows = tshark(&file, &["icmp.type", "icmp.code", "icmp.mtu"]);
    assert!(rows.contains(&vec!["11".to_owned(), "0".to_owned(), String::new()]), "{rows:?}");
    assert!(rows.contains(&vec!["3".to_owned(), "4".to_owned(), "1300".to_owned()]), "{rows:?}");
}

#[test]
fn ports_come_and_go() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let (left, right) = (place(&line.left), place(&line.right));
    let frame = forwardable(line);
    done(&["route", "load", &left]);
    lab.send_packets(&vec![frame.clone(); 10]);
    let counts = Counts::wait(|| Counts::of_port(&left), 10);
    let elsewhere = "to the stack: leaves by another interface";
    assert_eq!(counts.outcome(elsewhere), 10, "{counts:?}");

    done(&["route", "load", &right]);
    lab.send_packets(&vec![frame.clone(); 10]);
    let counts = Counts::wait(|| Counts::of_port(&left), 20);
    assert_eq!(counts.outcome(elsewhere), 10, "{counts:?}");
    assert!(counts.outcome("forwarded, IPv4") > 0, "{counts:?}");
    // Loading again only refreshes the router.
    let said = done(&["route", "load", &left, &right]);
    assert!(said.contains("routing between"), "{said}");
    assert_eq!(Counts::of_port(&left).packets(), 20);

    done(&["route", "unload", &right]);
    assert_eq!(xdp_on(&line.right), None);
    lab.send_packets(&vec![frame; 10]);
    let counts = Counts::wait(|| Counts::of_port(&left), 30);
    assert_eq!(counts.outcome(elsewhere), 20, "{counts:?}");
    done(&["route", "unload", "--netns", &line.left.name]);
    nothing_attached(&line.left);
    let none = refused(&["route", "stats", "--netns", &line.left.name], 1);
    assert!(none.contains("no router is loaded"), "{none}");
}

/// Ports that separate commands load at the same time, as at the start of a system, make one router.
#[test]
fn ports_that_are_loaded_at_once_make_one_router() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let ports = [place(&line.left), place(&line.right)];
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for port in &ports {
                scope.spawn(move || done(&["route", "load", port]));
            }
        });
        lab.send_packets(&vec![forwardable(line); 10]);
        let counts = Counts::wait(|| Counts::of_port(&ports[0]), 10);
        let elsewhere = counts.outcome("to the stack: leaves by another interface");
        assert_eq!(elsewhere, 0, "{counts:?}");
        assert!(counts.outcome("forwarded, IPv4") > 0, "{counts:?}");
        std::thread::scope(|scope| {
            for port in &ports {
                scope.spawn(move || done(&["route", "unload", port]));
            }
        });
        nothing_attached(&line.left);
    }
}

fn forwardable(line: &Line) -> Vec<u8> {
    let frame = Template::new().ethernet(line.a.mac, line.left.mac);
    frame.ipv4(line.a.ipv4, line.b.ipv4).udp(40_000, 9).payload(b"hello").build()
}

#[test]
fn impossible_ports_are_refused() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let name = &line.left.name;
    let said = refused(&["route", "load", &format!("{name}:lo")], 1);
    assert!(said.contains("not an Ethernet interface"), "{said}");
    ip(&line.left, "link add bridge type bridge");
    ip(&line.left, "link set right master bridge");
    let said = refused(&["route", "load", &place(&line.left), &place(&line.right)], 1);
    assert!(said.contains("port of bridge"), "{said}");
    nothing_attached(&line.left);
    let two = [&place(&line.left)[..], &place(&line.a)];
    let said = refused(&["route", "load", two[0], two[1]], 2);
    assert!(said.contains("all in one namespace"), "{said}");
    let said = refused(&["route", "unload", &place(&line.left)], 1);
    assert!(said.contains("not a port of a router"), "{said}");
}

/// A bridge sends no XDP frames, so packets that a native port redirects to it would be lost. All ports run in skb
/// mode.
#[test]
fn ports_run_in_skb_mode_beside_one_without_native_xdp() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let (left, bridge) = (place(&line.left), format!("{}:bridge0", line.left.name));
    ip(&line.left, "link add bridge0 type bridge");
    ip(&line.left, "link set bridge0 up");
    done(&["route", "load", &left, &bridge]);
    assert_eq!(xdp_on(&line.left).expect("a program").1, "skb");
    done(&["route", "unload", &left, &bridge]);
    done(&["route", "load", &left]);
    assert_eq!(xdp_on(&line.left).expect("a program").1, "native");
    for mode in [&[][..], &["--mode", "skb"]] {
        let said = refused(&[&["route", "load", &bridge][..], mode].concat(), 1);
        assert!(said.contains("load all of them with --mode skb"), "{said}");
    }
    done(&["route", "unload", &left]);
    nothing_attached(&line.left);
}

#[test]
fn packets_passed_by_earlier_programs_are_routed() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let (left, right) = (place(&line.left), place(&line.right));
    let ports = [left.as_str(), right.as_str()];
    done(&["xdp", "load", &left, "pass", "--prio", "10"]);
    let said = refused(&[&["route", "load"], &ports[..]].concat(), 1);
    assert!(said.contains("--prio N puts"), "{said}");
    assert_eq!(xdp_on(&line.right), None);
    let load = [&["route", "load", "--prio", "50", "--json"], &ports[..]].concat();
    let text = done(&load);
    let loaded: serde_json::Value = serde_json::from_str(&text).expect("nothing but JSON");
    assert_eq!(loaded["ports"].as_array().map(Vec::len), Some(2), "{loaded}");
    lab.send_packets(&vec![forwardable(line); 20]);
    let counts = Counts::wait(|| Counts::of_port(&left), 20);
    assert!(counts.outcome("forwarded, IPv4") > 10, "{counts:?}");
    assert_eq!(Counts::of(&left).packets(), 20);
    // The next program, which drops everything, is between the two.
    done(&["xdp", "load", &left, "drop", "--prio", "20"]);
    lab.send_packets(&vec![forwardable(line); 10]);
    Counts::wait(|| Counts::of(&left), 30);
    assert_eq!(Counts::of_port(&left).packets(), 20);
    let gone = done(&["route", "unload", "--netns", &line.left.name, "--json"]);
    let gone: serde_json::Value = serde_json::from_str(&gone).expect("nothing but JSON");
    assert_eq!(gone["unloaded"].as_array().map(Vec::len), Some(2), "{gone}");
    done(&["xdp", "unload", &left, "--all"]);
    nothing_attached(&line.left);
    nothing_attached(&line.right);
}

/// Packets of several buffers are forwarded if the kernel supports that, and left to the stack if it would lose them.
#[test]
fn jumbo_frames_get_through() {
    for mode in ["native", "skb"] {
        let Some(lab) = LineLab::jumbo() else { return };
        let (left, right) = (place(&lab.line.left), place(&lab.line.right));
        done(&["route", "load", &left, &right, "--mode", mode]);
        let namespace = format!("--net=/run/netns/{}", lab.line.a.name);
        for (option, address) in [("-4", lab.line.b.ipv4.to_string()), ("-6", lab.line.b.ipv6.to_string())] {
            run(
                "nsenter",
                &[&namespace, "ping", option, "-q", "-c", "5", "-i", "0.05", "-s", "8000", "-M", "do", &address],
            );
        }
        let counts = Counts::of_port(&left);
        let pieces = counts.outcome("to the stack: in several buffers, which XDP does not send on");
        let forwarded = ["forwarded, IPv4", "forwarded, IPv6"].map(|name| counts.outcome(name));
        if mode == "native" && !probe::kernel_is_at_least(6, 3) {
            assert!(pieces >= 10, "{counts:?}");
        } else {
            assert_eq!(pieces, 0, "{counts:?}");
            assert!(forwarded.iter().all(|one| *one > 0), "{counts:?}");
        }
        done(&["route", "unload", &left, &right]);
        nothing_attached(&lab.line.left);
    }
}
