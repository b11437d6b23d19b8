//! AF_XDP: frames are written into memory that is shared with the kernel.

use std::collections::VecDeque;

use trawl_io::xsk::{LONGEST, XskSender};
use trawl_sys::{Error, Result};

use super::Sent;
use super::slots::{Device, Slots, Write};

/// See [`trawl_io::xsk`].
pub type Xsk = Slots<XskSender>;

impl Xsk {
    /// For a queue of an interface of the calling thread's namespace, and frames up to that length.
    pub fn open(interface: &str, queue: u32, longest: usize) -> Result<Self> {
        if longest > LONGEST {
            return Err(Error::failed(
                format!("cannot send by AF_XDP out of {interface}"),
                format!("frames of {longest} bytes do not fit its {LONGEST}"),
            )
            .fix("use --engine packet"));
        }
        XskSender::open(interface, queue).map(Self::of)
    }

    /// Whether frames are copied, in words.
    pub fn way(&self) -> &'static str {
        if self.device.is_zero_copy() {
            "AF_XDP without copying: the device reads frames where they lie"
        } else {
            "AF_XDP with copying: the driver has no way without on this queue"
        }
    }
}

impl Device for XskSender {
    const NAME: &'static str = "xsk";

    fn fill_slot(&mut self, write: &mut Write<'_>) -> Result<Option<usize>> {
        self.queue(write)
    }

    fn hand_over(&mut self, lengths: &mut VecDeque<usize>, sent: &mut Sent) -> Result<()> {
        let kicked = self.kick()?;
        // Which of them it dropped is not known; only the last one of a call can be.
        for at in 0..kicked.taken + kicked.dropped {
            let length = lengths.pop_front().unwrap_or(0);
            if at < kicked.taken {
                sent.frames += 1;
                sent.bytes += length as u64;
            }
        }
        sent.refused += u64::from(kicked.dropped) + u64::from(kicked.busy);
        Ok(())
    }

    fn still_reads(&mut self) -> bool {
        self.outstanding() > 0
    }
}
