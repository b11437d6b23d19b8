//! Stages between the rings and the writer.

use std::fmt;

use trawl_sys::Result;

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

    /// Adds this stage's additions and losses to the outcome.
    fn account(&mut self, _outcome: &mut WriteOutcome) {}
}

/// A stage and the writer behind it, which together form a writer.
struct Staged<'w> {
    stage: Box<dyn Stage>,
    next: Box<dyn Writer + 'w>,
    has_failed: bool,
}

impl Writer for Staged<'_> {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let pushed = self.stage.push(blocks, self.next.as_mut());
        self.has_failed |= pushed.is_err();
        // A stage hands on bytes.
        pushed.map(Pressure::without_segments)
    }

    fn flush(&mut self) -> Result<Pressure> {
        let flushed = self.stage.flush(self.next.as_mut());
        self.has_failed |= flushed.is_err();
        flushed.map(Pressure::without_segments)
    }

    fn finish(&mut self) -> WriteOutcome {
        let finished = match self.has_failed {
            true => Ok(()),
            false => self.stage.finish(self.next.as_mut()),
        };
        self.has_failed |= finished.is_err();
        let mut outcome = self.next.finish();
        outcome.error = finished.err().or(outcome.error);
        self.stage.account(&mut outcome);
        outcome
    }
}

/// The input of a pipeline, with the last answer of its writer.
pub struct Feed<'w> {
    writer: Box<dyn Writer + 'w>,
    pub pressure: Pressure,
}

impl fmt::Debug for Feed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("pressure", &self.pressure).finish_non_exhaustive()
    }
}

impl<'w> Feed<'w> {
    /// Puts stages in front of a writer, the first one outermost.
    pub fn new(stages: Vec<Box<dyn Stage>>, writer: &'w mut dyn Writer) -> Self {
        let last: Box<dyn Writer + 'w> = Box::new(writer);
        let writer =
            stages.into_iter().rev().fold(last, |next, stage| Box::new(Staged { stage, next, has_failed: false }));
        Self { writer, pressure: Pressure::Idle }
    }

    pub fn write(&mut self, blocks: Blocks<'_>) -> Result<()> {
        self.pressure = self.writer.write(blocks)?;
        Ok(())
    }

    pub fn flush(&mut self) -> Result<()> {
        self.pressure = self.writer.flush()?;
        Ok(())
    }

    pub fn finish(&mut self) -> WriteOutcome {
        self.writer.finish()
    }

    pub fn is_blocked(&self) -> bool {
        matches!(self.pressure, Pressure::Blocked(_))
    }

    pub fn wants_segments(&self) -> bool {
        matches!(self.pressure, Pressure::WantsSegments | Pressure::Busy { wants_segments: true })
    }
}
