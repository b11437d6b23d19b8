//! Comparisons of one value with many constants: gathers them into sets, and searches a set as a tree.
//!
//! libpcap compares the members of a list in the order of the expression: the source and the destination of the first
//! host, then of the second one, and so on. Comparisons with the same target may be reordered, as long as none of them
//! can fail for lack of bytes; so the comparisons of one value become a single test.

use trawl_ebpf::{Insn, op};

use super::assembler::Label;
use super::emitter::{Emitter, Mode, reg, slot};
use super::graph::{At, Block, End, Graph, Op, Ranges, Value};
use super::values;
use crate::table::ENTRY_SIZE;

/// A comparison that leaves the chain if it holds: the operations that compute its value, none for the A at the chain's
/// beginning, and its constant.
struct Link {
    value: Vec<Op>,
    constant: u32,
}

/// One test of a gathered chain.
struct Test {
    /// First operations of its block: none if A holds the value already, more than the value in a chain's first block.
    ops: Vec<Op>,
    value: Vec<Op>,
    constants: Vec<u32>,
}

/// Replaces comparisons of one value with several constants by one test, within a chain in which all have the same
/// target.
pub(super) fn gather(graph: &mut Graph) {
    // Number of jumps to each block from reachable blocks.
    let mut leading = vec![0; graph.blocks.len()];
    leading[0] = 1;
    let mut open = vec![0];
    while let Some(block) = open.pop() {
        for next in graph.blocks[block].successors() {
            leading[next] += 1;
            if leading[next] == 1 {
                open.push(next);
            }
        }
    }
    let needs_a = values::needs_a(graph);
    // libpcap returns a match in several blocks if its jumps do not reach far enough.
    let same: Vec<usize> = (graph.blocks.iter().enumerate())
        .map(|(at, block)| graph.blocks.iter().position(|one| one.is_same_return(block)).unwrap_or(at))
        .collect();
    for first in 0..graph.blocks.len() {
        let Some((value, constant, out, mut next)) = link(&graph.blocks[first], None) else {
            continue;
        };
        if needs_a[out] {
            continue;
        }
        let mut members = vec![first];
        let mut links = vec![Link { value, constant }];
        while leading[next] == 1
            && let block = &graph.blocks[next]
            && let Some((value, constant, to, after)) = link(block, links.last())
            && same[to] == same[out]
            && (block.ops.is_empty() || block.ops == value)
        {
            members.push(next);
            links.push(Link { value, constant });
            next = after;
        }
        let last = links.last().map(|link| link.value.clone());
        let tests = reordered(&graph.blocks[first].ops, links);
        // libpcap lets lists share their ends, which compare the value that was compared last.
        let keeps_a = tests.last().map(|one| &one.value) == last.as_ref();
        if tests.len() < members.len() && (keeps_a || !needs_a[next]) {
            graph.replace(&members, tests, out, next);
        }
    }
}

/// Returns the value that a block compares with a constant, the constant, and the next blocks if equal and if not.
fn link(block: &Block, before: Option<&Link>) -> Option<(Vec<Op>, u32, usize, usize)> {
    let End::Branch { test: op::JEQ, value: Value::K(constant), yes, no } = block.end else {
        return None;
    };
    let is_load = |op: &Op| {
        let at = match op {
            Op::Load { at, .. } => at,
            _ => return false,
        };
        matches!(at, At::Abs(_) | At::Ind(_))
    };
    let value = match (block.ops.iter().rposition(is_load), before) {
        (Some(at), _) => block.ops[at..].to_vec(),
        (None, _) if !block.ops.is_empty() => return None,
        (None, before) => before.map_or(Vec::new(), |before| before.value.clone()),
    };
    let changes = |op: &Op| matches!(op, Op::Alu(_, Value::K(_)));
    let is_plain = value.iter().skip(1).all(changes);
    is_plain.then_some((value, constant, yes, no))
}

/// Returns the tests of a chain. A value's first comparison stays in position, since a packet may end before that
/// value; the others of all values loaded before are gathered.
fn reordered(first_ops: &[Op], links: Vec<Link>) -> Vec<Test> {
    let mut tests: Vec<Test> = Vec::new();
    let mut waiting: Vec<Test> = Vec::new();
    let flush = |tests: &mut Vec<Test>, waiting: &mut Vec<Test>| {
        // The value in A comes first and needs no load.
        if let Some(last) = tests.last_mut()
            && let Some(at) = waiting.iter().position(|one| one.value == last.value)
        {
            last.constants.extend(waiting.remove(at).constants);
        }
        tests.append(waiting);
    };
    let mut loaded: Vec<Vec<Op>> = Vec::new();
    for Link { value, constant } in links {
        if !loaded.contains(&value) {
            flush(&mut tests, &mut waiting);
            let ops = if loaded.is_empty() { first_ops.to_vec() } else { value.clone() };
            loaded.push(value.clone());
            tests.push(Test { ops, value, constants: vec![constant] });
            continue;
        }
        match waiting.iter_mut().find(|one| one.value == value) {
            Some(one) => one.constants.push(constant),
            None => waiting.push(Test { ops: value.clone(), value, constants: vec![constant] }),
        }
    }
    flush(&mut tests, &mut waiting);
    tests
}

impl Block {
    fn is_same_return(&self, other: &Block) -> bool {
        let is_plain = |block: &Block| block.ops.is_empty() && matches!(block.end, End::Return(_));
        is_plain(self) && self.end == other.end && other.ops.is_empty()
    }
}

impl Graph {
    /// Writes the tests into the first of these blocks; the rest become unreachable.
    fn replace(&mut self, members: &[usize], tests: Vec<Test>, out: usize, after: usize) {
        let count = tests.len();
        for (at, test) in tests.into_iter().enumerate() {
            let no = if at + 1 < count { members[at + 1] } else { after };
            let end = match test.constants[..] {
                [constant] => End::Branch { test: op::JEQ, value: Value::K(constant), yes: out, no },
                _ => {
                    self.sets.push(Ranges::from_values(test.constants));
                    End::Among { set: self.sets.len() - 1, yes: out, no }
                }
            };
            self.blocks[members[at]] = Block { ops: test.ops, end };
        }
        for &left in &members[count..] {
            self.blocks[left] = Block { ops: Vec::new(), end: super::graph::NO_MATCH };
        }
    }
}

/// Maximum number of ranges that are tested one after the other.
const MAX_SEQUENTIAL: usize = 3;

impl Emitter<'_> {
    pub(super) fn among(&mut self, set: &Ranges, yes: Label, no: Label) {
        let ranges = set.ranges();
        // Most values are outside of all ranges.
        if let (Some(&(least, _)), Some(&(_, greatest))) = (ranges.first(), ranges.last())
            && ranges.len() > MAX_SEQUENTIAL
        {
            self.asm.jump_if32(op::JLT, reg::A, least, no);
            self.asm.jump_if32(op::JGT, reg::A, greatest, no);
        }
        self.search(ranges, yes, no);
        self.asm.goto(no);
    }

    /// Emits jumps if A is in one of the ranges; otherwise control continues after them, or at `no`.
    fn search(&mut self, ranges: &[(u32, u32)], yes: Label, no: Label) {
        if ranges.len() <= MAX_SEQUENTIAL {
            for &(from, to) in ranges {
                if from == to {
                    self.asm.jump_if32(op::JEQ, reg::A, from, yes);
                } else if to == u32::MAX {
                    self.asm.jump_if32(op::JGE, reg::A, from, yes);
                } else {
                    self.asm.jump_if32(op::JLT, reg::A, from, no);
                    self.asm.jump_if32(op::JLE, reg::A, to, yes);
                }
            }
            return;
        }
        let (lower, upper) = ranges.split_at(ranges.len() / 2);
        let in_upper = self.asm.label();
        self.asm.jump_if32(op::JGE, reg::A, upper[0].0, in_upper);
        self.search(lower, yes, no);
        self.asm.goto(no);
        self.asm.bind(in_upper);
        self.search(upper, yes, no);
    }
}

// A look-up in a table: a binary search without a jump, so that the verifier follows a single path.

/// Loads an address in a map's value; the map's descriptor is inserted once the map exists.
const LOAD_ADDRESS: u8 = op::LOAD_IMMEDIATE;

/// Offsets of an entry's fields.
const SPAN: i16 = 8;
const NEXT: i16 = 12;

impl Emitter<'_> {
    /// Emits a look-up: A becomes the next state, or 0.
    pub(super) fn find(&mut self, version: usize, mode: Mode, table: usize) {
        let table = self.versions[version].first_table + table;
        let (steps, is_first, is_last) = {
            let table = &self.tables[table];
            (table.steps(), table.is_first, table.is_last)
        };
        // An unused register: the slow version keeps its values in registers that calls preserve.
        let found = match mode {
            Mode::Fast => reg::SLOW_SCRATCH,
            Mode::Slow => reg::CONTEXT,
        };
        self.emit(op::mov32(reg::A, reg::A));
        if !is_first {
            self.emit(op::load(op::DW, reg::TMP, mode.scratch(), slot::STATE));
            self.emit(op::alu(op::OR, reg::A, reg::TMP));
        }
        // Finds the last entry with a key less than A plus one.
        self.emit(op::alu_imm(op::ADD, reg::A, 1));
        self.emit(op::mov32_imm(found, 0));
        for step in (0..steps).rev() {
            let distance = ENTRY_SIZE << step;
            self.address(reg::TMP, table, distance as i32);
            self.emit(op::alu(op::ADD, reg::TMP, found));
            self.emit(op::load(op::DW, reg::TMP, reg::TMP, 0));
            self.emit(op::alu(op::SUB, reg::TMP, reg::A));
            self.emit(op::alu_imm(op::RSH, reg::TMP, 63));
            self.emit(op::alu_imm(op::LSH, reg::TMP, distance.ilog2() as i32));
            self.emit(op::alu(op::ADD, found, reg::TMP));
        }
        self.address(reg::TMP, table, 0);
        self.emit(op::alu(op::ADD, reg::TMP, found));
        self.emit(op::load(op::DW, found, reg::TMP, 0));
        self.emit(op::alu_imm(op::ADD, reg::A, -1));
        self.emit(op::alu(op::SUB, reg::A, found));
        self.emit(op::load(op::W, found, reg::TMP, SPAN));
        self.emit(op::load(op::W, reg::TMP, reg::TMP, NEXT));
        let within = self.asm.label();
        // Keys of another state are farther away than any span.
        self.asm.jump_if_reg(op::JLE, reg::A, found, within);
        self.emit(op::mov32_imm(reg::TMP, 0));
        self.asm.bind(within);
        self.emit(op::mov(reg::A, reg::TMP));
        if !is_last {
            self.emit(op::alu_imm(op::LSH, reg::TMP, 32));
            self.emit(op::store(op::DW, mode.scratch(), slot::STATE, reg::TMP));
        }
    }

    fn address(&mut self, register: u8, table: usize, offset: i32) {
        self.emit(Insn::new(LOAD_ADDRESS, register, op::MAP_VALUE, 0, table as i32));
        self.emit(Insn::new(0, 0, 0, 0, offset));
    }
}
