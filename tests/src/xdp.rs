//! `trawl xdp` in tests: its status, and checks for leftovers.

use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use trawl_lab::Station;
use trawl_sys::netns::Mark;

use crate::lab::place;
use crate::{Lab, trawl, witness};

/// Runs a command that has to succeed, and returns its output.
#[track_caller]
pub fn succeeds(arguments: &[&str]) -> String {
    let output = trawl(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Checks that the command fails with this status and these texts, without a panic.
#[track_caller]
pub fn fails(arguments: &[&str], status: i32, words: &[&str]) {
    let output = trawl(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
}

/// Returns `trawl xdp status` of an interface.
#[track_caller]
pub fn status_of(interface: &str) -> Value {
    let text = succeeds(&["xdp", "status", "-i", interface, "--json"]);
    let all: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    all["interfaces"][0].clone()
}

/// Returns the effective programs: the ones on the interface, or the ones behind its dispatcher.
#[track_caller]
pub fn programs_on(interface: &str) -> Vec<Value> {
    let status = status_of(interface);
    let attached = status["programs"].as_array().expect("a list").clone();
    let behind = |one: Value| {
        let chain = one["chain"].as_array().expect("a list").clone();
        if chain.is_empty() { vec![one] } else { chain }
    };
    attached.into_iter().flat_map(behind).collect()
}

/// Returns the id of the only effective program.
#[track_caller]
pub fn only_program(interface: &str) -> u64 {
    let programs = programs_on(interface);
    assert_eq!(programs.len(), 1, "{programs:?}");
    programs[0]["id"].as_u64().expect("a number")
}

/// Returns the directory of trawl's pins for a station's interface.
pub fn pins_of(station: &Station) -> String {
    let namespace = Mark::of(Some(&station.namespace)).expect("a mark");
    format!("/sys/fs/bpf/trawl/{namespace}-{}", station.index)
}

/// Checks that nothing is on the interface, and that these programs and maps are gone.
#[track_caller]
pub fn all_gone(lab: &Lab, programs: &[u64], maps: &[u64]) {
    witness::nothing_attached(&lab.pair.b);
    for program in programs {
        witness::wait_unloaded(*program);
    }
    for map in maps {
        crate::wait_until(&format!("map {map} is gone"), || {
            let shown = witness::output("bpftool", &["map", "show", "id", &map.to_string()]);
            !shown.status.success()
        });
    }
    let pins = pins_of(&lab.pair.b);
    let left = witness::output("find", &[&pins]).stdout;
    assert!(left.is_empty(), "{}", String::from_utf8_lossy(&left));
}

/// Removes all programs from the receiving end at the end of the test, even after a failure.
#[derive(Debug)]
pub struct CleanUp(pub String);

impl CleanUp {
    pub fn of(lab: &Lab) -> Self {
        Self(place(&lab.pair.b))
    }
}

impl Drop for CleanUp {
    fn drop(&mut self) {
        let _ = trawl(&["xdp", "unload", &self.0, "--all"]);
    }
}

/// Runs libxdp's own tool in a namespace. One at a time: two collide on its lock file.
#[track_caller]
pub fn xdp_loader(namespace: &str, arguments: &[&str]) -> String {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let namespace = format!("--net=/run/netns/{namespace}");
    witness::run("nsenter", &[&[&namespace, "xdp-loader"], arguments].concat())
}
