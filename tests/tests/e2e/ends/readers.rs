//! Readers of a capture's output that go away or do not read.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::nothing_attached;
use trawl_tests::{Capture, Lab, args, frames};

/// Maximum number of times that packets are sent to a capture that should end on its own.
const MAX_ROUNDS: usize = 10_000;

/// Checks that the capture ends after its reader has read some output and closed the pipe.
fn reader_goes(arguments: &[&str]) {
    let Some(lab) = Lab::open() else { return };
    let fixed = ["-i", &lab.receiver(), "--tap", "xdp"];
    let (capture, mut stdout) = Capture::start_piped(&lab, &[&fixed[..], arguments].concat());
    lab.send(&[frames::udp(b"hello")], 1);
    // The pcap header has this length, and a line is longer.
    stdout.read_exact(&mut [0; 24]).expect("something comes");
    drop(stdout);
    lab.send(&[frames::udp(b"hello")], 100);
    let finished = capture.wait();
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
    finished.summary();
    nothing_attached(&lab.pair.b);
}

#[test]
fn closed_pcapng_pipe_ends_the_capture() {
    reader_goes(&["-w", "-"]);
}

#[test]
fn closed_pcap_pipe_ends_the_capture() {
    reader_goes(&["--format", "pcap", "-w", "-"]);
}

#[test]
fn closed_pipe_of_lines_ends_the_capture() {
    reader_goes(&[]);
}

#[test]
fn stopped_reader_causes_no_silent_loss() {
    let Some(lab) = Lab::open() else { return };
    let fixed = args!("-i {} --tap xdp --ring-size 64KiB -w -", lab.receiver());
    let (capture, mut stdout) = Capture::start_piped(&lab, &fixed);
    // The packets are more than the pipe and the rings hold together.
    lab.send(&[frames::silent(1000)], 2_000);
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes)
    });
    capture.wait_seen(2_000);
    let summary = capture.stop_well();
    assert_eq!(summary.seen, 2_000);
    assert!(summary.lost_by("ring_full") > 0, "{summary:?}");
    let bytes = reader.join().expect("no panic").expect("the pipe");
    assert_eq!(Contents::parse(&bytes).packets.len() as u64, summary.recorded);
}

/// Checks that the capture ends although the pipe is never read.
fn ends_though_nobody_reads(arguments: &[&str], end: impl FnOnce(&Capture)) {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let fixed = ["-i", &place, "--tap", "xdp", "--ring-size", "64KiB"];
    let (capture, stdout) = Capture::start_piped(&lab, &[&fixed[..], arguments].concat());
    // The packets are more than the pipe and the rings hold together.
    for round in 1..=20 {
        lab.send(&[frames::silent(1000)], 40);
        capture.wait_seen(40 * round);
    }
    end(&capture);
    let finished = capture.wait();
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    let words = "standard output: its reader does not read";
    assert!(finished.stderr.contains(words), "{}", finished.stderr);
    let summary = finished.summary();
    assert_eq!(summary.seen, 800, "{summary:?}");
    assert!(summary.lost_by("not_read") > 0, "{summary:?}");
    nothing_attached(&lab.pair.b);
    drop(stdout);
}

#[test]
fn unread_pcapng_pipe_does_not_block_the_end() {
    ends_though_nobody_reads(&["-w", "-"], |capture| capture.signal(Signal::TERM));
}

#[test]
fn unread_pcap_pipe_does_not_block_the_end() {
    let arguments = ["--format", "pcap", "-w", "-"];
    ends_though_nobody_reads(&arguments, |capture| capture.signal(Signal::INT));
}

#[test]
fn unread_lines_do_not_block_the_end() {
    ends_though_nobody_reads(&["-X"], |capture| capture.signal(Signal::INT));
}

/// Packets arrive until the capture ends, so that the pipe is full at that time on a slow machine, too.
#[test]
fn unread_pipe_does_not_extend_the_duration() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let arguments = args!("-i {place} --tap xdp --ring-size 64KiB -w - --duration 5s");
    let (capture, stdout) = Capture::start_piped(&lab, &arguments);
    let has_ended = AtomicBool::new(false);
    let finished = std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..MAX_ROUNDS {
                if has_ended.load(Ordering::Relaxed) {
                    break;
                }
                lab.send(&[frames::silent(1000)], 40);
            }
        });
        let finished = capture.wait();
        has_ended.store(true, Ordering::Relaxed);
        finished
    });
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    let summary = finished.summary();
    assert!(summary.lost_by("not_read") > 0, "{summary:?}");
    nothing_attached(&lab.pair.b);
    drop(stdout);
}

/// A pipe that another process made non-blocking gets every packet.
#[test]
fn non_blocking_pipe_gets_every_packet() {
    let Some(lab) = Lab::open() else { return };
    let flags = rustix::pipe::PipeFlags::NONBLOCK | rustix::pipe::PipeFlags::CLOEXEC;
    let (reader, writer) = rustix::pipe::pipe_with(flags).expect("a pipe");
    let mut child = Command::new(trawl_tests::binary::path())
        .args(["capture", "-i", &lab.receiver(), "--tap", "xdp"])
        .args(["-c", "2000", "-w", "-"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .expect("trawl starts");
    let mut said = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let ready = said.any(|line| line.is_ok_and(|line| line.contains("capturing on")));
    assert!(ready, "it captures");
    lab.send(&[frames::silent(1000)], 2_000);
    rustix::io::ioctl_fionbio(&reader, false).expect("a pipe that blocks its reader");
    let mut bytes = Vec::new();
    let mut reader = std::fs::File::from(reader);
    reader.read_to_end(&mut bytes).expect("a pipe");
    assert!(child.wait().expect("a child").success());
    assert_eq!(Contents::parse(&bytes).packets.len(), 2_000);
}
