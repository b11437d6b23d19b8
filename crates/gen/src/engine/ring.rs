//! A packet socket with a transmit ring.

use std::collections::VecDeque;

use trawl_io::send::PacketRing;
use trawl_sys::Result;

use super::Sent;
use super::slots::{Device, Slots, Write};

/// See [`PacketRing`].
pub type Ring = Slots<PacketRing>;

impl Ring {
    /// For an interface of the calling thread's namespace, and frames up to that length.
    pub fn open(interface: &str, longest: usize) -> Result<Self> {
        PacketRing::open(interface, longest).map(Self::of)
    }
}

impl Device for PacketRing {
    const NAME: &'static str = "packet";

    fn fill_slot(&mut self, write: &mut Write<'_>) -> Result<Option<usize>> {
        self.queue(write)
    }

    fn hand_over(&mut self, lengths: &mut VecDeque<usize>, sent: &mut Sent) -> Result<()> {
        let taken = self.kick()?;
        sent.frames += taken as u64;
        sent.bytes += lengths.drain(..taken).sum::<usize>() as u64;
        sent.refused += u64::from(!lengths.is_empty());
        Ok(())
    }

    fn still_reads(&mut self) -> bool {
        self.is_busy()
    }
}
