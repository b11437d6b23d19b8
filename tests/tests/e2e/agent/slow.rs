//! Causes of slow connections are events of a host, which trigger incidents.

use std::time::Duration;

use serde_json::Value;
use trawl_tests::stage::{Stage, counted};
use trawl_tests::traffic::{converse, transfer};
use trawl_tests::witness::inside;
use trawl_tests::{Lab, Running, args, tools_or_skip, trawl, wait_until};

use super::incident::json;
use super::{Nats, report};

const NOT: Duration = Duration::ZERO;
const THINK: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(50);

/// Returns the causes that the agent has reported about the ends of a stage: other tests plant faults in theirs meanwhile.
fn events(lab: &Lab, stage: &Stage) -> Vec<String> {
    let report = report(&lab.file("report-alpha"));
    let texts = report["slow_events"].as_array().into_iter().flatten().filter_map(|event| event["text"].as_str());
    let names = [&stage.client, &stage.server].map(|end| format!("{}: ", end.name));
    let is_ours = |text: &&str| names.iter().any(|name| text.starts_with(name));
    texts.filter(is_ours).map(str::to_owned).collect()
}

/// Waits for an incident with this reason, or with several, of which only the first is shown.
fn await_incident(waiting: &Running, reason: &str) -> Value {
    let is_it = |why: &str| why == reason || why.contains(" more event");
    let mut found = None;
    wait_until(reason, || {
        let shown = waiting.shown();
        let mut all = shown.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        found = all.find(|one| one["why"].as_str().is_some_and(is_it));
        found.is_some()
    });
    found.expect("an incident")
}

/// Healthy traffic is no event, and a fault is one as long as it lasts.
#[test]
fn cause_of_slow_connections_triggers_an_incident() {
    if !tools_or_skip(&["nft"]) {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let Some(stage) = Stage::open() else { return };
    let Some(nats) = Nats::embedded(&lab) else { return };
    assert!(nats.fleet(&["status"]).status.success());
    let agent = nats.agent_with(&lab, ["alpha"; 2], &format!("{}\n", Nats::operators()), &["--slow"]);
    agent.wait_said("measuring connections");
    let (client, store) = (&stage.client, format!("file://{}", lab.file("store")));
    let interface = format!("{}:{}", client.name, client.interface);
    let started = nats.fleet(&args!("start alpha -i {interface} --store {store} --packets-at host --wait"));
    assert!(started.status.success(), "{started:?}");
    let place = nats.place("operator");
    let place: Vec<&str> = place.iter().map(String::as_str).collect();
    let command = args!("fleet trigger alpha --on-event --pause 1s --wait --json");
    let waiting = Running::start(&[&command[..], &place[..]].concat(), "waiting for events");
    let server = stage.servers()[0];
    transfer(stage.connect(server), 8 << 20, NOT);
    converse(stage.connect(server), 30, NOT, PAUSE);
    let questions = format!("tcp dport {} meta length > 150 numgen inc mod 3 == 0", server.port());
    stage.rule(client, "output", &questions, "drop");
    let faulty = converse(stage.connect(server), 24, NOT, NOT);
    wait_until("the drops are an event", || !events(&lab, &stage).is_empty());
    converse(faulty, 24, NOT, PAUSE);
    assert!(counted(client) > 0);
    let loss = events(&lab, &stage)[0].clone();
    let between = format!("[{}] {server}: loss here: NETFILTER_DROP", std::process::id());
    assert!(loss.starts_with(&format!("{}: ", client.name)) && loss.contains(&between), "{loss}");
    let incident = await_incident(&waiting, &format!("alpha: {loss}"));
    assert!(incident["hosts"][0]["incident"]["packets"].as_u64() > Some(0), "{incident}");
    let name = incident["incident"].as_str().expect("a name");
    let stored = json(&trawl(&args!("store query --store {store} --incident {name} --json")));
    assert_eq!(stored["why"], incident["why"], "{stored}");
    inside(client, "nft flush ruleset");
    let slow = converse(stage.connect(server), 6, THINK, PAUSE);
    wait_until("the slow server is another", || {
        events(&lab, &stage).iter().any(|text| text.contains("answers slowly"))
    });
    drop(slow);
    // A lasting cause is one event. Events of other tests may have taken its place.
    let (losses, others): (Vec<String>, Vec<String>) =
        events(&lab, &stage).into_iter().partition(|text| text.contains("loss here"));
    assert!(losses.len() < 2 && losses.iter().all(|text| *text == loss), "{losses:?}");
    assert!(others.iter().all(|text| text.contains("answers slowly, ")), "{others:?}");
    for command in [waiting, agent] {
        let ended = command.stop();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    }
}
