//! Twenty agents with one store, through a killed server and killed agents: what each host sent to the store is what it
//! saw.

use serde_json::Value;
use trawl_tests::generator::generate;
use trawl_tests::{Lab, args, trawl, wait_until};

use super::Nats;

const AGENTS: usize = 20;
/// Agents that are killed.
const KILLED: usize = 5;
const PACKETS: u64 = 500;

fn name(number: usize) -> String {
    format!("host{number:02}")
}

/// Returns the recorded packets of each host, in the order of their names.
fn recorded(status: &Value) -> Vec<u64> {
    let hosts = status["hosts"].as_array();
    let of_host = |host: &Value| {
        let account = &host["state"]["captures"][0]["account"];
        account["recorded"].as_u64().unwrap_or(0)
    };
    hosts.into_iter().flatten().map(of_host).collect()
}

fn json(arguments: &[&str]) -> Value {
    let output = trawl(arguments);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

#[test]
#[ignore = "make test-long runs it"]
fn every_packet_of_many_hosts_is_accounted_for() {
    let Some(lab) = Lab::open() else { return };
    let Some(mut nats) = Nats::up(&lab) else {
        return;
    };
    assert!(nats.fleet(&["status"]).status.success());
    let start = |nats: &Nats, number| Some(nats.agent(&lab, &name(number), "operator"));
    let mut agents: Vec<_> = (0..AGENTS).map(|number| start(&nats, number)).collect();
    let (receiver, store) = (lab.receiver(), format!("file://{}", lab.file("store")));
    wait_until("all have reported", || nats.status("*")["hosts"].as_array().map(Vec::len) == Some(AGENTS));
    let started = nats.fleet(&args!(
        "start * -i {receiver} --tap packet --store {store} --chunk-time 1s --memory 8MiB --wait=2m udp port 9"
    ));
    assert!(started.status.success(), "{started:?}");
    let send = || {
        let count = PACKETS.to_string();
        let more = ["--dst", "10.77.0.2", "--dst-port", "9", "--count", &count];
        generate(&lab, "udp", &more);
    };
    send();
    wait_until("all have the first packets", || recorded(&nats.status("*")) == [PACKETS; AGENTS]);
    // Captures continue without the server, and end with their agents.
    nats.kill();
    for agent in agents.iter_mut().take(KILLED) {
        agent.take().expect("it runs").kill();
    }
    send();
    nats.start();
    for (number, agent) in agents.iter_mut().enumerate().take(KILLED) {
        *agent = start(&nats, number);
    }
    wait_until("the others have the second packets", || {
        let counts = recorded(&nats.status("*"));
        counts.iter().skip(KILLED).all(|count| *count == 2 * PACKETS)
    });
    wait_until("the killed ones run again", || {
        let status = nats.status("*");
        let mut names = (0..KILLED).map(name);
        names.all(|name| super::phase_of(&status, &name) == "running")
    });
    send();
    wait_until("all have the last packets", || {
        let counts = recorded(&nats.status("*"));
        counts.iter().enumerate().all(|(number, count)| {
            // Packets that an agent had not counted before it was killed are in the store alone.
            if number < KILLED { *count >= PACKETS } else { *count == 3 * PACKETS }
        })
    });
    assert!(nats.fleet(&["stop", "*"]).status.success());
    let is_stopped = |host: &Value| host["state"]["captures"].as_array().is_some_and(Vec::is_empty);
    wait_until("all have stopped", || {
        let status = nats.status("*");
        status["hosts"].as_array().is_some_and(|hosts| hosts.iter().all(is_stopped))
    });
    for agent in agents.into_iter().flatten() {
        assert_eq!(agent.stop().status.code(), Some(0));
    }
    let listed = json(&args!("store ls {store} --json"));
    let total = &listed["total"];
    assert_eq!(total["recorded"], total["stored"], "{total}");
    let pauses = listed["not_recording"].as_array().map(Vec::len);
    assert_eq!(pauses, Some(KILLED), "{listed}");
    // The catalogue gives the same answer as the chunks.
    let sql = "SELECT host, count(*) AS packets FROM packets GROUP BY host ORDER BY host";
    let index = json(&args!("store index {store} --json"));
    assert_eq!(index["unreadable"], Value::Array(Vec::new()));
    assert_eq!(index["packets"], total["stored"]);
    let base = args!("store query --store {store} --json");
    let rows = json(&[&base[..], &[sql]].concat())["rows"].clone();
    let rows = rows.as_array().expect("a list");
    assert_eq!(rows.len(), AGENTS);
    for (number, row) in rows.iter().enumerate() {
        let packets = row["packets"].as_u64().expect("a number");
        if number < KILLED {
            // Packets that were sent while no agent ran belong to a pause, and are not counted.
            assert!((2 * PACKETS..=3 * PACKETS).contains(&packets), "{row}");
        } else {
            assert_eq!(packets, 3 * PACKETS, "{row}");
        }
    }
    let verified = json(&args!("store verify {store} --json"));
    let findings = verified["findings"].as_array().expect("a list");
    assert!(findings.iter().all(|one| one["problem"] == "end_missing"), "{findings:?}");
}
