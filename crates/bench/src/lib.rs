//! Experiments: a declarative file each, measuring code, and one report model.
//!
//! `catalogue` lists the experiments, `run` takes them through interleaved repetitions (A B C C B A …), so that other
//! work of the machine falls on all series, `store` keeps the figures, and `report` makes a page of them. The measuring
//! code is in `measure`; it drives captures, senders and hosts in the other modules. Each run is in a lab of its own.

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

/// What measuring code is given.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The program to measure.
    pub trawl: PathBuf,
    /// Where captures are written; each is removed after it was counted.
    pub scratch: PathBuf,
    pub peers: Peers,
    /// Captures and traffic are on other hosts.
    pub hosts: Option<hosts::Hosts>,
    pub sender_cpu: usize,
    pub capture_cpu: usize,
}

/// Measures once.
pub type Measuring = Box<dyn Fn(&Bench) -> Result<Measured, Stop>>;

/// One series at one place of the x axis, and how to measure it once.
pub struct Case {
    pub series: String,
    pub x: f64,
    pub run: Measuring,
}

impl Case {
    /// A case for each series of an experiment at each place of its x axis.
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

/// What stands for a series in a table of names.
fn named<T: Copy>(series: &str, known: &[(&'static str, T)]) -> Result<(&'static str, T), Error> {
    let found = known.iter().find(|(name, _)| *name == series);
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        Error::usage(
            format!("series {series:?}"),
            format!("there are {}", names.join("; ")),
        )
    })
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.series, self.x)
    }
}

/// What one run gave.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub values: BTreeMap<&'static str, f64>,
    pub sent: Option<u64>,
    pub expected: Option<u64>,
    pub recorded: Option<u64>,
    pub claim: Option<Claim>,
    pub seconds: f64,
    pub memory_bytes: Option<u64>,
    /// What the CPUs did in the time that counts, and what disturbed it; `None`: the run as a whole counts.
    pub cpus: Option<(Vec<model::CpuUse>, Option<String>)>,
}

/// Why there is no figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// This host, or what is installed on it, cannot do it.
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

    /// What the figures say beside what the study found.
    fn judge(&self, experiment: &Experiment) -> Finding;
}
