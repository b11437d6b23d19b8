//! What follows from single runs: medians, and comparisons inside a repetition.

use serde::Serialize;

use super::mechanism::{Mechanism, Run};

/// The middle of several figures and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    pub(super) fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        Some(Self { median, min, max })
    }
}

/// One mechanism over all repetitions.
#[derive(Clone, Debug, Serialize)]
pub struct Median {
    pub mechanism: &'static str,
    pub runs: usize,
    pub sent_per_second: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_per_second: Option<Spread>,
    /// Of the rates at which frames went through, compared with the bare drop of the same repetition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub through_of_bare: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_time_of_bare: Option<Spread>,
    /// The recorded rate compared with the bare drop's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_of_bare: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture_cpu: Option<Spread>,
}

impl Median {
    pub(super) fn of(mechanism: &'static str, runs: &[Run]) -> Option<Self> {
        let own = || runs.iter().filter(|run| run.mechanism == mechanism);
        Some(Self {
            mechanism,
            runs: own().count(),
            sent_per_second: Spread::of(own().map(|run| run.sent_per_second))?,
            recorded_per_second: Spread::of(own().filter_map(|run| run.recorded_per_second)),
            through_of_bare: Spread::of(own().filter_map(|run| run.through_of_bare)),
            cpu_time_of_bare: Spread::of(own().filter_map(|run| run.cpu_time_of_bare)),
            recorded_of_bare: Spread::of(own().filter_map(|run| run.recorded_of_bare)),
            missing: Spread::of(
                own()
                    .filter_map(|run| run.missing)
                    .map(|count| count as f64),
            ),
            capture_cpu: Spread::of(own().filter_map(|run| run.capture_cpu)),
        })
    }
}

/// What a group of runs says of trawl.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Findings {
    /// Nanoseconds a packet that trawl adds to the XDP path, from the medians. Only frames sent as fast as they go tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added_ns: Option<f64>,
    /// The same for recording by a tracing program, beside an XDP program without a hook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing_added_ns: Option<f64>,
    /// Packets missing in trawl's files, in all repetitions together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<u64>,
    /// trawl's recorded rate over tcpdump's, from the medians.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_tcpdump: Option<f64>,
}

impl Findings {
    pub(super) fn of(runs: &[Run], at_full_speed: bool) -> Self {
        let median = |mechanism: Mechanism| Median::of(mechanism.name(), runs);
        let bare = median(Mechanism::Bare);
        let trawl = median(Mechanism::Trawl);
        let tcpdump = median(Mechanism::Tcpdump);
        let traced = median(Mechanism::Traced);
        let nanoseconds = |one: &Median| 1e9 / one.sent_per_second.median;
        let added = |one: &Option<Median>| {
            let (bare, one) = bare.as_ref().zip(one.as_ref())?;
            at_full_speed.then(|| nanoseconds(one) - nanoseconds(bare))
        };
        let recorded = |one: Option<&Median>| one?.recorded_per_second.map(|rate| rate.median);
        Self {
            added_ns: added(&trawl),
            tracing_added_ns: added(&traced),
            missing: trawl.as_ref().map(|_| {
                let own = runs
                    .iter()
                    .filter(|run| run.mechanism == Mechanism::Trawl.name());
                own.filter_map(|run| run.missing).sum()
            }),
            of_tcpdump: recorded(trawl.as_ref())
                .zip(recorded(tcpdump.as_ref()))
                .filter(|(_, tcpdump)| *tcpdump > 0.0)
                .map(|(trawl, tcpdump)| trawl / tcpdump),
        }
    }
}

/// Compares each run with the bare drop of its own repetition.
pub(super) fn relate(runs: &mut [Run]) {
    let bare: Vec<(u32, f64, f64)> = runs
        .iter()
        .filter(|run| run.mechanism == Mechanism::Bare.name())
        .map(|run| (run.repetition, run.sent_per_second, run.sent_per_cpu_second))
        .collect();
    for run in runs
        .iter_mut()
        .filter(|run| run.mechanism != Mechanism::Bare.name())
    {
        let Some((_, base, cpu_base)) = bare
            .iter()
            .find(|(repetition, ..)| *repetition == run.repetition)
        else {
            continue;
        };
        run.through_of_bare = Some(run.sent_per_second / base);
        run.cpu_time_of_bare = Some(run.sent_per_cpu_second / cpu_base);
        run.recorded_of_bare = run.recorded_per_second.map(|rate| rate / base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mechanism: Mechanism, repetition: u32, rate: f64, recorded: Option<u64>) -> Run {
        Run {
            recorded,
            recorded_per_second: recorded.map(|count| count as f64),
            missing: recorded.map(|count| 100 - count),
            ..Run::bare(mechanism, repetition, 100, 1.0, rate)
        }
    }

    #[test]
    fn the_median_is_the_middle_one_or_between_the_two() {
        let spread = |figures: &[f64]| Spread::of(figures.iter().copied());
        assert_eq!(spread(&[]), None);
        assert_eq!(
            spread(&[3.0, 1.0, 9.0]),
            Some(Spread {
                median: 3.0,
                min: 1.0,
                max: 9.0
            })
        );
        assert_eq!(spread(&[4.0, 2.0]).map(|s| s.median), Some(3.0));
    }

    #[test]
    fn runs_are_compared_inside_their_repetition() {
        let mut runs = [
            run(Mechanism::Bare, 1, 100.0, None),
            run(Mechanism::Trawl, 1, 50.0, Some(40)),
            run(Mechanism::Bare, 2, 200.0, None),
            run(Mechanism::Trawl, 2, 50.0, Some(100)),
            run(Mechanism::Trawl, 3, 50.0, Some(100)),
        ];
        relate(&mut runs);
        assert_eq!(runs[1].through_of_bare, Some(0.5));
        assert_eq!(runs[1].recorded_of_bare, Some(0.4));
        assert_eq!(runs[3].through_of_bare, Some(0.25));
        // Its bare drop did not run.
        assert_eq!(runs[4].through_of_bare, None);
        let findings = Findings::of(&runs, true);
        assert_eq!(findings.missing, Some(60));
        assert_eq!(findings.of_tcpdump, None);
        let added = findings.added_ns.expect("both ran");
        assert!((added - (1e9 / 50.0 - 1e9 / 150.0)).abs() < 1.0, "{added}");
        assert_eq!(findings.tracing_added_ns, None);
        assert!(Findings::of(&runs, false).added_ns.is_none());
        let traced = [runs[0].clone(), run(Mechanism::Traced, 1, 25.0, Some(100))];
        let added = Findings::of(&traced, true).tracing_added_ns;
        assert!((added.expect("both ran") - (1e9 / 25.0 - 1e9 / 100.0)).abs() < 1.0);
    }
}
