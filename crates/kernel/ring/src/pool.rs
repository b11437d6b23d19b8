//! The memory of the segments. A pool that grows has a map for each bank: a separate process keeps the right to make
//! maps, which a capture gives up, and adds some whenever half of the segments are in use.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use trawl_bpf::layout::{POOL_SLACK, PoolState, RECORD_OVERHEAD, SEGMENT_RESERVE};
use trawl_bpf::{map, probe};
use trawl_sys::memory::Mapping;
use trawl_sys::process::warden::confine;
use trawl_sys::rights::helper::{self, Helper};
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result, events};

use super::{NO_SEGMENT, PAGE, State};

/// Interval at which the process checks the pool.
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Pool {
    geometry: Geometry,
    memory: Mapping,
    /// Number of banks that this process has mapped.
    banks: AtomicUsize,
    grower: Option<Mutex<Helper>>,
}

impl Pool {
    pub(super) fn in_memory(geometry: Geometry) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            geometry,
            memory: Mapping::anonymous(geometry.stride() * geometry.banks())?,
            banks: AtomicUsize::new(geometry.banks()),
            grower: None,
        }))
    }

    /// Creates the pool of programs, and the map that they use. All of its segments are free.
    pub(super) fn in_maps(geometry: Geometry, rings: usize, state: &OwnedFd) -> Result<(OwnedFd, Arc<Self>)> {
        let size = size_of::<PoolState>().div_ceil(PAGE) * PAGE;
        let shared = Mapping::of_map(state.as_fd(), size)?;
        let state = State(shared.at(0));
        if !probe::has_atomics() {
            state.queue_flag().store(1, Ordering::Relaxed);
        }
        let banks = geometry.banks_at_first(rings);
        let (map, memory, grower) = if geometry.grows_from.is_some() {
            let memory = Mapping::reserved(geometry.stride() * geometry.banks())?;
            let first = new_bank(geometry)?;
            let map = map::create_array_of_maps("trawl_pool", first.as_fd(), geometry.banks() as u32)?;
            let rest = (1..banks).map(|_| new_bank(geometry));
            for (bank, made) in std::iter::once(Ok(first)).chain(rest).enumerate() {
                let made = made?;
                map::set_program(map.as_fd(), bank as u32, made.as_fd())
                    .map_err(|e| Error::os("cannot add memory to the pool", e))?;
                memory.map_at(bank * geometry.stride(), made.as_fd(), geometry.stride())?;
            }
            let grow = |socket: &OwnedFd| grow(socket, &map, geometry, state, banks);
            let grower = Helper::run(c"trawl-memory", None, &[map.as_fd()], grow)?;
            (map, memory.not_for_children(), Some(Mutex::new(grower)))
        } else {
            let map = map::create_mmapable_array("trawl_pool", geometry.stride() as u32, geometry.banks() as u32)?;
            let bytes = geometry.stride() * geometry.banks();
            let memory = Mapping::of_map(map.as_fd(), bytes)?.not_for_children();
            (map, memory, None)
        };
        free(state, 0..banks * per_bank(geometry));
        let pool = Self { geometry, memory, banks: AtomicUsize::new(banks), grower };
        Ok((map, Arc::new(pool)))
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the address of a byte of a segment.
    pub(super) fn at(&self, segment: usize, offset: usize) -> *mut u8 {
        let per_bank = per_bank(self.geometry);
        let (bank, within) = (segment / per_bank, segment % per_bank);
        if bank >= self.banks.load(Ordering::Acquire) {
            self.map_up_to(bank);
        }
        self.memory.at(bank * self.geometry.stride() + within * self.geometry.segment_size + offset)
    }

    /// Maps the banks that were added, each of which was sent before its segments were free.
    fn map_up_to(&self, bank: usize) {
        let Some(grower) = &self.grower else { return };
        let grower = grower.lock();
        while self.banks.load(Ordering::Acquire) <= bank {
            let next = self.banks.load(Ordering::Acquire);
            let mapped = grower.receive().and_then(|map| {
                self.memory
                    .map_at(next * self.geometry.stride(), map.as_fd(), self.geometry.stride())
                    .map_err(io::Error::other)
            });
            assert!(mapped.is_ok(), "memory of the pool is missing: {mapped:?}");
            self.banks.store(next + 1, Ordering::Release);
        }
    }
}

fn per_bank(geometry: Geometry) -> usize {
    geometry.bank_size() / geometry.segment_size
}

fn new_bank(geometry: Geometry) -> Result<OwnedFd> {
    map::create_mmapable_array("trawl_bank", geometry.stride() as u32, 1)
}

/// Frees these unused segments, with the first on top.
pub(super) fn free(state: State, segments: Range<usize>) {
    if segments.start == 0 && !state.is_queue() {
        state.free().store(u64::from(NO_SEGMENT), Ordering::Relaxed);
    }
    let count = segments.len() as u64;
    state.segments().fetch_add(count, Ordering::Relaxed);
    segments.rev().for_each(|segment| state.push_free(segment as u32));
}

/// Runs the process that adds memory, until the pool is complete or the capture is over.
fn grow(socket: &OwnedFd, pool: &OwnedFd, geometry: Geometry, state: State, at_first: usize) {
    // Before Linux 5.8, the second capability implies the first.
    confine(Capabilities::BPF | Capabilities::SYS_ADMIN);
    let mut banks = at_first;
    while banks < geometry.banks() {
        if !events::is_quiet(socket.as_fd(), LOOK_EVERY) {
            return;
        }
        let in_use = state.in_use().load(Ordering::Relaxed) as usize;
        if in_use * 2 < banks * per_bank(geometry) {
            continue;
        }
        let next = geometry.banks().min(banks * 2);
        for bank in banks..next {
            let added = new_bank(geometry).map_err(io::Error::other).and_then(|map| {
                map::set_program(pool.as_fd(), bank as u32, map.as_fd())?;
                helper::send(socket, b"bank", Some(&map))
            });
            // The machine has no more memory, or the capture is over.
            if added.is_err() {
                return;
            }
            free(state, bank * per_bank(geometry)..(bank + 1) * per_bank(geometry));
        }
        banks = next;
    }
}

// Memory for records in flight, and its layout.

/// Least memory for each CPU, and the most for all.
pub const SHARE_MIN: u64 = 64 << 10;
pub const MEMORY_MAX: u64 = 4 << 30;
/// Divisor of the available memory for the default size.
const DEFAULT_SHARE: u64 = 8;
const DEFAULT_SIZE: u64 = 256 << 20;
const SEGMENT_MAX: u64 = 512 << 10;
/// Divisor of the pool: all CPUs together open at most this share.
const OPEN_SHARE: u64 = 4;
/// Largest bank: the verifier rejects larger offsets, so the pool is divided into banks.
const BANK_MAX: usize = 32 << 20;
/// The same before Linux 6.0, where a value of a map is at most 4 MiB.
const SMALL_BANK_MAX: usize = 2 << 20;

/// Size of a bank of a growing pool, each of which is a map; and the maximum number of such banks.
const GROWING_BANK: usize = 4 << 20;
const GROWING_BANKS_MAX: usize = 128;

/// Layout of the memory for records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Size in bytes, for all rings together.
    pub pool_size: usize,
    pub segment_size: usize,
    /// Least size at the beginning of a pool that grows on demand up to `pool_size`.
    pub grows_from: Option<usize>,
    /// Size of the largest bank that the kernel's maps can hold.
    #[serde(skip, default = "usual_bank_max")]
    bank_max: usize,
}

fn usual_bank_max() -> usize {
    BANK_MAX
}

impl Geometry {
    /// Returns a layout of at most `bytes` for the rings of this many CPUs: sizes are rounded down so as not to exceed
    /// the limit.
    pub fn for_total(bytes: u64, cpus: usize) -> Result<Self> {
        let cpus = cpus.max(1) as u64;
        let least = SHARE_MIN * cpus;
        let what = || format!("cannot record with {bytes} bytes of memory");
        let fix = format!(
            "choose --memory between {least_kib} KiB and {most_gib} GiB",
            least_kib = least >> 10,
            most_gib = MEMORY_MAX >> 30
        );
        if bytes < least {
            let why = format!("each of {cpus} CPUs needs {} KiB", SHARE_MIN >> 10);
            return Err(Error::usage(what(), why).fix(fix));
        }
        if bytes > MEMORY_MAX {
            return Err(Error::usage(what(), "BPF programs cannot address a ring of this size").fix(fix));
        }
        // Large enough for the largest packet if the memory allows it; small enough that a handful stay cached, and
        // that the open segments of all CPUs are a quarter of the pool.
        let share = 1 << (bytes / cpus / OPEN_SHARE).ilog2();
        let segment_size = share.clamp(SHARE_MIN / OPEN_SHARE, SEGMENT_MAX);
        let bank = BANK_MAX as u64;
        let pool_size = if bytes >= bank { bytes / bank * bank } else { 1 << bytes.ilog2() };
        Ok(Self {
            pool_size: pool_size as usize,
            segment_size: segment_size as usize,
            grows_from: None,
            bank_max: BANK_MAX,
        })
    }

    /// Returns the same layout with banks for kernels with a low limit on the size of a map's value.
    pub(super) fn in_small_values(self) -> Self {
        Self { bank_max: SMALL_BANK_MAX, ..self }
    }

    /// Returns the default layout: 256 MiB for any number of CPUs, less on machines with little memory.
    pub fn by_default(cpus: usize, available: u64) -> Result<Self> {
        let least = SHARE_MIN * cpus.max(1) as u64;
        Self::for_total((available / DEFAULT_SHARE).clamp(least, DEFAULT_SIZE.max(least)), cpus)
    }

    /// Returns the same layout, of which only `bytes` are allocated at first and the rest on demand. A capture that may
    /// end with its first packets starts sooner that way.
    pub fn growing_from(self, bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let first = bytes.max(self.least_bank());
        Self { grows_from: (self.pool_size > first).then_some(first), ..self }
    }

    /// Returns the number of banks that a pool has at first: each ring can open a segment.
    fn banks_at_first(&self, rings: usize) -> usize {
        match self.grows_from {
            Some(first) => first.max((rings + 1) * self.segment_size).div_ceil(self.bank_size()).min(self.banks()),
            None => self.banks(),
        }
    }

    fn least_bank(&self) -> usize {
        GROWING_BANK.max((self.pool_size / GROWING_BANKS_MAX).next_power_of_two()).min(self.bank_max)
    }

    /// Returns a layout with this size for each CPU.
    pub fn for_share(bytes: u64, cpus: usize) -> Result<Self> {
        Self::for_total(bytes.saturating_mul(cpus.max(1) as u64), cpus)
    }

    pub fn segments(&self) -> usize {
        self.pool_size / self.segment_size
    }

    /// Returns the number of bytes of a segment that records may fill; the rest is padding for direct writes to a disk.
    pub fn segment_room(&self) -> usize {
        self.segment_size - SEGMENT_RESERVE
    }

    /// Returns the largest number of bytes of one packet that a record can hold.
    pub fn max_captured(&self) -> u32 {
        ((self.segment_room() - RECORD_OVERHEAD) as u32).min(trawl_bpf::layout::RECORD_MAX_CAPTURED as u32)
    }

    /// Returns the size of a bank in bytes.
    pub fn bank_size(&self) -> usize {
        match self.grows_from {
            Some(_) => self.least_bank(),
            None => self.pool_size.min(self.bank_max),
        }
    }

    fn banks(&self) -> usize {
        self.pool_size / self.bank_size()
    }

    /// Returns the distance between the beginnings of two banks.
    pub(super) fn stride(&self) -> usize {
        self.bank_size() + POOL_SLACK
    }
}

#[cfg(test)]
mod tests {
    use trawl_bpf::layout::POOL_MAX_SEGMENTS;

    use super::*;

    #[test]
    fn memory_outside_the_bounds_is_refused() {
        for (bytes, cpus) in [(0, 1), (SHARE_MIN - 1, 1), (SHARE_MIN * 8 - 1, 8), (MEMORY_MAX + 1, 1), (u64::MAX, 2)] {
            let error = Geometry::for_total(bytes, cpus).expect_err("refused");
            assert_eq!(error.kind(), trawl_sys::error::ErrorKind::Usage);
        }
    }

    #[test]
    fn default_is_the_same_for_any_number_of_cpus() {
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
    fn growing_pools_have_whole_banks_and_a_segment_for_each_ring() {
        for cpus in [1, 2, 7, 64] {
            for bytes in (22..=32).map(|exponent| 1u64 << exponent) {
                let Ok(whole) = Geometry::for_total(bytes, cpus) else {
                    continue;
                };
                let geometry = whole.growing_from(0);
                assert_eq!(geometry.pool_size, whole.pool_size);
                assert_eq!(geometry.pool_size % geometry.bank_size(), 0);
                assert_eq!(geometry.bank_size() % geometry.segment_size, 0);
                let first = geometry.banks_at_first(cpus) * geometry.bank_size();
                assert!(first >= cpus * geometry.segment_size, "{geometry:?}");
                assert!(geometry.banks() <= GROWING_BANKS_MAX || geometry.grows_from.is_none());
            }
        }
        let usual = Geometry::for_total(256 << 20, 2).expect("in bounds");
        for (wanted, expected) in [(0, 4 << 20), (10 << 20, 12 << 20), (256 << 20, 256 << 20)] {
            let geometry = usual.growing_from(wanted);
            let first = geometry.banks_at_first(2) * geometry.bank_size();
            assert_eq!(first, expected);
        }
    }

    #[test]
    fn small_banks_fit_into_a_value_of_4_mib_with_any_memory() {
        for cpus in [1, 2, 7, 64] {
            for bytes in (20..=32).map(|exponent| 1u64 << exponent) {
                let Ok(whole) = Geometry::for_total(bytes, cpus) else {
                    continue;
                };
                for geometry in [whole, whole.growing_from(0)].map(Geometry::in_small_values) {
                    assert!(geometry.stride() < 4 << 20, "{geometry:?}");
                    assert_eq!(geometry.banks() * geometry.bank_size(), whole.pool_size);
                    assert_eq!(geometry.bank_size() % geometry.segment_size, 0);
                    assert!(geometry.bank_size().is_power_of_two());
                }
            }
        }
    }

    #[test]
    fn memory_is_between_half_and_all_of_the_limit() {
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
}
