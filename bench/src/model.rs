//! The report model: results of a run of experiments, their conditions, the peers, and the failures. It is the schema
//! of `results.json`; a change of meaning needs a new number in [`SCHEMA`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::study::definition::{Definition, Profile};

pub const SCHEMA: &str = "trawl-bench/1";

/// The contents of `results.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    pub trawl: String,
    /// Time at which the run began, in seconds since 1970.
    pub started_unix: u64,
    pub request: Request,
    pub conditions: Conditions,
    pub peers: Vec<PeerRecord>,
    /// The configuration of each program that is best on this machine.
    #[serde(default)]
    pub configurations: Vec<Tuning>,
    pub experiments: Vec<Experiment>,
    /// True if all requested cases were measured or have a recorded reason.
    pub complete: bool,
}

impl Report {
    pub fn experiment(&self, name: &str) -> Option<&Experiment> {
        self.experiments.iter().find(|one| one.definition.name == name)
    }
}

/// The request: enough for `trawl bench resume`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub experiments: Vec<String>,
    pub profile: Profile,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// Only these of trawl's own series; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taps: Vec<String>,
    /// Only these peers; empty: all installed ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// Set to leave out all peers.
    #[serde(default)]
    pub no_peers: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peer_paths: BTreeMap<String, String>,
    /// File that names the sending and the receiving host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<String>,
    /// Directory for captures during the measurement.
    #[serde(default)]
    pub scratch: String,
}

/// Conditions of the measurement, without which the values mean nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    pub host: String,
    pub cpu: String,
    pub cpus: usize,
    pub memory_bytes: u64,
    pub kernel: String,
    pub hypervisor: bool,
    pub mitigations: BTreeMap<String, String>,
    pub clock_source: String,
    pub load_average: String,
    pub driver: String,
    pub queues: u32,
    pub xdp_mode: String,
    pub trawl_ring: String,
    pub bpf_jit: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRecord {
    pub name: String,
    pub state: PeerState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Instructions to install it, or a version that works.
    pub how_to_get: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl PeerRecord {
    /// Returns its version, or the reason why it is not used.
    pub fn state(&self) -> String {
        let message = self.message.as_deref();
        match self.state {
            PeerState::Installed => self.version.as_deref().unwrap_or("installed").to_owned(),
            PeerState::Missing => {
                format!("{}: {}", message.unwrap_or("not installed"), self.how_to_get)
            }
            PeerState::Unusable => message.unwrap_or_default().to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerState {
    Installed,
    Missing,
    /// Installed, but does not work on this host.
    Unusable,
}

/// One experiment: its definition, every run, and the conclusions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Experiment {
    pub definition: Definition,
    /// The parameters that the runs used.
    pub parameters: BTreeMap<String, String>,
    pub command: String,
    pub runs: Vec<Run>,
    pub points: Vec<Point>,
    pub failures: Vec<Failure>,
    pub finding: Finding,
    pub seconds: f64,
    /// Repetitions for which a quick run had no time.
    #[serde(default)]
    pub repetitions_left_out: u32,
}

/// One series at one x value in one repetition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub series: String,
    pub x: f64,
    pub repetition: u32,
    /// The values of this run by metric.
    pub values: BTreeMap<String, f64>,
    /// Frames that the sending device handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// Number of sent frames that should be recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<u64>,
    /// Counted by reading the file back, or at the device if no file is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    pub seconds: f64,
    pub cpus: Vec<CpuUse>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Reason if this run counts as disturbed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disturbed: Option<String>,
}

/// A mechanism's own counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// True if it contradicts the independent count.
    pub wrong: bool,
}

/// Use of one CPU while frames were sent, in shares of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    pub user: f32,
    pub system: f32,
    pub softirq: f32,
    pub steal: f32,
}

impl CpuUse {
    /// Returns the share of its own work: time that the hypervisor took is not part of it.
    pub fn busy(self) -> f32 {
        self.user + self.system + self.softirq
    }

    /// Returns the mean use of a CPU over runs.
    pub fn mean(runs: &[&Run], cpu: usize) -> Self {
        let used: Vec<&Self> = runs.iter().filter_map(|run| run.cpus.get(cpu)).collect();
        let mean = |share: fn(&Self) -> f32| {
            let sum: f32 = used.iter().map(|used| share(used)).sum();
            sum / used.len().max(1) as f32
        };
        Self {
            user: mean(|cpu| cpu.user),
            system: mean(|cpu| cpu.system),
            softirq: mean(|cpu| cpu.softirq),
            steal: mean(|cpu| cpu.steal),
        }
    }
}

/// A value over all repetitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub series: String,
    pub metric: String,
    pub x: f64,
    pub value: Interval,
    pub disturbed: usize,
}

/// The median and its confidence interval: the range of order statistics that holds the median with at least 95 %
/// confidence, or minimum to maximum for fewer than six repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    pub repetitions: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub series: String,
    pub message: String,
    /// Number of affected runs.
    pub runs: usize,
    /// True if nothing went wrong: this host cannot do it, or the peer is not installed.
    pub expected: bool,
}

/// The experiment's result compared with the study's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub agrees: Agreement,
    /// Result on this machine.
    pub shows: String,
    /// One sentence that relates the two.
    pub sentence: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Agreement {
    Yes,
    Partly,
    No,
    #[default]
    NotMeasured,
}

impl Agreement {
    pub fn of(agrees: bool) -> Self {
        if agrees { Self::Yes } else { Self::No }
    }

    /// Returns the class in the page's style sheet.
    pub fn class(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Partly => "partly",
            Self::No => "no",
            Self::NotMeasured => "soft",
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Partly => "partly",
            Self::No => "no",
            Self::NotMeasured => "not measured",
        }
    }
}

impl Interval {
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().filter(|one| one.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        if count == 0 {
            return None;
        }
        let median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0;
        let outside = ranks_outside(count);
        Some(Self { median, low: sorted[outside], high: sorted[count - 1 - outside], repetitions: count })
    }
}

/// Returns the number of order statistics at each end that can be left out so that the rest holds the median with 95 %.
fn ranks_outside(count: usize) -> usize {
    if count < 6 {
        return 0;
    }
    let mut probability = 0.5_f64.powi(count as i32);
    let mut below = probability;
    let mut outside = 0;
    // Both tails of the binomial distribution together stay below 5 %.
    while below <= 0.025 {
        outside += 1;
        probability *= (count + 1 - outside) as f64 / outside as f64;
        below += probability;
    }
    outside.saturating_sub(1)
}

impl Experiment {
    /// Computes medians over the runs, in the order in which series and metrics are defined.
    pub fn summarise(&mut self) {
        let mut keys: Vec<(String, String, f64)> = Vec::new();
        for run in &self.runs {
            for metric in run.values.keys() {
                let key = (run.series.clone(), metric.clone(), run.x);
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
        let metric_rank = |name: &str| {
            let metrics = &self.definition.metrics;
            metrics.iter().position(|one| one.name == name)
        };
        keys.sort_by(|a, b| {
            (metric_rank(&a.1), &a.1, &a.0).cmp(&(metric_rank(&b.1), &b.1, &b.0)).then(a.2.total_cmp(&b.2))
        });
        self.points = keys
            .into_iter()
            .filter_map(|(series, metric, x)| {
                let own = || self.runs.iter().filter(|run| run.series == series && run.x == x);
                let value = Interval::of(own().filter_map(|run| run.values.get(&metric).copied()))?;
                let disturbed = own().filter(|run| run.disturbed.is_some()).count();
                Some(Point { series, metric, x, value, disturbed })
            })
            .collect();
    }

    /// Returns the points of one series, from left to right.
    pub fn line(&self, series: &str, metric: &str) -> Vec<&Point> {
        let own = |point: &&Point| point.series == series && point.metric == metric;
        self.points.iter().filter(own).collect()
    }

    /// Returns the x values, from left to right.
    pub fn xs(&self) -> Vec<f64> {
        let mut xs: Vec<f64> = self.runs.iter().map(|run| run.x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        xs
    }

    /// Returns the lowest and the highest x value.
    pub fn ends(&self) -> (f64, f64) {
        let xs = self.xs();
        let end = |x: Option<&f64>| x.copied().unwrap_or_default();
        (end(xs.first()), end(xs.last()))
    }

    /// Returns the median of a series at an x value.
    pub fn median(&self, series: &str, metric: &str, x: f64) -> Option<f64> {
        let line = self.line(series, metric);
        let point = line.iter().find(|point| point.x == x);
        point.map(|point| point.value.median)
    }

    /// Lists the medians of all series at an x value.
    pub fn listed(&self, metric: &str, x: f64, unit: &str) -> String {
        let of = |series: String| {
            let median = self.median(&series, metric, x)?;
            Some(format!("{series} {median:.2}{unit}"))
        };
        let all: Vec<String> = self.series().into_iter().filter_map(of).collect();
        all.join(", ")
    }

    /// Returns the measured series, in the order of their first run.
    pub fn series(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for run in &self.runs {
            if !names.contains(&run.series) {
                names.push(run.series.clone());
            }
        }
        names
    }

    /// Returns the number of runs that other work on the machine disturbed.
    pub fn disturbed_runs(&self) -> usize {
        self.runs.iter().filter(|run| run.disturbed.is_some()).count()
    }

    /// Returns the ratios of one series to another within the same repetition and x value.
    pub fn paired(&self, ours: &str, theirs: &str, metric: &str, x: f64) -> Option<Interval> {
        let pairs = self.pairs(ours, theirs, metric, x);
        let ratios = pairs.iter().filter(|(_, b)| *b > 0.0).map(|(a, b)| a / b);
        Interval::of(ratios)
    }

    /// Returns the values of two series within the same repetition and x value.
    pub fn pairs(&self, ours: &str, theirs: &str, metric: &str, x: f64) -> Vec<(f64, f64)> {
        let own = |name: &str, repetition: u32| {
            self.runs
                .iter()
                .find(|run| run.series == name && run.x == x && run.repetition == repetition)?
                .values
                .get(metric)
                .copied()
        };
        let most = self.runs.iter().map(|run| run.repetition).max();
        (1..=most.unwrap_or(0))
            .filter_map(|repetition| Some((own(ours, repetition)?, own(theirs, repetition)?)))
            .collect()
    }
}

/// The configuration chosen for a program, and all that were tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    pub program: String,
    pub best: String,
    pub tried: Vec<Tried>,
}

impl Tuning {
    /// Returns the choice and the rejected configurations, with their rates.
    pub fn text(&self) -> String {
        let rate = |one: &Tried| format!("{} {:.2}", one.configuration, one.mpps);
        let all: Vec<String> = self.tried.iter().map(rate).collect();
        format!("{}, the best of {} (Mpps)", self.best, all.join("; "))
    }
}

/// A configuration, and its rate in the short round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    pub configuration: String,
    pub mpps: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_holds_the_median_with_its_confidence() {
        let interval = |count: u32| Interval::of((1..=count).map(f64::from)).expect("not empty");
        assert_eq!(Interval::of([]), None);
        assert_eq!((interval(1).low, interval(1).high), (1.0, 1.0));
        assert_eq!((interval(5).low, interval(5).high), (1.0, 5.0));
        // Textbook ranks for the 95 % interval of a median: 1 and 6 of 6, 1 and 8 of 8, 2 and 9 of 10, 6 and 15 of 20.
        assert_eq!((interval(6).low, interval(6).high), (1.0, 6.0));
        assert_eq!((interval(8).low, interval(8).high), (1.0, 8.0));
        assert_eq!((interval(10).low, interval(10).high), (2.0, 9.0));
        assert_eq!((interval(20).low, interval(20).high), (6.0, 15.0));
        assert_eq!(interval(4).median, 2.5);
    }
}
