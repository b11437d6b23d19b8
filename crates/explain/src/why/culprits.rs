//! Names of the objects that dropped packets: rules and policies of nftables, queueing disciplines, programs of
//! cgroups. An object is certain if the kernel noted it with the packets, if its counter went up, if a traced packet
//! ended there, or if no other one can have dropped the packets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use trawl_bpf::probe::{attached, kernel_is_at_least};
use trawl_sys::netlink::counters;
use trawl_sys::netlink::tc::Direction;
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_sys::process::cgroup::Root;
use trawl_view::why::{DropKey, Row, Tally};

use trawl_capture::subject::Spaces;

use super::advice::{self, ProgramName, tc_programs};
use super::blame::{Blame, CONNECTION_TRACKING, Candidate, Culprit, WITH_LOSS};
use super::command::printed;
use super::noted::with_noted;
use super::ruleset::{Chain, Packets, chains, full_name, legacy_rules, may_match, places, rules};
use super::traced::{Traced, Tracing};

/// Maximum number of namespaces whose counters are read before the first drop. Those of others are read at their first
/// drop.
const MOST_AT_START: usize = 16;

/// The state of the namespaces' objects at the beginning and at the end.
#[derive(Debug, Default)]
pub struct Culprits {
    before: HashMap<Option<String>, Snapshot>,
    /// Read once for all rows of a namespace.
    after: HashMap<Option<String>, Snapshot>,
    /// Traces of namespaces; `None` where the kernel refused.
    traces: HashMap<Option<String>, Option<Tracing>>,
    /// Namespaces, hooks and versions of IP of which the rules were counted: large rulesets take time.
    considered: HashSet<(Option<String>, Option<String>, Vec<u8>)>,
    /// The filters of interfaces at the first drop.
    filters: HashMap<(Option<String>, Option<String>, Direction), Vec<Candidate>>,
    /// True if the rows have only some of the packets that counters and traces have.
    are_chosen: bool,
    /// The namespaces of a command, which may be gone with it.
    spaces: Option<Arc<Spaces>>,
}

#[derive(Debug, Default)]
struct Snapshot {
    chains: Vec<Chain>,
    queues: Vec<Queue>,
    /// The rules of the older iptables for both versions of IP; `None` if they cannot be read.
    legacy: [Option<String>; 2],
    /// Packets that connection tracking dropped.
    tracking: Option<u64>,
    /// True if it was taken before the first packet was dropped.
    is_first: bool,
}

impl Culprits {
    /// `are_chosen` says that an expression, a command or an interface selects among the dropped packets.
    pub fn new(are_chosen: bool, spaces: Option<Arc<Spaces>>) -> Self {
        Self { are_chosen, spaces, ..Self::default() }
    }

    /// Reads the counters of these namespaces, up to a limit.
    pub fn begin<'n>(&mut self, namespaces: impl Iterator<Item = &'n Namespace>) {
        for namespace in namespaces.take(MOST_AT_START) {
            let label = Some(counters::label(namespace));
            let snapshot = Snapshot { is_first: true, ..Snapshot::read(Some(namespace)) };
            self.before.insert(label, snapshot);
        }
    }

    /// Returns the namespace of a row; `Some(None)` for the own one.
    fn space_of(&self, key: &DropKey) -> Option<Option<Namespace>> {
        let number = key.netns.as_deref().and_then(|netns| netns.parse().ok());
        let held = number.zip(self.spaces.as_ref()).and_then(|(number, spaces)| spaces.numbered(number));
        held.map(Some).or_else(|| advice::namespace(key))
    }

    /// Reads the counters of the namespace of a drop, unless they are known.
    pub fn read_counters(&mut self, key: &DropKey) {
        if let Some(Kind::Filter(direction)) = kind(key) {
            let place = (key.netns.clone(), key.interface.clone(), direction);
            if self.filters.contains_key(&place) {
                return;
            }
            let found = filters(key, direction, self.space_of(key));
            self.filters.insert(place, found);
            return;
        }
        let has_counters = matches!(kind(key), Some(Kind::Rule | Kind::Queue));
        if !has_counters || self.before.contains_key(&key.netns) {
            return;
        }
        let found = self.space_of(key).map(|namespace| Snapshot::read(namespace.as_ref()));
        self.before.insert(key.netns.clone(), found.unwrap_or_default());
    }

    /// Begins to trace the packets of a drop's namespace, once, if several rules without counters may have dropped
    /// them. Returns true if it did. Chosen packets are not traced, since a trace has the other packets too.
    pub fn trace(&mut self, key: &DropKey, row: &Row) -> bool {
        let Some(before) = self.before.get(&key.netns) else {
            return false;
        };
        if self.are_chosen
            || kind(key) != Some(Kind::Rule)
            || self.traces.contains_key(&key.netns)
            || !may_be_rule_of_nftables(key)
        {
            return false;
        }
        let at = (key.netns.clone(), key.hook.clone(), row.versions());
        if !self.considered.insert(at) {
            return false;
        }
        let rules = rules(&before.chains, Packets::of(key, row, false));
        if rules.iter().filter(|one| one.packets.is_none()).count() < 2 {
            return false;
        }
        let begin = |namespace| Tracing::begin(namespace, &places(&before.chains));
        let begun = self.space_of(key).and_then(begin);
        let has_begun = begun.is_some();
        self.traces.insert(key.netns.clone(), begun);
        has_begun
    }

    /// Returns the objects that dropped the packets of a row, or may have. Drops after the first call do not count.
    pub fn of(&mut self, key: &DropKey, row: &Row, tally: &Tally) -> Blame {
        let Some(kind) = kind(key) else {
            return Blame::default();
        };
        match kind {
            Kind::Filter(direction) => {
                let place = (key.netns.clone(), key.interface.clone(), direction);
                let before = self.filters.get(&place).map_or(&[][..], Vec::as_slice);
                let facts = Facts {
                    packets: row.packets,
                    at_place: packets_like(tally, key, |one| is_same_place(kind, key, one)),
                    are_chosen: self.are_chosen,
                    is_counted: false,
                    is_complete: true,
                };
                return judge(before, &filters(key, direction, self.space_of(key)), &facts);
            }
            Kind::SendersProgram => return senders_programs(row),
            Kind::ReceiversProgram => return receivers_programs(row),
            Kind::Rule | Kind::Queue => {}
        }
        let is_new = !self.after.contains_key(&key.netns);
        let space = is_new.then(|| self.space_of(key)).flatten();
        // The trace ends here, before its table could be read as the user's.
        let tracing = self.traces.get_mut(&key.netns).and_then(Option::as_mut);
        let traced = tracing.map_or(&[][..], Tracing::end);
        let after = self.after.entry(key.netns.clone()).or_insert_with(|| {
            let found = space.map(|namespace| Snapshot::read(namespace.as_ref()));
            found.unwrap_or_default()
        });
        let none = Snapshot::default();
        let before = self.before.get(&key.netns).unwrap_or(&none);
        let mut facts = Facts {
            packets: row.packets,
            at_place: packets_like(tally, key, |one| is_same_place(kind, key, one)),
            are_chosen: self.are_chosen,
            is_counted: before.is_first,
            is_complete: kind == Kind::Queue,
        };
        if kind == Kind::Queue {
            let interface = key.interface.as_deref();
            let (before, mut now) = (queues(&before.queues, interface), queues(&after.queues, interface));
            keep_innermost(&after.queues, &before, &mut now);
            return judge(&before, &now, &facts);
        }
        let full_name = |name: &str| full_name(&after.chains, name).or_else(|| full_name(&before.chains, name));
        with_noted(row, full_name, |remaining| {
            let packets = Packets::of(key, row, facts.are_chosen);
            let candidates = |of: &Snapshot| of.candidates(key, packets);
            facts.is_complete = key.hook.is_some() && after.is_complete(key);
            facts.at_place -= facts.packets - remaining;
            facts.packets = remaining;
            let blame = judge(&candidates(before), &candidates(after), &facts);
            let of_interface = |one: &DropKey| is_same_place(kind, key, one) && one.interface == key.interface;
            let is_only_row = packets_like(tally, key, of_interface) == row.packets;
            let here = traced
                .iter()
                .filter(|one| one.is_at(key.interface.as_deref()) && may_match(&after.chains, packets, &one.name));
            if is_only_row && !self.are_chosen && may_be_rule_of_nftables(key) {
                with_traced(blame, here, remaining, full_name)
            } else {
                blame
            }
        })
    }
}

/// Returns the packets of all rows of a namespace with such keys.
fn packets_like(tally: &Tally, key: &DropKey, is_like: impl Fn(&DropKey) -> bool) -> u64 {
    let rows = tally.rows.iter();
    rows.filter(|(one, _)| one.netns == key.netns && is_like(one)).map(|(_, row)| row.packets).sum()
}

/// Returns true if the same counters count the packets of both rows.
fn is_same_place(of: Kind, key: &DropKey, other: &DropKey) -> bool {
    kind(other) == Some(of)
        && match of {
            Kind::Queue | Kind::Filter(_) => other.interface == key.interface,
            _ => other.hook == key.hook,
        }
}

/// Returns false if the function does not free the packets that nftables drops. nftables itself has freed them since
/// 6.8.
fn may_be_rule_of_nftables(key: &DropKey) -> bool {
    key.function.starts_with("nft_") || !kernel_is_at_least(6, 8)
}

/// Kinds of objects that drop packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rule,
    Queue,
    /// Filters and programs at tc.
    Filter(Direction),
    /// Programs of the sender's cgroup, and of the receiver's.
    SendersProgram,
    ReceiversProgram,
}

/// Beginnings of the reasons of queueing disciplines.
const QUEUES: [&str; 3] = ["QDISC_", "FQ_", "CAKE_"];

fn kind(key: &DropKey) -> Option<Kind> {
    match key.reason.as_str() {
        "NETFILTER_DROP" => Some(Kind::Rule),
        "TC_INGRESS" => Some(Kind::Filter(Direction::Ingress)),
        "TC_EGRESS" => Some(Kind::Filter(Direction::Egress)),
        "BPF_CGROUP_EGRESS" => Some(Kind::SendersProgram),
        "SOCKET_FILTER" => Some(Kind::ReceiversProgram),
        reason if QUEUES.iter().any(|begin| reason.starts_with(begin)) => Some(Kind::Queue),
        _ => None,
    }
}

/// Facts on which the judgement of a row's candidates rests.
struct Facts {
    /// Packets of the row of which the kernel did not note the object.
    packets: u64,
    /// Such packets of all rows that the same counters count.
    at_place: u64,
    /// The counters count packets that are in no row, too.
    are_chosen: bool,
    /// The counters were read before the first packet.
    is_counted: bool,
    /// No other object can have dropped the packets.
    is_complete: bool,
}

/// Returns the candidates whose counters went up, and of the others the only one, or all as possible. A counter that
/// did not go up excludes its object.
fn judge(before: &[Candidate], now: &[Candidate], facts: &Facts) -> Blame {
    let increase = |one: &Candidate| {
        let same = before.iter().find(|old| old.name == one.name);
        let old = same.and_then(|old| old.packets).unwrap_or(0);
        Some(one.packets?.saturating_sub(old)).filter(|increase| *increase > 0)
    };
    let has_risen = |one: &&Candidate| increase(one).is_some();
    let risen: Vec<&Candidate> = now.iter().filter(has_risen).collect();
    let others = now.iter().filter(|one| !has_risen(one));
    let possible: Vec<&Candidate> =
        others.filter(|one| one.packets.is_none_or(|packets| packets > 0 && !facts.is_counted)).collect();
    let counted: u64 = risen.iter().filter_map(|one| increase(one)).sum();
    if facts.are_chosen || facts.packets < facts.at_place {
        // The counters are about other packets as well.
        let explains_all = !facts.are_chosen && counted >= facts.at_place;
        let possible = if explains_all { &[][..] } else { &possible[..] };
        let live = [&risen[..], possible].concat();
        return match live[..] {
            [only] if facts.is_complete || explains_all => {
                Blame { culprits: vec![Blame::certain(&only.name, Some(facts.packets))], ..Blame::default() }
            }
            _ => Blame::one_of(&live, None),
        };
    }
    let certain = risen.iter().map(|one| Blame::certain(&one.name, increase(one)));
    let mut blame = Blame { culprits: certain.collect(), ..Blame::default() };
    let rest = facts.packets.saturating_sub(counted);
    match possible[..] {
        _ if rest == 0 => {}
        [only] if facts.is_complete => {
            let packets = (counted > 0).then_some(rest);
            blame.culprits.push(Blame::certain(&only.name, packets));
        }
        _ => {
            let unexplained = (counted > 0).then_some(rest);
            blame.add(Blame::one_of(&possible, unexplained));
        }
    }
    blame
}

/// Adds the objects at which traced packets of a row ended. They explain these packets only: of the row's other
/// packets, any of the uncertain objects may have dropped each.
fn with_traced<'t>(
    mut blame: Blame,
    traced: impl Iterator<Item = &'t Traced>,
    packets: u64,
    full_name: impl Fn(&str) -> Option<String>,
) -> Blame {
    // A rule has one entry for each set of interfaces of its packets.
    let mut sums = BTreeMap::<&str, u64>::new();
    for one in traced {
        *sums.entry(&one.name).or_default() += one.packets;
    }
    let ended = sums.into_iter().map(|(name, packets)| Culprit {
        traced: Some(packets),
        ..Blame::certain(&full_name(name).unwrap_or_else(|| name.to_owned()), None)
    });
    let is_known = |one: &Culprit| {
        let mut certain = blame.culprits.iter().filter(|other| other.is_certain);
        certain.any(|other| other.name == one.name)
    };
    let mut ended: Vec<Culprit> = ended.filter(|one| !is_known(one)).collect();
    if ended.is_empty() {
        return blame;
    }
    ended.sort_by_key(|one| Reverse(one.traced));
    let sum: u64 = ended.iter().filter_map(|one| one.traced).sum();
    let is_explained = !blame.culprits.is_empty() && blame.culprits.iter().all(|one| one.is_certain);
    let before = blame.unexplained.unwrap_or(if is_explained { 0 } else { packets });
    let rest = before.saturating_sub(sum);
    blame.unexplained = (rest > 0).then_some(rest);
    if rest == 0 {
        blame.other_candidates = 0;
    }
    let (mut found, mut possible): (Vec<_>, Vec<_>) = blame.culprits.into_iter().partition(|one| one.is_certain);
    possible.retain(|one| rest > 0 && ended.iter().all(|other| other.name != one.name));
    found.extend(ended);
    found.extend(possible);
    blame.culprits = found;
    blame
}

impl Snapshot {
    fn read(namespace: Option<&Namespace>) -> Self {
        let read = || Self {
            chains: chains(&printed("nft", &["-a", "-t", "list", "ruleset"])),
            queues: serde_json::from_str(&printed("tc", &["-j", "-s", "qdisc", "show"])).unwrap_or_default(),
            legacy: [
                legacy("ip_tables_names", "iptables-legacy-save"),
                legacy("ip6_tables_names", "ip6tables-legacy-save"),
            ],
            tracking: counters::dropped_by_tracking(),
            is_first: false,
        };
        run_maybe_in(namespace, read).unwrap_or_default()
    }

    /// Returns the objects of netfilter that may have dropped packets of a row.
    fn candidates(&self, key: &DropKey, packets: Packets<'_>) -> Vec<Candidate> {
        let mut all = if may_be_rule_of_nftables(key) { rules(&self.chains, packets) } else { Vec::new() };
        // nftables has freed its packets itself since 6.8, so these objects have not dropped them.
        if key.function.starts_with("nft_") {
            return all;
        }
        for (version, rules) in [4, 6].into_iter().zip(&self.legacy) {
            if packets.row.versions().contains(&version) {
                let rules = rules.as_deref().unwrap_or_default();
                all.extend(legacy_rules(rules, key.hook.as_deref()));
            }
        }
        all.extend(
            self.tracking.map(|dropped| Candidate { name: CONNECTION_TRACKING.to_owned(), packets: Some(dropped) }),
        );
        all
    }

    /// Returns true if no other object of netfilter can have dropped the packets.
    fn is_complete(&self, key: &DropKey) -> bool {
        key.function.starts_with("nft_") || self.legacy.iter().all(Option::is_some)
    }
}

/// Returns the rules of the older iptables for a version of IP: none if it has no tables, `None` if they cannot be
/// read.
fn legacy(names: &str, command: &str) -> Option<String> {
    let names = std::fs::read_to_string(format!("/proc/thread-self/net/{names}"));
    if names.unwrap_or_default().is_empty() {
        Some(String::new())
    } else {
        Some(printed(command, &["-c"])).filter(|text| !text.is_empty())
    }
}

/// A queueing discipline in the output of `tc -j -s qdisc show`.
#[derive(Clone, Debug, Deserialize)]
struct Queue {
    kind: String,
    handle: String,
    dev: String,
    #[serde(default)]
    parent: Option<String>,
    #[serde(default)]
    drops: u64,
    #[serde(default)]
    options: serde_json::Map<String, Value>,
}

impl Queue {
    fn name(&self) -> String {
        let Self { kind, handle, dev, .. } = self;
        let class = self.parent.as_ref();
        let class = class.map_or_else(String::new, |class| format!(", class {class}"));
        let loses = if self.options.keys().any(|name| name.starts_with("loss")) { WITH_LOSS } else { "" };
        format!("qdisc {kind} {handle} of {dev}{class}{loses}")
    }
}

fn queues(all: &[Queue], interface: Option<&str>) -> Vec<Candidate> {
    let here = all.iter().filter(|one| Some(one.dev.as_str()) == interface);
    here.map(|one| Candidate { name: one.name(), packets: Some(one.drops) }).collect()
}

/// Leaves out qdiscs that count the drops of the qdiscs in their classes.
fn keep_innermost(all: &[Queue], before: &[Candidate], now: &mut Vec<Candidate>) {
    let has_risen = |one: &Candidate| {
        let old = before.iter().find(|old| old.name == one.name);
        one.packets > old.and_then(|old| old.packets).or(Some(0))
    };
    let of = |candidate: &Candidate| all.iter().find(|one| one.name() == candidate.name);
    let outer = |one: &Queue| {
        let (major, _) = one.parent.as_deref()?.split_once(':')?;
        Some((one.dev.clone(), format!("{major}:")))
    };
    let risen = now.iter().filter(|one| has_risen(one));
    let outer: Vec<_> = risen.filter_map(of).filter_map(outer).collect();
    now.retain(|candidate| of(candidate).is_none_or(|one| !outer.contains(&(one.dev.clone(), one.handle.clone()))));
}

/// Returns the filters and programs of an interface at tc that may drop packets.
fn filters(key: &DropKey, direction: Direction, space: Option<Option<Namespace>>) -> Vec<Candidate> {
    let Some((interface, space)) = key.interface.as_ref().zip(space) else {
        return Vec::new();
    };
    let side = direction.name();
    let read = || {
        let text = printed("tc", &["-j", "-s", "filter", "show", "dev", interface, side]);
        let all: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
        all.iter().filter_map(filter).collect::<Vec<_>>()
    };
    let found = run_maybe_in(space.as_ref(), read).ok();
    let programs = tc_programs(space.as_ref(), interface, direction).into_iter();
    let programs = programs.map(|program| Candidate { name: format!("tc {program}"), packets: None });
    programs.chain(found.into_iter().flatten()).collect()
}

/// Returns a filter in the output of `tc -j -s filter show` if one of its actions drops packets.
fn filter(one: &Value) -> Option<Candidate> {
    let options = one.get("options")?;
    let actions = options.get("actions")?.as_array()?;
    let drops = actions.iter().find(|action| {
        let kind = action.pointer("/control_action/type").and_then(Value::as_str);
        matches!(kind, Some("drop" | "shot"))
    })?;
    let text = |name: &str| {
        let value = options.get(name).or_else(|| one.get(name));
        value.map_or_else(String::new, |value| value.to_string().replace('"', ""))
    };
    let handle = if options.get("fh").is_some() { "fh" } else { "handle" };
    Some(Candidate {
        name: format!(
            "filter {} pref {} handle {}: action {} drop",
            text("kind"),
            text("pref"),
            text(handle),
            drops.get("kind").and_then(Value::as_str).unwrap_or("action"),
        ),
        packets: drops.pointer("/stats/drops").and_then(Value::as_u64),
    })
}

/// Returns the programs at the cgroup of the process that sent the packets; of any cgroup if the process is gone or
/// unknown.
fn senders_programs(row: &Row) -> Blame {
    let of_process = |root: &Root| root.of_process(row.process()?.0).ok();
    let found = programs(attached::EGRESS, None, of_process);
    if found.culprits.is_empty() { blame_of(programs_of_all(attached::EGRESS), None) } else { found }
}

/// Returns the programs at a hook of any cgroup.
fn programs_of_all(hook: u32) -> Vec<u32> {
    let Ok(root) = Root::open() else {
        return Vec::new();
    };
    let directories = root.directories();
    let of = |directory: File| attached::in_force(directory.as_fd(), hook).unwrap_or_default();
    let all: BTreeSet<u32> = directories.into_iter().flat_map(of).collect();
    all.into_iter().collect()
}

/// Returns the programs at the cgroups that were to receive the packets. Other packets with the same reason were
/// dropped by a socket's own filter.
fn receivers_programs(row: &Row) -> Blame {
    let mut blame = Blame::default();
    for (number, packets) in &row.cgroups {
        let cgroup = |root: &Root| root.numbered(*number).ok();
        blame.add(programs(attached::INGRESS, Some(*packets), cgroup));
    }
    blame
}

/// Returns the programs at a hook of a cgroup: the only one has dropped the packets.
fn programs(hook: u32, packets: Option<u64>, cgroup: impl FnOnce(&Root) -> Option<File>) -> Blame {
    let ids = Root::open().ok().and_then(|root| {
        let cgroup = cgroup(&root)?;
        attached::in_force(cgroup.as_fd(), hook).ok()
    });
    blame_of(ids.unwrap_or_default(), packets)
}

fn blame_of(ids: Vec<u32>, packets: Option<u64>) -> Blame {
    let found: Vec<Candidate> = ids
        .into_iter()
        .map(|id| Candidate { name: format!("cgroup {}", ProgramName::of(id)), packets: None })
        .collect();
    match &found[..] {
        [only] => Blame { culprits: vec![Blame::certain(&only.name, packets)], ..Blame::default() },
        all => Blame::one_of(&all.iter().collect::<Vec<_>>(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, packets: Option<u64>) -> Candidate {
        Candidate { name: name.to_owned(), packets }
    }

    const ALONE: Facts = Facts { packets: 9, at_place: 9, are_chosen: false, is_counted: true, is_complete: true };

    /// Returns the names, certain ones with `!`, each with its packets, and the rest.
    fn described(blame: &Blame) -> (Vec<String>, Option<u64>) {
        let culprits = blame.culprits.iter().map(|one| {
            let mark = if one.is_certain { "!" } else { "" };
            let packets = one.packets.map_or(String::new(), |packets| packets.to_string());
            let traced = one.traced.map_or(String::new(), |traced| format!("t{traced}"));
            format!("{}{mark}{packets}{traced}", one.name)
        });
        (culprits.collect(), blame.unexplained)
    }

    #[track_caller]
    fn judged(before: &[Candidate], now: &[Candidate], facts: &Facts, expected: &[&str], rest: Option<u64>) {
        let (names, unexplained) = described(&judge(before, now, facts));
        assert_eq!(
            (&names[..], unexplained),
            (&expected.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()[..], rest)
        );
    }

    #[test]
    fn counters_decide_and_exclude() {
        let before = [one("a", Some(5)), one("b", Some(1)), one("c", None)];
        let now = [one("a", Some(14)), one("b", Some(1)), one("c", None)];
        judged(&before, &now, &ALONE, &["a!9"], None);
        // The only remaining candidate has dropped the rest.
        let some = [one("a", Some(8)), one("b", Some(1)), one("c", None)];
        judged(&before, &some, &ALONE, &["a!3", "c!6"], None);
        judged(&before, &before, &ALONE, &["c!"], None);
        let two = [&some[..], &[one("d", None)]].concat();
        judged(&before, &two, &ALONE, &["a!3", "c", "d"], Some(6));
        let incomplete = Facts { is_complete: false, ..ALONE };
        judged(&before, &before, &incomplete, &["c"], None);
        // Counters that were read after the first drop exclude nothing.
        let late = Facts { is_counted: false, ..ALONE };
        judged(&before, &before, &late, &["a", "b", "c"], None);
    }

    #[test]
    fn counters_of_other_packets_prove_nothing() {
        let before = [one("a", Some(5)), one("b", Some(1)), one("c", None)];
        let now = [one("a", Some(9)), one("b", Some(6)), one("c", None)];
        let chosen = Facts { are_chosen: true, ..ALONE };
        judged(&before, &now, &chosen, &["a", "b", "c"], None);
        judged(&before[2..], &now[2..], &chosen, &["c!9"], None);
        // The counters explain all packets of both rows, but not which packets were of which row.
        let other_rows = Facts { packets: 4, ..ALONE };
        judged(&before, &now, &other_rows, &["a", "b"], None);
        judged(&before[1..2], &now[1..2], &Facts { packets: 2, at_place: 5, ..ALONE }, &["b!2"], None);
    }

    #[test]
    fn many_candidates_are_counted() {
        let now = ["a", "b", "c", "d", "e"].map(|name| one(name, None));
        let found = judge(&[], &now, &ALONE);
        assert_eq!((found.culprits.len(), found.other_candidates), (3, 2));
    }

    #[test]
    fn traced_packets_explain_only_themselves() {
        let traced = |name: &str, packets| Traced { name: name.to_owned(), interfaces: Vec::new(), packets };
        let full_name = |name: &str| (name == "a").then(|| "a: drop".to_owned());
        let either = ["a: drop", "b: drop"].map(|name| one(name, None));
        let blame = || judge(&[], &either, &ALONE);
        let with = |all: &[Traced]| described(&with_traced(blame(), all.iter(), 9, full_name));
        assert_eq!(with(&[]), described(&blame()));
        let names = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let found = with(&[traced("a", 1), traced("gone", 2)]);
        assert_eq!(found, (names(&["gone!t2", "a: drop!t1", "b: drop"]), Some(6)));
        assert_eq!(with(&[traced("a", 9)]), (names(&["a: drop!t9"]), None));
    }
}
