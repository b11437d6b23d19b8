//! Programs behind a dispatcher, attached by libxdp's own loader.

use std::collections::BTreeMap;

use trawl_tests::pcapng::Contents;
use trawl_tests::witness::nothing_attached;
use trawl_tests::xdp::xdp_loader;
use trawl_tests::{Capture, Lab, args, frames, programs, tools_or_skip, trawl};

use super::lab;

const FIRST: &str = "traced_passes_to_the_next";
const SECOND: &str = "traced_drops_the_packet_one";

/// Two programs that xdp-loader has loaded on the receiving end. They run in the order of their names' constants.
struct Chain<'l> {
    lab: &'l Lab,
}

impl<'l> Chain<'l> {
    fn load(lab: &'l Lab) -> Self {
        let object = programs::object_file(lab, "traced");
        let chain = Self { lab };
        for (name, priority) in [(FIRST, "10"), (SECOND, "20")] {
            let interface = chain.interface();
            chain.loader(&["load", &interface, &object, "-n", name, "-P", priority]);
        }
        chain
    }

    fn interface(&self) -> String {
        self.lab.pair.b.interface.clone()
    }

    fn loader(&self, arguments: &[&str]) -> String {
        xdp_loader(&self.lab.pair.b.name, arguments)
    }

    fn unload(&self) {
        self.loader(&["unload", &self.interface(), "--all"]);
    }
}

fn chained_lab() -> Option<Lab> {
    tools_or_skip(&["xdp-loader", "nsenter"]).then(lab).flatten()
}

#[test]
fn programs_of_a_chain_are_seen_under_one_identifier() {
    let Some(lab) = chained_lab() else { return };
    let chain = Chain::load(&lab);
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &args!("-i {} --program all --at both -w {file}", lab.receiver()));
    let sent: Vec<Vec<u8>> = (0..5).map(|number| frames::numbered(number, 64)).collect();
    lab.send(&sent, 5);
    capture.wait_recorded(30);
    let summary = capture.stop_well();
    summary.assert_all_recorded(30);
    let mut hooks: Vec<String> = Vec::new();
    for name in ["xdp_dispatcher", FIRST, SECOND] {
        hooks.extend(["entry", "exit"].map(|end| format!("xdp {end} {name}")));
    }
    let said: Vec<&str> = summary.interfaces.iter().map(|one| one.hook.as_str()).collect();
    assert_eq!(said, hooks);

    let contents = Contents::read(&file);
    let mut by_id: BTreeMap<u64, Vec<(u32, Option<u64>)>> = BTreeMap::new();
    for packet in &contents.packets {
        let id = packet.packet_id().expect("an identifier");
        let verdict = packet.verdict().map(|(_, action)| action);
        by_id.entry(id).or_default().push((packet.interface, verdict));
    }
    // Each packet enters the dispatcher, passes the first program and the second, and leaves with the second's verdict.
    let way = [(0, None), (2, None), (3, Some(2)), (4, None), (5, Some(1)), (1, Some(1))];
    assert_eq!(by_id.len(), 5);
    assert!(by_id.values().all(|seen| *seen == way), "{by_id:?}");
    chain.unload();
    nothing_attached(&lab.pair.b);
}

#[test]
fn one_program_of_a_chain_is_chosen_by_its_name() {
    let Some(lab) = chained_lab() else { return };
    let chain = Chain::load(&lab);
    let file = lab.file("file.pcapng");
    let place = lab.receiver();
    let fixed = ["-i", &place, "-c", "3", "-w", &file];
    for (name, verdict) in [(FIRST, 2), (SECOND, 1)] {
        let capture = Capture::start(&lab, &[&["--program", name], &fixed[..]].concat());
        lab.send(&[frames::silent(64)], 3);
        let summary = capture.wait().summary_of_success();
        summary.assert_all_recorded(3);
        assert_eq!(summary.interfaces[0].hook, format!("xdp exit {name}"));
        let contents = Contents::read(&file);
        assert!(contents.packets.iter().all(|one| one.verdict() == Some((2, verdict))));
    }
    // By default, the capture observes the chain as a whole.
    let capture = Capture::start(&lab, &fixed);
    lab.send(&[frames::silent(64)], 3);
    let summary = capture.wait().summary_of_success();
    assert_eq!(summary.interfaces[0].hook, "xdp exit");
    chain.unload();
}

#[test]
fn error_for_an_unknown_program_lists_the_known_ones() {
    let Some(lab) = chained_lab() else { return };
    let chain = Chain::load(&lab);
    let output = trawl(&args!("capture -i {} --program nobody_has_it", lab.receiver()));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for word in args!("nobody_has_it xdp_dispatcher {FIRST} {SECOND} '--program all'") {
        assert!(said.contains(word), "{said}");
    }
    chain.unload();
}

/// A joining program replaces the dispatcher, and the capture continues to see a program that was selected by name.
#[test]
fn joining_program_does_not_end_the_capture() {
    let Some(lab) = chained_lab() else { return };
    let chain = Chain::load(&lab);
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--program", "all", "-w", &file]);
    lab.send(&[frames::silent(64)], 4);
    capture.wait_recorded(12);
    let object = programs::object_file(&lab, "traced");
    let interface = chain.interface();
    let joins = ["load", &interface, &object, "-n", FIRST, "-P", "30"];
    chain.loader(&joins);
    capture.wait_said("was replaced by xdp_dispatcher");
    lab.send(&[frames::silent(64)], 4);
    capture.wait_recorded(24);
    capture.stop_well().assert_all_recorded(24);
    chain.unload();
}
