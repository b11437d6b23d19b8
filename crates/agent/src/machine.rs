//! The agent's state machine: events and the time go in, actions come out. It follows what is desired within what the policy
//! allows, starts each capture once, and starts what fails again after a while that doubles.

mod entry;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::desired::{Capture, Desired, Labels};
use crate::policy::Policy;
use crate::report::{Counts, HostReport};
use entry::Entry;

const SECOND: u64 = 1_000_000_000;
/// Between a failure and the next start; doubled with each failure up to the longest.
const BACKOFF: u64 = SECOND;
const BACKOFF_MOST: u64 = 60 * SECOND;
/// What ran so long has not failed at its start.
const HEALTHY: u64 = 60 * SECOND;
/// A capture seals and stores what it has once it is told to end; after this time it is killed.
const STOP_PATIENCE: u64 = 60 * SECOND;
/// Between two attempts to store what captures left in the spool.
const PUSH_EVERY: u64 = 30 * SECOND;

/// Both clocks: one for waiting, which no one sets, and one that goes on while the agent is away.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    pub monotonic: u64,
    pub wall: u64,
}

#[derive(Clone, Debug)]
pub enum Event {
    /// What is desired from now on. A revision that is not newer is an echo of the past and changes nothing.
    Desired { revision: u64, desired: Desired },
    /// What came as desired state could not be read: the one before stays.
    Unreadable { revision: u64, why: String },
    /// The capture is attached.
    Ready { run: u64 },
    /// What it counted up to now.
    Counted { run: u64, counts: Counts },
    /// Its process is over, or was never there.
    Ended { run: u64, end: End, counts: Counts },
    /// The attempt to store what is in the spool is over.
    Pushed { all: bool },
    /// The agent is told to end.
    Shutdown,
    /// Time has passed.
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// As it should: told to, or at its bounds, with everything stored.
    Well,
    /// A process of an agent before this one has the capture still; it ends by itself.
    Held,
    /// With the last words of the process.
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The bounds of the capture are what is left of them.
    Start { run: u64, capture: Box<Capture> },
    /// Once politely, later by force.
    Stop { run: u64, force: bool },
    /// Store what captures left in the spool.
    Push,
}

/// What an agent knows of a capture after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub capture: Capture,
    pub begun_wall: Option<u64>,
    pub finished: bool,
    pub starts: u64,
    pub counts: Counts,
}

#[derive(Debug)]
pub struct Machine {
    policy: Policy,
    /// Those of the policy, and those of the desired state that it does not name.
    labels: Labels,
    /// Of the desired state that is followed; none has come yet.
    revision: Option<u64>,
    error: Option<String>,
    entries: BTreeMap<String, Entry>,
    last_run: u64,
    stopping: bool,
    push: Push,
}

#[derive(Debug, Default)]
struct Push {
    wanted: bool,
    running: bool,
    not_before: u64,
}

impl Machine {
    /// With what an agent before this one remembered. What it left in the spool is stored first.
    pub fn new(policy: Policy, memory: Vec<Memory>) -> Self {
        let entries = memory
            .into_iter()
            .map(|one| (one.capture.name.clone(), Entry::remembered(one)));
        Self {
            labels: policy.labels.clone(),
            policy,
            revision: None,
            error: None,
            entries: entries.collect(),
            last_run: 0,
            stopping: false,
            push: Push {
                wanted: true,
                ..Push::default()
            },
        }
    }

    pub fn step(&mut self, now: Now, event: Event) -> Vec<Action> {
        match event {
            Event::Desired { revision, desired } => self.desire(revision, desired),
            Event::Unreadable { revision, why } => {
                if self.revision.is_none_or(|old| revision > old) {
                    self.error = Some(why);
                }
            }
            Event::Ready { run } => {
                if let Some(entry) = self.entry_of(run) {
                    entry.is_ready(now);
                }
            }
            Event::Counted { run, counts } => {
                if let Some(entry) = self.entry_of(run) {
                    entry.counted(counts);
                }
            }
            Event::Ended { run, end, counts } => {
                if matches!(end, End::Failed(_)) {
                    self.push.wanted = true;
                }
                if let Some(entry) = self.entry_of(run) {
                    entry.ended(now, end, &counts);
                }
            }
            Event::Pushed { all } => {
                self.push.running = false;
                self.push.wanted |= !all;
                self.push.not_before = now.monotonic + PUSH_EVERY;
            }
            Event::Shutdown => self.stopping = true,
            Event::Tick => {}
        }
        self.settle(now)
    }

    fn desire(&mut self, revision: u64, desired: Desired) {
        if self.revision.is_some_and(|old| revision <= old) {
            return;
        }
        self.revision = Some(revision);
        self.error = None;
        self.labels = desired.labels;
        self.labels.extend(self.policy.labels.clone());
        for entry in self.entries.values_mut() {
            entry.desire(None);
        }
        for (number, capture) in desired.captures.into_iter().enumerate() {
            let refused = self.policy.refuses(&capture, number);
            let capture = self.policy.limited(&capture);
            let entry = self.entries.entry(capture.name.clone()).or_default();
            entry.desire(Some((capture, refused)));
        }
    }

    fn entry_of(&mut self, run: u64) -> Option<&mut Entry> {
        self.entries
            .values_mut()
            .find(|entry| entry.run_number() == Some(run))
    }

    /// What has to be done for all to be as desired.
    fn settle(&mut self, now: Now) -> Vec<Action> {
        let mut actions = Vec::new();
        for entry in self.entries.values_mut() {
            let last = &mut self.last_run;
            let number = || {
                *last += 1;
                *last
            };
            actions.extend(entry.settle(now, self.stopping, number));
        }
        // Before the first desired state comes, what was remembered may be desired still.
        if self.revision.is_some() {
            self.entries.retain(|_, entry| entry.is_needed());
        }
        let push = &mut self.push;
        if push.wanted && !push.running && !self.stopping && now.monotonic >= push.not_before {
            (push.wanted, push.running) = (false, true);
            actions.push(Action::Push);
        }
        actions
    }

    /// Whether the agent may end: it was told to, and nothing runs.
    pub fn is_over(&self) -> bool {
        self.stopping && self.entries.values().all(|one| one.run_number().is_none())
    }

    pub fn memory(&self) -> Vec<Memory> {
        self.entries.values().filter_map(Entry::memory).collect()
    }

    pub fn report(&self, host: &str, trawl: &str, now: Now) -> HostReport {
        HostReport {
            host: host.to_owned(),
            labels: self.labels.clone(),
            revision: self.revision.unwrap_or(0),
            time_ns: now.wall,
            trawl: trawl.to_owned(),
            error: self.error.clone(),
            stopping: self.stopping,
            captures: self.entries.values().filter_map(Entry::report).collect(),
        }
    }
}
