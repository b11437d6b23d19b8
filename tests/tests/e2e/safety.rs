//! Changes that would cut the session of the command, or replace a guard, are refused.

use std::process::{Command, Output};

use trawl_tests::programs::object_file;
use trawl_tests::witness::{nothing_attached, xdp_on};
use trawl_tests::xdp::{CleanUp, fails, only_program, programs_on, succeeds};
use trawl_tests::{Lab, args, binary, trawl, wait_until};

/// Runs trawl as in a session through the lab's receiving end.
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
fn changes_that_cut_the_session_are_refused() {
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
    // Programs that pass the session need no consent, nor do other interfaces.
    assert!(in_session(&[&load[..], &["pass"]].concat()).status.success());
    let before = only_program(&place);
    is_refused(&[&load[..], &["drop", "--replace"]].concat(), "drop");
    assert_eq!(only_program(&place), before);
    assert!(in_session(&["xdp", "load", &elsewhere, "drop"]).status.success());
    succeeds(&["xdp", "unload", &elsewhere]);
    let output = in_session(&[&load[..], &["drop", "--replace", "--yes"]].concat());
    assert!(output.status.success());
    succeeds(&["xdp", "unload", &place]);
    // trawl runs a user's program on a packet of the session to learn its verdict.
    let ports = object_file(&lab, "drop_ports");
    assert!(in_session(&[&load[..], &[&ports]].concat()).status.success());
}

#[test]
fn guard_is_not_replaced_unasked() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    succeeds(&["guard", "load", &place]);
    let before = xdp_on(&lab.pair.b).expect("a guard");
    let load = ["xdp", "load", &place, "pass", "--replace"];
    for more in [&[][..], &["--prio", "7"]] {
        fails(&[&load[..], more].concat(), 1, &["it is a guard", "--prio N", "--yes"]);
        assert_eq!(xdp_on(&lab.pair.b).expect("a guard"), before);
    }
    succeeds(&[&load[..], &["--yes"]].concat());
    assert_ne!(xdp_on(&lab.pair.b).expect("a program"), before);
}

#[test]
fn guard_has_the_requested_priority_in_a_chain() {
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
    // An omitted priority stays unchanged.
    succeeds(&["guard", "load", &place, "--default", "allow"]);
    assert_eq!(order(), ["trawl_pass", "trawl_guard"]);
}

/// Returns the name and the kind of each of trawl's programs on an interface.
fn status_of(place: &str) -> Vec<(String, String)> {
    let output = trawl(&["xdp", "status", "-i", place, "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let interfaces = said["interfaces"].as_array().cloned().unwrap_or_default();
    let programs = interfaces.iter().filter_map(|one| one["programs"].as_array());
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    (programs.flatten()).map(|program| (text(&program["name"]), text(&program["kind"]))).collect()
}

/// An unconfirmed program is removed again, and the one that it replaced is restored.
#[test]
fn unconfirmed_program_is_reverted() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    let output = in_session(&["xdp", "load", &place, "drop", "--confirm", "1s"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("trawl xdp confirm"), "{said}");
    wait_until("the program is detached", || xdp_on(&lab.pair.b).is_none());

    // trawl's own program is recognised again: it can be removed without an id, with its settings.
    for program in ["pass", "tx"] {
        succeeds(&["xdp", "load", &place, program]);
        let before = xdp_on(&lab.pair.b);
        let (own, peer) = (status_of(&place), xdp_on(&lab.pair.a));
        for change in [&["xdp", "load", &place, "drop", "--replace"][..], &["xdp", "unload", &place]] {
            succeeds(&[change, &["--confirm", "1s"]].concat());
            assert_ne!(xdp_on(&lab.pair.b), before);
            wait_until("the previous program is restored", || {
                xdp_on(&lab.pair.b) == before && status_of(&place) == own
            });
            assert_eq!(xdp_on(&lab.pair.a).is_some(), peer.is_some());
        }
        succeeds(&["xdp", "unload", &place]);
        nothing_attached(&lab.pair.b);
        nothing_attached(&lab.pair.a);
    }

    succeeds(&["xdp", "load", &place, "pass"]);
    succeeds(&args!("xdp load {place} drop --replace --confirm 1h"));
    let after = xdp_on(&lab.pair.b);
    fails(&["xdp", "load", &place, "tx", "--replace", "--yes"], 1, &["is not confirmed"]);
    succeeds(&["xdp", "confirm", &place]);
    assert_eq!(xdp_on(&lab.pair.b), after);
    fails(&["xdp", "confirm", &place], 1, &["no change is unconfirmed"]);
}

/// Programs whose removal could cut the session are not unloaded without consent.
#[test]
fn unloading_has_the_same_safety() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    // Without the guard, its rules would not be enforced.
    succeeds(&["guard", "load", &place]);
    let guard = xdp_on(&lab.pair.b).expect("a guard");
    for which in [&["xdp", "unload", &place][..], &["xdp", "unload", &place, "--all"]] {
        fails(which, 1, &["it is a guard", "trawl guard unload", "--yes"]);
        assert_eq!(xdp_on(&lab.pair.b).expect("a guard"), guard);
    }
    // The guard's rules would be lost, so its removal cannot be reverted.
    fails(&["xdp", "unload", &place, "--confirm", "1s"], 1, &["it is a guard"]);
    succeeds(&["guard", "unload", &place]);
    // This program handles the session's packets itself, so the session may need it.
    succeeds(&["xdp", "load", &place, "tx"]);
    let output = in_session(&["xdp", "unload", &place]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("SSH session from 10.77.0.1 may need it"), "{said}");
    assert!(xdp_on(&lab.pair.b).is_some());
    // Replacing the program also removes it.
    let before = xdp_on(&lab.pair.b);
    for command in [
        &["guard", "load", &place][..],
        &["route", "load", &place],
        &["balance", "load", &place],
        &["xdp", "load", &place, "pass"],
    ] {
        let output = in_session(&[command, &["--replace"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
        assert!(said.contains("may need it: the verdict on its packets is tx"), "{said}");
        assert_eq!(xdp_on(&lab.pair.b), before, "{command:?}");
    }
    assert!(in_session(&["xdp", "unload", &place, "--yes"]).status.success());
    // A program that drops or passes the session's packets may be removed.
    for harmless in ["drop", "pass"] {
        succeeds(&["xdp", "load", &place, harmless]);
        assert!(in_session(&["xdp", "unload", &place]).status.success());
    }
    nothing_attached(&lab.pair.b);
}

/// The decision depends on the verdict of the whole chain, not on the verdict of one program in it.
#[test]
fn verdict_of_the_whole_chain_counts() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    let file = object_file(&lab, "several");
    let load = ["xdp", "load", &place, &file, "--prog"];
    let verdict = |name: &str, prio: &str, on: &str| {
        let options = [name, "--prio", prio, "--on", on];
        in_session(&[&load[..], &options].concat())
    };
    succeeds(&["xdp", "load", &place, "pass", "--prio", "50"]);
    for (on, goes) in [("pass", false), ("pass,aborted", true)] {
        let output = verdict("several_second", "10", on);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), goes, "{on}: {said}");
        assert_eq!(programs_on(&place).len(), if goes { 2 } else { 1 }, "{said}");
    }
}

/// The router and the balancer replace a guard like any program.
#[test]
fn route_and_balance_do_not_replace_a_guard_unasked() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    succeeds(&["guard", "load", &place]);
    let guard = xdp_on(&lab.pair.b).expect("a guard");
    for command in ["route", "balance"] {
        let load = [command, "load", &place, "--replace"];
        fails(&load, 1, &["it is a guard", "--yes"]);
        assert_eq!(xdp_on(&lab.pair.b).expect("a guard"), guard);
    }
}

/// `ip netns exec` hides the BPF file system, and the process that reverts the change outlives all processes in whose
/// mount namespace trawl could find the file system again.
#[test]
fn unconfirmed_program_is_reverted_in_ip_netns_exec() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let station = &lab.pair.b;
    let output = Command::new("ip")
        .args(["netns", "exec", &station.name])
        .arg(binary::path())
        .args(["xdp", "load", &station.interface, "drop", "--confirm", "1s"])
        .output()
        .expect("ip runs");
    assert!(output.status.success(), "{output:?}");
    wait_until("the program is detached", || xdp_on(station).is_none());
}

/// An unconfirmed router is removed.
#[test]
fn unconfirmed_route_and_balance_are_reverted() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    for command in ["route", "balance"] {
        succeeds(&["xdp", "load", &place, "pass"]);
        let before = xdp_on(&lab.pair.b).expect("a program");
        succeeds(&[command, "load", &place, "--replace", "--confirm", "1s"]);
        assert_ne!(xdp_on(&lab.pair.b).as_ref(), Some(&before));
        wait_until("the previous program is restored", || xdp_on(&lab.pair.b).is_some_and(|program| program == before));
        succeeds(&["xdp", "unload", &place, "--all"]);
    }
}

/// The router and the balancer are checked with the session's packets at load, replace and unload.
#[test]
fn route_and_balance_do_not_cut_the_session() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    let said_to = |arguments: &[&str]| {
        let output = in_session(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    // The address of the session is a virtual address, so its packets would go to the backend.
    let table = lab.path("takes_ssh.toml");
    let text = r#"
[[vip]]
address = "10.77.0.2"
port = 22
protocol = "tcp"
forward = "direct"

[[vip.backend]]
address = "10.77.0.1"
mac = "02:00:00:00:00:05"
"#;
    std::fs::write(&table, text).expect("a file");
    let load = ["balance", "load", &place, &lab.file("takes_ssh.toml")];
    let (status, said) = said_to(&load);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("SSH session from 10.77.0.1") && said.contains("--yes"), "{said}");
    nothing_attached(&lab.pair.b);
    let (status, said) = said_to(&[&load[..], &["--yes"]].concat());
    assert_eq!(status, Some(0), "{said}");

    // The session passes the balancer, so its removal needs consent.
    let before = xdp_on(&lab.pair.b).expect("a balancer");
    for command in [
        &["balance", "unload", &place][..],
        &["xdp", "unload", &place],
        &["route", "load", &place, "--replace"],
        &["xdp", "load", &place, "pass", "--replace"],
    ] {
        let (status, said) = said_to(command);
        assert_eq!(status, Some(1), "{command:?}: {said}");
        let why = if command.contains(&"unload") {
            "SSH session from 10.77.0.1 may need it"
        } else {
            "the contents of its maps would be lost"
        };
        assert!(said.contains(why) && said.contains("--yes"), "{said}");
        assert_eq!(xdp_on(&lab.pair.b).as_ref(), Some(&before), "{command:?}");
    }
    // The balancer is removed for a time, and then restored.
    let (status, said) = said_to(&["balance", "unload", &place, "--confirm", "1s"]);
    assert_eq!(status, Some(0), "{said}");
    wait_until("the balancer is restored", || xdp_on(&lab.pair.b).as_ref() == Some(&before));
    succeeds(&["xdp", "unload", &place, "--all"]);

    // A router leaves packets for this host to the stack, and with them the session.
    for command in [&["load"][..], &["load", "--replace"], &["unload"]] {
        let (status, said) = said_to(&[&["route"], command, &[&place]].concat());
        assert_eq!(status, Some(0), "{command:?}: {said}");
    }
    nothing_attached(&lab.pair.b);
}
