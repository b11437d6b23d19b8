//! The set of rules that holds: in one slot, which all guarded interfaces' programs look into.

use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_kernel::bpf::shared_array::{SharedArray, create_lru, create_slot, fill_slot, in_slot};
use trawl_kernel::layout::guard::{GUARD_LINE, GUARD_SOURCES, GuardDefinition, GuardSource};
use trawl_kernel::{Error, Result, host};

use super::compile::{self, compile};
use super::definition;
use super::set::RuleSet;

const NAME: &str = "trawl_guard_set";

/// An empty slot for rule sets.
pub fn new_slot() -> Result<OwnedFd> {
    let like = SharedArray::create(NAME, GUARD_LINE as u32, 1)?;
    create_slot("guard_set", like.as_fd())
}

/// A map for the rates of sources.
pub fn new_rates() -> Result<OwnedFd> {
    let key = size_of::<GuardSource>() as u32;
    create_lru(
        "guard_rates",
        key,
        size_of::<u64>() as u32,
        GUARD_SOURCES as u32,
    )
}

fn current(slot: BorrowedFd<'_>) -> Result<Option<SharedArray>> {
    let id = in_slot(slot).map_err(|e| Error::os("cannot look at the rules", e))?;
    id.map(SharedArray::open_by_id).transpose()
}

/// The set in the slot, with its hits; an empty one where there is none.
pub fn read(slot: BorrowedFd<'_>) -> Result<RuleSet> {
    current(slot)?.map_or_else(|| Ok(RuleSet::default()), |map| RuleSet::read(&map))
}

/// Puts a set into the slot, by one store: each packet is judged by the old one or by the new one. The hits of rules
/// that stay go on, none forgotten.
pub fn publish(slot: BorrowedFd<'_>, set: &RuleSet) -> Result<()> {
    let bytes = compile(set, host::cpus())?;
    let old = current(slot)?;
    let lines = u32::try_from(bytes.len() / GUARD_LINE).unwrap_or(u32::MAX);
    let mut map = SharedArray::create(NAME, GUARD_LINE as u32, lines)?;
    map.write(0, &bytes);
    fill_slot(slot, map.as_fd()).map_err(|e| Error::os("cannot put the rules in force", e))?;
    if let Some(old) = old {
        // Now that nobody counts in the old one any more, its counts are final.
        let mut carried = set.clone();
        carried.take_hits(&RuleSet::read(&old)?);
        write_hits(&mut map, &carried, compile::definitions_in(&bytes));
    }
    Ok(())
}

fn write_hits(map: &mut SharedArray, set: &RuleSet, definitions: usize) {
    let rules = set.rules.iter().map(|rule| set.hits_of(rule.id));
    let defaults = set.defaults.iter().map(|one| (one.hits, 0));
    let pairs = rules
        .map(|hits| (hits.decided, hits.limited))
        .chain(defaults);
    for (number, (decided, limited)) in pairs.enumerate() {
        let at = (definitions + number * definition::LINES) * GUARD_LINE;
        map.write(
            at + offset_of!(GuardDefinition, decided),
            &decided.to_ne_bytes(),
        );
        map.write(
            at + offset_of!(GuardDefinition, limited),
            &limited.to_ne_bytes(),
        );
    }
}
