//! The drop tap's summary: it equals other tools' counters, an XDP program's drops are one record each, orderly
//! connections lose nothing, and a killed capture leaves nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use trawl_sys::netns::run_in;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{bpf_objects, has_bpf_object};
use trawl_tests::{Capture, Lab, amount, args, trawl, wait_until};

use super::{inside, nft, udp_frame, word};

/// Returns the packets that a rule with a counter has seen.
fn counted_by_nft(lab: &Lab) -> u64 {
    let rules = inside(&lab.pair.b, &["nft", "list", "ruleset"]);
    let (_, after) = rules.split_once("counter packets ").expect("a counter");
    let number = after.split(' ').next().expect("a number");
    number.parse().expect("a number")
}

/// A million drops at full rate are seen once each.
#[test]
#[ignore = "make test-long runs it"]
fn a_million_drops_are_all_accounted_for() {
    let Some(lab) = Lab::alone() else { return };
    nft(&lab.pair.b, "input", "udp dport 5555 counter drop");
    let count = amount(1_000_000);
    let file = lab.file("million.pcapng");
    let receiver = lab.receiver();
    let arguments = ["--tap", "drop", "-i", &receiver, "-s", "64", "-w", &file];
    let capture = Capture::start(&lab, &arguments);
    lab.send(&[udp_frame(&lab, 5555)], count);
    capture.wait_seen(count);
    let summary = capture.stop_well();
    assert_eq!(summary.seen, counted_by_nft(&lab));
    assert_eq!(summary.seen, count);
    assert_eq!(summary.filtered_out, 0);
    let contents = Contents::read(&file);
    assert_eq!(contents.packets.len() as u64, summary.recorded);
}

/// With a tap at XDP in the same capture, a drop by an XDP program is one record.
#[test]
fn xdp_drop_is_one_record_with_another_tap() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    for (mode, verdict, value, taps) in [
        ("native", "drop", 1, "tailcall,drop"),
        ("native", "aborted", 0, "xdp,drop"),
        ("skb", "drop", 1, "xdp,drop"),
        ("skb", "aborted", 0, "tailcall,drop"),
    ] {
        let load = args!("xdp load {receiver} {verdict} --tappable --mode {mode}");
        let loaded = trawl(&load);
        assert!(loaded.status.success(), "{loaded:?}");
        let file = lab.file("both.pcapng");
        let arguments = ["--tap", taps, "-i", &receiver, "-w", &file, "udp"];
        let capture = Capture::start(&lab, &arguments);
        let frames = [udp_frame(&lab, 7000), udp_frame(&lab, 7001)];
        lab.send_long(&frames);
        capture.wait_recorded(2);
        let summary = capture.stop_well();
        let contents = Contents::read(&file);
        assert_eq!(contents.frames(), frames, "{verdict}, {mode}");
        assert!(contents.packets.iter().all(|packet| packet.verdict() == Some((2, value))));
        assert_eq!(summary.recorded, 2, "{verdict}, {mode}");
        // The drop tap saw the same two packets, and filtered them out.
        assert_eq!(summary.filtered_out, 2, "{verdict}, {mode}");
        trawl(&["xdp", "unload", &receiver]);
    }
}

#[test]
fn orderly_connections_lose_nothing() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("tcp.pcapng");
    let capture = Capture::start(&lab, &["--tap", "drop", "-w", &file, "tcp port 8080"]);
    let count = amount(1000);
    let address = (lab.pair.b.ipv4, 8080);
    let listener = run_in(&lab.pair.b.namespace, || TcpListener::bind(address));
    let listener = listener.unwrap().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..count {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 5];
                stream.read_exact(&mut asked).unwrap();
                stream.write_all(&asked).unwrap();
                // The client closes the connection first.
                assert_eq!(stream.read(&mut asked).unwrap(), 0);
            }
        });
        run_in(&lab.pair.a.namespace, || {
            for _ in 0..count {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(b"hello").unwrap();
                stream.read_exact(&mut [0; 5]).unwrap();
            }
        })
        .unwrap();
    });
    assert_eq!(capture.stop_well().recorded, 0);
}

#[test]
fn killed_capture_leaves_nothing() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("killed.pcapng");
    let receiver = lab.receiver();
    let capture = Capture::start(&lab, &["--tap", "drop", "-i", &receiver, "-w", &file]);
    lab.send_long(&[udp_frame(&lab, 7000), udp_frame(&lab, 7001)]);
    capture.wait_recorded(2);
    wait_until("both are in the file", || std::fs::metadata(&file).is_ok_and(|about| about.len() > 600));
    let held = bpf_objects(capture.id());
    assert!(!held.is_empty() && held.iter().all(has_bpf_object), "{held:?}");
    capture.kill();
    wait_until("nothing is left", || !held.iter().any(has_bpf_object));
    let contents = Contents::read(&file);
    assert_eq!(contents.packets.len(), 2);
    assert_eq!(word(&contents.packets[0], "drop").as_deref(), Some("NO_SOCKET"));
}
