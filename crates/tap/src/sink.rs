//! What a capture hands its finished blocks to. Files and their like are in the crate `sink`.

use trawl_packet::pcapng::block::blocks;
use trawl_ring::Lease;
use trawl_sys::Result;

use crate::account::Summary;
use crate::stream::Stream;

/// Takes whole blocks, many at a time.
pub trait Sink {
    fn write(&mut self, blocks: &[u8]) -> Result<()>;

    /// The sink that this one hands on to, if it stands in front of another: what it does not do itself is asked of that.
    fn next(&self) -> Option<&dyn Sink> {
        None
    }

    /// The same, to be written to.
    fn next_mut(&mut self) -> Option<&mut dyn Sink> {
        None
    }

    /// Nothing more is at hand for now, after records as well as in every round without any: who looks on should see
    /// all there is.
    fn rest(&mut self) -> Result<()> {
        self.next_mut().map_or(Ok(()), |next| next.rest())
    }

    /// Whether it has as many bytes as were wanted.
    fn is_full(&self) -> bool {
        self.next().is_some_and(|next| next.is_full())
    }

    /// Returns whether its queue is filling: the caller should hold back.
    fn is_busy(&self) -> bool {
        self.next().is_some_and(|next| next.is_busy())
    }

    /// How long its file is at most by now, if it has one.
    fn length(&self) -> u64 {
        0
    }

    /// Waits until the file's length is exact, and says whether it had been less than `length` told.
    fn compact(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Returns the upper bound of padding and trailers that its file gets with `bytes`.
    fn filling(&self, _bytes: usize) -> u64 {
        0
    }

    /// Whether whole segments of a ring are wanted as they are. The open one is then held back for a moment.
    fn takes_segments(&self) -> bool {
        false
    }

    /// Takes a whole segment, which is given back when it is dropped.
    fn take(&mut self, segment: Lease) -> Result<()> {
        self.write(segment.bytes())
    }

    /// Packets that were lost on the way out while others went on, by interface block and reason.
    fn lost(&self) -> Vec<(u32, &'static str, u64)> {
        self.next().map_or(Vec::new(), |next| next.lost())
    }

    /// Where somebody else has cut the file: the packets that it still holds, by interface block.
    fn found(&self) -> Option<Vec<u64>> {
        self.next()?.found()
    }

    /// Returns when all that came is where it belongs.
    fn settle(&mut self) -> Result<()> {
        match self.next_mut() {
            Some(next) => next.settle(),
            None => self.rest(),
        }
    }

    /// What comes next led to an event or follows one; where there are several files, it has one of its own.
    fn event_begins(&mut self) -> Result<()> {
        self.next_mut().map_or(Ok(()), |next| next.event_begins())
    }

    /// The time after an event is over.
    fn event_over(&mut self) -> Result<()> {
        match self.next_mut() {
            Some(next) => next.event_over(),
            None => self.rest(),
        }
    }

    /// The interface blocks that came after those that the file begins with, each with its number and its packets.
    fn added_interfaces(&self) -> Vec<(u32, u64)> {
        self.next()
            .map_or(Vec::new(), |next| next.added_interfaces())
    }

    /// The blocks that an error, or a reader that does not read, kept from being written.
    fn take_unwritten(&mut self) -> Vec<u8> {
        self.next_mut()
            .map_or(Vec::new(), |next| next.take_unwritten())
    }

    /// Whether it wants to be told of the account from time to time.
    fn wants_account(&self) -> bool {
        self.next().is_some_and(|next| next.wants_account())
    }

    /// What became of packets up to now.
    fn account(&mut self, summary: &Summary) {
        if let Some(next) = self.next_mut() {
            next.account(summary);
        }
    }

    /// Where the blocks go to a reader that may take its time.
    fn stream(&mut self) -> Option<&mut Stream> {
        self.next_mut()?.stream()
    }
}

/// Whether the sink's reader has not taken all that it was given: more should wait.
pub fn is_behind(sink: &mut dyn Sink) -> bool {
    sink.stream().is_some_and(|stream| stream.is_behind())
}

/// Counts packets by interface block instead of keeping them: the fate of what came after a full disk.
#[derive(Debug, Default)]
pub struct Counting {
    pub packets: Vec<u64>,
}

impl Sink for Counting {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        for packet in blocks(bytes).filter_map(|block| block.enhanced_packet()) {
            let index = packet.interface_id as usize;
            if self.packets.len() <= index {
                self.packets.resize(index + 1, 0);
            }
            self.packets[index] += 1;
        }
        Ok(())
    }
}
