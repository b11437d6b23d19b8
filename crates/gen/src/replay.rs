//! Recorded frames sent again: from files of any size, with their own timing or another, changed on the way.

mod ahead;
mod recording;
pub mod rewrite;
mod timing;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use trawl_sys::{Error, Result};

use crate::run::Gaps;
use crate::source::{Next, Source};
use recording::Recording;
use rewrite::Rewrite;
use timing::Timing;

pub use timing::Speed;

const ETHERNET_HEADER: usize = 14;
const TAG: usize = 4;
const VLAN: [u8; 2] = [0x81, 0x00];

/// What to send again, and how.
#[derive(Clone, Debug)]
pub struct Options {
    pub files: Vec<PathBuf>,
    /// All files at once, in the order of their packets' times, rather than one after the other.
    pub merge: bool,
    /// How often; `None`: without an end.
    pub rounds: Option<u64>,
    pub speed: Speed,
    pub rewrite: Rewrite,
    /// The interface's: longer packets do not fit.
    pub mtu: u32,
}

/// What there is to say of a replay beside the figures of its run.
#[derive(Clone, Debug, Default)]
pub struct ReplayAccount {
    /// Files that could not be sent, or not all of them, and why.
    pub problems: Vec<String>,
    /// Frames that the interface is not able to take: longer than its MTU allows, or no whole Ethernet header.
    pub too_long: u64,
    pub too_short: u64,
    /// Frames of which the recording did not keep everything; what it kept was sent.
    pub cut: u64,
    /// Frames that were recorded with an earlier time than the one before them.
    pub backwards: u64,
    pub rounds: u64,
    /// How far the gaps between frames were from the recorded ones.
    pub gaps: Option<Gaps>,
}

/// The account of a replay, for those who started it: the replay itself is with the thread that sends.
#[derive(Clone, Debug, Default)]
pub struct Account(Arc<Mutex<ReplayAccount>>);

impl Account {
    pub fn outcome(&self) -> ReplayAccount {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// When the recorded time began. With the first frame the engine may be tried and prepared, which takes long: what
/// counts is when it asks for the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    Not,
    FirstFrame,
    At(u64),
}

/// The frames of the recordings, as they come due.
#[derive(Debug)]
pub struct Replay {
    options: Options,
    /// Those of this round that are not at their end. One after the other, they are opened one by one.
    open: Vec<Recording>,
    next_file: usize,
    timing: Option<Timing>,
    /// When the frame that is next is due, once that was asked for.
    due: Option<u64>,
    begin: Begin,
    sent_this_round: bool,
    outcome: ReplayAccount,
    account: Account,
}

impl Replay {
    /// Looks at all files. Fails where one cannot be opened, and where nothing could be sent at all.
    pub fn open(options: Options) -> Result<Self> {
        let timing = match options.speed {
            Speed::Times(speed) if !(speed.is_finite() && speed > 0.0) => {
                let what = format!("cannot replay at {speed} times the recorded speed");
                return Err(Error::usage(what, "it has to be above zero"));
            }
            Speed::Times(speed) => Some(Timing::new(speed)),
            Speed::Unpaced => None,
        };
        let mut problems = Vec::new();
        let mut usable = false;
        for path in &options.files {
            let recording = Recording::open(path)?;
            usable |= recording.peek().is_some();
            problems.extend(recording.problem().map(str::to_owned));
        }
        if !usable {
            return Err(Error::failed(
                "there is nothing to replay",
                problems.join("; "),
            ));
        }
        let outcome = ReplayAccount {
            gaps: timing.is_some().then(Gaps::new),
            ..ReplayAccount::default()
        };
        let mut replay = Self {
            options,
            open: Vec::new(),
            next_file: 0,
            timing,
            due: None,
            begin: Begin::Not,
            sent_this_round: false,
            outcome,
            account: Account::default(),
        };
        replay.open_next()?;
        Ok(replay)
    }

    /// Where the outcome will be when the replay is over and dropped.
    pub fn account(&self) -> Account {
        self.account.clone()
    }

    /// Opens what is to be sent next: all files, or the next one. False where there are no more in this round.
    fn open_next(&mut self) -> Result<bool> {
        let files = &self.options.files;
        let last = if self.options.merge {
            files.len()
        } else {
            files.len().min(self.next_file + 1)
        };
        let now = &files[self.next_file..last];
        for path in now {
            self.open.push(Recording::open(path)?);
        }
        let opened = !now.is_empty();
        self.next_file = last;
        if let Some(timing) = &mut self.timing {
            timing.next_file();
        }
        Ok(opened)
    }

    fn next_round(&mut self) -> Result<bool> {
        self.outcome.rounds += 1;
        let over = self
            .options
            .rounds
            .is_some_and(|rounds| self.outcome.rounds >= rounds);
        // A round in which nothing could be sent would be followed by others like it, without an end.
        if over || !std::mem::take(&mut self.sent_this_round) {
            return Ok(false);
        }
        self.next_file = 0;
        if let Some(timing) = &mut self.timing {
            timing.next_round();
        }
        self.open_next()
    }

    /// Which of the open recordings has the packet that is next; opens more, or begins another round, as needed.
    fn select(&mut self) -> Result<Option<usize>> {
        loop {
            let times = self.open.iter().enumerate();
            let first = times
                .filter_map(|(at, one)| Some((one.peek()?.time, at)))
                .min();
            if let Some((_, at)) = first {
                return Ok(Some(at));
            }
            for over in self.open.drain(..) {
                if let Some(problem) = over.problem()
                    && !self.outcome.problems.iter().any(|known| known == problem)
                {
                    self.outcome.problems.push(problem.to_owned());
                }
            }
            if !self.open_next()? && !self.next_round()? {
                return Ok(None);
            }
        }
    }

    /// Changes the frame at the beginning of `room`, and says how long it is then; `None` where it cannot be sent.
    fn prepare(&mut self, length: usize, cut: bool, room: &mut [u8]) -> Option<usize> {
        if length < ETHERNET_HEADER {
            self.outcome.too_short += 1;
            return None;
        }
        let length = self.options.rewrite.apply(room, length);
        let tag = if room[12..14] == VLAN { TAG } else { 0 };
        if length > self.options.mtu as usize + ETHERNET_HEADER + tag {
            self.outcome.too_long += 1;
            return None;
        }
        self.outcome.cut += u64::from(cut);
        Some(length)
    }
}

impl Source for Replay {
    fn next(&mut self, now: u64, room: &mut [u8]) -> Result<Next> {
        while let Some(at) = self.select()? {
            let Some(packet) = self.open[at].peek() else {
                continue;
            };
            let (time, length, cut) = (packet.time, packet.bytes.len(), packet.cut);
            if self.begin == Begin::FirstFrame {
                self.begin = Begin::At(now);
            }
            if let Some(timing) = &mut self.timing {
                let begin = match self.begin {
                    Begin::At(begin) => begin,
                    Begin::Not | Begin::FirstFrame => now,
                };
                let due = *self.due.get_or_insert_with(|| begin + timing.due(time));
                if due > now {
                    return Ok(Next::Later(due));
                }
            }
            // What does not even fit with everything taken away need not be looked at.
            let fits = length <= room.len();
            if fits {
                room[..length].copy_from_slice(&packet.bytes);
            }
            self.open[at].advance();
            let due = self.due.take();
            if !fits {
                self.outcome.too_long += 1;
                continue;
            }
            let Some(length) = self.prepare(length, cut, room) else {
                continue;
            };
            self.sent_this_round = true;
            if self.begin == Begin::Not {
                self.begin = Begin::FirstFrame;
            }
            if let (Some(gaps), Some(due)) = (&mut self.outcome.gaps, due) {
                gaps.note(now, due, 0.0, 1);
            }
            return Ok(Next::Frame(length));
        }
        Ok(Next::End)
    }

    /// Room for a tag that is taken away, and for one that is put in.
    fn longest(&self) -> usize {
        self.options.mtu as usize + ETHERNET_HEADER + 2 * TAG
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.backwards = self.timing.as_ref().map_or(0, Timing::backwards);
        *self
            .account
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = outcome;
    }
}

#[cfg(test)]
mod tests;
