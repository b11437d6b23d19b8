//! The bundled programs that redirect: packets at the other end, counters, and restored settings.

use trawl_bpf::probe;
use trawl_lab::sender::Engine;
use trawl_lab::{LineOptions, Station};
use trawl_tests::bundled::{Counts, done};
use trawl_tests::lab::{Files, place, send_from};
use trawl_tests::witness::{nothing_attached, run, tshark, xdp_on};
use trawl_tests::{Capture, LineLab, args, frames, wait_until};

mod readiness;

/// Opens a line whose hosts accept no XDP frames until trawl prepares them.
fn unready() -> Option<LineLab> {
    LineLab::with(&LineOptions { gro: false, ..LineOptions::default() })
}

/// Checks that the stack of a host receives exactly the expected frames, in any order, while frames are sent from a.
fn arrive(lab: &LineLab, at: &Station, sent: &[Vec<u8>], expected: usize, send: impl FnOnce()) {
    let file = lab.file(&format!("{}.pcapng", at.name));
    let arrived = Capture::received(lab, at, &file, expected, send);
    frames::assert_same(&arrived.frames(), sent);
}

fn feature(station: &Station, name: &str) -> Option<bool> {
    let ethtool = station.ethtool().expect("the interface is there");
    ethtool.feature(name).expect("ethtool answers")
}

const SWITCHED: [&str; 4] = ["rx-gro", "tx-checksum-ip-generic", "tx-checksum-sctp", "tx-vlan-hw-insert"];

fn features(lab: &LineLab) -> Vec<Option<bool>> {
    let hosts = [&lab.line.a, &lab.line.b];
    let of = |host| SWITCHED.map(|name| feature(host, name));
    hosts.into_iter().flat_map(of).collect()
}

fn to_another_interface(lab: &LineLab, mode: &str, by: &str) {
    let before = features(lab);
    let from = place(&lab.line.left);
    let redirect = ["xdp", "load", &from, "redirect", "--to", "right"];
    done(&[&redirect[..], &["--by", by, "--mode", mode, "--touch", "parse"]].concat());
    assert_eq!(xdp_on(&lab.line.left).map(|(_, mode)| mode).as_deref(), Some(mode));
    let sent = frames::assorted();
    let count = sent.len();
    arrive(lab, &lab.line.b, &sent, count, || lab.send(&sent, count as u64));
    let counts = Counts::of(&from);
    assert_eq!(counts.packets(), count as u64, "{counts:?}");
    let bytes: usize = sent.iter().map(Vec::len).sum();
    assert_eq!(counts.bytes(), bytes as u64, "{counts:?}");
    assert!(counts.outcome("IPv6") > 0, "{counts:?}");
    done(&["xdp", "unload", &from]);
    nothing_attached(&lab.line.left);
    assert_eq!(features(lab), before, "all features are restored");
}

#[test]
fn to_another_interface_by_helper_and_map() {
    // Live frames reach a program in skb mode only through a veth with GRO.
    for (mode, lab) in [("native", unready()), ("skb", LineLab::open())] {
        let Some(lab) = lab else { return };
        for by in ["helper", "devmap"] {
            to_another_interface(&lab, mode, by);
        }
    }
}

/// Before Linux 5.13, GRO is not enough for a veth to accept XDP frames, and trawl attaches a program.
#[test]
fn redirected_packets_reach_a_host_without_gro() {
    let Some(lab) = unready() else { return };
    let from = place(&lab.line.left);
    done(&["xdp", "load", &from, "redirect", "--to", "right"]);
    let sent = vec![frames::udp(&[7; 100]), frames::udp(&[7; 1400])];
    arrive(&lab, &lab.line.b, &sent, 2, || lab.send_packets(&sent));
    done(&["xdp", "unload", &from]);
    nothing_attached(&lab.line.left);
    nothing_attached(&lab.line.b);
}

fn jumbo_frames(mode: &str) {
    let Some(lab) = LineLab::jumbo() else { return };
    let from = place(&lab.line.left);
    let ways: [&[&str]; 4] = [
        &["--to", "right", "--by", "helper"],
        &["--to", "right", "--by", "devmap"],
        &["--to-cpu", "1", "--to", "right"],
        &["--to-cpu", "0,1", "--to", "right", "--touch", "parse"],
    ];
    for way in ways {
        let load = ["xdp", "load", &from, "redirect", "--mode", mode];
        let said = done(&[&load[..], way].concat());
        let sent = vec![frames::patterned(9014), frames::patterned(4000), frames::udp(&[7; 8000])];
        let lost = mode == "native" && !probe::kernel_is_at_least(6, 3);
        assert_eq!(said.contains("Linux before 6.3"), lost, "{said}");
        if lost {
            lab.send_packets(&sent);
            let counts = Counts::wait(|| Counts::of(&from), 3);
            let dropped = "dropped: packets in several buffers cannot be sent on";
            assert_eq!(counts.outcome(dropped), 3, "{way:?}: {counts:?}");
            assert_eq!(counts.not_there(), 0, "{way:?}: {counts:?}");
            done(&["xdp", "unload", &from]);
            continue;
        }
        let far = "redirected there";
        let by_cpu = way.contains(&"--to-cpu");
        arrive(&lab, &lab.line.b, &sent, 3, || {
            for (number, frame) in (1..).zip(&sent) {
                lab.send_packets(std::slice::from_ref(frame));
                // Frames are sent one by one, because before Linux 6.15, in skb mode, only the first of several waiting
                // packets is redirected.
                wait_until("it is redirected on the other CPU", || !by_cpu || Counts::of(&from).outcome(far) >= number);
            }
        });
        let counts = Counts::of(&from);
        let bytes = (9014 + 4000 + 8042) as u64;
        assert_eq!((counts.packets(), counts.bytes()), (3, bytes), "{way:?}: {counts:?}");
        if by_cpu {
            assert_eq!(counts.outcome(far), 3, "{counts:?}");
            assert_eq!(counts.outcome_bytes(far), bytes, "{counts:?}");
        }
        done(&["xdp", "unload", &from]);
    }
}

#[test]
fn jumbo_frames_are_redirected_whole_native() {
    jumbo_frames("native");
}

#[test]
fn jumbo_frames_are_redirected_whole_skb() {
    jumbo_frames("skb");
}

/// Checks packets of several buffers, which the kernel does not copy. In skb mode none occur, because the program
/// accepts none. In native mode they are dropped and counted unless no copy is needed.
fn jumbo_frames_to_several(mode: &str, targets: &str, more: &[&str], arrives: bool) {
    let Some(lab) = LineLab::jumbo() else { return };
    let from = place(&lab.line.left);
    let load = ["xdp", "load", &from, "redirect", "--mode", mode, "--to", targets];
    let said = done(&[&load[..], more].concat());
    assert_eq!(said.contains("are dropped"), !arrives, "{said}");
    let sent = vec![frames::patterned(9014), frames::udp(&[7; 8000])];
    if arrives {
        arrive(&lab, &lab.line.b, &sent, 2, || lab.send_packets(&sent));
    } else {
        lab.send_packets(&sent);
    }
    let counts = Counts::wait(|| Counts::of(&from), 2);
    let dropped = "dropped: packets in several buffers cannot be sent on";
    let lost = if arrives { 0 } else { 2 };
    assert_eq!(counts.outcome(dropped), lost, "{counts:?}");
    // Packets in one piece always arrive.
    let short = vec![frames::patterned(1500)];
    arrive(&lab, &lab.line.b, &short, 1, || lab.send_packets(&short));
    done(&["xdp", "unload", &from]);
}

#[test]
fn jumbo_frames_to_several_native() {
    jumbo_frames_to_several("native", "left,right", &[], false);
}

#[test]
fn jumbo_frames_to_the_only_one_left_native() {
    let arrives = probe::kernel_is_at_least(6, 3);
    let exclude = ["--exclude-ingress"];
    jumbo_frames_to_several("native", "left,right", &exclude, arrives);
}

#[test]
fn jumbo_frames_to_several_skb() {
    jumbo_frames_to_several("skb", "left,right", &[], true);
}

fn to_several(mode: &str, exclude: bool) {
    let Some(lab) = LineLab::open() else { return };
    let from = place(&lab.line.left);
    let mut load = args!("xdp load {from} redirect --to left,right --mode {mode}");
    load.extend(exclude.then_some("--exclude-ingress"));
    done(&load);
    let sent = frames::assorted();
    let count = sent.len();
    let file = lab.file("back.pcapng");
    let sender = place(&lab.line.a);
    let back = ["-i", &sender, "--tap", "packet", "-Q", "in", "-w", &file];
    let capture = Capture::start(&lab, &back);
    arrive(&lab, &lab.line.b, &sent, count, || lab.send(&sent, count as u64));
    let expected = if exclude { 0 } else { count as u64 };
    if !exclude {
        capture.wait_recorded(expected);
    }
    assert_eq!(capture.stop_well().recorded, expected);
    assert_eq!(Counts::wait(|| Counts::of(&from), count as u64).packets(), count as u64);
    done(&["xdp", "unload", &from]);
    nothing_attached(&lab.line.left);
}

#[test]
fn to_several_interfaces_native() {
    to_several("native", false);
}

#[test]
fn to_several_interfaces_skb() {
    to_several("skb", false);
}

#[test]
fn to_several_but_not_back_native() {
    to_several("native", true);
}

#[test]
fn to_several_but_not_back_skb() {
    to_several("skb", true);
}

/// Number of packets that fit into a queue to another CPU if they are sent slowly.
const TO_CPU: u64 = 1000;
const RATE: u64 = 50_000;

/// Redirects packets to other CPUs. Before Linux 6.15, some of them go to the stack in skb mode.
fn to_cpus(mode: &str, cpus: &str, then: &[&str], name: &str) {
    let Some(lab) = LineLab::open() else { return };
    let from = place(&lab.line.left);
    let load = ["xdp", "load", &from, "redirect", "--mode", mode, "--to-cpu", cpus];
    let said = done(&[&load[..], then].concat());
    let some_escape = mode == "skb" && !then.is_empty() && !probe::kernel_is_at_least(6, 15);
    assert_eq!(said.contains("Linux before 6.15"), some_escape, "{said}");
    let file = lab.file("escaped.pcapng");
    let stack = ["-i", &from, "--tap", "packet", "-Q", "in", "-w", &file];
    let stack = some_escape.then(|| Capture::start(&lab, &stack));
    let sent = [frames::ipv4_udp(0), frames::ipv6_udp(1), frames::silent(70)];
    let (cpu, rate) = (Some(0), Some(RATE));
    send_from(&lab.line.a, &sent, TO_CPU, Engine::Live, cpu, rate);
    let counts = Counts::wait(|| Counts::of(&from), TO_CPU);
    if let Some(stack) = stack {
        wait_until("each packet is on the other CPU or with the stack", || {
            Counts::of(&from).outcome(name) + stack.figure("recorded") >= TO_CPU
        });
        let escaped = stack.stop_well().recorded;
        assert_eq!(Counts::of(&from).outcome(name) + escaped, TO_CPU);
    } else {
        wait_until("all packets are on the other CPU", || Counts::of(&from).outcome(name) >= TO_CPU);
        let far = Counts::of(&from);
        assert_eq!(far.outcome(name), TO_CPU);
        assert_eq!(far.outcome_bytes(name), counts.bytes(), "{far:?}");
    }
    done(&["xdp", "unload", &from]);
    nothing_attached(&lab.line.left);
}

#[test]
fn another_cpu_drops() {
    for mode in ["native", "skb"] {
        to_cpus(mode, "1", &["--then", "drop"], "dropped there");
    }
}

#[test]
fn other_cpus_pass() {
    for mode in ["native", "skb"] {
        to_cpus(mode, "0,1", &[], "passed there");
    }
}

#[test]
fn another_cpu_redirects() {
    for mode in ["native", "skb"] {
        to_cpus(mode, "1", &["--to", "right"], "redirected there");
    }
}

#[test]
fn verdict_of_another_cpu_is_applied() {
    let Some(lab) = unready() else { return };
    let from = place(&lab.line.left);
    let sent = frames::assorted();
    let count = sent.len();
    let send = || lab.send(&sent, count as u64);
    done(&["xdp", "load", &from, "redirect", "--to-cpu", "1", "--to", "right"]);
    arrive(&lab, &lab.line.b, &sent, count, send);
    done(&["xdp", "unload", &from]);
    done(&["xdp", "load", &from, "redirect", "--to-cpu", "1", "--then", "pass"]);
    arrive(&lab, &lab.line.left, &sent, count, send);
    done(&["xdp", "unload", &from]);
}

/// A capture through a hook map reads the kernel's record of the target, as tracing does.
#[test]
fn hook_map_names_the_target() {
    let Some(lab) = LineLab::open() else { return };
    let from = place(&lab.line.left);
    for (by, at) in [("helper", "exit"), ("devmap", "exit"), ("helper", "both")] {
        done(&["xdp", "load", &from, "redirect", "--to", "right", "--by", by, "--tappable"]);
        let file = lab.file("file.pcapng");
        let capture =
            Capture::start(&lab, &["-i", &from, "--tap", "tailcall", "--at", at, "-w", &file, "ether proto 0x88b5"]);
        lab.send(&[frames::silent(64)], 3);
        let ends = if at == "both" { 2 } else { 1 };
        capture.wait_seen(3 * ends);
        capture.stop_well().assert_all_recorded(3 * ends);
        let comments: Vec<String> = tshark(&file, &["frame.verdict.ebpf_xdp", "frame.comment"])
            .into_iter()
            .filter(|row| row[0] == "4")
            .map(|row| row[1].clone())
            .collect();
        let target = format!("redirect to interface {}", lab.line.right.index);
        assert_eq!(comments.len(), 3, "{by} {at}");
        for comment in comments {
            let (words, map) = comment.split_once(" (map ").unwrap_or((&comment, ""));
            assert_eq!((words, map.is_empty()), (target.as_str(), by == "helper"), "{comment}");
        }
        done(&["xdp", "unload", &from]);
    }
}

#[test]
fn vanished_target_is_counted() {
    let Some(lab) = LineLab::open() else { return };
    let from = place(&lab.line.left);
    done(&["xdp", "load", &from, "redirect", "--to", "right", "--by", "devmap"]);
    run("ip", &["-n", &lab.line.right.name, "link", "del", "right"]);
    lab.send(&[frames::silent(64)], 100);
    let counts = Counts::wait(|| Counts::of(&from), 100);
    assert_eq!(counts.outcome("dropped: the target is gone"), 100, "{counts:?}");
    done(&["xdp", "unload", &from]);
}
