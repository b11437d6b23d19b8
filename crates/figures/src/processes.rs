//! The traffic of processes since the command began, summed up by their names and containers.

use std::collections::BTreeMap;

use serde::Serialize;
use trawl_bpf::layout::Shared as _;
use trawl_bpf::layout::process::Traffic;
use trawl_bpf::process_watch::ProcessWatch;
use trawl_capture::event::Event;
use trawl_capture::traffic::{TrafficWatch, cgroups};
use trawl_sys::Result;

use crate::counters::NamespaceInterfaces;

/// Maximum number of pairs of a name and a container: with one more for the others, two metrics and two directions,
/// this makes 1,000 series.
const MOST: usize = 249;
const OTHER: &str = "other";
const UNKNOWN: &str = "unknown";

/// The traffic of all processes with a name in a container.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessTotals {
    pub process: String,
    /// Empty outside of containers.
    pub container: String,
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
}

#[derive(Debug)]
pub struct Processes {
    watch: TrafficWatch,
    /// `None`: the whole machine.
    selected: Option<Vec<NamespaceInterfaces>>,
    totals: Totals,
}

#[derive(Debug, Default)]
struct Totals(BTreeMap<(String, String), Traffic>);

impl Processes {
    pub fn attach(selected: Option<Vec<NamespaceInterfaces>>) -> Result<Self> {
        let watch = TrafficWatch::attach(cgroups()?)?;
        Ok(Self { watch, selected, totals: Totals::default() })
    }

    /// Returns the event about traffic that the counts lack, if any.
    pub fn unseen(&self) -> Option<&Event> {
        self.watch.unseen.as_ref()
    }

    pub fn owners(&self) -> &ProcessWatch {
        self.watch.owners()
    }

    /// Reads which processes have started.
    pub fn refresh(&mut self) {
        self.watch.refresh();
    }

    /// Returns the name and the container of a process, as far as they are known.
    pub fn describe(&mut self, id: u32) -> (Option<String>, Option<String>) {
        self.watch.describe(id)
    }

    /// Adds the traffic since the last call, and returns all totals.
    pub fn update(&mut self) -> Result<Vec<ProcessTotals>> {
        let selected = self.selected.as_deref();
        let sites = selected.map(NamespaceInterfaces::sites).transpose()?;
        for (counted, traffic) in self.watch.take(sites.as_ref())? {
            let name = counted.name.unwrap_or(UNKNOWN.to_owned());
            let container = counted.container.unwrap_or_default();
            self.totals.add((name, container), &traffic);
        }
        Ok(self.totals.all())
    }
}

impl Totals {
    fn add(&mut self, pair: (String, String), traffic: &Traffic) {
        let pair =
            if self.0.len() < MOST || self.0.contains_key(&pair) { pair } else { (OTHER.to_owned(), String::new()) };
        self.0.entry(pair).or_insert_with(Traffic::zeroed).add(traffic);
    }

    fn all(&self) -> Vec<ProcessTotals> {
        let one = |((process, container), traffic): (&(String, String), &Traffic)| ProcessTotals {
            process: process.clone(),
            container: container.clone(),
            rx_packets: traffic.packets[0],
            rx_bytes: traffic.bytes[0],
            tx_packets: traffic.packets[1],
            tx_bytes: traffic.bytes[1],
        };
        self.0.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_limit_are_one() {
        let mut totals = Totals::default();
        let traffic = Traffic { packets: [1, 2], bytes: [10, 20] };
        for number in 0..2 * MOST {
            totals.add((format!("p{number}"), String::new()), &traffic);
        }
        let all = totals.all();
        assert_eq!(all.len(), MOST + 1);
        let other = all.iter().find(|one| one.process == OTHER).unwrap();
        assert_eq!(other.rx_packets, MOST as u64);
    }
}
