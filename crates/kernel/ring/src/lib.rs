//! The rings that carry finished blocks from the taps to the merge: their maps and memory, and the pool of segments.
//! The protocol is described in bpf/include/layout.h.

mod consumer;
mod pool;
pub mod producer;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use trawl_bpf::doorbell::Doorbell;
use trawl_bpf::layout::drop::{KNOWN_MAX, KnownPacket};
use trawl_bpf::layout::{
    CaptureShared, ClosedSegment, POOL_MAX_SEGMENTS, PointCounters, PoolState, RING_CONTROL_SIZE, RING_FOR_RECORD,
    RING_FOR_SEGMENT, RING_MAX_POINTS, RING_SILENT, Rejections, RingControl, SEGMENT_NONE,
};
use trawl_bpf::probe::{Capability, lack_of};
use trawl_bpf::{map, object, probe};
use trawl_sys::events::Wake;
use trawl_sys::memory::Mapping;
use trawl_sys::process::cgroup;
use trawl_sys::{Error, Result, clock, events};

pub use consumer::Lease;
pub use consumer::{Consumer, Observation};
use pool::Pool;
pub use pool::{Geometry, MEMORY_MAX, SHARE_MIN};

const PAGE: usize = 4096;
pub(crate) const IN_FLIGHT: u64 = 1;
const NO_SEGMENT: u32 = SEGMENT_NONE as u32;

/// One ring for each CPU (or each producing thread), with the accounts of all hook points, and the pool that supplies
/// their segments.
#[derive(Debug)]
pub struct Rings {
    geometry: Geometry,
    count: usize,
    controls: Mapping,
    /// Distance between two control blocks in bytes.
    control_size: usize,
    pool: Arc<Pool>,
    state: Mapping,
    programs: Option<Programs>,
    /// The wake-ups of threads, if these write the rings.
    threads: Option<Wakes>,
    /// Time from which packets count, in nanoseconds since 1970.
    begun: AtomicU64,
}

/// Stop flag of the programs, which then pass packets without counting them: the capture is over, or has not begun.
const STOPPED: u64 = 1;
const HELD: u64 = 2;

/// The event that wakes the reader of rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Bell {
    /// Nothing: it is awake.
    Silent = RING_SILENT as u64,
    /// The next record.
    ForRecord = RING_FOR_RECORD as u64,
    /// A segment that becomes full.
    ForSegment = RING_FOR_SEGMENT as u64,
}

/// The wake-ups between threads that write rings and their reader.
#[derive(Debug)]
struct Wakes {
    reader: Wake,
    /// One for each ring.
    writers: Vec<Wake>,
}

/// State that BPF programs share with user space, if they are the writers of the rings.
#[derive(Debug)]
struct Programs {
    maps: RingMaps,
    shared: Mapping,
    rejections: Mapping,
    /// Number of CPUs that `rejections` has room for, a power of two.
    cpus: usize,
    /// Rejections of packets that came before the capture began, in the order of the map.
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
    /// Further maps that the programs of the capture share, by their names in the sources.
    others: Arc<Vec<(&'static str, OwnedFd)>>,
}

/// Name of the table of packets in bpf/lib/link.h.
const KNOWN: &str = "known_packets";
/// Name of the reader's doorbell in bpf/lib/ring.h.
const DOORBELL: &str = "doorbell";
/// Name of the pool's doorbell there.
const GROWTH: &str = "growth";
/// Position of the CPU number in a packet's identifier: the CPU that saw it first. This bit marks the rings of programs
/// that may interrupt the others.
const PACKET_ID_SHIFT: u32 = 48;
pub const APART: u64 = 1 << 63;

/// Returns the size of a control block with this many accounts: whole pages, so that no two CPUs share one.
fn control_size(points: usize) -> usize {
    let accounts = size_of::<PointCounters>() * points.min(RING_MAX_POINTS);
    (std::mem::offset_of!(RingControl, points) + accounts).next_multiple_of(PAGE)
}

impl Rings {
    /// Makes rings in BPF maps, one for each of `cpus` CPUs or more, with accounts of that many hook points. With
    /// `recognizes_seen`, programs recognise packets that others of them have seen. The programs also share `others`.
    pub fn in_maps(
        geometry: Geometry,
        cpus: usize,
        points: usize,
        recognizes_seen: bool,
        mut others: Vec<(&'static str, OwnedFd)>,
    ) -> Result<Arc<Self>> {
        if recognizes_seen {
            let (key, value) = (size_of::<u64>() as u32, size_of::<KnownPacket>() as u32);
            let known = map::create_lru("trawl_known", key, value, KNOWN_MAX as u32)?;
            others.push((KNOWN, known));
        }
        let geometry = if probe::has_large_values() { geometry } else { geometry.in_small_values() };
        let shared = map::create_mmapable_array("trawl_shared", size_of::<CaptureShared>() as u32, 1)
            .map_err(|e| explain_refused_pool(e, geometry))?;
        let state = map::create_mmapable_array("trawl_state", size_of::<PoolState>() as u32, 1)?;
        others.push((DOORBELL, map::create_doorbell("trawl_doorbell")?));
        if !probe::has_atomics() {
            others.push((object::CAPTURE_LOCK, map::create_lock("trawl_lock")?));
        }
        // The kernel would end this process once the pool has grown.
        if cgroup::memory_limit().is_some_and(|limit| limit < geometry.pool_size as u64) {
            let refused = std::io::Error::from_raw_os_error(libc::ENOMEM);
            let what = format!("cannot record with {} MiB of memory", geometry.pool_size >> 20);
            return Err(Error::os(what, refused).fix(less_or_more(geometry)));
        }
        let growth = map::create_doorbell("trawl_growth")?;
        let (map, pool) =
            Pool::in_maps(geometry, cpus, &state, &growth).map_err(|e| explain_refused_pool(e, geometry))?;
        others.push((GROWTH, growth));
        let size = control_size(points);
        let others = Arc::new(others);
        Self::over((cpus, size), (map, pool), (state, shared), others, 0)
    }

    /// Makes that many rings for further programs, out of the same pool and under the same limits of records and rate.
    pub fn further(&self, count: usize) -> Result<Arc<Self>> {
        let maps = self.maps().ok_or_else(|| {
            Error::failed("cannot make rings for more programs", "the other rings are not in BPF maps")
        })?;
        let hold = |map: &OwnedFd| map.try_clone().map_err(|e| Error::os("cannot hold a map", e));
        let pool = (hold(&maps.pool)?, Arc::clone(&self.pool));
        let common = (hold(&maps.state)?, hold(&maps.shared)?);
        let controls = (count, self.control_size);
        Self::over(controls, pool, common, Arc::clone(&maps.others), APART)
    }

    /// Makes rings over a pool, its state, and the maps common to all programs of a capture.
    fn over(
        (cpus, control_size): (usize, usize),
        (pool_map, pool): (OwnedFd, Arc<Pool>),
        (state, shared): (OwnedFd, OwnedFd),
        others: Arc<Vec<(&'static str, OwnedFd)>>,
        first_id: u64,
    ) -> Result<Arc<Self>> {
        let count = cpus as u32;
        // Any CPU may reject packets, also one without a ring.
        let possible = events::possible_cpus().max(cpus).next_power_of_two();
        let maps = RingMaps {
            rings: map::create_mmapable_array("trawl_rings", control_size as u32, count)?,
            pool: pool_map,
            state,
            shared,
            rejections: map::create_mmapable_array("trawl_rejected", (size_of::<Rejections>() * possible) as u32, 1)?,
            others,
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
            threads: None,
            begun: AtomicU64::new(0),
        };
        rings.begin(first_id);
        Ok(Arc::new(rings))
    }

    /// Makes rings in this process's memory, for taps whose packets come through user space.
    pub fn in_memory(geometry: Geometry, producers: usize) -> Result<Arc<Self>> {
        let rings = Self {
            geometry,
            count: producers,
            controls: Mapping::anonymous(RING_CONTROL_SIZE * producers)?,
            control_size: RING_CONTROL_SIZE,
            pool: Pool::in_memory(geometry)?,
            state: Mapping::anonymous(size_of::<PoolState>())?,
            programs: None,
            threads: Some(Wakes {
                reader: Wake::new()?,
                writers: (0..producers).map(|_| Wake::new()).collect::<Result<_>>()?,
            }),
            begun: AtomicU64::new(0),
        };
        pool::free(rings.state(), 0..geometry.segments());
        rings.begin(0);
        Ok(Arc::new(rings))
    }

    /// Initialises the rings: none has a segment.
    fn begin(&self, first_id: u64) {
        for ring in 0..self.count {
            let control = self.control(ring);
            store32(control.open_segment(), NO_SEGMENT);
            control.position().store(self.geometry.segment_room() as u64, Ordering::Relaxed);
            control.last_packet_id().store(first_id | (ring as u64) << PACKET_ID_SHIFT, Ordering::Relaxed);
        }
    }

    /// Takes the free segment that was emptied last.
    pub(crate) fn take_segment(&self) -> Option<u32> {
        let state = self.state();
        let segment = state.pop_free()?;
        let before = state.in_use().fetch_add(1, Ordering::Relaxed);
        self.pool.note_use(before as usize + 1);
        Some(segment)
    }

    /// Returns a segment that is no longer read.
    pub(crate) fn free_segment(&self, segment: u32) {
        let state = self.state();
        state.push_free(segment);
        state.in_use().fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the longest time between two readings of the clock with records in between: the largest error of a
    /// stamp.
    pub fn largest_gap(&self) -> u64 {
        let gap = |ring| self.control(ring).largest_gap().load(Ordering::Relaxed);
        (0..self.count).map(gap).max().unwrap_or(0)
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns, once, the reason for which the pool cannot grow, and advice.
    pub fn refused_memory(&self) -> Option<(String, String)> {
        Some((self.pool.refusal()?, more_memory()))
    }

    /// Gives back memory that the pool does not need any more.
    pub fn tend_pool(&self) {
        self.pool.catch_up();
        self.pool.tend(self.state());
    }

    /// Returns the number of bytes that the pool has.
    pub fn pool_size(&self) -> usize {
        self.pool.size()
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub fn maps(&self) -> Option<&RingMaps> {
        self.programs.as_ref().map(|programs| &programs.maps)
    }

    /// Returns true if the programs share the maps with the owners of sockets.
    pub fn names_processes(&self) -> bool {
        let others = self.maps().map(|maps| maps.others.iter());
        others.is_some_and(|mut others| others.any(|(name, _)| *name == object::OWNERS_MAP))
    }

    /// Returns true if the programs change shared values under a lock.
    pub fn needs_lock(&self) -> bool {
        self.state().is_queue()
    }

    /// Returns the mask of CPU numbers by which a program finds its rejections.
    pub fn cpu_mask(&self) -> u32 {
        self.programs.as_ref().map_or(0, |programs| programs.cpus as u32 - 1)
    }

    /// Returns the ticket counter of the tap programs, if they have one.
    pub(crate) fn tickets(&self) -> Option<&AtomicU64> {
        let offset = std::mem::offset_of!(CaptureShared, tickets);
        self.programs.as_ref().map(|programs| atomic64(programs.shared.at(offset)))
    }

    /// Sets the offset from the programs' clock to the wall clock.
    pub fn set_clock_offset(&self, offset: u64) {
        for ring in 0..self.count {
            self.control(ring).clock_offset().store(offset, Ordering::Relaxed);
        }
    }

    pub fn is_stopped(&self) -> bool {
        let is_stopped = |ring| self.control(ring).stopped().load(Ordering::SeqCst) == STOPPED;
        (0..self.count).all(is_stopped)
    }

    /// Sets what wakes the reader. Threads that write the rings rest as long as their reader does.
    pub fn set_bell(&self, bell: Bell) {
        for ring in 0..self.count {
            self.control(ring).bell().store(bell as u64, Ordering::SeqCst);
        }
        if bell == Bell::Silent {
            self.wake_writers();
        }
    }

    fn wake_writers(&self) {
        self.threads.iter().flat_map(|threads| &threads.writers).for_each(Wake::ring);
    }

    /// Returns true if a thread has woken the reader since the last call.
    pub fn hush(&self) -> bool {
        self.threads.as_ref().is_some_and(|threads| threads.reader.clear())
    }

    /// Returns the descriptor that wakes the reader, if threads write the rings.
    pub fn wake_of_reader(&self) -> Option<BorrowedFd<'_>> {
        self.threads.as_ref().map(|threads| threads.reader.as_fd())
    }

    /// Returns the doorbell of the programs, which rings of the same pool share.
    pub fn doorbell(&self) -> Result<Option<Doorbell>> {
        let mut others = self.maps().into_iter().flat_map(|maps| maps.others.iter());
        let map = others.find(|(name, _)| *name == DOORBELL);
        map.map(|(_, map)| Doorbell::of_map(map.as_fd())).transpose()
    }

    /// Stops the capture: from now on, programs pass packets without counting them.
    pub fn stop(&self) {
        for ring in 0..self.count {
            self.control(ring).stopped().store(STOPPED, Ordering::SeqCst);
        }
        self.wake_writers();
    }

    /// Holds the count until [`Self::release`]: the points of a capture are attached one after the other.
    pub fn hold(&self) {
        self.begun.store(u64::MAX, Ordering::SeqCst);
        for ring in 0..self.count {
            self.control(ring).stopped().store(HELD, Ordering::SeqCst);
        }
    }

    /// Begins to count now, if the count was held.
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
            // A capture that was stopped meanwhile stays stopped.
            let _ = stopped.stopped().compare_exchange(HELD, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Returns the time from which packets count, in nanoseconds since 1970; `u64::MAX` while the rings are held.
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
        assert!(offset <= self.geometry.segment_size, "offset {offset} is past a segment's end");
        self.pool.at(segment, offset, self.state())
    }
}

fn explain_refused_pool(error: Error, geometry: Geometry) -> Error {
    match error.errno() {
        Some(libc::EPERM) => match lack_of(&Capability::FOR_BPF) {
            Some((why, how)) => Error::failed("cannot create the rings for packets", why).fix(how),
            // Kernels before 5.11 count maps as locked memory.
            None => error.fix(
                "if the limit on locked memory is low: ulimit -l unlimited, or run it as root with CAP_SYS_RESOURCE",
            ),
        },
        // A pool that grows is refused its first, small part, so a smaller one would be refused too.
        _ if geometry.grows() => error.fix(more_memory()),
        _ => error.fix(less_or_more(geometry)),
    }
}

/// Returns advice for a machine without enough memory.
fn less_or_more(geometry: Geometry) -> String {
    format!("choose less than {} MiB with --memory, or {}", geometry.pool_size >> 20, more_memory())
}

fn more_memory() -> String {
    match cgroup::memory_limit() {
        Some(limit) => format!("raise the limit of its memory cgroup ({} MiB)", limit >> 20),
        None => "end other programs".to_owned(),
    }
}

impl RingMaps {
    /// Returns the maps by their names in the BPF objects.
    pub fn by_name(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        let mut maps = vec![
            ("rings", self.rings.as_fd()),
            ("pool", self.pool.as_fd()),
            ("pool_state", self.state.as_fd()),
            ("capture_shared", self.shared.as_fd()),
            (object::REJECTIONS, self.rejections.as_fd()),
        ];
        maps.extend(self.others.iter().map(|(name, map)| (*name, map.as_fd())));
        maps
    }
}

// Counters that the two sides of a ring share: only atomics are handed out, since the other side writes at any time.

/// Counters of one ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control(*mut u8);

macro_rules! word {
    ($name:ident, u64) => {
        pub(crate) fn $name<'a>(self) -> &'a AtomicU64 {
            atomic64(self.0.wrapping_add(std::mem::offset_of!(RingControl, $name)))
        }
    };
    ($name:ident, u32) => {
        pub(crate) fn $name<'a>(self) -> &'a AtomicU32 {
            atomic32(self.0.wrapping_add(std::mem::offset_of!(RingControl, $name)))
        }
    };
}

impl Control {
    word!(position, u64);
    word!(last_time, u64);
    word!(last_packet_id, u64);
    word!(clock_offset, u64);
    word!(stopped, u64);
    word!(bell, u64);
    word!(largest_gap, u64);
    word!(open_segment, u32);
    word!(first_segment, u32);
    word!(since_poll, u32);

    pub(crate) fn point(self, point: usize) -> *mut PointCounters {
        let at = std::mem::offset_of!(RingControl, points) + size_of::<PointCounters>() * (point % RING_MAX_POINTS);
        self.0.wrapping_add(at).cast()
    }

    fn losses_unreported<'a>(self, point: usize) -> &'a AtomicU64 {
        let within = std::mem::offset_of!(PointCounters, losses_unreported);
        atomic64(self.point(point).cast::<u8>().wrapping_add(within))
    }

    fn counters(self, point: usize) -> PointCounters {
        // SAFETY: the pointer lies within the control block, is aligned, and any bit pattern is a valid count.
        unsafe { self.point(point).read_volatile() }
    }
}

/// Counters of the pool, handed out in the same way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State(*mut u8);

impl State {
    pub(crate) fn free<'a>(self) -> &'a AtomicU64 {
        atomic64(self.0.wrapping_add(std::mem::offset_of!(PoolState, free)))
    }

    pub(crate) fn in_use<'a>(self) -> &'a AtomicU64 {
        atomic64(self.0.wrapping_add(std::mem::offset_of!(PoolState, in_use)))
    }

    pub(crate) fn segments<'a>(self) -> &'a AtomicU64 {
        atomic64(self.0.wrapping_add(std::mem::offset_of!(PoolState, segments)))
    }

    /// Returns true if programs take segments under a lock, from a queue that user space only adds to.
    fn is_queue(self) -> bool {
        load(self.queue_flag()) != 0
    }

    /// Returns the number of segments in use at which a program asks for more; with 0, it does not ask.
    pub(crate) fn grow_at<'a>(self) -> &'a AtomicU64 {
        atomic64(self.0.wrapping_add(std::mem::offset_of!(PoolState, grow_at)))
    }

    /// Returns the number of banks that were removed so far.
    pub(crate) fn removals<'a>(self) -> &'a AtomicU64 {
        atomic64(self.0.wrapping_add(std::mem::offset_of!(PoolState, removals)))
    }

    fn queue_flag<'a>(self) -> &'a AtomicU64 {
        atomic64(self.0.wrapping_add(std::mem::offset_of!(PoolState, is_queue)))
    }

    /// Adds a segment to the free ones.
    fn push_free(self, segment: u32) {
        if self.is_queue() { self.enqueue_free(segment) } else { self.stack_free(segment) }
    }

    /// Takes the segment on top of the stack of free ones.
    fn pop_free(self) -> Option<u32> {
        let mut free = self.free().load(Ordering::Acquire);
        loop {
            let segment = free as u32;
            if segment == NO_SEGMENT {
                return None;
            }
            let below = self.below(segment).load(Ordering::Relaxed);
            let rest = next_turn(free) | u64::from(below);
            match self.free().compare_exchange(free, rest, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(segment),
                Err(now) => free = now,
            }
        }
    }

    /// Puts these segments into the place of all that are on the stack, and returns those.
    fn replace_free(self, segments: &[u32]) -> Vec<u32> {
        let mut top = NO_SEGMENT;
        for segment in segments {
            store32(self.below(*segment), top);
            top = *segment;
        }
        let mut free = self.free().load(Ordering::Acquire);
        while let Err(now) =
            self.free().compare_exchange(free, next_turn(free) | u64::from(top), Ordering::AcqRel, Ordering::Acquire)
        {
            free = now;
        }
        let is_some = |segment: &u32| *segment != NO_SEGMENT;
        let below = |segment: &u32| Some(self.below(*segment).load(Ordering::Relaxed)).filter(is_some);
        std::iter::successors(Some(free as u32).filter(is_some), below).collect()
    }

    /// Adds a segment to the queue of free ones, which has a place for each segment.
    fn enqueue_free(self, segment: u32) {
        let place = self.free().fetch_add(1, Ordering::Relaxed) as u32;
        // The program that takes it may write to it at once.
        self.below(place).store(segment + 1, Ordering::Release);
    }

    /// Pushes a segment onto the stack of free ones.
    fn stack_free(self, segment: u32) {
        let mut free = self.free().load(Ordering::Acquire);
        loop {
            store32(self.below(segment), free as u32);
            let with = next_turn(free) | u64::from(segment);
            match self.free().compare_exchange(free, with, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }

    pub(crate) fn below<'a>(self, segment: u32) -> &'a AtomicU32 {
        let within = 4 * (segment as usize % POOL_MAX_SEGMENTS);
        atomic32(self.0.wrapping_add(std::mem::offset_of!(PoolState, below) + within))
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
        self.0.wrapping_add(std::mem::offset_of!(PoolState, closed) + within)
    }
}

/// Returns the upper half of the stack's top, incremented.
fn next_turn(free: u64) -> u64 {
    (free & !0xffff_ffff).wrapping_add(1 << 32)
}

pub(crate) fn store32(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Relaxed);
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn atomic64<'a>(at: *mut u8) -> &'a AtomicU64 {
    // SAFETY: callers pass addresses of aligned u64 counters inside a live mapping, which outlives every Control made
    // from it: the holders (Consumer, Producer, Rings itself) keep the Rings alive.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

fn atomic32<'a>(at: *mut u8) -> &'a AtomicU32 {
    // SAFETY: as in `atomic64`, for u32 counters.
    unsafe { AtomicU32::from_ptr(at.cast()) }
}

// Accounts of the packets' fates, in the rings and the maps that belong to them.

/// Returns the offset of a hook point's account in a control block.
pub fn account_offset(point: u32) -> u32 {
    let index = point as usize % RING_MAX_POINTS;
    (std::mem::offset_of!(RingControl, points) + size_of::<PointCounters>() * index) as u32
}

/// Returns the offset of a hook point's rejections among the ones of a CPU.
pub fn rejected_offset(point: u32) -> u32 {
    let index = point as usize % RING_MAX_POINTS;
    (std::mem::offset_of!(Rejections, points) + size_of::<u64>() * index) as u32
}

/// Fates of the packets that one hook point saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingAccount {
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

impl RingAccount {
    /// Returns the counts since an earlier state of the account.
    pub fn since(self, before: &Self) -> Self {
        Self {
            seen: self.seen - before.seen,
            filtered_out: self.filtered_out - before.filtered_out,
            recorded: self.recorded - before.recorded,
            lost_ring_full: self.lost_ring_full - before.lost_ring_full,
            lost_copy_failed: self.lost_copy_failed - before.lost_copy_failed,
            lost_rate_limit: self.lost_rate_limit - before.lost_rate_limit,
            lost_no_ring: self.lost_no_ring - before.lost_no_ring,
            hardware_stamped: self.hardware_stamped - before.hardware_stamped,
            truncated: self.truncated - before.truncated,
        }
    }
}

impl Rings {
    /// Clears the unreported losses of a hook point that takes over the counts of another.
    pub fn forget_unreported_losses(&self, point: u32) {
        for ring in 0..self.count {
            self.control(ring).losses_unreported(point as usize).store(0, Ordering::Relaxed);
        }
    }

    /// Returns the sum of one hook point's accounts over all rings.
    pub fn account(&self, point: u32) -> RingAccount {
        let mut sum = RingAccount::default();
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
            let offset = std::mem::offset_of!(CaptureShared, no_ring) + 8 * (point as usize % RING_MAX_POINTS);
            sum.lost_no_ring = load(atomic64(programs.shared.at(offset)));
            for cpu in 0..programs.cpus {
                let at = size_of::<Rejections>() * cpu + rejected_offset(point) as usize;
                let before = programs.rejected_before.get();
                let before = before.map_or(0, |before| before[at / size_of::<u64>()]);
                sum.filtered_out += load(atomic64(programs.rejections.at(at))) - before;
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_keeps_the_order_in_which_segments_were_emptied() {
        let geometry = Geometry::for_total(1 << 20, 1).expect("in bounds");
        let rings = Rings::in_memory(geometry, 1).expect("memory");
        let state = rings.state();
        state.queue_flag().store(1, Ordering::Relaxed);
        state.free().store(0, Ordering::Relaxed);
        (0..POOL_MAX_SEGMENTS as u32).for_each(|place| store32(state.below(place), 0));
        [3, 1, 2].into_iter().for_each(|segment| rings.free_segment(segment));
        let places: Vec<u32> = (0..4).map(|place| state.below(place).load(Ordering::Relaxed)).collect();
        assert_eq!(places, [4, 2, 3, 0]);
    }

    #[test]
    fn segments_are_reused_in_last_emptied_order() {
        let geometry = Geometry::for_total(1 << 20, 1).expect("in bounds");
        let rings = Rings::in_memory(geometry, 1).expect("memory");
        let taken: Vec<u32> = std::iter::from_fn(|| rings.take_segment()).collect();
        assert_eq!(taken.len(), geometry.segments());
        rings.free_segment(taken[2]);
        rings.free_segment(taken[0]);
        let again = [rings.take_segment(), rings.take_segment(), rings.take_segment()];
        assert_eq!(again, [Some(taken[0]), Some(taken[2]), None]);
    }
}
