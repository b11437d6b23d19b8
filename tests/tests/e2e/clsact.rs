//! The tc tap on kernels without tcx: filters on the clsact qdisc, which the kernel keeps until they are removed.

use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{nothing_attached, run};
use trawl_tests::{Capture, Lab, args, frames};

fn filters(lab: &Lab, side: &str) -> String {
    let station = &lab.pair.b;
    run("tc", &args!("-n {} filter show dev {} {side}", station.name, station.interface))
}

#[test]
fn both_directions_are_recorded_and_nothing_is_left() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start_without("tcx", &lab, &["-i", &lab.receiver(), "--tap", "tc", "-w", &file]);
    assert!(capture.said().contains("clsact"), "{}", capture.said());
    assert!(filters(&lab, "ingress").contains("trawl_tc"));
    assert!(filters(&lab, "egress").contains("trawl_tc"));
    lab.send(&[frames::silent(64)], 20);
    capture.wait_seen(20);
    capture.stop_well().assert_all_recorded(20);
    assert_eq!(Contents::read(&file).frames().len(), 20);
    nothing_attached(&lab.pair.b);
}

#[test]
fn a_killed_capture_leaves_no_filter() {
    let Some(lab) = Lab::open() else { return };
    let arguments = ["-i", &lab.receiver(), "--tap", "tc"];
    let capture = Capture::start_without("tcx", &lab, &arguments);
    assert!(filters(&lab, "egress").contains("trawl_tc"));
    capture.kill();
    nothing_attached(&lab.pair.b);
}

#[test]
fn existing_qdisc_stays() {
    let Some(lab) = Lab::open() else { return };
    let station = &lab.pair.b;
    let device = ["dev", station.interface.as_str()];
    run("tc", &[&["-n", &station.name, "qdisc", "add"][..], &device, &["clsact"]].concat());
    let arguments = ["-i", &lab.receiver(), "--tap", "tc"];
    Capture::start_without("tcx", &lab, &arguments).stop_well();
    Capture::start_without("tcx", &lab, &arguments).kill();
    let qdiscs = run("tc", &[&["-n", &station.name, "qdisc", "show"][..], &device].concat());
    assert!(qdiscs.contains("clsact"), "{qdiscs}");
    assert!(!filters(&lab, "ingress").contains("trawl_tc"));
}

#[test]
fn two_captures_share_the_qdisc() {
    let Some(lab) = Lab::open() else { return };
    let arguments = ["-i", &lab.receiver(), "--tap", "tc", "-Q", "in"];
    let first = Capture::start_without("tcx", &lab, &arguments);
    let second = Capture::start_without("tcx", &lab, &arguments);
    lab.send(&[frames::silent(64)], 10);
    first.wait_seen(10);
    second.wait_seen(10);
    first.stop_well().assert_all_recorded(10);
    lab.send(&[frames::silent(64)], 5);
    second.wait_seen(15);
    second.stop_well().assert_all_recorded(15);
    nothing_attached(&lab.pair.b);
}
