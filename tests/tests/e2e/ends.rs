//! How a capture ends: asked to, by itself, or because something went away. Nothing stays attached.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use trawl_kernel::bpf::map;
use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::Engine;
use trawl_tests::lab::send_from;
use trawl_tests::pcapng::Contents;
use trawl_tests::tiny::TinyDisk;
use trawl_tests::turn::heavy;
use trawl_tests::witness::{
    capinfos, is_loaded, nothing_attached, promiscuity, run, slots, tshark, wait_unloaded, xdp_on,
};
use trawl_tests::{Capture, Lab, frames, wait_until};

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
    // As after nohup: trawl, as all that is started there, goes on then.
    if is_ignored(Signal::HUP) {
        eprintln!("SKIPPED: hang-ups are ignored where these tests were started");
        return;
    }
    ends_well_by(Signal::HUP);
}

/// Whether this process, and so what it starts, ignores a signal.
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
    let arguments = [
        "-i",
        &lab.receiver(),
        "--tap",
        "tc",
        "--duration",
        "300ms",
        "-w",
        &file,
    ];
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
fn promiscuous_while_it_runs_unless_told_otherwise() {
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

/// The interface goes away in the middle.
fn interface_is_deleted(tap: &str) {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(
        &lab,
        &["-i", &lab.receiver(), "--tap", tap, "-Q", "in", "-w", &file],
    );
    lab.send(&[frames::silent(64)], 5);
    capture.wait_seen(5);
    run(
        "ip",
        &["-n", &lab.pair.b.name, "link", "del", &lab.pair.b.interface],
    );
    let finished = capture.wait();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let words = format!("the interface {} was removed", lab.receiver());
    let gone = finished.stderr.contains(&words)
        || finished
            .stderr
            .contains(&format!("the interface {} is gone", lab.receiver()));
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
    let capture = Capture::start(
        &one,
        &["-i", &one.receiver(), "-i", &other.receiver(), "-w", &file],
    );
    run(
        "ip",
        &["-n", &one.pair.b.name, "link", "del", &one.pair.b.interface],
    );
    capture.wait_said(&format!("the interface {}", one.receiver()));
    other.send(&[frames::silent(64)], 5);
    capture.wait_seen(5);
    let summary = capture.stop_well();
    summary.assert_all_recorded(5);
    assert_eq!(summary.interfaces[1].recorded, 5);
    nothing_attached(&other.pair.b);
}

/// The disk is full long before all was written.
fn disk_is_full(format: &str, arguments: &[&str]) {
    let Some(lab) = Lab::open() else { return };
    let _heavy = heavy();
    let disk = TinyDisk::mount(&lab, 512 << 10);
    let file = disk.path("file");
    let fixed = [
        "-i",
        &lab.receiver(),
        "--tap",
        "xdp",
        "--format",
        format,
        "-w",
        &file,
    ];
    let mut capture = Capture::start(&lab, &[&fixed[..], arguments].concat());
    // A small ring loses most of them: it takes a while until enough have arrived.
    wait_until("the disk is full", || {
        lab.send_from_two_cpus(&[frames::patterned(200)], 2_000);
        capture.has_ended()
    });
    let finished = capture.wait();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("No space left on device"),
        "{}",
        finished.stderr
    );
    assert!(finished.stderr.contains(&file), "{}", finished.stderr);
    // Adding up is checked of every summary.
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
fn a_disk_that_was_full_before() {
    let Some(lab) = Lab::open() else { return };
    let disk = TinyDisk::mount(&lab, 4096);
    std::fs::write(disk.path("other"), vec![0; 4096]).expect("room for one page");
    let file = disk.path("file");
    let finished = Capture::start(&lab, &["-i", &lab.receiver(), "-w", &file]).wait();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("No space left on device"),
        "{}",
        finished.stderr
    );
    finished.summary();
    nothing_attached(&lab.pair.b);
}

/// Kills the capture while packets come in.
fn killed(arguments: &[&str], program: Option<Does>) {
    let Some(lab) = Lab::open() else { return };
    let _heavy = heavy();
    let program = program.map(|does| Loaded::native(does, &lab.pair.b).expect("the program"));
    let file = lab.file("file.pcapng");
    let fixed = ["-i", &lab.receiver(), "-Q", "in", "-w", &file];
    let capture = Capture::start(&lab, &[&fixed[..], arguments].concat());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                send_from(
                    &lab.pair.a,
                    &[frames::patterned(200)],
                    5_000,
                    Engine::Live,
                    Some(0),
                    None,
                );
            }
        });
        wait_until("a megabyte is written", || {
            trawl_tests::witness::size_of(file.as_ref()) > 1 << 20
        });
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
fn killed_with_the_xdp_tap() {
    killed(&["--tap", "xdp"], None);
}

#[test]
fn killed_with_the_hook_tap() {
    killed(&["--tap", "hook"], Some(Does::DropWithHook));
}

#[test]
fn killed_with_the_tc_tap() {
    killed(&["--tap", "tc"], None);
}

#[test]
fn killed_with_the_packet_tap() {
    killed(&["--tap", "packet"], None);
}

#[test]
fn killed_with_the_old_format() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcap");
    let capture = Capture::start(
        &lab,
        &["-i", &lab.receiver(), "--format", "pcap", "-w", &file],
    );
    lab.send(&[frames::patterned(200)], 1_000);
    wait_until("all is written", || {
        trawl_tests::witness::size_of(file.as_ref()) >= 24 + 1_000 * 216
    });
    capture.kill();
    assert_eq!(tshark(&file, &["frame.len"]).len(), 1_000);
}

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

/// Issue 12 item 8: nobody reads what goes into the pipe, and the capture still ends.
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

/// Issue 12 item 25: another process made the pipe non-blocking.
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

/// Issue 12 item 25: what cannot be written is found before anything is attached.
#[test]
fn an_account_that_cannot_be_written() {
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

/// Issue 12 item 25: another process cuts the file.
#[test]
fn a_file_that_is_cut() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "-w", &file]);
    lab.send(&[frames::patterned(200)], 100);
    wait_until("some is written", || {
        trawl_tests::witness::size_of(file.as_ref()) > 200 * 100
    });
    std::fs::File::options()
        .write(true)
        .open(&file)
        .and_then(|file| file.set_len(100))
        .expect("it can be cut");
    let finished = capture.stop();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("another process cut it to 100"),
        "{}",
        finished.stderr
    );
    assert_eq!(trawl_tests::witness::size_of(file.as_ref()), 100);
}

/// Issue 12 item 25: the limit of a file's size ends a capture with an account.
#[test]
fn a_limit_of_file_size() {
    let Some(lab) = Lab::open() else { return };
    let (file, place) = (lab.file("file.pcapng"), lab.receiver());
    let trawl = trawl_tests::binary::path().display().to_string();
    let script = format!("ulimit -f 64; exec {trawl} capture -i {place} -w {file}");
    let mut child = Command::new("bash")
        .args(["-c", &script])
        .stderr(Stdio::piped())
        .spawn()
        .expect("bash runs");
    let mut said = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let ready = said.any(|line| line.is_ok_and(|line| line.contains("capturing on")));
    assert!(ready, "it captures");
    wait_until("the file is full", || {
        lab.send(&[frames::patterned(1000)], 20);
        child.try_wait().expect("a child").is_some()
    });
    assert_eq!(child.wait().expect("a child").code(), Some(1));
    let rest: Vec<String> = said.map_while(Result::ok).collect();
    assert!(
        rest.iter().any(|line| line.contains("file too large: ")),
        "{rest:?}"
    );
    assert!(tshark(&file, &["frame.len"]).len() > 10);
}

/// Issue 12 item 26: what others planted where anybody can write is not written to, and captures are private.
#[test]
fn planted_files() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let shared = lab.path("shared");
    std::fs::create_dir(&shared).expect("a directory");
    let open_to_all = std::fs::Permissions::from_mode(0o1777);
    std::fs::set_permissions(&shared, open_to_all).expect("its owner may");
    let (victim, link, theirs) = (
        lab.path("victim"),
        shared.join("link"),
        shared.join("theirs"),
    );
    std::fs::write(&victim, "precious").expect("a file");
    symlink(&victim, &link).expect("a link");
    std::fs::write(&theirs, "theirs").expect("a file");
    std::os::unix::fs::chown(&theirs, Some(65534), None).expect("root may");
    for (option, path) in [("-w", &link), ("-w", &theirs), ("--summary", &link)] {
        let path = path.to_str().expect("plain");
        let output =
            trawl_tests::trawl(&["capture", "-i", &place, option, path, "--duration", "1s"]);
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

/// Issue 12 item 14: without an XDP program there is no verdict but pass.
#[test]
fn a_verdict_that_nothing_gives_is_told() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(
        &lab,
        &["-i", &lab.receiver(), "--verdict", "drop", "-w", &file],
    );
    capture.wait_said("no XDP program is attached, so every packet passes");
    lab.send(&[frames::silent(64)], 3);
    capture.wait_seen(3);
    let summary = capture.stop_well();
    assert_eq!(Contents::read(&file).packets.len(), 0);
    assert_eq!(summary.ended, "signal");
}

/// Issue 12 item 22: on a terminal, a capture into a file shows what it has recorded.
#[test]
fn a_terminal_shows_a_live_line() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let command = format!(
        "{} capture -i {} --tap xdp -w {file} --duration 3s",
        trawl_tests::binary::path().display(),
        lab.receiver()
    );
    // It gives the command a terminal.
    let mut script = Command::new("script");
    script.args(["-qec", &command, "/dev/null"]);
    let output = script.stdin(Stdio::null()).output().expect("script runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    // It is written anew in its place.
    let mut lines = said.split("\r\x1b[K").skip(1).peekable();
    assert!(lines.peek().is_some(), "{said:?}");
    let words = [" recorded, ", " lost, ", " a second, file "];
    assert!(
        lines.all(|line| words.iter().all(|word| line.contains(word))),
        "{said:?}"
    );
}
