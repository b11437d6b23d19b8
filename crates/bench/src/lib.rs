//! Experiments: a declarative file each, measuring code, and one report model.
//!
//! `catalogue` lists the experiments, `run` executes them in interleaved repetitions (A B C C B A …), so that other work on
//! the machine affects all series, `store` keeps the results, and `report` makes a page of them. The measuring code is in
//! `measure`; it drives captures, senders and hosts in the other modules. Each run is in a lab of its own.

mod capture;
pub mod catalogue;
pub mod definition;
pub mod hosts;
pub mod machine;
mod made_up;
mod measure;
pub mod model;
pub mod peers;
mod process;
pub mod report;
pub mod run;
mod scratch;
pub mod store;
mod traffic;
pub mod xsk;

pub use scratch::clean_up;

use std::collections::BTreeMap;
use std::path::PathBuf;

use trawl_sys::Error;

use definition::Space;
use model::{Claim, Experiment, Finding};
use peers::{Absent, Peers};

/// Environment of the measuring code.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The program to measure.
    pub trawl: PathBuf,
    /// Directory for captures; each is removed after it was counted.
    pub scratch: PathBuf,
    pub peers: Peers,
    /// Hosts for captures and traffic, if not this one.
    pub hosts: Option<hosts::Hosts>,
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
fn named<T: Copy>(series: &str, known: &[(&'static str, T)]) -> Result<(&'static str, T), Error> {
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
    pub cpus: Option<(Vec<model::CpuUse>, Option<String>)>,
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
