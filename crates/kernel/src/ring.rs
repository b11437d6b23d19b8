//! The rings that carry finished blocks from the taps to the merge: geometry, memory and accounts.
//! The protocol is told in bpf/include/layout.h.

mod consumer;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::bpf::{map, object};
use crate::events;
use crate::layout::{
    CaptureShared, PointCounters, RECORD_OVERHEAD, RING_CONTROL_SIZE, RING_MAX_POINTS,
    RING_MAX_SEGMENTS, RING_SLACK, Rejections, RingControl,
};
use crate::memory::Mapping;
use crate::probe::{Capability, lack_of};
use crate::{Error, Result};

pub use consumer::{Consumer, Observation};

const PAGE: usize = 4096;
pub(crate) const IN_FLIGHT: u64 = 1;

/// The smallest and the largest ring that can be asked for.
pub const RING_SIZE_MIN: u64 = 64 << 10;
pub const RING_SIZE_MAX: u64 = 256 << 20;
/// A share of the memory at hand that all rings together take if nobody says how large they are to be.
const DEFAULT_SHARE: u64 = 8;
const DEFAULT_SIZE: u64 = 64 << 20;
const SEGMENT_MAX: usize = 512 << 10;

/// How a ring is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub ring_size: usize,
    pub segment_size: usize,
}

impl Geometry {
    /// A ring of `bytes`, rounded down to a power of two: memory is promised not to be more than asked for.
    pub fn for_size(bytes: u64) -> Result<Self> {
        let what = || format!("cannot make a ring of {bytes} bytes");
        let mend = format!(
            "choose --ring-size between {} KiB and {} MiB",
            RING_SIZE_MIN >> 10,
            RING_SIZE_MAX >> 20
        );
        if bytes < RING_SIZE_MIN {
            return Err(Error::usage(what(), "it could not hold a full-sized packet").mend(mend));
        }
        if bytes > RING_SIZE_MAX {
            return Err(Error::usage(what(), "the verifier takes no larger one").mend(mend));
        }
        let ring_size = 1usize << bytes.ilog2();
        // Large enough for the largest packet where the ring allows it; small enough that a handful stay cached.
        let segment_size = (ring_size / 4)
            .min(SEGMENT_MAX)
            .max(ring_size / RING_MAX_SEGMENTS);
        Ok(Self {
            ring_size,
            segment_size,
        })
    }

    /// What is taken where nobody says: 64 MiB for each CPU, less on machines with many CPUs and little memory.
    pub fn by_default(cpus: usize, available: u64) -> Result<Self> {
        let share = available / DEFAULT_SHARE / cpus.max(1) as u64;
        Self::for_size(share.clamp(RING_SIZE_MIN, DEFAULT_SIZE))
    }

    pub fn segments(&self) -> usize {
        self.ring_size / self.segment_size
    }

    /// The largest number of bytes of one packet that a record can hold.
    pub fn max_captured(&self) -> u32 {
        ((self.segment_size - RECORD_OVERHEAD) as u32)
            .min(crate::layout::RECORD_MAX_CAPTURED as u32)
    }

    /// One ring's memory: its control block, its bytes, and the room behind them.
    fn stride(&self) -> usize {
        RING_CONTROL_SIZE + self.ring_size + RING_SLACK
    }
}

/// One ring for each CPU (or each producing thread), with the accounts of all hook points.
#[derive(Debug)]
pub struct Rings {
    geometry: Geometry,
    count: usize,
    memory: Mapping,
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
    pub shared: OwnedFd,
    pub rejections: OwnedFd,
}

impl Rings {
    /// Rings in BPF maps, one for each of `cpus` CPUs.
    pub fn in_maps(geometry: Geometry, cpus: usize) -> Result<Arc<Self>> {
        let shared =
            map::create_mmapable_array("trawl_shared", size_of::<CaptureShared>() as u32, 1)?;
        Self::sharing(geometry, cpus, shared)
    }

    /// Rings like these for programs that these are not for, under the same limits of records and rate.
    pub fn beside(&self) -> Result<Arc<Self>> {
        let maps = self.maps().ok_or_else(|| {
            Error::failed(
                "cannot make rings for more programs",
                "the others have none",
            )
        })?;
        let shared = maps.shared.try_clone();
        let shared = shared.map_err(|e| Error::os("cannot hold a map", e))?;
        Self::sharing(self.geometry, self.count, shared)
    }

    fn sharing(geometry: Geometry, cpus: usize, shared: OwnedFd) -> Result<Arc<Self>> {
        let count = cpus as u32;
        // Any CPU may reject packets, one without a ring too.
        let possible = events::possible_cpus().max(cpus).next_power_of_two();
        let maps = RingMaps {
            rings: map::create_mmapable_array("trawl_rings", geometry.stride() as u32, count)
                .map_err(|e| mend_refused_rings(e, geometry, cpus))?,
            shared,
            rejections: map::create_mmapable_array(
                "trawl_rejected",
                (size_of::<Rejections>() * possible) as u32,
                1,
            )?,
        };
        let whole_pages = |bytes: usize| bytes.div_ceil(PAGE) * PAGE;
        let rings = Self {
            geometry,
            count: cpus,
            memory: Mapping::of_map(maps.rings.as_fd(), whole_pages(geometry.stride() * cpus))?
                .not_for_children(),
            programs: Some(Programs {
                shared: Mapping::of_map(
                    maps.shared.as_fd(),
                    whole_pages(size_of::<CaptureShared>()),
                )?,
                rejections: Mapping::of_map(
                    maps.rejections.as_fd(),
                    whole_pages(size_of::<Rejections>() * possible),
                )?,
                cpus: possible,
                maps,
            }),
        };
        rings.open_first_segments();
        Ok(Arc::new(rings))
    }

    /// Rings in this process's memory, for taps whose packets come through user space.
    pub fn in_memory(geometry: Geometry, producers: usize) -> Result<Arc<Self>> {
        let rings = Self {
            geometry,
            count: producers,
            memory: Mapping::anonymous(geometry.stride() * producers)?,
            programs: None,
        };
        rings.open_first_segments();
        Ok(Arc::new(rings))
    }

    fn open_first_segments(&self) {
        for ring in 0..self.count {
            let control = self.control(ring);
            let spare = self.geometry.segments() - 1;
            for depth in 0..spare {
                // The lowest segments lie on top of the stack, so that they are used first.
                store32(control.stack(depth), (spare - depth) as u32);
            }
            store32(control.stack_depth(), spare as u32);
            control
                .last_packet_id()
                .store((ring as u64) << 48, Ordering::Relaxed);
        }
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
        Control(self.memory.at(ring * self.geometry.stride()))
    }

    pub(crate) fn bytes(&self, ring: usize, segment: u32, offset: usize) -> *mut u8 {
        let segment = segment as usize % self.geometry.segments();
        assert!(
            offset <= self.geometry.segment_size,
            "offset {offset} lies behind a segment's end"
        );
        let within = RING_CONTROL_SIZE + segment * self.geometry.segment_size + offset;
        self.memory.at(ring * self.geometry.stride() + within)
    }
}

fn mend_refused_rings(error: Error, geometry: Geometry, cpus: usize) -> Error {
    match error.errno() {
        Some(libc::EPERM) => match lack_of(&Capability::FOR_BPF) {
            Some((why, how)) => Error::failed("cannot create the rings for packets", why).mend(how),
            None => error,
        },
        _ => error.mend(format!(
            "{} KiB for each of {cpus} CPUs may be too much here: choose a smaller --ring-size",
            geometry.ring_size >> 10
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
    pub fn by_name(&self) -> [(&'static str, BorrowedFd<'_>); 3] {
        [
            ("rings", self.rings.as_fd()),
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
    ($name:ident, [u32]) => {
        pub(crate) fn $name<'a>(self, index: usize) -> &'a AtomicU32 {
            let at = std::mem::offset_of!(RingControl, $name) + 4 * (index % RING_MAX_SEGMENTS);
            atomic32(self.0.wrapping_add(at))
        }
    };
}

impl Control {
    word!(position, u64);
    word!(last_time, u64);
    word!(last_packet_id, u64);
    word!(clock_offset, u64);
    word!(stopped, u64);
    word!(freed_given, u64);
    word!(freed_taken, u32);
    word!(stack_depth, u32);
    word!(freed, [u32]);
    word!(stack, [u32]);

    pub(crate) fn order_segment<'a>(self, ordinal: u32) -> &'a AtomicU32 {
        atomic32(self.order(ordinal))
    }

    pub(crate) fn order_used<'a>(self, ordinal: u32) -> &'a AtomicU32 {
        atomic32(self.order(ordinal).wrapping_add(4))
    }

    fn order(self, ordinal: u32) -> *mut u8 {
        let at =
            std::mem::offset_of!(RingControl, order) + 8 * (ordinal as usize % RING_MAX_SEGMENTS);
        self.0.wrapping_add(at)
    }

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
    fn sizes_outside_the_bounds_are_refused() {
        for bytes in [
            0,
            1,
            RING_SIZE_MIN - 1,
            RING_SIZE_MAX + 1,
            1 << 40,
            u64::MAX,
        ] {
            let error = Geometry::for_size(bytes).expect_err("refused");
            assert_eq!(error.kind(), crate::error::Kind::Usage);
        }
    }

    #[test]
    fn the_default_leaves_most_of_the_memory_alone() {
        let gib = 1 << 30;
        let size = |cpus, available| {
            Geometry::by_default(cpus, available)
                .expect("in bounds")
                .ring_size
        };
        assert_eq!(size(2, 16 * gib), 64 << 20);
        assert_eq!(size(128, 64 * gib), 64 << 20);
        assert_eq!(size(128, 8 * gib), 8 << 20);
        assert_eq!(size(512, 0), RING_SIZE_MIN as usize);
    }

    #[test]
    fn segments_fill_the_ring() {
        for bytes in [RING_SIZE_MIN, 100_000, 4 << 20, 64 << 20, RING_SIZE_MAX] {
            let geometry = Geometry::for_size(bytes).expect("accepted");
            assert!(geometry.ring_size as u64 <= bytes && geometry.ring_size as u64 > bytes / 2);
            assert_eq!(
                geometry.segments() * geometry.segment_size,
                geometry.ring_size
            );
            assert!(geometry.segments() <= RING_MAX_SEGMENTS);
        }
    }
}
