//! The rule set in force, shared by the programs of all guarded interfaces.
//!
//! On kernels that support arenas, the set is in an arena, whose first line names the set in force. On others it is in
//! an array of maps with one slot. A single store replaces the set: each packet is judged either by the old one or by
//! the new one.

use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use trawl_bpf::arena::{SharedArray, create_slot, fill_slot, in_slot};
use trawl_bpf::layout::guard::{GUARD_LINE, GUARD_SOURCES, GuardArena, GuardDefinition, GuardSource};
use trawl_bpf::probe::KernelFeature;
use trawl_bpf::{arena, map, object};
use trawl_sys::memory::Mapping;
use trawl_sys::{Error, Result, host};

use crate::compile::{self, DEFINITION_LINES, Stored, compile};
use crate::set::RuleSet;

const NAME: &str = "trawl_guard_set";
const ARENA_NAME: &str = "guard_set";

/// Creates a map for the rates of sources.
pub fn new_rates() -> Result<OwnedFd> {
    let key = size_of::<GuardSource>() as u32;
    map::create_lru("guard_rates", key, size_of::<u64>() as u32, GUARD_SOURCES as u32)
}

/// Storage of a namespace's rules.
#[derive(Debug)]
pub enum Store {
    Arena(OwnedFd),
    Slot(OwnedFd),
}

impl Store {
    /// Creates an empty store, of the best kind that the kernel supports. Stores with different seeds can be mapped by
    /// one process at the same time.
    pub fn create(seed: u64) -> Result<Self> {
        if KernelFeature::Arena.probe().is_supported() { Self::new_arena(seed) } else { Self::new_slot() }
    }

    pub fn new_arena(seed: u64) -> Result<Self> {
        arena::create(ARENA_NAME, arena::LARGEST, arena::address_of(seed))
            .map(Self::Arena)
            .map_err(|e| Error::os("cannot create an arena for the rules", e))
    }

    pub fn new_slot() -> Result<Self> {
        let like = SharedArray::create(NAME, GUARD_LINE as u32, 1)?;
        create_slot("guard_set", like.as_fd()).map(Self::Slot)
    }

    /// Opens an existing store.
    pub fn of(fd: OwnedFd) -> Result<Self> {
        let about = map::info(&fd).map_err(|e| Error::os("cannot read the rules", e))?;
        Ok(if about.kind == arena::KIND { Self::Arena(fd) } else { Self::Slot(fd) })
    }

    /// Returns the object with the programs that read this kind of store.
    pub fn object(&self) -> &'static [u8] {
        match self {
            Self::Arena(_) => object::XDP_GUARD,
            Self::Slot(_) => object::XDP_GUARD_ARRAY,
        }
    }

    /// Returns the set in force, with its hits; an empty set if none is.
    pub fn read(&self) -> Result<RuleSet> {
        match self {
            Self::Arena(fd) => {
                let arena = Arena::open(fd.as_fd())?;
                arena.set_at(arena.current())
            }
            Self::Slot(fd) => read_slot(fd.as_fd()),
        }
    }

    /// Replaces the set in force. Rules in both sets keep their hits without losing any.
    pub fn publish(&self, set: &RuleSet) -> Result<()> {
        match self {
            Self::Arena(fd) => Arena::open(fd.as_fd())?.publish(set),
            Self::Slot(fd) => publish_in_slot(fd.as_fd(), set),
        }
    }
}

impl AsFd for Store {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Arena(fd) | Self::Slot(fd) => fd.as_fd(),
        }
    }
}

impl From<Store> for OwnedFd {
    fn from(store: Store) -> Self {
        match store {
            Store::Arena(fd) | Store::Slot(fd) => fd,
        }
    }
}

/// An arena with rule sets, mapped.
struct Arena {
    memory: Mapping,
}

impl Arena {
    /// Maps the arena, and finishes a replacement that a killed command left half-done.
    fn open(fd: BorrowedFd<'_>) -> Result<Self> {
        let mut arena = Self { memory: arena::map(fd)? };
        arena.carry_hits_over()?;
        Ok(arena)
    }

    fn current(&self) -> u32 {
        let at = offset_of!(GuardArena, current);
        self.memory.short(at).load(Ordering::Acquire)
    }

    fn previous(&self) -> u32 {
        let at = offset_of!(GuardArena, previous);
        self.memory.short(at).load(Ordering::Acquire)
    }

    fn set_at(&self, line: u32) -> Result<RuleSet> {
        match line {
            0 => Ok(RuleSet::default()),
            line => stored(&self.memory, line).set(),
        }
    }

    fn publish(&mut self, set: &RuleSet) -> Result<()> {
        self.replace(set)?;
        self.carry_hits_over()
    }

    /// Writes a set into the half of the arena that the set in force does not occupy, and puts it in force.
    fn replace(&mut self, set: &RuleSet) -> Result<()> {
        let old = self.current() as usize;
        let half = self.memory.length() / GUARD_LINE / 2;
        // After the line that names the set in force, or in the other half at the same offset in a page.
        let first = size_of::<GuardArena>() / GUARD_LINE;
        let new = if old < half && old != 0 { half + first } else { first };
        let bytes = compile(set, host::cpus(), new)?;
        if first + bytes.len() / GUARD_LINE > half {
            return Err(Error::failed(
                "cannot apply the rules",
                "they do not fit into memory next to the present rules",
            )
            .fix("use fewer rules"));
        }
        self.memory.write(new * GUARD_LINE, &bytes);
        let at = |offset| self.memory.short(offset);
        at(offset_of!(GuardArena, previous)).store(old as u32, Ordering::Release);
        at(offset_of!(GuardArena, current)).store(new as u32, Ordering::Release);
        Ok(())
    }

    /// Adds the hits of the old set to the set in force. The old set stays untouched until this is done.
    fn carry_hits_over(&mut self) -> Result<()> {
        let (old, new) = (self.previous(), self.current());
        if old == 0 {
            return Ok(());
        }
        if old != new && new != 0 {
            let header = stored(&self.memory, new).header()?;
            // Once no program uses the old set, its counts are final.
            arena::wait_for_programs()?;
            let mut carried = self.set_at(new)?.without_hits();
            carried.take_hits(&self.set_at(old)?);
            write_hits(&mut self.memory, new as usize + header.definitions as usize, &carried);
        }
        let previous = self.memory.short(offset_of!(GuardArena, previous));
        previous.store(0, Ordering::Release);
        Ok(())
    }
}

fn stored(memory: &Mapping, line: u32) -> Stored<'_> {
    Stored { memory, begins: line as usize * GUARD_LINE }
}

fn in_map(map: &SharedArray) -> Stored<'_> {
    stored(map.memory(), 0)
}

fn current_in(slot: BorrowedFd<'_>) -> Result<Option<SharedArray>> {
    let id = in_slot(slot).map_err(|e| Error::os("cannot read the rules", e))?;
    id.map(SharedArray::open_by_id).transpose()
}

fn read_slot(slot: BorrowedFd<'_>) -> Result<RuleSet> {
    let current = current_in(slot)?;
    current.map_or_else(|| Ok(RuleSet::default()), |map| in_map(&map).set())
}

fn publish_in_slot(slot: BorrowedFd<'_>, set: &RuleSet) -> Result<()> {
    let bytes = compile(set, host::cpus(), 0)?;
    let old = current_in(slot)?;
    let lines = u32::try_from(bytes.len() / GUARD_LINE).unwrap_or(u32::MAX);
    let mut map = SharedArray::create(NAME, GUARD_LINE as u32, lines)?;
    map.memory_mut().write(0, &bytes);
    // The kernel returns once no program uses the old set, so that its counts are final.
    fill_slot(slot, map.as_fd()).map_err(|e| Error::os("cannot apply the rules", e))?;
    if let Some(old) = old {
        let mut carried = set.clone();
        carried.take_hits(&in_map(&old).set()?);
        write_hits(map.memory_mut(), compile::definitions_in(&bytes), &carried);
    }
    Ok(())
}

/// Writes the hits; `definitions` is the line at which the definitions begin.
fn write_hits(memory: &mut Mapping, definitions: usize, set: &RuleSet) {
    let rules = set.rules.iter().map(|rule| set.hits_of(rule.id));
    let defaults = set.defaults.iter().map(|one| (one.hits, 0));
    let pairs = rules.map(|hits| (hits.decided, hits.limited)).chain(defaults);
    for (number, (decided, limited)) in pairs.enumerate() {
        let at = (definitions + number * DEFINITION_LINES) * GUARD_LINE;
        memory.write(at + offset_of!(GuardDefinition, decided), &decided.to_ne_bytes());
        memory.write(at + offset_of!(GuardDefinition, limited), &limited.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Draft;
    use crate::rule::{Action, Match};
    use crate::tests::{Bench, udp_from};

    fn deny(sources: u32) -> RuleSet {
        let draft = |number: u32| Draft {
            action: Action::Deny,
            what: Match {
                source: Some(format!("10.0.{}.{}", number / 256, number % 256).parse().unwrap()),
                ..Match::default()
            },
            rate: None,
            expires: None,
        };
        let mut set = RuleSet::default();
        set.replace_all((1..=sources).map(draft).collect());
        set
    }

    #[test]
    fn sets_of_all_sizes_alternate_and_keep_their_hits() {
        for bench in Bench::all() {
            for (turn, size) in [1, 300, 2, 900, 5, 40, 2000, 1].into_iter().enumerate() {
                bench.publish(&deny(size));
                assert_eq!(bench.read().rules, deny(size).rules);
                bench.verdict(&udp_from([10, 0, 0, 1]), None);
                assert_eq!(bench.read().hits_of(1).decided, turn as u64 + 1);
            }
        }
    }

    #[test]
    fn hits_are_carried_over_after_a_command_was_killed() {
        for bench in Bench::all() {
            let Store::Arena(fd) = bench.store() else {
                continue;
            };
            bench.publish(&deny(2));
            bench.verdict(&udp_from([10, 0, 0, 2]), None);
            let mut arena = Arena::open(fd.as_fd()).unwrap();
            arena.replace(&deny(3)).unwrap();
            // The command is killed at this point.
            drop(arena);
            bench.verdict(&udp_from([10, 0, 0, 3]), None);
            let read = bench.read();
            assert_eq!([2, 3].map(|id| read.hits_of(id).decided), [1, 1]);
            assert_eq!(bench.read(), read);
        }
    }
}
