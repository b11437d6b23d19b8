//! The summary of a capture: the account of each hook point, and of all together.

use serde::{Deserialize, Serialize};
use trawl_pipeline::account::Account;

use crate::event::{Event, Gap};
use crate::options::Stamps;
use crate::taps::pcap::LibraryFigures;
use crate::trigger;

/// One hook point's part of a summary.
#[derive(Clone, Debug, Serialize)]
pub struct PointSummary {
    pub interface: String,
    pub tap: &'static str,
    pub hook: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub mode: &'static str,
    #[serde(flatten)]
    pub account: Account,
    /// What the library that reads the packets has counted itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<LibraryFigures>,
    /// Recorded with fewer bytes than the packet had.
    pub truncated: u64,
    /// Recorded with the network card's time stamp.
    #[serde(skip_serializing_if = "is_zero")]
    pub hardware_stamped: u64,
    /// How often the clock was read for time stamps.
    pub time: Stamps,
    /// How wrong a time stamp is at most where it was not read for each: the longest time between two readings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_error_max_ns: Option<u64>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// An output after the first one, whose account is the capture's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputSummary {
    pub name: String,
    /// Recorded packets that are in it, and that are not.
    pub recorded: u64,
    pub lost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// That is a failure of the capture.
    #[serde(skip)]
    pub failed: bool,
    /// The losses are packets that these CPUs could not compress in time.
    #[serde(skip)]
    pub too_few_cpus: Option<usize>,
}

/// The whole capture's account, and each hook point's.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    #[serde(flatten)]
    pub total: Account,
    pub seconds: f64,
    /// Why the capture ended.
    pub ended: String,
    pub interfaces: Vec<PointSummary>,
    /// What became of the outputs beside the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputSummary>,
    /// The events that a capture waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triggers: Option<trigger::Report>,
    /// When packets went by unseen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<Gap>,
    /// What the capture had to say on the way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<Event>,
}

impl Summary {
    /// Returns the account of each hook point by its interface.
    pub fn accounts(&self) -> impl Iterator<Item = (&str, &Account)> + Clone {
        let points = self.interfaces.iter();
        points.map(|point| (point.interface.as_str(), &point.account))
    }

    /// Counts packets of a hook point as lost that were recorded and are not where they were to go.
    pub fn take_back(&mut self, point: usize, reason: &'static str, packets: u64) {
        self.interfaces[point].account.take_back(reason, packets);
        self.total.take_back(reason, packets);
    }
}
