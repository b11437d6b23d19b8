//! Two operators of one fleet: neither replaces or ends the other's captures without naming the other.

use std::fs;
use std::process::Output;

use serde_json::Value;
use trawl_tests::{Lab, args, trawl, wait_until};

use super::{Nats, OPERATOR, OPERATOR_BY_CREDENTIALS as SECOND, PASSWORD, report};

/// Runs a command of the second operator, whose key the policies of the agents list, too.
fn second(nats: &Nats, arguments: &[&str]) -> Output {
    let seed = include_str!("operator.creds").lines().find(|line| line.starts_with("SU")).expect("a seed");
    let file = format!("{}/second", nats.directory);
    fs::write(&file, seed).expect("a file");
    trawl(&[&["fleet"], arguments, &["--nats", &nats.url, "--nkey", &file]].concat())
}

/// Returns the names of the captures that a host runs, and of its incidents.
fn present(lab: &Lab, host: &str) -> [Vec<String>; 2] {
    let report = report(&lab.file(&format!("report-{host}")));
    [("captures", "name"), ("incidents", "id")].map(|(list, name)| {
        let all = report[list].as_array().into_iter().flatten();
        all.filter_map(|one| Some(one[name].as_str()?.to_owned())).collect()
    })
}

/// Checks that a command fails, and names a capture, its operator, and the options with this operator.
fn is_refused(output: &Output, capture: &str, operator: &str, options: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("alpha: the capture '{capture}' belongs to the operator {operator}")), "{said}");
    for option in options {
        assert!(said.contains(&format!("{option} {operator}")), "{said}");
    }
}

#[test]
fn captures_of_another_operator_stay_until_that_operator_is_named() {
    let Some(lab) = Lab::open() else { return };
    let accounts = format!(
        "authorization {{ users = [ {{ nkey: {} }}, {{ nkey: {SECOND} }}, {{ user: alpha, password: \"{PASSWORD}\" }} ] }}",
        OPERATOR[1]
    );
    let Some(nats) = Nats::with_passwords(&lab, &accounts) else {
        return;
    };
    assert!(nats.fleet(&["status"]).status.success());
    let alpha = nats.agent(&lab, "alpha", "alpha");
    let (receiver, store) = (lab.receiver(), format!("file://{}", lab.file("store")));
    let start = |name: &str, snaplen: u32| {
        args!(
            "start alpha --name {name} -i {receiver} --tap packet --store {store} --packets-at host --wait --snaplen {snaplen} udp"
        )
    };
    let started = nats.fleet(&start("first", 256));
    assert!(started.status.success(), "{started:?}");
    // The second operator does not know the first one.
    for refused in [
        second(&nats, &args!("trigger alpha --id one")),
        second(&nats, &start("second", 256)),
        second(&nats, &args!("stop alpha")),
    ] {
        is_refused(&refused, "first", OPERATOR[1], &["--operator", "--replace"]);
    }
    let triggered = second(&nats, &args!("trigger alpha --id one --operator {}", OPERATOR[1]));
    assert!(triggered.status.success(), "{triggered:?}");
    assert_eq!(present(&lab, "alpha"), [vec!["first"], vec!["one"]]);
    // Known operators keep their captures, too.
    let known = ["--operator", OPERATOR[1]];
    let added = second(&nats, &[&start("second", 256)[..], &known].concat());
    assert!(added.status.success(), "{added:?}");
    let status = nats.fleet(&args!("status --json --operator {SECOND}"));
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let operators = serde_json::json!({ "first": OPERATOR[1], "second": SECOND });
    assert_eq!(status["hosts"][0]["operators"], operators, "{status}");
    for arguments in [start("first", 64), args!("stop alpha"), args!("stop alpha --name first")] {
        let refused = second(&nats, &[&arguments[..], &known].concat());
        is_refused(&refused, "first", OPERATOR[1], &["--replace"]);
    }
    assert_eq!(present(&lab, "alpha")[0], ["first", "second"]);
    // The start of the key is enough if it is the start of one key only.
    let ambiguous = second(&nats, &[&args!("stop alpha --replace U")[..], &known].concat());
    assert_eq!(ambiguous.status.code(), Some(2), "{ambiguous:?}");
    let said = String::from_utf8_lossy(&ambiguous.stderr).into_owned();
    assert!(said.contains(OPERATOR[1]) && said.contains(SECOND), "{said}");
    let start_of_key = &OPERATOR[1][..6];
    let replaced = second(&nats, &[&start("first", 64)[..], &known, &["--replace", start_of_key]].concat());
    assert!(replaced.status.success(), "{replaced:?}");
    // The first operator's own captures end without a word.
    let refused = nats.fleet(&args!("stop alpha --operator {SECOND}"));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains(&format!("the captures 'second', 'first' belong to the operator {SECOND}")), "{said}");
    let stopped = second(&nats, &args!("stop alpha"));
    assert!(stopped.status.success(), "{stopped:?}");
    wait_until("alpha has stopped", || present(&lab, "alpha")[0].is_empty());
    assert_eq!(alpha.stop().status.code(), Some(0));
}
