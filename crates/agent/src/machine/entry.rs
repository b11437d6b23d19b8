//! One capture of the machine: what is desired of it, what runs, and what it has used of its bounds.

use crate::desired::Capture;
use crate::policy::Refusal;
use crate::report::{CaptureReport, Counts, Phase};

use super::{Action, BACKOFF, BACKOFF_MOST, End, HEALTHY, Memory, Now, SECOND, STOP_PATIENCE};

#[derive(Debug, Default)]
pub(super) struct Entry {
    /// `None`: not desired, or not any more.
    desired: Option<Capture>,
    refused: Option<Refusal>,
    run: Option<Run>,
    /// What the figures below are about.
    of: Option<Capture>,
    begun_wall: Option<u64>,
    finished: bool,
    starts: u64,
    /// Of runs that are over.
    spent: Counts,
    failures: u32,
    error: Option<String>,
    not_before: u64,
}

#[derive(Debug)]
struct Run {
    number: u64,
    /// As it is desired, not what was left of the bounds.
    capture: Capture,
    since: u64,
    ready: bool,
    stopping: Option<u64>,
    forced: bool,
    counts: Counts,
}

impl Entry {
    pub fn remembered(memory: Memory) -> Self {
        Self {
            of: Some(memory.capture),
            begun_wall: memory.begun_wall,
            finished: memory.finished,
            starts: memory.starts,
            spent: memory.counts,
            ..Self::default()
        }
    }

    pub fn desire(&mut self, desired: Option<(Capture, Option<Refusal>)>) {
        let (capture, refused) = match desired {
            Some((capture, refused)) => (Some(capture), refused),
            None => (None, None),
        };
        self.refused = refused;
        if let Some(capture) = &capture
            && self.of.as_ref() != Some(capture)
        {
            // Another capture of the same name begins anew.
            self.of = Some(capture.clone());
            self.begun_wall = None;
            self.finished = false;
            self.starts = 0;
            self.spent = Counts::default();
            self.failures = 0;
            self.error = None;
            self.not_before = 0;
        }
        self.desired = capture;
    }

    pub fn run_number(&self) -> Option<u64> {
        self.run.as_ref().map(|run| run.number)
    }

    pub fn is_ready(&mut self, now: Now) {
        if let Some(run) = &mut self.run {
            run.ready = true;
            run.since = now.monotonic;
        }
    }

    pub fn counted(&mut self, counts: Counts) {
        if let Some(run) = &mut self.run {
            run.counts = counts;
        }
    }

    pub fn ended(&mut self, now: Now, end: End, counts: &Counts) {
        let Some(run) = self.run.take() else { return };
        if self.of.as_ref() != Some(&run.capture) {
            return;
        }
        self.spent.add(counts);
        let was_told = run.stopping.is_some();
        match end {
            End::Held => {
                self.starts -= 1;
                self.not_before = now.monotonic + SECOND / 4;
            }
            End::Well if was_told => {}
            End::Well => self.finished = true,
            End::Failed(why) if was_told => self.error = Some(why),
            End::Failed(why) => {
                self.error = Some(why);
                if run.ready && now.monotonic.saturating_sub(run.since) >= HEALTHY {
                    self.failures = 0;
                }
                let wait = BACKOFF.saturating_mul(1 << self.failures.min(16));
                self.failures += 1;
                self.not_before = now.monotonic + wait.min(BACKOFF_MOST);
            }
        }
    }

    /// What is left of the bounds; nothing if one is reached.
    fn rest(&self, now: Now) -> Option<Capture> {
        let mut rest = self.desired.clone()?;
        let left = |bound: &mut Option<u64>, used: u64| {
            if let Some(bound) = bound {
                *bound = bound.saturating_sub(used);
            }
            *bound != Some(0)
        };
        let begun = self.begun_wall.unwrap_or(now.wall);
        let seconds = now.wall.saturating_sub(begun) / SECOND;
        let all = [
            left(&mut rest.duration_seconds, seconds),
            left(&mut rest.packets, self.spent.recorded),
        ];
        all.iter().all(|left| *left).then_some(rest)
    }

    pub fn settle(
        &mut self,
        now: Now,
        stopping: bool,
        number: impl FnOnce() -> u64,
    ) -> Option<Action> {
        let is_wanted = self.refused.is_none() && !stopping;
        if let Some(run) = &mut self.run {
            let is_right = is_wanted && self.desired.as_ref() == Some(&run.capture);
            return match run.stopping {
                None if is_right => None,
                None => {
                    run.stopping = Some(now.monotonic);
                    Some(Action::Stop {
                        run: run.number,
                        force: false,
                    })
                }
                Some(since) if !run.forced && now.monotonic >= since + STOP_PATIENCE => {
                    run.forced = true;
                    Some(Action::Stop {
                        run: run.number,
                        force: true,
                    })
                }
                Some(_) => None,
            };
        }
        if !is_wanted || self.finished || now.monotonic < self.not_before {
            return None;
        }
        let desired = self.desired.clone()?;
        let Some(capture) = self.rest(now) else {
            self.finished = true;
            return None;
        };
        self.begun_wall.get_or_insert(now.wall);
        self.starts += 1;
        let number = number();
        self.run = Some(Run {
            number,
            capture: desired,
            since: now.monotonic,
            ready: false,
            stopping: None,
            forced: false,
            counts: Counts::default(),
        });
        Some(Action::Start {
            run: number,
            capture: Box::new(capture),
        })
    }

    pub fn is_needed(&self) -> bool {
        self.desired.is_some() || self.run.is_some()
    }

    pub fn memory(&self) -> Option<Memory> {
        Some(Memory {
            capture: self.of.clone()?,
            begun_wall: self.begun_wall,
            finished: self.finished,
            starts: self.starts,
            counts: self.spent.clone(),
        })
    }

    fn phase(&self) -> Phase {
        match &self.run {
            Some(run) if run.stopping.is_some() => Phase::Stopping,
            Some(run) if run.ready => Phase::Running,
            Some(_) => Phase::Starting,
            None if self.refused.is_some() => Phase::Refused,
            None if self.finished => Phase::Finished,
            None => Phase::Waiting,
        }
    }

    pub fn report(&self) -> Option<CaptureReport> {
        let running = self.run.as_ref().map(|run| &run.capture);
        let mut account = self.spent.clone();
        if let Some(run) = &self.run {
            account.add(&run.counts);
        }
        Some(CaptureReport {
            capture: self.desired.as_ref().or(running)?.clone(),
            phase: self.phase(),
            starts: self.starts,
            failures: self.failures,
            refused: self.refused.clone(),
            error: self.error.clone(),
            account,
        })
    }
}
