//! The result of one run, or the reason why it is missing.

use std::collections::BTreeMap;

use trawl_sys::Error;

use crate::model::{Claim, CpuUse};

/// Result of one run.
pub type Outcome = Result<Measured, Stop>;

/// Results of one run.
#[derive(Default)]
pub struct Measured {
    pub values: BTreeMap<&'static str, f64>,
    pub sent: Option<u64>,
    pub expected: Option<u64>,
    pub recorded: Option<u64>,
    pub claim: Option<Claim>,
    pub seconds: f64,
    pub memory_bytes: Option<u64>,
    /// CPU use in the measured time, and the reason for a disturbance; `None` if the values of the whole run count.
    pub cpus: Option<(Vec<CpuUse>, Option<String>)>,
}

/// Reason for a missing result.
#[derive(Debug)]
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

/// Returns a part in per cent.
pub fn percent(part: f64, whole: f64) -> f64 {
    part / whole.max(f64::EPSILON) * 100.0
}
