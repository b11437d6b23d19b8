//! Times in which a host recorded nothing although it should have: after a killed capture, or without its agent.

use std::collections::BTreeMap;

use serde::Serialize;
use trawl_spool::manifest::Begin;

use super::account::Inventory;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pause {
    pub host: String,
    pub capture: String,
    /// Last time at which the capture is known to have run, in nanoseconds since 1970.
    pub from_ns: u64,
    /// Start of the next run; absent if there is none.
    pub to_ns: Option<u64>,
}

/// Last known time of a run.
#[derive(Clone, Copy)]
struct Last {
    ns: u64,
    /// The run was killed or goes on: only its chunks show how long it ran.
    is_open: bool,
    /// The run ended with its agent.
    orphaned: bool,
}

impl Inventory {
    /// Returns the pauses of each host's captures, the oldest first.
    pub fn pauses(&self) -> Vec<Pause> {
        let mut captures: BTreeMap<(&str, &str), Vec<&Begin>> = BTreeMap::new();
        for begin in self.begins.values() {
            let name = (begin.epoch.host.as_str(), begin.epoch.capture.as_str());
            captures.entry(name).or_default().push(begin);
        }
        let last_chunks = self.last_chunks();
        let mut pauses = Vec::new();
        for ((host, capture), mut runs) in captures {
            runs.sort_by_key(|begin| begin.began_ns);
            let pause = |from_ns, to_ns| Pause {
                host: host.to_owned(),
                capture: capture.to_owned(),
                from_ns,
                to_ns,
            };
            // Runs of one capture may overlap: the latest end counts.
            let mut last: Option<Last> = None;
            for begin in runs {
                if let Some(last) = last
                    && (last.is_open || last.orphaned || begin.continues)
                    && last.ns < begin.began_ns
                {
                    pauses.push(pause(last.ns, Some(begin.began_ns)));
                }
                let prefix = begin.epoch.prefix();
                let chunks = last_chunks.get(&prefix).copied().unwrap_or(0);
                let run = match self.ends.get(&prefix) {
                    Some(end) => Last {
                        ns: end.ended_ns,
                        is_open: false,
                        orphaned: end.orphaned,
                    },
                    None => Last {
                        ns: chunks.max(begin.began_ns),
                        is_open: true,
                        orphaned: false,
                    },
                };
                last = Some(last.filter(|last| last.ns > run.ns).unwrap_or(run));
            }
            if let Some(last) = last.filter(|last| last.orphaned) {
                pauses.push(pause(last.ns, None));
            }
        }
        pauses.sort_by_key(|pause| pause.from_ns);
        pauses
    }

    /// Returns the last time that the chunks of each run cover, by the run's prefix.
    fn last_chunks(&self) -> BTreeMap<String, u64> {
        let mut times: BTreeMap<String, u64> = BTreeMap::new();
        for manifest in self.manifests.values().chain(&self.spooled) {
            // A recovered chunk was sealed later, by another process.
            let until = match manifest.recovered {
                true => manifest.last_ns.unwrap_or(0),
                false => manifest.sealed_ns,
            };
            let time = times.entry(manifest.epoch.prefix()).or_default();
            *time = until.max(*time);
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_spool::key::Epoch;
    use trawl_spool::manifest::{Clock, End, FORMAT, Fates, Origin};

    const CLOCK: Clock = Clock {
        source: String::new(),
        synchronised: false,
        error_bound_ns: None,
        tai_offset_s: None,
    };

    fn epoch(began_ns: u64) -> Epoch {
        Epoch {
            capture: "c".to_owned(),
            host: "h".to_owned(),
            boot: "b".to_owned(),
            epoch: began_ns.to_string(),
        }
    }

    fn begin(began_ns: u64, continues: bool) -> Begin {
        Begin {
            format: FORMAT,
            epoch: epoch(began_ns),
            began_ns,
            interfaces: Vec::new(),
            continues,
            clock: CLOCK,
            origin: Origin {
                options: Vec::new(),
                trawl: String::new(),
            },
            seal: String::new(),
        }
    }

    fn end(began_ns: u64, ended_ns: u64, orphaned: bool) -> End {
        End {
            format: FORMAT,
            epoch: epoch(began_ns),
            ended_ns,
            reason: "interrupted".to_owned(),
            orphaned,
            account: Fates::default(),
            chunks: 0,
            interfaces: BTreeMap::new(),
            clock: CLOCK,
            seal: String::new(),
        }
    }

    fn pauses(begins: &[Begin], ends: &[End]) -> Vec<(u64, Option<u64>)> {
        let inventory = Inventory {
            begins: begins
                .iter()
                .map(|one| (one.epoch.prefix(), one.clone()))
                .collect(),
            ends: ends
                .iter()
                .map(|one| (one.epoch.prefix(), one.clone()))
                .collect(),
            ..Inventory::default()
        };
        let all = inventory.pauses();
        all.iter().map(|one| (one.from_ns, one.to_ns)).collect()
    }

    #[test]
    fn pauses_follow_killed_runs_and_lost_agents() {
        let (first, later) = (begin(10, false), begin(30, false));
        let again = begin(30, true);
        // An operator's stop is no pause, a killed run before another one is.
        assert_eq!(
            pauses(&[first.clone(), later.clone()], &[end(10, 20, false)]),
            []
        );
        assert_eq!(pauses(&[first.clone(), later], &[]), [(10, Some(30))]);
        // An agent that starts its capture again.
        let ends = [end(10, 20, false)];
        assert_eq!(
            pauses(&[first.clone(), again.clone()], &ends),
            [(20, Some(30))]
        );
        // An agent that is gone.
        let ends = [end(10, 20, true), end(30, 40, true)];
        assert_eq!(
            pauses(&[first.clone(), again], &ends),
            [(20, Some(30)), (40, None)]
        );
        // A run that goes on, and one that another run overlaps.
        assert_eq!(pauses(std::slice::from_ref(&first), &[]), []);
        let overlapped = begin(20, true);
        assert_eq!(
            pauses(
                &[first, overlapped],
                &[end(10, 30, false), end(20, 40, false)]
            ),
            []
        );
    }
}
