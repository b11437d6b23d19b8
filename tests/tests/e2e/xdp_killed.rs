//! A load or an unload that is killed at any moment leaves nothing that the next command does not remove.

use std::fs;
use std::path::Path;

use trawl_tests::programs::object_file;
use trawl_tests::strace::{self, Call};
use trawl_tests::witness::output;
use trawl_tests::xdp::{CleanUp, all_gone, succeeds};
use trawl_tests::{Lab, args, binary, tools_or_skip, wait_until};

/// Calls that change something, or begin a thread that does so in another namespace.
const CALLS: &str = "trace=bpf,ioctl,?unlink,?unlinkat,?rmdir,?mkdir,?mkdirat,?clone3";
/// Most ioctl calls only query a device, so one of this many consecutive calls is chosen.
const QUERIES: usize = 3;

/// Returns the settings that programs change on the other end.
fn settings(lab: &Lab) -> Vec<bool> {
    let ethtool = lab.pair.a.ethtool().expect("the interface is there");
    let names = ["rx-gro", "tx-checksum-ip-generic", "tx-checksum-sctp", "tx-vlan-hw-insert"];
    let all = names.map(|name| ethtool.feature(name).expect("ethtool answers"));
    all.map(|one| one.is_some_and(|one| one)).into()
}

/// Returns the calls at which a command is killed: each call that changes something, and the first of consecutive calls
/// that begin a thread. Other tests' pins may change the number of calls, so that a kill may come slightly earlier or
/// later.
fn moments(calls: &[Call]) -> Vec<&Call> {
    let changes = |call: &&Call| {
        let words = ["_PIN", "UPDATE", "DELETE", "DETACH", "LINK_"];
        call.name != "bpf" || words.iter().any(|word| call.text.contains(word))
    };
    let mut moments: Vec<&Call> = calls.iter().filter(changes).collect();
    moments.dedup_by(|one, before| one.name == "clone3" && before.name == "clone3");
    let mut queries = 0;
    moments.retain(|call| {
        queries += usize::from(call.name == "ioctl");
        call.name != "ioctl" || queries % QUERIES == 0
    });
    moments
}

/// Runs a command repeatedly, and kills it at a different call each time.
fn killed_everywhere(lab: &Lab, before: &[&str], command: &[&str], pins: &str) {
    let as_it_was = settings(lab);
    let trawl = binary::path().to_str().expect("plain");
    let place = lab.receiver();
    let trace = lab.file("trace");
    let run = |more: &[&str]| {
        if !before.is_empty() {
            succeeds(before);
        }
        let strace = ["-qq", "-e", CALLS, "-o", &trace];
        let done = output("strace", &[&strace[..], more, &[trawl], command].concat());
        let at = format!("{command:?}, {more:?}");
        // The partial result can be shown and removed.
        succeeds(&["xdp", "status", "-i", &place]);
        let _ = trawl_tests::trawl(&["xdp", "unload", &place, "--all"]);
        wait_until(&format!("nothing is left of {at}"), || {
            succeeds(&["xdp", "status", "-i", &place, &lab.sender()]);
            settings(lab) == as_it_was && !Path::new(pins).exists()
        });
        trawl_tests::witness::nothing_attached(&lab.pair.a);
        all_gone(lab, &[], &[]);
        done.status.success()
    };
    assert!(run(&[]), "{command:?}");
    let text = fs::read_to_string(&trace).expect("strace wrote it");
    let calls = strace::calls(&text);
    let killed = moments(&calls).into_iter().filter(|call| !run(&["-e", &call.killing()])).count();
    assert!(killed > 0, "{command:?} was never killed in time");
}

#[test]
#[ignore = "make test-long runs it"]
fn loads_and_unloads_are_killed_at_each_step() {
    if !tools_or_skip(&["strace"]) {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "several"));
    let pins = format!("/sys/fs/bpf/{}-killed", lab.pair.b.name);
    let deep = format!("{pins}/deep");
    let tx = ["xdp", "load", &place, "tx"];
    killed_everywhere(&lab, &[], &tx, &pins);
    killed_everywhere(&lab, &tx, &["xdp", "unload", &place], &pins);
    let pinned = args!(
        "xdp load {place} {file} --prog several_third --tappable --pin-maps \
         {deep}"
    );
    killed_everywhere(&lab, &[], &pinned, &pins);
}
