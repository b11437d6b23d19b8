//! The reading side of a ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use trawl_pipeline::Leased;

use super::{IN_FLIGHT, Rings};

/// Position of a ring's producer at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observation {
    ordinal: u32,
    offset: u32,
    /// True if a record is being written: its time is not known yet, but not before `last_time`.
    pub in_flight: bool,
    /// True in the middle of a poll: the next record may be stamped just after `last_time`, without a reading of the
    /// clock.
    pub counts_on: bool,
    /// Time stamp of the last finished record.
    pub last_time: u64,
}

/// The reading side of a ring.
#[derive(Debug)]
pub struct Consumer {
    rings: Arc<Rings>,
    ring: usize,
    ordinal: u32,
    offset: u32,
    /// Segment being read; `None` before the producer has opened one.
    held: Option<Arc<Held>>,
}

impl Consumer {
    /// Creates a consumer for each ring. Called once for a set of rings.
    pub fn all(rings: &Arc<Rings>) -> Vec<Self> {
        let of = |ring| Self {
            rings: Arc::clone(rings),
            ring,
            ordinal: 0,
            offset: rings.geometry.segment_room() as u32,
            held: None,
        };
        (0..rings.count()).map(of).collect()
    }

    pub fn observe(&self) -> Observation {
        let control = self.rings.control(self.ring);
        // The time comes first: if the position were read first, the time could belong to a later record than it
        // covers.
        let last_time = control.last_time().load(Ordering::Acquire);
        let position = control.position().load(Ordering::Acquire);
        let since_poll = control.since_poll().load(Ordering::Acquire);
        Observation {
            ordinal: (position >> 32) as u32,
            offset: (position as u32) & !(IN_FLIGHT as u32),
            in_flight: position & IN_FLIGHT != 0,
            counts_on: since_poll != 0,
            last_time,
        }
    }

    /// Returns the next contiguous finished blocks, up to `until`. Empty if none are left.
    pub fn chunk(&mut self, until: &Observation) -> &[u8] {
        let end = self.find(until);
        let Some(held) = &self.held else {
            return &[];
        };
        let length = end.saturating_sub(self.offset) as usize;
        let start = self.rings.bytes(held.segment, self.offset as usize);
        assert!(self.offset as usize + length <= self.rings.geometry.segment_size, "a ring's position is broken");
        // SAFETY: the range lies within the segment (just checked), was finished before `until` was observed with
        // acquire ordering, and the producer does not write to it again before it is free, which it is not while it is
        // held; the segment after it is released by `consume`, which requires the borrow to have ended.
        unsafe { std::slice::from_raw_parts(start, length) }
    }

    /// Returns the next segment if it is full and has not been read.
    pub fn lease(&mut self, until: &Observation) -> Option<Lease> {
        let used = self.find(until);
        if self.ordinal == until.ordinal || self.offset != 0 || used == 0 {
            return None;
        }
        self.offset = used;
        let held = self.held.as_ref()?;
        Some(Lease::whole(Arc::clone(held), used as usize))
    }

    /// Returns whether the next block is the first one of the segment that is being filled.
    pub fn is_at_open_segment(&mut self, until: &Observation) -> bool {
        let end = self.find(until);
        self.ordinal == until.ordinal && self.offset == 0 && end > 0
    }

    /// Advances to the segment of the next blocks, and returns their end.
    fn find(&mut self, until: &Observation) -> u32 {
        loop {
            if self.ordinal == until.ordinal {
                return until.offset;
            }
            let used = self.used();
            if self.offset < used {
                return used;
            }
            self.leave_segment();
        }
    }

    /// Marks bytes at the front as consumed.
    pub fn consume(&mut self, bytes: usize) {
        self.offset += bytes as u32;
    }

    /// Returns true once everything up to `until` was consumed. A segment that was just opened and is still empty does
    /// not count.
    pub fn is_drained(&self, until: &Observation) -> bool {
        if self.ordinal == until.ordinal {
            return self.offset >= until.offset;
        }
        until.offset == 0 && self.ordinal.wrapping_add(1) == until.ordinal && self.offset >= self.used()
    }

    /// Returns the length of the current segment's contents, which the producer has left.
    fn used(&self) -> u32 {
        match &self.held {
            Some(held) => {
                let used = self.rings.state().used(held.segment);
                used.load(Ordering::Relaxed)
            }
            None => 0,
        }
    }

    fn leave_segment(&mut self) {
        let next = match &self.held {
            Some(held) => self.rings.state().next(held.segment),
            None => self.rings.control(self.ring).first_segment(),
        };
        let next = next.load(Ordering::Relaxed);
        self.ordinal = self.ordinal.wrapping_add(1);
        self.offset = 0;
        self.held = Some(Held::new(Arc::clone(&self.rings), next));
    }
}

// Lent bytes of a ring: their segment returns to the pool when its last holder is dropped.

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

/// Contiguous finished blocks, from the beginning of a segment that the producer has left to the end of its contents.
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
}

impl Leased for Lease {
    fn bytes(&self) -> &[u8] {
        let start = self.held.rings.bytes(self.held.segment, 0);
        // SAFETY: the range lies within the segment, whose producer has left it; no side writes to it before the
        // segment is free, which it is not while it is held. The one lease of it lets `fill` write only after these
        // bytes.
        unsafe { std::slice::from_raw_parts(start, self.length) }
    }

    fn fill_up(&mut self, unit: usize, fill: fn(&mut [u8])) {
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

/// Returns the next multiple of a unit that leaves either no gap or one large enough for a block.
fn whole_units(length: usize, unit: usize) -> usize {
    const SMALLEST_BLOCK: usize = 32;
    let end = length.next_multiple_of(unit);
    match end - length {
        0 => end,
        room if room < SMALLEST_BLOCK => end + unit,
        _ => end,
    }
}
