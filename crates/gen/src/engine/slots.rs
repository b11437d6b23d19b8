//! Engines that write frames into slots which they share with the device.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use trawl_sys::Result;

use super::{Engine, Sent};
use crate::source::{Next, Source};

/// The device has so long to let go of the frames.
const FINISH: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(1);
const BATCH: u64 = 256;

/// Writes a frame into the room that it is given, and tells its length, if there is one.
pub type Write<'w> = dyn FnMut(&mut [u8]) -> Result<Option<usize>> + 'w;

/// What the slots belong to.
pub trait Device: Debug {
    /// How the engine is called on the command line.
    const NAME: &'static str;

    /// Has a free slot written, and returns the frame's length; `None` without a free slot or a frame.
    fn fill_slot(&mut self, write: &mut Write<'_>) -> Result<Option<usize>>;

    /// Has frames sent, takes the lengths of those that left their slots away, and adds them to what was sent.
    fn hand_over(&mut self, lengths: &mut VecDeque<usize>, sent: &mut Sent) -> Result<()>;

    /// Whether frames that were sent are still read from their slots.
    fn still_reads(&mut self) -> bool;
}

/// An engine over a device's slots.
#[derive(Debug)]
pub struct Slots<D> {
    pub(super) device: D,
    /// The lengths of the frames that wait in slots, oldest first.
    lengths: VecDeque<usize>,
}

impl<D: Device> Slots<D> {
    pub(super) fn of(device: D) -> Self {
        Self {
            device,
            lengths: VecDeque::new(),
        }
    }

    /// Puts frames of the source into free slots until `want` of them wait. Returns whether the source is at its end.
    fn fill(
        &mut self,
        source: &mut dyn Source,
        now: u64,
        want: u64,
        sent: &mut Sent,
    ) -> Result<bool> {
        while (self.lengths.len() as u64) < want {
            let mut answer = None;
            let queued = self.device.fill_slot(&mut |room| {
                let next = source.next(now, room)?;
                answer = Some(next);
                Ok(match next {
                    Next::Frame(length) => Some(length),
                    _ => None,
                })
            })?;
            match (queued, answer) {
                (Some(length), _) => {
                    self.lengths.push_back(length);
                    continue;
                }
                (None, Some(Next::Later(time))) => sent.later = Some(time),
                (None, Some(_)) => return Ok(true),
                // No slot is free.
                (None, None) => {}
            }
            break;
        }
        Ok(false)
    }
}

impl<D: Device> Engine for Slots<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn send(&mut self, source: &mut dyn Source, now: u64, want: u64) -> Result<Sent> {
        let mut sent = Sent::default();
        let ended = self.fill(source, now, want.min(BATCH), &mut sent)?;
        if !self.lengths.is_empty() {
            self.device.hand_over(&mut self.lengths, &mut sent)?;
        }
        sent.ended = ended && self.lengths.is_empty();
        Ok(sent)
    }

    fn most(&self) -> u64 {
        BATCH
    }

    fn has_frames(&self) -> bool {
        !self.lengths.is_empty()
    }

    fn finish(&mut self) -> Result<Sent> {
        let mut sent = Sent::default();
        let start = Instant::now();
        while !self.lengths.is_empty() && start.elapsed() < FINISH {
            self.device.hand_over(&mut self.lengths, &mut sent)?;
        }
        // The memory may go only when the device has let go of it.
        while self.device.still_reads() && start.elapsed() < FINISH {
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(sent)
    }
}
