//! The rules and policies of nftables that dropped packets. Programs in the kernel note them, because no rule has a
//! counter.

use std::collections::BTreeMap;

use serde_json::Value;
use trawl_bpf::probe::KernelFeature;
use trawl_packet::build::Template;
use trawl_tests::{Lab, Running, feature_or_skip, trawl};

use super::row;

/// Chains of all kinds, whose rules each have a port of their own.
pub const RULES: &str = "
table inet f {
    map verdicts {
        type inet_service : verdict
        elements = { 5004 : drop }
    }
    chain deeper {
        udp dport 5001 drop
        udp dport 5002 drop
        udp dport 5003 reject
    }
    chain other {
        udp dport 1 accept
        meta mark set 5
        drop
    }
    chain in {
        type filter hook input priority 0
        udp dport 5000 drop
        udp dport vmap @verdicts
        meta l4proto udp jump deeper
        udp dport 5005 goto other
        udp dport 5006 drop
    }
    chain out {
        type filter hook output priority 0
        udp dport 5000 drop
    }
}
table netdev n {
    chain in {
        type filter hook ingress device veth0 priority 0
        udp dport 5007 drop
        udp dport 5008 drop
    }
}
table ip6 s {
    chain in {
        type filter hook input priority 5
        udp dport 5009 drop
        udp dport 5010 drop
    }
}
table ip p {
    chain in {
        type filter hook input priority 5; policy drop
        udp dport { 5001-5020, 5555, 5556 } accept
        meta l4proto icmp accept
    }
}
";

fn open() -> Option<Lab> {
    let features = [KernelFeature::Fentry, KernelFeature::Fexit];
    features.into_iter().all(feature_or_skip).then(Lab::open)?
}

/// Makes a bridge that drops packets to two ports.
pub fn drop_at_bridge(lab: &Lab) {
    lab.inside("ip link add bridge type bridge");
    lab.inside("ip link set veth0 master bridge");
    lab.inside("ip link set bridge up");
    lab.nft(
        "table bridge t {
            chain in {
                type filter hook prerouting priority 0
                ether type ip udp dport 5001 drop
                ether type ip udp dport 5002 drop
            }
        }",
    );
}

pub fn udp6(lab: &Lab, port: u16) -> Vec<u8> {
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    Template::new()
        .ethernet(a.mac, b.mac)
        .ipv6(a.ipv6.octets(), b.ipv6.octets())
        .udp(40000, port)
        .payload([0; 18])
        .build()
}

/// Returns the packets of each rule or policy in the report's rows, all of which must be certain.
fn packets_by_rule(report: &Value) -> BTreeMap<String, u64> {
    let rows = report["rows"].as_array().expect("rows").iter();
    let mut found = BTreeMap::new();
    for row in rows.filter(|row| row["reason"] == "NETFILTER_DROP") {
        let mut sum = 0;
        for one in row["culprits"].as_array().expect("culprits") {
            assert_eq!(one["is_certain"], true, "{row}");
            let packets = one["packets"].as_u64().expect("a number");
            let name = without_handle(one["name"].as_str().expect("a name"));
            *found.entry(name).or_default() += packets;
            sum += packets;
        }
        assert_eq!(row["packets"], sum, "{row}");
    }
    found
}

/// Returns the name of a rule or policy without the handle, which differs.
pub fn without_handle(name: &str) -> String {
    match name.split_once(" of ") {
        Some(("policy", chain)) => format!("policy of {chain}"),
        Some((_, chain)) => chain.to_owned(),
        None => name.to_owned(),
    }
}

pub fn is_expected(found: &BTreeMap<String, u64>, expected: &[(&str, u64)]) {
    let expected = expected.iter().map(|(name, packets)| ((*name).to_owned(), *packets));
    assert_eq!(*found, expected.collect());
}

#[test]
fn every_rule_that_drops_is_named() {
    let Some(lab) = open() else { return };
    lab.nft(RULES);
    lab.inside("iptables-nft -A INPUT -p udp --dport 5011 -j DROP");
    lab.inside("iptables-nft -A INPUT -p udp --dport 5012 -j REJECT");
    let name = &lab.pair.b.name;
    let file = lab.file("drops.pcapng");
    let arguments = ["why", "--netns", name, "--json", "--record", &file];
    let why = Running::start(&arguments, "looking");
    let mut frames = Vec::new();
    for (place, port) in
        [5000, 5001, 5002, 5003, 5004, 5005, 5006, 5007, 5008, 5011, 5012, 6000].into_iter().enumerate()
    {
        frames.extend(vec![lab.udp(port); place + 1]);
    }
    frames.extend(vec![udp6(&lab, 5009); 20]);
    frames.extend(vec![udp6(&lab, 5010); 21]);
    lab.send_long(&frames);
    let report: Value = serde_json::from_str(&why.stop().stdout).expect("JSON");
    let all = packets_by_rule(&report);
    is_expected(
        &all,
        &[
            ("inet f in: udp dport 5000 drop", 1),
            ("inet f deeper: udp dport 5001 drop", 2),
            ("inet f deeper: udp dport 5002 drop", 3),
            ("inet f deeper: udp dport 5003 reject", 4),
            ("inet f in: udp dport vmap @verdicts", 5),
            ("inet f other: drop", 6),
            ("inet f in: udp dport 5006 drop", 7),
            ("netdev n in: udp dport 5007 drop", 8),
            ("netdev n in: udp dport 5008 drop", 9),
            ("ip filter INPUT: udp dport 5011 drop", 10),
            ("ip filter INPUT: udp dport 5012 reject", 11),
            ("policy of ip p in: drop", 12),
            ("ip6 s in: udp dport 5009 drop", 20),
            ("ip6 s in: udp dport 5010 drop", 21),
        ],
    );
    // The report from the file also names them, and counts only the chosen packets.
    let read = |expression: &str| -> Value {
        let done = trawl(&["why", &file, "--json", expression]);
        serde_json::from_slice(&done.stdout).expect("JSON")
    };
    assert_eq!(packets_by_rule(&read("udp")), all);
    is_expected(
        &packets_by_rule(&read("udp dst port 5002 or udp dst port 5008")),
        &[("inet f deeper: udp dport 5002 drop", 3), ("netdev n in: udp dport 5008 drop", 9)],
    );
}

#[test]
fn rules_of_bridges_are_named() {
    let Some(lab) = open() else { return };
    drop_at_bridge(&lab);
    let name = &lab.pair.b.name;
    let why = Running::start(&["why", "--netns", name, "--json"], "looking");
    lab.send_long(&[lab.udp(5001), lab.udp(5002), lab.udp(5002)]);
    let report: Value = serde_json::from_str(&why.stop().stdout).expect("JSON");
    is_expected(
        &packets_by_rule(&report),
        &[("bridge t in: ether type ip udp dport 5001 drop", 1), ("bridge t in: ether type ip udp dport 5002 drop", 2)],
    );
}

/// Rules may be added and removed during a run, although the kernel reuses their memory, also for other chains.
#[test]
fn rules_may_change_meanwhile() {
    let Some(lab) = open() else { return };
    let rules = |table: &str, ports: [u16; 2]| {
        let drops = ports.map(|port| format!("udp dport {port} drop")).join("\n");
        lab.nft(&format!(
            "table inet {table}\nflush table inet {table}\ntable inet {table} {{
                chain in {{
                    type filter hook input priority 0
                    {drops}
                }}
            }}"
        ));
    };
    rules("one", [5001, 5002]);
    rules("two", [5003, 5004]);
    let name = &lab.pair.b.name;
    let why = Running::start(&["why", "--netns", name, "--json"], "looking");
    let send = || lab.send_long(&[5001, 5002, 5003, 5004].map(|port| lab.udp(port)));
    send();
    for _ in 0..20 {
        rules("one", [5002, 5001]);
        rules("two", [5004, 5003]);
        send();
        rules("one", [5001, 5002]);
        rules("two", [5003, 5004]);
        send();
    }
    let report: Value = serde_json::from_str(&why.stop().stdout).expect("JSON");
    let row = row(&report, "NETFILTER_DROP");
    let mut sums = BTreeMap::<&str, u64>::new();
    for one in row["culprits"].as_array().expect("culprits") {
        let name = one["name"].as_str().expect("a name");
        // Removed rules have no text.
        let (_, place) = name.split_once(" of inet ").expect("a rule");
        let (place, text) = place.split_once(": ").unwrap_or((place, ""));
        if let Some(port) = text.strip_prefix("udp dport ") {
            let is_first = ["5001 drop", "5002 drop"].contains(&port);
            assert_eq!(place, if is_first { "one in" } else { "two in" }, "{row}");
        }
        *sums.entry(place).or_default() += one["packets"].as_u64().expect("a number");
    }
    assert_eq!(sums, BTreeMap::from([("one in", 82), ("two in", 82)]), "{row}");
}
