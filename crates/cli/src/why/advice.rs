//! One line of advice for the reasons that have one: the command that shows or fixes the cause of the drop.

use std::fmt;
use std::os::fd::AsFd;
use std::process::Command;

use serde::{Deserialize, Serialize};
use trawl_bpf::probe::attached::tcx;
use trawl_bpf::xdp_events::XdpOutcome;
use trawl_bpf::{functions, program};
use trawl_capture::capture_site::CaptureSite;
use trawl_capture::taps::{hook, trace};
use trawl_guard::Guard;
use trawl_guard::rule::{Action, Rule};
use trawl_program::Site;
use trawl_program::reload::{self, ReloadMethod};
use trawl_sys::interface::Interface;
use trawl_sys::netlink::tc::Direction;
use trawl_sys::netlink::{Netlink, RuleTrace};
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_view::why::DropKey;

/// Functions that drop the packets of tunnels without a device.
const TUNNEL_RECEIVERS: [&str; 4] = ["tunnel4_rcv", "tunnel64_rcv", "tunnel6_rcv", "tunnel46_rcv"];
/// Functions that drop packets at a refusing route, or packets that a router may not forward any more.
const REFUSING_ROUTES: [&str; 5] = [
    "ip_error",
    "dst_discard",
    "dst_discard_out",
    "ip6_pkt_discard",
    "ip6_pkt_prohibit",
];
const FORWARDING: [&str; 2] = ["ip_forward", "ip6_forward"];

/// Returns the advice. `destination` belongs to one of the packets; `versions` and `protocols` are their versions of IP and
/// protocol names.
pub fn of(
    key: &DropKey,
    destination: Option<&str>,
    versions: &[u8],
    protocols: &[&str],
) -> Option<String> {
    let interface = key.interface.as_deref().unwrap_or("IF");
    let prefix = netns_prefix(key.netns.as_deref());
    let destination = destination.unwrap_or("ADDRESS");
    let function = key.function.as_str();
    let reason = match key.reason.as_str() {
        "NETFILTER_DROP" => return Some(netfilter(key, versions, &prefix)),
        "TC_INGRESS" => return Some(tc(key, interface, Direction::Ingress)),
        "TC_EGRESS" => return Some(tc(key, interface, Direction::Egress)),
        "XDP" => return Some(xdp(key, interface)),
        "IP_NOPROTO" => return Some(no_protocol(&prefix, protocols)),
        // A loaded tunnel module receives the tunnels' packets before it looks for a device.
        "NOT_SPECIFIED" if TUNNEL_RECEIVERS.contains(&function) => {
            return Some(no_protocol(&prefix, protocols));
        }
        "NOT_SPECIFIED" if REFUSING_ROUTES.contains(&function) => "refusing-route",
        "IP_INHDR" if FORWARDING.contains(&function) => "forwarding",
        _ if function == "neigh_invalidate" => "neighbour",
        reason => reason,
    };
    let mut lines = include_str!("advice.txt").lines();
    let advice = lines.find_map(|line| line.strip_prefix(reason)?.strip_prefix(' '))?;
    Some(
        advice
            .replace("PREFIX", &prefix)
            .replace("INTERFACE", interface)
            .replace("DESTINATION", destination),
    )
}

/// Returns the namespace's name, unless it is only a number.
fn named(netns: Option<&str>) -> Option<&str> {
    netns.filter(|name| !name.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns the prefix of commands in a namespace with a name.
fn netns_prefix(netns: Option<&str>) -> String {
    named(netns).map_or(String::new(), |name| format!("ip netns exec {name} "))
}

/// Returns the programs that may have dropped the packets, the command that lists all filters, and the one that shows passing
/// packets.
fn tc(key: &DropKey, interface: &str, direction: Direction) -> String {
    let prefix = netns_prefix(key.netns.as_deref());
    let side = direction.name();
    let found = namespace(key).and_then(|namespace| {
        let index = Interface::find(namespace.as_ref(), interface).ok()?.index;
        let ingress = direction == Direction::Ingress;
        let by_link = run_maybe_in(namespace.as_ref(), || tcx(index, ingress));
        let by_link = by_link.ok().and_then(Result::ok).unwrap_or_default();
        let mut ids: Vec<u32> = by_link.iter().map(|one| one.program_id).collect();
        let mut netlink = Netlink::open(namespace.as_ref()).ok()?;
        let filters = netlink.filters(index, direction).unwrap_or_default();
        ids.extend(filters.iter().filter_map(|filter| filter.program_id));
        Some(ids)
    });
    let programs: Vec<String> = found
        .unwrap_or_default()
        .into_iter()
        .map(|id| ProgramName::of(id).to_string())
        .collect();
    let list = match programs.is_empty() {
        true => format!("{prefix}tc -s filter show dev {interface} {side}"),
        false => format!(
            "tc {}; {prefix}bpftool net show dev {interface}",
            programs.join(", ")
        ),
    };
    let label = label(interface, key.netns.as_deref());
    let packets = match direction {
        Direction::Ingress => "in",
        Direction::Egress => "out",
    };
    format!("{list}; trawl capture --tap tc -i {label} -Q {packets}")
}

/// An XDP program by number and name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProgramName {
    pub id: u32,
    /// `None` if the program is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl ProgramName {
    pub fn of(id: u32) -> Self {
        let name = program::open_by_id(id).and_then(|fd| functions::name_of(fd.as_fd()));
        Self {
            id,
            name: name.ok(),
        }
    }
}

impl fmt::Display for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "program {name} (id {})", self.id),
            None => write!(f, "program {}, which is gone", self.id),
        }
    }
}

fn label(interface: &str, netns: Option<&str>) -> String {
    match named(netns) {
        Some(name) => format!("{name}:{interface}"),
        None => interface.to_owned(),
    }
}

/// Returns the program that dropped the packets, and the command that shows the packets or the program's counts.
fn xdp(key: &DropKey, interface: &str) -> String {
    let netns = key.netns.as_deref();
    let at = label(interface, netns);
    let found = namespace(key).and_then(|namespace| {
        let found = Interface::find(namespace.as_ref(), interface).ok()?;
        let present = found.xdp_attached(namespace.as_ref()).ok()??;
        Some((namespace, present))
    });
    let Some((namespace, present)) = found else {
        return format!("an XDP program that is not attached any more: trawl xdp status -i {at}");
    };
    let program = ProgramName::of(present.program_id);
    let reload = Site::find(&at, None).map(|site| reload::with_hooks(&site, present.program_id));
    let counted = match reload.map(|reload| reload.how) {
        Ok(ReloadMethod::Guard) => {
            let rule = guard_rule(namespace.as_ref()).unwrap_or_default();
            let netns = named(netns).map_or(String::new(), |name| format!(" --netns {name}"));
            format!("XDP {program}{rule}: trawl guard list{netns}")
        }
        Ok(ReloadMethod::Balance) => format!("XDP {program}: trawl balance stats --on {at}"),
        Ok(ReloadMethod::Route) => format!("XDP {program}: trawl route stats {at}"),
        Ok(ReloadMethod::Program { .. }) => format!("XDP {program}: trawl xdp stats {at}"),
        _ => format!("XDP {program}: trawl xdp status -i {at}"),
    };
    // A capture sees verdicts by a hook map, or if the kernel allows tracing programs.
    match hook::is_there(&present) || trace::refusal().is_none() {
        true => format!("{counted}; trawl capture -i {at} --verdict drop,aborted"),
        false => counted,
    }
}

/// Returns the rule of trawl's guard that has dropped the most packets.
fn guard_rule(namespace: Option<&Namespace>) -> Option<String> {
    let rules = Guard::look(namespace).ok()??.rules().ok()?;
    let dropped = |rule: &&Rule| {
        let hits = rules.hits_of(rule.id);
        match rule.action {
            Action::Deny => hits.decided,
            Action::Allow => hits.limited,
        }
    };
    let rule = rules.rules.iter().max_by_key(dropped)?;
    (dropped(&rule) > 0).then(|| format!(", most by rule {} ({rule})", rule.id))
}

/// Protocols that a tunnel's device accepts, and the kind of the device.
const TUNNELS: [(u8, &str); 4] = [(4, "ipip"), (41, "sit"), (47, "gre"), (115, "l2tp")];

/// Returns advice if nothing on this host accepts the protocol, such as a tunnel's device or a raw socket.
fn no_protocol(prefix: &str, protocols: &[&str]) -> String {
    let number = protocols
        .iter()
        .find_map(|name| name.strip_prefix("protocol "));
    let number = number.and_then(|number| number.trim_end_matches('6').parse::<u8>().ok());
    let tunnel = TUNNELS.iter().find(|(one, _)| Some(*one) == number);
    match (tunnel, number) {
        (Some((number, kind)), _) => format!(
            "no {kind} device accepts IP protocol {number} here: {prefix}ip -d link show type {kind}"
        ),
        (None, Some(number)) => {
            format!("nothing accepts IP protocol {number} here: {prefix}ss -lnwp shows raw sockets")
        }
        (None, None) => format!("nothing accepts this protocol here: {prefix}ss -lnwp"),
    }
}

/// Returns true if a capture sees the verdicts of the interface's program.
fn shows_verdicts(interface: &str, netns: Option<&str>) -> bool {
    let site = CaptureSite::find(&label(interface, netns), None);
    let present = site.map(|site| site.interface.xdp_attached(site.namespace.as_ref()));
    let Ok(Ok(Some(present))) = present else {
        return false;
    };
    hook::is_there(&present) || trace::refusal().is_none()
}

/// Returns advice for packets that XDP lost.
pub fn of_event(
    what: &XdpOutcome,
    program: Option<&ProgramName>,
    interface: Option<&str>,
    netns: Option<&str>,
) -> Option<String> {
    let interface = interface.unwrap_or("IF");
    let at = label(interface, netns);
    let look = |verdict: &str| match shows_verdicts(interface, netns) {
        true => format!("trawl capture -i {at} --verdict {verdict}"),
        false => format!("trawl xdp status -i {at}"),
    };
    Some(match what {
        XdpOutcome::Exception { verdict: 0 } => look("aborted"),
        XdpOutcome::Exception { .. } => {
            let id = program?.id;
            format!("bpftool prog dump xlated id {id}; ethtool -k {interface}")
        }
        XdpOutcome::Redirect { map: Some(map), .. } => {
            format!("bpftool map dump id {map}; {}", look("redirect"))
        }
        XdpOutcome::Redirect { map: None, .. } => look("redirect"),
        XdpOutcome::Devmap { .. } => {
            let prefix = netns_prefix(netns);
            format!("{prefix}ip -s link show {interface}; {prefix}ethtool -S {interface}")
        }
        XdpOutcome::Cpumap { map, .. } => {
            format!("enlarge the queues of the cpumap: bpftool map dump id {map}")
        }
    })
}

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
/// For both versions of IP: the files in /proc with the names of the legacy tables, and the commands that list them.
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

/// The needed part of `nft -j list chains`.
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

/// Returns the commands that list the chains at the hook, each after `prefix`. `versions` are the packets' versions of IP.
fn netfilter(key: &DropKey, versions: &[u8], prefix: &str) -> String {
    let found = namespace(key)
        .and_then(|namespace| run_maybe_in(namespace.as_ref(), || commands(key, versions)).ok())
        .unwrap_or_default();
    if found.is_empty() {
        return format!("{prefix}nft list ruleset");
    }
    format!("{prefix}{}", found.join(&format!("; {prefix}")))
}

/// Returns the commands for the namespace of the calling thread.
fn commands(key: &DropKey, versions: &[u8]) -> Vec<String> {
    let mut commands: Vec<String> = chains()
        .unwrap_or_default()
        .iter()
        .filter(|chain| chain.is_at(key.hook.as_deref()) && chain.takes(versions))
        .map(Chain::command)
        .collect();
    // On newer kernels nftables frees the packets that it drops.
    if !key.function.starts_with("nft_") {
        for (version, names, command) in LEGACY {
            if versions.contains(&version) {
                let names = std::fs::read_to_string(names).unwrap_or_default();
                commands.extend(legacy(&names, key.hook.as_deref(), command));
            }
        }
    }
    commands
}

/// Returns one command for each of the legacy tables with a chain at the hook.
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

    /// Returns true if packets of one of these versions of IP pass the chain.
    fn takes(&self, versions: &[u8]) -> bool {
        match self.family.as_str() {
            "ip" => versions.contains(&4),
            "ip6" => versions.contains(&6),
            _ => true,
        }
    }

    /// Returns the command that lists the chain: iptables-nft lists its own, which nft warns against changing.
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
            .filter(|chain| !chain.table.starts_with(RuleTrace::TABLES))
            .collect(),
    )
}

/// Returns the namespace of a drop, if it can be found; the inner `None` is the current one.
pub fn namespace(key: &DropKey) -> Option<Option<Namespace>> {
    match &key.netns {
        None => Some(None),
        Some(name) => match Namespace::by_name(name) {
            Ok(namespace) => Some(Some(namespace)),
            // A number is the current namespace's, or cannot be found.
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
        // A foreign table with the same name.
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
