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
use trawl_packet::net::mac_text;
use trawl_program::Site;
use trawl_program::reload::{self, ReloadMethod};
use trawl_sys::netlink::interface::Interface;
use trawl_sys::netlink::tc::Direction;
use trawl_sys::netlink::{Netlink, RuleTrace};
use trawl_sys::netns::{Namespace, NamespaceSearch, run_maybe_in};
use trawl_sys::words::{shown, word};
use trawl_view::why::{DropKey, Row};

use super::blame::{Blame, CONNECTION_TRACKING, Culprit, WITH_LOSS};
use super::bridge;
use super::drops::ADVICE;

/// Functions that drop the packets of tunnels without a device.
const TUNNEL_RECEIVERS: [&str; 4] = ["tunnel4_rcv", "tunnel64_rcv", "tunnel6_rcv", "tunnel46_rcv"];
/// Functions that drop packets at a route that refuses them, and reasons of packets without a route.
const ROUTES: [&str; 8] = [
    "ip_error",
    "dst_discard",
    "dst_discard_out",
    "ip6_pkt_drop",
    "ip6_pkt_discard",
    "ip6_pkt_discard_out",
    "ip6_pkt_prohibit",
    "ip6_pkt_prohibit_out",
];
const NO_ROUTE: [&str; 2] = ["IP_INNOROUTES", "IP_OUTNOROUTES"];
/// Errors by which `ip route get` distinguishes kinds of routes, and the effect of each kind.
const REFUSALS: [(&str, &str, &str); 3] = [
    ("Invalid argument", "blackhole", "discards"),
    ("No route to host", "unreachable", "refuses"),
    ("Permission denied", "prohibit", "refuses"),
];
/// Prefix of the advice about such a route.
const OF_ROUTE: &str = "a route of type ";
/// The reason that the kernel gives if it has no more specific one.
const NONE: &str = "NOT_SPECIFIED";

/// Returns the advice about a row of packets.
pub fn of(key: &DropKey, row: &Row, blame: &Blame) -> Option<String> {
    match namespace(key) {
        Some(_) => of_row(key, row, blame),
        None => Some(of_gone(key, row)),
    }
}

/// Returns the cause of drops in a network namespace that is gone. No command is named: it would
/// run in another namespace.
fn of_gone(key: &DropKey, row: &Row) -> String {
    const GONE: &str = "its network namespace is gone, and nothing in it can be inspected";
    let cause = find(&ADVICE, &key.reason, &key.function).map_or("", cause);
    if cause.is_empty() { GONE.to_owned() } else { format!("{} ({GONE})", in_advice(cause, key, row, "")) }
}

/// Returns the part of an advice before its first command.
fn cause(advice: &str) -> &str {
    let end = advice.find(PREFIX).unwrap_or(advice.len());
    advice[..end].trim_end_matches([':', ';', ',', ' '])
}

fn of_row(key: &DropKey, row: &Row, blame: &Blame) -> Option<String> {
    let interface = key.interface.as_deref().unwrap_or("IF");
    let prefix = netns_prefix(key.netns.as_deref());
    let function = key.function.as_str();
    match key.reason.as_str() {
        "NETFILTER_DROP" => return Some(netfilter(key, row, blame, &prefix)),
        "TC_INGRESS" => return Some(tc(key, interface, Direction::Ingress)),
        "TC_EGRESS" => return Some(tc(key, interface, Direction::Egress)),
        "XDP" => return Some(xdp(key, interface)),
        "IP_NOPROTO" => return Some(no_protocol(&prefix, row)),
        // A loaded tunnel module receives the tunnels' packets before it looks for a device.
        NONE if TUNNEL_RECEIVERS.contains(&function) => return Some(no_protocol(&prefix, row)),
        "SOCKET_FILTER" if !row.cgroups.is_empty() => {
            return Some("a BPF program of the receiver's cgroup: bpftool cgroup tree".to_owned());
        }
        "OTHERHOST" if is_to_own_mac(key, row) => return Some(no_vlan(key, &prefix, interface)),
        "NO_SOCKET" if is_to_client(key, row) => {
            return Some(format!(
                "the port is a client's, whose socket is closed: the answers came too late; {prefix}ss -nap shows open ones"
            ));
        }
        reason if NO_ROUTE.contains(&reason) || ROUTES.contains(&function) => {
            if let Some(advice) = refusing_route(key, row, &prefix) {
                return Some(advice);
            }
        }
        _ if is_by(blame, |name| name.ends_with(WITH_LOSS)) => {
            return Some(format!("netem loses packets on purpose: {prefix}tc -s qdisc show dev {}", word(interface)));
        }
        "QDISC_DROP" | "QDISC_DROP_GENERIC" | "QDISC_OVERLIMIT" | "QDISC_DROP_OVERLIMIT" if is_by(blame, has_queue) => {
            return Some(format!(
                "its queue is full: send less, or raise its rate or limit: {prefix}tc -s qdisc show dev {}",
                word(interface)
            ));
        }
        _ => {}
    }
    let space = namespace(key).flatten();
    if let Some(cause) = bridge::cause(&key.reason, function, space.as_ref(), interface) {
        return Some(format!("{cause}: {prefix}bridge -d link; {prefix}bridge fdb"));
    }
    let advice = find(&ADVICE, &key.reason, function)?;
    Some(in_advice(advice, key, row, &prefix))
}

/// Replaces the words of the table that stand for names.
fn in_advice(advice: &str, key: &DropKey, row: &Row, prefix: &str) -> String {
    let interface = key.interface.as_deref().unwrap_or("IF");
    let destination = row.destination.as_deref().unwrap_or("ADDRESS");
    // In the name of a sysctl, a point in the interface's name is a slash.
    let name = if advice.contains(".INTERFACE.") { interface.replace('.', "/") } else { interface.to_owned() };
    advice.replace(PREFIX, prefix).replace("INTERFACE", &word(&name)).replace("DESTINATION", destination)
}

/// The place of a command's prefix in the table.
const PREFIX: &str = "PREFIX";

/// Returns the rows of the table: the reason, the functions or both, and the advice, in which PREFIX, INTERFACE and
/// DESTINATION stand for names.
pub fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    ADVICE.iter().map(|(subject, advice)| (subject.as_str(), *advice))
}

/// Returns the advice of the table for a reason and a function, without names.
pub fn row(reason: &str, function: &str) -> Option<&'static str> {
    find(&ADVICE, reason, function)
}

/// Returns true if such an object has certainly dropped some of the packets.
fn is_by(blame: &Blame, is_such: impl Fn(&str) -> bool) -> bool {
    let mut certain = blame.culprits.iter().filter(|one| one.is_certain);
    certain.any(|one| is_such(&one.name))
}

/// Returns true for a queueing discipline, unless it stands for an interface without a carrier.
fn has_queue(object: &str) -> bool {
    object.starts_with("qdisc ") && !object.starts_with("qdisc noop ")
}

/// Returns the most specific line of the table for a reason and a function.
fn find(table: &[(String, &'static str)], reason: &str, function: &str) -> Option<&'static str> {
    let rank = |subject: &str| {
        let (of, functions) = subject.split_once('@').unwrap_or((subject, ""));
        let is_at = functions.split(',').any(|one| one == function);
        let is_of = match of.strip_suffix('*') {
            Some(begin) => reason.starts_with(begin),
            None => of == reason,
        };
        match (is_of, of.is_empty(), functions.is_empty()) {
            (true, false, false) if is_at => Some(4),
            (true, false, true) if reason == NONE => Some(1),
            (true, false, true) if of.ends_with('*') => Some(2),
            (true, false, true) => Some(3),
            // A reason is more specific than a function.
            (_, true, false) if is_at => Some(if reason == NONE { 3 } else { 1 }),
            _ => None,
        }
    };
    let found = table.iter().filter_map(|(subject, advice)| Some((rank(subject)?, *advice)));
    found.max_by_key(|(rank, _)| *rank).map(|(_, advice)| advice)
}

/// Returns true for packets to the interface's own MAC address: the kernel says that they are another host's if no
/// interface has their VLAN tag, which it has removed by then.
fn is_to_own_mac(key: &DropKey, row: &Row) -> bool {
    let (Some(name), Some(mac)) = (&key.interface, &row.mac) else {
        return false;
    };
    let own = namespace(key).and_then(|space| Interface::find(space.as_ref(), name).ok()?.mac);
    own.is_some_and(|own| mac_text(own) == *mac)
}

fn no_vlan(key: &DropKey, prefix: &str, interface: &str) -> String {
    let label = label(interface, key.netns.as_deref());
    let (label, interface) = (word(&label), word(interface));
    format!(
        "to this interface's own MAC, with a VLAN tag that no interface here has: trawl capture --tap packet -i {label} vlan; {prefix}ip link add link {interface} name NAME type vlan id TAG"
    )
}

/// Returns true if all ports are among those that clients get.
fn is_to_client(key: &DropKey, row: &Row) -> bool {
    let Some(ports) = row.ports() else {
        return false;
    };
    let read = || std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let range = namespace(key).and_then(|space| run_maybe_in(space.as_ref(), read).ok()?.ok());
    let bounds = range.and_then(|text| {
        let (first, last) = text.trim().split_once(char::is_whitespace)?;
        Some((first.parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?))
    });
    bounds.is_some_and(|(first, last)| ports.iter().all(|port| (first..=last).contains(port)))
}

/// Returns the kind of the route that refuses the packets, if it is one.
fn refusing_route(key: &DropKey, row: &Row, prefix: &str) -> Option<String> {
    let destination = row.destination.as_deref()?;
    let ask = || {
        let mut command = Command::new("ip");
        command.args(["route", "get", destination]).env("LC_ALL", "C");
        Some(String::from_utf8_lossy(&command.output().ok()?.stderr).into_owned())
    };
    let said = namespace(key).and_then(|space| run_maybe_in(space.as_ref(), ask).ok()?)?;
    let (_, kind, effect) = REFUSALS.iter().find(|(error, ..)| said.contains(error))?;
    let version = if destination.contains(':') { "-6 " } else { "" };
    Some(format!("{OF_ROUTE}{kind} {effect} {destination}: {prefix}ip {version}route show type {kind}"))
}

/// Returns true for the advice about a route that refuses packets.
pub fn is_of_route(advice: &str) -> bool {
    advice.starts_with(OF_ROUTE)
}

/// Returns the namespace's name, unless it is only a number.
fn named(netns: Option<&str>) -> Option<&str> {
    netns.filter(|name| !name.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns the prefix of commands in a namespace.
fn netns_prefix(netns: Option<&str>) -> String {
    let found = netns.and_then(find_space).flatten();
    found.map_or_else(String::new, |found| found.exec_prefix())
}

/// Returns the programs that may have dropped the packets, the command that lists all filters, and the one that shows
/// passing packets.
fn tc(key: &DropKey, interface: &str, direction: Direction) -> String {
    let prefix = netns_prefix(key.netns.as_deref());
    let side = direction.name();
    let typed = word(interface);
    let programs = namespace(key).map_or_else(Vec::new, |space| tc_programs(space.as_ref(), interface, direction));
    let programs: Vec<String> = programs.iter().map(ProgramName::to_string).collect();
    let list = if programs.is_empty() {
        format!("{prefix}tc -s filter show dev {typed} {side}")
    } else {
        format!("tc {}; {prefix}bpftool net show dev {typed}", programs.join(", "))
    };
    let label = label(interface, key.netns.as_deref());
    let label = word(&label);
    let packets = match direction {
        Direction::Ingress => "in",
        Direction::Egress => "out",
    };
    format!("{list}; trawl capture --tap tc -i {label} -Q {packets}")
}

/// Returns the programs at tc of an interface.
pub fn tc_programs(space: Option<&Namespace>, interface: &str, direction: Direction) -> Vec<ProgramName> {
    let find = || {
        let index = Interface::find(space, interface).ok()?.index;
        let ingress = direction == Direction::Ingress;
        let by_link = run_maybe_in(space, || tcx(index, ingress)).ok().and_then(Result::ok).unwrap_or_default();
        let mut ids: Vec<u32> = by_link.iter().map(|one| one.program_id).collect();
        let mut netlink = Netlink::open(space).ok()?;
        let filters = netlink.filters(index, direction).unwrap_or_default();
        ids.extend(filters.iter().filter_map(|filter| filter.program_id));
        Some(ids)
    };
    let found = find().unwrap_or_default();
    found.into_iter().map(ProgramName::of).collect()
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
        Self { id, name: name.ok() }
    }
}

impl fmt::Display for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "program {} (id {})", shown(name), self.id),
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
    let typed = word(&at).into_owned();
    let Some((namespace, present)) = found else {
        return format!("an XDP program that is not attached any more: trawl xdp status -i {typed}");
    };
    let program = ProgramName::of(present.program_id);
    let reload = Site::find(&at, None).map(|site| reload::with_hooks(&site, present.program_id));
    let counted = match reload.map(|reload| reload.how) {
        Ok(ReloadMethod::Guard) => {
            let rule = guard_rule(namespace.as_ref()).unwrap_or_default();
            let netns = named(netns).map_or(String::new(), |name| format!(" --netns {}", word(name)));
            format!("XDP {program}{rule}: trawl guard list{netns}")
        }
        Ok(ReloadMethod::Balance) => format!("XDP {program}: trawl balance stats --on {typed}"),
        Ok(ReloadMethod::Route) => format!("XDP {program}: trawl route stats {typed}"),
        Ok(ReloadMethod::Program { .. }) => format!("XDP {program}: trawl xdp stats {typed}"),
        _ => format!("XDP {program}: trawl xdp status -i {typed}"),
    };
    // A capture sees verdicts by a hook map, or if the kernel allows tracing programs.
    if hook::is_there(&present) || trace::refusal().is_none() {
        format!("{counted}; trawl capture -i {typed} --verdict drop,aborted")
    } else {
        counted
    }
}

/// Returns the rule of trawl's guard that has dropped the most packets.
fn guard_rule(namespace: Option<&Namespace>) -> Option<String> {
    let rules = Guard::find_to_read(namespace).ok()??.rules().ok()?;
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
fn no_protocol(prefix: &str, row: &Row) -> String {
    let mut protocols = row.protocols.keys();
    let number = protocols.find_map(|name| name.strip_prefix("protocol "));
    let number = number.and_then(|number| number.trim_end_matches('6').parse::<u8>().ok());
    let tunnel = TUNNELS.iter().find(|(one, _)| Some(*one) == number);
    match (tunnel, number) {
        (Some((number, kind)), _) => {
            format!("no {kind} device accepts IP protocol {number} here: {prefix}ip -d link show type {kind}")
        }
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
    let (typed, device) = (word(&at), word(interface));
    let command_for = |verdict: &str| {
        if shows_verdicts(interface, netns) {
            format!("trawl capture -i {typed} --verdict {verdict}")
        } else {
            format!("trawl xdp status -i {typed}")
        }
    };
    Some(match what {
        XdpOutcome::Exception { verdict: 0 } => command_for("aborted"),
        XdpOutcome::Exception { .. } => {
            let id = program?.id;
            format!("bpftool prog dump xlated id {id}; ethtool -k {device}")
        }
        XdpOutcome::Redirect { map: Some(map), .. } => {
            format!("bpftool map dump id {map}; {}", command_for("redirect"))
        }
        XdpOutcome::Redirect { map: None, .. } => command_for("redirect"),
        XdpOutcome::Devmap { .. } => {
            let prefix = netns_prefix(netns);
            format!("{prefix}ip -s link show {device}; {prefix}ethtool -S {device}")
        }
        XdpOutcome::Cpumap { map, .. } => {
            format!("enlarge the queues of the cpumap: bpftool map dump id {map}")
        }
    })
}

/// The tables of iptables and the hooks that each has chains at.
const TABLES: [(&str, &[&str]); 5] = [
    ("raw", &["prerouting", "output"]),
    ("mangle", &["prerouting", "input", "forward", "output", "postrouting"]),
    ("nat", &["prerouting", "input", "output", "postrouting"]),
    ("filter", &["input", "forward", "output"]),
    ("security", &["input", "forward", "output"]),
];
/// For both versions of IP: the files in /proc with the names of the legacy tables, and the commands that list them.
const LEGACY: [(u8, &str, &str); 2] = [
    (4, "/proc/thread-self/net/ip_tables_names", "iptables-legacy"),
    (6, "/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy"),
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

/// Returns the commands that list the chains at the hook, each after `prefix`, or the state of connection tracking if
/// that dropped the packets.
fn netfilter(key: &DropKey, row: &Row, blame: &Blame, prefix: &str) -> String {
    let mut found = Vec::new();
    let is_tracking = |one: &&Culprit| one.name == CONNECTION_TRACKING;
    let has_other = blame.culprits.iter().any(|one| !is_tracking(&one));
    if blame.culprits.iter().any(|one| is_tracking(&one)) {
        found.push(tracking(key, prefix));
    }
    if found.is_empty() || has_other {
        let commands = namespace(key)
            .and_then(|space| run_maybe_in(space.as_ref(), || commands(key, &row.versions())).ok())
            .unwrap_or_default();
        found.extend(commands.iter().map(|command| format!("{prefix}{command}")));
    }
    if found.is_empty() { format!("{prefix}nft list ruleset") } else { found.join("; ") }
}

/// Returns the fill of connection tracking's table, and the command that shows the counter of its drops.
fn tracking(key: &DropKey, prefix: &str) -> String {
    let number = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}"));
        text.ok()?.trim().parse().ok()
    };
    let read = || number("count").zip(number("max"));
    let fill = namespace(key).and_then(|space| run_maybe_in(space.as_ref(), read).ok()?);
    let cause = match fill {
        // Entries may have expired since.
        Some((count, max)) if count.saturating_mul(10) >= max.saturating_mul(9) => format!(
            "the table of connections is full ({count} of {max} entries): raise net.netfilter.nf_conntrack_max, or exempt packets (notrack)"
        ),
        Some((count, max)) => format!(
            "the table of connections was full, or the packets fit no connection (it has {count} of {max} entries now)"
        ),
        None => "the table of connections is full: raise net.netfilter.nf_conntrack_max".to_owned(),
    };
    format!("{cause}; the column drop of {prefix}cat /proc/net/stat/nf_conntrack counts them")
}

/// Returns the commands for the namespace of the calling thread.
fn commands(key: &DropKey, versions: &[u8]) -> Vec<String> {
    let mut commands: Vec<String> = chains()
        .unwrap_or_default()
        .iter()
        .filter(|chain| chain.is_at(key.hook.as_deref()) && chain.accepts(versions))
        .map(Chain::command)
        .collect();
    commands.dedup();
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
    let tables = TABLES.iter().filter(|(table, _)| names.lines().any(|name| name == *table));
    tables
        .filter_map(|(table, hooks)| match hook {
            Some(hook) => hooks.contains(&hook).then(|| format!("{command} -t {table} -vnL {}", hook.to_uppercase())),
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
    fn accepts(&self, versions: &[u8]) -> bool {
        match self.family.as_str() {
            "ip" => versions.contains(&4),
            "ip6" => versions.contains(&6),
            _ => true,
        }
    }

    /// Returns the command that lists the chain: iptables-nft lists its own, which nft warns against changing. nft
    /// reads its arguments as one line of commands, in which other names than words of letters could be commands: then
    /// it lists all.
    fn command(&self) -> String {
        let Self { family, table, name, hook } = self;
        let program = match family.as_str() {
            "ip" => Some("iptables"),
            "ip6" => Some("ip6tables"),
            _ => None,
        };
        let is_iptables = TABLES.iter().any(|(known, _)| known == table)
            && hook.as_ref().is_some_and(|hook| hook.to_uppercase() == *name);
        match program.filter(|_| is_iptables) {
            _ if ![family, table, name].into_iter().all(|one| is_word_of_nft(one)) => "nft list ruleset".to_owned(),
            Some(program) => format!("{program}-nft -t {table} -vnL {name}"),
            None => format!("nft list chain {family} {table} {name}"),
        }
    }
}

/// Returns true for a name that nft's language accepts as it is.
fn is_word_of_nft(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte))
}

fn chains() -> Option<Vec<Chain>> {
    let output = Command::new("nft").args(["-j", "list", "chains"]).output().ok()?;
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
    key.netns.as_deref().map_or(Some(None), find_space)
}

/// Finds a namespace by the name that rows have: its own, or the number of one without a name.
fn find_space(netns: &str) -> Option<Option<Namespace>> {
    if let Ok(found) = Namespace::by_name(netns) {
        return Some(Some(found));
    }
    let number = netns.parse().ok()?;
    if Namespace::current().ok()?.identity().1 == number {
        return Some(None);
    }
    let mut search = NamespaceSearch::default();
    search.numbered(number).cloned().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(family: &str, table: &str, name: &str, hook: &str) -> Chain {
        Chain { family: family.to_owned(), table: table.to_owned(), name: name.to_owned(), hook: Some(hook.to_owned()) }
    }

    #[test]
    fn each_chain_has_its_command() {
        let own = chain("inet", "f", "in", "input");
        assert_eq!(own.command(), "nft list chain inet f in");
        assert!(own.is_at(Some("input")) && own.is_at(None) && !own.is_at(Some("forward")));
        let compatible = chain("ip6", "filter", "INPUT", "input");
        assert_eq!(compatible.command(), "ip6tables-nft -t filter -vnL INPUT");
        assert!(compatible.accepts(&[6]) && !compatible.accepts(&[4]));
        let hostile = chain("inet", "x; flush ruleset; #", "in", "input");
        assert_eq!(hostile.command(), "nft list ruleset");
        // A foreign table with the same name.
        let like = chain("ip", "filter", "in", "input");
        assert_eq!(like.command(), "nft list chain ip filter in");
    }

    #[test]
    fn most_specific_advice_is_found() {
        let table = [
            ("A", "of a"),
            ("A@f,g", "of a at f or g"),
            ("@f,h", "of f or h"),
            ("B*", "of b"),
            ("NOT_SPECIFIED", "of none"),
        ];
        let table = table.map(|(subject, advice)| (subject.to_owned(), advice));
        let of = |reason, function| find(&table, reason, function);
        assert_eq!(of("A", "x"), Some("of a"));
        assert_eq!(of("A", "g"), Some("of a at f or g"));
        assert_eq!(of("A", "h"), Some("of a"));
        assert_eq!(of("C", "h"), Some("of f or h"));
        assert_eq!(of("BC", "x"), Some("of b"));
        assert_eq!(of("NOT_SPECIFIED", "f"), Some("of f or h"));
        assert_eq!(of("NOT_SPECIFIED", "x"), Some("of none"));
        assert_eq!(of("C", "x"), None);
    }

    #[test]
    fn names_in_commands_are_quoted() {
        let key =
            DropKey { reason: "IP_RPFILTER".to_owned(), interface: Some("x;touch.P".to_owned()), ..DropKey::default() };
        let advice = of(&key, &Row::default(), &Blame::default()).expect("advice");
        assert_eq!(
            advice,
            "no route back to the sender by this interface: sysctl -w net.ipv4.conf.'x;touch/P'.rp_filter=2 (or add the route)"
        );
    }

    #[test]
    fn a_cause_has_no_command() {
        let of = |reason: &str| {
            let key = DropKey { reason: reason.to_owned(), netns: Some("gone".to_owned()), ..DropKey::default() };
            of(&key, &Row::default(), &Blame::default()).expect("advice")
        };
        let gone = "its network namespace is gone, and nothing in it can be inspected";
        assert_eq!(of("NETFILTER_DROP"), format!("a rule of netfilter, a policy, or connection tracking ({gone})"));
        assert_eq!(of("IP_RPFILTER"), format!("no route back to the sender by this interface ({gone})"));
        assert_eq!(of("NEW_REASON"), gone);
    }

    #[test]
    fn legacy_tables_have_chains_at_some_hooks() {
        let names = "raw\nfilter\n";
        let of = |hook| legacy(names, hook, "iptables-legacy");
        assert_eq!(of(Some("prerouting")), ["iptables-legacy -t raw -vnL PREROUTING"]);
        assert_eq!(of(Some("output")), ["iptables-legacy -t raw -vnL OUTPUT", "iptables-legacy -t filter -vnL OUTPUT"]);
        assert!(of(Some("postrouting")).is_empty());
        assert_eq!(of(None).len(), 2);
    }
}
