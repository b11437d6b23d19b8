//! The summary of a capture: the counters of each hook point, and their sum.

use serde::Serialize;
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::report::TriggerReport;

use crate::event::{Event, Gap, LibraryFigures, OutputSummary, ReaderSummary};
use trawl_plan::options::Stamps;

/// One hook point's part of a summary.
#[derive(Clone, Debug, Serialize)]
pub struct PointSummary {
    pub interface: String,
    pub tap: &'static str,
    pub hook: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub mode: &'static str,
    #[serde(flatten)]
    pub account: PacketAccount,
    /// Statistics of the library that reads the packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<LibraryFigures>,
    /// Packets recorded with fewer bytes than their length.
    pub truncated: u64,
    /// Packets recorded with the network card's time stamp.
    #[serde(skip_serializing_if = "is_zero")]
    pub hardware_stamped: u64,
    /// Source of the time stamps.
    pub time: Stamps,
    /// Maximum error of a time stamp if the clock was not read for each packet: the longest time between two readings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_error_max_ns: Option<u64>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// The counters of the whole capture and of each hook point.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    #[serde(flatten)]
    pub total: PacketAccount,
    pub seconds: f64,
    /// Reason for which the capture ended.
    pub ended: String,
    /// Memory that programs have for records now.
    pub memory_bytes: u64,
    pub interfaces: Vec<PointSummary>,
    /// The outputs after the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputSummary>,
    /// The latest readers of outputs on a socket.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub readers: Vec<ReaderSummary>,
    /// The events of a triggered capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triggers: Option<TriggerReport>,
    /// Periods in which packets passed unseen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<Gap>,
    /// Events during the capture.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<Event>,
}

impl Summary {
    /// Returns the counters of each hook point by its interface.
    pub fn accounts(&self) -> impl Iterator<Item = (&str, &PacketAccount)> + Clone {
        let points = self.interfaces.iter();
        points.map(|point| (point.interface.as_str(), &point.account))
    }

    /// Moves recorded packets of a hook point that no reader was connected for to those not kept.
    pub fn set_not_kept(&mut self, point: usize, packets: u64) {
        self.interfaces[point].account.set_not_kept(packets);
        self.total.set_not_kept(packets);
    }

    /// Moves recorded packets of a hook point that did not reach their output to the losses.
    pub fn take_back(&mut self, point: usize, reason: &'static str, packets: u64) {
        self.interfaces[point].account.take_back(reason, packets);
        self.total.take_back(reason, packets);
    }
}
