//! Uses of values: dead operations, fields that need no byte swap, and bounds of X.

use super::Target;
use super::ancillary::{Answer, PACKET_OUTGOING};
use super::graph::{Block, End, Graph, Op, Ranges, Reg, Return, Value};
use crate::classic::ancillary::Ancillary;
use crate::error::FilterError;
use trawl_ebpf::op;

/// Maximum size of a set compared in the packet's byte order: for larger sets, ranges of numbers save more than a swap
/// costs.
const MAX_RAW_SET: usize = 4;

/// A set of the classic machine's cells: A, X and scratch memory, a bit each.
type Cells = u32;
const A: Cells = 1;
const X: Cells = 2;

const fn memory(cell: u8) -> Cells {
    4 << cell
}

fn register(reg: Reg) -> Cells {
    match reg {
        Reg::A => A,
        Reg::X => X,
    }
}

fn operand(value: Value) -> Cells {
    match value {
        Value::X => X,
        Value::K(_) => 0,
    }
}

fn at_reads(at: super::graph::At) -> Cells {
    match at {
        super::graph::At::Ind(_) | super::graph::At::Wrap(_) => X,
        super::graph::At::Abs(_) => 0,
    }
}

/// Returns the cells that an operation reads and writes.
fn effects(operation: &Op) -> (Cells, Cells) {
    match *operation {
        Op::Load { at, .. } => (at_reads(at), A),
        Op::Touch { at, .. } => (at_reads(at), 0),
        Op::HeaderLength(_) => (0, X),
        Op::Field(_) => (0, A),
        Op::Length(reg) | Op::Imm(reg, _) => (0, register(reg)),
        Op::Recall(reg, cell) => (memory(cell), register(reg)),
        Op::Store(reg, cell) => (register(reg), memory(cell)),
        Op::Alu(_, value) => (A | operand(value), A),
        Op::Neg | Op::Find(_) => (A, A),
        Op::Tax => (A, X),
        Op::Txa => (X, A),
        Op::NonZeroX => (X, 0),
    }
}

fn end_reads(end: &End) -> Cells {
    match *end {
        End::Return(Return::A) => A,
        End::Branch { value, .. } => A | operand(value),
        End::Among { .. } => A,
        _ => 0,
    }
}

/// Returns the remainder of an operation whose result is unused.
fn remains(operation: Op) -> Option<Op> {
    match operation {
        Op::Load { width, at, .. } => Some(Op::Touch { width, at }),
        Op::HeaderLength(k) => Some(Op::Touch { width: 1, at: super::graph::At::Abs(k) }),
        Op::Alu(op::DIV | op::MOD, Value::X) => Some(Op::NonZeroX),
        _ => None,
    }
}

/// Returns for each block whether it, or a block after it, reads the A that it begins with.
pub(super) fn needs_a(graph: &Graph) -> Vec<bool> {
    live(graph).into_iter().map(|cells| cells & A != 0).collect()
}

/// Returns the cells that are read before they are written, at the beginning of each block.
fn live(graph: &Graph) -> Vec<Cells> {
    let mut live = vec![0; graph.blocks.len()];
    loop {
        let mut changed = false;
        for (index, block) in graph.blocks.iter().enumerate().rev() {
            let before = walk_back(block, &live, |_, _| {});
            changed |= before != live[index];
            live[index] = before;
        }
        if !changed {
            return live;
        }
    }
}

/// Visits the operations of a block from its end, with the live cells after each.
fn walk_back(block: &Block, live: &[Cells], mut see: impl FnMut(usize, Cells)) -> Cells {
    let mut now = end_reads(&block.end);
    for next in block.successors() {
        now |= live[next];
    }
    for (index, operation) in block.ops.iter().enumerate().rev() {
        see(index, now);
        let (reads, writes) = effects(operation);
        now = now & !writes | reads;
    }
    now
}

/// Registers and cells read before the program has written them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LiveAtStart {
    pub(super) a: bool,
    pub(super) x: bool,
    /// Cells of scratch memory, a bit each.
    pub(super) memory: u16,
}

/// Removes operations with unused results; returns the registers and cells that must start as zero.
pub(super) fn remove_dead(graph: &mut Graph) -> LiveAtStart {
    loop {
        let live = live(graph);
        let mut changed = false;
        for index in 0..graph.blocks.len() {
            let mut dead = Vec::new();
            walk_back(&graph.blocks[index], &live, |at, after| {
                let (_, writes) = effects(&graph.blocks[index].ops[at]);
                if writes != 0 && writes & after == 0 {
                    dead.push(at);
                }
            });
            changed |= !dead.is_empty();
            let block = &mut graph.blocks[index];
            // Positions are in descending order, so removing one keeps the others valid.
            for at in dead {
                match remains(block.ops[at]) {
                    Some(left) => block.ops[at] = left,
                    None => {
                        block.ops.remove(at);
                    }
                }
            }
        }
        if !changed {
            return LiveAtStart { a: live[0] & A != 0, x: live[0] & X != 0, memory: (live[0] >> 2) as u16 };
        }
    }
}

/// Connected values of A, and their uses.
#[derive(Debug, Clone, Copy)]
struct Web {
    parent: usize,
    /// Width of the loads that define the value; 0 for none, 255 for mixed definitions.
    width: u8,
    has_packet_type: bool,
    /// True if every use compares with a constant for which byte order does not matter.
    only_compared: bool,
    /// True if every use compares with `PACKET_OUTGOING`.
    only_outgoing: bool,
}

#[derive(Debug, Default)]
struct Webs(Vec<Web>);

impl Webs {
    fn add(&mut self, width: u8, has_packet_type: bool) -> usize {
        self.0.push(Web { parent: self.0.len(), width, has_packet_type, only_compared: true, only_outgoing: true });
        self.0.len() - 1
    }

    fn find(&mut self, mut at: usize) -> usize {
        while self.0[at].parent != at {
            self.0[at].parent = self.0[self.0[at].parent].parent;
            at = self.0[at].parent;
        }
        at
    }

    fn join(&mut self, one: usize, two: usize) {
        let (one, two) = (self.find(one), self.find(two));
        if one == two {
            return;
        }
        let other = self.0[two];
        self.0[two].parent = one;
        let web = &mut self.0[one];
        if web.width == 0 {
            web.width = other.width;
        } else if other.width != 0 && other.width != web.width {
            web.width = 255;
        }
        web.has_packet_type |= other.has_packet_type;
        web.only_compared &= other.only_compared;
        web.only_outgoing &= other.only_outgoing;
    }

    fn used(&mut self, web: usize, end: Option<&End>, sets: &[Ranges]) {
        let root = self.find(web);
        let web = &mut self.0[root];
        let (compared, outgoing) = match end {
            // Only a few single numbers can be compared in the packet's byte order; ranges require the numbers.
            Some(&End::Among { set, .. }) => (
                sets[set].ranges().len() <= MAX_RAW_SET
                    && sets[set].ranges().iter().all(|&(from, to)| from == to && (to <= 0xffff || web.width != 2)),
                false,
            ),
            Some(&End::Branch { test, value: Value::K(k), .. }) => (
                test == op::JSET || test == op::JEQ && (k <= 0xffff || web.width != 2),
                test == op::JEQ && k == PACKET_OUTGOING,
            ),
            _ => (false, false),
        };
        web.only_compared &= compared;
        web.only_outgoing &= outgoing;
    }
}

/// Marks loads that can stay in the packet's byte order, swaps the constants they are compared with, and replaces the
/// packet's type if only "outgoing or not" is known.
pub(super) fn settle_loads(graph: &mut Graph, target: &Target) -> Result<(), FilterError> {
    let live = live(graph);
    let mut webs = Webs::default();
    // The web of A at each block's beginning; block 0 begins with the initial zero.
    let at_start: Vec<usize> = graph.blocks.iter().map(|_| webs.add(0, false)).collect();
    let zero = webs.add(255, false);
    webs.join(at_start[0], zero);
    // All webs are joined before their uses are recorded, because whether a constant fits depends on a web's final
    // width.
    let mut defined: Vec<Vec<Option<usize>>> = Vec::new();
    let mut at_end = Vec::new();
    for (index, block) in graph.blocks.iter().enumerate() {
        let mut now = at_start[index];
        let mut here = Vec::new();
        for operation in &block.ops {
            let web = match *operation {
                Op::Load { width, .. } => Some(webs.add(width, false)),
                Op::Field(answer) => Some(webs.add(255, answer == Answer::NotOutgoing)),
                ref other if effects(other).1 & A != 0 => Some(webs.add(255, false)),
                _ => None,
            };
            now = web.unwrap_or(now);
            here.push(web);
        }
        for next in block.successors() {
            if live[next] & A != 0 {
                webs.join(now, at_start[next]);
            }
        }
        defined.push(here);
        at_end.push(now);
    }
    for (index, block) in graph.blocks.iter().enumerate() {
        let mut now = at_start[index];
        for (operation, web) in block.ops.iter().zip(&defined[index]) {
            if effects(operation).0 & A != 0 {
                webs.used(now, None, &graph.sets);
            }
            now = web.unwrap_or(now);
        }
        if end_reads(&block.end) & A != 0 {
            webs.used(now, Some(&block.end), &graph.sets);
        }
    }
    for (index, block) in graph.blocks.iter_mut().enumerate() {
        for (operation, web) in block.ops.iter_mut().zip(&defined[index]) {
            let Some(web) = *web else { continue };
            let root = webs.find(web);
            let web = webs.0[root];
            match operation {
                Op::Load { raw, .. } => *raw = is_raw(&web),
                Op::Field(Answer::NotOutgoing) if web.only_outgoing => {
                    *operation = Op::Imm(Reg::A, 0);
                }
                Op::Field(Answer::NotOutgoing) => {
                    return Err(Ancillary::packet_type_refusal(target));
                }
                _ => {}
            }
        }
        let root = webs.find(at_end[index]);
        if !is_raw(&webs.0[root]) {
            continue;
        }
        let raw = |k: u32| match webs.0[root].width {
            2 => u32::from(u16::from_be(k as u16)),
            _ => u32::from_be(k),
        };
        match &mut block.end {
            End::Branch { value: Value::K(k), .. } => *k = raw(*k),
            End::Among { set, .. } => {
                let set = &mut graph.sets[*set];
                *set = Ranges::from_values(set.ranges().iter().map(|&(k, _)| raw(k)));
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_raw(web: &Web) -> bool {
    web.only_compared && matches!(web.width, 2 | 4)
}
