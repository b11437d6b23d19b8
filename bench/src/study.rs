//! Experiments: a declarative file each, and the measuring code, one file for each kind of measurement.
//!
//! `catalogue` lists the experiments, and `run` executes them in interleaved repetitions (A B C C B A …), so that other
//! work on the machine affects all series. Each run is in a lab of its own.

mod balance;
mod capture;
pub mod catalogue;
mod complete;
mod contenders;
mod ddos;
pub mod definition;
mod demands;
mod disk;
mod drops;
mod frames;
mod generators;
mod guard;
mod idle;
mod owners;
mod pdump;
mod program_tests;
mod programs;
mod read;
mod rfc2544;
pub mod run;
mod slow;
mod store;

use trawl_sys::Result;

use crate::harness::Bench;
use crate::model::{Agreement, Experiment, Finding, Interval};
use crate::outcome::{Measured, Outcome, Stop, percent};
use crate::series::{named, unknown};
use definition::Space;

/// One series at one x value, and the function that measures it once.
pub struct Case {
    pub series: String,
    pub x: f64,
    pub run: Box<dyn Fn(&Bench) -> Outcome>,
}

impl Case {
    pub fn new(series: &str, x: f64, run: impl Fn(&Bench) -> Outcome + 'static) -> Self {
        Self { series: series.to_owned(), x, run: Box::new(run) }
    }

    /// Makes a case for each series of an experiment at each x value.
    pub fn each<M: Fn(&Bench) -> Outcome + 'static>(
        space: &Space,
        axis: &str,
        mut measuring: impl FnMut(&str, f64) -> Result<M>,
    ) -> Result<Vec<Self>> {
        let xs = space.numbers(axis)?;
        let mut cases = Vec::new();
        for series in space.names("series")? {
            for &x in &xs {
                cases.push(Self::new(&series, x, measuring(&series, x)?));
            }
        }
        Ok(cases)
    }
}

/// Statements about results, each of which holds or does not.
#[derive(Default)]
pub struct Statements {
    pub held: Vec<String>,
    pub broken: Vec<String>,
}

impl Statements {
    pub fn check(&mut self, text: String, holds: bool) {
        if holds { self.held.push(text) } else { self.broken.push(text) }
    }

    pub fn agreement(&self) -> Agreement {
        match (self.held.is_empty(), self.broken.is_empty()) {
            (true, true) => Agreement::NotMeasured,
            (false, true) => Agreement::Yes,
            (true, false) => Agreement::No,
            (false, false) => Agreement::Partly,
        }
    }
}

/// Returns the finding of an experiment whose statements are aims.
pub fn of_aims(statements: &Statements, shows: &[String]) -> Finding {
    Finding {
        agrees: statements.agreement(),
        sentence: match (statements.held.is_empty(), statements.broken.is_empty()) {
            (true, true) => String::new(),
            (false, true) => "All aims are reached.".to_owned(),
            (_, false) => format!("Below its aim here: {}.", statements.broken.join("; ")),
        },
        shows: shows.join("; "),
    }
}

/// Form of a comparison between two series.
#[derive(Clone, Copy)]
pub enum Comparison {
    /// Ratio of rates; the aim is at least 1.
    Faster,
    /// Share in per cent.
    Share,
    /// Difference in this unit.
    More(&'static str),
}

/// Compares series by the values of the same repetitions, at each x value.
pub fn compared(experiment: &Experiment, pairs: &[(&str, &str)], metric: &str, comparison: Comparison) -> Finding {
    let xs = experiment.xs();
    let (mut shows, mut behind) = (Vec::new(), 0);
    for (ours, theirs) in pairs {
        for &x in &xs {
            let figures = experiment.pairs(ours, theirs, metric, x).into_iter();
            let figures = figures.map(|(a, b)| match comparison {
                Comparison::Faster => a / b,
                Comparison::Share => a / b * 100.0,
                Comparison::More(_) => a - b,
            });
            let Some(Interval { median, low, high, .. }) = Interval::of(figures) else {
                continue;
            };
            behind += usize::from(median < 1.0);
            let at = match xs.len() {
                1 => String::new(),
                _ => format!(", {x} {}", experiment.definition.x.label),
            };
            shows.push(match comparison {
                Comparison::Faster => {
                    format!("{ours}{at}: {median:.2} ({low:.2} to {high:.2}) times {theirs}")
                }
                Comparison::Share => {
                    format!("{ours}{at}: {median:.1} % ({low:.1} to {high:.1}) of {theirs}")
                }
                Comparison::More(unit) => {
                    format!("{ours}{at}: {median:.0} ({low:.0} to {high:.0}) {unit} more than {theirs}")
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
        sentence: if shows.is_empty() {
            String::new()
        } else {
            "No study publishes a figure to compare with.".to_owned()
        },
        shows: shows.join("; "),
    }
}
