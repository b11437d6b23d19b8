//! The words that the two sides of a ring share: only atomics are handed out, since the other side writes at any time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use trawl_bpf::layout::{
    ClosedSegment, POOL_MAX_SEGMENTS, PointCounters, PoolState, RING_MAX_POINTS, RingControl,
};

/// One ring's control words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control(pub(super) *mut u8);

macro_rules! word {
    ($name:ident, u64) => {
        pub(crate) fn $name<'a>(self) -> &'a AtomicU64 {
            atomic64(
                self.0
                    .wrapping_add(std::mem::offset_of!(RingControl, $name)),
            )
        }
    };
    ($name:ident, u32) => {
        pub(crate) fn $name<'a>(self) -> &'a AtomicU32 {
            atomic32(
                self.0
                    .wrapping_add(std::mem::offset_of!(RingControl, $name)),
            )
        }
    };
}

impl Control {
    word!(position, u64);
    word!(last_time, u64);
    word!(last_packet_id, u64);
    word!(clock_offset, u64);
    word!(stopped, u64);
    word!(largest_gap, u64);
    word!(open_segment, u32);
    word!(first_segment, u32);
    word!(since_poll, u32);

    pub(crate) fn point(self, point: usize) -> *mut PointCounters {
        let at = std::mem::offset_of!(RingControl, points)
            + size_of::<PointCounters>() * (point % RING_MAX_POINTS);
        self.0.wrapping_add(at).cast()
    }

    pub(super) fn losses_untold<'a>(self, point: usize) -> &'a AtomicU64 {
        let within = std::mem::offset_of!(PointCounters, losses_untold);
        atomic64(self.point(point).cast::<u8>().wrapping_add(within))
    }

    pub(super) fn counters(self, point: usize) -> PointCounters {
        // SAFETY: the pointer lies within the control block, is aligned, and any bit pattern is a valid count.
        unsafe { self.point(point).read_volatile() }
    }
}

/// The words about the pool, which are handed out in the same way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State(pub(super) *mut u8);

impl State {
    pub(crate) fn free<'a>(self) -> &'a AtomicU64 {
        atomic64(self.0.wrapping_add(std::mem::offset_of!(PoolState, free)))
    }

    pub(crate) fn in_use<'a>(self) -> &'a AtomicU64 {
        atomic64(self.0.wrapping_add(std::mem::offset_of!(PoolState, in_use)))
    }

    /// Puts a segment on top of the stack of free ones.
    pub(super) fn push_free(self, segment: u32) {
        let mut free = self.free().load(Ordering::Acquire);
        loop {
            store32(self.below(segment), free as u32);
            let with = next_turn(free) | u64::from(segment);
            match self
                .free()
                .compare_exchange(free, with, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }

    pub(crate) fn below<'a>(self, segment: u32) -> &'a AtomicU32 {
        let within = 4 * (segment as usize % POOL_MAX_SEGMENTS);
        atomic32(
            self.0
                .wrapping_add(std::mem::offset_of!(PoolState, below) + within),
        )
    }

    pub(crate) fn used<'a>(self, segment: u32) -> &'a AtomicU32 {
        let within = std::mem::offset_of!(ClosedSegment, used);
        atomic32(self.closed(segment).wrapping_add(within))
    }

    pub(crate) fn next<'a>(self, segment: u32) -> &'a AtomicU32 {
        let within = std::mem::offset_of!(ClosedSegment, next);
        atomic32(self.closed(segment).wrapping_add(within))
    }

    fn closed(self, segment: u32) -> *mut u8 {
        let within = size_of::<ClosedSegment>() * (segment as usize % POOL_MAX_SEGMENTS);
        self.0
            .wrapping_add(std::mem::offset_of!(PoolState, closed) + within)
    }
}

/// The upper half of the word that tells the top of the stack, one further.
pub(super) fn next_turn(free: u64) -> u64 {
    (free & !0xffff_ffff).wrapping_add(1 << 32)
}

pub(crate) fn store32(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Relaxed);
}

pub(super) fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

pub(super) fn atomic64<'a>(at: *mut u8) -> &'a AtomicU64 {
    // SAFETY: callers pass addresses of aligned u64 words inside a live mapping, which outlives every Control made
    // from it: the holders (Consumer, Producer, Rings itself) keep the Rings alive.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

fn atomic32<'a>(at: *mut u8) -> &'a AtomicU32 {
    // SAFETY: as in `atomic64`, for u32 words.
    unsafe { AtomicU32::from_ptr(at.cast()) }
}
