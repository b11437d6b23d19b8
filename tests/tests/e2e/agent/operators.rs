//! Two operators of one fleet: neither replaces or ends the other's captures without naming the other, and each has the
//! rights that the hosts' policies give.

use std::fs;
use std::process::Output;

use trawl_tests::{Lab, args, frames, trawl, wait_until};

use super::incident::account;
use super::{Nats, OPERATOR, OPERATOR_BY_CREDENTIALS as SECOND, PASSWORD, phases, report};

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

/// Checks that a command fails, and names captures, their operator, and the option to end them.
fn is_refused(output: &Output, captures: &str, operator: &str) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("alpha: the {captures} to the operator {operator}")), "{said}");
    assert!(said.contains(&format!("--replace {operator}")), "{said}");
}

/// Starts a server where two operators log in with their keys, and the host alpha with a password.
fn server(lab: &Lab) -> Option<Nats> {
    let accounts = format!(
        "authorization {{ users = [ {{ nkey: {} }}, {{ nkey: {SECOND} }}, {{ user: alpha, password: \"{PASSWORD}\" }} ] }}",
        OPERATOR[1]
    );
    let nats = Nats::with_passwords(lab, &accounts)?;
    assert!(nats.fleet(&["status"]).status.success());
    Some(nats)
}

/// Returns the arguments to start a capture on alpha.
fn start(lab: &Lab, name: &str, snaplen: u32) -> Vec<String> {
    let (receiver, store) = (lab.receiver(), format!("file://{}", lab.file("store")));
    let words = format!(
        "start alpha --name {name} -i {receiver} --tap packet --store {store} --packets-at host --chunk-time 1s --wait --snaplen {snaplen} udp"
    );
    words.split(' ').map(str::to_owned).collect()
}

fn words(owned: &[String]) -> Vec<&str> {
    owned.iter().map(String::as_str).collect()
}

#[test]
fn captures_of_another_operator_stay_until_that_operator_is_named() {
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = server(&lab) else { return };
    let alpha = nats.agent(&lab, "alpha", "alpha");
    let started = nats.fleet(&words(&start(&lab, "first", 256)));
    assert!(started.status.success(), "{started:?}");
    // Others add to the captures and incidents.
    let added = second(&nats, &words(&start(&lab, "second", 256)));
    assert!(added.status.success(), "{added:?}");
    let triggered = second(&nats, &args!("trigger alpha --id one"));
    assert!(triggered.status.success(), "{triggered:?}");
    assert_eq!(present(&lab, "alpha"), [vec!["first", "second"], vec!["one"]]);
    let status = nats.status("alpha");
    let operators = serde_json::json!({ "first": OPERATOR[1], "second": SECOND });
    assert_eq!(status["hosts"][0]["operators"], operators, "{status}");
    let listed = status["hosts"][0]["state"]["operators"].as_array().expect("a list");
    assert_eq!(listed.iter().map(|one| &one["key"]).collect::<Vec<_>>(), [OPERATOR[1], SECOND]);
    for arguments in [&words(&start(&lab, "first", 64)), &args!("stop alpha"), &args!("stop alpha --name first")] {
        is_refused(&second(&nats, arguments), "capture 'first' belongs", OPERATOR[1]);
    }
    assert_eq!(present(&lab, "alpha")[0], ["first", "second"]);
    // The start of the key is enough if it is the start of one key only.
    let ambiguous = second(&nats, &args!("stop alpha --replace U"));
    assert_eq!(ambiguous.status.code(), Some(2), "{ambiguous:?}");
    let said = String::from_utf8_lossy(&ambiguous.stderr).into_owned();
    assert!(said.contains(OPERATOR[1]) && said.contains(SECOND), "{said}");
    let start_of_key = &OPERATOR[1][..6];
    let replaced = second(&nats, &[&words(&start(&lab, "first", 64))[..], &["--replace", start_of_key]].concat());
    assert!(replaced.status.success(), "{replaced:?}");
    assert_eq!(report(&lab.file("report-alpha"))["captures"][0]["snaplen"], 64);
    // Another change of the first operator does not bring the capture back.
    let added = nats.fleet(&words(&start(&lab, "third", 256)));
    assert!(added.status.success(), "{added:?}");
    assert_eq!(report(&lab.file("report-alpha"))["captures"][0]["snaplen"], 64);
    is_refused(&nats.fleet(&args!("stop alpha")), "captures 'second', 'first' belong", SECOND);
    // The first operator's own captures end without a word.
    let stopped = nats.fleet(&args!("stop alpha --name third"));
    assert!(stopped.status.success(), "{stopped:?}");
    let stopped = second(&nats, &args!("stop alpha"));
    assert!(stopped.status.success(), "{stopped:?}");
    wait_until("alpha has stopped", || present(&lab, "alpha")[0].is_empty());
    assert_eq!(alpha.stop().status.code(), Some(0));
}

#[test]
fn policy_limits_what_an_operator_may_do() {
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = server(&lab) else { return };
    let limits = |roles: &str| {
        format!("[[operator]]\nkey = \"{SECOND}\"\nname = \"on-call\"\nroles = {roles}\ncaptures = [\"oncall-*\"]\n")
    };
    let agent = |roles: &str| {
        let policy = format!("operators = [\"{}\"]\n{}", OPERATOR[1], limits(roles));
        nats.agent_by(&lab, "alpha", "alpha", &policy)
    };
    let alpha = agent("[\"start\"]");
    for name in ["oncall-1", "recorder"] {
        let started = nats.fleet(&words(&start(&lab, name, 256)));
        assert!(started.status.success(), "{started:?}");
    }
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    // Other names are refused, and captures of other names cannot be ended.
    let refused = second(&nats, &words(&start(&lab, "dns", 256)));
    let may = "policy: the operator on-call may only start or end captures named oncall-*";
    assert!(said(&refused).contains(may) && refused.status.code() == Some(1), "{refused:?}");
    let refused = second(&nats, &args!("stop alpha --replace {}", OPERATOR[1]));
    assert!(said(&refused).contains("does not let this operator end the capture 'recorder'"), "{refused:?}");
    assert_eq!(present(&lab, "alpha")[0], ["oncall-1", "recorder", "dns"]);
    assert_eq!(phases(&report(&lab.file("report-alpha"))), ["running", "running", "refused"]);
    let ended = second(&nats, &args!("stop alpha --name oncall-1 --replace {}", OPERATOR[1]));
    assert!(ended.status.success(), "{ended:?}");
    wait_until("the capture has ended", || present(&lab, "alpha")[0] == ["recorder", "dns"]);
    // Neither incidents nor packets are this operator's business.
    let refused = second(&nats, &args!("trigger alpha --id one"));
    assert!(said(&refused).contains("the operator on-call may not trigger incidents"), "{refused:?}");
    let query = args!(
        "store query --store file://{} --spool /nonexistent --filter udp --packets {}",
        lab.file("store"),
        lab.file("found.pcapng")
    );
    lab.send(&[frames::udp_to(9, b"x")], 10);
    wait_until("the packets are indexed", || account(&lab)[0] == 10);
    let by_second = ["--hosts", &nats.url, "--nkey", &format!("{}/second", nats.directory)].map(str::to_owned);
    let refused = trawl(&[&query[..], &words(&by_second)].concat());
    assert!(said(&refused).contains("the operator on-call may not look at packets"), "{refused:?}");
    let expected = [
        "start dns: refused: policy: the operator on-call may only start or end captures named oncall-*",
        &format!("end oncall-1 of {}", OPERATOR[1]),
        "trigger one: refused: policy: the operator on-call may not trigger incidents",
    ];
    wait_until("all is logged", || {
        let log = String::from_utf8(nats.fleet(&["log"]).stdout).expect("a table");
        expected.iter().all(|line| log.contains(line))
    });
    assert_eq!(alpha.stop().status.code(), Some(0));
    // An agent with another policy gives other rights.
    let alpha = agent("[\"trigger\"]");
    wait_until("the recorder runs", || phases(&report(&lab.file("report-alpha"))).contains(&"running"));
    let triggered = second(&nats, &args!("trigger alpha --id two"));
    assert!(triggered.status.success(), "{triggered:?}");
    assert_eq!(alpha.stop().status.code(), Some(0));
}
