//! Ends of a capture: requested, by a limit, or because something went away. Nothing stays attached.

mod files;
mod readers;

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use trawl_bpf::map;

use trawl_lab::sender::Engine;
use trawl_tests::lab::send_from;
use trawl_tests::pcapng::Contents;
use trawl_tests::taps::{TAPS, Tap};
use trawl_tests::turn::heavy;
use trawl_tests::witness::{
    capinfos, is_loaded, nothing_attached, promiscuity, run, slots, tshark, wait_unloaded, xdp_on,
};
use trawl_tests::{Capture, Lab, args, frames, wait_until};

fn ends_well_by(signal: Signal) {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", "xdp", "-w", &file]);
    let (program, _) = xdp_on(&lab.pair.b).expect("trawl's program");
    assert!(is_loaded(program));
    lab.send(&[frames::silent(64)], 7);
    capture.wait_seen(7);
    capture.signal(signal);
    let summary = capture.wait().summary_of_success();
    summary.assert_all_recorded(7);
    assert_eq!(summary.ended, "signal");
    assert_eq!(Contents::read(&file).statistics.len(), 1);
    nothing_attached(&lab.pair.b);
    wait_unloaded(program);
}

#[test]
fn an_interrupt() {
    ends_well_by(Signal::INT);
}

#[test]
fn a_termination() {
    ends_well_by(Signal::TERM);
}

#[test]
fn a_hang_up() {
    // Under nohup, trawl inherits that hang-ups are ignored, and continues.
    if is_ignored(Signal::HUP) {
        eprintln!("SKIPPED: hang-ups are ignored where these tests were started");
        return;
    }
    ends_well_by(Signal::HUP);
}

/// Returns true if this process, and therefore its children, ignores a signal.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .expect("the signals that are ignored");
    mask & 1 << (signal.as_raw() - 1) != 0
}

#[test]
fn a_time_that_is_over() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let arguments = args!("-i {} --tap tc --duration 300ms -w {file}", lab.receiver());
    let summary = Capture::start(&lab, &arguments).wait().summary_of_success();
    assert_eq!(summary.ended, "duration");
    assert!(summary.seconds >= 0.3, "{summary:?}");
    nothing_attached(&lab.pair.b);
}

#[test]
fn each_tap_leaves_nothing_attached() {
    let Some(lab) = Lab::open() else { return };
    for tap in [
        &["--tap", "xdp"][..],
        &["--tap", "xdp", "--mode", "skb"],
        &["--tap", "xdp", "-Q", "inout"],
        &["--tap", "tc"],
        &["--tap", "packet"],
    ] {
        let capture = Capture::start(&lab, &[&["-i", &lab.receiver()][..], tap].concat());
        capture.stop_well();
        nothing_attached(&lab.pair.b);
        let capture = Capture::start(&lab, &[&["-i", &lab.receiver()][..], tap].concat());
        capture.kill();
        nothing_attached(&lab.pair.b);
    }
}

#[test]
fn promiscuous_mode_lasts_while_running_and_is_optional() {
    let Some(lab) = Lab::open() else { return };
    for tap in ["xdp", "tc", "packet"] {
        let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", tap]);
        assert_eq!(promiscuity(&lab.pair.b), 1, "{tap}");
        capture.stop_well();
        assert_eq!(promiscuity(&lab.pair.b), 0, "{tap}");
        let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", tap, "-p"]);
        assert_eq!(promiscuity(&lab.pair.b), 0, "{tap}");
        capture.stop_well();
    }
}

/// Deletes the interface during the capture.
fn interface_is_deleted(tap: &str) {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", tap, "-Q", "in", "-w", &file]);
    lab.send(&[frames::silent(64)], 5);
    capture.wait_seen(5);
    run("ip", &["-n", &lab.pair.b.name, "link", "del", &lab.pair.b.interface]);
    let finished = capture.wait();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let words = format!("the interface {} was removed", lab.receiver());
    let gone = finished.stderr.contains(&words)
        || finished.stderr.contains(&format!("the interface {} is gone", lab.receiver()));
    assert!(gone, "{}", finished.stderr);
    let summary = finished.summary();
    summary.assert_all_recorded(5);
    assert!(summary.ended.contains("interface"), "{summary:?}");
    let contents = Contents::read(&file);
    assert_eq!((contents.packets.len(), contents.statistics.len()), (5, 1));
    assert_eq!(tshark(&file, &["frame.len"]).len(), 5);
}

#[test]
fn an_interface_deleted_under_the_xdp_tap() {
    interface_is_deleted("xdp");
}

#[test]
fn an_interface_deleted_under_the_tc_tap() {
    interface_is_deleted("tc");
}

#[test]
fn an_interface_deleted_under_the_packet_tap() {
    interface_is_deleted("packet");
}

#[test]
fn one_of_two_interfaces_deleted() {
    let (Some(one), Some(other)) = (Lab::open(), Lab::open()) else {
        return;
    };
    let file = one.file("file.pcapng");
    let capture = Capture::start(&one, &args!("-i {} -i {} --tap xdp -w {file}", one.receiver(), other.receiver()));
    run("ip", &["-n", &one.pair.b.name, "link", "del", &one.pair.b.interface]);
    capture.wait_said(&format!("the interface {}", one.receiver()));
    other.send(&[frames::silent(64)], 5);
    capture.wait_seen(5);
    let summary = capture.stop_well();
    summary.assert_all_recorded(5);
    assert_eq!(summary.interfaces[1].recorded, 5);
    nothing_attached(&other.pair.b);
}

/// Kills the capture while packets arrive.
fn killed(lab: &Lab, tap: &Tap) {
    let program = tap.load(lab);
    let file = lab.file("file.pcapng");
    let fixed = ["-i", &lab.receiver(), "-Q", "in", "-w", &file];
    let capture = Capture::start(lab, &[&fixed[..], tap.options].concat());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                send_from(&lab.pair.a, &[frames::patterned(200)], 5_000, Engine::Live, Some(0), None);
            }
        });
        wait_until("a megabyte is written", || trawl_tests::witness::size_of(file.as_ref()) > 1 << 20);
        capture.kill();
        over.store(true, Ordering::Relaxed);
    });
    let rows = tshark(&file, &["frame.len"]);
    assert!(rows.len() > 1_000);
    assert_eq!(capinfos(&file, "Strict time order"), "True");
    assert_eq!(Contents::read(&file).packets.len(), rows.len());
    if let Some(program) = &program {
        let hook = map::info(program.hook().expect("a hook")).expect("a map");
        assert_eq!(slots(hook.id), []);
    } else {
        nothing_attached(&lab.pair.b);
    }
}

#[test]
fn killed_with_each_tap() {
    let Some(lab) = Lab::open() else { return };
    let _heavy = heavy();
    for tap in TAPS {
        killed(&lab, tap);
    }
}

#[test]
fn killed_with_the_old_format() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcap");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--format", "pcap", "-w", &file]);
    lab.send(&[frames::patterned(200)], 1_000);
    wait_until("all is written", || trawl_tests::witness::size_of(file.as_ref()) >= 24 + 1_000 * 216);
    capture.kill();
    assert_eq!(tshark(&file, &["frame.len"]).len(), 1_000);
}

/// Without an XDP program, pass is the only verdict.
#[test]
fn verdict_without_a_program_is_reported() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &args!("-i {} --tap xdp --verdict drop -w {file}", lab.receiver()));
    capture.wait_said("no XDP program is attached, so every packet passes");
    lab.send(&[frames::silent(64)], 3);
    capture.wait_seen(3);
    let summary = capture.stop_well();
    assert_eq!(Contents::read(&file).packets.len(), 0);
    assert_eq!(summary.ended, "signal");
}

/// On a terminal, a capture into a file shows its progress.
#[test]
fn terminal_shows_a_live_line() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let command = format!(
        "{} capture -i {} --tap xdp -w {file} --duration 3s",
        trawl_tests::binary::path().display(),
        lab.receiver()
    );
    // `script` gives the command a terminal.
    let mut script = Command::new("script");
    script.args(["-qec", &command, "/dev/null"]);
    let output = script.stdin(Stdio::null()).output().expect("script runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    // The line is rewritten in place.
    let mut lines = said.split("\r\x1b[K").skip(1).peekable();
    assert!(lines.peek().is_some(), "{said:?}");
    let words = [" recorded, ", " lost, ", " a second, file "];
    assert!(lines.all(|line| words.iter().all(|word| line.contains(word))), "{said:?}");
}
