//! Counters of packets: seen = filtered out + recorded + lost, and each loss has a reason.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The outcomes of packets at one hook point, or at all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PacketAccount {
    pub seen: u64,
    pub filtered_out: u64,
    pub recorded: u64,
    /// Recorded into memory only, and overwritten before an event.
    #[serde(skip_serializing_if = "is_zero")]
    pub not_kept: u64,
    /// Further sightings of packets that are recorded once.
    #[serde(skip_serializing_if = "is_zero")]
    pub merged: u64,
    pub lost: BTreeMap<Cow<'static, str>, u64>,
}

/// Reasons that are always listed, so that a zero is visible.
const REASONS: [&str; 2] = ["ring_full", "copy_failed"];

impl PacketAccount {
    /// Counts packets by outcome. Losses that did not happen are left out, but for those that are always listed.
    pub fn new(seen: u64, filtered_out: u64, recorded: u64, lost: &[(&'static str, u64)]) -> Self {
        let mut all: BTreeMap<_, _> = REASONS.map(Cow::from).into_iter().zip([0; REASONS.len()]).collect();
        all.extend(lost.iter().filter(|(_, count)| *count > 0).map(|(reason, count)| (Cow::from(*reason), *count)));
        Self { seen, filtered_out, recorded, not_kept: 0, merged: 0, lost: all }
    }

    pub fn lost_total(&self) -> u64 {
        self.lost.values().sum()
    }

    /// Adds packets that were lost before they could be counted elsewhere.
    pub fn add_unseen(&mut self, reason: &'static str, count: u64) {
        self.seen += count;
        *self.lost.entry(reason.into()).or_default() += count;
    }

    /// Adds packets that were rejected before they could be counted elsewhere.
    pub fn add_filtered_out(&mut self, count: u64) {
        self.seen += count;
        self.filtered_out += count;
    }

    /// Moves recorded packets that did not reach their output to the losses.
    pub fn take_back(&mut self, reason: &'static str, count: u64) {
        self.recorded = self.recorded.saturating_sub(count);
        *self.lost.entry(reason.into()).or_default() += count;
    }

    /// Moves packets that were recorded into memory only out of the recorded ones.
    pub fn set_not_kept(&mut self, count: u64) {
        self.recorded = self.recorded.saturating_sub(count);
        self.not_kept += count;
    }

    /// Moves further sightings of packets out of the recorded ones.
    pub fn set_merged(&mut self, count: u64) {
        self.recorded = self.recorded.saturating_sub(count);
        self.merged += count;
    }

    pub fn add(&mut self, other: &Self) {
        self.seen += other.seen;
        self.filtered_out += other.filtered_out;
        self.recorded += other.recorded;
        self.not_kept += other.not_kept;
        self.merged += other.merged;
        for (reason, count) in &other.lost {
            *self.lost.entry(reason.clone()).or_default() += count;
        }
    }
}

impl fmt::Display for PacketAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seen, filtered_out, recorded, not_kept, merged, lost } = self;
        write!(f, "{seen} seen, {filtered_out} filtered out, {recorded} recorded, ")?;
        if *not_kept > 0 {
            write!(f, "{not_kept} not kept, ")?;
        }
        if *merged > 0 {
            write!(f, "{merged} merged, ")?;
        }
        write!(f, "{} lost", self.lost_total())?;
        let reasons: Vec<String> = lost
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(reason, count)| format!("{}: {count}", reason.replace('_', " ")))
            .collect();
        if reasons.is_empty() { Ok(()) } else { write!(f, " ({})", reasons.join(", ")) }
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_named_in_the_line() {
        let mut account = PacketAccount::new(10, 0, 7, &[("ring_full", 3)]);
        assert_eq!(account.to_string(), "10 seen, 0 filtered out, 7 recorded, 3 lost (ring full: 3)");
        account.take_back("disk_full", 2);
        assert_eq!(account.seen, account.filtered_out + account.recorded + account.lost_total());
        assert_eq!(account.to_string(), "10 seen, 0 filtered out, 5 recorded, 5 lost (disk full: 2, ring full: 3)");
    }
}
