//! The rules and policies of nftables that drop packets, in the output of nft.

use trawl_sys::netlink::MarkedPlaces;

use super::culprits::Candidate;

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

/// Parses that output.
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
    /// Returns true for a chain where packets enter at this hook.
    fn is_entered(&self, hook: Option<&str>, versions: &[u8]) -> bool {
        let takes = match self.family.as_str() {
            "ip" => versions.contains(&4),
            "ip6" => versions.contains(&6),
            _ => true,
        };
        takes
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

/// Returns the chains that packets at a hook may pass, also by jumps.
fn reached<'c>(chains: &'c [Chain], hook: Option<&str>, versions: &[u8]) -> Vec<&'c Chain> {
    let entered = chains.iter().filter(|one| one.is_entered(hook, versions));
    let mut reached: Vec<&Chain> = entered.collect();
    let mut at = 0;
    while let Some(chain) = reached.get(at).copied() {
        at += 1;
        for (_, text) in &chain.rules {
            let words: Vec<&str> = text.split_whitespace().collect();
            let onward = words
                .windows(2)
                .filter(|pair| ["jump", "goto"].contains(&pair[0]));
            for pair in onward {
                let name = pair[1].trim_end_matches(',');
                let target = chains.iter().find(|one| {
                    (&one.family, &one.table) == (&chain.family, &chain.table) && one.name == name
                });
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

/// Returns the rules and policies that drop packets at a hook.
pub fn rules(chains: &[Chain], hook: Option<&str>, versions: &[u8]) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for chain in reached(chains, hook, versions) {
        for (handle, text) in &chain.rules {
            let words: Vec<&str> = text.split_whitespace().collect();
            let drops = |word: &&str| ["drop", "reject"].contains(&word.trim_end_matches(','));
            if words.iter().any(drops) {
                let (text, packets) = without_counter(&words);
                candidates.push(Candidate {
                    name: format!("{}: {text}", chain.rule_name(handle)),
                    packets,
                });
            }
        }
        if chain.drops_by_default {
            candidates.push(Candidate {
                name: format!("{}: drop", chain.policy_name()),
                packets: None,
            });
        }
    }
    candidates
}

/// Returns true if packets at a hook may meet this rule or policy.
pub fn may_meet(chains: &[Chain], hook: Option<&str>, versions: &[u8], name: &str) -> bool {
    let place = name.split_once(" of ").map(|(_, place)| place);
    let mut reached = reached(chains, hook, versions).into_iter();
    reached.any(|chain| Some(&*chain.place()) == place)
}

/// Returns the places that precede these chains.
pub fn places(chains: &[Chain]) -> MarkedPlaces {
    let devices = |hook: &str| {
        let there = chains
            .iter()
            .filter(|one| one.hook.as_deref() == Some(hook));
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

/// Returns a rule's text without the numbers of its counter, and the number of packets.
fn without_counter(words: &[&str]) -> (String, Option<u64>) {
    let mut text = Vec::new();
    let mut packets = None;
    let mut rest = words;
    while let [first, more @ ..] = rest {
        rest = match rest {
            ["counter", "packets", count, "bytes", _, after @ ..] => {
                packets = count.parse().ok();
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
        let rules = chain.rules.iter();
        let rules = rules.map(|(handle, text)| (chain.rule_name(handle), text.as_str()));
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

    #[test]
    fn rules_that_drop_are_found_through_jumps() {
        let chains = chains(RULESET);
        let found = rules(&chains, Some("input"), &[4]);
        let expected = [
            ("rule 4 of inet f in: udp dport 53 drop", Some(7)),
            ("policy of inet f in: drop", None),
            ("rule 8 of inet f deeper: meta l4proto icmp reject", None),
        ];
        let expected = expected.map(|(name, packets)| Candidate {
            name: name.to_owned(),
            packets,
        });
        assert_eq!(found, expected);
        let out = rules(&chains, Some("output"), &[6]);
        assert_eq!(out.len(), 1);
        assert!(rules(&chains, Some("forward"), &[4]).is_empty());
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
        let meets = |name| may_meet(&chains, Some("input"), &[4], name);
        assert!(meets("rule 99 of inet f deeper") && meets("policy of inet f in"));
        assert!(!meets("rule 7 of inet f out"));
    }

    #[test]
    fn names_get_the_text_without_its_counter() {
        let chains = chains(RULESET);
        let full = |name| full_name(&chains, name);
        assert_eq!(
            full("rule 4 of inet f in").as_deref(),
            Some("rule 4 of inet f in: udp dport 53 drop")
        );
        assert_eq!(
            full("policy of inet f in").as_deref(),
            Some("policy of inet f in: drop")
        );
        assert_eq!(full("rule 4 of inet f out"), None);
    }
}
