//! Live XDP frames: the kernel makes the frames of a pattern, and no frame crosses from user space.

use std::time::{Duration, Instant};

use trawl_io::send::{LARGEST_RUN, LiveSender};
use trawl_sys::Result;

use super::{Engine, Sent};
use crate::pattern::kernel::Tables;
use crate::source::{Next, Source};

/// A run goes on about this long: long enough that setting it up does not count, short enough to be stopped.
const RUN: Duration = Duration::from_millis(20);
const FIRST_RUN: u64 = 4096;

/// See [`trawl_io::send`] on what the device has to be able to do.
#[derive(Debug)]
pub struct Live {
    sender: LiveSender,
    frames: Frames,
    /// As many frames as a run of about the right length has.
    most: u64,
}

/// What is given to the kernel.
#[derive(Debug)]
enum Frames {
    /// A frame to start from; the program makes the rest.
    Made(Vec<u8>),
    /// Frames that are no pattern: each is a run of its own. The length is that of one that was refused.
    Given {
        room: Vec<u8>,
        waiting: Option<usize>,
    },
}

impl Live {
    /// For an interface of the calling thread's namespace. Sources that follow no pattern are sent frame by frame,
    /// which is slow; patterns that the kernel cannot make are refused.
    pub fn open(interface: &str, source: &mut dyn Source, batch: Option<u32>) -> Result<Self> {
        let (mut sender, frames) = match source.pattern() {
            Some(source) => {
                let tables = Tables::of(source.frames())?;
                let sender = LiveSender::making(interface, &tables.plan(source))?;
                (sender, Frames::Made(tables.frame().to_vec()))
            }
            None => {
                let room = vec![0; source.longest()];
                let waiting = None;
                (
                    LiveSender::plain(interface)?,
                    Frames::Given { room, waiting },
                )
            }
        };
        if let Some(batch) = batch {
            sender.set_batch(batch);
        }
        Ok(Self {
            sender,
            frames,
            most: FIRST_RUN,
        })
    }

    fn send_made(&mut self, source: &mut dyn Source, want: u64) -> Result<Sent> {
        let Frames::Made(frame) = &self.frames else {
            return Ok(Sent::default());
        };
        let want = want.min(LARGEST_RUN);
        let start = Instant::now();
        let burst = self.sender.burst(frame, want)?;
        // Longer or shorter runs from now on, where this one was not cut short by what was due.
        if want == self.most {
            let aim = RUN.as_secs_f64() / start.elapsed().as_secs_f64().max(1e-9);
            self.most = (want as f64 * aim.clamp(0.25, 2.0)) as u64;
            self.most = self.most.clamp(FIRST_RUN, LARGEST_RUN);
        }
        // Frames that were refused are not made again: the kernel went on to the next numbers.
        let offered = burst.sent + burst.refused;
        let bytes = source.pattern().map_or(0, |source| source.skip(offered));
        let lost = bytes.checked_div(offered).unwrap_or(0) * burst.refused;
        Ok(Sent {
            frames: burst.sent,
            bytes: bytes - lost,
            refused: burst.refused,
            ..Sent::default()
        })
    }
}

impl Engine for Live {
    fn name(&self) -> &'static str {
        "live"
    }

    fn send(&mut self, source: &mut dyn Source, now: u64, want: u64) -> Result<Sent> {
        let Frames::Given { room, waiting } = &mut self.frames else {
            return self.send_made(source, want);
        };
        let length = match waiting.take() {
            Some(length) => length,
            None => match source.next(now, room)? {
                Next::Frame(length) => length,
                Next::Later(time) => {
                    return Ok(Sent {
                        later: Some(time),
                        ..Sent::default()
                    });
                }
                Next::End => {
                    return Ok(Sent {
                        ended: true,
                        ..Sent::default()
                    });
                }
            },
        };
        let burst = self.sender.burst(&room[..length], 1)?;
        if burst.sent == 0 {
            *waiting = Some(length);
        }
        Ok(Sent {
            frames: burst.sent,
            bytes: burst.sent * length as u64,
            refused: burst.refused,
            ..Sent::default()
        })
    }

    fn suspicion(&self) -> &'static str {
        "its other end is down, or has neither an XDP program nor GRO (there: ethtool -K IF gro on)"
    }

    fn most(&self) -> u64 {
        match self.frames {
            Frames::Made(_) => self.most,
            Frames::Given { .. } => 1,
        }
    }
}
