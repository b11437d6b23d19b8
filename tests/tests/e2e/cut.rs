//! Files that another process cuts or removes while they are written, and limits of a file's size: the capture ends
//! with 1, and its recorded packets are in the file.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use trawl_tests::capture::Finished;
use trawl_tests::witness::{nothing_attached, packets_in, size_of};
use trawl_tests::{Capture, Lab, frames, trawl, wait_until};

/// Captures into a file, and damages it once it has this many bytes.
fn harmed(lab: &Lab, arguments: &[&str], watched: &str, enough: u64, harm: impl FnOnce()) -> Finished {
    let receiver = lab.receiver();
    let fixed = ["-i", &receiver, "--tap", "xdp"];
    let mut capture = Capture::start(lab, &[&fixed[..], arguments].concat());
    wait_until("enough is written", || {
        lab.send(&[frames::patterned(1000)], 100);
        size_of(watched.as_ref()) > enough
    });
    harm();
    // The capture notices the damage with or without further packets.
    wait_until("it is noticed", || capture.has_ended());
    let finished = capture.wait();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    nothing_attached(&lab.pair.b);
    finished
}

fn cut(file: &str, length: u64) {
    let file = std::fs::File::options().write(true).open(file);
    file.and_then(|file| file.set_len(length)).expect("it can be cut");
}

#[test]
fn cut_file_of_each_format_holds_the_counted_packets() {
    let Some(lab) = Lab::open() else { return };
    for (name, more) in [
        ("a.pcapng", &[][..]),
        ("b.pcapng", &["--io", "buffered"]),
        ("c.pcap", &[]),
        ("d.pcapng.zst", &[]),
        ("e.pcap.gz", &[]),
        ("f.pcapng.lz4", &[]),
    ] {
        let file = lab.file(name);
        for length in [100, 5000] {
            let arguments = [&["-w", &file][..], more].concat();
            let finished = harmed(&lab, &arguments, &file, 12_000, || cut(&file, length));
            // A block that is written at the same time may move the end again, so the reported length can differ.
            let reported = finished.stderr.contains("another process cut it to ");
            assert!(reported, "{name}: {}", finished.stderr);
            let summary = finished.summary();
            assert!(summary.lost_by("file_cut") > 0, "{name}: {summary:?}");
            assert_eq!(packets_in(&file), summary.recorded, "{name}: {summary:?}");
            std::fs::remove_file(&file).expect("the file");
        }
    }
}

#[test]
fn removed_file_is_reported() {
    let Some(lab) = Lab::open() else { return };
    for name in ["a.pcapng", "b.pcap", "c.pcapng.gz"] {
        let file = lab.file(name);
        let remove = || std::fs::remove_file(&file).expect("the file");
        let finished = harmed(&lab, &["-w", &file], &file, 5000, remove);
        assert!(finished.stderr.contains("another process removed it"), "{}", finished.stderr);
        assert_eq!(finished.summary().recorded, 0);
    }
}

#[test]
fn cut_file_of_a_series_ends_the_capture() {
    let Some(lab) = Lab::open() else { return };
    for (name, second) in [("a.pcapng", "a_00002.pcapng"), ("b.pcap", "b_00002.pcap")] {
        let (file, second) = (lab.file(name), lab.file(second));
        let arguments = ["-w", &file, "-C", "1"];
        let finished = harmed(&lab, &arguments, &second, 20_000, || cut(&second, 3000));
        assert!(finished.stderr.contains("another process cut it"), "{}", finished.stderr);
        let first = second.replace("00002", "00001");
        let summary = finished.summary();
        assert_eq!(packets_in(&first) + packets_in(&second), summary.recorded, "{summary:?}");
    }
}

#[test]
fn cut_second_file_ends_the_capture() {
    let Some(lab) = Lab::open() else { return };
    let (first, second) = (lab.file("a.pcapng"), lab.file("b.pcap"));
    let receiver = lab.receiver();
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &first, "-w", &second];
    let capture = Capture::start(&lab, &arguments);
    lab.send(&[frames::patterned(1000)], 100);
    wait_until("all is written", || size_of(second.as_ref()) > 100 * 1000);
    cut(&second, 3000);
    lab.send(&[frames::patterned(1000)], 10);
    capture.wait_recorded(110);
    let finished = capture.stop();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let summary = finished.summary();
    assert_eq!((summary.recorded, packets_in(&first)), (110, 110));
    let lost = summary.outputs[0]["lost"].as_u64().expect("a number");
    assert_eq!(packets_in(&second) + lost, 110, "{summary:?}");
}

/// The file size limit of a process (RLIMIT_FSIZE) ends captures in every file format.
#[test]
fn file_size_limit_ends_a_capture_of_each_format() {
    let Some(lab) = Lab::open() else { return };
    let binary = trawl_tests::binary::path().display().to_string();
    for (name, made, more) in [
        ("a.pcapng", "a.pcapng", ""),
        ("b.pcap", "b.pcap", ""),
        ("c.pcapng.gz", "c.pcapng.gz", ""),
        ("d.pcapng", "d_00001.pcapng", "-C 10"),
    ] {
        let (file, made, account) = (lab.file(name), lab.file(made), lab.file("account.json"));
        let place = lab.receiver();
        let script =
            format!("ulimit -f 64; exec {binary} capture -i {place} --tap xdp -w {file} {more} --summary {account}");
        let mut child = Command::new("bash").args(["-c", &script]).stderr(Stdio::piped()).spawn().expect("bash runs");
        let mut said = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        assert!(said.any(|line| line.is_ok_and(|line| line.contains("capturing on"))));
        let mut number = 0;
        wait_until("the file is full", || {
            // All frames differ, so that they stay long when compressed.
            let noise: Vec<Vec<u8>> = (0..20).map(|step| noise(20 * number + step)).collect();
            number += 1;
            lab.send(&noise, 20);
            child.try_wait().expect("a child").is_some()
        });
        assert_eq!(child.wait().expect("a child").code(), Some(1), "{name}");
        let rest: Vec<String> = said.map_while(Result::ok).collect();
        let is_reported = rest.iter().any(|line| line.contains("File too large; it ends after"));
        assert!(is_reported, "{name}: {rest:?}");
        let text = std::fs::read_to_string(&account).expect("the account is written");
        let account: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert!(account["lost"]["file_too_large"].as_u64() > Some(0), "{name}: {text}");
        assert_eq!(account["recorded"], packets_in(&made), "{name}: {text}");
    }
}

/// Returns an incompressible frame.
fn noise(number: u64) -> Vec<u8> {
    let mut frame = frames::silent(1000);
    let mut state = number + 1;
    for byte in frame.iter_mut().skip(14) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    frame
}

/// An unwritable summary file is refused before anything is attached.
#[test]
fn unwritable_summaries_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let directory = lab.file("directory");
    std::fs::create_dir(&directory).expect("a directory");
    for summary in [&directory, "/proc/nothing", &lab.file("missing/account.json")] {
        let refused = trawl(&["capture", "-i", &place, "--summary", summary]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(summary) && !said.contains("capturing on"), "{said}");
    }
    for mixed in [&["-w", "-"][..], &["--json"], &["-w", "/dev/stdout"], &["-w", "x", "-w", "-"]] {
        let summary = ["capture", "-i", &place, "--summary", "-"];
        let refused = trawl(&[&summary[..], mixed].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{mixed:?}: {said}");
        assert!(refused.stdout.is_empty(), "{mixed:?}");
    }
    nothing_attached(&lab.pair.b);
}
