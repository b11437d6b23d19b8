//! A host's report: its captures, their phases and counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use trawl_sys::names::covers;

use super::desired::{Capture, Labels};
use super::policy::{Refusal, Role};

/// Packet counts of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub seen: u64,
    pub filtered_out: u64,
    pub recorded: u64,
    /// Losses by reason.
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
    /// The capture failed, and waits for its next start.
    Waiting,
    /// The capture ended at its bounds.
    Finished,
    /// The policy does not allow the capture.
    Refused,
    /// The phase that an operator shows for a capture whose agent has stopped reporting, or reports a phase that this
    /// trawl does not know.
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureReport {
    /// The capture as desired, or as running if it is no longer desired.
    #[serde(flatten)]
    pub capture: Capture,
    /// Public key of the operator who requested it; absent if a file did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    pub phase: Phase,
    /// Number of starts.
    pub starts: u64,
    pub failures: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
    /// Reason for the last failure; absent once the capture runs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Counts over all starts.
    pub account: Counts,
    /// The last event, if one has happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<RateEvent>,
}

/// A second with at least `event_rate` packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateEvent {
    pub time_ns: u64,
    pub packets_per_second: u64,
}

/// An event of a host, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostEvent {
    pub time_ns: u64,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IncidentPhase {
    /// The window has not ended, or its last packets are being written.
    Freezing,
    /// The packets are protected from removal, and are being stored.
    Frozen,
    Stored,
    Failed,
    /// A phase of a newer agent.
    #[serde(other)]
    Unknown,
}

/// State of an incident on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncidentReport {
    pub id: String,
    pub phase: IncidentPhase,
    #[serde(flatten)]
    pub frozen: Frozen,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The frozen chunks of an incident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    pub chunks: u64,
    pub packets: u64,
    pub bytes: u64,
    pub frozen_ns: u64,
}

/// An operator of a host, and the rights that its policy gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// The public key.
    pub key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Names of the roles, of which a newer host may know more.
    pub roles: Vec<String>,
    /// Names of the captures that the operator may start and end; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captures: Option<Vec<String>>,
}

impl Rights {
    /// Returns true if the operator may start and end captures of this name.
    pub fn may_start(&self, capture: &str) -> bool {
        let is_named = self.captures.as_ref().is_none_or(|names| names.iter().any(|one| covers(one, capture)));
        is_named && self.roles.iter().any(|role| role == Role::Start.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    pub host: String,
    #[serde(default)]
    pub labels: Labels,
    /// Revision of the current desired state: the latest of all operators.
    pub revision: u64,
    /// Revision of each operator's state, by public key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub revisions: BTreeMap<String, u64>,
    /// The operators whose commands the host follows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<Rights>,
    pub time_ns: u64,
    pub trawl: String,
    /// Reason why the latest desired state is not followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Set while the agent and its captures are ending.
    #[serde(default)]
    pub stopping: bool,
    pub captures: Vec<CaptureReport>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incidents: Vec<IncidentReport>,
    /// The latest causes of slow connections, each one once as long as it lasts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow_events: Vec<HostEvent>,
    /// Public key (X25519) with which the agent encrypts its answers to questions for packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers_key: Option<String>,
}
