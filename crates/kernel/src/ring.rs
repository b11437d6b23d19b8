//! The rings that carry finished blocks from the taps to the merge: geometry, memory and accounts.
//! The protocol is told in bpf/include/layout.h.

mod consumer;
mod lease;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::bpf::{map, object};
use crate::events;
use crate::layout::{
    CaptureShared, ClosedSegment, POOL_MAX_SEGMENTS, POOL_SLACK, PointCounters, PoolState,
    RECORD_OVERHEAD, RING_CONTROL_SIZE, RING_MAX_POINTS, Rejections, RingControl, SEGMENT_NONE,
    SEGMENT_RESERVE,
};
use crate::memory::Mapping;
use crate::probe::{Capability, lack_of};
use crate::{Error, Result};

pub use consumer::{Consumer, Observation};
pub use lease::Lease;

const PAGE: usize = 4096;
pub(crate) const IN_FLIGHT: u64 = 1;
const NO_SEGMENT: u32 = SEGMENT_NONE as u32;

/// The least memory for each CPU, and the most for all.
pub const SHARE_MIN: u64 = 64 << 10;
pub const MEMORY_MAX: u64 = 4 << 30;
/// A share of the memory at hand that is taken if nobody says how much.
const DEFAULT_SHARE: u64 = 8;
const DEFAULT_SIZE: u64 = 256 << 20;
const SEGMENT_MAX: u64 = 512 << 10;
/// The segments that all CPUs have open are at most the pool divided by this.
const OPEN_SHARE: u64 = 4;
/// The verifier takes no number that may be too large; so the pool is a number of pieces.
const BANK_MAX: u64 = 32 << 20;

/// How the memory for records is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Of all rings together.
    pub pool_size: usize,
    pub segment_size: usize,
}

impl Geometry {
    /// At most `bytes` for the rings of so many CPUs, rounded down: memory is promised not to be more than asked for.
    pub fn for_total(bytes: u64, cpus: usize) -> Result<Self> {
        let cpus = cpus.max(1) as u64;
        let least = SHARE_MIN * cpus;
        let what = || format!("cannot record with {bytes} bytes of memory");
        let fix = format!(
            "choose --memory between {} KiB and {} GiB",
            least >> 10,
            MEMORY_MAX >> 30
        );
        if bytes < least {
            let why = format!("each of {cpus} CPUs needs {} KiB", SHARE_MIN >> 10);
            return Err(Error::usage(what(), why).fix(fix));
        }
        if bytes > MEMORY_MAX {
            return Err(Error::usage(what(), "programs can address no more").fix(fix));
        }
        // Large enough for the largest packet where the memory allows it; small enough that a handful stay cached, and
        // that what all CPUs have opened is a quarter of the pool.
        let share = 1 << (bytes / cpus / OPEN_SHARE).ilog2();
        let segment_size = share.clamp(SHARE_MIN / OPEN_SHARE, SEGMENT_MAX);
        let pool_size = match bytes >= BANK_MAX {
            true => bytes / BANK_MAX * BANK_MAX,
            false => 1 << bytes.ilog2(),
        };
        Ok(Self {
            pool_size: pool_size as usize,
            segment_size: segment_size as usize,
        })
    }

    /// What is taken where nobody says: 256 MiB however many CPUs there are, less on machines with little memory.
    pub fn by_default(cpus: usize, available: u64) -> Result<Self> {
        let least = SHARE_MIN * cpus.max(1) as u64;
        Self::for_total(
            (available / DEFAULT_SHARE).clamp(least, DEFAULT_SIZE.max(least)),
            cpus,
        )
    }

    /// As much for each CPU.
    pub fn for_share(bytes: u64, cpus: usize) -> Result<Self> {
        Self::for_total(bytes.saturating_mul(cpus.max(1) as u64), cpus)
    }

    pub fn segments(&self) -> usize {
        self.pool_size / self.segment_size
    }

    /// How many bytes of a segment records take at most; what is behind them is for the one who writes them to a disk.
    pub fn segment_room(&self) -> usize {
        self.segment_size - SEGMENT_RESERVE
    }

    /// The largest number of bytes of one packet that a record can hold.
    pub fn max_captured(&self) -> u32 {
        ((self.segment_room() - RECORD_OVERHEAD) as u32)
            .min(crate::layout::RECORD_MAX_CAPTURED as u32)
    }

    /// The pool lies in banks of so many bytes each.
    pub fn bank_size(&self) -> usize {
        self.pool_size.min(BANK_MAX as usize)
    }

    fn banks(&self) -> usize {
        self.pool_size / self.bank_size()
    }

    /// From one bank's beginning to that of the next.
    fn stride(&self) -> usize {
        self.bank_size() + POOL_SLACK
    }
}

/// One ring for each CPU (or each producing thread), with the accounts of all hook points, and the pool of segments that
/// they draw from.
#[derive(Debug)]
pub struct Rings {
    geometry: Geometry,
    count: usize,
    controls: Mapping,
    pool: Mapping,
    state: Mapping,
    programs: Option<Programs>,
}

/// What BPF programs share with user space, where they are the ones who write to the rings.
#[derive(Debug)]
struct Programs {
    maps: RingMaps,
    shared: Mapping,
    rejections: Mapping,
    /// For how many CPUs `rejections` has room, a power of two.
    cpus: usize,
}

/// The maps behind rings that BPF programs write to.
#[derive(Debug)]
pub struct RingMaps {
    pub rings: OwnedFd,
    pub pool: OwnedFd,
    pub state: OwnedFd,
    pub shared: OwnedFd,
    pub rejections: OwnedFd,
}

impl Rings {
    /// Rings in BPF maps, one for each of `cpus` CPUs.
    pub fn in_maps(geometry: Geometry, cpus: usize) -> Result<Arc<Self>> {
        let shared =
            map::create_mmapable_array("trawl_shared", size_of::<CaptureShared>() as u32, 1)
                .map_err(|e| explain_refused_pool(e, geometry))?;
        let pool = map::create_mmapable_array(
            "trawl_pool",
            geometry.stride() as u32,
            geometry.banks() as u32,
        )
        .map_err(|e| explain_refused_pool(e, geometry))?;
        let state = map::create_mmapable_array("trawl_state", size_of::<PoolState>() as u32, 1)?;
        let rings = Self::over(geometry, cpus, (pool, state, shared))?;
        rings.free_all();
        Ok(rings)
    }

    /// Rings like these for programs that these are not for, out of the same pool and under the same limits of records and rate.
    pub fn beside(&self) -> Result<Arc<Self>> {
        let maps = self.maps().ok_or_else(|| {
            Error::failed(
                "cannot make rings for more programs",
                "the others have none",
            )
        })?;
        let hold = |map: &OwnedFd| {
            map.try_clone()
                .map_err(|e| Error::os("cannot hold a map", e))
        };
        let pool = (hold(&maps.pool)?, hold(&maps.state)?, hold(&maps.shared)?);
        Self::over(self.geometry, self.count, pool)
    }

    /// Rings over a pool, its state, and what is common to all programs of a capture.
    fn over(
        geometry: Geometry,
        cpus: usize,
        (pool, state, shared): (OwnedFd, OwnedFd, OwnedFd),
    ) -> Result<Arc<Self>> {
        let count = cpus as u32;
        // Any CPU may reject packets, one without a ring too.
        let possible = events::possible_cpus().max(cpus).next_power_of_two();
        let maps = RingMaps {
            rings: map::create_mmapable_array("trawl_rings", RING_CONTROL_SIZE as u32, count)?,
            pool,
            state,
            shared,
            rejections: map::create_mmapable_array(
                "trawl_rejected",
                (size_of::<Rejections>() * possible) as u32,
                1,
            )?,
        };
        let map = |map: &OwnedFd, bytes: usize| {
            Mapping::of_map(map.as_fd(), bytes.div_ceil(PAGE) * PAGE).map(Mapping::not_for_children)
        };
        let rings = Self {
            geometry,
            count: cpus,
            controls: map(&maps.rings, RING_CONTROL_SIZE * cpus)?,
            pool: map(&maps.pool, geometry.stride() * geometry.banks())?,
            state: map(&maps.state, size_of::<PoolState>())?,
            programs: Some(Programs {
                shared: map(&maps.shared, size_of::<CaptureShared>())?,
                rejections: map(&maps.rejections, size_of::<Rejections>() * possible)?,
                cpus: possible,
                maps,
            }),
        };
        rings.begin();
        Ok(Arc::new(rings))
    }

    /// Rings in this process's memory, for taps whose packets come through user space.
    pub fn in_memory(geometry: Geometry, producers: usize) -> Result<Arc<Self>> {
        let rings = Self {
            geometry,
            count: producers,
            controls: Mapping::anonymous(RING_CONTROL_SIZE * producers)?,
            pool: Mapping::anonymous(geometry.stride() * geometry.banks())?,
            state: Mapping::anonymous(size_of::<PoolState>())?,
            programs: None,
        };
        rings.free_all();
        rings.begin();
        Ok(Arc::new(rings))
    }

    /// All segments are free.
    fn free_all(&self) {
        let state = self.state();
        let last = self.geometry.segments() as u32 - 1;
        for segment in 0..=last {
            let below = if segment == last {
                NO_SEGMENT
            } else {
                segment + 1
            };
            store32(state.below(segment), below);
        }
        state.free().store(0, Ordering::Relaxed);
    }

    /// No ring has a segment.
    fn begin(&self) {
        for ring in 0..self.count {
            let control = self.control(ring);
            store32(control.open_segment(), NO_SEGMENT);
            control
                .position()
                .store(self.geometry.segment_room() as u64, Ordering::Relaxed);
            control
                .last_packet_id()
                .store((ring as u64) << 48, Ordering::Relaxed);
        }
    }

    /// Takes the free segment that was emptied last.
    pub(crate) fn take_segment(&self) -> Option<u32> {
        let state = self.state();
        let mut free = state.free().load(Ordering::Acquire);
        loop {
            let segment = free as u32;
            if segment == NO_SEGMENT {
                return None;
            }
            let below = state.below(segment).load(Ordering::Relaxed);
            let rest = next_turn(free) | u64::from(below);
            match state
                .free()
                .compare_exchange(free, rest, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Some(segment),
                Err(now) => free = now,
            }
        }
    }

    /// Gives a segment back that nobody reads any more.
    pub(crate) fn free_segment(&self, segment: u32) {
        let state = self.state();
        let mut free = state.free().load(Ordering::Acquire);
        loop {
            store32(state.below(segment), free as u32);
            let with = next_turn(free) | u64::from(segment);
            match state
                .free()
                .compare_exchange(free, with, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }

    /// The longest time between two readings of the clock with records in between: how wrong a stamp can be.
    pub fn largest_gap(&self) -> u64 {
        let gap = |ring| self.control(ring).largest_gap().load(Ordering::Relaxed);
        (0..self.count).map(gap).max().unwrap_or(0)
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub fn maps(&self) -> Option<&RingMaps> {
        self.programs.as_ref().map(|programs| &programs.maps)
    }

    /// What a program makes of a CPU's number to find its rejections.
    pub fn cpu_mask(&self) -> u32 {
        self.programs
            .as_ref()
            .map_or(0, |programs| programs.cpus as u32 - 1)
    }

    /// The tickets that the tap programs take, where there are such programs.
    pub(crate) fn tickets(&self) -> Option<&AtomicU64> {
        let offset = std::mem::offset_of!(CaptureShared, tickets);
        self.programs
            .as_ref()
            .map(|programs| atomic64(programs.shared.at(offset)))
    }

    /// The sum over all rings of one hook point's accounts.
    pub fn account(&self, point: u32) -> Account {
        let mut sum = Account::default();
        for ring in 0..self.count {
            let counters = self.control(ring).counters(point as usize);
            sum.filtered_out += counters.filtered_out;
            sum.recorded += counters.recorded;
            sum.lost_ring_full += counters.lost_ring_full;
            sum.lost_copy_failed += counters.lost_copy_failed;
            sum.lost_rate_limit += counters.lost_rate_limit;
            sum.hardware_stamped += counters.hardware_stamped;
            sum.truncated += counters.truncated;
        }
        if let Some(programs) = &self.programs {
            let offset = std::mem::offset_of!(CaptureShared, no_ring)
                + 8 * (point as usize % RING_MAX_POINTS);
            sum.lost_no_ring = load(atomic64(programs.shared.at(offset)));
            for cpu in 0..programs.cpus {
                let at = size_of::<Rejections>() * cpu + rejected_offset(point) as usize;
                sum.filtered_out += load(atomic64(programs.rejections.at(at)));
            }
        }
        sum.seen = sum.filtered_out
            + sum.recorded
            + sum.lost_ring_full
            + sum.lost_copy_failed
            + sum.lost_rate_limit
            + sum.lost_no_ring;
        sum
    }

    /// What is added to the programs' clock to give the wall clock's time.
    pub fn set_clock_offset(&self, offset: u64) {
        for ring in 0..self.count {
            self.control(ring)
                .clock_offset()
                .store(offset, Ordering::Relaxed);
        }
    }

    /// From here on the programs let packets by without counting them.
    pub fn stop(&self) {
        for ring in 0..self.count {
            self.control(ring).stopped().store(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn control(&self, ring: usize) -> Control {
        assert!(ring < self.count, "ring {ring} of {}", self.count);
        Control(self.controls.at(ring * RING_CONTROL_SIZE))
    }

    pub(crate) fn state(&self) -> State {
        State(self.state.at(0))
    }

    pub(crate) fn bytes(&self, segment: u32, offset: usize) -> *mut u8 {
        let segment = segment as usize % self.geometry.segments();
        assert!(
            offset <= self.geometry.segment_size,
            "offset {offset} lies behind a segment's end"
        );
        let per_bank = self.geometry.bank_size() / self.geometry.segment_size;
        let (bank, within) = (segment / per_bank, segment % per_bank);
        let at = bank * self.geometry.stride() + within * self.geometry.segment_size + offset;
        self.pool.at(at)
    }
}

/// The upper half of the word that tells the top of the stack, one further.
fn next_turn(free: u64) -> u64 {
    (free & !0xffff_ffff).wrapping_add(1 << 32)
}

fn explain_refused_pool(error: Error, geometry: Geometry) -> Error {
    match error.errno() {
        Some(libc::EPERM) => match lack_of(&Capability::FOR_BPF) {
            Some((why, how)) => Error::failed("cannot create the rings for packets", why).fix(how),
            None => error,
        },
        _ => error.fix(format!(
            "{} KiB may be too much here: choose less with --memory",
            geometry.pool_size >> 10
        )),
    }
}

/// Where in a control block the account of a hook point stands.
pub fn account_offset(point: u32) -> u32 {
    let index = point as usize % RING_MAX_POINTS;
    (std::mem::offset_of!(RingControl, points) + size_of::<PointCounters>() * index) as u32
}

/// Where among a CPU's rejections those of a hook point stand.
pub fn rejected_offset(point: u32) -> u32 {
    let index = point as usize % RING_MAX_POINTS;
    (std::mem::offset_of!(Rejections, points) + size_of::<u64>() * index) as u32
}

/// What became of the packets that one hook point saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub seen: u64,
    pub filtered_out: u64,
    pub recorded: u64,
    pub lost_ring_full: u64,
    pub lost_copy_failed: u64,
    pub lost_rate_limit: u64,
    /// Seen on a CPU that came up after the capture began.
    pub lost_no_ring: u64,
    pub hardware_stamped: u64,
    pub truncated: u64,
}

impl RingMaps {
    /// The maps by the names that the BPF objects give them.
    pub fn by_name(&self) -> [(&'static str, BorrowedFd<'_>); 5] {
        [
            ("rings", self.rings.as_fd()),
            ("pool", self.pool.as_fd()),
            ("pool_state", self.state.as_fd()),
            ("capture_shared", self.shared.as_fd()),
            (object::REJECTIONS, self.rejections.as_fd()),
        ]
    }
}

/// One ring's control words. Only atomics are handed out, since the other side writes at any time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control(*mut u8);

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

    fn counters(self, point: usize) -> PointCounters {
        // SAFETY: the pointer lies within the control block, is aligned, and any bit pattern is a valid count.
        unsafe { self.point(point).read_volatile() }
    }
}

/// The words about the pool, which are handed out in the same way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State(*mut u8);

impl State {
    pub(crate) fn free<'a>(self) -> &'a AtomicU64 {
        atomic64(self.0.wrapping_add(std::mem::offset_of!(PoolState, free)))
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

pub(crate) fn store32(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Relaxed);
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn atomic64<'a>(at: *mut u8) -> &'a AtomicU64 {
    // SAFETY: callers pass addresses of aligned u64 words inside a live mapping, which outlives every Control made
    // from it: the holders (Consumer, Producer, Rings itself) keep the Rings alive.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

fn atomic32<'a>(at: *mut u8) -> &'a AtomicU32 {
    // SAFETY: as in `atomic64`, for u32 words.
    unsafe { AtomicU32::from_ptr(at.cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_outside_the_bounds_is_refused() {
        for (bytes, cpus) in [
            (0, 1),
            (SHARE_MIN - 1, 1),
            (SHARE_MIN * 8 - 1, 8),
            (MEMORY_MAX + 1, 1),
            (u64::MAX, 2),
        ] {
            let error = Geometry::for_total(bytes, cpus).expect_err("refused");
            assert_eq!(error.kind(), crate::error::Kind::Usage);
        }
    }

    #[test]
    fn the_default_is_the_same_for_any_number_of_cpus() {
        let gib = 1 << 30;
        for cpus in [1, 2, 8, 128, 256] {
            let geometry = Geometry::by_default(cpus, 64 * gib).expect("in bounds");
            assert_eq!(geometry.pool_size, 256 << 20);
            assert!(geometry.segment_size * cpus <= 64 << 20, "{geometry:?}");
        }
        let small = Geometry::by_default(2, gib).expect("in bounds");
        assert_eq!(small.pool_size, 128 << 20);
        assert!(Geometry::by_default(256, 0).is_ok());
    }

    #[test]
    fn no_more_memory_than_asked_for_and_no_less_than_half() {
        for cpus in [1, 2, 3, 16, 256] {
            for bytes in (16..=32).map(|exponent| (1u64 << exponent) + 12_345) {
                let Ok(geometry) = Geometry::for_total(bytes, cpus) else {
                    continue;
                };
                let pool = geometry.pool_size as u64;
                assert!(pool <= bytes && pool > bytes / 2, "{bytes} {geometry:?}");
                assert_eq!(geometry.pool_size % geometry.segment_size, 0);
                assert!(geometry.segments() <= POOL_MAX_SEGMENTS, "{geometry:?}");
                assert!(geometry.segments() >= cpus, "{geometry:?}");
            }
        }
    }

    #[test]
    fn segments_are_taken_in_the_order_in_which_they_were_emptied_last() {
        let geometry = Geometry::for_total(1 << 20, 1).expect("in bounds");
        let rings = Rings::in_memory(geometry, 1).expect("memory");
        let taken: Vec<u32> = std::iter::from_fn(|| rings.take_segment()).collect();
        assert_eq!(taken.len(), geometry.segments());
        rings.free_segment(taken[2]);
        rings.free_segment(taken[0]);
        let again = [
            rings.take_segment(),
            rings.take_segment(),
            rings.take_segment(),
        ];
        assert_eq!(again, [Some(taken[0]), Some(taken[2]), None]);
    }
}
