//! The rules and policies of nftables and of the older iptables that drop packets, in the output of nft and
//! iptables-save.

use std::collections::HashMap;

use trawl_sys::netlink::MarkedPlaces;
use trawl_view::why::{DropKey, Row};

use super::blame::Candidate;

/// Matches on the packet inside a tunnel.
const INSIDE: [&str; 4] = ["vxlan", "geneve", "gre", "gretap"];

/// A chain in the output of `nft -a list ruleset`.
#[derive(Debug, Default)]
pub struct Chain {
    family: String,
    table: String,
    name: String,
    hook: Option<String>,
    devices: Vec<String>,
    drops_by_default: bool,
    /// Handle and text of each rule.
    rules: Vec<(String, String)>,
}

/// Parses the output of `nft -a list ruleset`.
pub fn chains(text: &str) -> Vec<Chain> {
    let mut chains: Vec<Chain> = Vec::new();
    let (mut family, mut table) = (String::new(), String::new());
    let mut in_chain = false;
    for line in text.lines().map(str::trim) {
        let (body, handle) = line.rsplit_once("# handle ").unwrap_or((line, ""));
        let body = body.trim();
        let words: Vec<&str> = body.split_whitespace().collect();
        match &words[..] {
            ["table", of, name, "{"] => (family, table) = ((*of).to_owned(), (*name).to_owned()),
            ["chain", name, "{"] => {
                in_chain = true;
                chains.push(Chain {
                    family: family.clone(),
                    table: table.clone(),
                    name: (*name).to_owned(),
                    ..Chain::default()
                });
            }
            ["}"] => in_chain = false,
            _ if !in_chain => {}
            ["type", _, "hook", hook, rest @ ..] => {
                if let Some(chain) = chains.last_mut() {
                    chain.hook = Some((*hook).to_owned());
                    chain.devices = devices(rest);
                    chain.drops_by_default = body.contains("policy drop;");
                }
            }
            _ if !handle.is_empty() => {
                if let Some(chain) = chains.last_mut() {
                    chain.rules.push((handle.to_owned(), body.to_owned()));
                }
            }
            _ => {}
        }
    }
    chains
}

/// Parses `device "veth0" priority …`, or `devices = { veth0, veth1 } priority …`.
fn devices(words: &[&str]) -> Vec<String> {
    let [kind, rest @ ..] = words else {
        return Vec::new();
    };
    if !kind.starts_with("device") {
        return Vec::new();
    }
    let names = rest.iter().take_while(|word| **word != "priority");
    let names = names.map(|word| word.trim_matches(['"', ',', '=', '{', '}']));
    names.filter(|n| !n.is_empty()).map(str::to_owned).collect()
}

impl Chain {
    /// Returns true for a chain where packets enter at this hook, of this interface if it is known.
    fn is_entered(&self, hook: Option<&str>, interface: Option<&str>, versions: &[u8]) -> bool {
        let has_version = match self.family.as_str() {
            "ip" => versions.contains(&4),
            "ip6" => versions.contains(&6),
            _ => true,
        };
        let is_device =
            interface.is_none_or(|name| self.devices.is_empty() || self.devices.iter().any(|one| one == name));
        has_version
            && is_device
            && match (hook, self.hook.as_deref()) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some("bridge"), Some(_)) => self.family == "bridge",
                (Some(hook), Some(own)) => own == hook && self.family != "bridge",
            }
    }

    fn place(&self) -> String {
        format!("{} {} {}", self.family, self.table, self.name)
    }

    fn rule_name(&self, handle: &str) -> String {
        format!("rule {handle} of {}", self.place())
    }

    fn policy_name(&self) -> String {
        format!("policy of {}", self.place())
    }

    fn is(&self, other: &Self) -> bool {
        (&self.family, &self.table, &self.name) == (&other.family, &other.table, &other.name)
    }
}

/// The packets of a row, as far as rules distinguish them.
#[derive(Clone, Copy)]
pub struct Packets<'r> {
    pub hook: Option<&'r str>,
    pub interface: Option<&'r str>,
    pub row: &'r Row,
    /// True for some of the packets that the rules dropped: rules that match none of them are left out.
    pub are_chosen: bool,
}

impl<'r> Packets<'r> {
    pub fn of(key: &'r DropKey, row: &'r Row, are_chosen: bool) -> Self {
        Self { hook: key.hook.as_deref(), interface: key.interface.as_deref(), row, are_chosen }
    }

    fn has(&self, protocol: &str) -> bool {
        let mut names = self.row.protocols.keys();
        names.any(|name| name.trim_end_matches('6') == protocol || name.starts_with("protocol"))
    }

    /// Returns false if no packet of the row matches the rule: its conditions on protocol and port exclude all.
    pub fn may_match(&self, text: &str) -> bool {
        if !self.are_chosen {
            return true;
        }
        // Text in quotes, such as a log's prefix, has no conditions.
        let plain: String = text.split('"').step_by(2).collect::<Vec<_>>().join("");
        let words: Vec<&str> = plain.split_whitespace().collect();
        if words.iter().any(|word| INSIDE.contains(word)) {
            return true;
        }
        (0..words.len()).all(|at| match words[at..] {
            [protocol @ ("tcp" | "udp"), "dport", ref values @ ..] => self.has(protocol) && self.has_port(values),
            [protocol @ ("tcp" | "udp"), "sport" | "flags", ..]
            | ["l4proto" | "protocol", protocol @ ("tcp" | "udp" | "icmp"), ..] => self.has(protocol),
            _ => true,
        })
    }

    /// Returns false if none of the row's ports is among the values of a condition, `53` or `{ 53, 80-90 }`.
    fn has_port(&self, values: &[&str]) -> bool {
        let Some(ports) = self.row.ports() else {
            return true;
        };
        let values = match values {
            ["{", values @ ..] => values.split(|word| *word == "}").next().unwrap_or(values),
            [value, ..] => std::slice::from_ref(value),
            [] => return true,
        };
        values.iter().any(|value| {
            let value = value.trim_end_matches(',');
            let (first, last) = value.split_once('-').unwrap_or((value, value));
            match (first.parse::<u16>(), last.parse()) {
                (Ok(first), Ok(last)) => ports.range(first..=last).next().is_some(),
                _ => true,
            }
        })
    }
}

/// Returns the chains that packets at a hook may pass, also by jumps.
fn reached<'c>(chains: &'c [Chain], packets: Packets<'_>) -> Vec<&'c Chain> {
    let Packets { hook, interface, row, are_chosen: _ } = packets;
    let versions = row.versions();
    let entered = chains.iter().filter(|one| one.is_entered(hook, interface, &versions));
    let mut reached: Vec<&Chain> = entered.collect();
    let mut at = 0;
    while let Some(chain) = reached.get(at).copied() {
        at += 1;
        for (_, text) in &chain.rules {
            let words: Vec<&str> = text.split_whitespace().collect();
            let onward = words.windows(2).filter(|pair| ["jump", "goto"].contains(&pair[0]));
            for pair in onward {
                let name = pair[1].trim_end_matches(',');
                let target = chains
                    .iter()
                    .find(|one| (&one.family, &one.table) == (&chain.family, &chain.table) && one.name == name);
                if let Some(target) = target
                    && !reached.iter().any(|one| one.is(target))
                {
                    reached.push(target);
                }
            }
        }
    }
    reached
}

/// Returns the rules and policies that may drop packets of a row.
pub fn rules(chains: &[Chain], packets: Packets<'_>) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for chain in reached(chains, packets) {
        for (handle, text) in &chain.rules {
            let words: Vec<&str> = text.split_whitespace().collect();
            // The verdicts of a named map and of a target of iptables are not in the rule.
            let may_drop = |word: &&str| ["drop", "reject", "vmap", "xt"].contains(&word.trim_end_matches(','));
            if words.iter().any(may_drop) && packets.may_match(text) {
                let (text, packets) = without_counter(&words);
                candidates.push(Candidate { name: format!("{}: {text}", chain.rule_name(handle)), packets });
            }
        }
        if chain.drops_by_default {
            candidates.push(Candidate { name: format!("{}: drop", chain.policy_name()), packets: None });
        }
    }
    candidates
}

/// Returns true if packets of a row may meet this rule or policy.
pub fn may_match(chains: &[Chain], packets: Packets<'_>, name: &str) -> bool {
    let place = name.split_once(" of ").map(|(_, place)| place);
    let mut reached = reached(chains, packets).into_iter();
    reached.any(|chain| Some(&*chain.place()) == place)
}

/// Returns the rules and policies of the older iptables that may drop packets of a row, in the output of
/// `iptables-legacy-save -c`.
pub fn legacy_rules(text: &str, hook: Option<&str>) -> Vec<Candidate> {
    let hook = hook.map(str::to_uppercase);
    let mut table = "";
    let mut built_in = Vec::new();
    let mut numbers = HashMap::<&str, u64>::new();
    let mut candidates = Vec::new();
    let count = |counter: &str| {
        let counts = counter.strip_prefix('[')?.strip_suffix(']')?;
        counts.split_once(':')?.0.parse().ok()
    };
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
            built_in.clear();
            numbers.clear();
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let at_hook = |chain: &str| hook.as_deref().is_none_or(|hook| hook == chain);
        match &words[..] {
            [chain, policy, counter] if chain.starts_with(':') => {
                let chain = &chain[1..];
                if *policy != "-" {
                    built_in.push(chain);
                }
                if *policy == "DROP" && at_hook(chain) {
                    candidates.push(Candidate {
                        name: format!("policy of iptables-legacy {table} {chain}: DROP"),
                        packets: count(counter),
                    });
                }
            }
            [counter, "-A", chain, rest @ ..] => {
                let number = numbers.entry(*chain).or_default();
                *number += 1;
                let drops = rest.windows(2).any(|two| matches!(two, ["-j", "DROP" | "REJECT"]));
                if drops && (at_hook(chain) || !built_in.contains(chain)) {
                    let text = rest.join(" ");
                    candidates.push(Candidate {
                        name: format!("rule {number} of iptables-legacy {table} {chain}: {text}"),
                        packets: count(counter),
                    });
                }
            }
            _ => {}
        }
    }
    candidates
}

/// Returns the places that precede these chains.
pub fn places(chains: &[Chain]) -> MarkedPlaces {
    let devices = |hook: &str| {
        let there = chains.iter().filter(|one| one.hook.as_deref() == Some(hook));
        let mut names: Vec<String> = there.flat_map(|one| one.devices.clone()).collect();
        names.sort();
        names.dedup();
        names
    };
    MarkedPlaces {
        bridges: chains.iter().any(|one| one.family == "bridge"),
        ingress: devices("ingress"),
        egress: devices("egress"),
    }
}

/// Returns a rule's text without the numbers of its counter, and the number of packets that the rule dropped: a counter
/// before the last condition counts other packets too.
fn without_counter(words: &[&str]) -> (String, Option<u64>) {
    let mut text = Vec::new();
    let mut packets = None;
    let mut rest = words;
    while let [first, more @ ..] = rest {
        rest = match rest {
            ["counter", "packets", count, "bytes", _, after @ ..] => {
                let is_exact = matches!(after, ["drop" | "reject" | "log" | "comment", ..]);
                packets = count.parse().ok().filter(|_| is_exact);
                after
            }
            _ => {
                text.push(*first);
                more
            }
        };
    }
    (text.join(" "), packets)
}

/// Returns the name of a rule or policy with its text.
pub fn full_name(chains: &[Chain], name: &str) -> Option<String> {
    let mut named = chains.iter().flat_map(|chain| {
        let rules = chain.rules.iter().map(|(handle, text)| (chain.rule_name(handle), text.as_str()));
        rules.chain([(chain.policy_name(), "drop")])
    });
    let (_, text) = named.find(|(one, _)| one == name)?;
    let words: Vec<&str> = text.split_whitespace().collect();
    Some(format!("{name}: {}", without_counter(&words).0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULESET: &str = "table inet f { # handle 1
	set s { # handle 9
		type ipv4_addr
	}

	chain in { # handle 1
		type filter hook input priority filter; policy drop;
		udp dport 53 counter packets 7 bytes 210 drop # handle 4
		tcp dport 22 accept # handle 5
		ip saddr @s jump deeper # handle 6
	}

	chain deeper { # handle 2
		meta l4proto icmp reject # handle 8
	}

	chain out { # handle 3
		type filter hook output priority filter; policy accept;
		udp dport 54 drop # handle 7
	}
}
";

    fn row(protocol: &str, ports: &[u16]) -> Row {
        Row { protocols: [(protocol.to_owned(), 1)].into(), ports: ports.iter().copied().collect(), ..Row::default() }
    }

    fn at<'r>(hook: &'r str, row: &'r Row) -> Packets<'r> {
        Packets { hook: Some(hook), interface: None, row, are_chosen: true }
    }

    #[test]
    fn rules_that_drop_are_found_through_jumps() {
        let chains = chains(RULESET);
        // The type of another protocol may hide these packets.
        let any = row("protocol 4", &[]);
        let found = rules(&chains, at("input", &any));
        let expected = [
            ("rule 4 of inet f in: udp dport 53 drop", Some(7)),
            ("policy of inet f in: drop", None),
            ("rule 8 of inet f deeper: meta l4proto icmp reject", None),
        ];
        let expected = expected.map(|(name, packets)| Candidate { name: name.to_owned(), packets });
        assert_eq!(found, expected);
        let out = rules(&chains, at("output", &row("udp6", &[54])));
        assert_eq!(out.len(), 1);
        assert!(rules(&chains, at("forward", &any)).is_empty());
    }

    #[test]
    fn rules_for_other_packets_are_no_candidates() {
        let text = "table inet f { # handle 1
	chain in { # handle 1
		type filter hook input priority filter; policy accept;
		tcp dport 25 reject # handle 2
		udp dport { 53, 100-110 } drop # handle 3
		log prefix \"tcp dport 9\" ip saddr 10.0.0.1 drop # handle 4
		counter packets 7 bytes 9 udp dport 53 drop # handle 5
		udp dport vmap @verdicts # handle 6
		vxlan tcp dport 80 drop # handle 7
		meta l4proto tcp drop # handle 8
	}
}";
        let chains = chains(text);
        let handles = |row: &Row| -> Vec<String> {
            let found = rules(&chains, at("input", row)).into_iter();
            // The counter before a condition is not the rule's own.
            let found = found.inspect(|one| assert_eq!(one.packets, None));
            let handle = |one: Candidate| one.name.split(' ').nth(1).unwrap().to_owned();
            found.map(handle).collect()
        };
        assert_eq!(handles(&row("udp", &[105])), ["3", "4", "6", "7"]);
        assert_eq!(handles(&row("udp6", &[53])), ["3", "4", "5", "6", "7"]);
        assert_eq!(handles(&row("tcp", &[26])), ["4", "7", "8"]);
        // Ports of later fragments are unknown.
        assert_eq!(handles(&row("tcp", &[])), ["2", "4", "7", "8"]);
        assert_eq!(handles(&row("icmp", &[])), ["4", "7"]);
    }

    #[test]
    fn older_rules_and_policies_have_their_counters() {
        let text = "# Generated
*raw
:PREROUTING ACCEPT [5:9]
[2:4] -A PREROUTING -p udp -j DROP
COMMIT
*filter
:INPUT DROP [7:300]
:FORWARD DROP [0:0]
:mine - [0:0]
[9:9] -A INPUT -j mine
[3:90] -A mine -s 10.0.0.1/32 -j REJECT --reject-with icmp-port-unreachable
COMMIT
";
        let found = legacy_rules(text, Some("input"));
        let expected = [
            ("policy of iptables-legacy filter INPUT: DROP", 7),
            ("rule 1 of iptables-legacy filter mine: -s 10.0.0.1/32 -j REJECT --reject-with icmp-port-unreachable", 3),
        ];
        let expected = expected.map(|(name, packets)| Candidate { name: name.to_owned(), packets: Some(packets) });
        assert_eq!(found, expected);
        assert_eq!(legacy_rules(text, Some("prerouting"))[0].packets, Some(2));
    }

    #[test]
    fn chains_lead_to_places_and_rules() {
        let text = r#"table netdev n {
	chain a { # handle 1
		type filter hook ingress device "veth0" priority filter; policy accept;
	}
	chain b { # handle 2
		type filter hook ingress devices = { veth0, veth1 } priority filter; policy accept;
	}
	chain c { # handle 3
		type filter hook egress device "veth2" priority filter; policy accept;
	}
}"#;
        let found = places(&chains(text));
        assert!(!found.bridges);
        assert_eq!(found.ingress, ["veth0", "veth1"]);
        assert_eq!(found.egress, ["veth2"]);
        let chains = chains(RULESET);
        assert!(places(&chains).ingress.is_empty());
        let udp = row("udp", &[53]);
        let meets = |name| may_match(&chains, at("input", &udp), name);
        assert!(meets("rule 99 of inet f deeper") && meets("policy of inet f in"));
        assert!(!meets("rule 7 of inet f out"));
    }

    #[test]
    fn names_get_the_text_without_its_counter() {
        let chains = chains(RULESET);
        let full = |name| full_name(&chains, name);
        assert_eq!(full("rule 4 of inet f in").as_deref(), Some("rule 4 of inet f in: udp dport 53 drop"));
        assert_eq!(full("policy of inet f in").as_deref(), Some("policy of inet f in: drop"));
        assert_eq!(full("rule 4 of inet f out"), None);
    }
}
