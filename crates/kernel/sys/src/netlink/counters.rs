//! The kernel's own counters of dropped and delivered packets: of protocols in a namespace, of the queues of CPUs, of
//! devices, and of the traps of switches and smart cards (devlink).

use std::collections::BTreeMap;
use std::fs;

use crate::Result;
use crate::netlink::ethtool::Ethtool;
use crate::netlink::{self, Netlink};
use crate::netns::{Namespace, run_in};

/// Parts of the names of a device's counters that count undelivered packets.
const LOST: [&str; 7] = ["drop", "discard", "missed", "no_buf", "nobuf", "overrun", "_err"];

/// Name of the counter of packets that connection tracking drops.
const TRACKING: &str = "ConntrackDrop";

/// The identity of a counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterKey {
    /// The network namespace by its name, or by the number of its inode; `None` for counters of the whole machine.
    pub netns: Option<String>,
    /// The interface, or the device of devlink.
    pub device: Option<String>,
    pub name: String,
}

/// Counters at one point in time.
pub type Counters = BTreeMap<CounterKey, u64>;

/// Returns the name of a namespace among counters.
pub fn label(namespace: &Namespace) -> String {
    namespace.name().map_or_else(|| namespace.identity().1.to_string(), str::to_owned)
}

/// Reads the counters of a namespace's protocols, under the names that `nstat` uses.
pub fn of_protocols(namespace: &Namespace) -> Result<Counters> {
    let netns = label(namespace);
    let found = run_in(namespace, || {
        let mut counters = BTreeMap::new();
        for file in ["snmp", "netstat"] {
            let text = fs::read_to_string(format!("/proc/thread-self/net/{file}"));
            headed(&text.unwrap_or_default(), &mut counters);
        }
        // One counter in a line; xfrm_stat has those of IPsec.
        for file in ["snmp6", "xfrm_stat"] {
            let text = fs::read_to_string(format!("/proc/thread-self/net/{file}"));
            counters.extend(text.unwrap_or_default().lines().filter_map(|line| {
                let mut fields = line.split_whitespace();
                Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
            }));
        }
        counters.extend(dropped_by_tracking().map(|count| (TRACKING.to_owned(), count)));
        counters
    })?;
    let keyed = found.into_iter().map(|(name, value)| {
        let netns = Some(netns.clone());
        (CounterKey { netns, device: None, name }, value)
    });
    Ok(keyed.collect())
}

/// Returns the number of packets that connection tracking dropped in the calling thread's namespace, because its table
/// was full or had no place for a connection. `None` if nothing is tracked.
pub fn dropped_by_tracking() -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/stat/nf_conntrack").ok()?;
    let mut lines = text.lines();
    let column = lines.next()?.split_whitespace().position(|name| name == "drop")?;
    let of_cpu = |line: &str| u64::from_str_radix(line.split_whitespace().nth(column)?, 16).ok();
    Some(lines.filter_map(of_cpu).sum())
}

/// Counts the packets that the queues of CPUs had no room for.
pub fn of_cpus() -> Counters {
    let text = fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let column = |at: usize| {
        let values = text.lines().filter_map(|line| {
            let word = line.split_whitespace().nth(at)?;
            u64::from_str_radix(word, 16).ok()
        });
        values.sum()
    };
    [("SoftnetDropped", column(1)), ("SoftnetFlowLimit", column(10))]
        .into_iter()
        .map(|(name, value)| {
            let name = name.to_owned();
            (CounterKey { name, ..CounterKey::default() }, value)
        })
        .collect()
}

/// Counts the packets that devices of a namespace did not deliver, by the counters of their drivers; of all devices, or
/// of one.
pub fn of_devices(namespace: &Namespace, only: Option<&str>) -> Result<Counters> {
    let mut counters = Counters::new();
    for link in Netlink::open(Some(namespace))?.links()? {
        if only.is_some_and(|only| only != link.name) {
            continue;
        }
        let Ok(statistics) = Ethtool::open(Some(namespace), &link.name).and_then(|device| device.statistics()) else {
            // The device has no counters, or is gone.
            continue;
        };
        for (name, value) in statistics {
            if LOST.iter().any(|part| name.contains(part)) {
                let key = CounterKey { netns: Some(label(namespace)), device: Some(link.name.clone()), name };
                counters.insert(key, value);
            }
        }
    }
    Ok(counters)
}

/// Counts the packets that switches and smart cards dropped or could not handle, by the traps of devlink. Empty if the
/// kernel has none.
pub fn of_traps(namespace: &Namespace) -> Result<Counters> {
    let traps = netlink::traps(namespace)?.into_iter().map(|trap| {
        let key = CounterKey { netns: Some(label(namespace)), device: Some(trap.device), name: trap.name };
        (key, trap.packets)
    });
    Ok(traps.collect())
}

/// Returns the increases between two readings; counters missing from the first count from zero.
pub fn differences(before: &Counters, after: &Counters) -> Counters {
    let added = |(key, value): (&CounterKey, &u64)| {
        let added = value.wrapping_sub(before.get(key).copied().unwrap_or(0));
        (added > 0 && added < u64::MAX / 2).then(|| (key.clone(), added))
    };
    after.iter().filter_map(added).collect()
}

/// Parses pairs of lines: `Udp: InDatagrams NoPorts` and `Udp: 5 7`.
fn headed(text: &str, counters: &mut BTreeMap<String, u64>) {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let Some((group, names)) = names.split_once(':') else {
            continue;
        };
        let values = values.split_once(':').map_or("", |(_, values)| values);
        let pairs = names.split_whitespace().zip(values.split_whitespace());
        counters.extend(pairs.filter_map(|(name, value)| Some((format!("{group}{name}"), value.parse().ok()?))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_names_are_joined_as_by_nstat() {
        let mut counters = BTreeMap::new();
        headed("Udp: InDatagrams NoPorts\nUdp: 5 7\n", &mut counters);
        let expected = [("UdpInDatagrams", 5), ("UdpNoPorts", 7)];
        assert_eq!(counters, expected.map(|(name, value)| (name.to_owned(), value)).into());
    }

    #[test]
    fn counters_without_an_increase_are_no_difference() {
        let key = |name: &str| CounterKey { name: name.to_owned(), ..CounterKey::default() };
        let before = Counters::from([(key("a"), 4), (key("b"), 7), (key("c"), 9)]);
        let after = Counters::from([(key("a"), 7), (key("b"), 7), (key("c"), 8), (key("d"), 1)]);
        let expected = Counters::from([(key("a"), 3), (key("d"), 1)]);
        assert_eq!(differences(&before, &after), expected);
    }

    #[test]
    fn this_machine_counts() {
        let namespace = Namespace::current().unwrap();
        let has = |counters: Counters, name: &str| counters.keys().any(|key| key.name == name);
        assert!(has(of_protocols(&namespace).unwrap(), "UdpNoPorts"));
        assert!(has(of_cpus(), "SoftnetDropped"));
        of_traps(&namespace).unwrap();
    }
}
