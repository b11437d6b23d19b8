//! The summary: seen, filtered, recorded and lost packets add up, and agree with the file.

use trawl_lab::program::{Does, Loaded};
use trawl_tests::pcapng::{Contents, Packet};
use trawl_tests::taps::{TAPS, Tap};
use trawl_tests::turn::heavy;
use trawl_tests::witness::capinfos;
use trawl_tests::{Capture, Lab, amount, args, frames, wait_until};

/// Checks that this tap sees and records every sent packet.
fn all_of_many(lab: &Lab, tap: &Tap) {
    let count = amount(50_000);
    let _program = tap.load(lab);
    let file = lab.file("file.pcapng");
    let fixed = ["-i", &lab.receiver(), "-Q", "in", "-w", &file];
    let capture = Capture::start(lab, &[&fixed[..], tap.options].concat());
    lab.send_from_two_cpus(&[frames::silent(64)], count);
    capture.wait_seen(2 * count);
    let summary = capture.stop_well();
    summary.assert_all_recorded(2 * count);
    assert_eq!(capinfos(&file, "Number of packets"), format!("{} k", 2 * count / 1000));
    assert_eq!(capinfos(&file, "Strict time order"), "True");
    let contents = Contents::read(&file);
    assert_eq!(contents.packets.len() as u64, 2 * count);
    contents.assert_in_time_order();
}

#[test]
fn each_tap_sees_all() {
    let Some(lab) = Lab::open() else { return };
    let _heavy = heavy();
    for tap in TAPS {
        all_of_many(&lab, tap);
    }
}

/// Stops the reading process while more is sent than a small ring holds.
fn losses_are_exact(lab: &Lab, tap: &Tap) {
    let count = amount(100_000);
    let _program = tap.load(lab);
    let file = lab.file("file.pcapng");
    let fixed = args!("-i {} --ring-size 64KiB -Q in -w {file}", lab.receiver());
    let capture = Capture::start(lab, &[&fixed[..], tap.options].concat());
    capture.freeze();
    lab.send_from_two_cpus(&[frames::silent(64)], count / 2);
    capture.thaw();
    capture.wait_seen(count);
    let lost_so_far = count - Contents::read(&file).packets.len() as u64;
    assert_ne!(lost_so_far, 0);
    // One more packet on each CPU, once the ring has space, reports the preceding losses.
    let (mut sent, mut looks) = (count, 0);
    wait_until("all packets are recorded or reported as lost", || {
        if looks % 100 == 0 {
            lab.send_from_two_cpus(&[frames::silent(64)], 1);
            sent += 2;
        }
        looks += 1;
        let packets = Contents::read(&file).packets;
        let reported: u64 = packets.iter().map(Packet::drop_count).sum();
        packets.len() as u64 + reported == sent
    });
    let finished = capture.stop();
    let summary = finished.summary_of_success();
    assert_eq!((summary.seen, summary.filtered_out), (sent, 0));
    assert!(summary.lost_by("ring_full") > count / 2, "{summary:?}");
    assert_eq!(summary.lost_by("ring_full"), summary.lost_total());
    assert!(finished.stderr.contains("lost (ring full: "), "{}", finished.stderr);

    let contents = Contents::read(&file);
    assert_eq!(contents.packets.len() as u64, summary.recorded);
    let reported: u64 = contents.packets.iter().map(Packet::drop_count).sum();
    assert_eq!(reported, summary.lost_total());
    let in_statistics: u64 = contents.statistics.iter().filter_map(|one| one.options.u64(5)).sum();
    assert_eq!(in_statistics, summary.lost_total());
    contents.assert_in_time_order();
}

#[test]
fn losses_of_a_full_ring_are_exact() {
    let Some(lab) = Lab::open() else { return };
    let _heavy = heavy();
    // A socket has no ring, so it has a test of its own.
    for tap in TAPS.iter().filter(|tap| tap.name() != "packet") {
        losses_are_exact(&lab, tap);
    }
}

/// The kernel's socket reports losses with the next packet that it accepts.
#[test]
fn losses_of_a_full_socket_are_exact_with_the_packet_tap() {
    let count = amount(100_000);
    let Some(lab) = Lab::open() else { return };
    let _heavy = heavy();
    let file = lab.file("file.pcapng");
    let place = lab.receiver();
    let fixed = ["-i", &place, "--tap", "packet", "-Q", "in"];
    let capture = Capture::start(&lab, &[&fixed[..], &["--ring-size", "64KiB", "-w", &file]].concat());
    capture.freeze();
    lab.send_from_two_cpus(&[frames::silent(64)], count / 2);
    capture.thaw();
    let mut sent = count;
    trawl_tests::wait_until("all losses are reported", || {
        let recorded = capture.figure("recorded");
        lab.send_from_two_cpus(&[frames::silent(64)], 1);
        sent += 2;
        capture.wait_seen(sent);
        // Both packets must be recorded, because a record reports the loss.
        capture.figure("recorded") == recorded + 2
    });
    let summary = capture.stop_well();
    assert_eq!((summary.seen, summary.filtered_out), (sent, 0));
    assert!(summary.lost_total() > count / 2, "{summary:?}");
    let contents = Contents::read(&file);
    assert_eq!(contents.packets.len() as u64, summary.recorded);
    let reported: u64 = contents.packets.iter().map(Packet::drop_count).sum();
    assert_eq!(reported, summary.lost_total());
}

#[test]
fn unrequested_verdicts_are_filtered_out_and_counted() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::ChosenWithHook, &lab.pair.b).expect("the program");
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--verdict", "drop", "-w", &file]);
    let actions: Vec<Vec<u8>> = (0..4).map(frames::choosing).collect();
    lab.send(&actions, 400);
    capture.wait_seen(400);
    let summary = capture.stop_well();
    assert_eq!((summary.seen, summary.filtered_out, summary.recorded), (400, 300, 100));
    let contents = Contents::read(&file);
    assert_eq!(contents.packets.len(), 100);
    assert!(contents.packets.iter().all(|packet| packet.verdict() == Some((2, 1))));
}

/// Hook slots of unrequested verdicts need no filter.
#[test]
fn verdict_and_filter_apply_together() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::ChosenWithHook, &lab.pair.b).expect("the program");
    let (receiver, file) = (lab.receiver(), lab.file("file.pcapng"));
    let actions: Vec<Vec<u8>> = (0..4).map(frames::choosing).collect();
    for (filter, recorded) in [("len > 14", 100), ("len < 14", 0)] {
        let arguments = ["-i", &receiver, "--verdict", "drop", "-w", &file, filter];
        let capture = Capture::start(&lab, &arguments);
        lab.send(&actions, 400);
        capture.wait_seen(400);
        let summary = capture.stop_well();
        let counts = (summary.seen, summary.filtered_out, summary.recorded);
        assert_eq!(counts, (400, 400 - recorded, recorded), "{filter}");
        assert_eq!(Contents::read(&file).packets.len() as u64, recorded);
    }
}

#[test]
fn verdict_that_the_program_never_returns_records_nothing() {
    let Some(lab) = Lab::open() else { return };
    let (receiver, file) = (lab.receiver(), lab.file("file.pcapng"));
    let fixed = ["-i", &receiver, "--tap", "xdp"];
    for filter in [&[][..], &["len > 14"]] {
        let more = ["--verdict", "drop", "-w", &file];
        let capture = Capture::start(&lab, &[&fixed[..], &more, filter].concat());
        lab.send(&[frames::silent(64)], 10);
        capture.wait_seen(10);
        let summary = capture.stop_well();
        assert_eq!((summary.seen, summary.filtered_out, summary.recorded), (10, 10, 0));
        assert!(Contents::read(&file).packets.is_empty());
    }
}

/// Checks that `-c` is exact in the summary and in the file, with two CPUs receiving.
fn count_is_exact(lab: &Lab, tap: &Tap) {
    const COUNT: usize = 1001;
    let _program = tap.load(lab);
    let file = lab.file("file.pcapng");
    let count = COUNT.to_string();
    let fixed = ["-i", &lab.receiver(), "-Q", "in", "-c", &count, "-w", &file];
    let capture = Capture::start(lab, &[&fixed[..], tap.options].concat());
    lab.send_from_two_cpus(&[frames::silent(64)], 5_000);
    let summary = capture.wait().summary_of_success();
    assert_eq!(summary.recorded, COUNT as u64);
    assert_eq!(summary.ended, "count");
    let contents = Contents::read(&file);
    assert_eq!(contents.packets.len(), COUNT);
    contents.assert_in_time_order();
    assert_eq!(contents.statistics.len(), contents.interfaces.len(), "the file is complete");
}

#[test]
fn a_count_is_exact() {
    let Some(lab) = Lab::open() else { return };
    let _heavy = heavy();
    let both_ends = Tap { options: &["--tap", "xdp", "--at", "both"], program: None };
    for tap in TAPS.iter().chain([&both_ends]) {
        count_is_exact(&lab, tap);
    }
}

#[test]
fn count_of_one_is_exact_from_one_cpu() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &args!("-i {} --tap xdp -c 1 -w {file}", lab.receiver()));
    lab.send(&[frames::silent(64)], 1);
    let summary = capture.wait().summary_of_success();
    assert_eq!(summary.recorded, 1);
    assert_eq!(Contents::read(&file).packets.len(), 1);
}

#[test]
fn figures_are_shown_while_running() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--stats", "20ms", "-w", &file]);
    capture.wait_said(" s: 0 seen, 0 filtered out, 0 recorded, 0 lost, 0 a second");
    lab.send(&[frames::silent(64)], 3);
    capture.wait_said(" s: 3 seen, 0 filtered out, 3 recorded, 0 lost");
    capture.stop_well().assert_all_recorded(3);
}

/// A sample of alternating sizes includes both.
#[test]
fn sample_includes_alternating_sizes() {
    let Some(lab) = Lab::open() else { return };
    for tap in ["xdp", "tc", "packet"] {
        let file = lab.file(&format!("{tap}.pcapng"));
        let place = lab.receiver();
        let fixed = ["-i", &place, "--tap", tap, "-Q", "in", "-w", &file];
        let capture = Capture::start(&lab, &[&fixed[..], &["--sample", "1/2"]].concat());
        let sizes = [100, 200, 300, 400].map(frames::patterned);
        lab.send(&sizes, 400);
        capture.wait_seen(400);
        let summary = capture.stop_well();
        assert!((100..300).contains(&summary.recorded), "{summary:?}");
        let lengths = trawl_tests::witness::tshark(&file, &["frame.len"]);
        for size in ["100", "200", "300", "400"] {
            assert!(lengths.iter().any(|row| row[0] == size), "{tap}: {size}");
        }
    }
}
