//! The packet tap records frames exactly as sent, for all lengths, tags and CPUs.

use trawl_lab::PairOptions;
use trawl_tests::pcapng::Contents;
use trawl_tests::{Capture, Lab, frames};

/// Usual lengths of frames, with and without tags, and the maximum.
const LENGTHS: [usize; 9] = [60, 61, 1514, 1900, 1990, 2048, 4096, 9014, 60_000];

/// Frames are recorded byte for byte, with a filter that counts rejected packets.
#[test]
fn frames_of_all_lengths_are_recorded_as_sent() {
    let Some(lab) = Lab::with(PairOptions { mtu: 65_535, ..PairOptions::default() }) else {
        return;
    };
    let sent: Vec<Vec<u8>> = LENGTHS.into_iter().map(frames::patterned).collect();
    let (file, place) = (lab.file("file.pcapng"), lab.receiver());
    let what = ["--tap", "packet", "-i", &place, "-Q", "in", "-w", &file];
    let capture = Capture::start(&lab, &what);
    lab.send_long(&sent);
    let summary = capture.stop_well();
    summary.assert_all_recorded(sent.len() as u64);
    assert!(summary.interfaces.iter().all(|one| one.truncated == 0), "{summary:?}");
    frames::assert_same(&Contents::read(&file).frames(), &sent);
    let none = [&what[..], &["ether proto 0x1234"]].concat();
    let capture = Capture::start(&lab, &none);
    lab.send_long(&sent);
    let summary = capture.stop_well();
    assert_eq!((summary.seen, summary.filtered_out), (sent.len() as u64, sent.len() as u64));
}

/// Each packet is recorded once, with VLAN tags in their position.
#[test]
fn sockets_of_all_cpus_record_each_packet_once() {
    let Some(lab) = Lab::open() else { return };
    let sent: Vec<Vec<u8>> = vec![frames::ipv4_udp(0), frames::ipv4_udp(1), frames::ipv6_udp(2), frames::silent(60)];
    let (file, place) = (lab.file("file.pcapng"), lab.receiver());
    let what = ["--tap", "packet", "-i", &place, "-Q", "in", "-w", &file];
    let capture = Capture::start(&lab, &what);
    lab.send(&sent, 4000);
    let summary = capture.stop_well();
    summary.assert_all_recorded(4000);
    let contents = Contents::read(&file);
    for frame in &sent {
        let same = contents.packets.iter().filter(|one| one.bytes == *frame);
        assert_eq!(same.count(), 1000);
    }
}
