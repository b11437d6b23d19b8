//! Triggers: packets are written only around events.

use std::io::Read;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use trawl_lab::program::{Does, Loaded};
use trawl_tests::lab::Mounted;
use trawl_tests::pcapng::Contents;
use trawl_tests::summary::Summary;
use trawl_tests::witness::{capinfos, nothing_attached, packets_in, tshark};
use trawl_tests::{Capture, Lab, args, frames, trawl, wait_until};

const ALWAYS: &str = "3600s";

fn numbered(range: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    range.map(|number| frames::numbered(number, 64)).collect()
}

/// Returns the comments of a file's packets, with the packets' positions.
fn comments(contents: &Contents) -> Vec<(usize, String)> {
    let packets = contents.packets.iter().enumerate();
    packets.filter_map(|(at, packet)| Some((at, packet.options.text(1)?))).collect()
}

fn triggers(summary: &Summary) -> (u64, u64) {
    let triggers = summary.triggers.as_ref().expect("the summary has triggers");
    let number = |key: &str| triggers[key].as_u64().expect("a number");
    (number("events"), number("during_others"))
}

#[test]
fn aborted_packet_writes_the_packets_before_and_after() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::ChosenWithHook, &lab.pair.b).expect("the program");
    let file = lab.file("aborted.pcapng");
    let receiver = lab.receiver();
    let capture = Capture::start(
        &lab,
        &args!(
            "-i {receiver} -w {file} --on-verdict aborted --pre-trigger {ALWAYS} \
             --post-trigger {ALWAYS}"
        ),
    );
    capture.wait_said("at most 64 MiB");
    let dropped = frames::choosing(1);
    lab.send(std::slice::from_ref(&dropped), 500);
    capture.wait_seen(500);
    assert_eq!(Contents::read(&file).packets.len(), 0, "before the event");
    lab.send(&[frames::choosing(0)], 1);
    capture.wait_said("trigger 1: a packet met the verdict ABORTED");
    lab.send(&[dropped], 300);
    capture.wait_seen(801);
    let summary = capture.stop_well();
    summary.assert_all_recorded(801);
    assert_eq!((summary.not_kept, triggers(&summary)), (0, (1, 0)));
    let contents = Contents::read(&file);
    contents.assert_in_time_order();
    let comments = comments(&contents);
    assert_eq!(comments.len(), 1, "{comments:?}");
    let (at, text) = &comments[0];
    assert_eq!(*at, 500);
    assert!(
        text.starts_with("trigger 1: a packet met the verdict ABORTED at 2") && text.contains("; 500 packets of "),
        "{text}"
    );
    let rows = tshark(&file, &["frame.number", "frame.comment"]);
    assert_eq!((rows[500][1].as_str(), rows[499][1].as_str()), (text.as_str(), ""));
}

#[test]
fn events_have_files_of_their_own_and_the_rest_is_not_kept() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("event.pcapng");
    let receiver = lab.receiver();
    let arguments = args!(
        "-i {receiver} --tap xdp -w {file} -W 2 --trigger 'ether[18:4] = 77 or \
         ether[18:4] = 120 or ether[18:4] = 150' --pre-trigger {ALWAYS} \
         --post-trigger 0s"
    );
    let capture = Capture::start(&lab, &arguments);
    lab.send(&numbered(0..200), 200);
    capture.wait_said("trigger 3: a packet matches 'ether[18:4] = 77");
    capture.wait_seen(200);
    let summary = capture.stop_well();
    let figures = (summary.seen, summary.recorded, summary.not_kept);
    assert_eq!(figures, (200, 151, 49), "{summary:#?}");
    assert_eq!(triggers(&summary), (3, 0));
    // -W 2 has removed the first file.
    assert!(!lab.path("event_00001.pcapng").exists() && !lab.path("event.pcapng").exists());
    for (name, wanted) in [("event_00002.pcapng", 78..121), ("event_00003.pcapng", 121..151)] {
        let name = lab.file(name);
        let contents = Contents::read(&name);
        let numbers: Vec<u32> = contents.frames().iter().map(|one| frames::number_of(one)).collect();
        assert_eq!(numbers, wanted.collect::<Vec<u32>>());
        let last = numbers.len() - 1;
        assert_eq!(comments(&contents)[0].0, last);
        assert_eq!(contents.statistics.len(), 1);
        assert_eq!(capinfos(&name, "Number of packets"), numbers.len().to_string());
    }
    nothing_attached(&lab.pair.b);
}

#[test]
fn signal_is_an_event_for_packets_of_two_cpus() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("signal.pcapng");
    let receiver = lab.receiver();
    let arguments = args!(
        "-i {receiver} --tap xdp -w {file} --on-signal --trigger-count 1 \
         --pre-trigger {ALWAYS} --post-trigger 1s"
    );
    let capture = Capture::start(&lab, &arguments);
    lab.send_from_two_cpus(&numbered(0..100), 20_000);
    capture.wait_seen(40_000);
    capture.signal(Signal::USR2);
    capture.wait_said("trigger 1: the signal SIGUSR2 arrived");
    lab.send(&numbered(0..100), 100);
    // The capture ends on its own after the time that follows its only event.
    let summary = capture.wait().summary_of_success();
    assert_eq!(summary.ended, "triggers");
    assert_eq!(summary.seen, summary.recorded + summary.not_kept);
    let contents = Contents::read(&file);
    assert_eq!(contents.packets.len() as u64, summary.recorded);
    assert!(summary.recorded >= 40_000, "{summary:#?}");
    contents.assert_in_time_order();
    assert_eq!(capinfos(&file, "Strict time order"), "True");
    let comments = comments(&contents);
    // On a busy machine, packets may arrive after the second that follows the signal.
    assert!(comments.len() <= 1 && comments.iter().all(|(at, _)| *at == 40_000), "{comments:?}");
}

/// Returns arguments that record one aborted packet, all packets before it, and packets of a short time after it.
fn around_aborted<'a>(interface: &'a str, file: &'a str) -> Vec<&'a str> {
    let event = ["--on-verdict", "aborted", "--trigger-count", "1"];
    let times = ["--pre-trigger", ALWAYS, "--post-trigger", "1s"];
    [&["-i", interface, "-w", file][..], &event, &times].concat()
}

/// Waits until the time after an earlier event has passed by the clock.
fn wait_until_it_is_over() {
    let began = Instant::now();
    wait_until("the time after the event is over by the clock", || began.elapsed() > Duration::from_millis(1100));
}

/// Packets that wait in memory while the reader is stopped still belong to the event.
#[test]
fn stopped_reader_keeps_the_packets_around_an_event() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::ChosenWithHook, &lab.pair.b).expect("the program");
    let (file, receiver) = (lab.file("stopped.pcapng"), lab.receiver());
    let capture = Capture::start(&lab, &around_aborted(&receiver, &file));
    capture.freeze();
    let all = [vec![frames::choosing(1); 500], vec![frames::choosing(0)], vec![frames::choosing(1); 50]];
    lab.send(&all.concat(), 551);
    wait_until_it_is_over();
    capture.thaw();
    let summary = capture.wait().summary_of_success();
    assert_eq!((summary.recorded, summary.not_kept), (551, 0));
    assert_eq!(comments(&Contents::read(&file))[0].0, 500);
}

/// A pipe's reader may read the packets before an event long after the event. None of the packets is discarded.
#[test]
fn pipe_that_is_read_late_gets_the_packets_around_an_event() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::ChosenWithHook, &lab.pair.b).expect("the program");
    let receiver = lab.receiver();
    let (capture, mut pipe) = Capture::start_piped(&lab, &around_aborted(&receiver, "-"));
    let all = [vec![frames::choosing(1); 3000], vec![frames::choosing(0)], vec![frames::choosing(1); 50]];
    lab.send(&all.concat(), 3051);
    wait_until_it_is_over();
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).expect("what was captured");
    let summary = capture.wait().summary_of_success();
    assert_eq!((summary.recorded, summary.not_kept), (3051, 0));
    let contents = Contents::parse(&bytes);
    assert_eq!(contents.packets.len(), 3051);
    assert_eq!(comments(&contents)[0].0, 3000);
}

/// An event right before the end of the capture counts.
#[test]
fn signal_right_before_the_end_is_an_event() {
    let Some(lab) = Lab::open() else { return };
    let (file, receiver) = (lab.file("last.pcapng"), lab.receiver());
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &file, "--on-signal"];
    let capture = Capture::start(&lab, &arguments);
    lab.send(&numbered(0..100), 100);
    capture.wait_seen(100);
    capture.signal(Signal::USR2);
    capture.signal(Signal::INT);
    let finished = capture.wait();
    assert!(finished.stderr.contains("trigger 1:"), "{}", finished.stderr);
    let summary = finished.summary_of_success();
    assert_eq!((summary.recorded, triggers(&summary)), (100, (1, 0)));
    assert_eq!(packets_in(&file), 100);
}

/// Packets before an event for which the disk has no space count as lost, not as "not kept".
#[test]
fn disk_too_small_for_the_packets_before_an_event_loses_them() {
    let Some(lab) = Lab::open() else { return };
    let small = Mounted::at(&lab, "tmpfs", "size=1m");
    for name in ["event.pcapng", "event.pcap"] {
        let (file, receiver) = (format!("{}/{name}", small.path), lab.receiver());
        let arguments = args!(
            "-i {receiver} --tap xdp -w {file} --trigger 'ether[18:4] = 20000' \
             --pre-trigger {ALWAYS}"
        );
        let mut capture = Capture::start(&lab, &arguments);
        lab.send(&numbered(0..20_001), 20_001);
        wait_until("the capture ends", || capture.has_ended());
        let finished = capture.wait();
        assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
        let summary = finished.summary();
        let lost = summary.lost_by("disk_full");
        assert!(summary.recorded > 0 && lost > 0, "{summary:#?}");
        assert_eq!(summary.recorded + lost + summary.not_kept, 20_001);
        assert_eq!(summary.not_kept, 0, "{summary:#?}");
        assert_eq!(packets_in(&file), summary.recorded);
        std::fs::remove_file(&file).expect("the file");
    }
}

#[test]
fn event_after_the_time_of_the_previous_one_is_another() {
    let Some(lab) = Lab::open() else { return };
    let (file, receiver) = (lab.file("three.pcapng"), lab.receiver());
    let arguments = args!(
        "-i {receiver} --tap xdp -w {file} --trigger 'ether[14] = 0 or \
         ether[14] = 1' --pre-trigger 0 --post-trigger 0 --trigger-count 3"
    );
    let capture = Capture::start(&lab, &arguments);
    lab.send(&[frames::choosing(0)], 50);
    let summary = capture.wait().summary_of_success();
    assert_eq!((summary.recorded, triggers(&summary)), (3, (3, 0)));
    assert_eq!(comments(&Contents::read(&file)).len(), 3);
}

/// Further events among the written packets are also marked.
#[test]
fn trigger_expression_sees_more_than_is_written() {
    let Some(lab) = Lab::open() else { return };
    let (file, pcap, receiver) = (lab.file("cut.pcapng"), lab.file("cut.pcap"), lab.receiver());
    let arguments = args!(
        "-i {receiver} --tap xdp -w {file} -w {pcap} -s 16 --trigger \
         'ether[18:4] = 7 or ether[18:4] = 9' --pre-trigger {ALWAYS} \
         --post-trigger {ALWAYS}"
    );
    let capture = Capture::start(&lab, &arguments);
    lab.send(&numbered(0..20), 20);
    capture.wait_seen(20);
    let summary = capture.stop_well();
    assert_eq!((summary.recorded, triggers(&summary)), (20, (1, 1)));
    let contents = Contents::read(&file);
    assert!(contents.packets.iter().all(|one| one.bytes.len() == 16));
    let marked: Vec<usize> = comments(&contents).iter().map(|(at, _)| *at).collect();
    assert_eq!(marked, [7, 9]);
    let lengths = tshark(&pcap, &["frame.cap_len", "frame.len"]);
    assert_eq!((lengths.len(), &lengths[0][..]), (20, &["16".to_owned(), "64".to_owned()][..]));
}

#[test]
fn dropped_packet_is_an_event() {
    let Some(lab) = Lab::open() else { return };
    let (file, receiver) = (lab.file("drop.pcapng"), lab.receiver());
    let arguments = args!(
        "-i {receiver} --tap drop -w {file} --trigger 'ether[18:4] = 7' \
         --pre-trigger {ALWAYS} --post-trigger {ALWAYS}"
    );
    let capture = Capture::start(&lab, &arguments);
    lab.send(&numbered(0..20), 20);
    capture.wait_said("trigger 1: a packet matches");
    capture.wait_seen(20);
    let summary = capture.stop_well();
    assert_eq!(triggers(&summary).0, 1);
    let rows = tshark(&file, &["frame.comment"]);
    assert_eq!(rows.iter().filter(|row| row[0].contains("trigger 1: ")).count(), 1, "{rows:?}");
}

#[test]
fn memory_for_packets_before_an_event_is_bounded() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("bounded.pcapng");
    let receiver = lab.receiver();
    let arguments = args!(
        "-i {receiver} --tap xdp -w {file} --trigger 'ether[18:4] = 0xffff' \
         --pre-trigger {ALWAYS} --trigger-memory 1MiB"
    );
    let capture = Capture::start(&lab, &arguments);
    lab.send(&numbered(0..1000), 50_000);
    capture.wait_seen(50_000);
    lab.send(&numbered(0xffff..0x10000), 1);
    capture.wait_said("(earlier ones did not fit into the memory)");
    let summary = capture.stop_well();
    let packet = 144;
    let limit = (1 << 20) / packet + 1;
    assert!(summary.recorded > limit / 8 * 7 && summary.recorded <= limit, "{summary:#?}");
    assert_eq!(summary.recorded + summary.not_kept, 50_001);
    let contents = Contents::read(&file);
    let numbers: Vec<u32> = contents.frames().iter().map(|one| frames::number_of(one)).collect();
    let (event, before) = numbers.split_last().expect("packets");
    assert_eq!(*event, 0xffff);
    assert!(before.windows(2).all(|two| two[1] == (two[0] + 1) % 1000));
    assert_eq!(before.last(), Some(&999));
}

#[test]
fn events_print_packets_as_well() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let arguments = args!("-i {receiver} --tap xdp --trigger 'ether[18:4] = 5' --post-trigger 0s");
    let capture = Capture::start(&lab, &arguments);
    lab.send(&numbered(0..10), 10);
    capture.wait_seen(10);
    capture.wait_printed(|text| text.matches("[xdp exit: PASS]").count() == 6);
    let finished = capture.stop();
    let summary = finished.summary_of_success();
    assert_eq!((summary.recorded, summary.not_kept), (6, 4));
    assert!(finished.stderr.contains("10 seen, 0 filtered out, 6 recorded, 4 not kept, 0 lost"));
}

#[test]
fn impossible_triggers_are_refused() {
    for (options, said) in [
        (["--trigger", ""], "matches every packet"),
        (["--pre-trigger", "-5s"], "above zero"),
        (["--pre-trigger", "0ss"], "not a unit of time"),
        (["--pre-trigger", "500000h"], "longer than"),
        (["--trigger-memory", "900TiB"], "are available"),
    ] {
        let fixed = ["capture", "-i", "lo", "--on-signal", "-w", "/dev/null"];
        let refused = trawl(&[&fixed[..], &options].concat());
        let shown = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{options:?}: {shown}");
        assert!(shown.contains(said), "{options:?}: {shown}");
    }
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    for (arguments, words) in [
        (&["--pre-trigger", "10s"][..], "no event is given"),
        (&["--on-verdict", "gone"], "--on-verdict"),
        (&["--on-verdict", "drop", "--meta", "none"], "--meta leaves verdicts out"),
        (&["--on-verdict", "drop", "--tap", "tc"], "no tap here sees the exit"),
        (
            &["--trigger", "udp prot 53"],
            "cannot use the trigger's expression: can't parse filter expression: syntax error\n  udp prot 53\n      ^^^^",
        ),
        (&["--on-signal", "-c", "3"], "--trigger-count N"),
        (&["--on-verdict", "drop", "--verdict", "aborted"], "no packet with it is recorded"),
        (&["--on-signal", "--trigger-memory", "1KiB"], "--trigger-memory 1MiB or more"),
    ] {
        let file = lab.file("refused.pcapng");
        let fixed = ["capture", "-i", &receiver, "-w", &file];
        let output = trawl(&[&fixed[..], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
        assert!(!lab.path("refused.pcapng").exists(), "{arguments:?}");
    }
    nothing_attached(&lab.pair.b);
}
