//! `trawl why`: rows that add up, counters that equal the account, advice.

use serde_json::Value;
use trawl_packet::build::Template;
use trawl_tests::witness::run;
use trawl_tests::{Lab, Running, trawl};

use rustix::process::Signal;

fn udp(lab: &Lab, port: u16) -> Vec<u8> {
    Template::new()
        .ethernet(lab.pair.a.mac, lab.pair.b.mac)
        .ipv4(lab.pair.a.ipv4.octets(), lab.pair.b.ipv4.octets())
        .udp(40000, port)
        .payload([0; 18])
        .build()
}

fn sum(rows: &Value, name: &str) -> u64 {
    let rows = rows.as_array().expect("a list");
    rows.iter().map(|row| row[name].as_u64().unwrap_or(0)).sum()
}

#[track_caller]
fn row<'v>(report: &'v Value, reason: &str) -> &'v Value {
    let rows = report["rows"].as_array().expect("rows");
    let found = rows.iter().find(|row| row["reason"] == reason);
    found.unwrap_or_else(|| panic!("no {reason} in {report}"))
}

/// Issue 18, point 3: rows add up to what was seen, and counters equal rows.
#[test]
fn rows_and_counters_are_the_same() {
    let Some(lab) = Lab::open() else { return };
    let name = &lab.pair.b.name;
    let inside = |command: &[&str]| run("ip", &[&["netns", "exec", name], command].concat());
    inside(&["nft", "add table inet f"]);
    inside(&[
        "nft",
        "add chain inet f in { type filter hook input priority 0; }",
    ]);
    inside(&["nft", "add rule inet f in udp dport 5555 drop"]);
    let why = Running::start(
        &["why", "--netns", name, "--json", "--duration", "1h"],
        "looking",
    );
    let mut wrong = udp(&lab, 7);
    wrong[14] = 0x44;
    let frames = [
        udp(&lab, 5555),
        udp(&lab, 5555),
        udp(&lab, 7),
        udp(&lab, 7),
        udp(&lab, 7),
        wrong,
    ];
    lab.send_long(&frames);
    why.signal(Signal::INT);
    let done = why.wait();
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let account = &report["account"];
    assert_eq!(
        sum(&report["rows"], "packets"),
        account["recorded"].as_u64().unwrap()
    );
    assert_eq!(account["seen"], 6, "{report}");
    let dropped = row(&report, "NETFILTER_DROP");
    assert_eq!(dropped["packets"], 2);
    assert_eq!(dropped["hook"], "input");
    assert_eq!(dropped["interface"], "veth0");
    assert_eq!(dropped["netns"], name.as_str());
    let advice = dropped["advice"].as_str().expect("advice");
    assert!(advice.contains("nft list chain inet f in"), "{advice}");
    assert_eq!(row(&report, "NO_SOCKET")["packets"], 3);
    for (counter, count) in [("UdpNoPorts", 3), ("IpInHdrErrors", 1)] {
        let counters = report["counters"].as_array().expect("counters");
        let found = counters.iter().find(|one| one["name"] == counter);
        let found = found.unwrap_or_else(|| panic!("no {counter} in {report}"));
        assert_eq!(
            (&found["difference"], &found["in_rows"]),
            (&count.into(), &count.into())
        );
    }
}

#[test]
fn words_name_reason_place_and_flows() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let why = Running::start(&["why", "-i", &receiver, "udp"], "looking for drops on");
    lab.send_long(&[udp(&lab, 7), udp(&lab, 7), udp(&lab, 8)]);
    why.signal(Signal::INT);
    let done = why.wait();
    let first = done.stdout.lines().next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    assert_eq!(words[..2], ["3", "NO_SOCKET"], "{first}");
    assert!(first.ends_with("udp to 7 (2), udp to 8 (1)"), "{first}");
    assert!(
        done.stderr
            .ends_with("3 seen, 0 filtered out, 3 recorded, 0 lost\n"),
        "{}",
        done.stderr
    );
}

#[test]
fn wrong_use_is_told() {
    for arguments in [&["why", "--duration", "x"][..], &["why", "no such word"]] {
        assert_eq!(trawl(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
