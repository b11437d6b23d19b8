//! `trawl gen replay`: recorded frames arrive again at the other end, frame by frame.

use serde_json::{Value, json};
use trawl_packet::build::{Icmp, Tcp, Template};
use trawl_packet::pcap;
use trawl_tests::frames::{FROM, TO};
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{capinfos, run};
use trawl_tests::{Capture, Lab, Running, args, frames, trawl};

const SECOND: u64 = 1_000_000_000;

/// Returns a pcap file whose times have nanoseconds.
fn recording(link_type: u16, packets: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    pcap::file_header(&mut bytes, link_type, 0);
    for (time, frame) in packets {
        let words = [time / SECOND, time % SECOND, frame.len() as u64, frame.len() as u64];
        bytes.extend(words.map(|word| (word as u32).to_le_bytes()).concat());
        bytes.extend(frame);
    }
    bytes
}

/// Writes a file of the lab with one packet each millisecond.
fn recorded(lab: &Lab, name: &str, packets: &[Vec<u8>]) -> String {
    let times = (0..).map(|n| 1_700_000_000 * SECOND + n * 1_000_000);
    let packets: Vec<_> = times.zip(packets.iter().cloned()).collect();
    written(lab, name, &recording(1, &packets))
}

fn written(lab: &Lab, name: &str, bytes: &[u8]) -> String {
    std::fs::write(lab.path(name), bytes).expect("a file");
    lab.file(name)
}

/// Replays files while a capture of this many packets runs at the other end. Returns the summary and the captured
/// packets.
#[track_caller]
fn replayed(lab: &Lab, count: usize, arguments: &[&str]) -> (Value, Vec<Vec<u8>>) {
    let (output, frames) = captured(lab, count, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    (serde_json::from_slice(&output.stdout).expect("JSON"), frames)
}

#[track_caller]
fn captured(lab: &Lab, count: usize, arguments: &[&str]) -> (std::process::Output, Vec<Vec<u8>>) {
    let file = lab.file("captured.pcapng");
    let place = lab.receiver();
    let capture = Capture::start(lab, &["-i", &place, "-Q", "in", "-w", &file]);
    let sender = lab.sender();
    let fixed = ["gen", "replay", "--json", "-i", &sender];
    let output = trawl(&[&fixed[..], arguments].concat());
    assert!(output.stdout.starts_with(b"{"), "{}", String::from_utf8_lossy(&output.stderr));
    capture.wait_recorded(count as u64);
    capture.stop_well().assert_all_recorded(count as u64);
    let frames = Contents::read(&file).packets;
    (output, frames.into_iter().map(|packet| packet.bytes).collect())
}

fn numbered(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|number| frames::numbered(number, 60)).collect()
}

fn numbers(frames: &[Vec<u8>]) -> Vec<u32> {
    frames.iter().map(|frame| frames::number_of(frame)).collect()
}

#[test]
fn all_frames_come_out_as_they_were_recorded() {
    let Some(lab) = Lab::open() else { return };
    let sent = frames::assorted();
    let file = recorded(&lab, "file.pcap", &sent);
    assert_eq!(capinfos(&file, "Number of packets"), sent.len().to_string());
    for how in [&["--speed", "max"][..], &["--speed", "10"], &["--rate", "2k"], &["--bandwidth", "50Mbit"]] {
        let (summary, came) = replayed(&lab, sent.len(), &[how, &[&file]].concat());
        assert!(came == sent, "{how:?}");
        assert_eq!(summary["frames"], sent.len());
        assert_eq!(summary["bytes"], sent.iter().map(Vec::len).sum::<usize>());
        let measured = summary["gap_error_ns"].is_object();
        assert_eq!(measured, how != ["--speed", "max"], "{summary}");
    }
}

#[test]
fn capture_by_another_tool_is_replayed() {
    let Some(lab) = Lab::open() else { return };
    let sent = frames::assorted();
    let file = recorded(&lab, "file.pcap", &sent);
    for format in ["pcapng", "pcap", "nsecpcap", "modpcap"] {
        let other = lab.file(&format!("other.{format}"));
        run("editcap", &["-F", format, &file, &other]);
        let (_, came) = replayed(&lab, sent.len(), &["--speed", "max", &other]);
        assert!(came == sent, "{format}");
    }
}

#[test]
fn files_are_replayed_in_rounds_and_merged() {
    let Some(lab) = Lab::open() else { return };
    let sent = numbered(4);
    let times =
        |of: [(u64, usize); 2]| recording(1, &of.map(|(time, number)| (time * 1_000_000, sent[number].clone())));
    let one = written(&lab, "one.pcap", &times([(1, 0), (3, 2)]));
    let other = written(&lab, "other.pcap", &times([(2, 1), (4, 3)]));
    let (summary, came) = replayed(&lab, 12, &["--loop", "3", &one, &other]);
    assert_eq!(numbers(&came), [0, 2, 1, 3, 0, 2, 1, 3, 0, 2, 1, 3]);
    assert_eq!(summary["rounds"], 3);
    let (_, came) = replayed(&lab, 8, &["--loop", "2", "--merge", &one, &other]);
    assert_eq!(numbers(&came), [0, 1, 2, 3, 0, 1, 2, 3]);
    let (summary, came) = replayed(&lab, 7, &["--loop", "0", "--count", "7", &one, &other]);
    assert_eq!((came.len(), &summary["frames"]), (7, &json!(7)));
}

#[test]
fn replay_goes_on_until_interrupted() {
    let Some(lab) = Lab::open() else { return };
    let file = recorded(&lab, "file.pcap", &numbered(10));
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "-c", "100", "-w", &lab.file("c")]);
    let sender = lab.sender();
    let arguments = ["gen", "replay", "--json", "--loop", "0", "--rate", "5k", "-i", &sender, &file];
    let replay = Running::start(&arguments, "");
    capture.wait().summary_of_success();
    let summary = replay.stop().json();
    assert!(summary["frames"].as_u64() >= Some(100), "{summary}");
    assert_eq!(summary["stopped"], true);
}

#[test]
fn cut_file_is_sent_up_to_the_damage() {
    let Some(lab) = Lab::open() else { return };
    let whole = recorded(&lab, "whole.pcap", &numbered(5));
    let mut bytes = std::fs::read(&whole).expect("the file");
    bytes.truncate(bytes.len() - 10);
    let cut = written(&lab, "cut.pcap", &bytes);
    let (output, came) = captured(&lab, 4, &["--speed", "max", &cut]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cut.pcap: after 4 packets") && said.contains("is cut at byte"), "{said}");
    assert_eq!(numbers(&came), [0, 1, 2, 3]);
    // The other packets are still sent.
    let empty = written(&lab, "empty.pcap", &[]);
    let (output, came) = captured(&lab, 9, &["--speed", "max", &empty, &cut, &whole]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("empty.pcap: the capture file is empty"), "{said}");
    assert_eq!(numbers(&came), [0, 1, 2, 3, 0, 1, 2, 3, 4]);
}

#[test]
fn impossible_input_is_refused_by_name() {
    let Some(lab) = Lab::open() else { return };
    let frame = || vec![(0, frames::silent(60))];
    let directory = lab.path("").to_str().expect("a plain path").to_owned();
    for (name, words) in [
        (written(&lab, "empty", &[]), "the capture file is empty"),
        (written(&lab, "none.pcap", &recording(1, &[])), "no packet in it"),
        (written(&lab, "text", b"once upon a time"), "not a capture file"),
        (written(&lab, "cooked.pcap", &recording(113, &frame())), "LINUX_SLL (113)"),
        (written(&lab, "wifi.pcap", &recording(127, &frame())), "IEEE802_11_RADIOTAP (127)"),
        (lab.file("missing"), "No such file"),
        (directory, "not a regular file"),
    ] {
        let output = trawl(&["gen", "replay", "-i", &lab.sender(), &name]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(words), "{name}: {said}");
    }
    let file = recorded(&lab, "file.pcap", &numbered(1));
    let place = lab.sender();
    for arguments in [
        &["--speed", "0"][..],
        &["--speed", "-1"],
        &["--speed", "2", "--rate", "100"],
        &["--rate", "0"],
        &["--threads", "2"],
        &["--vlan", "4096"],
        &["--map-ip", "10.0.0.0/8=fd00::/8"],
        &["--src-ip", "1.1.1.1", "--src-ip", "2.2.2.2"],
    ] {
        let fixed = ["gen", "replay", "-i", &place, &file];
        let output = trawl(&[&fixed[..], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    }
}

#[test]
fn frames_that_do_not_fit_are_skipped_and_counted() {
    let Some(lab) = Lab::open() else { return };
    let sent = [frames::silent(1514), frames::silent(1515), frames::silent(9000), frames::silent(60)];
    let file = recorded(&lab, "file.pcap", &sent);
    let (summary, came) = replayed(&lab, 2, &["--speed", "max", &file]);
    assert_eq!(came.iter().map(Vec::len).collect::<Vec<_>>(), [1514, 60]);
    assert_eq!(summary["too_long"], 2);
    let output = trawl(&args!("gen replay -i {} --speed max {file}", lab.sender()));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("2 frames were left out: the interface's MTU is 1500"), "{printed}");
}

/// Returns packets with checksums that tshark validates.
fn checked() -> Vec<Vec<u8>> {
    let v4 = || Template::new().ethernet(FROM, TO).ipv4([10, 1, 2, 3], [192, 168, 0, 9]);
    let v6 = |template: Template| {
        let source = [0xfd00, 1, 0, 0, 0, 0, 0, 5];
        template.ipv6(source, [0xfd00, 2, 0, 0, 0, 0, 0, 6])
    };
    let plain = || Template::new().ethernet(FROM, TO);
    [
        v4().udp(40_000, 9).payload(b"one"),
        v4().tcp(Tcp::default()).payload(b"two"),
        v4().icmp(Icmp::echo_request(7, 1)).payload(b"three"),
        v6(plain()).udp(40_000, 9).payload(b"four"),
        v6(plain().vlan(42)).tcp(Tcp::default()).payload(b"five"),
        v6(plain()).icmpv6(Icmp::echo_request(7, 1)).payload(b"six"),
    ]
    .into_iter()
    .map(|template| template.build())
    .collect()
}

#[test]
fn changed_addresses_and_tags_keep_checksums_correct() {
    let Some(lab) = Lab::open() else { return };
    let file = recorded(&lab, "file.pcap", &checked());
    let arguments = args!(
        "--speed max --vlan 77 --src-mac 06:00:00:00:00:01 --map-mac \
         02:74:72:61:77:02=06:00:00:00:00:02 --map-ip 10.1.0.0/16=172.20.0.0/16 \
         --dst-ip 1.2.3.4 --map-ip fd00:1::/32=2001:db8::/32 {file}"
    );
    let (_, came) = replayed(&lab, 6, &arguments);
    assert_eq!(came.len(), 6);
    let fields = [
        "ip.checksum.status",
        "udp.checksum.status",
        "tcp.checksum.status",
        "icmp.checksum.status",
        "icmpv6.checksum.status",
        "eth.src",
        "eth.dst",
        "vlan.id",
        "ip.src",
        "ip.dst",
        "ipv6.src",
        "ipv6.dst",
    ];
    let captured = lab.file("captured.pcapng");
    let mut arguments = vec!["-n", "-r", &captured, "-T", "fields", "-E", "separator=|"];
    let checks = ["ip.check_checksum", "udp.check_checksum", "tcp.check_checksum"].map(|check| format!("{check}:TRUE"));
    arguments.extend(checks.iter().flat_map(|check| ["-o", check]));
    arguments.extend(fields.iter().flat_map(|field| ["-e", field]));
    let said = run("tshark", &arguments);
    let ethernet = "06:00:00:00:00:01|06:00:00:00:00:02|77";
    let four = format!("{ethernet}|172.20.2.3|1.2.3.4||");
    let six = format!("{ethernet}|||2001:db8::5|fd00:2::6");
    let expected = [
        format!("1|1||||{four}"),
        format!("1||1|||{four}"),
        format!("1|||1||{four}"),
        format!("|1||||{six}"),
        format!("||1|||{six}"),
        format!("||||1|{six}"),
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    let tagged = lab.file("tagged.pcapng");
    std::fs::copy(&captured, &tagged).expect("a copy");
    let (_, came) = replayed(&lab, 6, &["--speed", "max", "--vlan", "none", &tagged]);
    assert!(came.iter().all(|frame| frame[12..14] != [0x81, 0]));
}

#[test]
fn gaps_match_the_recording() {
    let Some(lab) = Lab::open() else { return };
    let times = [0, 1, 30_000_000, 30_000_001, 90_000_000];
    let packets: Vec<_> = times.into_iter().zip(numbered(5)).collect();
    let file = written(&lab, "file.pcap", &recording(1, &packets));
    for (speed, least) in [("1", 0.09), ("3", 0.03)] {
        let (summary, came) = replayed(&lab, 5, &["--speed", speed, &file]);
        assert_eq!(numbers(&came), [0, 1, 2, 3, 4]);
        // The replay is never faster than requested. Its delay depends on the machine, and is only measured.
        assert!(summary["seconds"].as_f64() >= Some(least), "{summary}");
        assert!(summary["gap_error_ns"]["max"].is_u64(), "{summary}");
    }
}

#[test]
fn vanished_interface_ends_a_replay() {
    let Some(lab) = Lab::open() else { return };
    let file = recorded(&lab, "file.pcap", &numbered(10));
    let sender = lab.sender();
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "-c", "50", "-w", &lab.file("c")]);
    let arguments = ["gen", "replay", "--loop", "0", "--rate", "5k", "-i", &sender, &file];
    let replay = Running::start(&arguments, "");
    capture.wait().summary_of_success();
    run("ip", &["-n", &lab.pair.a.name, "link", "del", &lab.pair.a.interface]);
    let done = replay.wait();
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stderr.contains("the interface is gone"), "{}", done.stderr);
    assert!(done.stdout.contains("frames"), "{}", done.stdout);
}
