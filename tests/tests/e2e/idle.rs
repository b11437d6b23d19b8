//! Captures without traffic: their wake-ups, the first packet after a silence, and memory that is given back.

use std::thread::sleep;
use std::time::{Duration, Instant};

use trawl_sys::process::wake_ups;
use trawl_tests::{Capture, Lab, args, frames};

#[test]
fn sleeping_captures_wake_up_twice_a_second() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let file = lab.file("file.pcapng");
    let written = |tap: &str| format!("-i {receiver} --tap {tap} -w {file} udp");
    for arguments in [written("tc"), written("xdp"), written("packet"), format!("-i {receiver} --tap tc udp")] {
        let capture = Capture::start(&lab, &args!("{arguments}"));
        lab.send(&[frames::silent(64)], 10);
        sleep(Duration::from_secs(1));
        let before = wake_ups(capture.id());
        let measured = Instant::now();
        sleep(Duration::from_secs(3));
        let rate = (wake_ups(capture.id()) - before) as f64 / measured.elapsed().as_secs_f64();
        // Each thread that reads packets may wake up now and then, too.
        assert!(rate < 10.0, "{arguments}: {rate} wake-ups per second");
        capture.stop_well();
    }
}

/// A sleeping capture is woken by a packet: it does not only look twice a second.
#[test]
fn first_packet_after_a_silence_is_shown_at_once() {
    const TIMES: usize = 9;
    let Some(lab) = Lab::open() else { return };
    for tap in ["tc", "xdp", "packet"] {
        let capture = Capture::start(&lab, &args!("-i {} --tap {tap} -Q in ether proto 0x88b5", lab.receiver()));
        let delay = |count: usize| {
            sleep(Duration::from_millis(600));
            let sent = Instant::now();
            lab.send(&[frames::silent(64)], 1);
            capture.wait_printed(|text| text.lines().count() >= count);
            sent.elapsed()
        };
        let mut delays: Vec<Duration> = (1..=TIMES).map(delay).collect();
        delays.sort_unstable();
        // On a busy machine, the sender, the capture and this test wait for a CPU. Without a bell, half of the packets would
        // wait for 250 ms or more, and hardly ever all three taps would be faster.
        assert!(delays[TIMES / 2] < Duration::from_millis(200), "{tap}: {delays:?}");
        capture.stop_well().assert_all_recorded(TIMES as u64);
    }
}

/// A pool that has grown for a burst gives its memory back after quiet minutes.
#[test]
#[ignore = "make test-long runs it"]
fn memory_of_a_burst_is_given_back() {
    const COUNT: u64 = 60_000;
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &args!("-v -i {} --tap xdp -w {file}", lab.receiver()));
    capture.freeze();
    lab.send(&[frames::patterned(1400)], COUNT);
    capture.thaw();
    capture.wait_recorded(COUNT);
    capture.wait_said("records have 128 MiB of memory now, and can have 256 MiB");
    let began = Instant::now();
    while !capture.said().contains("records have 16 MiB of memory now") {
        assert!(began.elapsed() < Duration::from_secs(400), "{}", capture.said());
        sleep(Duration::from_secs(1));
    }
    lab.send(&[frames::patterned(1400)], COUNT / 10);
    capture.wait_recorded(COUNT + COUNT / 10);
    capture.stop_well().assert_all_recorded(COUNT + COUNT / 10);
}
