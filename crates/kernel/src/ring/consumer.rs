//! The reading side of a ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Control, IN_FLIGHT, Rings, store32};

/// How far a ring's producer had come at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observation {
    ordinal: u32,
    offset: u32,
    /// A record is being written whose time is not known yet, but is not before `last_time`.
    pub in_flight: bool,
    /// The time stamp of the last finished record.
    pub last_time: u64,
}

/// The reading side of one ring.
#[derive(Debug)]
pub struct Consumer {
    rings: Arc<Rings>,
    ring: usize,
    ordinal: u32,
    offset: u32,
    segment: u32,
}

impl Consumer {
    /// One for each ring; to be called once for a set of rings.
    pub fn all(rings: &Arc<Rings>) -> Vec<Self> {
        let of = |ring| Self {
            rings: Arc::clone(rings),
            ring,
            ordinal: 0,
            offset: 0,
            segment: 0,
        };
        (0..rings.count()).map(of).collect()
    }

    pub fn observe(&self) -> Observation {
        let control = self.rings.control(self.ring);
        // The time first: were the position read first, the time could be that of a later record than it covers.
        let last_time = control.last_time().load(Ordering::Acquire);
        let position = control.position().load(Ordering::Acquire);
        Observation {
            ordinal: (position >> 32) as u32,
            offset: (position as u32) & !(IN_FLIGHT as u32),
            in_flight: position & IN_FLIGHT != 0,
            last_time,
        }
    }

    /// The finished blocks that lie in one piece from here on, no further than `until`. Empty where there are none.
    pub fn chunk(&mut self, until: &Observation) -> &[u8] {
        let control = self.rings.control(self.ring);
        let end = loop {
            if self.ordinal == until.ordinal {
                break until.offset;
            }
            let used = control.order_used(self.ordinal).load(Ordering::Relaxed);
            if self.offset < used {
                break used;
            }
            self.leave_segment(control);
        };
        let length = end.saturating_sub(self.offset) as usize;
        let start = self
            .rings
            .bytes(self.ring, self.segment, self.offset as usize);
        assert!(
            self.offset as usize + length <= self.rings.geometry.segment_size,
            "a ring's position is broken"
        );
        // SAFETY: the range lies within the segment (just checked), was finished before `until` was observed with
        // acquire ordering, and the producer does not write to it again before it is handed back by `consume`,
        // which needs the borrow to have ended.
        unsafe { std::slice::from_raw_parts(start, length) }
    }

    /// Marks bytes at the front as done with.
    pub fn consume(&mut self, bytes: usize) {
        self.offset += bytes as u32;
    }

    /// True once everything up to `until` was consumed. A segment just opened and still empty counts as nothing.
    pub fn is_drained(&self, until: &Observation) -> bool {
        if self.ordinal == until.ordinal {
            return self.offset >= until.offset;
        }
        let used = self
            .rings
            .control(self.ring)
            .order_used(self.ordinal)
            .load(Ordering::Relaxed);
        until.offset == 0 && self.ordinal.wrapping_add(1) == until.ordinal && self.offset >= used
    }

    fn leave_segment(&mut self, control: Control) {
        let given = control.freed_given().load(Ordering::Relaxed);
        store32(control.freed(given as usize), self.segment);
        control.freed_given().store(given + 1, Ordering::Release);
        self.ordinal = self.ordinal.wrapping_add(1);
        self.offset = 0;
        self.segment = control.order_segment(self.ordinal).load(Ordering::Relaxed);
    }
}
