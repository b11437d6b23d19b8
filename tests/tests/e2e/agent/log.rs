//! The log of the operators' commands: hosts add to it, and cannot change it.

use std::fs;

use serde_json::Value;
use trawl_tests::{Lab, args, frames, trawl, wait_until};

use super::incident::{account, json, start};
use super::{
    ALPHA, Attacker, BETA, Nats, OPERATOR, OPERATOR_BY_CREDENTIALS as SECOND, PASSWORD, documented_accounts, phases,
    report,
};

/// Returns a line for each command that hosts have logged: the host, the operator, the command, and the reason if it is
/// refused.
fn logged(nats: &Nats, selector: &str) -> Vec<String> {
    let log = json(&nats.fleet(&["log", selector, "--json"]));
    let commands = log["commands"].as_array().expect("a list");
    let text = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
    let line = |one: &Value| {
        let (host, operator) = (text(one, "host"), text(one, "operator"));
        let name = match &operator {
            key if key == OPERATOR[1] => "first",
            key if key == SECOND => "second",
            key if key == BETA[1] => "stranger",
            _ => "nobody",
        };
        let what = [text(one, "capture"), text(one, "incident")].concat();
        format!("{host} {name} {} {what} {}", text(one, "command"), text(one, "refused")).trim_end().to_owned()
    };
    commands.iter().map(line).collect()
}

#[test]
fn commands_are_logged_where_hosts_cannot_change_them() {
    let login = |host: &str| format!("user: {host}, password: \"{PASSWORD}\"");
    let accounts = documented_accounts()
        .replace(&format!("nkey: {}", ALPHA[1]), &login("alpha"))
        .replace(&format!("nkey: {}", BETA[1]), &login("beta"))
        .replace("users: [ { nkey", &format!("users: [ {{ nkey: {} }}, {{ nkey: {SECOND} }}, {{ nkey", BETA[1]));
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = Nats::with_passwords(&lab, &accounts) else { return };
    assert!(nats.fleet(&["status"]).status.success());
    let alpha = nats.agent_within(&lab, "alpha", "alpha", "taps = [\"packet\"]");
    let beta = nats.agent(&lab, "beta", "beta");
    wait_until("both have reported", || nats.status("*")["hosts"].as_array().map(Vec::len) == Some(2));
    start(&nats, &lab, "alpha", &["--name", "one", "--chunk-time", "1s", "udp"]);
    start(&nats, &lab, "alpha", &["--name", "one", "--chunk-time", "1s", "udp port 9"]);
    lab.send(&[frames::udp_to(9, b"x")], 10);
    wait_until("all are indexed in the store", || account(&lab) == [10, 0, 10]);
    let (receiver, store) = (lab.receiver(), format!("file://{}", lab.file("store")));
    let refused = nats.fleet(&args!("start alpha --name two -i {receiver} --tap xdp --store {store}"));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    // An operator whom no policy names.
    let stranger = format!("{}/stranger", nats.directory);
    fs::write(&stranger, BETA[0]).expect("a file");
    let known = ["--nats", &nats.url, "--nkey", &stranger];
    let refused = trawl(&[&["fleet"], &args!("start beta -i {receiver} --store {store}")[..], &known].concat());
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let query =
        args!("store query --store {store} --spool /nonexistent --filter udp --packets {}", lab.file("found.pcapng"));
    let by_bus = nats.place("operator");
    let by_bus: Vec<&str> = by_bus.iter().map(|word| if word == "--nats" { "--hosts" } else { word }).collect();
    let asked = trawl(&[&query[..], &by_bus].concat());
    assert!(asked.status.success(), "{asked:?}");
    assert!(nats.fleet(&args!("trigger alpha --id slow")).status.success());
    assert!(nats.fleet(&args!("stop alpha --name one")).status.success());
    let expected = [
        "alpha first start one",
        "alpha first change one",
        "alpha first start two policy: tap xdp",
        "alpha first ask",
        "alpha first trigger slow",
        "alpha first stop one",
    ];
    wait_until("alpha has logged all", || logged(&nats, "alpha") == expected);
    let ignored = format!(
        "beta stranger unknown  a desired state is ignored: it is signed by {}, a key that belongs to no known operator",
        BETA[1]
    );
    wait_until("beta has logged one", || logged(&nats, "beta") == [&*ignored]);
    let table = String::from_utf8(nats.fleet(&["log"]).stdout).expect("a table");
    assert!(table.contains(&format!("{} alpha: start two: refused: policy: tap xdp\n", &OPERATOR[1][..8])), "{table}");
    // A host can neither remove records nor add to another's.
    let mut attacker = Attacker::as_host(&nats, "alpha");
    for subject in [
        "$JS.API.STREAM.PURGE.trawl_log",
        "$JS.API.STREAM.DELETE.trawl_log",
        "$JS.API.STREAM.UPDATE.trawl_log",
        "$JS.API.STREAM.MSG.DELETE.trawl_log",
        "trawl.log.beta",
    ] {
        let said = attacker.publish(subject, "", "{}");
        assert!(said.starts_with("-ERR 'Permissions Violation"), "{subject}: {said}");
    }
    let header = "NATS/1.0\r\nNats-Rollup: all\r\n\r\n";
    assert_eq!(attacker.send(&format!("HPUB trawl.log.alpha {0} {0}\r\n{header}\r\n", header.len())), "+OK");
    // An agent that begins again has got no command.
    assert_eq!(alpha.stop().status.code(), Some(0));
    let again = nats.agent_within(&lab, "alpha", "alpha", "taps = [\"packet\"]");
    wait_until("it follows", || phases(&report(&lab.file("report-alpha"))) == ["refused"]);
    assert_eq!(logged(&nats, "alpha"), expected);
    assert_eq!(logged(&nats, "b*"), [ignored]);
    for agent in [again, beta] {
        assert_eq!(agent.stop().status.code(), Some(0));
    }
}
