//! AF_XDP: frames are written into memory that is shared with the kernel.

use std::time::{Duration, Instant};

use trawl_kernel::xsk::{LONGEST, XskSender};
use trawl_kernel::{Error, Result};

use super::{Engine, Sent};
use crate::source::{Next, Source};

/// The device has so long to send what it was given.
const FINISH: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(1);
const BATCH: u64 = 256;

/// See [`trawl_kernel::xsk`].
#[derive(Debug)]
pub struct Xsk {
    socket: XskSender,
    /// The lengths of the frames that wait in the ring, oldest first.
    lengths: std::collections::VecDeque<usize>,
}

impl Xsk {
    /// For a queue of an interface of the calling thread's namespace, and frames up to that length.
    pub fn open(interface: &str, queue: u32, longest: usize) -> Result<Self> {
        if longest > LONGEST {
            return Err(Error::failed(
                format!("cannot send by AF_XDP out of {interface}"),
                format!("frames of {longest} bytes do not fit its {LONGEST}"),
            )
            .mend("use the packet engine"));
        }
        Ok(Self {
            socket: XskSender::open(interface, queue)?,
            lengths: std::collections::VecDeque::new(),
        })
    }

    fn kick(&mut self, sent: &mut Sent) -> Result<()> {
        let kicked = self.socket.kick()?;
        // Which of them it dropped is not known; only the last one of a call can be.
        for at in 0..kicked.taken + kicked.dropped {
            let length = self.lengths.pop_front().unwrap_or(0);
            if at < kicked.taken {
                sent.frames += 1;
                sent.bytes += length as u64;
            }
        }
        sent.refused += u64::from(kicked.dropped) + u64::from(kicked.busy);
        Ok(())
    }
}

impl Engine for Xsk {
    fn name(&self) -> &'static str {
        "xsk"
    }

    fn send(&mut self, source: &mut dyn Source, now: u64, want: u64) -> Result<Sent> {
        let mut sent = Sent::default();
        let mut ended = false;
        while (self.lengths.len() as u64) < want.min(BATCH) {
            let mut answer = None;
            let queued = self.socket.queue(|room| -> Result<Option<usize>> {
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
                (None, Some(_)) => ended = true,
                // No slot is free.
                (None, None) => {}
            }
            break;
        }
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
        // The memory may go only when the device has let go of it.
        while self.socket.outstanding() > 0 && start.elapsed() < FINISH {
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(sent)
    }
}
