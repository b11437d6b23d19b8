//! The reader of what a capture writes goes away, or does not read.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::nothing_attached;
use trawl_tests::{Capture, Lab, frames};

/// The reader of the pipe has seen enough.
fn reader_goes(arguments: &[&str]) {
    let Some(lab) = Lab::open() else { return };
    let fixed = ["-i", &lab.receiver(), "--tap", "xdp"];
    let (capture, mut stdout) = Capture::start_piped(&lab, &[&fixed[..], arguments].concat());
    lab.send(&[frames::udp(b"hello")], 1);
    // The old format's header is that long; a line is longer.
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
fn a_reader_of_the_file_goes_away() {
    reader_goes(&["-w", "-"]);
}

#[test]
fn a_reader_of_the_old_format_goes_away() {
    reader_goes(&["--format", "pcap", "-w", "-"]);
}

#[test]
fn a_reader_of_the_lines_goes_away() {
    reader_goes(&[]);
}

#[test]
fn a_reader_that_stands_still_loses_nothing_silently() {
    let Some(lab) = Lab::open() else { return };
    let fixed = [
        "-i",
        &lab.receiver(),
        "--tap",
        "xdp",
        "--ring-size",
        "64KiB",
        "-w",
        "-",
    ];
    let (capture, mut stdout) = Capture::start_piped(&lab, &fixed);
    // More than the pipe and the rings hold together.
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
    assert_eq!(
        Contents::parse(&bytes).packets.len() as u64,
        summary.recorded
    );
}

/// Nobody reads what goes into the pipe, and the capture still ends.
fn ends_though_nobody_reads(arguments: &[&str], end: impl FnOnce(&Capture)) {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let fixed = ["-i", &place, "--tap", "xdp", "--ring-size", "64KiB"];
    let (capture, stdout) = Capture::start_piped(&lab, &[&fixed[..], arguments].concat());
    // More than the pipe and the rings hold together.
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
fn nobody_reads_the_pcapng() {
    ends_though_nobody_reads(&["-w", "-"], |capture| capture.signal(Signal::TERM));
}

#[test]
fn nobody_reads_the_pcap() {
    let arguments = ["--format", "pcap", "-w", "-"];
    ends_though_nobody_reads(&arguments, |capture| capture.signal(Signal::INT));
}

#[test]
fn nobody_reads_the_lines() {
    ends_though_nobody_reads(&["-X"], |capture| capture.signal(Signal::INT));
}

#[test]
fn nobody_reads_until_the_time_is_over() {
    ends_though_nobody_reads(&["-w", "-", "--duration", "5s"], |_| ());
}

/// Another process made the pipe non-blocking.
#[test]
fn a_pipe_that_is_non_blocking() {
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
