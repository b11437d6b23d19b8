//! Programs that are attached and removed during a capture, and a killed capture.

use std::os::fd::AsFd;

use trawl_bpf::{info, link};
use trawl_tests::pcapng::Contents;
use trawl_tests::programs::Attached;
use trawl_tests::witness::{nothing_attached, wait_unloaded};
use trawl_tests::{Capture, frames, wait_until};

use super::lab;

const FILE: &str = "traced";
const DROPS: &str = "traced_drops_the_packet_one";
const PASSES: &str = "traced_passes_to_the_next";

#[test]
fn replaced_program_is_followed() {
    let Some(lab) = lab() else { return };
    let mut program = Attached::native(FILE, DROPS, &lab.pair.b);
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "-w", &file]);
    lab.send(&[frames::silent(64)], 3);
    capture.wait_recorded(3);
    program.replace(FILE, PASSES);
    capture.wait_said(&format!("{DROPS} was replaced by {PASSES}"));
    lab.send(&[frames::silent(64)], 4);
    capture.wait_recorded(7);
    capture.stop_well().assert_all_recorded(7);
    let verdicts: Vec<Option<(u8, u64)>> =
        Contents::read(&file).packets.iter().map(|packet| packet.verdict()).collect();
    assert_eq!(verdicts[..3], [Some((2, 1)); 3]);
    assert_eq!(verdicts[3..], [Some((2, 2)); 4]);
}

#[test]
fn capture_survives_the_exchange_of_an_unloaded_program() {
    let Some(lab) = lab() else { return };
    let program = Attached::native(FILE, DROPS, &lab.pair.b);
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--at", "both", "-w", &file]);
    lab.send(&[frames::silent(64)], 3);
    capture.wait_recorded(6);
    let id = program.id();
    drop(program);
    capture.wait_said(&format!("{DROPS} is no longer attached"));
    // trawl holds no reference to the program, which the kernel frees.
    wait_unloaded(u64::from(id));
    let _program = Attached::native(FILE, PASSES, &lab.pair.b);
    capture.wait_said(&format!("tracing the XDP program {PASSES}"));
    lab.send(&[frames::silent(64)], 2);
    capture.wait_recorded(10);
    capture.stop_well().assert_all_recorded(10);
    assert_eq!(Contents::read(&file).packets.len(), 10);
}

#[test]
fn capture_of_a_program_by_id_ends_with_it() {
    let Some(lab) = lab() else { return };
    let program = Attached::native(FILE, DROPS, &lab.pair.b);
    let file = lab.file("file.pcapng");
    let id = program.id().to_string();
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--program", &id, "-w", &file]);
    lab.send(&[frames::silent(64)], 3);
    capture.wait_recorded(3);
    drop(program);
    let finished = capture.wait();
    assert!(finished.stderr.contains(&format!("{DROPS} is no longer attached")), "{}", finished.stderr);
    assert_eq!(finished.status.code(), Some(1), "as when the interface goes");
    finished.summary().assert_all_recorded(3);
    assert_eq!(Contents::read(&file).packets.len(), 3);
}

#[test]
fn killed_capture_leaves_the_program_alone() {
    let Some(lab) = lab() else { return };
    let program = Attached::native(FILE, DROPS, &lab.pair.b);
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--at", "both", "-w", &file]);
    lab.send(&[frames::silent(64)], 3);
    capture.wait_recorded(6);
    assert_ne!(tracing_links(&program), 0);
    capture.kill();
    wait_until("no link traces the program", || tracing_links(&program) == 0);
    // Every recorded packet is in the file, and a new capture works like the first one.
    assert_eq!(Contents::read(&file).packets.len(), 6);
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "-c", "2", "-w", &file]);
    lab.send(&[frames::silent(64)], 2);
    capture.wait().summary_of_success().assert_all_recorded(2);
    drop(program);
    nothing_attached(&lab.pair.b);
}

/// Returns the number of links to a function of the program. (bpftool shows them since version 7.2 only.)
fn tracing_links(program: &Attached) -> usize {
    let links = link::all_ids().into_iter();
    let open = links.filter_map(|id| link::open_by_id(id).ok());
    let targets = open.filter_map(|fd| info::link(fd.as_fd()).ok()?.function);
    targets.filter(|(id, _)| *id == program.id()).count()
}
