//! Several interfaces, several programs of one name, and programs that cannot be observed.

use trawl_bpf::link;
use trawl_bpf::loading;
use trawl_bpf::program::{self, LoadOptions};
use trawl_ebpf::op;
use trawl_sys::netns::run_in;
use trawl_tests::pcapng::Contents;
use trawl_tests::programs::{Attached, object_file};
use trawl_tests::witness::xdp_on;
use trawl_tests::xdp::{CleanUp, fails, programs_on, succeeds};
use trawl_tests::{Capture, Lab, args, frames, trawl};

use super::lab;

const FILE: &str = "traced";
const DROPS: &str = "traced_drops_the_packet_one";
const PASSES: &str = "traced_passes_to_the_next";

#[test]
fn programs_of_several_namespaces_are_seen() {
    let Some(one) = lab() else { return };
    let Some(other) = Lab::open() else { return };
    let _drops = Attached::native(FILE, DROPS, &one.pair.b);
    let _passes = Attached::skb(FILE, PASSES, &other.pair.b);
    let file = one.file("file.pcapng");
    let (first, second) = (one.receiver(), other.receiver());
    let what = args!("-i {first} -i {second} --program all --at both -w {file}");
    let capture = Capture::start(&one, &what);
    one.send(&[frames::numbered(1, 64)], 3);
    other.send(&[frames::numbered(2, 64)], 4);
    capture.wait_recorded(14);
    let summary = capture.stop_well();
    summary.assert_all_recorded(14);
    let points: Vec<(&str, &str, u64)> =
        summary.interfaces.iter().map(|one| (one.hook.as_str(), one.mode.as_str(), one.recorded)).collect();
    let hook = |end: &str, name: &str| format!("xdp {end} {name}");
    assert_eq!(
        points,
        [
            (hook("entry", DROPS).as_str(), "native", 3),
            (hook("exit", DROPS).as_str(), "native", 3),
            (hook("entry", PASSES).as_str(), "skb", 4),
            (hook("exit", PASSES).as_str(), "skb", 4),
        ]
    );
    let contents = Contents::read(&file);
    contents.assert_in_time_order();
    let verdicts = |interface| -> Vec<_> {
        let packets = contents.of(interface);
        packets.iter().map(|packet| packet.verdict()).collect()
    };
    assert_eq!(verdicts(1), [Some((2, 1)); 3]);
    assert_eq!(verdicts(3), [Some((2, 2)); 4]);
}

#[test]
fn programs_of_one_name_are_distinguished_and_seen_once() {
    let Some(lab) = lab() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, members) = (lab.receiver(), object_file(&lab, "members"));
    let load = ["xdp", "load", &place, &members, "--prog", "passes"];
    succeeds(&[&load[..], &["--prio", "10"]].concat());
    succeeds(&[&load[..], &["--prio", "20"]].concat());
    let ids: Vec<u64> = programs_on(&place).iter().map(|one| one["id"].as_u64().expect("a number")).collect();
    assert_eq!(ids.len(), 2);
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &place, "--program", "passes", "-w", &file]);
    lab.send(&[frames::silent(64)], 3);
    capture.wait_recorded(6);
    // Tracing programs are not members of the chain.
    assert_eq!(programs_on(&place).len(), 2);
    // trawl does not attach a second time to the remaining program.
    succeeds(&["xdp", "unload", &place, &ids[0].to_string()]);
    capture.wait_said("passes is no longer attached");
    lab.send(&[frames::silent(64)], 4);
    capture.wait_recorded(10);
    // The exits of the unloaded program were missed.
    let finished = capture.stop();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let summary = finished.summary();
    summary.assert_all_recorded(10);
    let points: Vec<(String, u64)> = summary.interfaces.iter().map(|one| (one.hook.clone(), one.recorded)).collect();
    let hook = |id: u64| format!("xdp exit passes (id {id})");
    assert_eq!(points, [(hook(ids[0]), 3), (hook(ids[1]), 7)]);
}

#[test]
fn error_for_an_unknown_number_lists_the_known_ones() {
    let Some(lab) = lab() else { return };
    let program = Attached::native(FILE, DROPS, &lab.pair.b);
    let id = program.id().to_string();
    fails(
        &["capture", "-i", &lab.receiver(), "--program", "4294967295"],
        1,
        &["4294967295", DROPS, &id, "--program all"],
    );
    // A program on another interface does not count.
    let Some(other) = Lab::open() else { return };
    fails(&["capture", "-i", &other.receiver(), "--program", &id], 1, &["no XDP program is attached"]);
}

#[test]
fn program_without_type_information_is_refused_with_alternatives() {
    let Some(lab) = lab() else { return };
    const XDP_PASS: u32 = 2;
    let pass = [op::mov32_imm(0, XDP_PASS), op::exit()];
    let bare = loading::load(
        &pass,
        &LoadOptions {
            expected_attach_type: program::ATTACH_XDP,
            flags: program::HAS_FRAGS,
            ..LoadOptions::new("nameless", program::XDP)
        },
    )
    .unwrap_or_else(|e| panic!("{e}"));
    let (station, place) = (&lab.pair.b, lab.receiver());
    let attach =
        || link::attach_xdp(std::os::fd::AsFd::as_fd(&bare), station.index, trawl_sys::netlink::XdpMode::Native);
    let _link = run_in(&station.namespace, attach).expect("the namespace").expect("an interface without a program");
    for arguments in [&[][..], &["--tap", "xdp"], &["--program", "all"], &["--program", "nameless"]] {
        let what = [&["capture", "-i", &place][..], arguments].concat();
        let output = trawl(&what);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        for word in ["nameless", "type information", "-g", "--tap packet"] {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
}

fn verdicts_at(file: &str, interface: u32) -> Vec<u64> {
    let contents = Contents::read(file);
    let packets = contents.of(interface);
    let verdicts = packets.iter().filter_map(|packet| packet.verdict());
    verdicts.map(|(_, action)| action).collect()
}

/// The only program behind a dispatcher is selected. It replaces the dispatcher's function, to which nothing else can
/// be attached.
#[test]
fn only_program_behind_a_dispatcher_is_selected() {
    let Some(lab) = lab() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, members) = (lab.receiver(), object_file(&lab, "members"));
    let load = |program: &str, priority: &str| {
        let what = ["xdp", "load", &place, &members, "--prog", program];
        succeeds(&[&what[..], &["--prio", priority]].concat());
    };
    load("passes", "20");
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &place, "--at", "both", "-w", &file]);
    lab.send(&[frames::silent(64)], 3);
    capture.wait_recorded(6);
    load("drops", "30");
    capture.wait_said("passes was replaced by xdp_dispatcher");
    lab.send(&[frames::silent(64)], 2);
    capture.wait_recorded(10);
    let drops = programs_on(&place)[1]["id"].to_string();
    succeeds(&["xdp", "unload", &place, &drops]);
    capture.wait_said("xdp_dispatcher was replaced by passes");
    lab.send(&[frames::silent(64)], 1);
    capture.wait_recorded(12);
    capture.stop_well().assert_all_recorded(12);
    assert_eq!(verdicts_at(&file, 1), [2, 2, 2, 1, 1, 2]);
    // The number shown for the interface selects it, too.
    let head = xdp_on(&lab.pair.b).expect("a dispatcher").0.to_string();
    let one = ["-i", &place, "--program", &head, "-c", "1", "-w", &file];
    let capture = Capture::start(&lab, &one);
    lab.send(&[frames::silent(64)], 1);
    capture.wait().summary_of_success().assert_all_recorded(1);
}

#[test]
fn chain_in_skb_mode_is_seen_while_it_shrinks_to_one() {
    let Some(lab) = lab() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, members) = (lab.receiver(), object_file(&lab, "members"));
    for (program, priority) in [("passes", "20"), ("drops", "30")] {
        let what = ["xdp", "load", &place, &members, "--prog", program, "--mode", "skb"];
        succeeds(&[&what[..], &["--prio", priority]].concat());
    }
    let file = lab.file("file.pcapng");
    let all = args!("-i {place} --program all --at both -w {file}");
    let capture = Capture::start(&lab, &all);
    lab.send(&[frames::silent(64)], 3);
    capture.wait_recorded(18);
    let drops = programs_on(&place)[1]["id"].to_string();
    succeeds(&["xdp", "unload", &place, &drops]);
    capture.wait_said("xdp_dispatcher is no longer attached");
    // A different program decides after the unload, and its entry is a new point of the capture.
    lab.send(&[frames::silent(64)], 2);
    capture.wait_recorded(22);
    let finished = capture.stop();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let summary = finished.summary();
    summary.assert_all_recorded(22);
    let points: Vec<(&str, u64)> = summary.interfaces.iter().map(|one| (one.hook.as_str(), one.recorded)).collect();
    assert_eq!(
        points,
        [
            ("xdp entry xdp_dispatcher", 3),
            ("xdp exit xdp_dispatcher", 3),
            ("xdp entry passes", 5),
            ("xdp exit passes", 5),
            ("xdp entry drops", 3),
            ("xdp exit drops", 3),
        ]
    );
    assert_eq!(verdicts_at(&file, 3), [2; 5]);
}
