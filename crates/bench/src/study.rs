//! The published studies' experiments: a declarative file each, measuring code, one report model.
//!
//! `catalogue` lists them, `run` takes them through interleaved repetitions, `store` keeps what was measured, and
//! `report` makes a page of it. The measuring code is in `measure`, and what it drives in `harness`.

pub mod catalogue;
pub mod definition;
pub mod harness;
pub mod machine;
mod measure;
pub mod model;
pub mod peers;
pub mod report;
pub mod run;
pub mod store;

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
    pub hosts: Option<harness::hosts::Hosts>,
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
