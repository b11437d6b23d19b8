//! What would cut the session that a command is typed in, or replace a guard, is refused (issue 12 item 2).

use std::process::{Command, Output};

use trawl_tests::programs::object_file;
use trawl_tests::witness::{nothing_attached, xdp_on};
use trawl_tests::xdp::{CleanUp, fails, only_program, programs_on, succeeds};
use trawl_tests::{Lab, binary, wait_until};

/// As typed in a session that comes in by the lab's receiving end.
fn in_session(arguments: &[&str]) -> Output {
    Command::new(binary::path())
        .args(arguments)
        .env("SSH_CONNECTION", "10.77.0.1 50000 10.77.0.2 22")
        .output()
        .expect("trawl runs")
}

#[track_caller]
fn is_refused(arguments: &[&str], verdict: &str) {
    let output = in_session(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for word in ["would cut the SSH session from 10.77.0.1", verdict, "--yes"] {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
}

#[test]
fn what_cuts_the_session_is_refused() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, elsewhere) = (lab.receiver(), lab.sender());
    let load = ["xdp", "load", &place];
    let with = |more: &[&'static str]| [&["drop"][..], more].concat();
    for more in [with(&[]), with(&["--mode", "skb"]), with(&["--prio", "7"])] {
        is_refused(&[&load[..], &more].concat(), "drop");
    }
    is_refused(&[&load[..], &["tx"]].concat(), "tx");
    nothing_attached(&lab.pair.b);
    // What lets it through is not asked about, nor is what is elsewhere.
    assert!(
        in_session(&[&load[..], &["pass"]].concat())
            .status
            .success()
    );
    let before = only_program(&place);
    is_refused(&[&load[..], &["drop", "--replace"]].concat(), "drop");
    assert_eq!(only_program(&place), before);
    assert!(
        in_session(&["xdp", "load", &elsewhere, "drop"])
            .status
            .success()
    );
    succeeds(&["xdp", "unload", &elsewhere]);
    let output = in_session(&[&load[..], &["drop", "--replace", "--yes"]].concat());
    assert!(output.status.success());
    succeeds(&["xdp", "unload", &place]);
    // A program of one's own is asked what it does with a packet of the session.
    let ports = object_file(&lab, "drop_ports");
    assert!(
        in_session(&[&load[..], &[&ports]].concat())
            .status
            .success()
    );
}

#[test]
fn a_guard_is_not_replaced_unasked() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    succeeds(&["guard", "load", &place]);
    let before = xdp_on(&lab.pair.b).expect("a guard");
    let load = ["xdp", "load", &place, "pass", "--replace"];
    for more in [&[][..], &["--prio", "7"]] {
        fails(
            &[&load[..], more].concat(),
            1,
            &["it is a guard", "--prio N", "--yes"],
        );
        assert_eq!(xdp_on(&lab.pair.b).expect("a guard"), before);
    }
    succeeds(&[&load[..], &["--yes"]].concat());
    assert_ne!(xdp_on(&lab.pair.b).expect("a program"), before);
}

/// Issue 12 item 16.
#[test]
fn a_guard_has_the_place_in_a_chain_that_is_asked_for() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    let order = || -> Vec<String> {
        let programs = programs_on(&place);
        let names = programs.iter().filter_map(|one| one["name"].as_str());
        names.map(str::to_owned).collect()
    };
    succeeds(&["xdp", "load", &place, "pass", "--prio", "20"]);
    succeeds(&["guard", "load", &place]);
    assert_eq!(order(), ["trawl_guard", "trawl_pass"]);
    succeeds(&["guard", "load", &place, "--prio", "30"]);
    assert_eq!(order(), ["trawl_pass", "trawl_guard"]);
    // What is not asked for stays.
    succeeds(&["guard", "load", &place, "--default", "allow"]);
    assert_eq!(order(), ["trawl_pass", "trawl_guard"]);
}

/// Issue 12 item 2: a program that is not confirmed is taken off again, and what it replaced is put back.
#[test]
fn a_program_that_is_not_confirmed_is_taken_back() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    let output = in_session(&["xdp", "load", &place, "drop", "--confirm", "1s"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("trawl xdp confirm"),
        "{said}"
    );
    wait_until("the program is taken off", || xdp_on(&lab.pair.b).is_none());

    succeeds(&["xdp", "load", &place, "pass"]);
    let before = xdp_on(&lab.pair.b);
    succeeds(&[
        "xdp",
        "load",
        &place,
        "drop",
        "--replace",
        "--confirm",
        "1s",
    ]);
    wait_until("the program before is put back", || {
        xdp_on(&lab.pair.b) == before
    });

    succeeds(&[
        "xdp",
        "load",
        &place,
        "drop",
        "--replace",
        "--confirm",
        "1h",
    ]);
    let after = xdp_on(&lab.pair.b);
    fails(
        &["xdp", "load", &place, "tx", "--replace", "--yes"],
        1,
        &["is not confirmed"],
    );
    succeeds(&["xdp", "confirm", &place]);
    assert_eq!(xdp_on(&lab.pair.b), after);
    fails(&["xdp", "confirm", &place], 1, &["no change waits"]);
}
