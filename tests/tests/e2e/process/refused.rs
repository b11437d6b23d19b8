//! A program of another tool at the root cgroup that admits no other program at its hook.

use std::fs;

use serde_json::Value;
use trawl_tests::lab::Mounted;
use trawl_tests::programs::object_file;
use trawl_tests::witness::{output, run};
use trawl_tests::{Capture, Lab, args, skip, trawl};

/// The attached program, detached when dropped.
struct Alone {
    cgroup: Mounted,
    pin: String,
    id: u64,
}

impl Alone {
    /// Attaches the program. Returns `None` if a program of another tool is at the hook.
    fn attach(lab: &Lab) -> Option<Self> {
        let cgroup = Mounted::at(lab, "cgroup2", "rw");
        let pin = format!("/sys/fs/bpf/{}-alone", lab.pair.a.name);
        let object = object_file(lab, "alone");
        run("bpftool", &["prog", "load", &object, &pin, "type", "cgroup/connect4"]);
        let about = run("bpftool", &["-j", "prog", "show", "pinned", &pin]);
        let about: Value = serde_json::from_str(&about).expect("JSON");
        let id = about["id"].as_u64().expect("a number");
        let alone = Self { cgroup, pin, id };
        alone.at_cgroup("attach").then_some(alone)
    }

    fn at_cgroup(&self, action: &str) -> bool {
        let what = args!("cgroup {action} {} connect4 pinned {}", self.cgroup.path, self.pin);
        output("bpftool", &what).status.success()
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.at_cgroup("detach");
        let _ = fs::remove_file(&self.pin);
    }
}

#[test]
fn doctor_names_the_program_that_refuses_a_hook() {
    // The test runs alone, because the root cgroup belongs to the whole machine.
    let Some(lab) = Lab::alone() else { return };
    let Some(alone) = Alone::attach(&lab) else {
        skip("a program of another tool is at connect4 of the root cgroup");
        return;
    };
    let doctor = trawl(&["doctor", "--json"]);
    let capture =
        Capture::start(&lab, &args!("-i {} --tap tc --process -c 1 -w {}", lab.sender(), lab.file("refused.pcapng")));
    let id = alone.id;
    drop(alone);
    let said = capture.stop().stderr;
    let text = format!("trawl does not see connect4 (program {id} (is_alone) allows no other program there)");
    assert_eq!(said.matches(&text).count(), 1, "{said}");

    let document: Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    let findings = document["findings"].as_array().expect("findings");
    let about: Vec<&Value> = findings.iter().filter(|one| one["subject"] == "process").collect();
    let [finding] = about[..] else {
        panic!("{about:?}");
    };
    assert_eq!(finding["state"], "warn");
    let [text, why] = ["text", "why"].map(|field| finding[field].as_str().expect("text"));
    assert!(text.ends_with("at connect4"), "{text}");
    assert!(why.starts_with(&format!("program {id} (is_alone)")), "{why}");
    let doctor = trawl(&["doctor"]);
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(text.contains("the process of each packet (--process)") && !text.contains("connect4"), "{text}");
}
