//! Which chains at a netfilter hook may have dropped packets: the commands that list them.

use std::process::Command;

use serde::Deserialize;
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_view::why::DropKey;

/// The tables of iptables and the hooks that each has chains at.
const TABLES: [(&str, &[&str]); 5] = [
    ("raw", &["prerouting", "output"]),
    (
        "mangle",
        &["prerouting", "input", "forward", "output", "postrouting"],
    ),
    ("nat", &["prerouting", "input", "output", "postrouting"]),
    ("filter", &["input", "forward", "output"]),
    ("security", &["input", "forward", "output"]),
];
/// Of both versions of IP: the files in /proc that name the legacy tables there are, and the commands that list them.
const LEGACY: [(u8, &str, &str); 2] = [
    (
        4,
        "/proc/thread-self/net/ip_tables_names",
        "iptables-legacy",
    ),
    (
        6,
        "/proc/thread-self/net/ip6_tables_names",
        "ip6tables-legacy",
    ),
];

/// `nft -j list chains`, as far as it is asked.
#[derive(Deserialize)]
struct Chains {
    nftables: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    chain: Option<Chain>,
}

#[derive(Deserialize)]
struct Chain {
    family: String,
    table: String,
    name: String,
    hook: Option<String>,
}

/// The commands that list the chains at the hook, each after `prefix`. `versions`: of IP, those of the packets.
pub fn advice(place: &DropKey, versions: &[u8], prefix: &str) -> String {
    let found = namespace(place)
        .and_then(|namespace| run_maybe_in(namespace.as_ref(), || commands(place, versions)).ok())
        .unwrap_or_default();
    if found.is_empty() {
        return format!("{prefix}nft list ruleset");
    }
    format!("{prefix}{}", found.join(&format!("; {prefix}")))
}

/// In the namespace of the calling thread.
fn commands(place: &DropKey, versions: &[u8]) -> Vec<String> {
    let mut commands: Vec<String> = chains()
        .unwrap_or_default()
        .iter()
        .filter(|chain| chain.is_at(place.hook) && chain.takes(versions))
        .map(Chain::command)
        .collect();
    // What nftables drops, it frees itself on newer kernels.
    if !place.function.starts_with("nft_") {
        for (version, names, command) in LEGACY {
            if versions.contains(&version) {
                let names = std::fs::read_to_string(names).unwrap_or_default();
                commands.extend(legacy(&names, place.hook, command));
            }
        }
    }
    commands
}

/// One command for each of the legacy tables with a chain at the hook.
fn legacy(names: &str, hook: Option<&str>, command: &str) -> Vec<String> {
    let tables = TABLES
        .iter()
        .filter(|(table, _)| names.lines().any(|name| name == *table));
    tables
        .filter_map(|(table, hooks)| match hook {
            Some(hook) => hooks
                .contains(&hook)
                .then(|| format!("{command} -t {table} -vnL {}", hook.to_uppercase())),
            None => Some(format!("{command} -t {table} -vnL")),
        })
        .collect()
}

impl Chain {
    fn is_at(&self, hook: Option<&str>) -> bool {
        match (hook, self.hook.as_deref()) {
            (Some("bridge"), Some(_)) => self.family == "bridge",
            (Some(hook), Some(own)) => hook == own && self.family != "bridge",
            (None, own) => own.is_some(),
            (Some(_), None) => false,
        }
    }

    /// Whether packets of one of these versions of IP come by it.
    fn takes(&self, versions: &[u8]) -> bool {
        match self.family.as_str() {
            "ip" => versions.contains(&4),
            "ip6" => versions.contains(&6),
            _ => true,
        }
    }

    /// What iptables-nft made is listed by that, which nft warns to leave alone.
    fn command(&self) -> String {
        let Self {
            family,
            table,
            name,
            hook,
        } = self;
        let program = match family.as_str() {
            "ip" => Some("iptables"),
            "ip6" => Some("ip6tables"),
            _ => None,
        };
        let is_iptables = TABLES.iter().any(|(known, _)| known == table)
            && hook
                .as_ref()
                .is_some_and(|hook| hook.to_uppercase() == *name);
        match program.filter(|_| is_iptables) {
            Some(program) => format!("{program}-nft -t {table} -vnL {name}"),
            None => format!("nft list chain {family} {table} {name}"),
        }
    }
}

fn chains() -> Option<Vec<Chain>> {
    let output = Command::new("nft")
        .args(["-j", "list", "chains"])
        .output()
        .ok()?;
    let chains: Chains = serde_json::from_slice(&output.stdout).ok()?;
    Some(
        chains
            .nftables
            .into_iter()
            .filter_map(|item| item.chain)
            .collect(),
    )
}

/// The namespace of a drop, if it can be found: none for this one.
pub fn namespace(place: &DropKey) -> Option<Option<Namespace>> {
    match &place.netns {
        None => Some(None),
        Some(name) => match Namespace::by_name(name) {
            Ok(namespace) => Some(Some(namespace)),
            // A number: this one, or none that can be found by it.
            Err(_) => {
                let own = Namespace::current().ok()?;
                (own.identity().1.to_string() == *name).then_some(None)
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(family: &str, table: &str, name: &str, hook: &str) -> Chain {
        Chain {
            family: family.to_owned(),
            table: table.to_owned(),
            name: name.to_owned(),
            hook: Some(hook.to_owned()),
        }
    }

    #[test]
    fn each_chain_has_its_command() {
        let own = chain("inet", "f", "in", "input");
        assert_eq!(own.command(), "nft list chain inet f in");
        assert!(own.is_at(Some("input")) && own.is_at(None) && !own.is_at(Some("forward")));
        let compatible = chain("ip6", "filter", "INPUT", "input");
        assert_eq!(compatible.command(), "ip6tables-nft -t filter -vnL INPUT");
        assert!(compatible.takes(&[6]) && !compatible.takes(&[4]));
        // A table of somebody's own that has the name.
        let like = chain("ip", "filter", "in", "input");
        assert_eq!(like.command(), "nft list chain ip filter in");
    }

    #[test]
    fn legacy_tables_have_chains_at_some_hooks() {
        let names = "raw\nfilter\n";
        let of = |hook| legacy(names, hook, "iptables-legacy");
        assert_eq!(
            of(Some("prerouting")),
            ["iptables-legacy -t raw -vnL PREROUTING"]
        );
        assert_eq!(
            of(Some("output")),
            [
                "iptables-legacy -t raw -vnL OUTPUT",
                "iptables-legacy -t filter -vnL OUTPUT"
            ]
        );
        assert!(of(Some("postrouting")).is_empty());
        assert_eq!(of(None).len(), 2);
    }
}
