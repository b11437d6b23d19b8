//! Queues: the packets of each are counted exactly, in every form of selection.

use std::net::{Ipv4Addr, UdpSocket};

use trawl_capture::session;
use trawl_io::send::pin_to_cpu;
use trawl_lab::{Pair, PairOptions, Station};
use trawl_plan::TapChoice;
use trawl_plan::filter::Filter;
use trawl_plan::options::{CaptureOptions, Direction};
use trawl_sys::error::ErrorKind;
use trawl_sys::netns::run_in;

use crate::support::*;

const QUEUES: u32 = 4;
const PORT: u16 = 9;
/// For each CPU, its send queue and number of packets.
const TRAFFIC: [(usize, u32, u64); 2] = [(0, 3, 90), (1, 1, 40)];

fn pair_with_queues() -> Pair {
    let pair = Pair::new(&PairOptions { queues: QUEUES, ..PairOptions::default() }).expect("a lab for the test");
    for (cpu, queue, _) in TRAFFIC {
        send_by_queue(&pair.a, cpu, queue);
    }
    pair
}

/// Makes packets sent on a CPU leave by this queue.
fn send_by_queue(station: &Station, cpu: usize, queue: u32) {
    let file = format!("/sys/class/net/{}/queues/tx-{queue}/xps_cpus", station.interface);
    let mask = format!("{:x}", 1u64 << cpu);
    // The view of /sys belongs to the namespace in which it was mounted.
    let written = std::process::Command::new("ip")
        .args(["netns", "exec", &station.name, "sh", "-c"])
        .arg(format!("echo {mask} > {file}"))
        .status();
    assert!(written.expect("ip").success(), "{file}");
}

/// Sends datagrams of 1 and 2 in turn through the stack: packet sockets do not see packets that bypass it.
fn send_all(pair: &Pair) {
    let receiver = run_in(&pair.b.namespace, || UdpSocket::bind((pair.b.ipv4, PORT)).unwrap()).unwrap();
    for (cpu, _, count) in TRAFFIC {
        let send = || {
            pin_to_cpu(cpu).unwrap();
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            for number in 0..count {
                let payload = [1 + (number % 2) as u8; 20];
                socket.send_to(&payload, (pair.b.ipv4, PORT)).unwrap();
            }
        };
        run_in(&pair.a.namespace, send).unwrap();
    }
    drop(receiver);
}

/// Packets received and sent by a veth: with the packet tap, with its counting program and with the classic one alone,
/// and with the other taps for comparison.
#[test]
fn each_queues_packets_are_recorded_and_the_others_counted() {
    if !root_or_skip() || trawl_sys::events::cpu_count() < 2 {
        return;
    }
    let pair = pair_with_queues();
    let everything: u64 = TRAFFIC.iter().map(|(_, _, count)| count).sum();
    for (tap, station, direction) in [
        (TapChoice::Xdp, &pair.b, Direction::In),
        (TapChoice::Packet, &pair.b, Direction::In),
        (TapChoice::Packet, &pair.b, Direction::Both),
        (TapChoice::Tc, &pair.b, Direction::In),
        (TapChoice::Packet, &pair.a, Direction::Out),
        (TapChoice::Packet, &pair.a, Direction::Both),
    ] {
        for queue in 0..QUEUES {
            let of_queue = |(_, its, count): &(usize, u32, u64)| (*its == queue).then_some(*count);
            let expected: u64 = TRAFFIC.iter().filter_map(of_queue).sum();
            let options = CaptureOptions { tap, direction: Some(direction), queue: Some(queue), ..at_once() };
            let captured = capture(&[site(station)], &options, || send_all(&pair));
            let total = &captured.summary.total;
            assert_eq!(
                (total.seen, total.recorded, total.filtered_out),
                (everything, expected, everything - expected),
                "{tap:?} {direction:?}, queue {queue}"
            );
        }
    }
}

#[test]
fn queue_and_expression_apply_together() {
    if !root_or_skip() || trawl_sys::events::cpu_count() < 2 {
        return;
    }
    let pair = pair_with_queues();
    let (_, queue, count) = TRAFFIC[0];
    for filter in [
        Filter::Expression("udp[8] = 2".to_owned()),
        // The device's hardware type is Ethernet: only the classic program can read it.
        Filter::Classic("6,32 0 0 4294963228,21 0 3 1,48 0 0 42,21 0 1 2,6 0 0 262144,6 0 0 0".to_owned()),
    ] {
        let counted = matches!(filter, Filter::Expression(_));
        let options = CaptureOptions { queue: Some(queue), filter: Some(filter), ..at_once() };
        for (station, records) in [(&pair.b, count / 2), (&pair.a, count / 2)] {
            let captured = capture(&[site(station)], &options, || send_all(&pair));
            assert_eq!(captured.summary.total.recorded, records);
            let seen = captured.summary.total.seen;
            assert_eq!(seen == TRAFFIC[0].2 + TRAFFIC[1].2, counted, "{seen}");
        }
    }
}

#[test]
fn missing_queues_are_refused_at_every_tap() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions { queues: QUEUES, ..PairOptions::default() }).expect("a lab for the test");
    for tap in [TapChoice::Packet, TapChoice::Tc, TapChoice::Xdp] {
        for queue in [QUEUES, u32::MAX] {
            let options = CaptureOptions { tap, queue: Some(queue), ..options() };
            let sites = [site(&pair.b)];
            let error = session::attach(&sites, &options, host(), &mut Silent).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{tap:?}: {error}");
            assert!(error.to_string().contains("queues 0 to 3"), "{error}");
        }
    }
}

#[test]
fn queues_of_sent_packets_are_unknown_at_tc() {
    if !root_or_skip() {
        return;
    }
    let pair = pair_with_queues();
    let sites = [site(&pair.a)];
    for direction in [Some(Direction::Out), Some(Direction::Both), None] {
        let options = CaptureOptions { tap: TapChoice::Tc, direction, queue: Some(1), ..options() };
        let error = session::attach(&sites, &options, host(), &mut Silent).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(error.how_to_fix() == Some("use --tap packet, or -Q in for received packets"), "{error}");
    }
    let options = CaptureOptions { tap: TapChoice::Tc, ..at_once() };
    let sent = capture(&sites, &options, || send_all(&pair));
    assert!(sent.records.iter().all(|record| record.queue.is_none()));
    let received = capture(&[site(&pair.b)], &options, || send_all(&pair));
    for (_, queue, count) in TRAFFIC {
        let of_queue = |record: &&Record| record.queue == Some(queue);
        assert_eq!(received.records.iter().filter(of_queue).count() as u64, count);
    }
}

#[test]
fn missing_cpus_are_refused_at_every_tap() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    for tap in [TapChoice::Packet, TapChoice::Tc, TapChoice::Xdp] {
        for cpu in [trawl_sys::events::cpu_count() as u32, u32::MAX] {
            let options = CaptureOptions { tap, cpu: Some(cpu), ..options() };
            let sites = [site(&pair.b)];
            let error = session::attach(&sites, &options, host(), &mut Silent).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{tap:?}: {error}");
        }
    }
}
