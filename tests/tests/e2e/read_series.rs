//! `trawl read -w` into several files, by size and by the packets' time, compressed or not.

use std::fs;
use std::path::{Path, PathBuf};

use trawl_packet::build::Template;
use trawl_packet::pcap;
use trawl_tests::bundled::{done, refused};
use trawl_tests::lab::Directory;
use trawl_tests::witness::{run, size_of};
use trawl_tests::{tools_or_skip, trawl};

const PACKETS: u64 = 5000;

/// Returns a pcap file with a packet every millisecond, of many lengths.
fn recording(directory: &Directory) -> String {
    let mut bytes = Vec::new();
    pcap::file_header(&mut bytes, 1, 0);
    for number in 0..PACKETS {
        let template = Template::new().ethernet([2; 6], [4; 6]);
        let ip = template.ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
        let length = (number * 7 % 900) as usize;
        let frame = ip.udp(number as u16, 9).payload(vec![1; length]).build();
        let time = 1_700_000_000_000_000_000 + number * 1_000_000;
        pcap::record(&mut bytes, time, &frame, frame.len() as u32);
    }
    let path = directory.path().join("all.pcap");
    fs::write(&path, bytes).expect("a file");
    path.to_str().expect("a plain path").to_owned()
}

/// Returns the files of a directory whose names begin like this, in order.
fn files(directory: &Directory, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.path()).expect("a directory");
    let is_its = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(prefix)
    };
    let mut found: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(is_its).collect();
    found.sort();
    found
}

/// Returns the number of packets by capinfos.
fn count(path: &Path) -> u64 {
    let said = run("capinfos", &["-Tmcr", path.to_str().expect("a plain path")]);
    let number = said.trim().rsplit(',').next().expect("a number");
    number.parse().unwrap_or_else(|_| panic!("{said}"))
}

fn port(path: &Path, first: bool) -> String {
    let path = path.to_str().expect("a plain path");
    let lines = done(&["read", "-t", path]);
    let line = if first { lines.lines().next() } else { lines.lines().last() };
    let line = line.expect("a packet");
    line.split([' ', '.']).nth(5).expect("a port").to_owned()
}

#[test]
fn packets_are_split_into_files_by_size_and_time() {
    if !tools_or_skip(&["capinfos"]) {
        return;
    }
    let directory = Directory::new();
    let all = recording(&directory);
    let to = |name: &str| directory.path().join(name).to_str().expect("plain").to_owned();
    for ending in ["pcap", "pcapng"] {
        done(&["read", &all, "-w", &to(&format!("size.{ending}")), "-C", "300KiB"]);
        let found = files(&directory, "size_");
        assert!(found.len() > 5, "{found:?}");
        assert_eq!(found.iter().map(|path| count(path)).sum::<u64>(), PACKETS);
        for path in &found {
            assert!(fs::metadata(path).expect("a file").len() <= 300 << 10);
        }
        // No packet is lost or duplicated at a file boundary.
        for pair in found.windows(2) {
            let (last, first) = (port(&pair[0], false), port(&pair[1], true));
            let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text}"));
            assert_eq!(number(&last) + 1, number(&first));
        }
        found.iter().for_each(|path| fs::remove_file(path).expect("it is there"));
        done(&["read", &all, "-w", &to(&format!("time.{ending}")), "-G", "2"]);
        let found = files(&directory, "time_");
        let counts: Vec<u64> = found.iter().map(|path| count(path)).collect();
        assert_eq!(counts, [2000, 2000, 1000]);
        found.iter().for_each(|path| fs::remove_file(path).expect("it is there"));
    }
}

#[test]
fn latest_files_stay_and_names_follow_the_packets() {
    if !tools_or_skip(&["capinfos"]) {
        return;
    }
    let directory = Directory::new();
    let all = recording(&directory);
    let to = |name: &str| directory.path().join(name).to_str().expect("plain").to_owned();
    done(&["read", &all, "-w", &to("ring.pcapng"), "-G", "1", "-W", "2"]);
    let found = files(&directory, "ring_");
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(port(&found[0], true), "3000");
    // Each second of the recording gets a file named after it. The interfaces of both files are the same, and are
    // joined.
    done(&["read", &all, &all, "-w", &to("at-%s.pcapng"), "-G", "1"]);
    let found = files(&directory, "at-");
    let names: Vec<_> = found.iter().map(|path| path.file_stem().expect("a name").to_string_lossy()).collect();
    let expected: Vec<String> = (0..5).map(|second| format!("at-{}", 1_700_000_000 + second)).collect();
    assert_eq!(names, expected);
    assert!(found.iter().all(|path| count(path) == 2000));
}

/// Impossible series are refused as by `trawl capture`, before anything is written.
#[test]
fn impossible_series_are_refused() {
    if !tools_or_skip(&["capinfos", "mkfifo"]) {
        return;
    }
    let directory = Directory::new();
    let all = recording(&directory);
    let to = |name: &str| {
        let path = directory.path().join(name);
        path.to_str().expect("plain").to_owned()
    };
    let (file, pipe) = (to("new.pcapng"), to("pipe_00001.pcapng"));
    run("mkfifo", &[&pipe]);
    for (arguments, status, words) in [
        (["-w", &file, "-z", "no-such-program"], 2, "no executable program has that name"),
        (["-w", &to("pipe.pcapng"), "-C", "1"], 1, "not a regular file"),
    ] {
        let refused = trawl(&[&["read", &all][..], &arguments].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(status), "{said}");
        assert!(said.contains(words), "{said}");
    }
    assert!(!directory.path().join("new.pcapng").exists());
}

#[test]
fn files_are_compressed_by_their_suffix() {
    let directory = Directory::new();
    let all = recording(&directory);
    let plain = done(&["read", &all]);
    let to = |name: &str| directory.path().join(name).to_str().expect("plain").to_owned();
    for (ending, tool) in [("zst", "zstd"), ("lz4", "lz4"), ("gz", "gzip")] {
        let one = to(&format!("one.pcapng.{ending}"));
        done(&["read", &all, "-w", &one]);
        assert_eq!(done(&["read", &one]), plain);
        if tools_or_skip(&[tool]) {
            run(tool, &["-q", "-t", &one]);
        }
        let series = to(&format!("series.pcap.{ending}"));
        done(&["read", &all, "-w", &series, "-C", "64KiB"]);
        let found = files(&directory, "series_");
        assert!(found.len() > 1, "{found:?}");
        let names: Vec<String> = found.iter().map(|path| path.to_str().expect("plain").to_owned()).collect();
        let words: Vec<&str> = std::iter::once("read").chain(names.iter().map(String::as_str)).collect();
        assert_eq!(done(&words), plain);
        found.iter().for_each(|path| fs::remove_file(path).expect("it is there"));
    }
    // An option requests compression if the suffix does not. A series cannot be written to a pipe.
    let asked = to("asked.pcapng");
    done(&["read", &all, "-w", &asked, "--compress", "zstd"]);
    assert_eq!(fs::read(&asked).expect("a file")[..4], [0x28, 0xb5, 0x2f, 0xfd]);
    refused(&["read", &all, "-w", "-", "-C", "1"], 2);
    // Without -w the packets are printed, as in tcpdump.
    assert_eq!(done(&["read", &all, "-C", "1"]), plain);
}

#[test]
fn reading_benchmark_compares_both_results() {
    if !tools_or_skip(&["tcpdump"]) {
        return;
    }
    let directory = Directory::new();
    let place = directory.path().to_str().expect("a plain path");
    let out = directory.path().join("results");
    let out = out.to_str().expect("a plain path");
    let options = ["--set", "megabytes=2", "--repeat", "1", "-o", out];
    let said = done(&[&["bench", "read", "--json", "--scratch", place][..], &options].concat());
    // The first line is the document, and the progress on standard error follows.
    let said = said.lines().next().expect("a document");
    let outcome: serde_json::Value = serde_json::from_str(said).expect("JSON");
    let outcome = &outcome["experiments"][0];
    // The test checks that the results are equal, and not the speed.
    assert_eq!(outcome["failures"], serde_json::json!([]), "{outcome}");
    let runs = outcome["runs"].as_array().expect("a list");
    assert_eq!(runs.len(), 6, "{outcome}");
    for task in ["rewrite, most match", "rewrite, 1 % matches"] {
        let made: Vec<_> = runs
            .iter()
            .filter(|run| run["series"].as_str().is_some_and(|name| name.ends_with(task)))
            .map(|run| &run["values"]["made"])
            .collect();
        assert!(made.len() == 2 && made[0] == made[1] && made[0].as_f64() > Some(24.0), "{outcome}");
    }
    let left = fs::read_dir(place).expect("a directory").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["results"]);
}

/// Returns a recording as long as many frames of a compressed file, with a packet of nearly incompressible data every
/// millisecond.
fn long_recording(directory: &Directory) -> String {
    let mut bytes = Vec::new();
    let mut noise = 1u64;
    pcap::file_header(&mut bytes, 1, 0);
    for number in 0..10_000 {
        let payload: Vec<u8> = (0..1000)
            .map(|_| {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (noise >> 56) as u8
            })
            .collect();
        let template = Template::new().ethernet([2; 6], [4; 6]);
        let ip = template.ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
        let frame = ip.udp(number as u16, 9).payload(payload).build();
        let time = 1_700_000_000_000_000_000 + number * 1_000_000;
        pcap::record(&mut bytes, time, &frame, frame.len() as u32);
    }
    let path = directory.path().join("long.pcap");
    fs::write(&path, bytes).expect("a file");
    path.to_str().expect("a plain path").to_owned()
}

#[test]
fn time_span_reads_its_frames_alone() {
    let directory = Directory::new();
    let all = long_recording(&directory);
    for ending in ["zst", "lz4", "gz"] {
        let packed = directory.path().join(format!("long.pcap.{ending}"));
        let packed = packed.to_str().expect("a plain path").to_owned();
        done(&["read", &all, "-w", &packed]);
        let span = ["read", &packed, "--from", "+8s", "--to", "+8100ms", "-tt"];
        let whole = done(&span);
        assert_eq!(whole.lines().count(), 100);
        // Damage in unread frames goes unnoticed.
        let mut bytes = fs::read(&packed).expect("a file");
        let third = bytes.len() / 3;
        bytes[third..third + 300_000].fill(0x55);
        fs::write(&packed, bytes).expect("a file");
        refused(&["read", &packed, "-w", "/dev/null"], 1);
        assert_eq!(done(&span), whole);
    }
}

#[test]
fn compressed_files_approximate_their_size() {
    let directory = Directory::new();
    let all = long_recording(&directory);
    let packed = directory.path().join("packed.pcapng.gz");
    let packed = packed.to_str().expect("a plain path");
    done(&["read", &all, "-w", packed, "-C", "1MiB"]);
    let found = files(&directory, "packed_");
    let lengths: Vec<u64> = found.iter().map(|file| size_of(file)).collect();
    let (_, whole) = lengths.split_last().expect("files");
    assert!(!whole.is_empty(), "{lengths:?}");
    for length in whole {
        assert!((3 << 18..=4 << 18).contains(length), "{lengths:?}");
    }
}
