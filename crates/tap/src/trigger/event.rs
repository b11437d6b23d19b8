//! Events: what is one, and what is told of it.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trawl_packet::verdict;
use trawl_sys::clock;

use trawl_pipeline::plan::nanoseconds;

/// What is an event, and how much is written around one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerPlan {
    #[serde(rename = "before_ns", with = "nanoseconds")]
    pub before: Duration,
    #[serde(rename = "after_ns", with = "nanoseconds")]
    pub after: Duration,
    /// A packet that matches is an event.
    pub expression: Option<String>,
    /// A packet with such a verdict is an event.
    pub verdicts: Option<verdict::Set>,
    /// SIGUSR2 is an event.
    pub signal: bool,
    /// Bytes for packets that may lead to an event.
    pub memory: u64,
    /// The capture ends after this many.
    pub events: Option<u64>,
}

/// Why an event is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Cause {
    Expression { expression: String },
    Verdict { verdict: Cow<'static, str> },
    Signal,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Expression { expression } => write!(f, "a packet matches '{expression}'"),
            Self::Verdict { verdict } => write!(f, "a packet met the verdict {verdict}"),
            Self::Signal => f.write_str("the signal SIGUSR2 came"),
        }
    }
}

/// Something that had packets written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firing {
    /// From 1 on.
    pub number: u64,
    pub time_ns: u64,
    #[serde(flatten)]
    pub cause: Cause,
    /// How much of the time before it was still in memory, and how many packets that is.
    pub before_ns: u64,
    pub packets_before: u64,
    /// Some of the time asked for had been overwritten.
    pub memory_short: bool,
}

/// The text of its comment in a capture file.
impl std::fmt::Display for Firing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let second = self.time_ns / 1_000_000_000;
        write!(
            f,
            "trigger {}: {} at {}T{:02}:{:02}:{:02}.{:09}Z; {} packets of {:.3} s before it",
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
        match self.memory_short {
            true => f.write_str(" (earlier ones did not fit into the memory)"),
            false => Ok(()),
        }
    }
}

/// What is said of events in the account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Events that had packets written, and those that came while such packets were being written.
    pub events: u64,
    pub during_others: u64,
    /// Bytes of memory for packets that may lead to one.
    pub memory: u64,
    pub list: Vec<Firing>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let during = match self.during_others {
            0 => String::new(),
            more => format!(", {more} more while their packets were written"),
        };
        let s = if self.events == 1 { "" } else { "s" };
        write!(f, "{} trigger{s}{during}", self.events)
    }
}
