//! Series of files, compressed files, and commands run on finished files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::process::Signal;
use trawl_lab::sender::Engine;
use trawl_tests::lab::send_from;
use trawl_tests::pcapng::Contents;
use trawl_tests::turn::heavy;
use trawl_tests::witness::{capinfos, nothing_attached, output, packets_in, size_of, tshark};
use trawl_tests::{Capture, Lab, args, frames, tools_or_skip, trawl, wait_until};

/// Returns the files of a test's directory whose names begin like this, sorted by name.
fn files(lab: &Lab, prefix: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(lab.path("")).expect("a directory");
    let mut files: Vec<PathBuf> = all.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(prefix)
    });
    files.sort();
    files
}

/// Number of different frames, which are sent repeatedly in this order.
const ROUND: u32 = 1000;

fn numbered() -> Vec<Vec<u8>> {
    (0..ROUND).map(|number| frames::numbered(number, 64)).collect()
}

/// Checks that no packet is lost at a file boundary, and each file is valid on its own.
fn over_seams(arguments: &[&str], seams: usize) {
    const PACKETS: u64 = 250_000;
    let Some(lab) = Lab::open() else { return };
    let _heavy = heavy();
    let file = lab.file("part.pcapng");
    let receiver = lab.receiver();
    let fixed = ["-i", &receiver, "--tap", "xdp", "-w", &file, "-C", "128KiB"];
    let capture = Capture::start(&lab, &[&fixed[..], arguments].concat());
    let rate = Some(1_000_000);
    send_from(&lab.pair.a, &numbered(), PACKETS, Engine::Live, Some(0), rate);
    capture.wait_recorded(PACKETS);
    capture.stop_well().assert_all_recorded(PACKETS);
    let files = files(&lab, "part");
    assert!(files.len() > seams, "{} files", files.len());
    let mut next = 0;
    let mut delivered = 0;
    for path in &files {
        let contents = Contents::read(path);
        assert_eq!((contents.interfaces.len(), contents.statistics.len()), (1, 1));
        assert!(std::fs::metadata(path).expect("a file").len() <= 128 << 10);
        for packet in &contents.packets {
            assert_eq!(frames::number_of(&packet.bytes), next % ROUND, "{path:?}");
            next += 1;
        }
        contents.assert_statistics_begin_first();
        let delivered_here = contents.statistics[0].options.u64(8).expect("a count");
        assert_eq!(delivered_here, contents.packets.len() as u64);
        delivered += delivered_here;
    }
    assert_eq!((u64::from(next), delivered), (PACKETS, PACKETS));
    let name = files[files.len() / 2].display().to_string();
    assert_eq!(capinfos(&name, "Strict time order"), "True");
    nothing_attached(&lab.pair.b);
}

#[test]
#[ignore = "make test-long runs it"]
fn nothing_is_lost_over_two_hundred_seams() {
    over_seams(&[], 200);
}

#[test]
#[ignore = "make test-long runs it"]
fn nothing_is_lost_over_seams_of_sealed_files() {
    over_seams(&["--sealed"], 200);
}

#[test]
fn ring_of_files_keeps_the_latest_and_runs_a_command_for_each() {
    let Some(lab) = Lab::open() else { return };
    let script = lab.file("finished.sh");
    let list = lab.file("list");
    let text = format!("#!/bin/sh\necho \"$1\" >> {list}\n");
    std::fs::write(&script, text).expect("a script");
    output("chmod", &["+x", &script]);
    let file = lab.file("ring.pcapng");
    let receiver = lab.receiver();
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &file, "-C", "64KiB", "-W", "3", "-z", &script];
    let capture = Capture::start(&lab, &arguments);
    send_from(&lab.pair.a, &numbered(), 10_000, Engine::Live, Some(0), None);
    capture.wait_recorded(10_000);
    capture.stop_well().assert_all_recorded(10_000);
    let kept = files(&lab, "ring");
    assert_eq!(kept.len(), 3, "{kept:?}");
    let contents = kept.iter().map(Contents::read);
    contents.for_each(|contents| contents.assert_statistics_begin_first());
    let last = Contents::read(&kept[2]);
    let number = frames::number_of(&last.packets.last().expect("a packet").bytes);
    assert_eq!(number, ROUND - 1);
    let finished = std::fs::read_to_string(&list).expect("a list");
    assert!(finished.lines().count() > 10, "{finished}");
    assert_eq!(finished.lines().last(), kept[2].to_str());
}

#[test]
fn total_size_of_files_stays_below_a_limit() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("%Y-%m-%d.pcapng");
    let receiver = lab.receiver();
    let arguments = args!("-i {receiver} --tap xdp -w {file} -C 64KiB --max-disk 300KiB");
    let capture = Capture::start(&lab, &arguments);
    send_from(&lab.pair.a, &numbered(), 10_000, Engine::Live, Some(0), None);
    capture.wait_recorded(10_000);
    capture.stop_well().assert_all_recorded(10_000);
    let kept = files(&lab, "2");
    let sum: u64 = kept.iter().map(|path| std::fs::metadata(path).expect("a file").len()).sum();
    assert!(kept.len() >= 4 && sum <= 300 << 10, "{kept:?} of {sum} bytes");
}

/// The limit of the total size also applies without -C, for any number of files.
#[test]
fn total_size_limit_works_alone() {
    let Some(lab) = Lab::open() else { return };
    let (file, receiver) = (lab.file("file.pcapng"), lab.receiver());
    let arguments = args!("-i {receiver} --tap xdp -w {file} --max-disk 256KiB");
    let capture = Capture::start(&lab, &arguments);
    lab.send(&numbered(), 10_000);
    capture.wait_recorded(10_000);
    let blocks = |path: &PathBuf| std::fs::metadata(path).expect("a file").blocks() * 512;
    let in_use: u64 = files(&lab, "file").iter().map(blocks).sum();
    assert!(in_use <= 256 << 10, "{in_use} bytes");
    capture.stop_well().assert_all_recorded(10_000);
    let kept: u64 = files(&lab, "file").iter().map(|path| size_of(path)).sum();
    assert!((128 << 10..=256 << 10).contains(&kept), "{kept} bytes");
}

#[test]
fn files_named_like_the_series_stay() {
    let Some(lab) = Lab::open() else { return };
    let (file, receiver) = (lab.file("file.pcapng"), lab.receiver());
    std::fs::write(&file, "precious").expect("a file");
    let fixed = ["-i", &receiver, "--tap", "xdp", "-w", &file];
    for options in [&["-C", "1"][..], &["-G", "1"], &["--max-disk", "1MiB"]] {
        let capture = Capture::start(&lab, &[&fixed[..], options].concat());
        lab.send(&[frames::silent(64)], 1);
        capture.wait_recorded(1);
        capture.stop_well().assert_all_recorded(1);
        assert_eq!(std::fs::read(&file).expect("it is there"), b"precious");
        assert_eq!(Contents::read(lab.file("file_00001.pcapng")).packets.len(), 1);
    }
    // A killed capture has not changed the file, either.
    let sealed = Capture::start(&lab, &[&fixed[..], &["--sealed"]].concat());
    sealed.kill();
    assert_eq!(std::fs::read(&file).expect("it is there"), b"precious");
}

/// A directory's name may contain the time, and files of the same time are distinguished by a number.
#[test]
fn files_of_one_time_have_distinct_names() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let year = output("date", &["+%Y"]).stdout;
    let year = String::from_utf8_lossy(&year).trim().to_owned();
    std::fs::create_dir(lab.path(&year)).expect("a directory");
    let file = lab.file("%Y/of-%Y.pcapng");
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &file, "-G", "1"];
    let capture = Capture::start(&lab, &arguments);
    lab.send(&[frames::silent(64)], 1);
    capture.wait_recorded(1);
    wait_until("a second file has begun", || {
        lab.send(&[frames::silent(64)], 1);
        lab.path(&format!("{year}/of-{year}_00002.pcapng")).exists()
    });
    let recorded = capture.stop_well().recorded;
    let all = std::fs::read_dir(lab.path(&year)).expect("a directory");
    let in_files: usize = all.flatten().map(|entry| Contents::read(entry.path()).packets.len()).sum();
    assert_eq!(in_files as u64, recorded);
    // `trawl read` also writes to distinct names.
    let (first, again) = (lab.file(&format!("{year}/of-{year}.pcapng")), lab.file("again-%Y.pcapng"));
    let second = lab.file(&format!("{year}/of-{year}_00002.pcapng"));
    let read = trawl(&["read", &first, &second, "-w", &again, "-G", "1"]);
    assert!(read.status.success());
    // Statistics of the first file may precede packets of the second.
    let copied = files(&lab, "again").into_iter().map(|path| packets_in(&path.to_string_lossy()));
    let both = [first, second].map(|file| packets_in(&file));
    assert_eq!(copied.sum::<u64>(), both.iter().sum::<u64>());
}

#[test]
fn inconsistent_series_options_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let (file, receiver) = (lab.file("file.pcapng"), lab.receiver());
    for (options, said) in [
        (&["-w", &file, "--max-disk", "1"][..], "--max-disk"),
        (&["-w", &file, "-C", "4MiB", "--max-disk", "4MiB"], "smaller -C"),
        (&["-w", &file, "-C", "1", "-z", "gzip -9"], "without arguments"),
        (&["-w", "/dev/stdout", "--sealed"], "-w FILE"),
        (&["--max-disk", "1GiB"], "-w FILE"),
        (&["-C", "1"], "-w FILE"),
        (&["-w", "-", "-G", "1"], "-w FILE"),
        (&["-w", &file, "-C", "18446744073709551615"], "-C"),
    ] {
        let refused = trawl(&[&["capture", "-i", &receiver][..], options].concat());
        let shown = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{options:?}: {shown}");
        assert!(shown.contains(said), "{options:?}: {shown}");
    }
    assert!(files(&lab, "file").is_empty());
    // The names of a series would alter bytes that are not UTF-8.
    let name = OsStr::from_bytes(b"\xff.pcapng");
    let mut command = std::process::Command::new(trawl_tests::binary::path());
    command.args(["capture", "-i", &receiver, "-C", "1", "-w"]);
    let refused = command.arg(lab.path("").join(name)).output().expect("trawl runs");
    let shown = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{shown}");
    assert!(shown.contains("not UTF-8"), "{shown}");
}

/// The command on finished files belongs to the user and gets every signal. An interrupted capture does not wait for
/// it.
#[test]
fn hanging_command_delays_no_capture() {
    let Some(lab) = Lab::open() else { return };
    let (script, file, receiver) = (lab.file("hang.sh"), lab.file("file.pcapng"), lab.receiver());
    let process = lab.file("process");
    let text =
        format!("#!/bin/sh\necho $$ >{process}.new\nmv {process}.new {process}\nexec sleep 300 >/dev/null 2>&1\n");
    std::fs::write(&script, text).expect("a script");
    output("chmod", &["+x", &script]);
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &file, "--sealed", "-z", &script];
    let capture = Capture::start(&lab, &arguments);
    lab.send(&[frames::silent(64)], 5);
    capture.wait_recorded(5);
    capture.signal(Signal::INT);
    wait_until("the command runs", || PathBuf::from(&process).exists());
    capture.wait_said("waiting for 1 command of -z");
    capture.signal(Signal::INT);
    capture.wait().summary_of_success().assert_all_recorded(5);
    let process = std::fs::read_to_string(&process).expect("a number");
    let status = format!("/proc/{}/status", process.trim());
    let status = std::fs::read_to_string(status).expect("it runs");
    assert!(status.contains("SigBlk:\t0000000000000000"), "{status}");
    assert!(output("kill", &[process.trim()]).status.success());
}

#[test]
fn unused_signal_does_not_end_a_capture() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let capture = Capture::start(&lab, &["-i", &receiver, "--tap", "xdp"]);
    capture.signal(Signal::USR2);
    lab.send(&[frames::silent(64)], 5);
    capture.stop_well().assert_all_recorded(5);
}

/// Without the process that opens files, the capture stops at the first boundary, and reports it.
#[test]
fn series_fails_without_the_process_that_opens_files() {
    let Some(lab) = Lab::open() else { return };
    let (file, receiver) = (lab.file("file.pcapng"), lab.receiver());
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &file, "-C", "64KiB"];
    let capture = Capture::start(&lab, &arguments);
    let parent = capture.id().to_string();
    assert!(output("pkill", &["-KILL", "-P", &parent, "trawl-files"]).status.success());
    lab.send(&numbered(), 2_000);
    let finished = capture.wait();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("the process that opens files"), "{}", finished.stderr);
}

#[test]
fn sealed_file_is_renamed_once_finished() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let receiver = lab.receiver();
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &file, "--sealed"];
    let capture = Capture::start(&lab, &arguments);
    lab.send(&[frames::silent(64)], 5);
    capture.wait_recorded(5);
    assert!(!PathBuf::from(&file).exists());
    capture.stop_well().assert_all_recorded(5);
    assert_eq!(Contents::read(&file).packets.len(), 5);
    assert_eq!(files(&lab, "file").len(), 1);
}

#[test]
fn killed_series_ends_with_a_whole_packet() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("part.pcapng");
    let receiver = lab.receiver();
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &file, "-C", "1MiB"];
    let capture = Capture::start(&lab, &arguments);
    send_from(&lab.pair.a, &numbered(), 50_000, Engine::Live, Some(0), None);
    wait_until("some files are there", || files(&lab, "part").len() > 3);
    capture.kill();
    for path in files(&lab, "part") {
        let name = path.display().to_string();
        assert!(!tshark(&name, &["frame.len"]).is_empty(), "{name}");
    }
}

#[test]
fn compressed_files_unpack_to_the_recorded_packets() {
    if !tools_or_skip(&["gzip"]) {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    for (name, tool) in
        [("a.pcapng.gz", "gzip"), ("b.pcapng.zst", "zstd"), ("c.pcapng.lz4", "lz4"), ("d.pcap.gz", "gzip")]
    {
        let file = lab.file(name);
        let receiver = lab.receiver();
        let capture = Capture::start(&lab, &["-i", &receiver, "--tap", "xdp", "-w", &file]);
        send_from(&lab.pair.a, &numbered(), 5_000, Engine::Live, Some(0), None);
        capture.wait_recorded(5_000);
        capture.stop_well().assert_all_recorded(5_000);
        if !tools_or_skip(&[tool]) {
            continue;
        }
        let unpacked = output(tool, &["-d", "-c", &file]);
        assert!(unpacked.status.success(), "{name}: {unpacked:?}");
        let plain = lab.file("plain");
        std::fs::write(&plain, &unpacked.stdout).expect("a file");
        assert_eq!(tshark(&plain, &["frame.len"]).len(), 5_000, "{name}");
        assert!(std::fs::metadata(&file).expect("a file").len() < unpacked.stdout.len() as u64 / 2);
    }
}

#[test]
fn compressed_files_approximate_their_size() {
    let Some(lab) = Lab::open() else { return };
    for name in ["a.pcapng.gz", "b.pcap.gz"] {
        let count = 60_000;
        let (file, receiver) = (lab.file(name), lab.receiver());
        let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &file, "-C", "512KiB"];
        let capture = Capture::start(&lab, &arguments);
        send_from(&lab.pair.a, &numbered(), count, Engine::Live, Some(0), None);
        capture.wait_recorded(count);
        capture.stop_well().assert_all_recorded(count);
        let all = files(&lab, &name[..1]);
        let lengths: Vec<u64> = all.iter().map(|file| size_of(file)).collect();
        let (_, whole) = lengths.split_last().expect("files");
        assert!(!whole.is_empty(), "{lengths:?}");
        for length in whole {
            assert!((3 << 17..=4 << 17).contains(length), "{name}: {lengths:?}");
        }
        let packets = |file: &PathBuf| tshark(&file.display().to_string(), &["frame.len"]).len();
        assert_eq!(all.iter().map(packets).sum::<usize>(), count as usize);
    }
}
