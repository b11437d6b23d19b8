//! The packet tap on real namespaces: counts, bytes, directions, tags and ends.

mod filter;
mod queue;
mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};

use support::*;
use trawl_capture::event::GoneReason;
use trawl_capture::session::{self, Ended};
use trawl_lab::Station;
use trawl_packet::pcapng::Direction as Way;
use trawl_plan::options::{CaptureOptions, Direction, Memory};
use trawl_ring::SHARE_MIN;
use trawl_sys::netns::run_in;

/// Sends datagrams to the discard port; each has left the interface on return.
fn send_datagrams(from: &Station, to: Ipv4Addr, count: usize) {
    run_in(&from.namespace, || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        for number in 0..count {
            socket.send_to(&number.to_be_bytes(), (to, 9)).unwrap();
        }
    })
    .unwrap();
}

fn numbered(count: u32, length: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| frame(number, length)).collect()
}

#[test]
fn every_frame_is_recorded_with_its_bytes_and_in_order() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let frames = numbered(3000, 60);
    let captured = capture(&[site(&pair.b)], &until(3000), || {
        send_from(&pair.a, &frames, 3000, 0);
    });
    assert!(matches!(captured.ended, Ended::Count));
    assert!(captured.bytes() == frames, "other bytes, or another order");
    assert!(captured.records.is_sorted_by_key(|r| r.time));
    assert!(captured.records.iter().all(|r| r.way == Some(Way::In) && r.drop_count == 0));
    let point = &captured.summary.interfaces[0];
    assert_eq!((point.tap, point.hook.as_str()), ("packet", "packet"));
}

#[test]
fn packets_in_the_kernel_at_the_end_are_recorded() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    // All packets leave before the end, and most are in a block that is not full.
    let captured = capture(&[site(&pair.a)], &at_once(), || {
        send_datagrams(&pair.a, pair.b.ipv4, 2500);
    });
    let sent = captured.records.iter().filter(|r| r.way == Some(Way::Out));
    let numbers = sent
        .filter(|r| r.bytes[23] == 17)
        .map(|r| usize::from_be_bytes(r.bytes[42..50].try_into().expect("eight bytes")));
    assert!(numbers.eq(0..2500));
}

#[test]
fn directions_are_recorded_and_can_be_chosen() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let traffic = || {
        send_datagrams(&pair.a, pair.b.ipv4, 100);
        send_from(&pair.b, &numbered(70, 60), 70, 0);
    };
    let ways = |direction, count| {
        let captured = capture(&[site(&pair.a)], &CaptureOptions { direction, ..until(count) }, traffic);
        let of = |way| captured.records.iter().filter(|r| r.way == Some(way)).count() as u64;
        assert_eq!(captured.summary.total.seen, count);
        (of(Way::In), of(Way::Out))
    };
    assert_eq!(ways(Some(Direction::In), 70), (70, 0));
    assert_eq!(ways(Some(Direction::Out), 100), (0, 100));
    assert_eq!(ways(None, 170), (70, 100));
}

#[test]
fn the_kind_of_reception_is_recorded() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let addressed_to = |address: [u8; 6]| {
        let mut frame = frame(0, 60);
        frame[..6].copy_from_slice(&address);
        frame
    };
    let frames = [
        addressed_to(pair.b.mac),
        addressed_to([0x33, 0x33, 0, 0, 0, 1]),
        addressed_to([0xff; 6]),
        addressed_to([2, 0, 0, 0, 0, 99]),
    ];
    let captured = capture(&[site(&pair.b)], &until(4), || {
        send_from(&pair.a, &frames, 4, 0);
    });
    let kinds: Vec<u32> = captured.records.iter().map(|r| r.flags >> 2 & 7).collect();
    // Unicast, multicast, broadcast, promiscuous.
    assert_eq!(kinds, [1, 2, 3, 4]);
}

#[test]
fn vlan_tags_are_restored() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let tagged = |protocol: [u8; 2]| {
        let mut tagged = frame(1, 60);
        tagged.splice(12..12, [protocol[0], protocol[1], 0x60, 0x2a]);
        tagged
    };
    let frames = [tagged([0x81, 0x00]), tagged([0x88, 0xa8]), frame(2, 60)];
    let captured = capture(&[site(&pair.b)], &until(3), || {
        send_from(&pair.a, &frames, 3, 0);
    });
    assert_eq!(captured.bytes(), frames);
    let lengths: Vec<u32> = captured.records.iter().map(|r| r.original).collect();
    assert_eq!(lengths, [64, 64, 60]);

    // Cut after the tag, in the middle of it, and before it.
    for snaplen in [20, 14, 9] {
        let options = CaptureOptions { snaplen, ..until(1) };
        let captured = capture(&[site(&pair.b)], &options, || {
            send_from(&pair.a, &frames[..1], 1, 0);
        });
        assert_eq!(captured.records[0].bytes, frames[0][..snaplen as usize]);
        assert_eq!(captured.records[0].original, 64);
        assert_eq!(captured.summary.interfaces[0].truncated, 1);
    }
}

#[test]
fn jumbo_and_segmented_packets_are_recorded_whole() {
    if !root_or_skip() {
        return;
    }
    let pair_of_jumbos = pair(65_000);
    let frames = numbered(40, 65_014);
    let captured = capture(&[site(&pair_of_jumbos.b)], &until(40), || {
        send_from(&pair_of_jumbos.a, &frames, 40, 0);
    });
    assert!(captured.bytes() == frames);

    let pair = pair(1500);
    let captured = capture(&[site(&pair.a)], &at_once(), || {
        let listener = run_in(&pair.b.namespace, || TcpListener::bind((pair.b.ipv4, 0)).unwrap());
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = run_in(&pair.a.namespace, || TcpStream::connect(address).unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let reader = std::thread::spawn(move || server.read_to_end(&mut Vec::new()).unwrap());
        client.write_all(&vec![7; 1 << 20]).unwrap();
        drop(client);
        assert_eq!(reader.join().unwrap(), 1 << 20);
    });
    let longest = captured.records.iter().max_by_key(|r| r.original).unwrap();
    assert!(longest.original > 10_000, "nothing was segmented late");
    assert_eq!(longest.bytes.len(), longest.original as usize);
    let ip_length = u16::from_be_bytes([longest.bytes[16], longest.bytes[17]]);
    assert_eq!(u32::from(ip_length) + 14, longest.original);
}

#[test]
fn a_count_is_exact_over_several_cpus_and_interfaces() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let frames = numbered(50_000, 60);
    // Both ends: the first does not see its own sender's packets, which bypass the stack, but sees the other's.
    let sites = [site(&pair.a), site(&pair.b)];
    let captured = capture(&sites, &until(20_000), || {
        std::thread::scope(|scope| {
            for (station, cpu) in [(&pair.a, 0), (&pair.a, 1), (&pair.b, 0), (&pair.b, 1)] {
                let frames = &frames;
                scope.spawn(move || send_from(station, frames, 8000, cpu));
            }
        });
    });
    assert_eq!(captured.records.len(), 20_000);
    assert_eq!(captured.summary.total.recorded, 20_000);
    let mut ids: Vec<u64> = captured.records.iter().map(|r| r.packet_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 20_000, "a packet id was given twice");
}

#[test]
fn records_of_several_cpus_are_merged_by_time() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let frames = numbered(10_000, 60);
    let captured = capture(&[site(&pair.b)], &until(20_000), || {
        std::thread::scope(|scope| {
            for cpu in 0..2 {
                let (pair, frames) = (&pair, &frames);
                scope.spawn(move || send_from(&pair.a, frames, 10_000, cpu));
            }
        });
    });
    assert!(captured.records.is_sorted_by_key(|r| r.time));
}

#[test]
fn losses_are_counted_and_recorded() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let options = CaptureOptions {
        memory: Memory::ForEachCpu(SHARE_MIN),
        recording: trawl_plan::options::Recording::default(),
        ..at_once()
    };
    // The session moves no records until the traffic is over, so that the rings overflow.
    let captured = capture(&[site(&pair.a)], &options, || {
        send_datagrams(&pair.a, pair.b.ipv4, 60_000);
    });
    let total = &captured.summary.total;
    assert!(total.lost_total() > 0);
    assert!(total.seen >= 60_000);
    let reported: u64 = captured.records.iter().map(|r| r.drop_count).sum();
    assert!(reported <= total.lost_total());
}

#[test]
fn loopback_packets_are_recorded_once() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let receiver = run_in(&pair.a.namespace, || UdpSocket::bind((Ipv4Addr::LOCALHOST, 9)).unwrap());
    let captured = capture(&[site_named(&pair.a, "lo")], &until(10), || {
        send_datagrams(&pair.a, Ipv4Addr::LOCALHOST, 10);
    });
    drop(receiver);
    assert!(captured.records.iter().all(|r| r.way == Some(Way::In)));
    let numbers = captured.records.iter().map(|r| r.bytes[49]);
    assert!(numbers.eq(0..10));
}

#[test]
fn an_interface_that_is_deleted_ends_the_capture_with_a_reason() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let frames = numbered(500, 60);
    let captured = capture(&[site(&pair.b)], &options(), || {
        send_from(&pair.a, &frames, 500, 0);
        pair.b.netlink().unwrap().delete_link(pair.b.index).unwrap();
    });
    let Ended::NoInterface(why) = &captured.ended else {
        panic!("it ended by {}", captured.ended);
    };
    assert_eq!(why.reason, GoneReason::Removed);
    assert!(captured.bytes() == frames);
}

#[test]
fn an_interface_may_come_up_later_and_go_down_for_a_while() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let mut netlink = pair.b.netlink().unwrap();
    netlink.set_down(pair.b.index).unwrap();
    let frames = numbered(200, 60);
    let captured = capture(&[site(&pair.b)], &until(200), || {
        netlink.set_up(pair.b.index).unwrap();
        send_from(&pair.a, &frames[..100], 100, 0);
        netlink.set_down(pair.b.index).unwrap();
        netlink.set_up(pair.b.index).unwrap();
        send_from(&pair.a, &frames[100..], 100, 0);
    });
    assert!(matches!(captured.ended, Ended::Count));
    assert!(captured.bytes() == frames);
}

#[test]
fn tcpdump_records_the_same() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(9000);
    let mut frames: Vec<Vec<u8>> = (0..500u32).map(|n| frame(n, 60 + (n as usize * 37) % 8900)).collect();
    for number in (0..500).step_by(7) {
        frames[number].splice(12..12, [0x81, 0x00, 0x00, number as u8]);
    }
    let (captured, theirs) = beside_tcpdump(&pair, 500, "", &until(500), || {
        send_from(&pair.a, &frames, 500, 0);
    });
    assert!(captured.bytes() == frames);
    assert!(theirs == frames);
}

#[test]
fn hardware_time_falls_back_to_the_systems_with_a_notice() {
    if !root_or_skip() {
        return;
    }
    let pair = pair(1500);
    let options = CaptureOptions { time: trawl_plan::options::TimeSource::Hardware, ..until(5) };
    let captured = capture(&[site(&pair.b)], &options, || {
        send_from(&pair.a, &numbered(5, 60), 5, 0);
    });
    assert!(captured.notices.iter().any(|notice| notice.contains("SystemStamps")));
    assert_eq!(captured.summary.interfaces[0].hardware_stamped, 0);
    assert!(captured.records.iter().all(|r| r.time > 0));
}

#[test]
fn a_session_that_never_runs_leaves_nothing() {
    if !root_or_skip() {
        return;
    }
    struct Silent;
    impl trawl_capture::session::Observer for Silent {
        fn event(&mut self, _: &trawl_capture::event::Event) {}
        fn started(&mut self, _: &[trawl_capture::point::Point]) {}
        fn figures(&mut self, _: &trawl_capture::summary::Summary) {}
    }
    let pair = pair(1500);
    let host = trawl_capture::assembly::HostFeatures {
        os: String::new(),
        hardware: String::new(),
        application: String::new(),
    };
    let sockets = || {
        run_in(&pair.b.namespace, || std::fs::read_to_string("/proc/thread-self/net/packet").unwrap())
            .unwrap()
            .lines()
            .count()
            - 1
    };
    let sites = [site(&pair.b)];
    let options = options();
    let attached = session::attach(&sites, &options, host, &mut Silent).unwrap();
    assert!(sockets() > 0);
    drop(attached);
    assert_eq!(sockets(), 0);
}
