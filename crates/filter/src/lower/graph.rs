//! A classic program as blocks of operations, each classic instruction decoded once.

use std::sync::Arc;

use super::ancillary::Answer;
use super::{Hook, Target};
use crate::classic::ancillary::Ancillary;
use crate::classic::{Classic, Instruction, op};
use crate::error::FilterError;
use crate::table::Table;

/// A classic register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reg {
    A,
    X,
}

/// The second operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    K(u32),
    X,
}

/// Position of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// At this offset.
    Abs(u32),
    /// At X plus this offset, a sum below 2^32.
    Ind(u32),
    /// At X plus this offset in 32 bits: the sum may wrap around, as in the kernel.
    Wrap(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// Loads a big-endian field into A. A `raw` field stays in the packet's byte order: it is only compared, with
    /// constants that are swapped instead.
    Load {
        width: u8,
        at: At,
        raw: bool,
    },
    /// A load without a use of its value: the packet must still be that long.
    Touch {
        width: u8,
        at: At,
    },
    /// Loads four times the low half of a byte into X.
    HeaderLength(u32),
    /// Loads a fact about the packet into A.
    Field(Answer),
    Length(Reg),
    Imm(Reg, u32),
    Recall(Reg, u8),
    Store(Reg, u8),
    /// One of the arithmetic operations of `ebpf::op`, which have the numbers of the classic ones.
    Alu(u8, Value),
    Neg,
    Tax,
    Txa,
    /// Looks A up in a table; A becomes the next state, or 0.
    Find(usize),
    /// A division by X without a use of its result: X must still not be zero.
    NonZeroX,
}

/// Return value of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Return {
    K(u32),
    A,
}

/// End of a block. Blocks are identified by their index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Return(Return),
    Goto(usize),
    /// A backward jump. The number of such jumps for each packet is limited.
    Back(usize),
    Branch {
        /// A comparison of `ebpf::op`.
        test: u8,
        value: Value,
        yes: usize,
        no: usize,
    },
    /// A membership test of A in one of the graph's sets.
    Among {
        set: usize,
        yes: usize,
        no: usize,
    },
}

pub(super) const NO_MATCH: End = End::Return(Return::K(0));

#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) ops: Vec<Op>,
    pub(super) end: End,
}

impl Block {
    pub(super) fn successors(&self) -> impl Iterator<Item = usize> + use<> {
        let (one, two) = match self.end {
            End::Return(_) => (None, None),
            End::Goto(to) | End::Back(to) => (Some(to), None),
            End::Branch { yes, no, .. } | End::Among { yes, no, .. } => (Some(yes), Some(no)),
        };
        one.into_iter().chain(two)
    }
}

/// A program. Block 0 is its beginning; except for [`End::Back`], jumps go to higher indices.
#[derive(Debug, Clone)]
pub(super) struct Graph {
    pub(super) blocks: Vec<Block>,
    /// Each set belongs to the end of one block.
    pub(super) sets: Vec<Ranges>,
    /// Tables of [`Op::Find`].
    pub(super) tables: Arc<[Table]>,
}

impl Graph {
    /// Marks the loads whose offset may wrap.
    fn mark_wrapping(&mut self) {
        let bounds = bounds_of_x(self);
        for (block, bounds) in self.blocks.iter_mut().zip(bounds) {
            for (operation, x) in block.ops.iter_mut().zip(bounds) {
                if let Op::Load { at, .. } = operation
                    && let At::Ind(k) = *at
                    && x.checked_add(k).is_none()
                {
                    *at = At::Wrap(k);
                }
            }
        }
    }
}

/// Offset beyond the end of all packets: a load there never succeeds, and the verifier refuses larger offsets.
pub(super) const BEYOND_ANY_PACKET: u32 = 1 << 29;

/// Parameters of the decoder besides the program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoder<'a> {
    pub(super) target: &'a Target,
}

impl Decoder<'_> {
    pub(super) fn decode(&self, classic: &Classic) -> Result<Graph, FilterError> {
        let program = classic.instructions();
        let index_of = block_starts(program);
        let mut blocks = Vec::new();
        let mut start = 0;
        while start < program.len() {
            let mut end = start + 1;
            while end < program.len() && index_of[end].is_none() {
                end += 1;
            }
            blocks.push(self.block(classic, start, end, &index_of)?);
            start = end;
        }
        let mut graph = Graph { blocks, sets: Vec::new(), tables: classic.shared_tables() };
        graph.thread_jumps();
        if classic.wraps() {
            graph.mark_wrapping();
        }
        Ok(graph)
    }

    fn block(
        &self,
        classic: &Classic,
        start: usize,
        end: usize,
        index_of: &[Option<usize>],
    ) -> Result<Block, FilterError> {
        let program = classic.instructions();
        let mut ops = Vec::new();
        for (index, &i) in program.iter().enumerate().take(end).skip(start) {
            if i.class() == op::JMP || i.class() == op::RET {
                let mut end = control(i, index, index_of);
                if let Some(table) = classic.lookup_at(index) {
                    ops.push(Op::Find(table));
                    if let End::Branch { test, value, .. } = &mut end {
                        (*test, *value) = (trawl_ebpf::op::JGT, Value::K(0));
                    }
                }
                return Ok(Block { ops, end });
            }
            match self.operation(classic, i)? {
                Some(op) => ops.push(op),
                None => return Ok(Block { ops, end: NO_MATCH }),
            }
        }
        let end = index_of.get(end).copied().flatten().map_or(NO_MATCH, End::Goto);
        Ok(Block { ops, end })
    }

    /// Returns the operation, or `None` for a load that can never succeed.
    fn operation(&self, classic: &Classic, i: Instruction) -> Result<Option<Op>, FilterError> {
        use op::*;
        let width = match i.code & 0x18 {
            W => 4,
            H => 2,
            _ => 1,
        };
        let value = if i.code & X != 0 { Value::X } else { Value::K(i.k) };
        Ok(Some(match (i.class(), i.code & 0xe0) {
            (LD, ABS) => match Ancillary::at(i.k) {
                Some(fact) => return self.fact(fact).map(Some),
                None => match offset(classic, i.k) {
                    Some(k) => Op::Load { width, at: At::Abs(k), raw: false },
                    None => return Ok(None),
                },
            },
            (LD, IND) if i.k >= BEYOND_ANY_PACKET && classic.wraps() => {
                Op::Load { width, at: At::Wrap(i.k), raw: false }
            }
            (LD, IND) if i.k >= BEYOND_ANY_PACKET => return Ok(None),
            (LD, IND) => Op::Load { width, at: At::Ind(i.k), raw: false },
            (LDX, MSH) => match offset(classic, i.k) {
                Some(k) => Op::HeaderLength(k),
                None => return Ok(None),
            },
            (LD, IMM) => Op::Imm(Reg::A, i.k),
            (LDX, IMM) => Op::Imm(Reg::X, i.k),
            (LD, MEM) => Op::Recall(Reg::A, i.k as u8),
            (LDX, MEM) => Op::Recall(Reg::X, i.k as u8),
            (LD, _) => Op::Length(Reg::A),
            (LDX, _) => Op::Length(Reg::X),
            (ST, _) => Op::Store(Reg::A, i.k as u8),
            (STX, _) => Op::Store(Reg::X, i.k as u8),
            (ALU, _) if i.code & 0xf0 == NEG => Op::Neg,
            (ALU, _) => Op::Alu((i.code & 0xf0) as u8, value),
            _ if i.code & 0xf8 == TXA => Op::Txa,
            _ => Op::Tax,
        }))
    }

    fn fact(&self, fact: Ancillary) -> Result<Op, FilterError> {
        Ok(match fact.answer(self.target)? {
            Answer::Constant(k) => Op::Imm(Reg::A, k),
            Answer::XorX => Op::Alu(trawl_ebpf::op::XOR, Value::X),
            Answer::EtherType => Op::Load { width: 2, at: At::Abs(12), raw: false },
            other => Op::Field(other),
        })
    }
}

/// Returns the offset in the packet; negative offsets count from one of its headers, as on a socket.
fn offset(classic: &Classic, k: u32) -> Option<u32> {
    let k = classic.offset(k)?;
    (k < BEYOND_ANY_PACKET).then_some(k)
}

/// Returns true if the program was written for frames without their tags.
pub(super) fn expects_stripped_frames(classic: &Classic, hook: Hook) -> bool {
    matches!(hook, Hook::Tc | Hook::Socket)
        && classic.instructions().iter().any(|i| {
            i.class() == op::LD && i.code & 0xe0 == op::ABS && Ancillary::at(i.k).is_some_and(Ancillary::is_vlan)
        })
}

/// Returns the block's index for each instruction that starts a reachable block.
fn block_starts(program: &[Instruction]) -> Vec<Option<usize>> {
    let mut starts = vec![false; program.len() + 1];
    starts[0] = true;
    for (index, i) in program.iter().enumerate() {
        if i.class() == op::JMP {
            for target in targets(*i, index) {
                starts[target] = true;
            }
            starts[index + 1] = true;
        } else if i.class() == op::RET {
            starts[index + 1] = true;
        }
    }
    let mut next = 0;
    starts[..program.len()]
        .iter()
        .map(|&is_start| {
            is_start.then(|| {
                next += 1;
                next - 1
            })
        })
        .collect()
}

fn targets(i: Instruction, index: usize) -> [usize; 2] {
    let next = index + 1;
    if i.code == op::JMP | op::JA {
        let to = next.wrapping_add_signed(i.k as i32 as isize);
        [to, to]
    } else {
        [next + usize::from(i.jt), next + usize::from(i.jf)]
    }
}

fn control(i: Instruction, index: usize, index_of: &[Option<usize>]) -> End {
    use trawl_ebpf::op as ebpf;
    if i.class() == op::RET {
        return End::Return(if i.code & 0x18 == op::A { Return::A } else { Return::K(i.k) });
    }
    let [yes, no] = targets(i, index).map(|at| index_of[at].unwrap_or(0));
    if i.code == op::JMP | op::JA {
        return if (i.k as i32) < 0 { End::Back(yes) } else { End::Goto(yes) };
    }
    if yes == no {
        return End::Goto(yes);
    }
    End::Branch {
        test: match i.code & 0xf0 {
            op::JEQ => ebpf::JEQ,
            op::JGT => ebpf::JGT,
            op::JGE => ebpf::JGE,
            _ => ebpf::JSET,
        },
        value: if i.code & op::X != 0 { Value::X } else { Value::K(i.k) },
        yes,
        no,
    }
}

impl Graph {
    /// Redirects jumps to an empty block that only jumps onward to its target.
    fn thread_jumps(&mut self) {
        // From the last block to the first, so that chains are followed to their ends.
        for index in (0..self.blocks.len()).rev() {
            let follow = |to: usize| match &self.blocks[to] {
                Block { ops, end: End::Goto(on) } if ops.is_empty() && to > index => *on,
                _ => to,
            };
            let end = match self.blocks[index].end {
                End::Goto(to) => match &self.blocks[follow(to)] {
                    Block { ops, end: end @ End::Return(_) } if ops.is_empty() => *end,
                    _ => End::Goto(follow(to)),
                },
                End::Branch { test, value, yes, no } => match (follow(yes), follow(no)) {
                    (yes, no) if yes == no => End::Goto(yes),
                    (yes, no) => End::Branch { test, value, yes, no },
                },
                end => end,
            };
            self.blocks[index].end = end;
        }
    }

    pub(super) fn has_loops(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block.end, End::Back(_)))
    }

    pub(super) fn returns_a(&self) -> bool {
        self.blocks.iter().any(|block| block.end == End::Return(Return::A))
    }
}

/// A set of 32-bit numbers as ranges, both ends included: sorted, disjoint, and never adjacent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    pub(super) fn from_values(values: impl IntoIterator<Item = u32>) -> Self {
        let mut values: Vec<u32> = values.into_iter().collect();
        values.sort_unstable();
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for value in values {
            match ranges.last_mut() {
                Some((_, end)) if u64::from(value) <= u64::from(*end) + 1 => *end = value,
                _ => ranges.push((value, value)),
            }
        }
        Ranges(ranges)
    }

    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }
}

/// Maximum values, as known to the kernel's verifier, of A, X and scratch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    a: u32,
    x: u32,
    memory: [u32; 16],
}

impl Bounds {
    fn join(&mut self, other: &Bounds) {
        self.a = self.a.max(other.a);
        self.x = self.x.max(other.x);
        for (cell, &o) in self.memory.iter_mut().zip(&other.memory) {
            *cell = (*cell).max(o);
        }
    }

    fn step(&mut self, operation: &Op) {
        use trawl_ebpf::op;
        const UNKNOWN: u32 = u32::MAX;
        match *operation {
            // The verifier forgets the bounds of a value whose bytes are swapped.
            Op::Load { width, .. } => self.a = if width == 1 { 0xff } else { UNKNOWN },
            Op::HeaderLength(_) => self.x = 60,
            Op::Field(_) => self.a = UNKNOWN,
            Op::Length(Reg::A) => self.a = UNKNOWN,
            Op::Length(Reg::X) => self.x = UNKNOWN,
            Op::Imm(Reg::A, k) => self.a = k,
            Op::Imm(Reg::X, k) => self.x = k,
            Op::Recall(Reg::A, cell) => self.a = self.memory[usize::from(cell)],
            Op::Recall(Reg::X, cell) => self.x = self.memory[usize::from(cell)],
            Op::Store(Reg::A, cell) => self.memory[usize::from(cell)] = self.a,
            Op::Store(Reg::X, cell) => self.memory[usize::from(cell)] = self.x,
            Op::Alu(operation, value) => {
                let (other, constant) = match value {
                    Value::K(k) => (k, true),
                    Value::X => (self.x, false),
                };
                self.a = match operation {
                    op::AND => self.a.min(other),
                    op::ADD => self.a.checked_add(other).unwrap_or(UNKNOWN),
                    op::MUL if self.a <= 0xffff && other <= 0xffff => self.a * other,
                    op::RSH if constant => self.a.checked_shr(other).unwrap_or(UNKNOWN),
                    op::LSH if constant && other < 32 && u64::from(self.a) << other < 1 << 32 => self.a << other,
                    _ => UNKNOWN,
                };
            }
            Op::Neg | Op::Find(_) => self.a = UNKNOWN,
            Op::Tax => self.x = self.a,
            Op::Txa => self.a = self.x,
            Op::Touch { .. } | Op::NonZeroX => {}
        }
    }
}

/// Returns the maximum value of X before each operation of each block.
pub(super) fn bounds_of_x(graph: &Graph) -> Vec<Vec<u32>> {
    let unknown = Bounds { a: u32::MAX, x: u32::MAX, memory: [u32::MAX; 16] };
    let start = Bounds { a: 0, x: 0, ..unknown };
    let mut at_start: Vec<Option<Bounds>> = vec![None; graph.blocks.len()];
    at_start[0] = Some(start);
    // A loop's values may grow in each iteration, so nothing is known at its beginning.
    for block in &graph.blocks {
        if let End::Back(to) = block.end {
            at_start[to] = Some(unknown);
        }
    }
    graph
        .blocks
        .iter()
        .enumerate()
        .map(|(index, block)| {
            let mut now = at_start[index].unwrap_or(unknown);
            let before = block
                .ops
                .iter()
                .map(|operation| {
                    let x = now.x;
                    now.step(operation);
                    x
                })
                .collect();
            for next in block.successors() {
                match &mut at_start[next] {
                    Some(bounds) => bounds.join(&now),
                    empty => *empty = Some(now),
                }
            }
            before
        })
        .collect()
}
