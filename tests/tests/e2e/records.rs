//! Contents of a record, accuracy of its time, and memory usage of records.

use trawl_lab::sender::Engine;
use trawl_tests::bundled::done;
use trawl_tests::lab::send_from;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{capinfos, nothing_attached, size_of, tshark};
use trawl_tests::{Capture, Lab, args, frames, programs, trawl};

/// Returns the length of the first packet's block.
fn first_block(file: &str) -> usize {
    let bytes = std::fs::read(file).expect("a file");
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let mut at = 0;
    while word(at) != 6 {
        at += word(at + 4) as usize;
    }
    word(at + 4) as usize
}

#[test]
fn meta_selects_the_fields_of_each_packet() {
    let Some(lab) = Lab::open() else { return };
    for (tap, meta, max_length, expected) in [
        ("xdp", "full", 144, [true; 4]),
        ("xdp", "none", 100, [false; 4]),
        ("xdp", "id,verdict", 128, [false, false, true, true]),
        ("tc", "flags", 108, [true, false, false, false]),
        ("packet", "none", 100, [false; 4]),
        ("packet", "flags,queue,id", 128, [true, false, true, false]),
    ] {
        let file = lab.file("file.pcapng");
        let capture = Capture::start(&lab, &args!("-i {} --tap {tap} -Q in --meta {meta} -w {file}", lab.receiver()));
        lab.send(&[frames::silent(64)], 20);
        capture.wait_recorded(20);
        capture.stop_well().assert_all_recorded(20);
        let length = first_block(&file);
        assert!(length <= max_length, "{tap} {meta}: {length} bytes");
        for packet in &Contents::read(&file).packets {
            let has = [
                packet.flags().is_some(),
                // A packet socket does not report the queue.
                packet.queue().is_some() && tap != "packet",
                packet.packet_id().is_some(),
                packet.verdict().is_some(),
            ];
            assert_eq!(has, expected, "{tap} {meta}");
        }
        assert_eq!(tshark(&file, &["frame.len"]).len(), 20);
    }
}

#[test]
fn unknown_meta_value_is_refused() {
    let finished = trawl(&["capture", "-i", "lo", "--meta", "flags,colour"]);
    assert_eq!(finished.status.code(), Some(2));
    let said = String::from_utf8_lossy(&finished.stderr).into_owned();
    assert!(said.contains("colour"), "{said}");
}

#[test]
fn each_clock_mode_keeps_the_order_and_reports_its_error() {
    let Some(lab) = Lab::open() else { return };
    for tap in ["xdp", "tc"] {
        for way in ["auto", "precise", "poll"] {
            let file = lab.file("file.pcapng");
            let receiver = lab.receiver();
            let arguments = ["-i", &receiver, "--tap", tap, "-Q", "in", "--time", way];
            let capture = Capture::start(&lab, &[&arguments[..], &["-w", &file]].concat());
            lab.send_from_two_cpus(&[frames::silent(64)], 30_000);
            capture.wait_recorded(60_000);
            let summary = capture.stop_well();
            summary.assert_all_recorded(60_000);
            Contents::read(&file).assert_in_time_order();
            assert_eq!(capinfos(&file, "Strict time order"), "True");
            let point = &summary.interfaces[0];
            assert_eq!(point.time, way);
            let contents = Contents::read(&file);
            let described = contents.interfaces[0].description();
            let comment = contents.statistics[0].options.text(1);
            match way {
                "precise" => {
                    assert_eq!((point.time_error_max_ns, comment), (None, None));
                    assert!(!described.contains("poll"), "{described}");
                }
                _ => {
                    let error = point.time_error_max_ns.expect("an error").to_string();
                    assert!(comment.expect("words").contains(&error));
                    assert!(described.contains("poll"), "{described}");
                }
            }
        }
    }
}

#[test]
fn slow_traffic_is_stamped_exactly() {
    let Some(lab) = Lab::open() else { return };
    for way in ["auto", "poll"] {
        let file = lab.file("file.pcapng");
        let receiver = lab.receiver();
        let arguments = ["-i", &receiver, "--tap", "xdp", "--time", way, "-w", &file];
        let capture = Capture::start(&lab, &arguments);
        let mut bounds = Vec::new();
        for sent in 1..=10 {
            let before = trawl_sys::clock::wall();
            lab.send(&[frames::silent(64)], 1);
            capture.wait_recorded(sent);
            bounds.push(before..=trawl_sys::clock::wall());
        }
        capture.stop_well().assert_all_recorded(10);
        for (packet, bounds) in Contents::read(&file).packets.iter().zip(&bounds) {
            assert!(bounds.contains(&packet.time), "{} {bounds:?}", packet.time);
        }
    }
}

/// Returns the longest run of records whose stamps increase by one, for which the clock was not read.
fn longest_run_unread(contents: &Contents) -> usize {
    let times: Vec<u64> = contents.packets.iter().map(|packet| packet.time).collect();
    times.chunk_by(|one, next| next - one == 1).map(|run| run.len() - 1).max().unwrap_or(0)
}

#[test]
fn readings_of_the_clock_follow_the_traffic() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let record = |way: &str, count: u64| {
        let file = lab.file("file.pcapng");
        let arguments = ["-i", &place, "--tap", "tailcall", "--time", way, "-w", &file];
        let capture = Capture::start(&lab, &arguments);
        lab.send(&[frames::silent(64)], count);
        capture.wait_recorded(count);
        capture.stop_well().assert_all_recorded(count);
        Contents::read(&file)
    };
    // At full speed, `auto` reads the clock for at least one packet in 16, and `poll` once per batch of up to 64.
    done(&["xdp", "load", &place, "drop", "--tappable"]);
    assert!(longest_run_unread(&record("auto", 100_000)) < 16);
    assert!(longest_run_unread(&record("poll", 100_000)) > 16);
    assert_eq!(longest_run_unread(&record("precise", 100_000)), 0);
    done(&["xdp", "unload", &place]);
    // The program needs longer for each packet than the intended interval between two readings.
    let slow = programs::object_file(&lab, "slow");
    done(&["xdp", "load", &place, &slow, "--tappable"]);
    let mut contents = record("auto", 2_000);
    contents.packets.drain(..1_000);
    assert_eq!(longest_run_unread(&contents), 0);
    done(&["xdp", "unload", &place]);
}

#[test]
fn clock_is_read_for_each_packet_without_the_tracepoint() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let arguments = ["-i", &receiver, "--tap", "xdp", "-v"];
    let capture = Capture::start_without("napi_poll", &lab, &arguments);
    let said = capture.said();
    assert!(said.contains("the clock is read for each packet"), "{said}");
    let summary = capture.stop_well();
    assert_eq!(summary.interfaces[0].time, "precise");
}

#[test]
fn memory_is_independent_of_the_number_of_cpus() {
    const MIB: u64 = 1 << 20;
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let receiver = lab.receiver();
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &file];
    let capture = Capture::start_with(("TRAWL_CPUS", "256"), &lab, &arguments);
    send_from(&lab.pair.a, &[frames::patterned(1500)], 100_000, Engine::Live, None, None);
    capture.wait_recorded(100_000);
    let used = super::tools::memory_of(capture.id());
    assert!(used < 300 * MIB, "{} MiB", used / MIB);
    capture.stop_well().assert_all_recorded(100_000);
    assert!(size_of(file.as_ref()) > 100_000 * 1500);
    nothing_attached(&lab.pair.b);
}

/// One CPU's traffic may fill the whole pool while the reader is stopped.
#[test]
fn busy_cpu_may_use_all_memory_while_the_reader_stalls() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let receiver = lab.receiver();
    let arguments = ["-i", &receiver, "--tap", "xdp", "--memory", "64MiB", "-w", &file];
    let capture = Capture::start(&lab, &arguments);
    capture.freeze();
    // One CPU fills more than half of the pool.
    let count = (40 << 20) / 1_600;
    send_from(&lab.pair.a, &[frames::patterned(1500)], count, Engine::Live, Some(0), None);
    capture.thaw();
    capture.wait_recorded(count);
    capture.stop_well().assert_all_recorded(count);
}
