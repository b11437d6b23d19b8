//! Names of the objects that dropped packets: rules and policies of nftables, queueing disciplines, programs of cgroups. An
//! object is certain if the kernel noted it with the packets, if its counter went up, if a traced packet ended there, or if no
//! other one can have dropped the packets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use serde::{Deserialize, Serialize};
use trawl_bpf::probe::attached;
use trawl_sys::cgroup::Root;
use trawl_sys::counters;
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_view::why::{DropKey, Row};

use super::advice::{ProgramName, namespace};
use super::noted::with_noted;
use super::ruleset::{Chain, chains, full_name, may_meet, places, rules};
use super::traced::{Traced, Tracing};

/// Namespaces of which the counters are read before the first drop; of others, at the first drop.
const MOST_AT_START: usize = 16;
/// Number of uncertain objects that a row names.
const MOST_NAMED: usize = 3;

/// An object that may have dropped packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Culprit {
    pub name: String,
    /// Packets of the row that it dropped, or packets that its counter counted meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Traced packets that it dropped: a sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traced: Option<u64>,
    pub is_certain: bool,
}

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
    /// True if the rows have only some of the dropped packets: a trace has others too.
    are_chosen: bool,
}

#[derive(Debug, Default)]
struct Snapshot {
    chains: Vec<Chain>,
    queues: Vec<Queue>,
}

impl Culprits {
    /// `are_chosen`: an expression or a command selects among the dropped packets.
    pub fn new(are_chosen: bool) -> Self {
        Self {
            are_chosen,
            ..Self::default()
        }
    }

    /// Reads the counters of these namespaces, up to a limit.
    pub fn begin<'n>(&mut self, namespaces: impl Iterator<Item = &'n Namespace>) {
        for namespace in namespaces.take(MOST_AT_START) {
            let label = Some(counters::label(namespace));
            self.before.insert(label, Snapshot::take(Some(namespace)));
        }
    }

    /// Reads the counters of the namespace of a drop, unless they are known.
    pub fn look(&mut self, key: &DropKey) {
        let has_counters = matches!(kind(key), Some(Kind::Rule | Kind::Queue));
        if !has_counters || self.before.contains_key(&key.netns) {
            return;
        }
        let found = namespace(key).map(|namespace| Snapshot::take(namespace.as_ref()));
        self.before
            .insert(key.netns.clone(), found.unwrap_or_default());
    }

    /// Begins to trace the packets of a drop's namespace, once, if several rules without counters may have dropped them. Returns
    /// true if it did.
    pub fn trace(&mut self, key: &DropKey, row: &Row) -> bool {
        let Some(before) = self.before.get(&key.netns) else {
            return false;
        };
        if kind(key) != Some(Kind::Rule) || self.traces.contains_key(&key.netns) {
            return false;
        }
        let versions = row.versions();
        let at = (key.netns.clone(), key.hook.clone(), versions.clone());
        if !self.considered.insert(at) {
            return false;
        }
        let rules = rules(&before.chains, key.hook.as_deref(), &versions);
        if rules.iter().filter(|one| one.packets.is_none()).count() < 2 {
            return false;
        }
        let begin = |namespace| Tracing::begin(namespace, &places(&before.chains));
        let begun = namespace(key).and_then(begin);
        let has_begun = begun.is_some();
        self.traces.insert(key.netns.clone(), begun);
        has_begun
    }

    /// Returns the objects that dropped the packets of a row, or may have. Drops after the first call do not count.
    pub fn of(&mut self, key: &DropKey, row: &Row) -> Vec<Culprit> {
        let Some(kind) = kind(key) else {
            return Vec::new();
        };
        match kind {
            Kind::SendersProgram => return senders_programs(row),
            Kind::ReceiversProgram => return receivers_programs(row),
            Kind::Rule | Kind::Queue => {}
        }
        // The trace ends here, before its table could be read as the user's.
        let tracing = self.traces.get_mut(&key.netns).and_then(Option::as_mut);
        let traced = tracing.map_or(&[][..], Tracing::end);
        let after = self.after.entry(key.netns.clone()).or_insert_with(|| {
            let found = namespace(key).map(|namespace| Snapshot::take(namespace.as_ref()));
            found.unwrap_or_default()
        });
        let none = Snapshot::default();
        let before = self.before.get(&key.netns).unwrap_or(&none);
        if kind == Kind::Queue {
            let queues = |of: &Snapshot| queues(&of.queues, key.interface.as_deref());
            let mut found = judge(&queues(before), &queues(after), false);
            keep_innermost(&after.queues, &mut found);
            return found;
        }
        let full_name =
            |name: &str| full_name(&after.chains, name).or_else(|| full_name(&before.chains, name));
        with_noted(row, full_name, || {
            let versions = row.versions();
            let rules = |of: &Snapshot| rules(&of.chains, key.hook.as_deref(), &versions);
            // Rules of the older iptables are not among those of nftables.
            let is_complete = key.hook.is_some() && !has_legacy(key);
            let found = judge(&rules(before), &rules(after), is_complete);
            let here = traced.iter().filter(|one| {
                let hook = key.hook.as_deref();
                one.is_at(key.interface.as_deref())
                    && may_meet(&after.chains, hook, &versions, &one.name)
            });
            with_traced(found, here, !self.are_chosen, full_name)
        })
    }
}

/// Kinds of objects that drop packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rule,
    Queue,
    /// Programs of the sender's cgroup, and of the receiver's.
    SendersProgram,
    ReceiversProgram,
}

fn kind(key: &DropKey) -> Option<Kind> {
    match key.reason.as_str() {
        "NETFILTER_DROP" => Some(Kind::Rule),
        "BPF_CGROUP_EGRESS" => Some(Kind::SendersProgram),
        "SOCKET_FILTER" => Some(Kind::ReceiversProgram),
        reason if reason.starts_with("QDISC_") => Some(Kind::Queue),
        _ => None,
    }
}

/// An object and its counter, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub name: String,
    pub packets: Option<u64>,
}

/// Returns the candidates whose counters went up; otherwise the only one, or some of them. `is_complete`: no other object can
/// have dropped the packets.
fn judge(before: &[Candidate], now: &[Candidate], is_complete: bool) -> Vec<Culprit> {
    let increase = |one: &Candidate| {
        let same = before.iter().find(|old| old.name == one.name);
        let old = same.and_then(|old| old.packets).unwrap_or(0);
        Some(one.packets?.saturating_sub(old)).filter(|increase| *increase > 0)
    };
    let counted: Vec<Culprit> = now
        .iter()
        .filter_map(|one| {
            Some(Culprit {
                name: one.name.clone(),
                packets: Some(increase(one)?),
                traced: None,
                is_certain: true,
            })
        })
        .collect();
    if !counted.is_empty() {
        return counted;
    }
    let silent = now.iter().filter(|one| one.packets.is_none());
    let is_certain = is_complete && now.len() == 1;
    silent
        .take(MOST_NAMED)
        .map(|one| Culprit {
            name: one.name.clone(),
            packets: None,
            traced: None,
            is_certain,
        })
        .collect()
}

/// Replaces the uncertain objects by those at which traced packets ended, if there are any. `is_certain`: the traced packets are
/// of the row.
fn with_traced<'t>(
    mut found: Vec<Culprit>,
    traced: impl Iterator<Item = &'t Traced>,
    is_certain: bool,
    full_name: impl Fn(&str) -> Option<String>,
) -> Vec<Culprit> {
    // Packets of several interfaces are apart.
    let mut sums = BTreeMap::<&str, u64>::new();
    for one in traced {
        *sums.entry(&one.name).or_default() += one.packets;
    }
    let ended = sums.into_iter().map(|(name, packets)| Culprit {
        name: full_name(name).unwrap_or_else(|| name.to_owned()),
        packets: None,
        traced: Some(packets),
        is_certain,
    });
    let mut ended: Vec<Culprit> = ended.collect();
    ended.sort_by_key(|one| Reverse(one.traced));
    if !ended.is_empty() {
        found.retain(|one| one.is_certain && ended.iter().all(|other| other.name != one.name));
        found.extend(ended);
    }
    found
}

impl Snapshot {
    fn take(namespace: Option<&Namespace>) -> Self {
        let read = || Self {
            chains: chains(&printed("nft", &["-a", "-t", "list", "ruleset"])),
            queues: serde_json::from_str(&printed("tc", &["-j", "-s", "qdisc", "show"]))
                .unwrap_or_default(),
        };
        run_maybe_in(namespace, read).unwrap_or_default()
    }
}

/// Returns the output of a command; empty if it is missing or fails.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.ok().filter(|output| output.status.success());
    output.map_or(String::new(), |output| {
        String::from_utf8_lossy(&output.stdout).into_owned()
    })
}

fn has_legacy(key: &DropKey) -> bool {
    // On newer kernels nftables frees the packets that it drops.
    let names = || {
        ["ip_tables_names", "ip6_tables_names"].iter().any(|file| {
            let names = std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
            names.is_ok_and(|names| !names.is_empty())
        })
    };
    let found = namespace(key).and_then(|one| run_maybe_in(one.as_ref(), names).ok());
    !key.function.starts_with("nft_") && found.unwrap_or(true)
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
}

impl Queue {
    fn name(&self) -> String {
        let Self {
            kind, handle, dev, ..
        } = self;
        match &self.parent {
            Some(class) => format!("qdisc {kind} {handle} of {dev}, class {class}"),
            None => format!("qdisc {kind} {handle} of {dev}"),
        }
    }
}

fn queues(all: &[Queue], interface: Option<&str>) -> Vec<Candidate> {
    let here = all.iter().filter(|one| Some(one.dev.as_str()) == interface);
    here.map(|one| Candidate {
        name: one.name(),
        packets: Some(one.drops),
    })
    .collect()
}

/// Leaves out qdiscs that count the drops of the qdiscs in their classes.
fn keep_innermost(all: &[Queue], found: &mut Vec<Culprit>) {
    let of = |culprit: &Culprit| all.iter().find(|one| one.name() == culprit.name);
    let outer = |one: &Queue| {
        let (major, _) = one.parent.as_deref()?.split_once(':')?;
        Some((one.dev.clone(), format!("{major}:")))
    };
    let outer: Vec<_> = found.iter().filter_map(of).filter_map(outer).collect();
    found.retain(|culprit| {
        of(culprit).is_none_or(|one| !outer.contains(&(one.dev.clone(), one.handle.clone())))
    });
}

/// Returns the programs at the cgroup of the process that sent the packets.
fn senders_programs(row: &Row) -> Vec<Culprit> {
    let cgroup = |root: &Root| root.of_process(row.process()?.0).ok();
    programs(attached::EGRESS, None, cgroup)
}

/// Returns the programs at the cgroups that were to receive the packets. Other packets with the same reason were dropped by a
/// socket's own filter.
fn receivers_programs(row: &Row) -> Vec<Culprit> {
    let cgroups = row.cgroups.iter();
    let found = cgroups.map(|(number, packets)| {
        programs(attached::INGRESS, Some(*packets), |root| {
            root.numbered(*number).ok()
        })
    });
    found.flatten().collect()
}

/// Returns the programs at a hook of a cgroup: the only one has dropped the packets.
fn programs(
    hook: u32,
    packets: Option<u64>,
    cgroup: impl FnOnce(&Root) -> Option<File>,
) -> Vec<Culprit> {
    let ids = Root::open().ok().and_then(|root| {
        let cgroup = cgroup(&root)?;
        attached::in_force(cgroup.as_fd(), hook).ok()
    });
    let ids = ids.unwrap_or_default();
    let is_certain = ids.len() == 1;
    ids.into_iter()
        .take(MOST_NAMED)
        .map(|id| Culprit {
            name: format!("cgroup {}", ProgramName::of(id)),
            packets: packets.filter(|_| is_certain),
            traced: None,
            is_certain,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_decide_and_the_only_candidate_is_certain() {
        let one = |name: &str, packets| Candidate {
            name: name.to_owned(),
            packets,
        };
        let before = [one("a", Some(5)), one("b", Some(1)), one("c", None)];
        let now = [one("a", Some(8)), one("b", Some(1)), one("c", None)];
        let counted = judge(&before, &now, true);
        assert_eq!((counted.len(), counted[0].packets), (1, Some(3)));
        assert!(counted[0].is_certain);
        let silent = judge(&before, &before, true);
        assert_eq!((silent.len(), silent[0].name.as_str()), (1, "c"));
        assert!(!silent[0].is_certain);
        let alone = [one("c", None)];
        assert!(judge(&alone, &alone, true)[0].is_certain);
        assert!(!judge(&alone, &alone, false)[0].is_certain);
    }

    #[test]
    fn objects_of_traced_packets_replace_the_uncertain_ones() {
        let culprit = |name: &str, packets, traced, is_certain| Culprit {
            name: name.to_owned(),
            packets,
            traced,
            is_certain,
        };
        let traced = |name: &str| Traced {
            name: name.to_owned(),
            interfaces: Vec::new(),
            packets: 9,
        };
        let full_name = |name: &str| (name == "a").then(|| "a: drop".to_owned());
        let counted = culprit("c: drop", Some(1), None, true);
        let either = ["a: drop", "b: drop"].map(|name| culprit(name, None, None, false));
        let all = [&either[..], std::slice::from_ref(&counted)].concat();
        let none = with_traced(all.clone(), [].iter(), true, full_name);
        assert_eq!(none, all);
        let found = with_traced(all, [traced("a"), traced("gone")].iter(), true, full_name);
        let ended = ["a: drop", "gone"].map(|name| culprit(name, None, Some(9), true));
        assert_eq!(found, [&[counted][..], &ended].concat());
    }
}
