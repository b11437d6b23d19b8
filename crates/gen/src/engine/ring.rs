//! A packet socket with a transmit ring.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use trawl_kernel::Result;
use trawl_kernel::send::PacketRing;

use super::fill::fill;
use super::{Engine, Sent};
use crate::source::Source;

/// The device has so long to let go of the frames.
const FINISH: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(1);
const BATCH: u64 = 256;

/// See [`PacketRing`].
#[derive(Debug)]
pub struct Ring {
    ring: PacketRing,
    /// The lengths of the frames that wait in the ring, oldest first.
    lengths: VecDeque<usize>,
}

impl Ring {
    /// For an interface of the calling thread's namespace, and frames up to that length.
    pub fn open(interface: &str, longest: usize) -> Result<Self> {
        Ok(Self {
            ring: PacketRing::open(interface, longest)?,
            lengths: VecDeque::new(),
        })
    }

    fn kick(&mut self, sent: &mut Sent) -> Result<()> {
        let taken = self.ring.kick()?;
        sent.frames += taken as u64;
        sent.bytes += self.lengths.drain(..taken).sum::<usize>() as u64;
        sent.refused += u64::from(!self.lengths.is_empty());
        Ok(())
    }
}

impl Engine for Ring {
    fn name(&self) -> &'static str {
        "packet"
    }

    fn send(&mut self, source: &mut dyn Source, now: u64, want: u64) -> Result<Sent> {
        let mut sent = Sent::default();
        let want = want.min(BATCH);
        let lengths = &mut self.lengths;
        let ended = fill(source, now, want, lengths, &mut sent, |write| {
            self.ring.queue(write)
        })?;
        if !self.lengths.is_empty() {
            self.kick(&mut sent)?;
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
            self.kick(&mut sent)?;
        }
        while self.ring.is_busy() && start.elapsed() < FINISH {
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(sent)
    }
}
