//! The bundled programs with a fixed verdict: counted exactly, in every mode, on every kind of packet.

use trawl_lab::PairOptions;
use trawl_tests::bundled::{Counts, done, refused};
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{nothing_attached, run, tshark, xdp_on};
use trawl_tests::xdp::{CleanUp, all_gone, fails, succeeds};
use trawl_tests::{Capture, Lab, binary, frames, tools_or_skip};

const EACH: u64 = 250;

/// Returns a frame of each kind, with the name of its counter.
fn kinds() -> Vec<(Vec<u8>, &'static str)> {
    vec![
        (frames::ipv4_udp(0), "IPv4"),
        (frames::ipv6_udp(0), "IPv6"),
        (frames::ipv4_udp(1), "IPv4"),
        (frames::ipv6_udp(1), "IPv6"),
        (frames::ipv4_udp(2), "IPv4"),
        (frames::ipv6_udp(2), "IPv6"),
        (frames::silent(60), "other"),
    ]
}

fn all_kinds_are_counted(lab: &Lab, verdict: &str, mode: &str) {
    let place = lab.receiver();
    let load = ["xdp", "load", &place, verdict, "--mode", mode];
    done(&[&load[..], &["--touch", "parse"]].concat());
    assert_eq!(xdp_on(&lab.pair.b).map(|(_, mode)| mode).as_deref(), Some(mode));
    let kinds = kinds();
    let (mut packets, mut bytes) = (0, 0);
    for (frame, _) in &kinds {
        // Repeated frames would be sent again with the receiving stack's changes, so each frame is sent once.
        let repeated = vec![frame.clone(); EACH as usize];
        lab.send_long(&repeated);
        packets += EACH;
        bytes += EACH * frame.len() as u64;
    }
    let counts = Counts::wait(|| Counts::of(&place), packets);
    assert_eq!(counts.bytes(), bytes, "{counts:?}");
    for name in ["IPv4", "IPv6", "other"] {
        let own = || kinds.iter().filter(|(_, kind)| *kind == name);
        let length: u64 = own().map(|(frame, _)| frame.len() as u64).sum();
        assert_eq!(counts.outcome(name), own().count() as u64 * EACH, "{counts:?}");
        assert_eq!(counts.outcome_bytes(name), length * EACH, "{counts:?}");
    }
    assert_eq!(counts.names().len(), 3, "{counts:?}");
    done(&["xdp", "unload", &place]);
    nothing_attached(&lab.pair.b);
}

#[test]
fn each_program_counts_all_kinds() {
    let Some(lab) = Lab::open() else { return };
    for program in ["drop", "pass", "aborted", "tx"] {
        for mode in ["native", "skb"] {
            all_kinds_are_counted(&lab, program, mode);
        }
    }
}

/// Sends to a program and records the frames that the stack of that end receives.
fn passed_up(arguments: &[&str], sent: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let Some(lab) = Lab::open() else {
        return sent.to_vec();
    };
    let place = lab.receiver();
    done(&[&["xdp", "load", &place, "pass"], arguments].concat());
    let file = lab.file("file.pcapng");
    let count = sent.len().to_string();
    let what = ["-i", &place, "--tap", "packet", "-Q", "in", "-c", &count, "-w", &file];
    let capture = Capture::start(&lab, &what);
    lab.send(sent, sent.len() as u64);
    capture.wait().summary_of_success();
    let counts = Counts::of(&place);
    assert_eq!(counts.packets(), sent.len() as u64);
    Contents::read(&file).frames().into_iter().map(<[u8]>::to_vec).collect()
}

#[test]
fn reading_only_changes_nothing() {
    let sent = frames::assorted();
    for touch in ["none", "read", "parse"] {
        let got = passed_up(&["--touch", touch], &sent);
        assert!(got == sent, "{touch} changed something");
    }
}

#[test]
fn touch_swap_swaps_addresses() {
    let sent = frames::assorted();
    let expected: Vec<_> = sent.iter().map(|frame| swapped(frame)).collect();
    // A packet socket also receives frames to another host's address.
    assert!(passed_up(&["--touch", "swap"], &sent) == expected);
}

fn swapped(frame: &[u8]) -> Vec<u8> {
    [&frame[6..12], &frame[..6], &frame[12..]].concat()
}

fn comes_back(mode: &str) {
    // Without GRO the sending end accepts no XDP frames until trawl prepares it.
    let Some(lab) = Lab::with(PairOptions { gro: mode == "skb", ..PairOptions::default() }) else {
        return;
    };
    let place = lab.receiver();
    done(&["xdp", "load", &place, "tx", "--mode", mode]);
    let sent: Vec<_> = frames::assorted();
    let file = lab.file("file.pcapng");
    let count = sent.len().to_string();
    let sender = lab.sender();
    let what = ["-i", &sender, "--tap", "packet", "-Q", "in", "-c", &count, "-w", &file];
    let capture = Capture::start(&lab, &what);
    lab.send(&sent, sent.len() as u64);
    capture.wait().summary_of_success();
    let expected: Vec<_> = sent.iter().map(|frame| swapped(frame)).collect();
    frames::assert_same(&Contents::read(&file).frames(), &expected);
    let rows = tshark(&file, &["eth.src", "eth.dst"]);
    let mac = |bytes: &[u8]| -> String {
        let parts: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        parts.join(":")
    };
    assert!(rows.iter().all(|row| *row == [mac(&frames::TO), mac(&frames::FROM)]), "{rows:?}");
    assert_eq!(Counts::of(&place).packets(), sent.len() as u64);
    done(&["xdp", "unload", &place]);
    nothing_attached(&lab.pair.b);
    nothing_attached(&lab.pair.a);
    assert_eq!(feature(&lab, "rx-gro"), Some(mode == "skb"));
    for put_back in ["tx-checksum-ip-generic", "tx-vlan-hw-insert"] {
        assert_eq!(feature(&lab, put_back), Some(true), "{put_back}");
    }
}

fn feature(lab: &Lab, name: &str) -> Option<bool> {
    let ethtool = lab.pair.a.ethtool().expect("the interface is there");
    ethtool.feature(name).expect("ethtool answers")
}

#[test]
fn tx_sends_back_native_and_makes_the_other_end_ready() {
    comes_back("native");
}

#[test]
fn tx_sends_back_skb() {
    comes_back("skb");
}

#[test]
fn jumbo_frames_are_counted_whole() {
    for mode in ["native", "skb"] {
        let Some(lab) = Lab::with(PairOptions { mtu: 9000, ..PairOptions::default() }) else {
            return;
        };
        let place = lab.receiver();
        done(&["xdp", "load", &place, "drop", "--mode", mode, "--touch", "parse"]);
        let sent = vec![frames::silent(9014), frames::udp(&[7; 8000])];
        lab.send_long(&sent);
        let counts = Counts::wait(|| Counts::of(&place), 2);
        assert_eq!(counts.bytes(), 9014 + 8042, "{mode}: {counts:?}");
        assert_eq!((counts.outcome("IPv4"), counts.outcome("other")), (1, 1), "{counts:?}");
    }
}

#[test]
fn counts_cover_all_cpus() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    done(&["xdp", "load", &place, "drop"]);
    lab.send_from_two_cpus(&[frames::silent(64)], 20_000);
    let counts = Counts::wait(|| Counts::of(&place), 40_000);
    assert_eq!(counts.bytes(), 40_000 * 64);
}

#[test]
fn inconsistent_options_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let load = |more: &[&str]| refused(&[&["xdp", "load", &place], more].concat(), 2);
    assert!(load(&["drop", "--to", "veth0"]).contains("--to is for redirect"));
    assert!(load(&["redirect"]).contains("--to IF or --to-cpu"));
    assert!(load(&["redirect", "--to-cpu", "999"]).contains("the CPUs are 0 to"));
    assert!(load(&["redirect", "--to", "a,b", "--by", "helper"]).contains("one interface only"));
    assert!(load(&["drop", "--prog", "x"]).contains("--prog is for object files"));
    assert!(load(&["some.o", "--touch", "read"]).contains("bundled programs"));
    for (name, fix) in [("dorp", "drop, pass"), ("route", "trawl route load")] {
        let misnamed = refused(&["xdp", "load", &place, name], 1);
        assert!(misnamed.contains(fix), "{misnamed}");
    }
    let missing = refused(&["xdp", "load", &place, "redirect", "--to", "nowhere"], 1);
    assert!(missing.contains("it does not exist"), "{missing}");
    let none = refused(&["xdp", "stats", &place], 1);
    assert!(none.contains("no bundled program is on it"), "{none}");
    nothing_attached(&lab.pair.b);
}

/// The program on the other end is used by the old one and the new one.
#[test]
fn tx_replaced_by_tx_still_sends_back() {
    let Some(lab) = Lab::with(PairOptions { gro: false, ..PairOptions::default() }) else {
        return;
    };
    let place = lab.receiver();
    done(&["xdp", "load", &place, "tx"]);
    for more in [&[][..], &["--touch", "parse"], &["--prio", "5"]] {
        let load = ["xdp", "load", &place, "tx", "--replace"];
        done(&[&load[..], more].concat());
        assert!(xdp_on(&lab.pair.a).is_some(), "{more:?}");
    }
    let file = lab.file("file.pcapng");
    let sender = lab.sender();
    let what = ["-i", &sender, "--tap", "packet", "-Q", "in", "-c", "3", "-w", &file];
    let capture = Capture::start(&lab, &what);
    lab.send(&[frames::silent(64)], 3);
    capture.wait().summary_of_success();
    done(&["xdp", "unload", &place]);
    nothing_attached(&lab.pair.a);
    nothing_attached(&lab.pair.b);
}

/// Finding counters reads all pins, which takes time if many exist.
#[test]
fn counters_are_looked_for_once() {
    if !tools_or_skip(&["strace"]) {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    done(&["xdp", "load", &place, "drop"]);
    let (trace, trawl) = (lab.file("trace"), binary::path().to_str().expect("plain"));
    let stats = ["-f", "-e", "trace=bpf", "-o", &trace, trawl, "xdp", "stats"];
    run("strace", &[&stats[..], &[&place]].concat());
    let text = std::fs::read_to_string(&trace).expect("strace wrote it");
    let records = text.lines().filter(|line| line.contains("/record\""));
    assert_eq!(records.count(), 1, "{text}");
    done(&["xdp", "unload", &place]);
}

/// On an IP tunnel, programs would read the packet's first bytes as an Ethernet header.
#[test]
fn ethernet_headers_are_not_assumed() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (name, place) = (&lab.pair.b.name, lab.receiver());
    let add = ["tuntap", "add", "dev", "tun0", "mode", "tun"];
    run("ip", &[&["-n", name], &add[..]].concat());
    run("ip", &["-n", name, "link", "set", "tun0", "up"]);
    let tunnel = format!("{name}:tun0");
    for (place, words) in [
        (&tunnel, &["tx"][..]),
        (&tunnel, &["drop", "--touch", "parse"]),
        (&tunnel, &["pass", "--touch", "swap"]),
        (&tunnel, &["redirect", "--to", "veth0"]),
        (&tunnel, &["redirect", "--to-cpu", "0"]),
        (&place, &["redirect", "--to", "tun0", "--mode", "skb"]),
    ] {
        let load = [&["xdp", "load", place], words].concat();
        fails(&load, 1, &[words[0], "no Ethernet header", &tunnel]);
    }
    for verdict in ["drop", "pass", "aborted"] {
        succeeds(&["xdp", "load", &tunnel, verdict]);
        succeeds(&["xdp", "unload", &tunnel]);
    }
    all_gone(&lab, &[], &[]);
}

/// The counts by receive queue add up. The sender's two CPUs make two queues busy.
#[test]
fn counts_are_listed_by_queue() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    done(&["xdp", "load", &place, "drop"]);
    lab.send_from_two_cpus(&[frames::silent(64)], 20_000);
    Counts::wait(|| Counts::of(&place), 40_000);
    let text = done(&["xdp", "stats", &place, "--json"]);
    let all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let account = &all["interfaces"][0];
    let queues = account["queues"].as_array().expect("a list");
    let counts = queues.iter().filter_map(|one| one["packets"].as_u64());
    assert_eq!(Some(counts.sum::<u64>()), account["packets"].as_u64());
    assert_eq!(account["packets"], 40_000);
    let busy: Vec<_> = queues.iter().map(|one| one["queue"].clone()).collect();
    let expected: Vec<serde_json::Value> = (0..busy.len()).map(Into::into).collect();
    assert_eq!(busy, expected);
    let text = done(&["xdp", "stats", &place, "--queues"]);
    assert!(text.contains("from queue 0"), "{text}");
}
