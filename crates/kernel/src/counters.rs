//! The kernel's own counters of packets that came to an end: of protocols in a namespace, of the queues of CPUs, and of
//! devices.

use std::collections::BTreeMap;
use std::fs;

use crate::Result;
use crate::ethtool::Ethtool;
use crate::netlink::Netlink;
use crate::netns::{Namespace, run_maybe_in};

/// Parts of the names of a device's counters that tell of packets that it did not deliver.
const LOST: [&str; 7] = [
    "drop", "discard", "missed", "no_buf", "nobuf", "overrun", "_err",
];

/// Counters by name, at one time.
pub type Counters = BTreeMap<String, u64>;

/// The counters of a namespace's protocols, as `nstat` names them.
pub fn of_protocols(namespace: Option<&Namespace>) -> Result<Counters> {
    run_maybe_in(namespace, || {
        let mut counters = Counters::new();
        for file in ["snmp", "netstat"] {
            let text = fs::read_to_string(format!("/proc/thread-self/net/{file}"));
            headed(&text.unwrap_or_default(), &mut counters);
        }
        let text = fs::read_to_string("/proc/thread-self/net/snmp6").unwrap_or_default();
        counters.extend(text.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        }));
        counters
    })
}

/// Packets that the queues of CPUs had no room for.
pub fn of_cpus() -> Counters {
    let text = fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let column = |at: usize| {
        let values = text.lines().filter_map(|line| {
            let word = line.split_whitespace().nth(at)?;
            u64::from_str_radix(word, 16).ok()
        });
        values.sum()
    };
    [
        ("SoftnetDropped", column(1)),
        ("SoftnetFlowLimit", column(10)),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// What the devices of a namespace did not deliver: counters of their drivers, as `DEVICE NAME`.
pub fn of_devices(namespace: Option<&Namespace>) -> Result<Counters> {
    let mut counters = Counters::new();
    for link in Netlink::open(namespace)?.links()? {
        let Ok(statistics) =
            Ethtool::open(namespace, &link.name).and_then(|device| device.statistics())
        else {
            // It has none, or is gone.
            continue;
        };
        for (name, value) in statistics {
            if LOST.iter().any(|part| name.contains(part)) {
                counters.insert(format!("{} {name}", link.name), value);
            }
        }
    }
    Ok(counters)
}

/// What was added between two looks; what was not there before counts whole.
pub fn differences(before: &Counters, after: &Counters) -> Counters {
    let added = |(name, value): (&String, &u64)| {
        let added = value.wrapping_sub(before.get(name).copied().unwrap_or(0));
        (added > 0 && added < u64::MAX / 2).then(|| (name.clone(), added))
    };
    after.iter().filter_map(added).collect()
}

/// Pairs of lines: `Udp: InDatagrams NoPorts` and `Udp: 5 7`.
fn headed(text: &str, counters: &mut Counters) {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let Some((group, names)) = names.split_once(':') else {
            continue;
        };
        let values = values.split_once(':').map_or("", |(_, values)| values);
        let pairs = names.split_whitespace().zip(values.split_whitespace());
        counters.extend(
            pairs.filter_map(|(name, value)| Some((format!("{group}{name}"), value.parse().ok()?))),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_names_are_joined_as_nstat_does() {
        let mut counters = Counters::new();
        headed("Udp: InDatagrams NoPorts\nUdp: 5 7\n", &mut counters);
        assert_eq!(counters["UdpNoPorts"], 7);
        let before = Counters::from([("UdpNoPorts".to_owned(), 4)]);
        assert_eq!(
            differences(&before, &counters),
            Counters::from([
                ("UdpInDatagrams".to_owned(), 5),
                ("UdpNoPorts".to_owned(), 3)
            ])
        );
    }

    #[test]
    fn this_machine_counts() {
        assert!(of_protocols(None).unwrap().contains_key("UdpNoPorts"));
        assert!(of_cpus().contains_key("SoftnetDropped"));
    }
}
