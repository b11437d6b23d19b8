//! `trawl xdp test` next to running programs: a trial repeats their work.

use serde_json::Value;
use trawl_bpf::table::Table;
use trawl_program::running::Running;
use trawl_tests::xdp::{fails, only_program, succeeds};
use trawl_tests::{Capture, Lab, frames, programs, trawl};

use crate::trial::{self, report};

/// The port that the firewall drops.
const PORT: u16 = 7777;

/// A program that ran on an interface, recorded at both ends, does in a trial what it did there.
#[test]
fn recorded_verdicts_are_reproduced() {
    let Some(lab) = Lab::open() else {
        return;
    };
    let object = programs::object_file(&lab, "chosen");
    let place = lab.receiver();
    succeeds(&["xdp", "load", &place, &object, "--tappable"]);
    let file = lab.file("recorded.pcapng");
    let arguments = ["-i", &place, "--tap", "tailcall", "-Q", "in", "--at", "both", "-w", &file, "-c", "400"];
    let capture = Capture::start(&lab, &arguments);
    let actions: Vec<Vec<u8>> = (0..4).map(frames::choosing).collect();
    lab.send(&actions, 200);
    capture.wait().summary_of_success().assert_all_recorded(400);
    succeeds(&["xdp", "unload", &place]);
    crate::json::holds("xdp test", trawl(&["xdp", "test", "--json", &object, &file]).stdout.as_slice());
    let (report, status) = report(&[&object, &file]);
    assert_eq!((status, &report["packets"]), (0, &Value::from(200)), "{report}");
    assert_eq!(report["recorded"]["reproduced"], 200, "{report}");
    assert_eq!((trial::count(&report, "DROP"), trial::count(&report, "PASS")), (50, 50), "{report}");
}

/// xdp-filter with filters does in a trial, with its maps copied, what it did on the interface.
#[test]
fn recorded_verdicts_of_xdp_filter_are_reproduced() {
    let Some(lab) = Lab::open() else {
        return;
    };
    let object = crate::mutants::XDP_FILTER;
    if !std::path::Path::new(object).exists() {
        return trawl_tests::skip("the package xdp-tools is not installed");
    }
    let place = lab.receiver();
    succeeds(&["xdp", "load", &place, object, "--tappable"]);
    let program = u32::try_from(trawl_tests::xdp::only_program(&place)).expect("an identifier");
    let running = trawl_program::running::Running::open(program).expect("the program").expect("it is loaded");
    for (name, key, value) in crate::mutants::filters() {
        let map = running.maps().iter().find(|(_, about)| about.name == name).expect("the map of the filter");
        let table = trawl_bpf::table::Table::new(map.0.try_clone().expect("a descriptor")).expect("a map");
        table.update_all(&key, &value).expect("a filter");
    }
    let file = lab.file("recorded.pcapng");
    let packets = crate::mutants::packets();
    let count = 6982;
    let ends = (2 * count).to_string();
    let arguments = ["-i", &place, "--tap", "tailcall", "-Q", "in", "--at", "both", "-w", &file, "-c", &ends];
    let capture = Capture::start(&lab, &arguments);
    lab.send(&packets, count);
    capture.wait().summary_of_success().assert_all_recorded(2 * count);
    let (report, status) = report(&[object, &file, "--maps", &place]);
    assert_eq!((status, &report["packets"]), (0, &Value::from(count)), "{report}");
    assert_eq!(report["recorded"]["reproduced"], count, "{report}");
    assert!(trial::count(&report, "DROP") > 0 && trial::count(&report, "PASS") > 0, "{report}");
    // Without the filters, other packets pass.
    let (without, status) = trial::report(&[object, &file]);
    assert_eq!(status, 1, "{without}");
    succeeds(&["xdp", "unload", &place]);
}

/// drop_ports on the receiving end of a lab, with port 7777 in its map.
struct Firewall<'l> {
    lab: &'l Lab,
    place: String,
    object: String,
    program: u64,
}

impl<'l> Firewall<'l> {
    fn new(lab: &'l Lab) -> Self {
        let (place, object) = (lab.receiver(), programs::object_file(lab, "drop_ports"));
        succeeds(&["xdp", "load", &place, &object, "--tappable"]);
        let program = only_program(&place);
        let firewall = Self { lab, place, object, program };
        firewall.map("ports").update_all(&PORT.to_ne_bytes(), &[0; 4]).expect("an entry");
        firewall
    }

    fn map(&self, name: &str) -> Table {
        let id = u32::try_from(self.program).expect("an identifier");
        let running = Running::open(id).expect("the program").expect("it is loaded");
        let map = running.maps().iter().find(|(_, about)| about.name.ends_with(name)).expect("its map");
        Table::new(map.0.try_clone().expect("a descriptor")).expect("a map")
    }

    /// Returns a capture of packets of which the firewall drops the half.
    fn recording(&self) -> String {
        let file = self.lab.file("recorded.pcapng");
        let arguments = ["-i", &self.place, "--tap", "tailcall", "-Q", "in", "--at", "both", "-w", &file, "-c", "200"];
        let capture = Capture::start(self.lab, &arguments);
        let frames = [frames::udp_to(PORT, b"x"), frames::udp_to(53, b"x")];
        self.lab.send(&frames, 100);
        capture.wait().summary_of_success().assert_all_recorded(200);
        file
    }
}

/// A running program is compared with a file, with its maps' contents, which stay as they are.
#[test]
fn running_program_is_compared_and_left_alone() {
    let Some(lab) = Lab::open() else {
        return;
    };
    let firewall = Firewall::new(&lab);
    let recording = firewall.recording();
    let before = (firewall.map("ports").entries().expect("entries"), firewall.map(".bss").entries().expect("entries"));
    let Firewall { object, place, .. } = &firewall;
    let (same, status) = report(&[object, &recording, "--against", place]);
    assert_eq!((status, trial::count(&same, "DROP"), trial::count(&same, "PASS")), (0, 50, 50), "{same}");
    assert_eq!(same["recorded"]["reproduced"], 100, "{same}");
    let (without, status) = report(&[object, &recording, "--against", place, "--maps", "none"]);
    assert_eq!((status, without["recorded"]["reproduced"].as_u64()), (0, Some(50)), "{without}");
    let other = programs::object_file(&lab, "chosen");
    let against = ["--against-prog", "drop_ports", "--against", place];
    let (other, status) = report(&[&[&other[..], &recording], &against[..]].concat());
    assert_eq!((status, other["against"]["name"].as_str()), (1, Some("drop_ports")), "{other}");
    let after = (firewall.map("ports").entries().expect("entries"), firewall.map(".bss").entries().expect("entries"));
    assert_eq!(before, after);
    assert_eq!(only_program(place), firewall.program);
    succeeds(&["xdp", "unload", place]);
}

/// A program replaces another one only if it does the same with the recorded packets, or what is allowed.
#[test]
fn replacement_is_tested_first() {
    let Some(lab) = Lab::open() else {
        return;
    };
    let firewall = Firewall::new(&lab);
    let recording = firewall.recording();
    let Firewall { object, place, program, .. } = &firewall;
    let other = programs::object_file(&lab, "marking");
    let replace = ["xdp", "load", place, &other, "--prog", "to_first", "--replace", "--tested", &recording];
    fails(&replace, 1, &["does not do the same", "leave out --tested"]);
    assert_eq!(only_program(place), *program);
    succeeds(&[&replace[..], &["--allow", "drop>pass where udp port 7777", "--yes"]].concat());
    let replaced = only_program(place);
    assert_ne!(replaced, *program);
    succeeds(&["xdp", "load", place, object, "--replace", "--yes"]);
    let again = succeeds(&["xdp", "load", place, object, "--replace", "--keep-maps", "--tested", &recording]);
    assert!(!again.contains("differ"), "{again}");
    succeeds(&["xdp", "unload", place]);
}

/// Maps that were pinned in a directory are the first contents.
#[test]
fn pinned_maps_are_the_first_contents() {
    let Some(lab) = Lab::open() else {
        return;
    };
    let (place, object) = (lab.receiver(), programs::object_file(&lab, "drop_ports"));
    let directory = format!("/sys/fs/bpf/trawl-trial-{}", std::process::id());
    succeeds(&["xdp", "load", &place, &object, "--pin-maps", &directory]);
    let running = Running::open(u32::try_from(only_program(&place)).expect("an identifier"));
    let running = running.expect("the program").expect("it is loaded");
    let map = running.maps().iter().find(|(_, about)| about.name == "ports").expect("its map");
    let table = Table::new(map.0.try_clone().expect("a descriptor")).expect("a map");
    table.update_all(&53u16.to_ne_bytes(), &[0; 4]).expect("an entry");
    let files = trial::Files::open().expect("root");
    let recording = files.recording(&[(0, frames::udp_to(53, b"x"), None), (1, frames::udp_to(54, b"x"), None)]);
    let (pinned, status) = report(&[&object, &recording, "--maps", &directory]);
    succeeds(&["xdp", "unload", &place]);
    std::fs::remove_dir_all(&directory).or_else(|_| std::fs::remove_dir(&directory)).ok();
    assert_eq!((status, trial::count(&pinned, "DROP"), trial::count(&pinned, "PASS")), (0, 1, 1), "{pinned}");
}
