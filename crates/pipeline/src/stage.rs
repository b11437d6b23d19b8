//! Stages between the rings and the writer.

use std::fmt;
use std::time::{Duration, Instant};

use trawl_sys::Result;

use crate::report::StageReport;
use crate::{Blocks, Pressure, WriteOutcome, Writer};

/// A step between the rings and the writer: it changes blocks, leaves some out, or holds them back.
pub trait Stage: fmt::Debug {
    /// Processes blocks and hands on the results. An error ends the capture.
    fn push(&mut self, blocks: Blocks<'_>, next: &mut dyn Writer) -> Result<Pressure>;

    /// Called when no more blocks are available for now.
    fn flush(&mut self, next: &mut dyn Writer) -> Result<Pressure> {
        next.flush()
    }

    /// Hands on all held-back blocks. Not called after an error.
    fn finish(&mut self, _next: &mut dyn Writer) -> Result<()> {
        Ok(())
    }

    /// Returns the time at which `flush` has work to do although no blocks came.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Adds this stage's additions and losses to the outcome.
    fn account(&mut self, _outcome: &mut WriteOutcome) {}

    /// Handles the signal that may be an event.
    fn signal(&mut self, _time_ns: u64) {}

    /// Returns the decisions so far, and the events since the last report.
    fn report(&mut self) -> StageReport {
        StageReport::default()
    }
}

/// A stage, and whether it has failed.
#[derive(Debug)]
struct Staged {
    stage: Box<dyn Stage>,
    has_failed: bool,
}

/// The stages from one on and the writer after them, which together form a writer.
struct Rest<'r, 'w> {
    stages: &'r mut [Staged],
    writer: &'r mut (dyn Writer + 'w),
}

impl<'w> Rest<'_, 'w> {
    /// Returns the first stage, and the writer that it hands blocks to.
    fn split(&mut self) -> Option<(&mut Staged, Rest<'_, 'w>)> {
        let (first, stages) = self.stages.split_first_mut()?;
        Some((first, Rest { stages, writer: self.writer }))
    }
}

impl Writer for Rest<'_, '_> {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let Some((first, mut next)) = self.split() else {
            return self.writer.write(blocks);
        };
        let pushed = first.stage.push(blocks, &mut next);
        first.has_failed |= pushed.is_err();
        // A stage hands on bytes, never segments.
        pushed.map(Pressure::without_segments)
    }

    fn flush(&mut self) -> Result<Pressure> {
        let Some((first, mut next)) = self.split() else {
            return self.writer.flush();
        };
        let flushed = first.stage.flush(&mut next);
        first.has_failed |= flushed.is_err();
        flushed.map(Pressure::without_segments)
    }

    fn finish(&mut self) -> WriteOutcome {
        let Some((first, mut next)) = self.split() else {
            return self.writer.finish();
        };
        let finished = if first.has_failed { Ok(()) } else { first.stage.finish(&mut next) };
        first.has_failed |= finished.is_err();
        let mut outcome = next.finish();
        outcome.error = finished.err().or(outcome.error);
        first.stage.account(&mut outcome);
        outcome
    }
}

/// The stages and the writer after them form a writer again.
impl Writer for Feed<'_> {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        self.whole().write(blocks)
    }

    fn flush(&mut self) -> Result<Pressure> {
        self.whole().flush()
    }

    fn finish(&mut self) -> WriteOutcome {
        self.whole().finish()
    }
}

/// The input of a pipeline, with the last answer of its writer.
pub struct Feed<'w> {
    stages: Vec<Staged>,
    writer: &'w mut dyn Writer,
    pub pressure: Pressure,
}

impl fmt::Debug for Feed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("stages", &self.stages).field("pressure", &self.pressure).finish_non_exhaustive()
    }
}

impl<'w> Feed<'w> {
    /// Puts stages in front of a writer, the first one outermost.
    pub fn new(stages: Vec<Box<dyn Stage>>, writer: &'w mut dyn Writer) -> Self {
        let stages = stages.into_iter().map(|stage| Staged { stage, has_failed: false });
        Self { stages: stages.collect(), writer, pressure: Pressure::Idle }
    }

    fn whole(&mut self) -> Rest<'_, 'w> {
        Rest { stages: &mut self.stages, writer: self.writer }
    }

    pub fn write(&mut self, blocks: Blocks<'_>) -> Result<()> {
        self.pressure = self.whole().write(blocks)?;
        Ok(())
    }

    pub fn flush(&mut self) -> Result<()> {
        self.pressure = self.whole().flush()?;
        Ok(())
    }

    pub fn finish(&mut self) -> WriteOutcome {
        self.whole().finish()
    }

    /// Passes a signal to the stages.
    pub fn signal(&mut self, time_ns: u64) {
        self.stages.iter_mut().for_each(|one| one.stage.signal(time_ns));
    }

    /// Returns the decisions of all stages so far, and the events since the last report.
    pub fn report(&mut self) -> StageReport {
        let mut report = StageReport::default();
        self.stages.iter_mut().for_each(|one| report.add(one.stage.report()));
        report
    }

    /// Returns the time at which a stage or the writer has work to do although no blocks came.
    pub fn due(&self) -> Option<Instant> {
        let stages = self.stages.iter().filter_map(|one| one.stage.due());
        stages.chain(self.writer.due()).min()
    }

    /// Returns how long the source may let blocks wait for more of them.
    pub fn delay(&self) -> Duration {
        self.writer.delay()
    }

    pub fn is_blocked(&self) -> bool {
        matches!(self.pressure, Pressure::Blocked(_))
    }

    pub fn wants_segments(&self) -> bool {
        matches!(self.pressure, Pressure::WantsSegments | Pressure::Busy { wants_segments: true })
    }
}
