//! Files that are written without the page cache.

use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use trawl_lab::sender::Engine;
use trawl_tests::lab::{Mounted, send_from};
use trawl_tests::pcapng::Contents;
use trawl_tests::turn::heavy;
use trawl_tests::witness::{capinfos, output, packets_in, run, size_of, tshark};
use trawl_tests::{Capture, Lab, args, frames, skip, tools_or_skip, trawl, wait_until};

/// Returns the number of a file's bytes in the page cache.
fn cached(file: &str) -> Option<u64> {
    let resident = output("fincore", &["--bytes", "--noheadings", "--output", "RES", file]);
    String::from_utf8_lossy(&resident.stdout).trim().parse().ok()
}

/// Records enough numbered frames to fill some segments of the ring.
fn record(io: &str, variable: (&str, &str), two_cpus: bool) -> Option<(Lab, String)> {
    const PACKETS: u64 = 60_000;
    let lab = Lab::open()?;
    let file = lab.file("file.pcapng");
    let receiver = lab.receiver();
    let arguments = ["-i", &receiver, "--tap", "xdp", "--io", io, "-w", &file];
    let capture = Capture::start_with(variable, &lab, &arguments);
    let frame = [frames::patterned(200)];
    let count = if two_cpus {
        lab.send_from_two_cpus(&frame, PACKETS / 2);
        PACKETS
    } else {
        send_from(&lab.pair.a, &frame, PACKETS, Engine::Live, Some(0), None);
        PACKETS
    };
    capture.wait_recorded(count);
    // Frames that arrive slowly are in the file at once.
    let before = size_of(file.as_ref());
    lab.send(&frame, 3);
    wait_until("slow packets are written", || size_of(file.as_ref()) > before);
    capture.stop_well().assert_all_recorded(count + 3);
    let contents = Contents::read(&file);
    assert_eq!(contents.packets.len() as u64, count + 3);
    assert!(contents.packets.iter().all(|packet| packet.bytes == frame[0]));
    contents.assert_in_time_order();
    Some((lab, file))
}

#[test]
fn each_io_mode_writes_a_file_that_all_tools_accept() {
    let _heavy = heavy();
    for (io, variable) in [
        ("direct", ("TRAWL_WITHOUT", "")),
        ("direct", ("TRAWL_WITHOUT", "io_uring")),
        ("buffered", ("TRAWL_WITHOUT", "")),
    ] {
        for two_cpus in [false, true] {
            let Some((_lab, file)) = record(io, variable, two_cpus) else {
                return;
            };
            assert_eq!(tshark(&file, &["frame.len"]).len(), 60_003);
            assert_eq!(capinfos(&file, "Strict time order"), "True");
            for (tool, arguments) in [
                ("tshark", &["-r", &file, "-q"][..]),
                ("capinfos", &["-c", &file]),
                ("tcpdump", &["-r", &file, "-w", "/dev/null"]),
            ] {
                let said = output(tool, arguments).stderr;
                let said = String::from_utf8_lossy(&said).into_owned();
                let odd = said
                    .lines()
                    .find(|line| !line.starts_with("Running as user") && !line.starts_with("reading from file"));
                assert_eq!(odd, None, "{tool}");
            }
        }
    }
}

#[test]
fn page_cache_stays_unchanged() {
    let Some((_lab, file)) = record("direct", ("TRAWL_WITHOUT", ""), false) else {
        return;
    };
    // The file has just been read into the cache, so another one is recorded.
    drop(file);
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let receiver = lab.receiver();
    let arguments = ["-i", &receiver, "--tap", "xdp", "--io", "direct", "-w", &file];
    let capture = Capture::start(&lab, &arguments);
    let frame = [frames::patterned(1500)];
    send_from(&lab.pair.a, &frame, 100_000, Engine::Live, Some(0), None);
    capture.wait_recorded(100_000);
    capture.stop_well().assert_all_recorded(100_000);
    let Some(cached) = cached(&file) else {
        return skip("fincore is not there");
    };
    let size = size_of(file.as_ref());
    assert!(size > 150_000_000, "{size}");
    assert!(cached < 8 << 20, "{cached} bytes of {size} are in the page cache");
}

#[test]
fn cut_file_ends_with_a_whole_packet() {
    ends_whole_when_cut("direct");
    ends_whole_when_cut("buffered");
}

fn ends_whole_when_cut(io: &str) {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let receiver = lab.receiver();
    let arguments = ["-i", &receiver, "--tap", "xdp", "--io", io, "-w", &file];
    let mut capture = Capture::start(&lab, &arguments);
    let frame = [frames::patterned(200)];
    send_from(&lab.pair.a, &frame, 20_000, Engine::Live, Some(0), None);
    capture.wait_recorded(20_000);
    wait_until("a megabyte is written", || size_of(file.as_ref()) > 1 << 20);
    let handle = std::fs::File::options().write(true).open(&file).expect("the file");
    handle.set_len(1_000_001).expect("cut");
    wait_until("the capture notices", || {
        lab.send(&frame, 10);
        capture.has_ended()
    });
    let finished = capture.wait();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("cut"), "{}", finished.stderr);
    let rows = tshark(&file, &["frame.len"]);
    assert!(rows.len() > 1_000, "{}", rows.len());
    assert_eq!(Contents::read(&file).packets.len(), rows.len());
    // The previous contents of the file count as lost.
    let summary = finished.summary();
    assert_eq!(summary.recorded, rows.len() as u64, "{summary:#?}");
    assert!(summary.lost_by("file_cut") > 10_000, "{summary:#?}");
}

/// The file is whole if all processes are killed at any moment, so that none is left to trim the file.
#[test]
fn file_is_whole_after_all_processes_are_killed() {
    let _heavy = heavy();
    for (round, two_cpus) in [(1, true), (4, true), (9, true), (4, false)] {
        let Some(lab) = Lab::open() else { return };
        let file = lab.file("file.pcapng");
        let receiver = lab.receiver();
        let arguments = ["-i", &receiver, "--tap", "xdp", "--io", "direct", "-w", &file];
        let capture = Capture::start(&lab, &arguments);
        let frame = [frames::patterned(1400)];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if two_cpus {
                    lab.send_from_two_cpus(&frame, 20_000);
                } else {
                    send_from(&lab.pair.a, &frame, 20_000, Engine::Live, Some(0), None);
                }
            });
            wait_until("some is written", || size_of(file.as_ref()) > round * 1_000_000);
            capture.kill_all();
        });
        // The reader also rejects an incomplete last block.
        let packets = Contents::read(&file).packets.len() as u64;
        assert!(packets > round * 600, "{packets}");
    }
}

/// A small file system on a block device in memory. Once the memory is sealed, the device reports errors.
struct Small {
    memory: std::os::fd::OwnedFd,
    undo: Vec<(&'static str, Vec<String>)>,
}

impl Small {
    fn mount(lab: &Lab, bytes: u64) -> Option<(Self, String)> {
        let at = lab.file("small");
        std::fs::create_dir(&at).expect("a directory");
        let memory = memfd_create("trawl-tests", MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&memory, bytes).expect("room");
        let image = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        run("mkfs.ext4", &args!("-q -O ^has_journal -E lazy_itable_init=1 {image}"));
        let made = output("losetup", &["--find", "--show", &image]);
        let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr);
            skip(&format!("no loop device: {}", why.trim()));
            return None;
        }
        let undo = vec![("losetup", vec!["--detach".to_owned(), device.clone()])];
        let mut small = Self { memory, undo };
        run("mount", &[&device, &at]);
        small.undo.push(("umount", vec![at.clone()]));
        Some((small, at))
    }

    /// Makes all further writes fail.
    fn breaks(&self) {
        fcntl_add_seals(&self.memory, SealFlags::WRITE).expect("sealed");
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        for (program, arguments) in self.undo.iter().rev() {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let _ = output(program, &arguments);
        }
    }
}

/// Records until the disk gives an error; the file is whole and all other packets are lost.
fn ends_with_a_whole_packet(way: &[&str], (name, disk): (&str, u64), first: u64, breaks: bool, reason: &str) {
    let Some(lab) = Lab::open() else { return };
    let Some((small, at)) = Small::mount(&lab, disk) else {
        return;
    };
    let file = format!("{at}/{name}");
    let receiver = lab.receiver();
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &file];
    let mut capture = Capture::start(&lab, &[&arguments[..], way].concat());
    let frame = [frames::patterned(1500)];
    lab.send(&frame, first);
    wait_until("they are written", || size_of(file.as_ref()) > first * 1_500);
    if breaks {
        // Data that is on the disk leaves the page cache.
        wait_until("the disk has most of them", || cached(&file).is_none_or(|bytes| bytes < first * 750));
        small.breaks();
    }
    wait_until("the disk gives an error", || {
        if !capture.has_ended() {
            lab.send(&frame, 2_000);
        }
        capture.has_ended()
    });
    let finished = capture.wait();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let summary = finished.summary();
    assert!(summary.lost_by(reason) > 0, "{summary:#?}");
    assert!(summary.recorded >= 1_000, "{summary:#?}");
    forget(&file);
    assert_eq!(tshark(&file, &["frame.len"]).len() as u64, summary.recorded);
}

/// Drops a file from the page cache: the next read shows the disk's data.
fn forget(file: &str) {
    let file = std::fs::File::open(file).expect("the file");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("forgotten");
}

#[test]
fn full_disk_ends_a_file_after_a_whole_packet() {
    if tools_or_skip(&["losetup", "mkfs.ext4"]) {
        let disk = ("file.pcapng", 24 << 20);
        ends_with_a_whole_packet(&["--io", "direct"], disk, 2_000, false, "disk_full");
    }
}

/// An I/O error ends the file after a whole packet. The page cache would still accept data that the disk cannot write.
#[test]
fn broken_disk_ends_a_file_after_a_whole_packet() {
    if !tools_or_skip(&["losetup", "mkfs.ext4"]) {
        return;
    }
    for (way, name, first) in [
        (&["--io", "direct"][..], "file.pcapng", 2_000),
        (&["--io", "buffered"], "file.pcapng", 20_000),
        (&[], "file.pcap", 20_000),
    ] {
        ends_with_a_whole_packet(way, (name, 256 << 20), first, true, "write_error");
    }
}

/// Data in the page cache at the end counts as recorded only once it is on the disk.
#[test]
fn disk_failure_behind_the_cache_is_noticed_at_the_end() {
    if !tools_or_skip(&["losetup", "mkfs.ext4"]) {
        return;
    }
    const PACKETS: u64 = 2_000;
    for (written, way, name) in [
        ("file.pcap", &[][..], "file.pcap"),
        ("file.pcapng", &["--io", "buffered"], "file.pcapng"),
        ("file.pcapng.zst", &[], "file.pcapng.zst"),
        ("file.pcap.gz", &[], "file.pcap.gz"),
        ("file.pcapng", &["-C", "10"], "file_00001.pcapng"),
        ("file.pcap", &["-C", "10"], "file_00001.pcap"),
    ] {
        let Some(lab) = Lab::open() else { return };
        let Some((small, at)) = Small::mount(&lab, 64 << 20) else {
            return;
        };
        let receiver = lab.receiver();
        let written = format!("{at}/{written}");
        let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &written];
        let capture = Capture::start(&lab, &[&arguments[..], way].concat());
        lab.send(&[frames::patterned(1500)], PACKETS);
        capture.wait_recorded(PACKETS);
        small.breaks();
        let finished = capture.stop();
        assert_eq!(finished.status.code(), Some(1), "{name}: {}", finished.stderr);
        let summary = finished.summary();
        let lost = summary.lost_by("write_error");
        assert!(lost > 0, "{name}: {summary:#?}");
        assert_eq!(summary.recorded + lost, PACKETS, "{name}");
        let file = format!("{at}/{name}");
        // An empty file of a series is removed.
        let left = Path::new(&file).exists().then(|| {
            forget(&file);
            packets_in(&file)
        });
        assert_eq!(left.unwrap_or(0), summary.recorded, "{name}");
    }
}

/// The capture reports a file system that refuses direct writes.
#[test]
fn file_system_without_direct_writes_is_reported() {
    let Some(lab) = Lab::open() else { return };
    let memory = Mounted::at(&lab, "ramfs", "mode=700");
    let receiver = lab.receiver();
    let (there, new) = (format!("{}/there.pcapng", memory.path), format!("{}/new.pcapng", memory.path));
    std::fs::write(&there, "precious").expect("written");
    for (file, series) in [(&there, &[][..]), (&new, &[]), (&new, &["-C", "1"])] {
        let fixed = ["capture", "-i", &receiver, "--tap", "xdp", "--io", "direct", "-w", file];
        let refused = trawl(&[&fixed[..], series].concat());
        assert_eq!(refused.status.code(), Some(1));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("cannot write directly to"), "{said}");
        assert!(said.contains("--io auto"), "{said}");
    }
    assert_eq!(std::fs::read(&there).expect("it is there"), b"precious");
    assert!(!Path::new(&new).exists());

    let why = "its file system does not support direct writes";
    let plain = "only uncompressed pcapng files";
    for (name, way, words) in [
        ("a.pcapng", &[][..], Some(why)),
        ("b.pcapng", &["-C", "1"], Some(why)),
        ("c.pcap", &[], Some(plain)),
        ("d.pcapng.zst", &[], Some(plain)),
        ("e.pcapng", &["--io", "buffered"], None),
    ] {
        let file = format!("{}/{name}", memory.path);
        let fixed = ["-i", &receiver, "--tap", "xdp", "-v", "-w", &file];
        let capture = Capture::start(&lab, &[&fixed[..], way].concat());
        lab.send(&[frames::patterned(100)], 10);
        capture.wait_recorded(10);
        let finished = capture.stop();
        let said = &finished.stderr;
        let is_right = words.map_or(!said.contains("page cache"), |words| said.contains(words));
        assert!(is_right, "{name}: {said}");
        finished.summary_of_success().assert_all_recorded(10);
    }
}
