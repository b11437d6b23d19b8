//! The memory of the segments. A pool that grows has a map for each bank: a separate process keeps the right to make
//! maps, which a capture gives up, and adds some whenever a quarter of the segments are in use.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trawl_bpf::doorbell::Doorbell;
use trawl_bpf::layout::{POOL_SLACK, PoolState, RECORD_OVERHEAD, SEGMENT_RESERVE};
use trawl_bpf::{map, probe};
use trawl_sys::memory::Mapping;
use trawl_sys::process::{self, warden::confine};
use trawl_sys::rights::helper::{self, Helper, HelperAnswer};
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result, events};

use super::{NO_SEGMENT, PAGE, State};

/// Interval at which the process looks whether memory can be given back, and the number of looks that must find little
/// in use.
const LOOK_EVERY: Duration = Duration::from_secs(30);
const QUIET_LOOKS: u32 = 4;

/// Interval at which the process looks whether programs see a new bank.
const INSERT_TIME: Duration = Duration::from_micros(20);
/// Share of the segments, as a divisor, that are in use when the pool grows.
const GROWS_AT: usize = 4;

/// First byte of a message about a bank, whose number is the second. The map of an added bank comes with it; without a map,
/// the bank was removed. Another message is the reason for the end of the process.
const BANK: u8 = 0;

#[derive(Debug)]
pub(super) struct Pool {
    geometry: Geometry,
    memory: Mapping,
    /// For each bank: whether this process has mapped it.
    mapped: Vec<AtomicBool>,
    /// Number of banks that this process has unmapped.
    removals: AtomicU64,
    grower: Option<Mutex<Helper>>,
    /// Use of a pool in this process's memory, which the kernel allocates as it is used.
    own: Option<OwnMemory>,
    /// Reason for which no memory can be added, until it is reported.
    refusal: Mutex<Option<String>>,
}

/// Use of a pool in this process's memory.
#[derive(Debug)]
struct OwnMemory {
    /// Most segments in use at a time since memory was given back.
    most: AtomicUsize,
    /// Time when many were last in use.
    busy: Mutex<Instant>,
}

impl Pool {
    pub(super) fn in_memory(geometry: Geometry) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            geometry,
            memory: Mapping::anonymous(geometry.stride() * geometry.banks())?,
            mapped: flags(geometry, geometry.banks()),
            removals: AtomicU64::new(0),
            grower: None,
            own: Some(OwnMemory { most: AtomicUsize::new(0), busy: Mutex::new(Instant::now()) }),
            refusal: Mutex::default(),
        }))
    }

    /// Creates the pool of programs, and the map that they use. All of its segments are free.
    /// A pool that grows hears `growth`.
    pub(super) fn in_maps(
        geometry: Geometry,
        rings: usize,
        state: &OwnedFd,
        growth: &OwnedFd,
    ) -> Result<(OwnedFd, Arc<Self>)> {
        let size = size_of::<PoolState>().div_ceil(PAGE) * PAGE;
        let shared = Mapping::of_map(state.as_fd(), size)?;
        let state = State(shared.at(0));
        if !probe::has_atomics() {
            state.queue_flag().store(1, Ordering::Relaxed);
        }
        let banks = geometry.banks_at_first(rings);
        let (map, memory, grower) = if geometry.grows() {
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
            memory.hide_from_children();
            let grow = |socket: &OwnedFd| {
                let present = (0..geometry.banks()).map(|bank| bank < banks).collect();
                let mut grower = Grower { socket, pool: &map, geometry, state, present, least: banks };
                // The capture goes on with the memory that it has. If it is over, nobody hears this.
                if let Err(error) = grower.run(growth) {
                    let _ = helper::send(socket, error.why().as_bytes(), None);
                }
            };
            let grower = Helper::run(c"trawl-memory", None, &[map.as_fd(), growth.as_fd()], grow)?;
            (map, memory.not_for_children(), Some(Mutex::new(grower)))
        } else {
            let map = map::create_mmapable_array("trawl_pool", geometry.stride() as u32, geometry.banks() as u32)?;
            let bytes = geometry.stride() * geometry.banks();
            let memory = Mapping::of_map(map.as_fd(), bytes)?.not_for_children();
            (map, memory, None)
        };
        free(state, 0..banks * per_bank(geometry));
        let pool = Self {
            geometry,
            memory,
            mapped: flags(geometry, banks),
            removals: AtomicU64::new(0),
            grower,
            own: None,
            refusal: Mutex::default(),
        };
        Ok((map, Arc::new(pool)))
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the address of a byte of a segment.
    pub(super) fn at(&self, segment: usize, offset: usize, state: State) -> *mut u8 {
        let per_bank = per_bank(self.geometry);
        let (bank, within) = (segment / per_bank, segment % per_bank);
        if !self.is_current(bank, state) {
            self.follow_up_to(bank, state);
        }
        self.memory.at(bank * self.geometry.stride() + within * self.geometry.segment_size + offset)
    }

    /// Returns true if the bank is mapped, and is not an earlier one in the same place.
    fn is_current(&self, bank: usize, state: State) -> bool {
        self.mapped[bank].load(Ordering::Acquire)
            && self.removals.load(Ordering::Acquire) >= state.removals().load(Ordering::Acquire)
    }

    /// Follows the changes up to the addition of a bank, which was sent before its segments were free.
    fn follow_up_to(&self, bank: usize, state: State) {
        let Some(grower) = &self.grower else { return };
        let grower = grower.lock();
        while !self.is_current(bank, state) {
            let changed = grower.receive().and_then(|message| self.follow(message));
            assert!(changed.is_ok(), "memory of the pool is missing: {changed:?}");
        }
    }

    /// Follows the changes so far, so that the memory of removed banks is free.
    pub(super) fn catch_up(&self) {
        let Some(grower) = &self.grower else { return };
        let grower = grower.lock();
        // The process has ended if there is no more memory.
        while let Ok(Some(message)) = grower.answer() {
            if self.follow(message).is_err() {
                return;
            }
        }
    }

    /// Maps a bank that was added, unmaps one that was removed, or notes that there will be no more.
    fn follow(&self, message: HelperAnswer) -> io::Result<()> {
        let [BANK, bank] = message.bytes[..] else {
            *self.refusal.lock() = Some(String::from_utf8_lossy(&message.bytes).into_owned());
            return Ok(());
        };
        let (bank, stride) = (usize::from(bank), self.geometry.stride());
        let mapped = self.mapped.get(bank).ok_or(io::ErrorKind::InvalidData)?;
        match message.file {
            Some(map) => {
                self.memory.map_at(bank * stride, map.as_fd(), stride).map_err(io::Error::other)?;
                mapped.store(true, Ordering::Release);
            }
            None => {
                mapped.store(false, Ordering::Release);
                self.memory.unmap_at(bank * stride, stride).map_err(io::Error::other)?;
                self.removals.fetch_add(1, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Returns, once, the reason for which no memory can be added.
    pub(super) fn refusal(&self) -> Option<String> {
        self.refusal.lock().take()
    }

    /// Notes that this many segments are in use.
    pub(super) fn note_use(&self, segments: usize) {
        self.own.iter().for_each(|own| _ = own.most.fetch_max(segments, Ordering::Relaxed));
    }

    /// Gives back memory of this process after quiet minutes.
    pub(super) fn tend(&self, state: State) {
        self.tend_after(state, LOOK_EVERY * QUIET_LOOKS);
    }

    fn tend_after(&self, state: State, quiet: Duration) {
        let Some(own) = &self.own else { return };
        let (in_use, most) = (state.in_use().load(Ordering::Relaxed) as usize, own.most.load(Ordering::Relaxed));
        let mut busy = own.busy.lock();
        if in_use > most / GROWS_AT {
            *busy = Instant::now();
        }
        let least = self.geometry.at_first.div_ceil(self.geometry.bank_size());
        let is_large = most > least * per_bank(self.geometry);
        if is_large && busy.elapsed() >= quiet {
            let unused = withdraw(state, self.geometry, |bank| bank >= least, usize::MAX);
            let bank_size = self.geometry.bank_size();
            for bank in unused {
                self.memory.discard(bank * self.geometry.stride(), bank_size);
                free(state, segments_of(self.geometry, bank));
            }
            own.most.store(least * per_bank(self.geometry), Ordering::Relaxed);
        }
    }

    /// Returns the number of bytes that the segments have now.
    pub(super) fn size(&self) -> usize {
        if let Some(own) = &self.own {
            let banks = own.most.load(Ordering::Relaxed).div_ceil(per_bank(self.geometry));
            return banks * self.geometry.bank_size();
        }
        let mapped = self.mapped.iter().filter(|mapped| mapped.load(Ordering::Relaxed));
        mapped.count() * self.geometry.bank_size()
    }
}

/// Returns a flag for each bank, which is set for the first ones.
fn flags(geometry: Geometry, first: usize) -> Vec<AtomicBool> {
    (0..geometry.banks()).map(|bank| AtomicBool::new(bank < first)).collect()
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

/// The process that adds memory, and gives it back.
struct Grower<'g> {
    socket: &'g OwnedFd,
    pool: &'g OwnedFd,
    geometry: Geometry,
    state: State,
    /// For each bank: whether the pool has it.
    present: Vec<bool>,
    /// Number of the first banks, which stay.
    least: usize,
}

impl Grower<'_> {
    /// Runs until the capture is over, or the machine has no more memory.
    fn run(&mut self, doorbell: &OwnedFd) -> Result<()> {
        process::run_first();
        confine(Capabilities::BPF);
        let doorbell = Doorbell::of_map(doorbell.as_fd())?;
        let mut quiet = 0;
        loop {
            let at = self.banks() * per_bank(self.geometry) / GROWS_AT;
            let can_grow = self.banks() < self.present.len();
            // A program that took a segment before it saw this has counted it.
            self.state.grow_at().store(if can_grow { at as u64 } else { 0 }, Ordering::SeqCst);
            let in_use = self.state.in_use().load(Ordering::SeqCst) as usize;
            if in_use >= at && can_grow {
                self.grow()?;
                quiet = 0;
                continue;
            }
            let can_shrink = self.banks() > self.least && !self.state.is_queue();
            let at_most = if can_shrink { LOOK_EVERY } else { Duration::MAX };
            events::wait(&[self.socket.as_fd(), doorbell.as_fd()], at_most)?;
            if events::is_readable(self.socket.as_fd()) {
                return Ok(());
            }
            let is_quiet = !doorbell.hush() && self.state.in_use().load(Ordering::Relaxed) as usize <= at;
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if quiet >= QUIET_LOOKS {
                quiet = 0;
                self.shrink()?;
            }
        }
    }

    /// Returns the number of banks.
    fn banks(&self) -> usize {
        self.present.iter().filter(|present| **present).count()
    }

    /// Doubles the pool, or makes it complete.
    fn grow(&mut self) -> Result<()> {
        let absent = self.present.iter().enumerate().filter(|(_, present)| !**present).map(|(bank, _)| bank);
        for bank in absent.take(self.banks()).collect::<Vec<_>>() {
            let map = new_bank(self.geometry)?;
            self.tell(bank, Some(&map))
                .and_then(|()| self.insert(bank, map))
                .map_err(|e| Error::os("cannot add memory to the pool", e))?;
            free(self.state, segments_of(self.geometry, bank));
            self.present[bank] = true;
        }
        Ok(())
    }

    /// Sends that a bank was added, with its map, or removed.
    fn tell(&self, bank: usize, map: Option<&OwnedFd>) -> io::Result<()> {
        let bank = u8::try_from(bank).map_err(io::Error::other)?;
        helper::send(self.socket, &[BANK, bank], map)
    }

    /// Puts a bank into the array of programs, and returns once they see it. The system call itself returns later, after
    /// all running programs have ended (a grace period of RCU), in which they may fill all of the memory.
    fn insert(&self, bank: usize, map: OwnedFd) -> io::Result<()> {
        let pool = self.pool.try_clone()?;
        let (done, outcome) = mpsc::channel();
        thread::Builder::new().spawn(move || {
            // Nobody waits for the result any more if the programs saw the bank before.
            let _ = done.send(map::set_program(pool.as_fd(), bank as u32, map.as_fd()));
        })?;
        while !map::program_in(self.pool.as_fd(), bank as u32).is_ok_and(|found| found.is_some()) {
            match outcome.recv_timeout(INSERT_TIME) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::Interrupted.into()),
            }
        }
        Ok(())
    }

    /// Removes banks of which no segment is in use, as far as they are not needed.
    fn shrink(&mut self) -> Result<()> {
        let in_use = self.state.in_use().load(Ordering::Relaxed) as usize;
        let needed = (2 * GROWS_AT * in_use).div_ceil(per_bank(self.geometry)).max(self.least);
        let most = self.banks().saturating_sub(needed);
        let may_go = |bank: usize| bank >= self.least && self.present[bank];
        for bank in withdraw(self.state, self.geometry, may_go, most) {
            // No program reaches the bank any more.
            map::clear_program(self.pool.as_fd(), bank as u32)
                .and_then(|()| self.tell(bank, None))
                .map_err(|e| Error::os("cannot give back memory of the pool", e))?;
            self.present[bank] = false;
            self.state.removals().fetch_add(1, Ordering::Release);
        }
        Ok(())
    }
}

fn segments_of(geometry: Geometry, bank: usize) -> Range<usize> {
    bank * per_bank(geometry)..(bank + 1) * per_bank(geometry)
}

/// Takes banks of which no segment is in use off the stack of free segments: at most this many of the banks that may go,
/// the last ones first. Returns their numbers.
fn withdraw(state: State, geometry: Geometry, may_go: impl Fn(usize) -> bool, most: usize) -> Vec<usize> {
    let per_bank = per_bank(geometry);
    let stays = |segment: &u32| !may_go(*segment as usize / per_bank);
    // Programs find free segments at all times: these replace the others at once.
    let mut taken = Vec::new();
    let mut kept = Vec::new();
    while kept.len() < per_bank
        && let Some(segment) = state.pop_free()
    {
        if stays(&segment) { kept.push(segment) } else { taken.push(segment) }
    }
    for segment in state.replace_free(&kept) {
        if stays(&segment) { state.push_free(segment) } else { taken.push(segment) }
    }
    let mut counts = vec![0; geometry.banks()];
    taken.iter().for_each(|segment| counts[*segment as usize / per_bank] += 1);
    let unused = (0..geometry.banks()).rev().filter(|bank| counts[*bank] == per_bank);
    let removed: Vec<usize> = unused.take(most).collect();
    taken.retain(|segment| !removed.contains(&(*segment as usize / per_bank)));
    taken.into_iter().for_each(|segment| state.push_free(segment));
    state.segments().fetch_sub((removed.len() * per_bank) as u64, Ordering::Relaxed);
    removed
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

/// Size of a large pool at first; a smaller one has half of it or more.
const AT_FIRST: usize = 16 << 20;
/// The same, if bursts come before the pool can grow.
const AT_FIRST_FOR_BURSTS: usize = 64 << 20;
/// Size of a bank of a growing pool, each of which is a map; and the maximum number of such banks.
const GROWING_BANK: usize = 4 << 20;
const GROWING_BANKS_MAX: usize = 128;

/// Layout of the memory for records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes, for all rings together.
    pub pool_size: usize,
    pub segment_size: usize,
    /// Size at first of a pool that grows.
    at_first: usize,
    /// Size of the largest bank that the kernel's maps can hold.
    bank_max: usize,
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
            at_first: (pool_size as usize / GROWS_AT).clamp(AT_FIRST / 2, AT_FIRST),
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

    /// Returns the same layout with more memory at first, for packets that write many records each.
    pub fn for_bursts(self) -> Self {
        Self { at_first: AT_FIRST_FOR_BURSTS, ..self }
    }

    /// Returns true if a part of the memory is allocated at first, and the rest on demand.
    pub fn grows(&self) -> bool {
        self.pool_size > self.at_first
    }

    /// Returns the number of banks that a pool has at first: each ring can open a segment.
    fn banks_at_first(&self, rings: usize) -> usize {
        let least = self.at_first.max((rings + 1) * self.segment_size);
        if self.grows() { least.div_ceil(self.bank_size()).min(self.banks()) } else { self.banks() }
    }

    fn growing_bank(&self) -> usize {
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
        if self.grows() { self.growing_bank() } else { self.pool_size.min(self.bank_max) }
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
    use crate::Rings;

    #[test]
    fn banks_without_a_used_segment_are_withdrawn_while_others_take_segments() {
        let geometry = Geometry::for_total(64 << 20, 1).expect("in bounds");
        let rings = Rings::in_memory(geometry, 1).expect("memory");
        let (state, all, per_bank) = (rings.state(), geometry.banks(), per_bank(geometry));
        // A segment in the tenth bank is in use, and the others were used in any order.
        let mut taken: Vec<u32> = std::iter::from_fn(|| rings.take_segment()).collect();
        taken.sort_by_key(|segment| segment.wrapping_mul(0x9e37_79b9));
        let used = (9 * per_bank + 1) as u32;
        taken.iter().filter(|segment| **segment != used).for_each(|segment| rings.free_segment(*segment));
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let removed = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let segment = rings.take_segment().expect("a free segment at all times");
                    rings.free_segment(segment);
                }
            });
            let removed = withdraw(state, geometry, |bank| bank >= 4, all - 6);
            is_over.store(true, Ordering::Relaxed);
            removed
        });
        // The other thread may have held a segment of a bank.
        let stays = |bank: &usize| !removed.contains(bank);
        assert!((all - 7..=all - 6).contains(&removed.len()), "{removed:?}");
        assert!((0..4).chain([9]).all(|bank| stays(&bank)), "{removed:?}");
        let mut left: Vec<u32> = std::iter::from_fn(|| rings.take_segment()).collect();
        left.push(used);
        left.sort_unstable();
        let segments = |bank| segments_of(geometry, bank).map(|segment| segment as u32);
        let expected: Vec<u32> = (0..all).filter(stays).flat_map(segments).collect();
        assert_eq!(left, expected);
        assert_eq!(state.segments().load(Ordering::Relaxed), expected.len() as u64);
    }

    #[test]
    fn memory_of_this_process_is_given_back_after_a_burst() {
        let geometry = Geometry::for_total(64 << 20, 1).expect("in bounds");
        let rings = Rings::in_memory(geometry, 1).expect("memory");
        let all: Vec<u32> = std::iter::from_fn(|| rings.take_segment()).collect();
        for segment in &all {
            // SAFETY: the segment was just taken, so that no other party uses it.
            unsafe { rings.bytes(*segment, 0).write(7) };
        }
        assert_eq!((all.len(), rings.pool_size()), (geometry.segments(), 64 << 20));
        let (first, rest) = all.split_at(3);
        rest.iter().for_each(|segment| rings.free_segment(*segment));
        rings.pool.tend_after(rings.state(), Duration::from_secs(3600));
        assert_eq!(rings.pool_size(), 64 << 20, "not before the time is over");
        rings.pool.tend_after(rings.state(), Duration::ZERO);
        assert_eq!(rings.pool_size(), geometry.at_first);
        let mut again: Vec<u32> = std::iter::from_fn(|| rings.take_segment()).collect();
        // SAFETY: the segments were just taken, so that no other party uses them.
        let kept = again.iter().filter(|segment| unsafe { rings.bytes(**segment, 0).read() } == 7).count();
        assert_eq!(kept + first.len(), geometry.at_first / geometry.segment_size);
        again.extend(first);
        again.sort_unstable();
        assert_eq!(again, (0..geometry.segments() as u32).collect::<Vec<_>>());
    }

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
                let Ok(geometry) = Geometry::for_total(bytes, cpus) else {
                    continue;
                };
                assert_eq!(geometry.pool_size % geometry.bank_size(), 0);
                assert_eq!(geometry.bank_size() % geometry.segment_size, 0);
                let first = geometry.banks_at_first(cpus) * geometry.bank_size();
                assert!(first >= cpus * geometry.segment_size, "{geometry:?}");
                assert!(geometry.banks() <= GROWING_BANKS_MAX || !geometry.grows());
            }
        }
        for (bytes, expected) in [(4 << 20, 4 << 20), (256 << 20, 16 << 20)] {
            let geometry = Geometry::for_total(bytes, 2).expect("in bounds");
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
                let geometry = whole.in_small_values();
                assert!(geometry.stride() < 4 << 20, "{geometry:?}");
                assert_eq!(geometry.banks() * geometry.bank_size(), whole.pool_size);
                assert_eq!(geometry.bank_size() % geometry.segment_size, 0);
                assert!(geometry.bank_size().is_power_of_two());
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
