//! A load or an unload that is killed at any moment leaves nothing behind that the next command does not clear away.

use std::path::Path;

use trawl_tests::programs::object_file;
use trawl_tests::witness::output;
use trawl_tests::xdp::{CleanUp, all_gone, succeeds};
use trawl_tests::{Lab, binary, tools_or_skip, wait_until};

/// Calls that are let pass between one run and the next.
const STEP: usize = 7;
/// More than any of them makes.
const MOST: usize = 1000;

/// The settings that programs switch on the other end.
fn settings(lab: &Lab) -> Vec<bool> {
    let ethtool = lab.pair.a.ethtool().expect("the interface is there");
    let names = [
        "rx-gro",
        "tx-checksum-ip-generic",
        "tx-checksum-sctp",
        "tx-vlan-hw-insert",
    ];
    let all = names.map(|name| ethtool.feature(name).expect("ethtool answers"));
    all.map(|one| one.is_some_and(|one| one)).into()
}

/// Runs a command again and again, killed one system call later each time, until it comes through.
fn killed_everywhere(lab: &Lab, before: &[&str], command: &[&str], pins: &str) {
    let as_it_was = settings(lab);
    let trawl = binary::path().to_str().expect("plain");
    let place = lab.receiver();
    for call in (1..MOST).step_by(STEP) {
        if !before.is_empty() {
            succeeds(before);
        }
        let inject = format!(
            "inject=bpf,ioctl,?unlink,?unlinkat,?rmdir,?mkdir,?mkdirat:signal=SIGKILL:when={call}"
        );
        let strace = [
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            "trace=bpf,ioctl,?unlink,?unlinkat,?rmdir,?mkdir,?mkdirat",
            "-e",
            &inject,
        ];
        let done = output("strace", &[&strace[..], &[trawl], command].concat());
        // Whatever it had come to can be seen, and taken off.
        succeeds(&["xdp", "status", "-i", &place]);
        let _ = trawl_tests::trawl(&["xdp", "unload", &place, "--all"]);
        wait_until(
            &format!("nothing is left of {command:?}, call {call}"),
            || {
                succeeds(&["xdp", "status", "-i", &place, &lab.sender()]);
                settings(lab) == as_it_was && !Path::new(pins).exists()
            },
        );
        trawl_tests::witness::nothing_attached(&lab.pair.a);
        all_gone(lab, &[], &[]);
        if done.status.success() {
            return;
        }
    }
    panic!("{command:?} never came through");
}

#[test]
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
    let pinned = [
        "xdp",
        "load",
        &place,
        &file,
        "--prog",
        "several_third",
        "--tappable",
        "--pin-maps",
        &deep,
    ];
    killed_everywhere(&lab, &[], &pinned, &pins);
}
