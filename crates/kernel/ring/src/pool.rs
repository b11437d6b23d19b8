//! The memory of the segments. A pool that grows has a map for each bank: a process beside this one keeps the right to make
//! maps, which a capture gives up, and adds some whenever half of the segments are in use.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use trawl_bpf::layout::PoolState;
use trawl_bpf::map;
use trawl_sys::helper::{self, Helper};
use trawl_sys::memory::Mapping;
use trawl_sys::privilege::Capabilities;
use trawl_sys::warden::confine;
use trawl_sys::{Error, Result, events};

use super::words::State;
use super::{Geometry, NO_SEGMENT, PAGE};

/// How often the process looks whether there is enough.
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Pool {
    geometry: Geometry,
    memory: Mapping,
    /// The banks whose memory this process has mapped.
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

    /// The pool of programs, and the map that they are given. All of its segments are free.
    pub(super) fn in_maps(
        geometry: Geometry,
        rings: usize,
        state: &OwnedFd,
    ) -> Result<(OwnedFd, Arc<Self>)> {
        let size = size_of::<PoolState>().div_ceil(PAGE) * PAGE;
        let shared = Mapping::of_map(state.as_fd(), size)?;
        let state = State(shared.at(0));
        let banks = geometry.banks_at_first(rings);
        let (map, memory, grower) = match geometry.grows_from.is_some() {
            false => {
                let map = map::create_mmapable_array(
                    "trawl_pool",
                    geometry.stride() as u32,
                    geometry.banks() as u32,
                )?;
                let bytes = geometry.stride() * geometry.banks();
                let memory = Mapping::of_map(map.as_fd(), bytes)?.not_for_children();
                (map, memory, None)
            }
            true => {
                let memory = Mapping::reserved(geometry.stride() * geometry.banks())?;
                let first = new_bank(geometry)?;
                let map = map::create_array_of_maps("trawl_pool", &first, geometry.banks() as u32)?;
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
            }
        };
        free(state, 0..banks * per_bank(geometry));
        let pool = Self {
            geometry,
            memory,
            banks: AtomicUsize::new(banks),
            grower,
        };
        Ok((map, Arc::new(pool)))
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The address of a byte of a segment.
    pub(super) fn at(&self, segment: usize, offset: usize) -> *mut u8 {
        let per_bank = per_bank(self.geometry);
        let (bank, within) = (segment / per_bank, segment % per_bank);
        if bank >= self.banks.load(Ordering::Acquire) {
            self.map_up_to(bank);
        }
        self.memory
            .at(bank * self.geometry.stride() + within * self.geometry.segment_size + offset)
    }

    /// Maps the banks that were added, each of which was sent before its segments were free.
    fn map_up_to(&self, bank: usize) {
        let Some(grower) = &self.grower else { return };
        let grower = grower.lock();
        while self.banks.load(Ordering::Acquire) <= bank {
            let next = self.banks.load(Ordering::Acquire);
            let mapped = grower.receive().and_then(|map| {
                self.memory
                    .map_at(
                        next * self.geometry.stride(),
                        map.as_fd(),
                        self.geometry.stride(),
                    )
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

/// Makes these segments, which nobody has used yet, free, with the first on top.
pub(super) fn free(state: State, segments: Range<usize>) {
    if segments.start == 0 {
        state.free().store(u64::from(NO_SEGMENT), Ordering::Relaxed);
    }
    segments
        .rev()
        .for_each(|segment| state.push_free(segment as u32));
}

/// The life of the process that adds memory: until there is all, or the capture is over.
fn grow(socket: &OwnedFd, pool: &OwnedFd, geometry: Geometry, state: State, at_first: usize) {
    // Before Linux 5.8 the second stands for the first.
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
            let added = new_bank(geometry)
                .map_err(io::Error::other)
                .and_then(|map| {
                    map::set_program(pool.as_fd(), bank as u32, map.as_fd())?;
                    helper::send(socket, b"bank", Some(&map))
                });
            // The machine has no more memory, or the capture is over.
            if added.is_err() {
                return;
            }
            free(
                state,
                bank * per_bank(geometry)..(bank + 1) * per_bank(geometry),
            );
        }
        banks = next;
    }
}
