//! The decisions of stages about packets, which correct the capture's counters, and the events that started writing.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;
use trawl_packet::pcapng::note::keys::TRIGGER;
use trawl_sys::clock;

use crate::Counts;
use crate::account::PacketAccount;

/// Decisions of the stages so far, about packets that their sources counted as recorded.
#[derive(Clone, Debug, Default)]
pub struct StageReport {
    pub filtered_out: Counts,
    /// Packets beyond the limit of a rate.
    pub over_rate: Counts,
    /// Packets after the limit of -c, which do not count at all.
    pub beyond: Counts,
    /// Further sightings of packets that are recorded once.
    pub merged: Counts,
    /// Packets that were overwritten in memory, or exist in memory only.
    pub not_kept: Counts,
    /// Number of packets handed on, from the last stage that counts them for the limit of -c.
    pub handed_on: Option<u64>,
    /// Summary of a trigger's events; its list has the events since the last report.
    pub triggers: Option<TriggerReport>,
    /// True once the limit of events is reached.
    pub is_over: bool,
    /// True if an output's format cannot hold a packet.
    pub is_refused: bool,
}

impl StageReport {
    /// Adds the report of a later stage.
    pub fn add(&mut self, later: Self) {
        self.filtered_out.add_all(&later.filtered_out);
        self.over_rate.add_all(&later.over_rate);
        self.beyond.add_all(&later.beyond);
        self.merged.add_all(&later.merged);
        self.not_kept.add_all(&later.not_kept);
        self.handed_on = later.handed_on.or(self.handed_on);
        self.triggers = later.triggers.or(self.triggers.take());
        self.is_over |= later.is_over;
        self.is_refused |= later.is_refused;
    }

    /// Corrects counters in which packets of these interface blocks count as recorded. Packets that are not kept
    /// remain, because those in memory may still be written.
    pub fn correct(&self, account: &mut PacketAccount, interfaces: &[u32]) {
        let filtered_out = self.filtered_out.sum(interfaces);
        let beyond = self.beyond.sum(interfaces);
        account.recorded = account.recorded.saturating_sub(filtered_out + beyond);
        account.filtered_out += filtered_out;
        account.seen = account.seen.saturating_sub(beyond);
        let over_rate = self.over_rate.sum(interfaces);
        if over_rate > 0 {
            account.take_back("rate_limit", over_rate);
        }
        account.set_merged(self.merged.sum(interfaces));
    }
}

/// Reason for an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum TriggerCause {
    Expression { expression: String },
    Verdict { verdict: Cow<'static, str> },
    Signal,
}

impl fmt::Display for TriggerCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expression { expression } => write!(f, "a packet matches '{expression}'"),
            Self::Verdict { verdict } => write!(f, "a packet met the verdict {verdict}"),
            Self::Signal => f.write_str("the signal SIGUSR2 arrived"),
        }
    }
}

/// An event that started writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Firing {
    /// Number, from 1 on.
    pub number: u64,
    pub time_ns: u64,
    #[serde(flatten)]
    pub cause: TriggerCause,
    /// Duration of the packets still in memory before it, and their number.
    pub before_ns: u64,
    pub packets_before: u64,
    /// True if part of the requested time had been overwritten.
    pub memory_short: bool,
}

/// Writes the text of its comment in a capture file.
impl fmt::Display for Firing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let second = self.time_ns / 1_000_000_000;
        write!(
            f,
            "{}{}: {} at {}T{:02}:{:02}:{:02}.{:09}Z; {} packets of {:.3} s before it",
            TRIGGER.begin,
            self.number,
            self.cause,
            clock::date_of(self.time_ns),
            second / 3600 % 24,
            second / 60 % 60,
            second % 60,
            self.time_ns % 1_000_000_000,
            self.packets_before,
            self.before_ns as f64 / 1e9
        )?;
        if self.memory_short { f.write_str(" (earlier ones did not fit into the memory)") } else { Ok(()) }
    }
}

/// Summary of a capture's events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TriggerReport {
    /// Events that started writing; `during_others` arrived while the packets of others were being written.
    pub events: u64,
    pub during_others: u64,
    /// Bytes of memory for packets before an event.
    pub memory: u64,
    pub list: Vec<Firing>,
}

impl fmt::Display for TriggerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let during = match self.during_others {
            0 => String::new(),
            more => format!(", {more} more while their packets were written"),
        };
        let s = if self.events == 1 { "" } else { "s" };
        write!(f, "{} trigger{s}{during}", self.events)
    }
}
