//! Incidents: the packets that hosts keep are stored together when something happens, with an account of each host.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;
use trawl_lab::program::{Does, Loaded};
use trawl_tests::generator::generate;
use trawl_tests::witness::tshark;
use trawl_tests::{Lab, Running, args, fleet_or_skip, frames, trawl, wait_until};

use super::{Nats, Up, phases, recorded, report};

pub fn json(output: &std::process::Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// Starts a capture on these hosts that keeps its packets there, and waits until it runs.
pub fn start(nats: &Nats, lab: &Lab, hosts: &str, more: &[&str]) {
    let (receiver, store) = (lab.receiver(), format!("file://{}", lab.file("store")));
    let base = args!("start {hosts} -i {receiver} --tap packet --store {store} --packets-at host --wait");
    let started = nats.fleet(&[&base[..], more].concat());
    assert!(started.status.success(), "{started:?}");
}

fn send(lab: &Lab, count: u64) {
    let count = count.to_string();
    generate(lab, "udp", &["--dst", "10.77.0.2", "--count", &count]);
}

fn part<'a>(document: &'a Value, host: &str) -> &'a Value {
    let hosts = document["hosts"].as_array().expect("a list");
    let found = hosts.iter().find(|one| one["host"] == host);
    found.unwrap_or_else(|| panic!("{document}"))
}

/// Returns the account of a store: recorded, stored, on hosts.
pub fn account(lab: &Lab) -> [u64; 3] {
    totals(lab, ["recorded", "stored", "on_host"])
}

/// Returns these numbers of packets of the whole store.
pub fn totals<const N: usize>(lab: &Lab, names: [&str; N]) -> [u64; N] {
    let store = format!("file://{}", lab.file("store"));
    let listing = json(&trawl(&args!("store ls --json {store} --spool /nonexistent")));
    names.map(|name| listing["total"][name].as_u64().expect("a number"))
}

/// Starts a bus and the agents of two hosts, and waits until both have reported.
fn two_hosts(up: Up) -> Option<(Lab, Nats, [Running; 2])> {
    let lab = Lab::open()?;
    let nats = up(&lab)?;
    assert!(nats.fleet(&["status"]).status.success());
    let agents = ["alpha", "beta"].map(|host| nats.agent(&lab, host, host));
    wait_until("both have reported", || nats.status("*")["hosts"].as_array().map(Vec::len) == Some(2));
    Some((lab, nats, agents))
}

#[test]
fn minute_before_is_stored_on_all_hosts() {
    minute_before_is_stored(Nats::up);
}

#[test]
fn minute_before_is_stored_over_the_embedded_bus() {
    minute_before_is_stored(Nats::embedded);
}

fn minute_before_is_stored(up: Up) {
    let Some((lab, nats, [alpha, beta])) = two_hosts(up) else { return };
    start(&nats, &lab, "*", &["udp"]);
    send(&lab, 300);
    wait_until("both have counted", || {
        let status = nats.status("*");
        (recorded(&status, "alpha"), recorded(&status, "beta")) == (300, 300)
    });
    // The packets are in chunks that are not complete yet.
    let triggered = nats.fleet(&args!("trigger * --id one --why 'a test' --wait --json"));
    assert!(triggered.status.success(), "{triggered:?}");
    let document = json(&triggered);
    for host in ["alpha", "beta"] {
        let incident = &part(&document, host)["incident"];
        assert_eq!((&incident["phase"], &incident["packets"]), (&"stored".into(), &300.into()));
    }
    let store = format!("file://{}", lab.file("store"));
    let found = lab.file("found.pcapng");
    let query = |more: &[&str]| {
        let base = args!("store query --store {store} --spool /nonexistent");
        trawl(&[&base[..], more].concat())
    };
    for _ in 0..2 {
        let packets = query(&["--incident", "one", "--packets", &found]);
        assert!(packets.status.success(), "{packets:?}");
        let rows = tshark(&found, &["frame.interface_name", "udp.length"]);
        let of = |host: &str| rows.iter().filter(|row| row[0].starts_with(host)).count();
        assert_eq!((of("alpha:"), of("beta:"), rows.len()), (300, 300, 600));
        let document = json(&query(&["--incident", "one", "--json"]));
        assert_eq!(document["why"], "a test");
        for host in ["alpha", "beta"] {
            let part = part(&document, host);
            let seen = (&part["stored"], &part["recorded"], &part["seen"]["packets"]);
            assert_eq!(seen, (&true.into(), &300.into(), &300.into()), "{document}");
            // The captures began in the window.
            assert!(part["since_ns"].as_u64() > document["from_ns"].as_u64(), "{document}");
        }
        let timeline = document["timeline"].as_array().expect("a list");
        let frozen = timeline.iter().filter(|moment| moment["event"] == "frozen");
        assert_eq!(frozen.count(), 2, "{document}");
        assert_eq!(account(&lab), [600, 600, 0]);
        // The second round reads the same from the catalogue.
        assert!(trawl(&["store", "index", &store]).status.success());
    }
    let wireshark = ["extcap", "--capture", "--extcap-interface", "trawl:packets-of-an-incident"];
    let asked = args!("--fifo {found} --store {store} --incident one");
    assert!(trawl(&[&wireshark[..], &asked].concat()).status.success());
    assert_eq!(tshark(&found, &["frame.number"]).len(), 600);
    let shown = query(&["--incident", "one"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.starts_with("incident one: a test\n"), "{shown}");
    assert!(shown.lines().all(|line| line.len() <= 80), "{shown}");
    let listed = json(&trawl(&args!("store ls --json {store} --spool /nonexistent")));
    let both = serde_json::json!({ "one": ["alpha", "beta"] });
    assert_eq!(listed["incidents"], both, "{listed}");
    let none = query(&["--incident", "other"]);
    assert_eq!(none.status.code(), Some(1), "{none:?}");
    // The account includes a host that does not answer.
    beta.kill();
    send(&lab, 20);
    wait_until("alpha has counted", || recorded(&nats.status("*"), "alpha") == 320);
    let triggered = nats.fleet(&args!("trigger * --id two --wait=10s"));
    assert_eq!(triggered.status.code(), Some(1), "{triggered:?}");
    let said = String::from_utf8_lossy(&triggered.stderr).into_owned();
    assert!(said.contains("beta: "), "{said}");
    let document = json(&query(&["--incident", "two", "--json"]));
    assert_eq!(part(&document, "beta")["stored"], false, "{document}");
    assert_eq!(part(&document, "alpha")["seen"]["packets"], 320, "{document}");
    let said = query(&["--incident", "two", "--packets", &found]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("host beta: nothing of it is in the store"), "{said}");
    // A restarted agent freezes neither the stored incident again nor the one that it missed.
    assert_eq!(alpha.stop().status.code(), Some(0));
    let alpha = nats.agent(&lab, "alpha", "alpha");
    let path = lab.file("report-alpha");
    wait_until("it runs again", || phases(&report(&path)) == ["running"]);
    let incidents = report(&path)["incidents"].clone();
    let phases: Vec<_> = incidents.as_array().expect("a list").iter().collect();
    assert!(phases.iter().all(|one| one["phase"] == "stored"), "{incidents}");
    assert_eq!(alpha.stop().status.code(), Some(0));
    let verified = json(&trawl(&["store", "verify", "--json", &store]));
    let findings = verified["findings"].as_array().expect("a list");
    let killed = findings.iter().all(|one| one["problem"] == "end_missing");
    assert!(killed && findings.len() <= 1, "{verified}");
}

/// A restarted agent asks its captures to seal their chunks while they start.
#[test]
fn incident_from_before_the_agents_start_ends_no_capture() {
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = Nats::up(&lab) else { return };
    assert!(nats.fleet(&["status"]).status.success());
    let alpha = nats.agent(&lab, "alpha", "alpha");
    start(&nats, &lab, "alpha", &["udp"]);
    send(&lab, 100);
    wait_until("alpha has counted", || recorded(&nats.status("*"), "alpha") == 100);
    alpha.kill();
    let triggered = nats.fleet(&args!("trigger alpha --id one"));
    assert_eq!(triggered.status.code(), Some(1), "{triggered:?}");
    let path = lab.file("report-alpha");
    std::fs::remove_file(&path).expect("a report");
    let alpha = nats.agent(&lab, "alpha", "alpha");
    wait_until("the incident is stored", || report(&path)["incidents"][0]["phase"] == "stored");
    wait_until("it runs again", || phases(&report(&path)) == ["running"]);
    let capture = report(&path)["captures"][0].clone();
    assert_eq!((&capture["failures"], &capture["error"]), (&0.into(), &Value::Null), "{capture}");
    assert_eq!(alpha.stop().status.code(), Some(0));
}

#[test]
fn capture_that_ended_within_the_window_is_in_the_account() {
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = Nats::up(&lab) else { return };
    assert!(nats.fleet(&["status"]).status.success());
    let alpha = nats.agent(&lab, "alpha", "alpha");
    start(&nats, &lab, "alpha", &["udp"]);
    send(&lab, 100);
    wait_until("alpha has counted", || recorded(&nats.status("*"), "alpha") == 100);
    assert!(nats.fleet(&["stop", "alpha"]).status.success());
    wait_until("alpha has stopped", || phases(&report(&lab.file("report-alpha"))).is_empty());
    let triggered = nats.fleet(&args!("trigger alpha --id one --wait"));
    assert!(triggered.status.success(), "{triggered:?}");
    let store = format!("file://{}", lab.file("store"));
    let query = args!("store query --store {store} --spool /nonexistent --incident one");
    let document = json(&trawl(&[&query[..], &["--json"]].concat()));
    let part = part(&document, "alpha");
    assert_eq!((&part["stored"], &part["recorded"]), (&true.into(), &100.into()), "{document}");
    let until = part["until_ns"].as_u64().expect("the end of the capture");
    let is_within = document["from_ns"].as_u64() < Some(until) && Some(until) < document["to_ns"].as_u64();
    assert!(is_within, "{document}");
    let shown = trawl(&query);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("no packets after ") && shown.contains("  capture ended"), "{shown}");
    assert_eq!(alpha.stop().status.code(), Some(0));
}

#[test]
fn host_without_such_a_capture_says_so() {
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = Nats::up(&lab) else { return };
    assert!(nats.fleet(&["status"]).status.success());
    let alpha = nats.agent(&lab, "alpha", "alpha");
    wait_until("it has reported", || nats.status("*")["hosts"].as_array().map(Vec::len) == Some(1));
    let triggered = nats.fleet(&["trigger", "alpha"]);
    assert_eq!(triggered.status.code(), Some(1), "{triggered:?}");
    let said = String::from_utf8_lossy(&triggered.stderr).into_owned();
    assert!(said.contains("alpha: no capture of this host keeps its packets"), "{said}");
    let unknown = nats.fleet(&["trigger", "gamma"]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
    let wrong = nats.fleet(&["trigger", "alpha", "--id", "../x"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    assert_eq!(alpha.stop().status.code(), Some(0));
}

/// Sends a request to the waiting command, and returns the answer's status.
fn post(address: &str, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let length = body.len();
    write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    text.lines().next().unwrap_or_default().to_owned()
}

/// Starts a capture at alpha for which a second with a packet to port 9 is an event.
fn report_port9(nats: &Nats, lab: &Lab) {
    let (receiver, store) = (lab.receiver(), format!("file://{}", lab.file("store")));
    let watched = nats.fleet(&args!(
        "start alpha --name port9 -i {receiver} --tap packet --store {store} --event-rate 1 --wait udp port 9"
    ));
    assert!(watched.status.success(), "{watched:?}");
}

/// Starts a command that waits for events and requests. Returns it with the address of its requests.
fn await_requests(nats: &Nats, command: &[&str]) -> (Running, String) {
    let place = nats.place("operator");
    let place: Vec<&str> = place.iter().map(String::as_str).collect();
    let waiting = Running::start(&[command, &place[..]].concat(), "waiting for events");
    let said = waiting.said();
    let address = said.split_once("http://").expect("an address").1;
    let address = address.split('/').next().expect("an address").to_owned();
    (waiting, address)
}

#[test]
fn events_and_requests_trigger_incidents() {
    events_and_requests_trigger(Nats::up);
}

#[test]
fn events_and_requests_trigger_incidents_over_the_embedded_bus() {
    events_and_requests_trigger(Nats::embedded);
}

fn events_and_requests_trigger(up: Up) {
    let Some((lab, nats, [alpha, beta])) = two_hosts(up) else { return };
    start(&nats, &lab, "*", &["udp port 9"]);
    report_port9(&nats, &lab);
    let token = lab.file("token");
    std::fs::write(&token, "secret\n").expect("a file");
    let command = args!("fleet trigger * --on-event=alpha --listen 127.0.0.1:0 --token {token} --pause 1s --json");
    let (waiting, address) = await_requests(&nats, &command);
    lab.send(&[frames::udp_to(9, b"x")], 50);
    let incidents = || -> Vec<Value> {
        let shown = waiting.shown();
        let lines = shown.lines().filter_map(|line| serde_json::from_str(line).ok());
        lines.collect()
    };
    wait_until("the event has triggered an incident", || incidents().len() == 1);
    let first = incidents()[0].clone();
    let why = first["why"].as_str().expect("text");
    assert!(why.starts_with("alpha: 'port9' recorded "), "{first}");
    assert_eq!(part(&first, "beta")["incident"]["packets"], 50, "{first}");
    for (head, status) in [
        ("POST / HTTP/1.1", "HTTP/1.1 401 Unauthorized"),
        ("GET / HTTP/1.1\r\nAuthorization: Bearer secret", "HTTP/1.1 405 Method Not Allowed"),
    ] {
        assert_eq!(post(&address, head, "no"), status);
    }
    wait_until("a request triggers another", || {
        let head = "POST / HTTP/1.1\r\nAuthorization: Bearer secret";
        assert_eq!(post(&address, head, "alert fired\nmore"), "HTTP/1.1 202 Accepted");
        incidents().len() > 1
    });
    // A second request may come before the incident is shown.
    let why = incidents()[1]["why"].as_str().expect("text").to_owned();
    assert!(why.starts_with("alert fired"), "{why}");
    assert_eq!(waiting.stop().status.code(), Some(0));
    let open = nats.fleet(&["trigger", "*", "--listen", "0.0.0.0:0"]);
    assert_eq!(open.status.code(), Some(2), "{open:?}");
    for agent in [alpha, beta] {
        assert_eq!(agent.stop().status.code(), Some(0));
    }
}

/// The window of an incident may end later than the next event, or than the command.
#[test]
fn incident_in_progress_delays_neither_others_nor_the_end() {
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = Nats::up(&lab) else { return };
    assert!(nats.fleet(&["status"]).status.success());
    let alpha = nats.agent(&lab, "alpha", "alpha");
    start(&nats, &lab, "alpha", &["udp port 9"]);
    report_port9(&nats, &lab);
    let command = args!("fleet trigger * --on-event --listen 127.0.0.1:0 --next 60s --pause 60s --json");
    let (waiting, address) = await_requests(&nats, &command);
    let idle: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&address).expect("it listens")).collect();
    let incidents = || report(&lab.file("report-alpha"))["incidents"].as_array().map_or(0, Vec::len);
    let alert = |status: &str| {
        let alert = format!("{{\"status\": \"{status}\", \"labels\": {{\"alertname\": \"Errors\"}}}}");
        format!("{{\"version\": \"4\", \"status\": \"{status}\", \"alerts\": [{alert}]}}")
    };
    let head = "POST / HTTP/1.1";
    let page = format!("{head}\r\nHost: {address}\r\nOrigin: http://{address}");
    assert_eq!(post(&address, &page, "a page"), "HTTP/1.1 403 Forbidden");
    assert_eq!(post(&address, head, &alert("resolved")), "HTTP/1.1 200 OK");
    assert_eq!(post(&address, head, &alert("firing")), "HTTP/1.1 202 Accepted");
    wait_until("the alert has triggered an incident", || incidents() == 1);
    lab.send(&[frames::udp_to(9, b"x")], 1);
    wait_until("the event has triggered another", || incidents() == 2);
    assert_eq!(waiting.shown(), "", "both windows are open");
    // This one is within the pause of its address.
    assert_eq!(post(&address, head, "a second request"), "HTTP/1.1 202 Accepted");
    let ended = waiting.stop();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    let shown: Vec<Value> = super::changes(&ended.stdout);
    let reasons: Vec<&str> = shown.iter().filter_map(|one| one["why"].as_str()).collect();
    assert_eq!((reasons[0], reasons.last()), ("Errors", Some(&"a second request")), "{}", ended.stdout);
    assert!(reasons[1].starts_with("alpha: 'port9' recorded "), "{}", ended.stdout);
    wait_until("the last one is requested, too", || incidents() == reasons.len());
    drop(idle);
    assert_eq!(alpha.stop().status.code(), Some(0));
}

/// Runs captures of an agent that report each second with a packet as an event. `send` returns the name of the capture
/// that should report one.
fn events_of(lab: &Lab, captures: &[(&str, &str)], send: impl FnOnce() -> &'static str) {
    let (receiver, store) = (lab.receiver(), lab.file("store"));
    let capture = |(name, more): &(&str, &str)| {
        format!(
            "[[capture]]\nname = \"{name}\"\ninterfaces = [\"{receiver}\"]\nstore = \"file://{store}\"\nevent_rate = 1\n{more}\n"
        )
    };
    let file = lab.file("agent.toml");
    let state: String = captures.iter().map(capture).collect();
    std::fs::write(&file, state).expect("a file");
    let agent = super::agent(lab, &["--state", &file]);
    let path = lab.file("report");
    let running = vec!["running"; captures.len()];
    wait_until("all run", || phases(&report(&path)) == running);
    let events = || -> Vec<String> {
        let all = report(&path)["captures"].as_array().cloned();
        let all = all.unwrap_or_default().into_iter();
        let named = all.filter(|one| one["event"]["packets_per_second"].as_u64() > Some(0));
        named.filter_map(|one| Some(one["name"].as_str()?.to_owned())).collect()
    };
    assert_eq!(events(), Vec::<String>::new());
    let expected = send();
    wait_until("the event is reported", || events() == [expected]);
    assert_eq!(agent.stop().status.code(), Some(0));
}

#[test]
fn verdict_of_a_program_is_an_event() {
    if !fleet_or_skip() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::ChosenWithHook, &lab.pair.b).expect("the program");
    let captures = [("aborts", "verdicts = [\"aborted\"]"), ("drops", "verdicts = [\"drop\"]")];
    events_of(&lab, &captures, || {
        lab.send(&[frames::choosing(1)], 30);
        "drops"
    });
}

#[test]
fn reason_of_a_drop_is_an_event() {
    if !fleet_or_skip() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let captures = [
        ("checksum", "taps = [\"drop\"]\nreasons = [\"UDP_CSUM\"]"),
        ("socket", "taps = [\"drop\"]\nreasons = [\"NO_SOCKET\"]"),
    ];
    events_of(&lab, &captures, || {
        lab.send_long(&[lab.udp(7000)]);
        "socket"
    });
}
