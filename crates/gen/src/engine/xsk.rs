//! AF_XDP: frames are written into memory that is shared with the kernel.

use std::time::{Duration, Instant};

use trawl_kernel::xsk::{LONGEST, XskSender};
use trawl_kernel::{Error, Result};

use super::fill::fill;
use super::{Engine, Sent};
use crate::source::Source;

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

    /// Whether frames are copied, in words.
    pub fn way(&self) -> &'static str {
        if self.socket.is_zero_copy() {
            "AF_XDP without copying: the device reads frames where they lie"
        } else {
            "AF_XDP with copying: the driver has no way without on this queue"
        }
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
        let want = want.min(BATCH);
        let lengths = &mut self.lengths;
        let ended = fill(source, now, want, lengths, &mut sent, |write| {
            self.socket.queue(write)
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
        // The memory may go only when the device has let go of it.
        while self.socket.outstanding() > 0 && start.elapsed() < FINISH {
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(sent)
    }
}
