//! Experiments: a declarative file each, and the measuring code, one file for each kind of measurement.
//!
//! `catalogue` lists the experiments, and `run` executes them in interleaved repetitions (A B C C B A …), so that other work
//! on the machine affects all series. Each run is in a lab of its own.

mod balance;
mod capture;
pub mod catalogue;
mod contenders;
mod ddos;
pub mod definition;
mod demands;
mod disk;
mod drops;
mod generators;
mod guard;
mod pdump;
mod programs;
mod read;
mod rfc2544;
pub mod run;
mod store;

use std::collections::BTreeMap;
use std::path::PathBuf;

use trawl_sys::Error;

use crate::hosts::Hosts;
use crate::model::{Agreement, Claim, CpuUse, Experiment, Finding, Interval};
use crate::peers::{Absent, Peers};
use definition::Space;

/// Environment of the measuring code.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The program to measure.
    pub trawl: PathBuf,
    /// Directory for captures; each is removed after it was counted.
    pub scratch: PathBuf,
    pub peers: Peers,
    /// Hosts for captures and traffic, if not this one.
    pub hosts: Option<Hosts>,
    pub sender_cpu: usize,
    pub capture_cpu: usize,
}

/// Function that measures once.
pub type Measuring = Box<dyn Fn(&Bench) -> Result<Measured, Stop>>;

/// One series at one x value, and the function that measures it once.
pub struct Case {
    pub series: String,
    pub x: f64,
    pub run: Measuring,
}

impl Case {
    /// Makes a case for each series of an experiment at each x value.
    pub fn each(
        space: &Space,
        axis: &str,
        mut measuring: impl FnMut(&str, f64) -> Result<Measuring, Error>,
    ) -> Result<Vec<Self>, Error> {
        let xs = space.numbers(axis)?;
        let mut cases = Vec::new();
        for series in space.words("series")? {
            for &x in &xs {
                let run = measuring(&series, x)?;
                let series = series.clone();
                cases.push(Self { series, x, run });
            }
        }
        Ok(cases)
    }
}

/// Finds a series in a table of names.
pub fn named<T: Copy>(
    series: &str,
    known: &[(&'static str, T)],
) -> Result<(&'static str, T), Error> {
    let found = known.iter().find(|(name, _)| *name == series);
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        Error::usage(
            format!("series {series:?}"),
            format!("known are {}", names.join("; ")),
        )
    })
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.series, self.x)
    }
}

/// Results of one run.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub values: BTreeMap<&'static str, f64>,
    pub sent: Option<u64>,
    pub expected: Option<u64>,
    pub recorded: Option<u64>,
    pub claim: Option<Claim>,
    pub seconds: f64,
    pub memory_bytes: Option<u64>,
    /// CPU use in the measured time, and the reason for a disturbance; `None`: the run as a whole counts.
    pub cpus: Option<(Vec<CpuUse>, Option<String>)>,
}

/// Reason for a missing result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// This host, or its installed software, cannot run it.
    NotHere(String),
    Failed(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<Absent> for Stop {
    fn from(absent: Absent) -> Self {
        Self::NotHere(absent.message)
    }
}

/// The measuring half of an experiment.
pub trait Measure: Sync {
    fn cases(&self, space: &Space, bench: &Bench) -> Result<Vec<Case>, Error>;

    /// Compares the results with the study's.
    fn judge(&self, experiment: &Experiment) -> Finding;
}

/// Form of a comparison between two series.
#[derive(Clone, Copy, Debug)]
pub enum Comparison {
    /// Ratio of rates; the aim is at least 1.
    Faster,
    /// Share in per cent.
    Share,
    /// Difference in this unit.
    More(&'static str),
}

/// Compares series by the values of the same repetitions, at each x value.
pub fn compared(
    experiment: &Experiment,
    pairs: &[(&str, &str)],
    metric: &str,
    comparison: Comparison,
) -> Finding {
    let mut xs: Vec<f64> = experiment.points.iter().map(|point| point.x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let (mut shows, mut behind) = (Vec::new(), 0);
    for (ours, theirs) in pairs {
        for &x in &xs {
            let figures = experiment.pairs(ours, theirs, metric, x).into_iter();
            let figures = figures.map(|(a, b)| match comparison {
                Comparison::Faster => a / b,
                Comparison::Share => a / b * 100.0,
                Comparison::More(_) => a - b,
            });
            let Some(Interval {
                median, low, high, ..
            }) = Interval::of(figures)
            else {
                continue;
            };
            behind += usize::from(median < 1.0);
            let place = match xs.len() {
                1 => String::new(),
                _ => format!(", {x} {}", experiment.definition.x.label),
            };
            shows.push(match comparison {
                Comparison::Faster => {
                    format!("{ours}{place}: {median:.2} ({low:.2} to {high:.2}) times {theirs}")
                }
                Comparison::Share => {
                    format!("{ours}{place}: {median:.1} % ({low:.1} to {high:.1}) of {theirs}")
                }
                Comparison::More(unit) => {
                    format!("{ours}{place}: {median:.0} ({low:.0} to {high:.0}) {unit} more than {theirs}")
                }
            });
        }
    }
    let agrees = match (comparison, shows.len(), behind) {
        (Comparison::Faster, all, 0) if all > 0 => Agreement::Yes,
        (Comparison::Faster, all, behind) if all > behind => Agreement::Partly,
        (Comparison::Faster, all, _) if all > 0 => Agreement::No,
        _ => Agreement::NotMeasured,
    };
    Finding {
        agrees,
        sentence: match shows.is_empty() {
            true => String::new(),
            false => "No study publishes a figure to compare with.".to_owned(),
        },
        shows: shows.join("; "),
    }
}
