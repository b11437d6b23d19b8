//! Filters on a packet, or on the packet inside its tunnel.

use trawl_ebpf::op;

use super::emitter::reg;
use super::inner::{Inner, lower_inner};
use super::{Hook, Lowered, SCRATCH_SIZE, Stats, Target, lower};
use crate::classic::Classic;
use crate::error::FilterError;

/// Offset of the slots for the second block's inputs, at the end of the scratch, which no block uses.
const KEPT: i16 = SCRATCH_SIZE - 3 * 8;

/// Lowers a filter to a block that matches a packet, or else the packet inside its tunnel. A filter with long lists
/// matches the packet itself only: searching them needs the register in which the scratch is kept.
pub fn lower_either(classic: &Classic, inner: &Inner, target: &Target) -> Result<Lowered, FilterError> {
    let outer = lower(classic, target)?;
    let inside = lower_inner(inner, target)?;
    if !outer.tables.is_empty() || target.has_skb() {
        return Ok(outer);
    }
    let mut insns = vec![op::mov(reg::SLOW_SCRATCH, reg::SCRATCH)];
    insns.extend(kept(target).map(|(slot, input)| op::store(op::DW, reg::SCRATCH, slot, input)));
    insns.extend(outer.insns);
    let mut again = vec![op::mov(reg::SCRATCH, reg::SLOW_SCRATCH)];
    again.extend(kept(target).map(|(slot, input)| op::load(op::DW, input, reg::SCRATCH, slot)));
    again.extend(inside.insns);
    let past =
        i16::try_from(again.len()).map_err(|_| FilterError::TooLong { len: again.len(), max: i16::MAX as usize })?;
    insns.push(op::jump_if(op::JNE, reg::TMP, 0, past));
    insns.extend(again);
    let sum = |of: fn(&Stats) -> usize| of(&outer.stats) + of(&inside.stats);
    Ok(Lowered {
        stats: Stats {
            classic: sum(|one| one.classic),
            ebpf: insns.len(),
            fast: sum(|one| one.fast),
            checks: sum(|one| one.checks),
        },
        insns,
        tables: inside.tables,
    })
}

/// Returns the inputs that the second block needs, with their slots.
fn kept(target: &Target) -> impl Iterator<Item = (i16, u8)> {
    let inputs = match target.hook {
        Hook::Copy { .. } => [reg::DATA, reg::DATA_END, reg::LENGTH],
        _ => [reg::CONTEXT, reg::DATA, reg::DATA_END],
    };
    let slot = |(at, input)| (KEPT + at as i16 * 8, input);
    inputs.into_iter().enumerate().map(slot)
}
