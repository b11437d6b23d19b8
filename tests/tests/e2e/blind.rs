//! Removes objects that a running capture depends on. It reports this, attaches again if it can, and ends with 1 if it
//! cannot.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use trawl_lab::program::{Does, Loaded};
use trawl_tests::capture::Finished;
use trawl_tests::summary::Summary;
use trawl_tests::witness::{nothing_attached, run, xdp_on};
use trawl_tests::{Capture, Lab, frames, trawl, wait_until};

/// Detaches the link of a program, like bpftool.
fn detach_link_of(program: u64) {
    let links: Value = serde_json::from_str(&run("bpftool", &["-j", "link", "show"])).expect("JSON");
    let of_program = |link: &&Value| link["prog_id"].as_u64() == Some(program);
    let link = links.as_array().and_then(|all| all.iter().find(of_program));
    let id = link.expect("the program has a link")["id"].to_string();
    run("bpftool", &["link", "detach", "id", &id]);
}

/// Checks that the capture sees packets both before `harm` runs and after the tap is attached again.
fn sees_again(lab: &Lab, capture: Capture, harm: impl FnOnce()) -> Summary {
    lab.send(&[frames::silent(64)], 10);
    capture.wait_seen(10);
    harm();
    capture.wait_said("attached again");
    lab.send(&[frames::silent(64)], 10);
    capture.wait_seen(20);
    let summary = capture.stop_well();
    summary.assert_all_recorded(20);
    assert_eq!(summary.unseen.len(), 1, "{summary:?}");
    assert!(summary.unseen[0]["to_ns"].is_u64(), "{summary:?}");
    nothing_attached(&lab.pair.b);
    summary
}

fn cause(summary: &Summary) -> &str {
    summary.unseen[0]["cause"]["kind"].as_str().expect("a kind")
}

#[track_caller]
fn ended_blind(finished: &Finished, words: &str) {
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains(words), "{}", finished.stderr);
    assert!(finished.stderr.contains("saw no packets from"), "{}", finished.stderr);
    let summary = finished.summary();
    assert!(summary.unseen[0]["to_ns"].is_null(), "{summary:?}");
}

#[test]
fn detached_xdp_link_is_reattached() {
    let Some(lab) = Lab::open() else { return };
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", "xdp"]);
    let (program, _) = xdp_on(&lab.pair.b).expect("trawl's own");
    let summary = sees_again(&lab, capture, || detach_link_of(program));
    assert_eq!(cause(&summary), "link_detached");
}

#[test]
fn detached_xdp_link_of_two_captures_is_reattached() {
    let Some(lab) = Lab::open() else { return };
    let arguments = ["-i", &lab.receiver(), "--tap", "xdp"];
    let (first, second) = (Capture::start(&lab, &arguments), Capture::start(&lab, &arguments));
    let (program, _) = xdp_on(&lab.pair.b).expect("trawl's own");
    detach_link_of(program);
    first.wait_said("attached again");
    second.wait_said("attached again");
    lab.send(&[frames::silent(64)], 10);
    first.wait_seen(10);
    second.wait_seen(10);
    first.stop_well().assert_all_recorded(10);
    lab.send(&[frames::silent(64)], 10);
    second.wait_seen(20);
    second.stop_well().assert_all_recorded(20);
    nothing_attached(&lab.pair.b);
}

#[test]
fn detached_tcx_link_is_reattached() {
    let Some(lab) = Lab::open() else { return };
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", "tc", "-Q", "in"]);
    // Debian's bpftool does not list tcx programs; the kernel describes each descriptor.
    let descriptors = format!("/proc/{}/fdinfo", capture.id());
    let link = std::fs::read_dir(descriptors)
        .expect("its descriptors")
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok())
        .filter(|text| text.contains("link_type:\ttcx"))
        .find_map(|text| Some(text.split_once("link_id:")?.1.lines().next()?.trim().to_owned()))
        .expect("a link");
    let summary = sees_again(&lab, capture, || {
        run("bpftool", &["link", "detach", "id", &link]);
    });
    assert_eq!(cause(&summary), "link_detached");
}

#[test]
fn deleted_clsact_is_restored() {
    let Some(lab) = Lab::open() else { return };
    let arguments = ["-i", &lab.receiver(), "--tap", "tc", "-Q", "in"];
    let capture = Capture::start_without("tcx", &lab, &arguments);
    let station = &lab.pair.b;
    let summary = sees_again(&lab, capture, || {
        let device = ["dev", station.interface.as_str(), "clsact"];
        run("tc", &[&["-n", &station.name, "qdisc", "del"][..], &device].concat());
    });
    assert_eq!(cause(&summary), "filter_removed");
}

#[test]
fn emptied_slot_of_the_hook_map_is_refilled() {
    let Some(lab) = Lab::open() else { return };
    let owner = Loaded::native(Does::DropWithHook, &lab.pair.b).expect("the program");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", "tailcall"]);
    let map = hook_map(&owner);
    lab.send(&[frames::silent(64)], 10);
    capture.wait_seen(10);
    run("bpftool", &["map", "delete", "id", &map, "key", "1", "0", "0", "0"]);
    capture.wait_said("slot 1 (DROP) of the hook map was emptied");
    lab.send(&[frames::silent(64)], 10);
    capture.wait_seen(20);
    let summary = capture.stop_well();
    summary.assert_all_recorded(20);
    assert_eq!(cause(&summary), "slot_emptied");
}

fn hook_map(owner: &Loaded) -> String {
    let map = owner.hook().expect("it has a hook");
    let about = trawl_bpf::info::map(map).expect("its description");
    about.id.to_string()
}

#[test]
fn unloaded_program_ends_the_capture() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    trawl_tests::xdp::succeeds(&["xdp", "load", &place, "drop", "--tappable"]);
    let capture = Capture::start(&lab, &["-i", &place, "--tap", "tailcall"]);
    lab.send(&[frames::silent(64)], 10);
    capture.wait_seen(10);
    trawl_tests::xdp::succeeds(&["xdp", "unload", &place]);
    lab.send(&[frames::silent(64)], 10);
    let finished = capture.wait();
    ended_blind(&finished, "the XDP program was removed");
    finished.summary().assert_all_recorded(10);
    nothing_attached(&lab.pair.b);
}

#[test]
fn reloaded_program_is_reattached() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let load = ["xdp", "load", &place, "drop", "--tappable"];
    trawl_tests::xdp::succeeds(&load);
    let capture = Capture::start(&lab, &["-i", &place, "--tap", "tailcall"]);
    lab.send(&[frames::silent(64)], 10);
    capture.wait_seen(10);
    trawl_tests::xdp::succeeds(&["xdp", "unload", &place]);
    trawl_tests::xdp::succeeds(&load);
    capture.wait_said("attached again");
    lab.send(&[frames::silent(64)], 10);
    capture.wait_seen(20);
    capture.stop_well().assert_all_recorded(20);
    let output = trawl(&["xdp", "unload", &place]);
    assert!(output.status.success());
    nothing_attached(&lab.pair.b);
}

#[test]
fn killed_warden_is_replaced() {
    let Some(lab) = Lab::open() else { return };
    let capture = Capture::start_without("tcx", &lab, &["-i", &lab.receiver(), "--tap", "tc"]);
    let children = format!("/proc/{0}/task/{0}/children", capture.id());
    let is_warden = |id: &&str| {
        let name = std::fs::read_to_string(format!("/proc/{id}/comm"));
        name.is_ok_and(|name| name.trim() == "warden")
    };
    // The warden sets its name after the fork, so it may not be found at once.
    let mut warden = None;
    wait_until("the warden runs", || {
        let children = std::fs::read_to_string(&children).expect("its children");
        let found = children.split_whitespace().find(is_warden);
        warden = found.and_then(|id| id.parse().ok()).and_then(Pid::from_raw);
        warden.is_some()
    });
    let warden = warden.expect("the warden");
    kill_process(warden, Signal::KILL).expect("it lives");
    capture.wait_said("warden) was killed; started another");
    capture.kill();
    nothing_attached(&lab.pair.b);
}
