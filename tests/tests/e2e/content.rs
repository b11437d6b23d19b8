//! Contents of a pcapng file: about the machine, each interface, and each packet.

use trawl_lab::program::{Does, Loaded};
use trawl_tests::pcapng::Contents;
use trawl_tests::taps::{TAPS, Tap, XDP_IN_SKB_MODE};
use trawl_tests::witness::{capinfos, run, tshark, xdp_on};
use trawl_tests::{Capture, Lab, args, frames};

const FIELDS: [&str; 7] = [
    "frame.interface_name",
    "frame.interface_queue",
    "frame.packet_id",
    "frame.verdict.ebpf_xdp",
    "frame.packet_flags_direction",
    "frame.drop_count",
    "frame.len",
];

#[test]
fn tshark_shows_interface_queue_id_and_verdict_of_each_packet() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &args!("-i {} --tap xdp -c 5 -w {file}", lab.receiver()));
    let (_, mode) = xdp_on(&lab.pair.b).expect("trawl's program");
    assert_eq!(mode, "native");
    lab.send(&[frames::silent(64)], 5);
    capture.wait().summary_of_success().assert_all_recorded(5);

    let rows = tshark(&file, &FIELDS);
    assert_eq!(rows.len(), 5);
    let mut ids: Vec<&String> = rows.iter().map(|row| &row[2]).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 5, "{rows:?}");
    for row in &rows {
        assert_eq!(row[0], lab.receiver());
        assert!(row[1].parse::<u32>().is_ok_and(|queue| queue < 2), "{row:?}");
        assert_eq!(row[3..], ["2", "0x00000001", "", "64"], "{row:?}");
    }
}

#[test]
fn queue_is_the_receiving_one() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &args!("-i {} --tap xdp -c 20 -w {file}", lab.receiver()));
    lab.send_from_two_cpus(&[frames::silent(64)], 10);
    capture.wait().summary_of_success();
    let contents = Contents::read(&file);
    for queue in 0..2 {
        assert_eq!(contents.packets.iter().filter(|packet| packet.queue() == Some(queue)).count(), 10);
    }
}

#[test]
fn hook_records_each_verdict() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::ChosenWithHook, &lab.pair.b).expect("the program");
    let file = lab.file("file.pcapng");
    // By default, the hook is found through the attached program.
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "-c", "4", "-w", &file]);
    assert!(capture.said().contains("using tap tailcall and tc:"), "{}", capture.said());
    let actions: Vec<Vec<u8>> = (0..4).map(frames::choosing).collect();
    lab.send(&actions, 4);
    capture.wait().summary_of_success().assert_all_recorded(4);

    let rows = tshark(&file, &FIELDS);
    let verdicts: Vec<&str> = rows.iter().map(|row| row[3].as_str()).collect();
    assert_eq!(verdicts, ["0", "1", "2", "3"]);
    assert!(rows.iter().all(|row| row[0] == lab.receiver() && row[4] == "0x00000001"), "{rows:?}");
    assert!(rows.iter().all(|row| !row[1].is_empty() && !row[2].is_empty()), "{rows:?}");
    let contents = Contents::read(&file);
    assert_eq!(contents.frames(), actions);
}

#[test]
fn tc_records_direction_and_tc_verdicts() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    // One capture includes both ends: the frames that one end sends are received by the other.
    let places = ["-i", &lab.sender(), "-i", &lab.receiver()];
    let capture = Capture::start(&lab, &[&places[..], &["--tap", "tc", "-c", "4", "-w", &file]].concat());
    // A packet socket that bypasses the qdisc bypasses tc egress, too, so a datagram is sent, which passes both.
    let socket = trawl_sys::netns::run_in(&lab.pair.a.namespace, || {
        std::net::UdpSocket::bind((lab.pair.a.ipv4, 0)).expect("a socket")
    });
    let socket = socket.expect("the namespace can be entered");
    for _ in 0..2 {
        socket.send_to(b"hello", (lab.pair.b.ipv4, 9)).ok();
    }
    let summary = capture.wait().summary_of_success();
    assert_eq!(summary.recorded, 4);

    let rows = tshark(&file, &["frame.interface_name", "frame.packet_flags_direction", "frame.verdict.ebpf_tc"]);
    let of = |name: &str, way: &str| rows.iter().filter(|row| row[0] == name && row[1] == way).count();
    assert_ne!(of(&lab.sender(), "0x00000002"), 0, "{rows:?}");
    assert_ne!(of(&lab.receiver(), "0x00000001"), 0, "{rows:?}");
    for row in &rows {
        // The verdict is TC_ACT_UNSPEC, because trawl makes no decision.
        assert!(["-1", "18446744073709551615"].contains(&row[2].as_str()), "{row:?}");
    }
    capture_order(&file);
}

fn capture_order(file: &str) {
    assert_eq!(capinfos(file, "Strict time order"), "True");
}

/// Checks that the receiving side records frames of all kinds and lengths as sent, by this tap.
fn recorded_as_sent(lab: &Lab, tap: &Tap) {
    let _program = tap.load(lab);
    let file = lab.file("file.pcapng");
    let sent = frames::assorted();
    let count = sent.len().to_string();
    let fixed = ["-i", &lab.receiver(), "-Q", "in", "-c", &count, "-w", &file];
    let capture = Capture::start(lab, &[&fixed[..], tap.options].concat());
    lab.send(&sent, sent.len() as u64);
    capture.wait().summary_of_success().assert_all_recorded(sent.len() as u64);
    let contents = Contents::read(&file);
    for (packet, sent) in contents.packets.iter().zip(&sent) {
        assert_eq!(&packet.bytes, sent);
        assert_eq!(packet.original as usize, sent.len());
        assert_eq!(packet.flags().map(|flags| flags & 3), Some(1));
    }
    assert_eq!(contents.packets.len(), sent.len());
    // trawl's own reader finds the same bytes.
    let mut reader =
        trawl_packet::read::CaptureReader::new(std::fs::File::open(&file).expect("the file")).expect("pcapng");
    for sent in &sent {
        let packet = reader.next_packet().expect("sound").expect("as many as were sent");
        assert_eq!(packet.captured, sent);
    }
}

#[test]
fn each_tap_records_each_byte() {
    let Some(lab) = Lab::open() else { return };
    let linear = Tap { options: &["--tap", "tailcall"], program: Some(Does::DropLinearWithHook) };
    for tap in TAPS.iter().chain([&XDP_IN_SKB_MODE, &linear]) {
        recorded_as_sent(&lab, tap);
    }
}

#[test]
fn entry_and_exit_of_one_packet_share_their_id() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &args!("-i {} --tap xdp --at both -w {file}", lab.receiver()));
    let sent: Vec<Vec<u8>> = (0..10).map(|number| frames::numbered(number, 64)).collect();
    lab.send(&sent, 10);
    capture.wait_recorded(20);
    let summary = capture.stop_well();
    summary.assert_all_recorded(20);
    let hooks: Vec<(&str, u64)> = summary.interfaces.iter().map(|one| (one.hook.as_str(), one.recorded)).collect();
    assert_eq!(hooks, [("xdp entry", 10), ("xdp exit", 10)]);

    let contents = Contents::read(&file);
    assert_eq!(contents.interfaces.len(), 2);
    assert!(contents.interfaces[0].description().starts_with("xdp entry"), "{:?}", contents.interfaces);
    assert!(contents.interfaces[1].description().starts_with("xdp exit"), "{:?}", contents.interfaces);
    for (interface, end) in contents.interfaces.iter().zip(["xdp entry", "xdp exit"]) {
        assert_eq!(interface.name(), format!("{} ({end})", lab.receiver()));
    }
    contents.assert_statistics_begin_first();
    // Lines and JSON also report the interface of the packet's end.
    let shown = trawl_tests::trawl(&["read", "--jsonl", "-c", "1", "-i", &lab.receiver(), &file]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(&format!("\"interface\":\"{}\"", lab.receiver())), "{shown}");
    let (entries, exits) = (contents.of(0), contents.of(1));
    assert_eq!((entries.len(), exits.len()), (10, 10));
    for (entry, exit) in entries.iter().zip(&exits) {
        assert_eq!(entry.bytes, exit.bytes);
        assert!(entry.packet_id().is_some());
        assert_eq!(entry.packet_id(), exit.packet_id());
        assert_eq!((entry.verdict(), exit.verdict()), (None, Some((2, 2))));
        assert!(entry.time <= exit.time);
    }
    let rows = tshark(&file, &["frame.packet_id", "frame.interface_id", "frame.verdict.ebpf_xdp"]);
    assert_eq!(rows.len(), 20);
    capture_order(&file);
}

#[test]
fn the_file_describes_machine_and_interface() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", "xdp", "-w", &file]);
    capture.stop_well();
    let contents = Contents::read(&file);
    let kernel = run("uname", &["-r"]);
    assert!(!contents.section.text(2).expect("hardware").is_empty());
    assert!(contents.section.text(3).expect("operating system").contains(kernel.trim()));
    assert!(contents.section.text(4).expect("application").starts_with("trawl "));

    let [interface] = contents.interfaces.as_slice() else { panic!("{:?}", contents.interfaces) };
    assert_eq!((interface.link_type, interface.name()), (1, lab.receiver()));
    let description = interface.description();
    assert!(description.contains("xdp exit") && description.contains("native"), "{description}");
    assert!(description.contains("system clock"), "{description}");
    assert_eq!(interface.options.bytes(6), Some(&lab.pair.b.mac[..]));
    // A veth has a nominal speed of 10 Gbit/s.
    assert_eq!(interface.options.u64(8), Some(10_000_000_000));
    assert_eq!(interface.options.bytes(9), Some(&[9][..]));
    assert!(interface.options.text(12).expect("operating system").contains(kernel.trim()));
    assert!(interface.options.text(15).expect("hardware").starts_with("veth 1.0"));

    assert_eq!(capinfos(&file, "File timestamp precision"), "nanoseconds (9)");
    assert_eq!(capinfos(&file, "Operating system"), format!("Linux {}", kernel.trim()));
    assert_eq!(capinfos(&file, "Hardware"), "veth 1.0");
}

#[test]
fn statistics_of_each_interface_end_the_file() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::ChosenWithHook, &lab.pair.b).expect("the program");
    let file = lab.file("file.pcapng");
    let places = ["-i", &lab.receiver(), "-i", &lab.sender()];
    let capture =
        Capture::start(&lab, &[&places[..], &["--tap", "xdp", "--verdict", "drop,pass", "-w", &file]].concat());
    let actions: Vec<Vec<u8>> = (0..3).map(frames::choosing).collect();
    lab.send(&actions, 30);
    capture.wait_seen(30);
    let summary = capture.stop_well();
    assert_eq!((summary.seen, summary.filtered_out, summary.recorded), (30, 10, 20));

    let contents = Contents::read(&file);
    assert_eq!(contents.interfaces.len(), 2);
    let numbers: Vec<u32> = contents.statistics.iter().map(|one| one.interface).collect();
    assert_eq!(numbers, [0, 1]);
    let [receiver, sender] = contents.statistics.as_slice() else { panic!("{:?}", contents.statistics) };
    // The options' codes mean received, dropped, accepted by the filter, and delivered.
    let figures = |codes: [u16; 4], of: &trawl_tests::pcapng::Statistics| codes.map(|code| of.options.u64(code));
    assert_eq!(figures([4, 5, 6, 8], receiver), [Some(30), Some(0), Some(20), Some(20)]);
    assert_eq!(figures([4, 5, 6, 8], sender), [Some(0); 4]);
    for one in [receiver, sender] {
        let (start, end) = (one.options.time(2).expect("start"), one.options.time(3).expect("end"));
        assert!(start < end && one.time >= end, "{one:?}");
        assert!(contents.packets.iter().all(|packet| (start..=end).contains(&packet.time)));
    }
    // The filtered-out packets had XDP_ABORTED.
    assert!(contents.packets.iter().all(|packet| packet.verdict() != Some((2, 0))));
}

/// A filter that the verifier refuses is applied in user space.
#[test]
fn refused_filter_still_selects_packets() {
    let Some(lab) = Lab::open() else { return };
    let (file, place) = (lab.file("second.pcapng"), lab.receiver());
    let fixed = ["-i", &place, "--tap", "tc", "-Q", "in", "-w", &file];
    let filter = "host 10.0.0.1 and port 80 or protochain 50 or udp";
    let capture = Capture::start(&lab, &[&fixed[..], &["-c", "30", filter]].concat());
    lab.send(&[frames::echo_request(1), frames::udp(b"asked for")], 60);
    let summary = capture.wait().summary_of_success();
    assert_eq!(summary.recorded, 30, "{summary:?}");
    assert_eq!(summary.seen, summary.recorded + summary.filtered_out);
    assert!((29..=30).contains(&summary.filtered_out), "{summary:?}");
    let rows = tshark(&file, &["ip.proto"]);
    assert_eq!(rows, vec![["17"]; 30]);
}

/// The description of the interface names the tapped program.
#[test]
fn file_names_the_attached_program() {
    let Some(lab) = Lab::open() else { return };
    let program = Loaded::native(Does::DropWithHook, &lab.pair.b).expect("the program");
    let (id, _) = xdp_on(&lab.pair.b).expect("a program");
    let file = lab.file("file.pcapng");
    let options = ["--tap", "tailcall", "-Q", "in", "-c", "1", "-w", &file];
    let capture = Capture::start(&lab, &[&options[..], &["-i", &lab.receiver()]].concat());
    lab.send(&[frames::silent(64)], 1);
    capture.wait().summary_of_success().assert_all_recorded(1);
    let contents = Contents::read(&file);
    let comment = contents.interfaces[0].options.text(1);
    let comment = comment.expect("a comment");
    let words: Vec<&str> = comment.split(' ').collect();
    let [name, number, tag] = words[..] else { panic!("{comment}") };
    assert!(name.starts_with("xdp_program="), "{comment}");
    assert_eq!(number, format!("xdp_id={id}"));
    let tag = tag.strip_prefix("xdp_tag=").expect("a tag");
    assert!(tag.len() == 16 && tag.bytes().all(|digit| digit.is_ascii_hexdigit()), "{comment}");
    drop(program);
}
