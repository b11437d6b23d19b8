//! Bytes of a ring that are lent out: their segment goes back to the pool when the last one who holds some of it is done.

use std::sync::Arc;

use super::Rings;

/// A segment that is being read.
#[derive(Debug)]
pub(super) struct Held {
    rings: Arc<Rings>,
    pub(super) segment: u32,
}

impl Held {
    pub(super) fn new(rings: Arc<Rings>, segment: u32) -> Arc<Self> {
        Arc::new(Self { rings, segment })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.rings.free_segment(self.segment);
    }
}

/// Finished blocks in one piece, from the beginning of a segment that the producer has left to the end of what is in it.
#[derive(Debug)]
pub struct Lease {
    held: Arc<Held>,
    length: usize,
}

impl Lease {
    pub(super) fn whole(held: Arc<Held>, length: usize) -> Self {
        assert!(length <= held.rings.geometry.segment_size);
        Self { held, length }
    }

    pub fn bytes(&self) -> &[u8] {
        let start = self.held.rings.bytes(self.held.segment, 0);
        // SAFETY: the range lies within the segment, whose producer has left it; nobody writes there before the segment is
        // free, which it is not while it is held. Its one lease has `fill` write after these bytes only.
        unsafe { std::slice::from_raw_parts(start, self.length) }
    }

    /// Fills the segment up to a multiple of `unit` by what `fill` puts into the room after the blocks, if it needs to.
    pub fn fill_up(&mut self, unit: usize, fill: impl FnOnce(&mut [u8])) {
        let rings = &self.held.rings;
        let end = whole_units(self.length, unit).min(rings.geometry.segment_size);
        if end == self.length {
            return;
        }
        let start = rings.bytes(self.held.segment, self.length);
        // SAFETY: the range lies within the segment and after its blocks. The producer has left the segment, there is
        // one lease of it, which is borrowed exclusively, and the consumer reads no further than the blocks.
        let room = unsafe { std::slice::from_raw_parts_mut(start, end - self.length) };
        fill(room);
        self.length = end;
    }
}

/// The next multiple of a unit that leaves room for a block, or nothing, in between.
fn whole_units(length: usize, unit: usize) -> usize {
    const SMALLEST_BLOCK: usize = 32;
    let end = length.next_multiple_of(unit);
    match end - length {
        0 => end,
        room if room < SMALLEST_BLOCK => end + unit,
        _ => end,
    }
}
