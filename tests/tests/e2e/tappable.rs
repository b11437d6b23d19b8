//! Programs loaded with `--tappable`: captures see both ends of them, and their behaviour does not change.

use trawl_bpf::info;
use trawl_sys::clock;
use trawl_tests::generator::{generate, received};
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{nothing_attached, tshark, xdp_on};
use trawl_tests::{Capture, Lab, args, frames, programs, trawl, wait_until};

/// Offset of the byte that the program `chosen` changes, and its new value.
const MARKED: usize = 17;
const MARK: u8 = 0xee;

/// Opens a lab with the program of that name on its receiving end.
fn lab_with(name: &str, arguments: &[&str]) -> Option<Lab> {
    let lab = Lab::open()?;
    load(&lab, name, arguments);
    Some(lab)
}

#[track_caller]
fn load(lab: &Lab, name: &str, arguments: &[&str]) {
    let file = lab.file(&format!("{name}.o"));
    std::fs::write(&file, programs::object(name)).expect("the object is written");
    let place = lab.receiver();
    let fixed = ["xdp", "load", &place, &file, "--tappable"];
    let output = trawl(&[&fixed[..], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[track_caller]
fn unload(lab: &Lab) {
    let output = trawl(&["xdp", "unload", &lab.receiver()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    nothing_attached(&lab.pair.b);
}

fn capture(lab: &Lab, arguments: &[&str]) -> (Capture, String) {
    let file = lab.file("file.pcapng");
    let place = lab.receiver();
    let fixed = ["-i", &place, "--tap", "tailcall", "-Q", "in", "-w", &file];
    (Capture::start(lab, &[&fixed[..], arguments].concat()), file)
}

#[test]
fn both_ends_with_verdict_and_one_identifier() {
    let Some(lab) = lab_with("chosen", &[]) else {
        return;
    };
    let (capture, file) = capture(&lab, &["--at", "both", "-c", "8"]);
    let actions: Vec<Vec<u8>> = (0..4).map(frames::choosing).collect();
    lab.send(&actions, 4);
    let summary = capture.wait().summary_of_success();
    summary.assert_all_recorded(8);
    let hooks: Vec<(&str, u64)> = summary.interfaces.iter().map(|one| (one.hook.as_str(), one.recorded)).collect();
    assert_eq!(hooks, [("xdp entry", 4), ("xdp exit", 4)]);

    let rows = tshark(&file, &["frame.interface_description", "frame.packet_id", "frame.verdict.ebpf_xdp"]);
    assert_eq!(rows.len(), 8);
    for (action, ends) in rows.chunks(2).enumerate() {
        assert!(ends[0][0].starts_with("xdp entry"), "{rows:?}");
        assert!(ends[1][0].starts_with("xdp exit"), "{rows:?}");
        assert_eq!(ends[0][1], ends[1][1], "{rows:?}");
        assert_eq!(ends[0][2], "", "{rows:?}");
        assert_eq!(ends[1][2], action.to_string(), "{rows:?}");
    }
    // The entry has the packet as received, and the exit has it as the program left it.
    let packets = Contents::read(&file).packets;
    for (ends, sent) in packets.chunks(2).zip(&actions) {
        assert_eq!(&ends[0].bytes, sent);
        let mut marked = sent.clone();
        marked[MARKED] = MARK;
        assert_eq!(ends[1].bytes, marked);
    }
    unload(&lab);
}

/// A capture that starts amid traffic finds unknown packets in flight.
#[test]
fn packets_in_flight_at_the_start_are_not_filtered_out() {
    let Some(lab) = lab_with("chosen", &[]) else {
        return;
    };
    let traffic = ["--engine", "live", "--rate", "50k", "--duration", "4s"];
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| generate(&lab, "udp", &traffic));
        wait_until("the traffic flows", || received(&lab) > 1000);
        while !sending.is_finished() {
            let (capture, _) = capture(&lab, &["--at", "both"]);
            let summary = capture.stop_well();
            assert_eq!(summary.filtered_out, 0);
        }
    });
    unload(&lab);
}

/// A filter that the kernel refuses is applied in user space to both sightings, and `--verdict` still delays the record
/// of an entry until its exit is known.
#[test]
fn refused_filter_applies_at_both_ends() {
    let Some(lab) = lab_with("chosen", &[]) else {
        return;
    };
    let pairs = (0..1_000).map(|n| {
        let host = format!("10.1.{}.{}", n / 250, n % 250 + 1);
        format!("(host {host} and port {n} and ip[4:2] = {})", 3000 + n)
    });
    // Frames of action 1 are dropped, and frames of action 2 pass. The filter matches the byte after the action.
    let wanted = format!("{} or ether[20] = 7", pairs.collect::<Vec<_>>().join(" or "));
    let expression = lab.file("expression");
    std::fs::write(&expression, wanted).expect("a file");
    let frame = |action: u16, byte: u8| {
        let mut frame = frames::choosing(action);
        frame[20] = byte;
        frame
    };
    let sent = [frame(1, 7), frame(1, 8), frame(2, 7), frame(2, 8)];
    for (more, recorded) in [(&[][..], 4), (&["--verdict", "drop"], 2)] {
        let (capture, file) = capture(&lab, &[&["--at", "both", "-F", &expression], more].concat());
        capture.wait_said("the kernel refuses this filter");
        lab.send(&sent, 4);
        capture.wait_seen(8);
        let summary = capture.stop_well();
        assert_eq!((summary.recorded, summary.lost_total()), (recorded, 0), "{more:?}");
        let rows = tshark(&file, &["frame.packet_id", "frame.verdict.ebpf_xdp"]);
        let verdicts: Vec<&str> = rows.iter().map(|row| row[1].as_str()).collect();
        let expected: &[&str] = if recorded == 4 { &["", "1", "", "2"] } else { &["", "1"] };
        assert_eq!(verdicts, expected, "{more:?}");
        assert_eq!(rows[0][0], rows[1][0], "both sightings have one identifier");
    }
    unload(&lab);
}

#[test]
fn filter_applies_to_the_packet_as_received() {
    let Some(lab) = lab_with("chosen", &[]) else {
        return;
    };
    let as_it_came = format!("ether[{MARKED}] != {MARK}");
    let as_it_left = format!("ether[{MARKED}] == {MARK}");
    for (arguments, filter, recorded) in [
        (&["--at", "both"][..], &as_it_came, 20),
        (&["--at", "both"], &as_it_left, 0),
        (&["--at", "entry"], &as_it_came, 10),
        (&["--at", "exit"], &as_it_left, 10),
        (&["--at", "exit"], &as_it_came, 0),
        (&["--at", "exit", "--filter-at", "entry"], &as_it_came, 10),
        (&["--at", "exit", "--filter-at", "entry"], &as_it_left, 0),
    ] {
        let (capture, _) = capture(&lab, &[arguments, &[filter.as_str()]].concat());
        lab.send(&[frames::choosing(1)], 10);
        let points = if arguments.contains(&"both") { 2 } else { 1 };
        capture.wait_seen(10 * points);
        let summary = capture.stop_well();
        assert_eq!((summary.seen, summary.recorded), (10 * points, recorded), "{arguments:?} {filter}");
    }
    unload(&lab);
}

#[test]
fn verdicts_are_chosen_at_the_exit() {
    let Some(lab) = lab_with("chosen", &[]) else {
        return;
    };
    let (capture, file) = capture(&lab, &["--at", "both", "--verdict", "drop,tx"]);
    let actions: Vec<Vec<u8>> = (0..4).map(frames::choosing).collect();
    lab.send(&actions, 40);
    capture.wait_seen(80);
    let summary = capture.stop_well();
    // The sighting at the entry waits for the verdict.
    assert_eq!((summary.recorded, summary.filtered_out), (40, 40));
    for point in &summary.interfaces {
        assert_eq!((point.seen, point.recorded), (40, 20), "{summary:?}");
    }
    let rows = tshark(&file, &["frame.verdict.ebpf_xdp"]);
    let count = |verdict: &str| rows.iter().filter(|row| row[0] == verdict).count();
    assert_eq!([count(""), count("1"), count("3")], [20, 10, 10]);
    for ends in Contents::read(&file).packets.chunks(2) {
        assert_eq!(ends[0].packet_id(), ends[1].packet_id());
    }
    unload(&lab);
}

/// `-c` counts sightings of packets with the verdict.
#[test]
fn count_includes_only_packets_with_the_verdict() {
    let Some(lab) = lab_with("chosen", &[]) else {
        return;
    };
    let wanted = ["--at", "both", "--verdict", "drop", "-c", "2"];
    let (capture, file) = capture(&lab, &wanted);
    let passed = frames::choosing(2);
    lab.send(&[passed], 10);
    lab.send(&[frames::choosing(1)], 1);
    let summary = capture.wait().summary_of_success();
    assert_eq!((summary.recorded, summary.filtered_out), (2, 20));
    let rows = tshark(&file, &["frame.verdict.ebpf_xdp"]);
    assert_eq!(rows, [[""], ["1"]]);
    unload(&lab);
}

#[test]
fn sample_and_rate_exclude_packets_at_both_ends() {
    let Some(lab) = lab_with("chosen", &[]) else {
        return;
    };
    for arguments in [["--sample", "1/4"], ["--sample-every", "4"], ["--limit-rate", "100"]] {
        let (capture, file) = capture(&lab, &[&["--at", "both"], &arguments[..]].concat());
        lab.send(&[frames::choosing(1)], 400);
        capture.wait_seen(800);
        let summary = capture.stop_well();
        let [entry, exit] = summary.interfaces.as_slice() else {
            panic!("{summary:?}");
        };
        assert_eq!((entry.seen, exit.seen), (400, 400), "{arguments:?}");
        assert_eq!(entry.recorded, exit.recorded, "{arguments:?}");
        assert!((1..400).contains(&entry.recorded), "{summary:?}");
        for ends in Contents::read(&file).packets.chunks(2) {
            assert_eq!(ends[0].packet_id(), ends[1].packet_id());
        }
    }
    unload(&lab);
}

#[test]
fn several_captures_at_both_ends() {
    let Some(lab) = lab_with("chosen", &[]) else {
        return;
    };
    let start = |at: &str| {
        let place = lab.receiver();
        let arguments = ["-i", &place, "--tap", "tailcall", "-Q", "in", "--at", at];
        Capture::start(&lab, &arguments)
    };
    let (both, exit, entry) = (start("both"), start("exit"), start("entry"));
    lab.send(&[frames::choosing(1)], 10);
    both.wait_recorded(20);
    exit.wait_recorded(10);
    entry.wait_recorded(10);
    // The first capture is in front, and the others see the packets that it passes on.
    both.stop_well().assert_all_recorded(20);
    lab.send(&[frames::choosing(1)], 10);
    exit.wait_recorded(20);
    entry.wait_recorded(20);
    let finished = exit.kill();
    assert!(!finished.status.success());
    lab.send(&[frames::choosing(1)], 10);
    entry.wait_recorded(30);
    entry.stop_well().assert_all_recorded(30);
    unload(&lab);
}

#[test]
fn killed_capture_leaves_the_program_running() {
    let Some(lab) = lab_with("chosen", &[]) else {
        return;
    };
    let before = xdp_on(&lab.pair.b).expect("the program");
    let (first, _) = capture(&lab, &["--at", "both"]);
    lab.send(&[frames::choosing(1)], 10);
    first.wait_recorded(20);
    first.kill();
    assert_eq!(xdp_on(&lab.pair.b).as_ref(), Some(&before));
    // The program still marks and drops, and another capture can start.
    let (second, file) = capture(&lab, &["--at", "both"]);
    lab.send(&[frames::choosing(1)], 10);
    second.wait_recorded(20);
    second.stop_well().assert_all_recorded(20);
    let marks = |packet: &trawl_tests::pcapng::Packet| packet.bytes[MARKED] == MARK;
    let packets = Contents::read(&file).packets;
    assert_eq!(packets.iter().filter(|packet| marks(packet)).count(), 10);
    unload(&lab);
}

#[test]
fn program_with_tail_calls_is_seen_at_its_end() {
    let Some(lab) = lab_with("tail_calls", &["--prog", "tail_calls"]) else {
        return;
    };
    let (capture, file) = capture(&lab, &["--at", "both"]);
    let sent = programs::tail_call_exits();
    let frames: Vec<Vec<u8>> = sent.iter().map(|(frame, _)| frame.clone()).collect();
    lab.send(&frames, sent.len() as u64);
    capture.wait_recorded(2 * sent.len() as u64);
    capture.stop_well();
    let rows = tshark(&file, &["frame.packet_id", "frame.verdict.ebpf_xdp"]);
    for (ends, (_, verdict)) in rows.chunks(2).zip(&sent) {
        assert_eq!(ends[0][0], ends[1][0], "{rows:?}");
        assert_eq!([&ends[0][1], &ends[1][1]], ["", &verdict.to_string()], "{rows:?}");
    }
    unload(&lab);
}

/// A program's tail calls to itself are not counted as new packets, and use none of a capture's jumps.
#[test]
fn program_that_jumps_back_is_entered_once() {
    let Some(lab) = lab_with("itself", &[]) else {
        return;
    };
    let (capture, file) = capture(&lab, &["--at", "both"]);
    // The first byte is the number of rounds, and the second one the verdict.
    let frame = |rounds: u8, verdict: u8| {
        let mut frame = frames::silent(64);
        frame[14] = rounds;
        frame[15] = verdict.wrapping_sub(rounds + 1);
        frame
    };
    let frames = [frame(0, 1), frame(3, 2), frame(19, 1)];
    lab.send(&frames, 3);
    capture.wait_recorded(6);
    capture.stop_well().assert_all_recorded(6);
    let rows = tshark(&file, &["frame.packet_id", "frame.verdict.ebpf_xdp"]);
    for (ends, verdict) in rows.chunks(2).zip(["1", "2", "1"]) {
        assert_eq!(ends[0][0], ends[1][0], "{rows:?}");
        assert_eq!([&ends[0][1], &ends[1][1]], ["", verdict], "{rows:?}");
    }
    unload(&lab);
}

#[test]
fn long_packets_are_seen_whole_at_both_ends() {
    let options = trawl_lab::PairOptions { mtu: 9000, ..trawl_lab::PairOptions::default() };
    let Some(lab) = Lab::with(options) else {
        return;
    };
    load(&lab, "chosen", &[]);
    let (capture, file) = capture(&lab, &["--at", "both", "-c", "8"]);
    let sent: Vec<Vec<u8>> = [1514, 4097, 8193, 9014].map(frames::patterned).into();
    lab.send_long(&sent);
    capture.wait().summary_of_success().assert_all_recorded(8);
    let packets = Contents::read(&file).packets;
    for (ends, sent) in packets.chunks(2).zip(&sent) {
        assert!(ends[0].bytes == *sent, "{} bytes", sent.len());
        let mut marked = sent.clone();
        marked[MARKED] = MARK;
        assert!(ends[1].bytes == marked, "{} bytes", sent.len());
    }
    unload(&lab);
}

/// Checks that a file begins with the offset that added to the monotonic clock gives the wall clock.
#[track_caller]
fn assert_has_offset(contents: &Contents) {
    let comment = contents.section.text(1).expect("a comment");
    let offset = comment.strip_prefix("monotonic-offset=").expect("an offset");
    let offset: u64 = offset.parse().expect("a number");
    let now = clock::wall().wrapping_sub(clock::monotonic());
    assert!(offset.abs_diff(now) < 1_000_000, "{comment}, now {now}");
}

/// Packets that fill the largest buffers of the interface, and short ones.
fn of_all_lengths() -> Vec<Vec<u8>> {
    [64, 1514, 4097, 9014].map(frames::patterned).into()
}

#[test]
fn recording_for_a_test_has_whole_packets_at_both_ends_with_clocks_and_tag() {
    let options = trawl_lab::PairOptions { mtu: 9000, ..trawl_lab::PairOptions::default() };
    let Some(lab) = Lab::with(options) else {
        return;
    };
    // The other end has the program without hooks.
    let plain = programs::Attached::native("chosen", "chosen", &lab.pair.a);
    let plain_tag = info::program(plain.program()).expect("a program").tag;
    load(&lab, "chosen", &[]);
    let files = lab.file("recording");
    std::fs::create_dir(&files).expect("a directory");
    for tap in ["auto", "tailcall"] {
        let place = lab.receiver();
        let capture = Capture::start(&lab, &args!("-i {place} --tap {tap} --for-test -c 8 -w {files}"));
        let sent = of_all_lengths();
        lab.send_long(&sent);
        capture.wait().summary_of_success().assert_all_recorded(8);
        let path = format!("{files}/packets_00001.pcapng");
        let contents = Contents::read(&path);
        assert_has_offset(&contents);
        let ends = ["xdp entry", "xdp exit"];
        for (interface, end) in contents.interfaces.iter().zip(ends) {
            assert!(interface.description().starts_with(end), "{interface:?}");
            let comment = interface.options.text(1).expect("a comment");
            assert!(comment.ends_with(&format!(" xdp_plain_tag={plain_tag}")), "{comment}, not {plain_tag}");
        }
        assert_eq!((contents.interfaces.len(), contents.packets.len()), (2, 8));
        for (ends, sent) in contents.packets.chunks(2).zip(&sent) {
            assert!(ends[0].bytes == *sent, "{} bytes", sent.len());
            assert_eq!((ends[0].interface, ends[1].interface), (0, 1));
            assert_eq!((ends[0].packet_id(), ends[1].bytes.len()), (ends[1].packet_id(), sent.len()));
            assert!(ends[0].packet_id().is_some() && ends[0].queue().is_some());
            assert!(ends[0].verdict().is_none() && ends[1].verdict().is_some());
        }
        std::fs::remove_file(&path).expect("a file");
    }
    unload(&lab);
}

#[test]
fn each_file_of_a_recording_for_a_test_has_the_offset() {
    let Some(lab) = lab_with("chosen", &[]) else {
        return;
    };
    let (place, file) = (lab.receiver(), lab.file("file.pcapng"));
    let capture = Capture::start(&lab, &args!("-i {place} --for-test -C 64KiB -W 3 -w {file}"));
    lab.send(&[frames::patterned(1000)], 200);
    capture.wait_recorded(400);
    capture.stop_well().assert_all_recorded(400);
    let latest: Vec<_> = (0..20).map(|number| lab.path(&format!("file_{number:05}.pcapng"))).collect();
    let kept: Vec<_> = latest.iter().filter(|path| path.exists()).collect();
    assert_eq!(kept.len(), 3, "{kept:?}");
    kept.into_iter().for_each(|path| assert_has_offset(&Contents::read(path)));
    unload(&lab);
}

/// A program lent hooks for the duration of a capture keeps the tag of its file in the recording.
#[test]
fn recording_with_lent_hooks_names_the_tag_of_the_file() {
    let Some(lab) = Lab::open() else { return };
    let object = programs::object_file(&lab, "chosen");
    let program = programs::Attached::native("chosen", "chosen", &lab.pair.b);
    let tag = info::program(program.program()).expect("a program").tag;
    let (place, file) = (lab.receiver(), lab.file("file.pcapng"));
    let arguments = args!("-i {place} --tappable {object} --for-test -c 2 --max-disk 1MiB -w {file}");
    let capture = Capture::start(&lab, &arguments);
    lab.send(&[frames::choosing(1)], 1);
    capture.wait().summary_of_success().assert_all_recorded(2);
    let contents = Contents::read(lab.path("file_00001.pcapng"));
    let comment = contents.interfaces[0].options.text(1).expect("a comment");
    assert!(comment.ends_with(&format!(" xdp_plain_tag={tag}")), "{comment}, not {tag}");
}

#[test]
fn inconsistent_options_are_refused() {
    let Some(lab) = lab_with("chosen", &[]) else {
        return;
    };
    for (arguments, words) in [
        (&["--at", "both", "--filter-at", "exit", "arp"][..], "leave out --filter-at"),
        (&["--at", "entry", "--verdict", "drop"], "--at exit"),
    ] {
        let place = lab.receiver();
        let fixed = ["capture", "-i", &place, "--tap", "tailcall"];
        let output = trawl(&[&fixed[..], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
    }
    unload(&lab);
}

/// Each program of a file gets hooks of its own kind: hooks for programs that accept packets in pieces do not fit
/// others.
#[test]
fn programs_of_both_kinds_load_from_one_file() {
    for (program, drops) in [("jumping", [50u8, 200]), ("in_pieces", [200, 0])] {
        let Some(lab) = lab_with("both_kinds", &["--prog", program]) else {
            return;
        };
        let (capture, _) = capture(&lab, &["--at", "both", "--verdict", "drop", "-c", "2"]);
        let mut frame = frames::silent(64);
        frame[14..16].copy_from_slice(&drops);
        lab.send(&[frame], 1);
        let summary = capture.wait().summary_of_success();
        let exits = summary.interfaces.iter().find(|one| one.hook == "xdp exit");
        assert_eq!(exits.map(|one| one.recorded), Some(1), "{program}");
        unload(&lab);
    }
}
