//! Positions and sizes of comparisons with the packet's end in the fast version.
//!
//! Two values are computed for each block. *Needed*: the number of bytes without which the filter cannot match from
//! here. A return of 0 needs infinitely many, because a packet that is too short gets the same answer; so the least
//! need of all paths onward can be checked early, and a packet that fails is rejected exactly. *Known*: the number of
//! bytes already checked on every path to here. A comparison is made if the need exceeds the knowledge.
//!
//! The same is done for bytes after X, while X is unchanged.

use super::graph::{At, Block, End, Graph, NO_MATCH, Op, Reg, Return};

/// Need of a path that cannot match.
const NEVER: u32 = u32::MAX;

/// Bytes that a comparison may require beyond the need, if some path onward reads them: enough for an address or a port
/// that is read right after, which no valid packet cuts off.
const AHEAD: u32 = 4;

/// A comparison with the packet's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Check {
    /// Bytes known to exist afterwards.
    pub(super) bytes: u32,
    /// Bytes without which the filter cannot match.
    pub(super) needed: u32,
    /// For a comparison after X: true if the pointer to X must be computed.
    pub(super) fresh: bool,
}

/// Comparisons of one block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BlockPlan {
    pub(super) start: Option<Check>,
    /// For each operation, the comparison after X that precedes it.
    pub(super) ops: Vec<Option<Check>>,
}

/// Properties of the version that carries out the plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader {
    /// True if the slow version continues after a failed comparison.
    pub(super) has_slow: bool,
    /// Minimum offset after X for combined checks; loads at lower offsets are checked one by one.
    pub(super) min_indirect: u32,
}

pub(super) struct Checks {
    pub(super) blocks: Vec<BlockPlan>,
}

fn bytes_at(operation: &Op) -> Option<(At, u32)> {
    match *operation {
        Op::Load { width, at, .. } | Op::Touch { width, at } => Some((at, u32::from(width))),
        Op::HeaderLength(k) => Some((At::Abs(k), 1)),
        _ => None,
    }
}

fn fixed_end(operation: &Op) -> u32 {
    match bytes_at(operation) {
        Some((At::Abs(k), width)) => k + width,
        _ => 0,
    }
}

fn changes_x(operation: &Op) -> bool {
    matches!(operation, Op::HeaderLength(_) | Op::Length(Reg::X) | Op::Imm(Reg::X, _) | Op::Recall(Reg::X, _) | Op::Tax)
}

impl Reader {
    fn indirect_end(&self, operation: &Op) -> Option<u32> {
        match bytes_at(operation) {
            Some((At::Ind(k), width)) if k >= self.min_indirect => Some(k + width),
            _ => None,
        }
    }
}

/// The minimum and the maximum number of bytes that paths onward need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Need {
    least: u32,
    greatest: u32,
}

impl Need {
    const NONE: Need = Need { least: 0, greatest: 0 };
    const NO_PATH: Need = Need { least: NEVER, greatest: 0 };

    fn and(self, bytes: u32) -> Need {
        Need { least: self.least.max(bytes), greatest: self.greatest.max(bytes) }
    }

    fn of_end(block: &Block, needs: &[Need]) -> Need {
        match block.end {
            NO_MATCH => Need::NO_PATH,
            End::Return(Return::K(_) | Return::A) => Need::NONE,
            _ => block.successors().fold(Need::NO_PATH, |need, next| Need {
                least: need.least.min(needs[next].least),
                greatest: need.greatest.max(needs[next].greatest),
            }),
        }
    }
}

/// Solves a need for all blocks, from the last to the first, until nothing changes.
fn solve(graph: &Graph, through: impl Fn(&Block, Need) -> Need) -> Vec<Need> {
    let mut needs = vec![Need::NO_PATH; graph.blocks.len()];
    loop {
        let mut changed = false;
        for (index, block) in graph.blocks.iter().enumerate().rev() {
            let need = through(block, Need::of_end(block, &needs));
            changed |= need != needs[index];
            needs[index] = need;
        }
        if !changed {
            return needs;
        }
    }
}

fn fixed_needs(graph: &Graph) -> Vec<Need> {
    solve(graph, |block, end| block.ops.iter().fold(end, |need, operation| need.and(fixed_end(operation))))
}

/// Replaces blocks without a path to a match by "no match".
pub(super) fn cut_unmatchable(graph: &mut Graph) {
    let needs = fixed_needs(graph);
    for (block, need) in graph.blocks.iter_mut().zip(&needs) {
        if need.least == NEVER {
            *block = Block { ops: Vec::new(), end: NO_MATCH };
        }
    }
}

/// Knowledge at a point of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    fixed: u32,
    /// Bytes after X, if the pointer to X is available.
    after_x: Option<u32>,
}

pub(super) fn plan(graph: &Graph, reader: Reader) -> Checks {
    let fixed = fixed_needs(graph);
    let after_x = solve(graph, |block, end| {
        block.ops.iter().rev().fold(end, |need, operation| step_back_after_x(need, operation, reader))
    });
    let ahead = if reader.has_slow && !graph.has_loops() { AHEAD } else { 0 };
    let planner = Planner { fixed: &fixed, after_x: &after_x, reader, ahead };
    let mut known: Vec<Option<Known>> = vec![None; graph.blocks.len()];
    known[0] = Some(Known { fixed: 0, after_x: None });
    loop {
        let mut changed = false;
        let mut blocks = Vec::with_capacity(graph.blocks.len());
        for (index, block) in graph.blocks.iter().enumerate() {
            let Some(before) = known[index] else {
                blocks.push(BlockPlan::default());
                continue;
            };
            let (plan, after) = planner.block(index, block, before);
            blocks.push(plan);
            for next in block.successors() {
                let joined = match known[next] {
                    None => after,
                    Some(other) => Known {
                        fixed: other.fixed.min(after.fixed),
                        after_x: other.after_x.zip(after.after_x).map(|(a, b)| a.min(b)),
                    },
                };
                if known[next] != Some(joined) {
                    known[next] = Some(joined);
                    // Later blocks follow in this pass; only a loop requires another.
                    changed |= next <= index;
                }
            }
        }
        if !changed {
            return Checks { blocks };
        }
    }
}

fn step_back_after_x(need: Need, operation: &Op, reader: Reader) -> Need {
    let need = if changes_x(operation) {
        // Needs for a later value of X do not apply to the earlier one, except that a path exists.
        Need::NONE
    } else {
        need
    };
    need.and(reader.indirect_end(operation).unwrap_or(0))
}

struct Planner<'a> {
    fixed: &'a [Need],
    after_x: &'a [Need],
    reader: Reader,
    ahead: u32,
}

impl Planner<'_> {
    fn choose(&self, need: Need) -> u32 {
        need.greatest.min(need.least.saturating_add(self.ahead)).max(need.least)
    }

    fn block(&self, index: usize, block: &Block, before: Known) -> (BlockPlan, Known) {
        let mut known = before;
        let mut plan = BlockPlan::default();
        let need = self.fixed[index];
        if need.least != NEVER && need.least > known.fixed {
            known.fixed = self.choose(need);
            plan.start = Some(Check { bytes: known.fixed, needed: need.least, fresh: false });
        }
        let needs = self.needs_after_x(block);
        for (operation, need) in block.ops.iter().zip(needs) {
            let mut check = None;
            if let Some(end) = self.reader.indirect_end(operation)
                && known.after_x.is_none_or(|bytes| bytes < end)
            {
                let need = if need.least == NEVER { need.and(end) } else { need };
                let least = if need.least == NEVER { end } else { need.least };
                let bytes = self.choose(Need { least, ..need });
                check = Some(Check { bytes, needed: least, fresh: known.after_x.is_none() });
                known.after_x = Some(bytes);
            }
            if changes_x(operation) || self.overwrites_pointer(operation) {
                known.after_x = None;
            }
            plan.ops.push(check);
        }
        (plan, known)
    }

    /// Returns true for loads that are checked one by one, which use the pointer's register themselves.
    fn overwrites_pointer(&self, operation: &Op) -> bool {
        match bytes_at(operation) {
            Some((At::Ind(k), _)) => k < self.reader.min_indirect,
            Some((At::Wrap(_), _)) => true,
            _ => false,
        }
    }

    /// Returns the need after X before each operation of a block.
    fn needs_after_x(&self, block: &Block) -> Vec<Need> {
        let mut need = Need::of_end(block, self.after_x);
        let mut needs: Vec<Need> = block
            .ops
            .iter()
            .rev()
            .map(|operation| {
                need = step_back_after_x(need, operation, self.reader);
                need
            })
            .collect();
        needs.reverse();
        needs
    }
}
