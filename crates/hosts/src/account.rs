//! The summary of all hosts: their packets, and the accuracy of their clocks.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::report::StageReport;
use trawl_pipeline::{WriteOutcome, reason_of_failure};

/// Offset of a host's clock from this one's, and its uncertainty: half of the round-trip time of the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Clock {
    pub offset_ns: i64,
    pub error_ns: u64,
}

impl Clock {
    /// Computes the offset from a reading by the host between these two times.
    pub fn between(asked: u64, answered: u64, there: u64) -> Self {
        let error_ns = answered.saturating_sub(asked).div_ceil(2);
        Self { offset_ns: (i128::from(there) - i128::from(asked + error_ns)) as i64, error_ns }
    }

    /// Returns the more precise offset if both agree, else the later one: one of the clocks was set.
    pub fn or_better(self, later: Self) -> Self {
        let agree = self.offset_ns.abs_diff(later.offset_ns) <= self.error_ns + later.error_ns;
        if agree && self.error_ns <= later.error_ns { self } else { later }
    }
}

/// Loss reason of packets that arrived after the limit of -c was reached.
const AFTER_LAST: &str = "after_the_last_wanted";

/// One host's part of the summary.
#[derive(Debug, Serialize)]
pub(crate) struct HostReport {
    host: String,
    /// Absent if the host's summary did not arrive; its packets are then unknown.
    #[serde(flatten)]
    counts: Option<PacketAccount>,
    /// Packets received here; `None` if the host keeps them in a store.
    received: Option<u64>,
    /// Number of packets handed to the outputs.
    #[serde(skip)]
    handed_on: u64,
    clock: Option<Clock>,
    error: Option<String>,
    /// Notices of trawl on the host.
    notices: Vec<Value>,
    /// The host's own summary, by interface.
    interfaces: Value,
}

impl HostReport {
    /// Builds a report; `packets`: the number received here, and the number received beyond the limit.
    pub fn new(
        host: String,
        packets: Option<(u64, u64)>,
        clock: Option<Clock>,
        summary: Option<Value>,
        notices: Vec<Value>,
        error: Option<String>,
    ) -> Self {
        let mut counts = summary.as_ref().and_then(|summary| PacketAccount::deserialize(summary).ok());
        if let (Some(counts), Some((received, unwanted))) = (&mut counts, packets) {
            let missing = counts.recorded.saturating_sub(received + unwanted);
            for (reason, count) in [(AFTER_LAST, unwanted), ("on_the_way", missing)] {
                if count > 0 {
                    counts.take_back(reason, count);
                }
            }
        }
        Self {
            host,
            counts,
            received: packets.map(|(received, _)| received),
            handed_on: packets.map_or(0, |(received, _)| received),
            clock,
            error,
            notices,
            interfaces: summary.map_or(Value::Null, |mut summary| summary["interfaces"].take()),
        }
    }

    /// Moves the packets of these interfaces that stages left out from the recorded ones.
    pub fn leave_out(&mut self, stages: &StageReport, interfaces: &[u32]) {
        let (merged, beyond) = (stages.merged.sum(interfaces), stages.beyond.sum(interfaces));
        self.handed_on = self.handed_on.saturating_sub(merged + beyond);
        let Some(counts) = &mut self.counts else {
            return;
        };
        counts.set_merged(merged);
        if beyond > 0 {
            counts.take_back(AFTER_LAST, beyond);
        }
    }

    /// Moves the packets of these interfaces that did not reach their output to the losses.
    pub fn take_back(&mut self, outcome: &WriteOutcome, interfaces: &[u32]) {
        let Some(counts) = &mut self.counts else {
            return;
        };
        let reason = outcome.error.as_ref().map_or("not_read", reason_of_failure);
        let unwritten = match &outcome.left {
            Some(left) => self.handed_on.saturating_sub(left.sum(interfaces)),
            None => outcome.unwritten.sum(interfaces),
        };
        let losses = outcome.lost.iter().filter(|loss| interfaces.contains(&loss.interface));
        let losses = losses.map(|loss| (loss.reason, loss.packets));
        for (reason, count) in losses.chain([(reason, unwritten)]).filter(|(_, count)| *count > 0) {
            counts.take_back(reason, count);
        }
        counts.set_not_kept(outcome.not_kept.sum(interfaces));
    }

    fn sentence(&self) -> String {
        let counts = match &self.counts {
            Some(counts) => counts.to_string(),
            None => {
                format!(
                    "{} received; its summary did not arrive: the other counts are unknown",
                    self.received.unwrap_or(0)
                )
            }
        };
        let clock = match self.clock {
            Some(Clock { offset_ns, error_ns }) => format!(
                "; its clock is {:+.3} ms from this one's, within {:.3} ms",
                offset_ns as f64 / 1e6,
                error_ns as f64 / 1e6
            ),
            None => "; its clock is unknown".to_owned(),
        };
        format!("{}: {counts}{clock}", self.host)
    }
}

/// The summary of all hosts.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    total: PacketAccount,
    /// Number of hosts whose summary did not arrive.
    unknown_hosts: usize,
    hosts: Vec<HostReport>,
}

impl Report {
    pub(crate) fn new(hosts: Vec<HostReport>) -> Self {
        let mut total = PacketAccount::default();
        hosts.iter().filter_map(|report| report.counts.as_ref()).for_each(|one| total.add(one));
        let unknown_hosts = hosts.iter().filter(|report| report.counts.is_none()).count();
        Self { total, unknown_hosts, hosts }
    }

    /// Returns the summary of each host, its error, and the summary of all, as lines for people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for report in &self.hosts {
            lines.push(report.sentence());
            lines.extend(report.error.as_ref().map(|error| format!("{}: {error}", report.host)));
        }
        lines.push(match self.unknown_hosts {
            0 => self.total.to_string(),
            unknown => format!("{}, without {unknown} hosts whose summary did not arrive", self.total),
        });
        lines
    }

    /// Returns true if every host ended without errors.
    pub fn is_whole(&self) -> bool {
        self.hosts.iter().all(|report| report.error.is_none() && report.counts.is_some())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trawl_pipeline::Counts;
    use trawl_sys::Error;

    use super::*;

    #[test]
    fn packets_that_did_not_arrive_are_lost() {
        let summary = json!({
            "seen": 10, "filtered_out": 1, "recorded": 8, "lost": {"ring_full": 1}, "interfaces": [],
        });
        let report = HostReport::new("a".to_owned(), Some((5, 1)), None, Some(summary), Vec::new(), None);
        let counts = report.counts.expect("a summary");
        assert_eq!(
            counts.to_string(),
            "10 seen, 1 filtered out, 5 recorded, 4 lost (after the last wanted: 1, on the way: 2, ring full: 1)"
        );
    }

    #[test]
    fn packets_that_a_stage_leaves_out_are_in_the_account() {
        let summary = json!({ "seen": 10, "filtered_out": 0, "recorded": 10, "lost": {}, "interfaces": [] });
        let mut report = HostReport::new("a".to_owned(), Some((10, 0)), None, Some(summary), vec![], None);
        let mut stages = StageReport::default();
        [(0, 9), (1, 3), (2, 1)].into_iter().for_each(|(interface, packets)| stages.merged.add(interface, packets));
        stages.beyond.add(2, 2);
        report.leave_out(&stages, &[1, 2]);
        let mut left = Counts::default();
        left.add(1, 3);
        report.take_back(&WriteOutcome { left: Some(left), ..WriteOutcome::default() }, &[1, 2]);
        assert_eq!(
            report.counts.expect("a summary").to_string(),
            "10 seen, 0 filtered out, 3 recorded, 4 merged, 3 lost (after the last wanted: 2, not read: 1)"
        );
        assert_eq!(report.received, Some(10));
    }

    #[test]
    fn packets_that_an_output_lacks_are_lost() {
        let summary = json!({ "seen": 10, "filtered_out": 0, "recorded": 10, "lost": {}, "interfaces": [] });
        let report = |outcome: WriteOutcome| {
            let mut report = HostReport::new("a".to_owned(), Some((10, 0)), None, Some(summary.clone()), vec![], None);
            report.take_back(&outcome, &[1, 2]);
            report.counts.expect("a summary").to_string()
        };
        let mut unwritten = Counts::default();
        [(0, 5), (1, 2), (2, 1)].into_iter().for_each(|(interface, packets)| unwritten.add(interface, packets));
        let outcome = WriteOutcome { unwritten, ..WriteOutcome::default() };
        assert_eq!(report(outcome), "10 seen, 0 filtered out, 7 recorded, 3 lost (not read: 3)");
        let error = Error::failed("cannot write", "the disk is broken");
        let nothing = "10 seen, 0 filtered out, 0 recorded, 10 lost (write error: 10)";
        assert_eq!(report(WriteOutcome::failed(error)), nothing);
    }

    #[test]
    fn most_precise_offset_counts_until_a_clock_is_set() {
        let wide = Clock::between(1000, 3000, 2500);
        assert_eq!(wide, Clock { offset_ns: 500, error_ns: 1000 });
        let narrow = Clock::between(5000, 5200, 5400);
        assert_eq!(wide.or_better(narrow), narrow);
        assert_eq!(narrow.or_better(wide), narrow);
        let set = Clock::between(9000, 9200, 90_000);
        assert_eq!(narrow.or_better(set), set);
    }
}
