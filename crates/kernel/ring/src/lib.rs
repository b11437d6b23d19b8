//! The rings that carry finished blocks from the taps to the merge: their maps and memory, and the pool of segments.
//! The protocol is told in bpf/include/layout.h.

mod account;
mod consumer;
mod geometry;
mod lease;
mod pool;
pub mod producer;
mod words;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use trawl_bpf::layout::drop::{KNOWN_MAX, KnownPacket};
use trawl_bpf::layout::{
    CaptureShared, PointCounters, PoolState, RING_CONTROL_SIZE, RING_MAX_POINTS, Rejections,
    RingControl, SEGMENT_NONE,
};
use trawl_bpf::probe::{Capability, lack_of};
use trawl_bpf::{map, object};
use trawl_sys::memory::Mapping;
use trawl_sys::{Error, Result, clock, events};

pub use account::{Account, account_offset, rejected_offset};
pub use consumer::{Consumer, Observation};
pub use geometry::{Geometry, MEMORY_MAX, SHARE_MIN};
pub use lease::Lease;
use pool::Pool;
pub(crate) use words::{Control, State, store32};
use words::{atomic64, load, next_turn};

const PAGE: usize = 4096;
pub(crate) const IN_FLIGHT: u64 = 1;
const NO_SEGMENT: u32 = SEGMENT_NONE as u32;

/// One ring for each CPU (or each producing thread), with the accounts of all hook points, and the pool of segments that
/// they draw from.
#[derive(Debug)]
pub struct Rings {
    geometry: Geometry,
    count: usize,
    controls: Mapping,
    /// Bytes from one control block to the next.
    control_size: usize,
    pool: Arc<Pool>,
    state: Mapping,
    programs: Option<Programs>,
    /// Packets before this time do not count, in nanoseconds since 1970.
    begun: AtomicU64,
}

/// Why programs let packets by without counting them: the capture is over, or has not begun.
const STOPPED: u64 = 1;
const HELD: u64 = 2;

/// What BPF programs share with user space, where they are the ones who write to the rings.
#[derive(Debug)]
struct Programs {
    maps: RingMaps,
    shared: Mapping,
    rejections: Mapping,
    /// For how many CPUs `rejections` has room, a power of two.
    cpus: usize,
    /// The rejections of packets that came before the capture began, in the order of the map.
    rejected_before: OnceLock<Vec<u64>>,
}

/// The maps of rings that BPF programs write to.
#[derive(Debug)]
pub struct RingMaps {
    pub rings: OwnedFd,
    pub pool: OwnedFd,
    pub state: OwnedFd,
    pub shared: OwnedFd,
    pub rejections: OwnedFd,
    /// What is known of packets that one program has seen and others may see again, where that is asked for.
    pub known: Option<Arc<OwnedFd>>,
}

/// The table's name in bpf/include/link.h.
const KNOWN: &str = "known_packets";
/// A packet's identifier begins with the CPU that saw it first. This bit says that it came through rings of programs that
/// may interrupt the others.
pub const PACKET_ID_SHIFT: u32 = 48;
pub const APART: u64 = 1 << 63;

/// The size of a control block with this many accounts: whole pages, so that those of two CPUs are on different ones.
fn control_size(points: usize) -> usize {
    let accounts = size_of::<PointCounters>() * points.min(RING_MAX_POINTS);
    (std::mem::offset_of!(RingControl, points) + accounts).next_multiple_of(PAGE)
}

impl Rings {
    /// Rings in BPF maps, one for each of `cpus` CPUs, with accounts of that many hook points. With `knows_again`, programs
    /// know packets again that others of them have seen.
    pub fn in_maps(
        geometry: Geometry,
        cpus: usize,
        points: usize,
        knows_again: bool,
    ) -> Result<Arc<Self>> {
        let known = knows_again
            .then(|| {
                let (key, value) = (size_of::<u64>() as u32, size_of::<KnownPacket>() as u32);
                map::create_lru("trawl_known", key, value, KNOWN_MAX as u32)
            })
            .transpose()?
            .map(Arc::new);
        let shared =
            map::create_mmapable_array("trawl_shared", size_of::<CaptureShared>() as u32, 1)
                .map_err(|e| explain_refused_pool(e, geometry))?;
        let state = map::create_mmapable_array("trawl_state", size_of::<PoolState>() as u32, 1)?;
        let (map, pool) =
            Pool::in_maps(geometry, cpus, &state).map_err(|e| explain_refused_pool(e, geometry))?;
        let size = control_size(points);
        Self::over((cpus, size), (map, pool), (state, shared), known, 0)
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
        let pool = (hold(&maps.pool)?, Arc::clone(&self.pool));
        let common = (hold(&maps.state)?, hold(&maps.shared)?);
        let controls = (self.count, self.control_size);
        Self::over(controls, pool, common, maps.known.clone(), APART)
    }

    /// Rings over a pool, its state, and what is common to all programs of a capture.
    fn over(
        (cpus, control_size): (usize, usize),
        (pool_map, pool): (OwnedFd, Arc<Pool>),
        (state, shared): (OwnedFd, OwnedFd),
        known: Option<Arc<OwnedFd>>,
        first_id: u64,
    ) -> Result<Arc<Self>> {
        let count = cpus as u32;
        // Any CPU may reject packets, one without a ring too.
        let possible = events::possible_cpus().max(cpus).next_power_of_two();
        let maps = RingMaps {
            rings: map::create_mmapable_array("trawl_rings", control_size as u32, count)?,
            pool: pool_map,
            state,
            shared,
            rejections: map::create_mmapable_array(
                "trawl_rejected",
                (size_of::<Rejections>() * possible) as u32,
                1,
            )?,
            known,
        };
        let map = |map: &OwnedFd, bytes: usize| {
            Mapping::of_map(map.as_fd(), bytes.div_ceil(PAGE) * PAGE).map(Mapping::not_for_children)
        };
        let rings = Self {
            geometry: pool.geometry(),
            count: cpus,
            controls: map(&maps.rings, control_size * cpus)?,
            control_size,
            pool,
            state: map(&maps.state, size_of::<PoolState>())?,
            programs: Some(Programs {
                shared: map(&maps.shared, size_of::<CaptureShared>())?,
                rejections: map(&maps.rejections, size_of::<Rejections>() * possible)?,
                cpus: possible,
                maps,
                rejected_before: OnceLock::new(),
            }),
            begun: AtomicU64::new(0),
        };
        rings.begin(first_id);
        Ok(Arc::new(rings))
    }

    /// Rings in this process's memory, for taps whose packets come through user space.
    pub fn in_memory(geometry: Geometry, producers: usize) -> Result<Arc<Self>> {
        let rings = Self {
            geometry,
            count: producers,
            controls: Mapping::anonymous(RING_CONTROL_SIZE * producers)?,
            control_size: RING_CONTROL_SIZE,
            pool: Pool::in_memory(geometry)?,
            state: Mapping::anonymous(size_of::<PoolState>())?,
            programs: None,
            begun: AtomicU64::new(0),
        };
        pool::free(rings.state(), 0..geometry.segments());
        rings.begin(0);
        Ok(Arc::new(rings))
    }

    /// No ring has a segment.
    fn begin(&self, first_id: u64) {
        for ring in 0..self.count {
            let control = self.control(ring);
            store32(control.open_segment(), NO_SEGMENT);
            control
                .position()
                .store(self.geometry.segment_room() as u64, Ordering::Relaxed);
            control.last_packet_id().store(
                first_id | (ring as u64) << PACKET_ID_SHIFT,
                Ordering::Relaxed,
            );
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
                Ok(_) => {
                    state.in_use().fetch_add(1, Ordering::Relaxed);
                    return Some(segment);
                }
                Err(now) => free = now,
            }
        }
    }

    /// Gives a segment back that nobody reads any more.
    pub(crate) fn free_segment(&self, segment: u32) {
        let state = self.state();
        state.push_free(segment);
        state.in_use().fetch_sub(1, Ordering::Relaxed);
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

    /// What is added to the programs' clock to give the wall clock's time.
    pub fn set_clock_offset(&self, offset: u64) {
        for ring in 0..self.count {
            self.control(ring)
                .clock_offset()
                .store(offset, Ordering::Relaxed);
        }
    }

    pub fn is_stopped(&self) -> bool {
        let is_stopped = |ring| self.control(ring).stopped().load(Ordering::SeqCst) == STOPPED;
        (0..self.count).all(is_stopped)
    }

    /// From here on the programs let packets by without counting them.
    pub fn stop(&self) {
        for ring in 0..self.count {
            self.control(ring)
                .stopped()
                .store(STOPPED, Ordering::SeqCst);
        }
    }

    /// Packets count from [`Self::release`] on: the points of a capture are attached one after the other.
    pub fn hold(&self) {
        self.begun.store(u64::MAX, Ordering::SeqCst);
        for ring in 0..self.count {
            self.control(ring).stopped().store(HELD, Ordering::SeqCst);
        }
    }

    /// Begins to count, now, if it was held.
    pub fn release(&self) {
        if self.begun.load(Ordering::SeqCst) != u64::MAX {
            return;
        }
        if let Some(programs) = &self.programs {
            let words = size_of::<Rejections>() * programs.cpus / size_of::<u64>();
            let word = |at| load(atomic64(programs.rejections.at(at * size_of::<u64>())));
            // Each set of rings is released once.
            let _ = programs.rejected_before.set((0..words).map(word).collect());
        }
        self.begun.store(clock::wall(), Ordering::SeqCst);
        for ring in 0..self.count {
            let stopped = self.control(ring);
            // A capture that was stopped meanwhile stays so.
            let _ = stopped
                .stopped()
                .compare_exchange(HELD, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Packets before this time do not count, in nanoseconds since 1970; `u64::MAX` while the rings are held.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    pub(crate) fn control(&self, ring: usize) -> Control {
        assert!(ring < self.count, "ring {ring} of {}", self.count);
        Control(self.controls.at(ring * self.control_size))
    }

    pub(crate) fn state(&self) -> State {
        State(self.state.at(0))
    }

    pub(crate) fn bytes(&self, segment: u32, offset: usize) -> *mut u8 {
        let segment = segment as usize % self.geometry.segments();
        assert!(
            offset <= self.geometry.segment_size,
            "offset {offset} is past a segment's end"
        );
        self.pool.at(segment, offset)
    }
}

fn explain_refused_pool(error: Error, geometry: Geometry) -> Error {
    match error.errno() {
        Some(libc::EPERM) => match lack_of(&Capability::FOR_BPF) {
            Some((why, how)) => Error::failed("cannot create the rings for packets", why).fix(how),
            None => error,
        },
        _ => error.fix(format!(
            "{} KiB may be too much here: choose less with --memory",
            geometry.pool_size as u64 >> 10
        )),
    }
}

impl RingMaps {
    /// The maps by the names that the BPF objects give them.
    pub fn by_name(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        let mut maps = vec![
            ("rings", self.rings.as_fd()),
            ("pool", self.pool.as_fd()),
            ("pool_state", self.state.as_fd()),
            ("capture_shared", self.shared.as_fd()),
            (object::REJECTIONS, self.rejections.as_fd()),
        ];
        maps.extend(self.known.as_ref().map(|known| (KNOWN, known.as_fd())));
        maps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
