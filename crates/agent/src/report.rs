//! What a host says of itself: its captures, their phases and accounts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::desired::{Capture, Labels};
use crate::policy::Refusal;

/// What became of the packets of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub seen: u64,
    pub filtered_out: u64,
    pub recorded: u64,
    /// By reason.
    #[serde(default)]
    pub lost: BTreeMap<String, u64>,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.seen += other.seen;
        self.filtered_out += other.filtered_out;
        self.recorded += other.recorded;
        for (reason, count) in &other.lost {
            *self.lost.entry(reason.clone()).or_default() += count;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Starting,
    Running,
    Stopping,
    /// It failed, and is started again after a while.
    Waiting,
    /// It reached its bounds.
    Finished,
    /// The policy does not allow it.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureReport {
    /// As it is desired; as it runs where it is desired no more.
    #[serde(flatten)]
    pub capture: Capture,
    pub phase: Phase,
    /// How often it was started.
    pub starts: u64,
    pub failures: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
    /// Why it failed the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// All starts together.
    pub account: Counts,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    pub host: String,
    #[serde(default)]
    pub labels: Labels,
    /// Of the desired state that is followed.
    pub revision: u64,
    pub time_ns: u64,
    pub trawl: String,
    /// Why the latest desired state is not followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The agent ends, and its captures with it.
    #[serde(default)]
    pub stopping: bool,
    pub captures: Vec<CaptureReport>,
}
