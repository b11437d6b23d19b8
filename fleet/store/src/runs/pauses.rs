//! Times in which a host recorded nothing although it should have: after a killed capture, or without its agent.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::{Began, Moment, Run, Runs};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pause {
    pub host: String,
    pub capture: String,
    /// Last time at which the capture is known to have run, in nanoseconds since 1970.
    pub from_ns: u64,
    /// Start of the next run; absent if there is none.
    pub to_ns: Option<u64>,
}

/// Difference between two clocks from which the wall clock counts as set.
const STEP_NS: i128 = 1_000_000_000;

/// A run, its beginning, and the host's start before it.
type Ran<'a> = (&'a str, &'a Began, &'a Run);

/// Last known time of a run.
#[derive(Clone, Copy)]
struct Last<'a> {
    /// The host's start.
    boot: &'a str,
    moment: Option<Moment>,
    ns: u64,
    /// Set if the run was killed or is still running, so that only its chunks show how long it ran.
    is_open: bool,
    /// Set if the run ended with its agent.
    orphaned: bool,
}

impl<'a> Last<'a> {
    fn of(boot: &'a str, begin: &Began, run: &Run) -> Self {
        if let Some(end) = &run.end {
            return Self {
                boot,
                moment: Moment::of(end.ns, end.boot_ns),
                ns: end.ns,
                is_open: false,
                orphaned: end.orphaned,
            };
        }
        let moment = run.alive.max(Moment::of(begin.ns, begin.boot_ns));
        Self {
            boot,
            moment,
            ns: run.alive_ns.max(moment.map_or(begin.ns, |moment| moment.ns)),
            is_open: true,
            orphaned: false,
        }
    }

    /// Returns the moments of this time and of the other one, if the host was not restarted between them.
    fn with(&self, boot: &str, other: Option<Moment>) -> Option<(Moment, Moment)> {
        (self.boot == boot).then(|| self.moment.zip(other)).flatten()
    }

    fn is_after(&self, other: &Self) -> bool {
        match self.with(other.boot, other.moment) {
            Some((own, other)) => own > other,
            None => self.ns > other.ns,
        }
    }

    /// Returns the start of the pause before a run with this beginning; `None` if it follows without a pause. If the
    /// wall clock was set meanwhile, the start is by the clock of the pause's end.
    fn pause_before(&self, boot: &str, begin: &Began) -> Option<u64> {
        let next = Moment::of(begin.ns, begin.boot_ns);
        if let Some((own, next)) = self.with(boot, next) {
            let passed = next.boot_ns.checked_sub(own.boot_ns)?;
            let by_wall = i128::from(next.ns) - i128::from(own.ns);
            if (by_wall - i128::from(passed)).abs() >= STEP_NS {
                return Some(next.ns.saturating_sub(passed));
            }
            // The last packets of a killed run are stamped by the wall clock alone, which was set back since.
            if self.ns > next.ns {
                return Some(own.ns);
            }
        }
        (self.ns < begin.ns).then_some(self.ns)
    }
}

impl Runs {
    /// Returns the pauses of each host's captures, the oldest first.
    pub fn pauses(&self) -> Vec<Pause> {
        let mut captures: BTreeMap<(&str, &str), Vec<Ran<'_>>> = BTreeMap::new();
        // The first run after each start of a host.
        let mut boots: HashMap<&str, u64> = HashMap::new();
        for (epoch, run) in &self.0 {
            if let Some(begin) = &run.begin {
                let name = (epoch.host.as_str(), epoch.capture.as_str());
                let boot = epoch.boot.as_str();
                captures.entry(name).or_default().push((boot, begin, run));
                let first = boots.entry(boot).or_insert(begin.ns);
                *first = begin.ns.min(*first);
            }
        }
        let mut pauses = Vec::new();
        for ((host, capture), mut runs) in captures {
            runs.sort_by_key(|(boot, begin, _)| (boots[boot], begin.boot_ns, begin.ns));
            let pause = |from_ns, to_ns| Pause { host: host.to_owned(), capture: capture.to_owned(), from_ns, to_ns };
            // Runs of one capture may overlap: the latest end counts.
            let mut last: Option<Last<'_>> = None;
            for (boot, begin, run) in runs {
                if let Some(last) = last
                    && (last.is_open || last.orphaned || begin.continues)
                    && let Some(from) = last.pause_before(boot, begin)
                {
                    pauses.push(pause(from, Some(begin.ns)));
                }
                let run = Last::of(boot, begin, run);
                last = Some(last.filter(|last| last.is_after(&run)).unwrap_or(run));
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
    use crate::runs::Ended;
    use trawl_spool::key::Epoch;

    type At = (u64, Run);

    fn begin(began_ns: u64, continues: bool) -> At {
        let begin = Some(Began { ns: began_ns, boot_ns: None, continues });
        (began_ns, Run { begin, ..Run::default() })
    }

    fn end(began_ns: u64, ended_ns: u64, orphaned: bool) -> At {
        let end = Some(Ended {
            ns: ended_ns,
            boot_ns: None,
            reason: "interrupted".to_owned(),
            orphaned,
            chunks: 0,
            recorded: 0,
        });
        (began_ns, Run { end, ..Run::default() })
    }

    fn pauses(begins: &[At], ends: &[At]) -> Vec<(u64, Option<u64>)> {
        let mut runs = Runs::default();
        for (epoch, run) in begins.iter().chain(ends) {
            let epoch =
                Epoch { capture: "c".to_owned(), host: "h".to_owned(), boot: "b".to_owned(), epoch: epoch.to_string() };
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
        assert_eq!(pauses(&[first.clone(), later.clone()], &[end(10, 20, false)]), []);
        assert_eq!(pauses(&[first.clone(), later], &[]), [(10, Some(30))]);
        // An agent that starts its capture again.
        let ends = [end(10, 20, false)];
        assert_eq!(pauses(&[first.clone(), again.clone()], &ends), [(20, Some(30))]);
        // An agent that is gone.
        let ends = [end(10, 20, true), end(30, 40, true)];
        assert_eq!(pauses(&[first.clone(), again], &ends), [(20, Some(30)), (40, None)]);
        // A run that is still running, and one that another run overlaps.
        assert_eq!(pauses(std::slice::from_ref(&first), &[]), []);
        let overlapped = begin(20, true);
        assert_eq!(pauses(&[first, overlapped], &[end(10, 30, false), end(20, 40, false)]), []);
    }

    const SECOND: u64 = 1_000_000_000;
    const HOUR: u64 = 3600 * SECOND;

    /// Returns a run from and to these seconds after the host's start, with the wall clock's lead at both times.
    fn run(from: (u64, u64), to: (u64, u64), is_killed: bool) -> At {
        let moment = |(seconds, lead): (u64, u64)| Moment { boot_ns: seconds * SECOND, ns: seconds * SECOND + lead };
        let (from, to) = (moment(from), moment(to));
        let run = Run {
            begin: Some(Began { ns: from.ns, boot_ns: Some(from.boot_ns), continues: true }),
            end: (!is_killed).then(|| Ended {
                ns: to.ns,
                boot_ns: Some(to.boot_ns),
                reason: "interrupted".to_owned(),
                orphaned: false,
                chunks: 0,
                recorded: 0,
            }),
            alive: Some(to),
            ..Run::default()
        };
        (from.ns, run)
    }

    /// A pause of 5 s is reported as one of 5 s, even if the wall clock was set meanwhile.
    #[test]
    fn pauses_are_as_long_as_they_were() {
        let day = 24 * HOUR;
        let leads = [day, day + HOUR, day - HOUR];
        for is_killed in [false, true] {
            for at in 0..81 {
                let lead = |number: u32| leads[at / 3_usize.pow(number) % 3];
                let first = run((100, lead(0)), (200, lead(1)), is_killed);
                let second = run((205, lead(2)), (300, lead(3)), false);
                let end = 205 * SECOND + lead(2);
                let expected = (end - 5 * SECOND, Some(end));
                assert_eq!(pauses(&[second, first], &[]), [expected], "{at}");
            }
        }
        // Only packets show the last time of a killed run, from before and after its clock was set back.
        for (last, expected) in [(day + 203 * SECOND, 203), (day + HOUR, 200)] {
            let (began, mut first) = run((100, day), (200, day), true);
            first.alive_ns = last;
            let second = run((205, day), (300, day), false);
            let expected = (day + expected * SECOND, Some(day + 205 * SECOND));
            assert_eq!(pauses(&[(began, first), second], &[]), [expected]);
        }
        // Overlapping runs have no pause between them, whatever their clocks say.
        let (first, second) = (run((100, day), (200, day), false), run((150, day + HOUR), (300, day), false));
        assert_eq!(pauses(&[first, second], &[]), []);
    }
}
