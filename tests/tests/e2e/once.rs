//! `--once` makes one record of each packet that a bridge and a veth show at several points.

use std::collections::HashSet;

use trawl_bpf::probe;
use trawl_packet::build::Template;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{run, tshark};
use trawl_tests::{Capture, Lab, args, skip};

/// Makes a bridge of the receiver's interface and a veth. Returns the interfaces that see a broadcast packet.
fn bridge(lab: &Lab) -> Vec<String> {
    let (name, port) = (&lab.pair.b.name, &lab.pair.b.interface);
    for command in [
        "link add br0 type bridge",
        "link add c0 type veth peer name c1",
        &format!("link set {port} master br0"),
        "link set c0 master br0",
        "link set br0 up",
        "link set c0 up",
        "link set c1 up",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        run("ip", &[&["-n", name][..], &words].concat());
    }
    [port.as_str(), "br0", "c0", "c1"].map(|interface| format!("{name}:{interface}")).to_vec()
}

/// Returns a broadcast frame.
fn frame(port: u16) -> Vec<u8> {
    Template::new()
        .ethernet([2, 0, 0, 0, 0, 9], [0xff; 6])
        .ipv4([10, 9, 0, 1], [10, 9, 0, 255])
        .udp(port, 9)
        .payload([port as u8; 18])
        .build()
}

fn can_link() -> bool {
    let can = probe::kernel_is_at_least(6, 2);
    if !can {
        skip("programs cannot look at the kernel's structures before Linux 6.2");
    }
    can
}

#[test]
fn each_packet_has_one_record_and_retransmissions_stay() {
    if !can_link() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let points = bridge(&lab);
    let file = lab.file("once.pcapng");
    let sources: Vec<&str> = points.iter().flat_map(|point| ["-i", point]).collect();
    let more = args!("--tap tc --once -w {file} udp port 9");
    let capture = Capture::start(&lab, &[&sources[..], &more].concat());
    // Fifty packets are sent, and the first one twice more.
    let mut frames: Vec<Vec<u8>> = (1..=50).map(frame).collect();
    frames.extend([frame(1), frame(1)]);
    lab.send_long(&frames);
    capture.wait_recorded(52);
    let summary = capture.stop_well();
    assert_eq!((summary.recorded, summary.merged), (52, 3 * 52), "{summary:#?}");

    let contents = Contents::read(&file);
    let ids: HashSet<_> = contents.packets.iter().map(|one| one.packet_id()).collect();
    assert_eq!(ids.len(), 52);
    // The bridge serves its ports and itself in any order.
    let mut seen = ["tc ingress", "tc ingress", "tc egress", "tc ingress"]
        .iter()
        .zip(&points)
        .map(|(hook, point)| format!("{point} {hook}"))
        .collect::<Vec<_>>();
    seen.sort();
    let fields = ["udp.srcport", "frame.interface_name", "frame.comment"];
    for (number, row) in tshark(&file, &fields).iter().enumerate() {
        let port = if number < 50 { number + 1 } else { 1 };
        assert_eq!(row[..2], [port.to_string(), points[0].clone()]);
        let list = row[2].strip_prefix("seen at ").expect("a list");
        let mut list: Vec<&str> = list.split(", ").collect();
        list.sort();
        assert_eq!(list, seen);
    }
}

#[test]
fn limit_counts_packets() {
    if !can_link() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let points = bridge(&lab);
    let file = lab.file("once.pcapng");
    let sources: Vec<&str> = points.iter().flat_map(|point| ["-i", point]).collect();
    let more = args!("--tap tc --once=20ms -c 5 -w {file} udp port 9");
    let capture = Capture::start(&lab, &[&sources[..], &more].concat());
    let frames: Vec<Vec<u8>> = (1..=50).map(frame).collect();
    lab.send_long(&frames);
    let summary = capture.wait().summary_of_success();
    assert_eq!((summary.recorded, summary.ended.as_str()), (5, "count"));
    assert_eq!(Contents::read(&file).packets.len(), 5);
}

#[test]
fn other_taps_keep_all_records_and_say_so() {
    let Some(lab) = Lab::open() else { return };
    let points = bridge(&lab);
    let file = lab.file("once.pcapng");
    let more = args!("--tap packet -Q in --once -w {file} udp port 9");
    let capture = Capture::start(&lab, &[&["-i", &points[0], "-i", &points[3]][..], &more].concat());
    capture.wait_said("--once keeps all records of packet");
    lab.send_long(&[frame(1), frame(2)]);
    capture.wait_recorded(4);
    assert_eq!(capture.stop_well().merged, 0);
}
