//! Packets of all lengths: packets in several pieces are recorded whole, and a snap length cuts the recorded bytes, not
//! the reported length.

use trawl_lab::PairOptions;
use trawl_tests::pcapng::Contents;
use trawl_tests::taps::{TAPS, Tap, XDP_IN_SKB_MODE};
use trawl_tests::witness::tshark;
use trawl_tests::{Capture, Lab, args, frames};

/// Lengths around the limits at which a veth's frame needs further pieces, around pages, and the longest.
const LENGTHS: [usize; 12] = [1514, 3000, 3500, 3700, 4096, 4097, 5000, 8192, 8193, 9014, 20_000, 60_000];

fn jumbo_lab() -> Option<Lab> {
    Lab::with(PairOptions { mtu: 65_535, ..PairOptions::default() })
}

fn long_frames_are_whole(lab: &Lab, tap: &Tap) {
    let _program = tap.load(lab);
    let file = lab.file("file.pcapng");
    let count = LENGTHS.len().to_string();
    let fixed = ["-i", &lab.receiver(), "-Q", "in", "-c", &count, "-w", &file];
    let capture = Capture::start(lab, &[&fixed[..], tap.options].concat());
    let sent: Vec<Vec<u8>> = LENGTHS.into_iter().map(frames::patterned).collect();
    lab.send_long(&sent);
    let summary = capture.wait().summary_of_success();
    summary.assert_all_recorded(LENGTHS.len() as u64);
    assert!(summary.interfaces.iter().all(|one| one.truncated == 0), "{summary:?}");
    let contents = Contents::read(&file);
    for (packet, sent) in contents.packets.iter().zip(&sent) {
        assert_eq!((packet.original as usize, packet.bytes.len()), (sent.len(), sent.len()));
        let differs = packet.bytes.iter().zip(sent).position(|(one, other)| one != other);
        assert_eq!(differs, None, "of {} bytes", sent.len());
    }
    let lengths: Vec<String> = tshark(&file, &["frame.len"]).concat();
    assert_eq!(lengths, LENGTHS.map(|length| length.to_string()));
}

#[test]
fn each_tap_records_long_frames_whole() {
    let Some(lab) = jumbo_lab() else { return };
    for tap in TAPS.iter().chain([&XDP_IN_SKB_MODE]) {
        long_frames_are_whole(&lab, tap);
    }
}

/// Returns captured and original lengths of frames of 60, 61 and 1514 bytes, recorded with this snap length.
fn lengths_with(snaplen: &str, tap: &str) -> Option<Vec<(usize, u32)>> {
    let lab = Lab::open()?;
    let file = lab.file("file.pcapng");
    let arguments = args!("-i {} -Q in --tap {tap} -s {snaplen} -c 3 -w {file}", lab.receiver());
    let capture = Capture::start(&lab, &arguments);
    let sent = [60, 61, 1514].map(frames::patterned);
    lab.send(&sent, 3);
    let summary = capture.wait().summary_of_success();
    summary.assert_all_recorded(3);
    let contents = Contents::read(&file);
    for (packet, sent) in contents.packets.iter().zip(&sent) {
        assert_eq!(packet.bytes, sent[..packet.bytes.len()]);
    }
    let cut = contents.packets.iter().filter(|packet| packet.bytes.len() < packet.original as usize);
    assert_eq!(summary.interfaces[0].truncated, cut.count() as u64, "{summary:?}");
    let asked: u32 = snaplen.parse().expect("a number");
    let recorded = contents.interfaces[0].snaplen;
    let is_right = if asked == 0 { recorded == 0 || recorded >= 65_535 } else { recorded == asked };
    assert!(is_right, "{recorded} for {asked}");
    Some(contents.packets.iter().map(|packet| (packet.bytes.len(), packet.original)).collect())
}

#[test]
fn snap_length_cuts_the_recorded_bytes() {
    for tap in ["xdp", "tc", "packet"] {
        let Some(lengths) = lengths_with("60", tap) else {
            return;
        };
        assert_eq!(lengths, [(60, 60), (60, 61), (60, 1514)], "{tap}");
    }
}

#[test]
fn snap_length_of_one_byte_records_one() {
    let Some(lengths) = lengths_with("1", "xdp") else {
        return;
    };
    assert_eq!(lengths, [(1, 60), (1, 61), (1, 1514)]);
}

#[test]
fn snap_length_of_zero_keeps_all() {
    let Some(lengths) = lengths_with("0", "xdp") else {
        return;
    };
    assert_eq!(lengths, [(60, 60), (61, 61), (1514, 1514)]);
}

#[test]
fn snap_length_cuts_within_a_later_piece() {
    let Some(lab) = jumbo_lab() else { return };
    let file = lab.file("file.pcapng");
    let arguments = args!("-i {} --tap xdp -s 5001 -c 1 -w {file}", lab.receiver());
    let capture = Capture::start(&lab, &arguments);
    let sent = frames::patterned(9014);
    lab.send_long(std::slice::from_ref(&sent));
    capture.wait().summary_of_success().assert_all_recorded(1);
    let contents = Contents::read(&file);
    assert_eq!(contents.packets[0].original, 9014);
    assert!(contents.packets[0].bytes == sent[..5001]);
}
