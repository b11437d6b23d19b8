//! One program, observed at its entry and exit.

use trawl_lab::PairOptions;
use trawl_lab::program::{Does, Loaded};
use trawl_tests::pcapng::{Contents, Packet};
use trawl_tests::programs::Attached;
use trawl_tests::witness::{run, tshark};
use trawl_tests::{Capture, Lab, args, frames, tracing_or_skip};

use super::lab;

const FILE: &str = "traced";
const REWRITES: &str = "traced_rewrites_the_packet";

fn numbered(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|number| frames::numbered(number, 64)).collect()
}

fn bytes_of<'c>(packets: &[&'c Packet]) -> Vec<&'c [u8]> {
    packets.iter().map(|packet| &*packet.bytes).collect()
}

/// Checks that both ends of each packet have one identifier, which no other packet has.
#[track_caller]
fn assert_linked(entries: &[&Packet], exits: &[&Packet]) {
    assert_eq!(entries.len(), exits.len());
    let mut ids = Vec::new();
    for (entry, exit) in entries.iter().zip(exits) {
        assert!(entry.packet_id().is_some());
        assert_eq!(entry.packet_id(), exit.packet_id());
        assert!(entry.time <= exit.time);
        ids.push(entry.packet_id());
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), entries.len(), "identifiers are used once");
}

fn both_ends(attach: impl Fn(&Lab) -> Loaded, mode: &str) {
    let Some(lab) = lab() else { return };
    let _program = attach(&lab);
    let file = lab.file("file.pcapng");
    let sent = numbered(10);
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--at", "both", "-w", &file]);
    assert!(capture.said().contains("using tap xdp:"), "{}", capture.said());
    lab.send(&sent, 10);
    capture.wait_recorded(20);
    let summary = capture.stop_well();
    summary.assert_all_recorded(20);
    let hooks: Vec<(&str, &str, u64)> =
        summary.interfaces.iter().map(|one| (one.hook.as_str(), one.mode.as_str(), one.recorded)).collect();
    assert_eq!(hooks, [("xdp entry", mode, 10), ("xdp exit", mode, 10)]);
    let contents = Contents::read(&file);
    let (entries, exits) = (contents.of(0), contents.of(1));
    assert_eq!(bytes_of(&entries), sent);
    assert_eq!(bytes_of(&exits), sent);
    assert_linked(&entries, &exits);
    for (entry, exit) in entries.iter().zip(&exits) {
        assert_eq!((entry.verdict(), exit.verdict()), (None, Some((2, 1))));
        assert_eq!(entry.flags().map(|flags| flags & 3), Some(1));
        assert!(entry.queue().is_some_and(|queue| queue < 2));
    }
    let rows = tshark(&file, &["frame.verdict.ebpf_xdp", "frame.packet_id"]);
    assert_eq!(rows.len(), 20);
    contents.assert_in_time_order();
}

#[test]
fn a_dropping_program_is_seen_at_both_ends() {
    both_ends(|lab| Loaded::native(Does::Drop, &lab.pair.b).expect("the program"), "native");
}

#[test]
fn a_program_behind_the_driver_is_seen_at_both_ends() {
    both_ends(|lab| Loaded::skb(Does::Drop, &lab.pair.b).expect("the program"), "skb");
}

/// Returns the frames as the program leaves them, with an added tag before the moved rest.
fn rewritten(sent: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let tag = [0x81, 0x00, 0x00, 0x2a];
    let one = |frame: &Vec<u8>| [&frame[..12], &tag, &frame[12..]].concat();
    sent.iter().map(one).collect()
}

#[test]
fn rewriting_program_is_seen_with_packets_before_and_after() {
    let Some(lab) = lab() else { return };
    let _program = Attached::native(FILE, REWRITES, &lab.pair.b);
    let file = lab.file("file.pcapng");
    let sent = numbered(10);
    // A packet that matches at the entry is recorded at the exit, although the changed packet does not match.
    let filter = ["ether proto 0x88b5"];
    let fixed = ["-i", &lab.receiver(), "--at", "both", "-w", &file];
    let capture = Capture::start(&lab, &[&fixed[..], &filter].concat());
    lab.send(&sent, 10);
    lab.send(&[frames::udp(b"unwanted")], 5);
    capture.wait_seen(30);
    let summary = capture.stop_well();
    assert_eq!((summary.recorded, summary.filtered_out), (20, 10), "{summary:#?}");
    let contents = Contents::read(&file);
    let (entries, exits) = (contents.of(0), contents.of(1));
    assert_eq!(bytes_of(&entries), sent);
    assert_eq!(bytes_of(&exits), rewritten(&sent));
    assert_linked(&entries, &exits);
    assert!(exits.iter().all(|exit| exit.verdict() == Some((2, 2))));
}

#[test]
fn filters_apply_at_the_requested_end() {
    let Some(lab) = lab() else { return };
    let _program = Attached::native(FILE, REWRITES, &lab.pair.b);
    let sent = numbered(10);
    let cases: [(&[&str], &str, u64); 5] = [
        (&["--at", "exit"], "vlan 42", 10),
        (&["--at", "exit"], "ether proto 0x88b5", 0),
        (&["--at", "exit", "--filter-at", "entry"], "ether proto 0x88b5", 10),
        (&["--at", "exit", "--filter-at", "entry"], "vlan 42", 0),
        (&["--at", "entry"], "ether proto 0x88b5", 10),
    ];
    for (ends, filter, recorded) in cases {
        let file = lab.file("file.pcapng");
        let fixed = ["-i", &lab.receiver(), "-w", &file];
        let capture = Capture::start(&lab, &[&fixed, ends, &[filter]].concat());
        lab.send(&sent, 10);
        capture.wait_seen(10);
        let summary = capture.stop_well();
        let figures = (summary.seen, summary.recorded, summary.lost_total());
        assert_eq!(figures, (10, recorded, 0), "{ends:?} {filter}");
        assert_eq!(Contents::read(&file).packets.len() as u64, recorded);
    }
}

#[test]
fn redirecting_program_shows_its_target() {
    let Some(lab) = lab() else { return };
    let target = lab.pair.b.index;
    let mut frame = frames::silent(64);
    let file = lab.file("file.pcapng");

    frame[14] = target as u8;
    let program = Attached::native(FILE, "traced_redirects_by_helper", &lab.pair.b);
    let fixed = ["-i", &lab.receiver(), "-c", "1", "-w", &file];
    let capture = Capture::start(&lab, &[&fixed[..], &["--verdict", "redirect"]].concat());
    lab.send(std::slice::from_ref(&frame), 1);
    capture.wait().summary_of_success().assert_all_recorded(1);
    let said = tshark(&file, &["frame.verdict.ebpf_xdp", "frame.comment"]);
    assert_eq!(said, [["4", &format!("redirect to interface {target}")]]);
    drop(program);

    let program = Attached::native(FILE, "traced_redirects_by_map", &lab.pair.b);
    let map = program.map("traced_devices");
    let value = target.to_ne_bytes().map(|byte| byte.to_string());
    let id = map.to_string();
    let update = ["map", "update", "id", &id, "key", "3", "0", "0", "0", "value"];
    let namespace = format!("--net=/run/netns/{}", lab.pair.b.name);
    let values: Vec<&str> = value.iter().map(String::as_str).collect();
    run("nsenter", &[&[namespace.as_str(), "bpftool"], &update[..], &values].concat());
    frame[14] = 3;
    let capture = Capture::start(&lab, &fixed);
    lab.send(std::slice::from_ref(&frame), 1);
    capture.wait().summary_of_success().assert_all_recorded(1);
    let said = tshark(&file, &["frame.verdict.ebpf_xdp", "frame.comment"]);
    let words = format!("redirect to interface {target} (map {map}, key 3)");
    assert_eq!(said, [["4", &words]]);
}

#[test]
fn packets_in_several_pieces_are_whole_at_both_ends() {
    const LENGTHS: [usize; 7] = [64, 1514, 3700, 4097, 9014, 20_000, 60_000];
    if !tracing_or_skip() {
        return;
    }
    let options = PairOptions { mtu: 65_535, ..PairOptions::default() };
    let Some(lab) = Lab::with(options) else {
        return;
    };
    let _program = Loaded::native(Does::Drop, &lab.pair.b).expect("the program");
    let file = lab.file("file.pcapng");
    let sent: Vec<Vec<u8>> = LENGTHS.into_iter().map(frames::patterned).collect();
    let place = lab.receiver();
    let fixed = ["-i", &place, "--at", "both", "-w", &file];
    let capture = Capture::start(&lab, &fixed);
    lab.send_long(&sent);
    capture.wait_recorded(14);
    capture.stop_well().assert_all_recorded(14);
    let contents = Contents::read(&file);
    for end in 0..2 {
        for (packet, sent) in contents.of(end).iter().zip(&sent) {
            assert_eq!(packet.original as usize, sent.len());
            assert!(packet.bytes == *sent, "of {} bytes", sent.len());
        }
    }

    // Filters see the whole packet's length, and cutting keeps it.
    let capture = Capture::start(&lab, &[&fixed[..], &["-s", "5000", "greater", "4097"]].concat());
    lab.send_long(&sent);
    capture.wait_seen(14);
    let summary = capture.stop_well();
    assert_eq!((summary.recorded, summary.filtered_out), (8, 6));
    let contents = Contents::read(&file);
    let kept: Vec<(u32, usize)> = contents.of(1).iter().map(|packet| (packet.original, packet.bytes.len())).collect();
    assert_eq!(kept, [(4097, 4097), (9014, 5000), (20_000, 5000), (60_000, 5000)]);
    assert!(contents.of(1)[3].bytes[..] == sent[6][..5000]);
}

#[test]
fn a_count_is_exact_over_both_ends() {
    let Some(lab) = lab() else { return };
    let _program = Loaded::native(Does::Drop, &lab.pair.b).expect("the program");
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &args!("-i {} --at both -c 7 -w {file}", lab.receiver()));
    lab.send(&numbered(10), 100);
    assert_eq!(capture.wait().summary_of_success().recorded, 7);
    assert_eq!(Contents::read(&file).packets.len(), 7);
}

#[test]
fn sampling_includes_both_ends_of_a_packet() {
    let Some(lab) = lab() else { return };
    let _program = Loaded::native(Does::Drop, &lab.pair.b).expect("the program");
    let file = lab.file("file.pcapng");
    let fixed = ["-i", &lab.receiver(), "--at", "both", "-w", &file];
    let capture = Capture::start(&lab, &[&fixed[..], &["--sample-every", "10"]].concat());
    lab.send(&numbered(100), 100);
    capture.wait_seen(200);
    let summary = capture.stop_well();
    let contents = Contents::read(&file);
    assert_linked(&contents.of(0), &contents.of(1));
    assert_eq!(summary.seen, 200);
    assert!((20..=22).contains(&summary.recorded), "{summary:#?}");
}

/// If a program is attached to several interfaces, only packets of the chosen interface are recorded.
#[test]
fn other_interfaces_with_the_same_program_are_left_out() {
    let Some(lab) = lab() else { return };
    let program = Attached::native(FILE, "traced_drops_the_packet_one", &lab.pair.b);
    let Some(other) = Lab::open() else { return };
    let also = trawl_sys::netns::run_in(&other.pair.b.namespace, || {
        trawl_bpf::link::attach_xdp(program.program(), other.pair.b.index, trawl_sys::netlink::XdpMode::Native)
    });
    let _also = also.expect("the namespace").expect("an interface without a program");
    assert_eq!(lab.pair.b.index, other.pair.b.index, "namespaces number alike");
    let (file, both) = (lab.file("one.pcapng"), lab.file("both.pcapng"));
    let one = Capture::start(&lab, &["-Q", "in", "-i", &lab.receiver(), "-w", &file]);
    let (here, there) = (lab.receiver(), other.receiver());
    let two = Capture::start(&lab, &["-Q", "in", "-i", &here, "-i", &there, "-w", &both]);
    lab.send(&numbered(10), 10);
    other.send(&numbered(10), 20);
    two.wait_seen(30);
    one.wait_seen(10);
    one.stop_well().assert_all_recorded(10);
    let summary = two.stop_well();
    let each: Vec<u64> = summary.interfaces.iter().map(|one| one.recorded).collect();
    assert_eq!(each, [10, 20]);
}
