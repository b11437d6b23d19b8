//! Starts that hosts accept, refuse or do not answer; killed agents, and the pauses in their captures.

use serde_json::Value;
use trawl_tests::{Lab, Running, args, trawl, wait_until};

use super::{Nats, Up, phase_of, phases, report};

fn host<'a>(document: &'a Value, name: &str) -> &'a Value {
    let hosts = document["hosts"].as_array().expect("a list");
    let mut named = hosts.iter().filter(|host| host["host"] == name);
    named.next().unwrap_or_else(|| panic!("{document}"))
}

/// Agents that start together with the server may report before its streams exist, and repeat their reports.
#[test]
fn start_waits_for_agents_that_have_not_reported_yet() {
    start_waits_for_agents(Nats::up);
}

#[test]
fn start_over_the_embedded_bus_waits_for_agents() {
    start_waits_for_agents(Nats::embedded);
}

fn start_waits_for_agents(up: Up) {
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = up(&lab) else { return };
    let (receiver, store) = (lab.receiver(), format!("file://{}", lab.file("store")));
    let place = nats.place("operator");
    let place: Vec<&str> = place.iter().map(String::as_str).collect();
    let base = args!("fleet start * -i {receiver} --tap packet --store {store} --json");
    let started = Running::start(&[&base[..], &place[..]].concat(), "waiting for agents");
    let agents = ["alpha", "beta"].map(|name| nats.agent(&lab, name, name));
    let document = started.wait().json();
    for name in ["alpha", "beta"] {
        assert_eq!(host(&document, name)["error"], Value::Null, "{document}");
    }
    for agent in agents {
        assert_eq!(agent.stop().status.code(), Some(0));
    }
}

#[test]
fn start_fails_with_the_reason_of_each_host() {
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = Nats::up(&lab) else { return };
    assert!(nats.fleet(&["status"]).status.success());
    let alpha = nats.agent(&lab, "alpha", "alpha");
    let beta = nats.agent_within(&lab, "beta", "beta", "interfaces = [\"eth*\"]");
    wait_until("both have reported", || nats.status("*")["hosts"].as_array().map(Vec::len) == Some(2));
    let (receiver, store) = (lab.receiver(), format!("file://{}", lab.file("store")));
    let start = |selector: &str, interface: &str, more: &[&str]| {
        let base = args!("start {selector} -i {interface} --tap packet --store {store} --json");
        let done = nats.fleet(&[&base[..], more].concat());
        let document: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done:?}"));
        (done.status.code(), document)
    };
    // One host refuses the capture, and the other runs it.
    let (status, document) = start("*", &receiver, &["--wait"]);
    assert_eq!(status, Some(1), "{document}");
    assert_eq!(host(&document, "alpha")["phase"], "running", "{document}");
    assert!(host(&document, "alpha")["error"].is_null(), "{document}");
    let why = format!("refused by its policy: interface {receiver}");
    assert_eq!(host(&document, "beta")["error"], why, "{document}");
    // Without --wait and --json, the command reports the same reason.
    let again = nats.fleet(&args!("start beta -i {receiver} --tap packet --store {store}"));
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains(&format!("beta: {why}")), "{said}");
    let (status, document) = start("alpha", &receiver, &["--wait=1m"]);
    assert_eq!(status, Some(0), "{document}");
    // A capture of a missing interface cannot start.
    let (status, document) = start("alpha", "missing0", &["--name", "other", "--wait"]);
    assert_eq!(status, Some(1), "{document}");
    let error = host(&document, "alpha")["error"].to_string();
    assert!(error.contains("missing0"), "{document}");
    // No agent runs at this host.
    let (status, document) = start("gamma", &receiver, &["--wait=500ms"]);
    assert_eq!(status, Some(1), "{document}");
    let error = host(&document, "gamma")["error"].to_string();
    assert!(error.contains("no agent has reported"), "{document}");
    for agent in [alpha, beta] {
        assert_eq!(agent.stop().status.code(), Some(0));
    }
}

#[test]
fn killed_agent_is_shown_and_its_pause_counted() {
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = Nats::up(&lab) else { return };
    assert!(nats.fleet(&["status"]).status.success());
    let alpha = nats.agent(&lab, "alpha", "alpha");
    let (receiver, store) = (lab.receiver(), format!("file://{}", lab.file("store")));
    let start = |more: &[&str]| {
        let base = args!("start alpha -i {receiver} --tap packet --store {store} --wait=5s");
        nats.fleet(&[&base[..], more].concat())
    };
    let started = start(&[]);
    assert!(started.status.success(), "{started:?}");
    let status = nats.status("alpha");
    assert_eq!(host(&status, "alpha")["silent"], false, "{status}");
    let age = host(&status, "alpha")["age_ns"].as_u64();
    assert!(age.expect("an age") < 10_000_000_000, "{status}");
    alpha.kill();
    let killed = "the agent is not heard";
    wait_until(killed, || host(&nats.status("alpha"), "alpha")["silent"] == true);
    assert_eq!(phase_of(&nats.status("alpha"), "alpha"), "unknown");
    let shown = nats.fleet(&["status"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("not heard for 1") && !shown.contains("running"), "{shown}");
    let refused = start(&["--name", "other"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("alpha: not heard for "), "{said}");
    let pauses = || {
        let spool = lab.file("spool-alpha");
        let answer = trawl(&args!("store query --json --store {store} --spool {spool} 'SELECT count(*) FROM packets'"));
        let answer: Value = serde_json::from_slice(&answer.stdout).unwrap_or_default();
        answer["coverage"][0].clone()
    };
    let open = pauses();
    assert_eq!(open["host"], "alpha", "{open}");
    let pause = open["not_recording"][0].clone();
    assert_eq!((&pause["capture"], &pause["to_ns"]), (&"fleet".into(), &Value::Null), "{open}");
    // The restarted agent ends the pause.
    let path = lab.file("report-alpha");
    std::fs::remove_file(&path).expect("a report");
    let alpha = nats.agent(&lab, "alpha", "alpha");
    wait_until("it runs again", || phases(&report(&path)) == ["running", "running"]);
    let closed = pauses()["not_recording"].clone();
    assert_eq!(closed.as_array().map(Vec::len), Some(1), "{closed}");
    assert_eq!(closed[0]["from_ns"], pause["from_ns"], "{closed}");
    let [from, to] = ["from_ns", "to_ns"].map(|name| closed[0][name].as_u64().expect("a time"));
    assert!(to > from, "{closed}");
    // A stop by the operator is no pause.
    assert!(nats.fleet(&["stop", "alpha"]).status.success());
    wait_until("it has stopped", || phases(&report(&path)).is_empty());
    assert!(start(&[]).status.success());
    assert_eq!(pauses()["not_recording"], closed);
    assert_eq!(alpha.stop().status.code(), Some(0));
}
