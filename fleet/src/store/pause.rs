//! Times in which a host recorded nothing although it should have: after a killed capture, or without its agent.

use std::collections::BTreeMap;

use serde::Serialize;

use super::runs::{Began, Run, Runs};

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

impl Runs {
    /// Returns the pauses of each host's captures, the oldest first.
    pub fn pauses(&self) -> Vec<Pause> {
        let mut captures: BTreeMap<(&str, &str), Vec<(&Began, &Run)>> = BTreeMap::new();
        for (epoch, run) in &self.0 {
            if let Some(begin) = &run.begin {
                let name = (epoch.host.as_str(), epoch.capture.as_str());
                captures.entry(name).or_default().push((begin, run));
            }
        }
        let mut pauses = Vec::new();
        for ((host, capture), mut runs) in captures {
            runs.sort_by_key(|(begin, _)| begin.ns);
            let pause = |from_ns, to_ns| Pause {
                host: host.to_owned(),
                capture: capture.to_owned(),
                from_ns,
                to_ns,
            };
            // Runs of one capture may overlap: the latest end counts.
            let mut last: Option<Last> = None;
            for (begin, run) in runs {
                if let Some(last) = last
                    && (last.is_open || last.orphaned || begin.continues)
                    && last.ns < begin.ns
                {
                    pauses.push(pause(last.ns, Some(begin.ns)));
                }
                let run = match &run.end {
                    Some(end) => Last {
                        ns: end.ns,
                        is_open: false,
                        orphaned: end.orphaned,
                    },
                    None => Last {
                        ns: run.alive_ns.max(begin.ns),
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::runs::Ended;
    use trawl_spool::key::Epoch;

    type At = (u64, Run);

    fn begin(began_ns: u64, continues: bool) -> At {
        let begin = Some(Began {
            ns: began_ns,
            continues,
        });
        (
            began_ns,
            Run {
                begin,
                ..Run::default()
            },
        )
    }

    fn end(began_ns: u64, ended_ns: u64, orphaned: bool) -> At {
        let end = Some(Ended {
            ns: ended_ns,
            reason: "interrupted".to_owned(),
            orphaned,
            chunks: 0,
            recorded: 0,
        });
        (
            began_ns,
            Run {
                end,
                ..Run::default()
            },
        )
    }

    fn pauses(begins: &[At], ends: &[At]) -> Vec<(u64, Option<u64>)> {
        let mut runs = Runs::default();
        for (epoch, run) in begins.iter().chain(ends) {
            let epoch = Epoch {
                capture: "c".to_owned(),
                host: "h".to_owned(),
                boot: "b".to_owned(),
                epoch: epoch.to_string(),
            };
            runs.add(Runs(BTreeMap::from([(epoch, run.clone())])));
        }
        let all = runs.pauses();
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
