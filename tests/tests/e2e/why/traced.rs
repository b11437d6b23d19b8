//! The rules and policies of nftables that dropped traced packets, where the kernel refuses programs at its functions.

use std::collections::BTreeMap;

use serde_json::Value;
use trawl_tests::{Lab, Running, amount, trawl, wait_until};

use super::row;
use super::rules::{RULES, drop_at_bridge, is_expected, udp6, without_handle};

const TWO_RULES: &str = "
table inet f {
    chain in {
        type filter hook input priority 0
        udp dport 5001 drop
        udp dport 5002 drop
    }
}";
const TRACING: &str = "tracing_packets";

/// Starts `trawl why` in b's namespace with more arguments.
fn start(lab: &Lab, more: &[&str]) -> Running {
    let arguments = [&["why", "--netns", &lab.pair.b.name, "--json"], more].concat();
    Running::start_without("fexit", &arguments, "looking")
}

/// Starts `trawl why`, and returns once a dropped packet to this port has begun the trace.
fn start_tracing(lab: &Lab, port: u16, more: &[&str]) -> Running {
    let why = start(lab, more);
    lab.send_long(&[lab.udp(port)]);
    why.wait_said(TRACING);
    why
}

/// Returns the traced packets of each rule or policy in the report's rows.
fn traced_by_rule(report: &Value) -> BTreeMap<String, u64> {
    let rows = report["rows"].as_array().expect("rows").iter();
    let rows = rows.filter(|row| row["reason"] == "NETFILTER_DROP");
    let culprits = rows.flat_map(|row| row["culprits"].as_array().expect("culprits"));
    let mut found = BTreeMap::new();
    for one in culprits.filter(|one| one["is_certain"] == true) {
        let name = without_handle(one["name"].as_str().expect("a name"));
        let before = found.insert(name, one["traced"].as_u64().expect("a number"));
        assert_eq!(before, None, "{report}");
    }
    found
}

#[test]
fn rules_of_all_families_are_named() {
    let Some(lab) = Lab::open() else { return };
    lab.nft(RULES);
    lab.nft(
        "table ip c {
            chain c {
                type filter hook prerouting priority -300
                udp dport 5000 counter
            }
        }",
    );
    let rules = lab.inside("nft -s list ruleset");
    let file = lab.file("drops.pcapng");
    let why = start_tracing(&lab, 5001, &["--record", &file]);
    // The rate of marked packets is limited, but a burst of 20 is allowed.
    let mut frames = vec![udp6(&lab, 5010)];
    frames.extend([5000, 5000, 5003, 5004, 5005, 5008, 5008, 6000].map(|port| lab.udp(port)));
    lab.send_long(&frames);
    let report = why.stop().json();
    is_expected(
        &traced_by_rule(&report),
        &[
            ("inet f in: udp dport 5000 drop", 2),
            ("inet f deeper: udp dport 5003 reject", 1),
            ("inet f in: udp dport vmap @verdicts", 1),
            ("inet f other: drop", 1),
            ("netdev n in: udp dport 5008 drop", 2),
            ("policy of ip p in: drop", 1),
            ("ip6 s in: udp dport 5010 drop", 1),
        ],
    );
    let read = trawl(&["why", &file, "--json"]);
    let read: Value = serde_json::from_slice(&read.stdout).expect("JSON");
    assert_eq!(traced_by_rule(&read), traced_by_rule(&report));
    assert_eq!(lab.inside("nft -s list ruleset"), rules);
    let counted = lab.inside("nft list table ip c");
    assert!(counted.contains("counter packets 2 "), "{counted}");
}

#[test]
fn rules_of_bridges_are_traced() {
    let Some(lab) = Lab::open() else { return };
    drop_at_bridge(&lab);
    let why = start_tracing(&lab, 5001, &[]);
    lab.send_long(&[lab.udp(5002), lab.udp(5002)]);
    is_expected(&traced_by_rule(&why.stop().json()), &[("bridge t in: ether type ip udp dport 5002 drop", 2)]);
}

/// The trace begins after the first packets, so a rule that it finds does not explain them.
#[test]
fn traced_rule_explains_its_packets_alone() {
    let Some(lab) = Lab::open() else { return };
    lab.nft(TWO_RULES);
    let why = start(&lab, &[]);
    lab.send_long(&vec![lab.udp(5001); 200]);
    why.wait_said(TRACING);
    lab.send_long(&[lab.udp(5002)]);
    let report = why.stop().json();
    let row = row(&report, "NETFILTER_DROP");
    assert_eq!(row["packets"], 201, "{report}");
    let culprit = |port: u16| {
        let name = format!("inet f in: udp dport {port} drop");
        let all = row["culprits"].as_array().expect("culprits");
        let mut all = all.iter();
        all.find(|one| without_handle(one["name"].as_str().expect("a name")) == name)
            .unwrap_or_else(|| panic!("no rule for {port}: {report}"))
    };
    assert_eq!((&culprit(5002)["is_certain"], &culprit(5002)["traced"]), (&true.into(), &1.into()));
    // Some of the first packets may have arrived while the trace began.
    let traced = culprit(5001)["traced"].as_u64().unwrap_or(0);
    assert_eq!(culprit(5001)["is_certain"], traced > 0, "{report}");
    assert_eq!(row["unexplained"], 200 - traced, "{report}");
}

/// With an expression, traced packets may belong to other rows, and rules that match none of the chosen packets are
/// left out.
#[test]
fn chosen_packets_are_not_traced() {
    let Some(lab) = Lab::open() else { return };
    lab.nft(TWO_RULES);
    lab.inside("nft add rule inet f in udp dport 5003 drop");
    let why = start(&lab, &["udp dst port 5001 or udp dst port 5003"]);
    lab.send_long(&[5001, 5001, 5002, 5003].map(|port| lab.udp(port)));
    let done = why.stop();
    assert!(!done.stderr.contains(TRACING), "{}", done.stderr);
    let report = done.json();
    let culprits = row(&report, "NETFILTER_DROP")["culprits"].as_array();
    let named = culprits.into_iter().flatten().map(|one| {
        let name = without_handle(one["name"].as_str().expect("a name"));
        (name, one["is_certain"] == true)
    });
    let expected = ["5001", "5003"].map(|port| {
        let name = format!("inet f in: udp dport {port} drop");
        (name, false)
    });
    assert_eq!(named.collect::<Vec<_>>(), expected, "{report}");
}

/// The table that marks packets is removed after the time limit, and at once if trawl is killed.
#[test]
fn no_table_is_left() {
    let Some(lab) = Lab::open() else { return };
    lab.nft(TWO_RULES);
    let tables = || lab.inside("nft list tables");
    let before = tables();
    let why = start_tracing(&lab, 5001, &[]);
    assert!(tables().contains("trawl-trace-"));
    wait_until("the trace ends", || tables() == before);
    lab.send_long(&[lab.udp(5001)]);
    let report = why.stop().json();
    let dropped = row(&report, "NETFILTER_DROP");
    assert_eq!(dropped["packets"], 2, "{report}");
    assert_eq!(dropped["culprits"][1]["is_certain"], false, "{report}");
    let why = start_tracing(&lab, 5001, &[]);
    assert!(tables().contains("trawl-trace-"));
    why.kill();
    assert_eq!(tables(), before);
}

#[test]
fn few_packets_of_a_flood_are_traced() {
    let Some(lab) = Lab::open() else { return };
    lab.nft(TWO_RULES);
    let why = start_tracing(&lab, 5001, &[]);
    let sent = amount(200_000);
    lab.send(&[lab.udp(5002)], sent);
    let report = why.stop().json();
    let found = traced_by_rule(&report);
    assert_eq!(found.len(), 1, "{report}");
    let traced = found["inet f in: udp dport 5002 drop"];
    // The limits are a burst, and 200 packets per second for 5 s.
    assert!((20..=1100).contains(&traced), "{report}");
    let account = &report["account"];
    let lost = account["lost"].as_u64().expect("a number");
    assert_eq!(account["recorded"], sent + 1 - lost, "{report}");
}

/// Packets are not traced if counters distinguish the rules, or if the user disables tracing.
#[test]
fn traces_are_avoided() {
    let Some(lab) = Lab::open() else { return };
    lab.nft(TWO_RULES);
    let why = start(&lab, &["--no-trace"]);
    lab.send_long(&[lab.udp(5001)]);
    let done = why.stop();
    assert!(!done.stderr.contains(TRACING), "{}", done.stderr);
    let report = done.json();
    let culprits = &row(&report, "NETFILTER_DROP")["culprits"];
    assert_eq!(culprits[1]["is_certain"], false, "{report}");
    lab.inside("nft flush chain inet f in");
    lab.inside("nft add rule inet f in udp dport 5001 counter drop");
    lab.inside("nft add rule inet f in udp dport 5002 counter drop");
    let why = start(&lab, &[]);
    lab.send_long(&[lab.udp(5001)]);
    let done = why.stop();
    assert!(!done.stderr.contains(TRACING), "{}", done.stderr);
    let report = done.json();
    let culprits = &row(&report, "NETFILTER_DROP")["culprits"];
    assert_eq!(culprits[0]["packets"], 1, "{report}");
}
