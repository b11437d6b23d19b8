//! Time stamps: correct across a step of the wall clock, and labelled with their clock.

use std::time::{Duration, Instant, SystemTime};

use trawl_bpf::probe::kernel_is_at_least;
use trawl_packet::pcapng::block::blocks;
use trawl_packet::pcapng::note::ClockNote;
use trawl_sys::clock;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::output;
use trawl_tests::{Capture, Lab, args, frames, skip, trawl, wait_until};

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970")
}

/// Steps the wall clock, and restores it when dropped.
pub struct Step {
    wall: Duration,
    steady: Instant,
}

impl Step {
    /// Steps the clock. Returns `None` if that is not permitted.
    pub fn by(step: Duration) -> Option<Self> {
        let before = Self { wall: since_1970(), steady: Instant::now() };
        set_clock(before.wall + step).then_some(before)
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        set_clock(self.wall + self.steady.elapsed());
    }
}

/// Returns whether the wall clock belongs to the tests; reports that the test is skipped otherwise.
pub fn own_or_skip() -> bool {
    let is_own = std::env::var_os("TRAWL_TESTS_MACHINE").is_some();
    if !is_own {
        skip("it steps the wall clock: in the virtual machine only");
    }
    is_own
}

fn set_clock(time: Duration) -> bool {
    let text = format!("@{}.{:09}", time.as_secs(), time.subsec_nanos());
    output("date", &["-s", &text]).status.success()
}

/// Returns the offsets of the clocks in comments between packets, which follow steps of the wall clock.
fn offsets_in(file: &str) -> impl Iterator<Item = u64> {
    let bytes = std::fs::read(file).expect("a file");
    let notes = blocks(&bytes).filter_map(|block| ClockNote::from_block(&block));
    notes.map(|note| note.monotonic_offset).collect::<Vec<_>>().into_iter()
}

#[test]
fn time_stamps_follow_a_step_of_the_wall_clock() {
    if !own_or_skip() {
        return;
    }
    for tap in ["xdp", "tc", "packet"] {
        let Some(lab) = Lab::alone() else { return };
        let file = lab.file("file.pcapng");
        let arguments = ["-i", &lab.receiver(), "--tap", tap, "-Q", "in", "-w", &file];
        let capture = Capture::start(&lab, &arguments);
        let mut bounds = Vec::new();
        let mut sent = 0;
        let mut send = || {
            let before = since_1970().as_nanos() as u64;
            lab.send(&[frames::silent(64)], 1);
            sent += 1;
            capture.wait_recorded(sent);
            bounds.push(before..=since_1970().as_nanos() as u64);
        };
        send();
        let Some(step) = Step::by(Duration::from_secs(2)) else {
            return skip("the wall clock may not be set here");
        };
        let now = clock::wall() - clock::monotonic();
        send();
        let is_new = |offset: u64| offset.abs_diff(now) < 100_000_000;
        wait_until("the file has the new offset", || offsets_in(&file).any(is_new));
        drop(step);
        send();
        capture.stop_well().assert_all_recorded(3);
        let contents = Contents::read(&file);
        let is_offset = |text: &String| text.starts_with("monotonic-offset=");
        assert!(contents.remarks.iter().all(is_offset), "{:?}", contents.remarks);
        for (packet, bounds) in contents.packets.iter().zip(&bounds) {
            assert!(bounds.contains(&packet.time), "{tap}: {} is not in {bounds:?}", packet.time);
        }
        assert!(bounds[1].start() - bounds[0].start() >= 2_000_000_000, "the clock was set");
    }
}

#[test]
fn hardware_stamps_are_kept_apart_or_refused() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let place = lab.receiver();
    let arguments = ["-i", &place, "--tap", "xdp", "--time", "hw", "-c", "2", "-w", &file];
    let tried = trawl(&args!("capture -i {place} --tap xdp --time hw --duration 10ms"));
    if !tried.status.success() {
        let said = String::from_utf8_lossy(&tried.stderr);
        assert!(said.contains("hardware time stamps") && said.contains("--time hw"), "{said}");
        let is_dated = said.contains("older than Linux 6.3");
        assert_eq!(is_dated, !kernel_is_at_least(6, 3), "{said}");
        return;
    }
    let capture = Capture::start(&lab, &arguments);
    let before = since_1970().as_nanos() as u64;
    // A live frame has no hardware stamp, and one from the sender's stack may have one.
    lab.send(&[frames::silent(64)], 1);
    lab.send_long(&[frames::silent(64)]);
    let summary = capture.wait().summary_of_success();
    let after = since_1970().as_nanos() as u64;
    summary.assert_all_recorded(2);
    let contents = Contents::read(&file);
    let clocks: Vec<String> = contents.interfaces.iter().map(trawl_tests::pcapng::Interface::description).collect();
    assert_eq!(clocks.len(), 2, "{clocks:?}");
    assert!(clocks[0].contains("system clock") && clocks[1].contains("hardware clock"), "{clocks:?}");
    assert_eq!(contents.of(1).len() as u64, summary.interfaces[0].hardware_stamped);
    for packet in contents.of(0) {
        assert!((before..=after).contains(&packet.time), "{} is not in {before}..={after}", packet.time);
    }
    for packet in contents.of(1) {
        assert_ne!(packet.time, 0, "a stamp of zero is none");
    }
}
