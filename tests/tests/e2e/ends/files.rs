//! Captures whose file cannot be written: full disks, limits, other processes, and planted files.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use trawl_tests::tiny::TinyDisk;
use trawl_tests::turn::heavy;
use trawl_tests::witness::{nothing_attached, tshark};
use trawl_tests::{Capture, Lab, args, frames, wait_until};

/// Fills the disk long before all packets are written.
fn disk_is_full(format: &str, arguments: &[&str]) {
    let Some(lab) = Lab::open() else { return };
    let _heavy = heavy();
    let disk = TinyDisk::mount(&lab, 512 << 10);
    let file = disk.path("file");
    let fixed = args!("-i {} --tap xdp --format {format} -w {file}", lab.receiver());
    let mut capture = Capture::start(&lab, &[&fixed[..], arguments].concat());
    // A small ring loses most packets, so that many must be sent until enough are written.
    wait_until("the disk is full", || {
        lab.send_from_two_cpus(&[frames::patterned(200)], 2_000);
        capture.has_ended()
    });
    let finished = capture.wait();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("No space left on device"), "{}", finished.stderr);
    assert!(finished.stderr.contains(&file), "{}", finished.stderr);
    // Each parsed summary is checked to add up.
    let summary = finished.summary();
    assert!(summary.lost_by("disk_full") > 0, "{summary:?}");
    let rows = tshark(&file, &["frame.len"]);
    assert!(rows.len() > 1_000);
    assert_eq!(rows.len() as u64, summary.recorded, "{summary:?}");
    nothing_attached(&lab.pair.b);
}

#[test]
fn a_full_disk() {
    disk_is_full("pcapng", &[]);
}

#[test]
fn a_full_disk_and_the_old_format() {
    disk_is_full("pcap", &[]);
}

#[test]
fn a_full_disk_and_a_small_ring() {
    disk_is_full("pcapng", &["--ring-size", "64KiB"]);
}

#[test]
fn disk_full_from_the_start_ends_the_capture() {
    let Some(lab) = Lab::open() else { return };
    let disk = TinyDisk::mount(&lab, 4096);
    std::fs::write(disk.path("other"), vec![0; 4096]).expect("room for one page");
    let file = disk.path("file");
    let finished = Capture::start(&lab, &["-i", &lab.receiver(), "-w", &file]).wait();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("No space left on device"), "{}", finished.stderr);
    finished.summary();
    nothing_attached(&lab.pair.b);
}

/// An unwritable summary file is refused before anything is attached.
#[test]
fn unwritable_summary_is_refused() {
    let Some(lab) = Lab::open() else { return };
    let (place, file) = (lab.receiver(), lab.file("file.pcapng"));
    let nowhere = lab.file("missing/summary.json");
    for (summary, status) in [(nowhere.as_str(), 1), ("-", 2)] {
        let write = if summary == "-" { "-" } else { &file };
        let arguments = ["capture", "-i", &place, "-w", write, "--summary", summary];
        let output = trawl_tests::trawl(&arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(!said.contains("capturing on"), "{said}");
    }
    assert!(!lab.path("file.pcapng").exists());
}

/// A capture ends if another process cuts its file.
#[test]
fn cut_file_ends_the_capture() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "-w", &file]);
    lab.send(&[frames::patterned(200)], 100);
    wait_until("some is written", || trawl_tests::witness::size_of(file.as_ref()) > 200 * 100);
    std::fs::File::options().write(true).open(&file).and_then(|file| file.set_len(100)).expect("it can be cut");
    let finished = capture.stop();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("another process cut it to 100"), "{}", finished.stderr);
    // The file may have no whole block, because the section header, with the names of the processor and the kernel, can
    // be longer than 100 bytes.
    assert!(trawl_tests::witness::size_of(file.as_ref()) <= 100);
}

/// The file size limit ends a capture, which still writes its summary.
#[test]
fn file_size_limit_ends_the_capture() {
    let Some(lab) = Lab::open() else { return };
    let (file, place) = (lab.file("file.pcapng"), lab.receiver());
    let trawl = trawl_tests::binary::path().display().to_string();
    let script = format!("ulimit -f 64; exec {trawl} capture -i {place} -w {file}");
    let mut child = Command::new("bash").args(["-c", &script]).stderr(Stdio::piped()).spawn().expect("bash runs");
    let mut said = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let ready = said.any(|line| line.is_ok_and(|line| line.contains("capturing on")));
    assert!(ready, "it captures");
    wait_until("the file is full", || {
        lab.send(&[frames::patterned(1000)], 20);
        child.try_wait().expect("a child").is_some()
    });
    assert_eq!(child.wait().expect("a child").code(), Some(1));
    let rest: Vec<String> = said.map_while(Result::ok).collect();
    assert!(rest.iter().any(|line| line.contains("file too large: ")), "{rest:?}");
    assert!(tshark(&file, &["frame.len"]).len() > 10);
}

/// Planted files in a public directory are not written to, and captures are private.
#[test]
fn planted_files_are_not_written_to() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let shared = lab.path("shared");
    std::fs::create_dir(&shared).expect("a directory");
    let open_to_all = std::fs::Permissions::from_mode(0o1777);
    std::fs::set_permissions(&shared, open_to_all).expect("its owner may");
    let (victim, link, theirs) = (lab.path("victim"), shared.join("link"), shared.join("theirs"));
    std::fs::write(&victim, "precious").expect("a file");
    symlink(&victim, &link).expect("a link");
    std::fs::write(&theirs, "theirs").expect("a file");
    std::os::unix::fs::chown(&theirs, Some(65534), None).expect("root may");
    for (option, path) in [("-w", &link), ("-w", &theirs), ("--summary", &link)] {
        let path = path.to_str().expect("plain");
        let output = trawl_tests::trawl(&["capture", "-i", &place, option, path, "--duration", "1s"]);
        assert_eq!(output.status.code(), Some(1), "{option} {path}");
    }
    assert_eq!(std::fs::read(&victim).expect("the file"), b"precious");
    assert_eq!(std::fs::read(&theirs).expect("the file"), b"theirs");
    for (arguments, mode) in [(&[][..], 0o600), (&["--file-mode", "644"][..], 0o644)] {
        let file = lab.file(&format!("mode-{mode:o}"));
        let fixed = ["-i", &place, "-w", &file];
        Capture::start(&lab, &[&fixed[..], arguments].concat()).stop_well();
        let about = std::fs::metadata(&file).expect("the file");
        assert_eq!(about.mode() & 0o777, mode);
    }
}
