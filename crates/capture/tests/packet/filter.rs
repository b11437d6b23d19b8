//! Filters on the packet tap: it records the same packets as tcpdump, and counts all others.

use std::net::{Ipv4Addr, UdpSocket};

use trawl_packet::pcapng::Direction as Way;
use trawl_plan::filter::Filter;
use trawl_plan::options::{CaptureOptions, Direction};
use trawl_sys::netns::run_in;

use crate::support::*;

/// Returns an IPv4 and UDP frame to a port, with this payload length.
fn datagram(port: u16, payload: usize) -> Vec<u8> {
    let mut frame = frame(0, 42 + payload);
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 99, 0, 1, 10, 99, 0, 2]);
    frame[16..18].copy_from_slice(&(28 + payload as u16).to_be_bytes());
    frame[34..36].copy_from_slice(&4000u16.to_be_bytes());
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame[38..40].copy_from_slice(&(8 + payload as u16).to_be_bytes());
    frame
}

fn tagged(mut frame: Vec<u8>, tag: u8) -> Vec<u8> {
    frame.splice(12..12, [0x81, 0x00, 0x20, tag]);
    frame
}

/// Returns the second fragment of a datagram, which has no ports.
fn fragment(mut frame: Vec<u8>) -> Vec<u8> {
    frame[20..22].copy_from_slice(&[0x00, 0xb9]);
    frame
}

fn mixed() -> Vec<Vec<u8>> {
    vec![
        datagram(53, 30),
        datagram(54, 30),
        tagged(datagram(53, 30), 100),
        tagged(datagram(53, 30), 101),
        fragment(datagram(53, 30)),
        tagged(fragment(datagram(53, 30)), 100),
        datagram(53, 1400),
        frame(1, 60),
        frame(2, 18),
    ]
}

fn expression(text: &str) -> Option<Filter> {
    Some(Filter::Expression(text.to_owned()))
}

#[test]
fn tcpdump_matches_the_same_and_the_rest_is_counted() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let traffic = mixed();
    for (text, of_each_round) in [
        ("udp port 53", 2),
        ("vlan 100 and udp port 53", 1),
        ("vlan", 3),
        ("vlan and udp", 3),
        ("ip[6:2] & 0x1fff != 0", 1),
        ("ether proto 0x88b5 or greater 1000", 3),
        ("less 60", 2),
        ("udp port 9999", 0),
    ] {
        let rounds = 20;
        let count = rounds * traffic.len() as u64;
        let matching = rounds * of_each_round;
        // A packet that every filter accepts, so that the captures end once all others have arrived.
        let end = format!("({text}) or ether[14:4] = 0xdeadbeef");
        let mut last = frame(0xdead_beef, 70);
        last[12..14].copy_from_slice(&[0x88, 0xb6]);
        let options = CaptureOptions { filter: expression(&end), ..until(matching + 1) };
        let (captured, theirs) = beside_tcpdump(&pair, count + 1, &end, &options, || {
            send_from(&pair.a, &traffic, count, 0);
            send_from(&pair.a, &[last.clone()], 1, 0);
        });
        assert!(captured.bytes() == theirs, "{text}: tcpdump recorded other packets");
        let total = &captured.summary.total;
        assert_eq!(total.recorded, matching + 1, "{text}");
        assert_eq!(total.filtered_out, count - matching, "{text}");
        assert_eq!((total.seen, total.lost_total()), (count + 1, 0), "{text}");
    }
}

#[test]
fn packets_of_the_other_direction_are_not_seen() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let theirs = mixed();
    // Receivers for the datagrams, so that no ICMP errors are sent.
    let _receivers =
        run_in(&pair.b.namespace, || [53, 54].map(|port| UdpSocket::bind((pair.b.ipv4, port)).unwrap())).unwrap();
    for (direction, recorded, seen, way) in [
        (Some(Direction::In), 3 * 20, 9 * 20, Some(Way::In)),
        (Some(Direction::Out), 30, 60, Some(Way::Out)),
        (None, 3 * 20 + 30, 9 * 20 + 60, None),
    ] {
        let options = CaptureOptions {
            direction,
            filter: expression("udp dst port 53 or (vlan 100 and udp dst port 53)"),
            ..at_once()
        };
        let captured = capture(&[site(&pair.a)], &options, || {
            let send = || {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
                for port in [53, 54].repeat(30) {
                    socket.send_to(b"x", (pair.b.ipv4, port)).unwrap();
                }
            };
            run_in(&pair.a.namespace, send).unwrap();
            send_from(&pair.b, &theirs, 9 * 20, 0);
        });
        let total = &captured.summary.total;
        assert_eq!((total.recorded, total.seen), (recorded, seen), "{direction:?}");
        assert!(way.is_none() || captured.records.iter().all(|r| r.way == way));
    }
}

#[test]
fn classic_programs_are_accepted() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    // ether proto 0x88b5
    let program = "4,40 0 0 12,21 0 1 34997,6 0 0 262144,6 0 0 0";
    let options = CaptureOptions { filter: Some(Filter::Classic(program.to_owned())), ..until(40) };
    let captured = capture(&[site(&pair.b)], &options, || {
        send_from(&pair.a, &mixed(), 9 * 20, 0);
    });
    assert_eq!(captured.summary.total.filtered_out, 7 * 20);
}

#[test]
fn facts_unknown_to_a_socket_program_use_the_classic_one() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    // The device's hardware type, which is 1 for Ethernet.
    let program = "4,32 0 0 4294963228,21 0 1 1,6 0 0 262144,6 0 0 0";
    let options = CaptureOptions { filter: Some(Filter::Classic(program.to_owned())), ..until(9) };
    let captured = capture(&[site(&pair.b)], &options, || {
        send_from(&pair.a, &mixed(), 9, 0);
    });
    let said = captured.notices.iter().any(|notice| notice.contains("RejectedNotCounted"));
    assert!(said, "{:?}", captured.notices);
}

#[test]
fn packets_of_other_cpus_are_filtered_out() {
    if !root_or_skip() || trawl_sys::events::cpu_count() < 2 {
        return;
    }
    let pair = pair(1500);
    for filter in [None, expression("ether proto 0x88b5")] {
        let matching = if filter.is_some() { 2 } else { 9 };
        let options = CaptureOptions { cpu: Some(1), filter, ..until(matching * 10) };
        let captured = capture(&[site(&pair.b)], &options, || {
            for cpu in 0..2 {
                send_from(&pair.a, &mixed(), 90, cpu);
            }
        });
        assert_eq!(captured.summary.total.seen, 180);
        assert_eq!(captured.summary.total.filtered_out, 180 - matching * 10);
    }
}

#[test]
fn samples_are_one_in_n_matching_packets() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let options = CaptureOptions {
        filter: expression("ether proto 0x88b5"),
        sample: Some(trawl_plan::options::Sample::Every(10)),
        ..at_once()
    };
    let frames: Vec<Vec<u8>> = (0..1000).map(|number| frame(number, 60)).collect();
    let captured = capture(&[site(&pair.b)], &options, || {
        send_from(&pair.a, &frames, 1000, 0);
        send_from(&pair.a, &[datagram(53, 30)], 500, 0);
    });
    let expected: Vec<&Vec<u8>> = frames.iter().step_by(10).collect();
    assert!(captured.bytes() == expected);
    assert_eq!(captured.summary.total.filtered_out, 900 + 500);
}

#[test]
fn packets_over_the_rate_are_lost_as_rate_limit() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let options = CaptureOptions { filter: expression("ether proto 0x88b5"), rate_limit: Some(100), ..at_once() };
    let begin = std::time::Instant::now();
    let captured = capture(&[site(&pair.b)], &options, || {
        std::thread::scope(|scope| {
            for cpu in 0..2 {
                let pair = &pair;
                scope.spawn(move || send_from(&pair.a, &mixed(), 9 * 1000, cpu));
            }
        });
    });
    let total = &captured.summary.total;
    let most = 3 + 100 * begin.elapsed().as_millis() as u64 / 1000;
    assert!((1..=most).contains(&total.recorded), "{total} of {most}");
    assert_eq!((total.seen, total.filtered_out), (18_000, 14_000));
    assert_eq!(total.lost["rate_limit"], 4000 - total.recorded);
}

/// Attempts to load a program within the time limit.
const ATTEMPTS: u32 = 10;

#[test]
fn every_kind_of_expression_passes_the_verifier() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let hosts: Vec<String> = (0..1000).map(|n| format!("host 10.1.{}.{}", n / 250, n % 250)).collect();
    for text in [
        "ip6 protochain 17",
        "vlan and ip[ip[8]] = 0",
        "ether[ether[5] + 13:4] = 0x00006408",
        "inbound and not broadcast and tcp[tcpflags] & tcp-syn != 0",
        &hosts.join(" or "),
    ] {
        let options = CaptureOptions { filter: expression(text), ..at_once() };
        let attempt = |_| {
            capture(&[site(&pair.b)], &options, || {
                send_from(&pair.a, &mixed(), 9, 0);
            })
        };
        // Other work on the machine may use up the verifier's time.
        let is_late = |text: &String| text.contains("did not finish");
        let mut attempts = (1..=ATTEMPTS).map(attempt);
        let captured = attempts.find(|one| !one.notices.iter().any(is_late)).expect("time for the verifier");
        // Chains too long for the kernel's program are followed in user space.
        let notices: &[&str] = if text.contains("protochain") { &["LongChainsInUserSpace"] } else { &[] };
        assert_eq!(captured.notices, notices);
        let total = &captured.summary.total;
        assert_eq!(total.seen, 9, "{}", &text[..20.min(text.len())]);
    }
}
