//! Targets of redirecting programs, for all kinds of the kernel's redirects.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketType, socket};
use trawl_bpf::table::{ANY, Table};
use trawl_lab::PairOptions;
use trawl_sys::netns::run_in;
use trawl_tests::pcapng::Contents;
use trawl_tests::programs::Attached;
use trawl_tests::witness::tshark;
use trawl_tests::{Capture, Lab, frames, tracing_or_skip};

use super::lab;

const FILE: &str = "traced";
/// Offset of the key in a packet.
const KEY_AT: usize = 14;

fn attached(lab: &Lab, program: &str, mode: &str) -> Attached {
    match mode {
        "skb" => Attached::skb(FILE, program, &lab.pair.b),
        _ => Attached::native(FILE, program, &lab.pair.b),
    }
}

/// Fills a map of the program in the namespace of the receiving end. Returns the map's id.
fn fill(lab: &Lab, program: &Attached, map: &str, entries: &[(u32, u32)]) -> u32 {
    let id = program.map(map);
    let put = || {
        let table = Table::open_by_id(id)?;
        let put = |(key, value): &(u32, u32)| table.update(&key.to_ne_bytes(), &value.to_ne_bytes(), ANY);
        entries.iter().try_for_each(put)
    };
    let filled: std::io::Result<()> = run_in(&lab.pair.b.namespace, put).expect("the namespace");
    filled.unwrap_or_else(|e| panic!("the map {map}: {e}"));
    id
}

/// Sends a packet with this key, and returns the verdict and the comment of its record.
fn said(lab: &Lab, key: u8) -> Vec<String> {
    let mut frame = frames::silent(64);
    frame[KEY_AT] = key;
    let file = lab.file("file.pcapng");
    let capture = Capture::start(lab, &["-i", &lab.receiver(), "-c", "1", "-w", &file]);
    lab.send(&[frame], 1);
    capture.wait().summary_of_success().assert_all_recorded(1);
    tshark(&file, &["frame.verdict.ebpf_xdp", "frame.comment"]).remove(0)
}

fn each_target(mode: &str) {
    let Some(lab) = lab() else { return };
    let target = lab.pair.b.index;

    let program = attached(&lab, "traced_redirects_by_hash", mode);
    let map = fill(&lab, &program, "traced_hash", &[(200, target)]);
    let words = format!("redirect to interface {target} (map {map}, key 200)");
    assert_eq!(said(&lab, 200), ["4", &words]);
    // For an unknown key the program returns its default verdict.
    assert_eq!(said(&lab, 7), ["0", ""]);
    drop(program);

    let program = attached(&lab, "traced_redirects_to_a_processor", mode);
    let map = fill(&lab, &program, "traced_cpus", &[(1, 64)]);
    let words = format!("redirect to CPU 1 (map {map}, key 1)");
    assert_eq!(said(&lab, 1), ["4", &words]);
    drop(program);

    let program = attached(&lab, "traced_redirects_to_a_socket", mode);
    let unbound: OwnedFd = socket(AddressFamily::XDP, SocketType::RAW, None).expect("a socket");
    let number = unbound.as_raw_fd() as u32;
    let map = fill(&lab, &program, "traced_sockets", &[(2, number)]);
    let words = format!("redirect to an AF_XDP socket (map {map}, key 2)");
    assert_eq!(said(&lab, 2), ["4", &words]);
    drop(program);

    // If each target gets a copy, the key makes no difference.
    for key in [3, 9] {
        let program = attached(&lab, "traced_redirects_to_all", mode);
        let map = fill(&lab, &program, "traced_hash", &[(3, target)]);
        let words = format!("redirect to all interfaces of map {map}");
        assert_eq!(said(&lab, key), ["4", &words]);
    }
    let program = attached(&lab, "traced_redirects_to_all_others", mode);
    let map = fill(&lab, &program, "traced_hash", &[(3, target)]);
    let words = format!("redirect to all other interfaces of map {map}");
    assert_eq!(said(&lab, 3), ["4", &words]);
    drop(program);

    let program = attached(&lab, "traced_redirects_nowhere", mode);
    assert_eq!(said(&lab, 0), ["4", "redirect to nowhere: no helper was called"]);
    drop(program);
}

#[test]
fn targets_are_recorded_native() {
    each_target("native");
}

#[test]
fn targets_are_recorded_skb() {
    each_target("skb");
}

#[test]
fn packets_in_pieces_are_whole_when_sent_to_all_targets() {
    if !tracing_or_skip() {
        return;
    }
    let options = PairOptions { mtu: 9000, ..PairOptions::default() };
    let Some(lab) = Lab::with(options) else {
        return;
    };
    let program = attached(&lab, "traced_redirects_to_all", "native");
    let map = fill(&lab, &program, "traced_hash", &[(3, lab.pair.b.index)]);
    let file = lab.file("file.pcapng");
    let sent = vec![frames::patterned(9014), frames::patterned(5000)];
    let what = ["-i", &lab.receiver(), "--at", "both", "-w", &file];
    let capture = Capture::start(&lab, &what);
    lab.send_long(&sent);
    capture.wait_recorded(4);
    capture.stop_well().assert_all_recorded(4);
    let contents = Contents::read(&file);
    for end in 0..2 {
        let bytes: Vec<&[u8]> = contents.of(end).iter().map(|one| &*one.bytes).collect();
        assert!(bytes == sent, "end {end}");
    }
    let comments = tshark(&file, &["frame.comment"]);
    let words = format!("redirect to all interfaces of map {map}");
    let found = comments.iter().filter(|row| row[0] == words).count();
    assert_eq!(found, 2, "{comments:?}");
}
