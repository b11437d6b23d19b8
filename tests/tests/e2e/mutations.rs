//! Hostile input: object files with modified bytes are loaded or refused, but never abort a command; names cannot
//! control a terminal.

use std::process::Command;

use trawl_tests::programs::{object, object_file};
use trawl_tests::witness::nothing_attached;
use trawl_tests::xdp::CleanUp;
use trawl_tests::{Lab, binary, trawl};

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }

    /// Returns the object with one to four bytes changed, or truncated.
    fn changed(&mut self, object: &[u8]) -> Vec<u8> {
        let mut bytes = object.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            bytes[at] = match self.below(3) {
                0 => 0xff,
                1 => bytes[at] ^ (1 << self.below(8)),
                _ => self.below(256) as u8,
            };
        }
        if self.below(16) == 0 {
            let end = self.below(bytes.len());
            bytes.truncate(end);
        }
        bytes
    }
}

/// Loads a file, and returns whether it was accepted.
#[track_caller]
fn load(lab: &Lab, file: &str, number: usize) -> bool {
    // The exit status of `timeout` shows a command that hangs (124) or dies by a signal (128 and more).
    let mut command = Command::new("timeout");
    command.arg("60").arg(binary::path());
    command.args(["xdp", "load", &lab.receiver(), file, "--replace", "--yes"]);
    if number % 2 == 1 {
        command.arg("--tappable");
    }
    let output = command.output().expect("timeout runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let status = output.status;
    assert!(matches!(status.code(), Some(0..=2)) && !said.contains("panicked"), "mutation {number}: {status}: {said}");
    let is_plain = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\t');
    assert!(said.chars().all(is_plain), "mutation {number}: {said:?}");
    status.success()
}

fn mutations(count: usize) {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let file = lab.file("changed.o");
    let mut numbers = Numbers(12);
    let mut loaded = 0;
    for number in 0..count {
        let name = ["drop_ports", "several", "members"][number % 3];
        std::fs::write(&file, numbers.changed(object(name))).expect("a file");
        loaded += usize::from(load(&lab, &file, number));
    }
    assert!(loaded > 0 && loaded < count, "{loaded} of {count}");
    trawl_tests::xdp::succeeds(&["xdp", "load", &lab.receiver(), "pass", "--replace", "--yes"]);
    trawl_tests::xdp::succeeds(&["xdp", "unload", &lab.receiver(), "--all", "--yes"]);
    nothing_attached(&lab.pair.b);
}

#[test]
fn changed_objects_are_loaded_or_refused() {
    mutations(60);
}

#[test]
#[ignore = "make test-long runs it"]
fn changed_objects_2800() {
    mutations(2800);
}

/// The object has section names that are not UTF-8, as made by: LC_ALL=C sed 's/\.text/\xfftext/g'
#[test]
fn section_names_that_are_no_text_cause_no_abort() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let whole = std::fs::read(object_file(&lab, "drop_ports")).expect("an object");
    let file = lab.file("changed.o");
    let names = [&b".text"[..], b".maps", b".BTF", b"license", b"xdp", b"drop_ports", b"ports"];
    for (number, name) in names.into_iter().enumerate() {
        for replaced in [0xff, 0x1b, 0x00] {
            let mut bytes = whole.clone();
            for at in 0..bytes.len() - name.len() {
                if bytes[at..].starts_with(name) {
                    bytes[at] = replaced;
                }
            }
            std::fs::write(&file, bytes).expect("a file");
            load(&lab, &file, number);
        }
    }
}

#[test]
fn interface_names_do_not_control_the_terminal() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (namespace, name) = (lab.pair.b.name.as_str(), "a\u{1b}[31mb");
    let link = ["-n", namespace, "link", "add", name, "type", "veth"];
    trawl_tests::witness::run("ip", &[&link[..], &["peer", "name", "other"]].concat());
    let up = ["-n", namespace, "link", "set", name, "up"];
    trawl_tests::witness::run("ip", &up);
    let place = format!("{namespace}:{name}");
    for command in [
        &["capture", "-D", "--netns", namespace][..],
        &["doctor", "-i", &place],
        &["xdp", "load", &place, "pass"],
        &["xdp", "status", "-i", &place],
        &["xdp", "stats", "-i", &place],
        &["xdp", "maps", "-i", &place],
        &["top", "-i", &place, "--once"],
        &["xdp", "unload", &place],
        &["guard", "load", &place],
        &["guard", "list", &place],
        &["guard", "stats", &place],
        &["guard", "unload", &place],
        &["balance", "load", &place],
        &["balance", "stats", "--on", &place],
        &["balance", "unload", &place],
        &["stat", "-i", &place, "--duration", "100ms"],
        &["capture", "-i", &place, "--duration", "100ms"],
        &["extcap", "--extcap-interfaces"],
        &["read", name],
    ] {
        let output = trawl(command);
        for text in [output.stdout, output.stderr] {
            let text = String::from_utf8_lossy(&text).into_owned();
            let is_plain = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\t');
            assert!(text.chars().all(is_plain), "{command:?}: {text:?}");
        }
    }
}
