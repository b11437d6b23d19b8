//! From blocks of operations to instructions: both versions of a program, and what joins them.

use std::collections::{BTreeMap, BTreeSet};

use super::assembler::{Assembler, Label};
use super::decide;
use super::flow::{self, Plan, Reader};
use super::graph::{self, At, Decoder, End, Graph, Op, Return, Value};
use super::layout::{reg, slot};
use super::values::{self, LiveAtStart};
use super::{Hook, Lowered, Stats, Target};
use crate::classic::{Classic, MAX_BACKWARD_JUMPS};
use crate::ebpf::{Insn, helper, op};
use crate::error::FilterError;

/// Offsets in `__sk_buff`.
mod skb {
    pub const LEN: i16 = 0;
    pub const VLAN_PRESENT: i16 = 20;
    pub const VLAN_TCI: i16 = 24;
    pub const VLAN_PROTO: i16 = 28;
}

const TAG_LENGTH: i32 = 4;

/// How the packet's bytes lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// As the filter sees them.
    Plain,
    /// With the four bytes from offset 12 beside them.
    Tagged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Fast,
    Slow,
}

impl Mode {
    pub(super) fn scratch(self) -> u8 {
        match self {
            Mode::Fast => reg::SCRATCH,
            Mode::Slow => reg::SLOW_SCRATCH,
        }
    }

    pub(super) fn context(self) -> u8 {
        match self {
            Mode::Fast => reg::CONTEXT,
            Mode::Slow => reg::SLOW_CONTEXT,
        }
    }
}

/// Where a program's result goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Returns {
    /// It is the block's result.
    Result,
    /// Something else goes on with it in r0, unless it is 0.
    To { fast: Label, slow: Label },
}

/// One program in one view, ready to be emitted in both modes.
pub(super) struct Version {
    pub(super) graph: Graph,
    plan: Plan,
    x_bounds: Vec<Vec<u32>>,
    start: LiveAtStart,
    pub(super) view: View,
    /// Greatest offset at which the packet that the program sees can begin in the real one.
    pub(super) greatest_base: Option<u32>,
    returns: Returns,
    fast: Vec<Label>,
    /// Places of the slow version that something leads to.
    slow: BTreeMap<(usize, usize), Label>,
    slow_start: Label,
}

/// The way out of a fast version.
struct Stub {
    label: Label,
    version: usize,
    block: usize,
    op: usize,
    needed: u32,
}

pub(super) struct Emitter<'a> {
    pub(super) asm: Assembler,
    pub(super) target: &'a Target,
    pub(super) no_match: Label,
    end: Label,
    /// One tail for each constant that is returned.
    tails: BTreeMap<u32, Label>,
    pub(super) versions: Vec<Version>,
    stubs: Vec<Stub>,
    checks: usize,
    /// Whether the fast versions have the packet's length in a register.
    pub(super) keeps_length: bool,
}

pub(super) fn program(classic: &Classic, target: &Target) -> Result<Lowered, FilterError> {
    let mut emitter = Emitter::new(target);
    let takes_stripped = graph::expects_tags_beside(classic, target.hook);
    let graph = emitter.graph(classic)?;
    let plain = emitter.version(&graph, View::Plain, None, Returns::Result)?;
    if target.puts_tag_back() && !takes_stripped {
        let tagged = emitter.version(&graph, View::Tagged, None, Returns::Result)?;
        let to_tagged = emitter.go_if_tagged();
        emitter.begin(plain);
        emitter.asm.place(to_tagged);
        emitter.store_tag();
        emitter.begin(tagged);
    } else {
        emitter.begin(plain);
    }
    let fast = emitter.finish_fast();
    for version in 0..emitter.versions.len() {
        emitter.slow(version);
    }
    emitter.finish(fast, classic.instructions().len())
}

impl<'a> Emitter<'a> {
    pub(super) fn new(target: &'a Target) -> Self {
        let mut asm = Assembler::default();
        let (no_match, end) = (asm.label(), asm.label());
        Emitter {
            asm,
            target,
            no_match,
            end,
            tails: BTreeMap::new(),
            versions: Vec::new(),
            stubs: Vec::new(),
            checks: 0,
            keeps_length: matches!(target.hook, Hook::Copy { .. }),
        }
    }

    pub(super) fn emit(&mut self, insn: Insn) {
        self.asm.emit(insn);
    }

    /// A program taken apart, with as few questions as it takes.
    pub(super) fn graph(&self, classic: &Classic) -> Result<Graph, FilterError> {
        let decoder = Decoder {
            target: self.target,
        };
        Ok(decide::ask_less(decoder.decode(classic)?))
    }

    /// Analyses a program; says by which number it is known here.
    pub(super) fn version(
        &mut self,
        graph: &Graph,
        view: View,
        greatest_base: Option<u32>,
        returns: Returns,
    ) -> Result<usize, FilterError> {
        let mut graph = graph.clone();
        flow::cut_hopeless(&mut graph);
        let start = values::remove_dead(&mut graph);
        values::settle_loads(&mut graph, self.target)?;
        self.keeps_length |= !self.is_slow_only() && asks_length(&graph, view);
        let plan = flow::plan(
            &graph,
            Reader {
                has_slow: self.target.helper().is_some(),
                least_indirect: match view {
                    View::Plain => 0,
                    View::Tagged => super::load::AFTER_TAG,
                },
            },
        );
        let fast = graph.blocks.iter().map(|_| self.asm.label()).collect();
        let slow_start = self.asm.label();
        self.versions.push(Version {
            x_bounds: values::bounds_of_x(&graph),
            graph,
            plan,
            start,
            view,
            greatest_base,
            returns,
            fast,
            slow: BTreeMap::new(),
            slow_start,
        });
        Ok(self.versions.len() - 1)
    }

    /// Goes elsewhere if the packet's tag stands beside it.
    pub(super) fn go_if_tagged(&mut self) -> Label {
        let to = self.asm.label();
        self.emit(op::load(op::W, reg::TMP, reg::CONTEXT, skb::VLAN_PRESENT));
        self.asm.jump_if(op::JNE, reg::TMP, 0, to);
        to
    }

    /// Puts the tag into the scratch as its bytes would lie in the frame.
    pub(super) fn store_tag(&mut self) {
        self.emit(op::load(op::W, reg::TMP, reg::CONTEXT, skb::VLAN_PROTO));
        self.emit(op::store(op::H, reg::SCRATCH, slot::TAG, reg::TMP));
        self.emit(op::load(op::W, reg::TMP, reg::CONTEXT, skb::VLAN_TCI));
        self.emit(op::be(reg::TMP, 16));
        self.emit(op::store(op::H, reg::SCRATCH, slot::TAG + 2, reg::TMP));
    }

    /// Puts the packet's length into a register, in the fast version.
    fn ask_length(&mut self, view: View) {
        match self.target.hook {
            Hook::Copy { .. } => {}
            Hook::Xdp if self.target.load_helper => {
                let kept = [
                    (6, reg::CONTEXT),
                    (7, reg::DATA),
                    (8, reg::DATA_END),
                    (9, reg::SCRATCH),
                ];
                for (keeper, register) in kept {
                    self.emit(op::mov(keeper, register));
                }
                self.emit(op::call(helper::XDP_GET_BUFF_LEN));
                self.emit(op::mov32(reg::LENGTH, reg::TMP));
                for (keeper, register) in kept {
                    self.emit(op::mov(register, keeper));
                }
            }
            // Kernels without the load helper have no length helper either, nor packets in pieces.
            Hook::Xdp => {
                self.emit(op::mov(reg::LENGTH, reg::DATA_END));
                self.emit(op::alu(op::SUB, reg::LENGTH, reg::DATA));
            }
            Hook::Tc | Hook::Socket => self.skb_length(reg::LENGTH, reg::CONTEXT, view),
        }
    }

    fn skb_length(&mut self, into: u8, context: u8, view: View) {
        self.emit(op::load(op::W, into, context, skb::LEN));
        if view == View::Tagged {
            self.emit(op::alu_imm(op::ADD, into, TAG_LENGTH));
        }
    }

    fn initialise(&mut self, version: usize, mode: Mode) {
        let v = &self.versions[version];
        if mode == Mode::Fast && self.keeps_length && v.greatest_base.is_none() {
            self.ask_length(v.view);
        }
        if self.versions[version].graph.has_loops() {
            let left = MAX_BACKWARD_JUMPS as i32 + 1;
            self.emit(op::store_imm(op::DW, mode.scratch(), slot::LOOPS, left));
        }
        let LiveAtStart { a, x } = self.versions[version].start;
        if a {
            self.emit(op::mov32_imm(reg::A, 0));
        }
        if x {
            self.emit(op::mov32_imm(reg::X, 0));
        }
    }

    /// Emits what comes first of a version: its fast one, or the way into the slow one where packet
    /// memory may not be read.
    pub(super) fn begin(&mut self, version: usize) {
        if !self.is_slow_only() {
            return self.fast(version);
        }
        self.go_slow(version);
        let to = self.slow_start(version);
        self.asm.goto(to);
    }

    /// Emits a fast version, with the way into it first.
    pub(super) fn fast(&mut self, version: usize) {
        self.initialise(version, Mode::Fast);
        let count = self.versions[version].graph.blocks.len();
        let mut wanted = vec![false; count];
        wanted[0] = true;
        // Jumps that matter go forward, so a block's turn comes after all that lead to it.
        for block in 0..count {
            if wanted[block] && self.fast_block(version, block) {
                for next in self.versions[version].graph.blocks[block].successors() {
                    wanted[next] = true;
                }
            }
        }
    }

    /// Emits a block; false if control never comes to its end.
    fn fast_block(&mut self, version: usize, block: usize) -> bool {
        if self.tail_of(version, Mode::Fast, block).is_some() && block != 0 {
            return true;
        }
        self.asm.place(self.versions[version].fast[block]);
        let plan = self.versions[version].plan.blocks[block].clone();
        if let Some(check) = plan.start {
            let leave = self.leave(version, block, 0, check.needed);
            self.checks += 1;
            if !self.check_fixed(version, check, leave) {
                return false;
            }
        }
        let ops = self.versions[version].graph.blocks[block].ops.clone();
        for (index, (operation, check)) in ops.iter().zip(&plan.ops).enumerate() {
            if let Some(check) = *check {
                let leave = self.leave(version, block, index, 0);
                let x_bound = self.versions[version].x_bounds[block][index];
                self.checks += 1;
                if !self.check_after_x(version, check, x_bound, leave) {
                    return false;
                }
            }
            let place = Place {
                version,
                block,
                op: index,
            };
            self.operation(place, Mode::Fast, operation);
        }
        self.block_end(version, Mode::Fast, block);
        true
    }

    fn block_end(&mut self, version: usize, mode: Mode, block: usize) {
        match self.versions[version].graph.blocks[block].end {
            End::Return(value) => self.give_back(version, mode, value),
            End::Goto(to) => {
                let to = self.block_label(version, mode, to);
                self.asm.goto(to);
            }
            End::Back(to) => {
                let (scratch, no_match) = (mode.scratch(), self.no_match);
                self.emit(op::load(op::DW, reg::TMP, scratch, slot::LOOPS));
                self.emit(op::alu_imm(op::ADD, reg::TMP, -1));
                self.asm.jump_if(op::JEQ, reg::TMP, 0, no_match);
                self.emit(op::store(op::DW, scratch, slot::LOOPS, reg::TMP));
                self.forget_x(scratch);
                let to = self.block_label(version, mode, to);
                self.asm.goto(to);
            }
            End::Branch {
                test,
                value,
                yes,
                no,
            } => {
                let yes = self.block_label(version, mode, yes);
                let no = self.block_label(version, mode, no);
                match value {
                    Value::K(k) => self.asm.jump_if32(test, reg::A, k, yes),
                    Value::X => self.asm.jump_if_reg32(test, reg::A, reg::X, yes),
                }
                self.asm.goto(no);
            }
            End::Among { set, yes, no } => {
                let yes = self.block_label(version, mode, yes);
                let no = self.block_label(version, mode, no);
                let set = self.versions[version].graph.sets[set].clone();
                self.among(&set, yes, no);
            }
        }
    }

    fn give_back(&mut self, version: usize, mode: Mode, value: Return) {
        let to = match (self.versions[version].returns, mode, value) {
            (_, _, Return::K(0)) => self.no_match,
            (Returns::Result, _, Return::K(k)) => self.tail(k),
            (Returns::Result, _, Return::A) => {
                self.emit(op::mov32(reg::TMP, reg::A));
                self.end
            }
            (Returns::To { fast, slow }, _, value) => {
                self.emit(match value {
                    Return::A => op::mov32(reg::TMP, reg::A),
                    Return::K(k) => op::mov32_imm(reg::TMP, k),
                });
                if mode == Mode::Fast { fast } else { slow }
            }
        };
        self.asm.goto(to);
    }

    fn tail(&mut self, k: u32) -> Label {
        if k == 0 {
            return self.no_match;
        }
        let asm = &mut self.asm;
        *self.tails.entry(k).or_insert_with(|| asm.label())
    }

    /// The tail that a block amounts to, if it does nothing but return a constant.
    fn tail_of(&mut self, version: usize, _mode: Mode, block: usize) -> Option<Label> {
        let v = &self.versions[version];
        let b = &v.graph.blocks[block];
        match (b.end, v.returns) {
            (End::Return(Return::K(k)), returns)
                if b.ops.is_empty() && (k == 0 || matches!(returns, Returns::Result)) =>
            {
                Some(self.tail(k))
            }
            _ => None,
        }
    }

    fn block_label(&mut self, version: usize, mode: Mode, block: usize) -> Label {
        if let Some(tail) = self.tail_of(version, mode, block) {
            return tail;
        }
        match mode {
            Mode::Fast => self.versions[version].fast[block],
            Mode::Slow => self.slow_label(version, block, 0),
        }
    }

    fn slow_label(&mut self, version: usize, block: usize, op: usize) -> Label {
        let asm = &mut self.asm;
        *self.versions[version]
            .slow
            .entry((block, op))
            .or_insert_with(|| asm.label())
    }

    /// Where a fast version goes when it cannot say that the bytes are there.
    pub(super) fn leave(&mut self, version: usize, block: usize, op: usize, needed: u32) -> Label {
        if self.target.helper().is_none() {
            return self.no_match;
        }
        let label = self.asm.label();
        self.stubs.push(Stub {
            label,
            version,
            block,
            op,
            needed,
        });
        label
    }

    /// The beginning of a slow version, for something that is in slow mode already.
    pub(super) fn slow_start(&mut self, version: usize) -> Label {
        self.slow_label(version, 0, 0);
        self.versions[version].slow_start
    }

    fn emit_stubs(&mut self) {
        for stub in std::mem::take(&mut self.stubs) {
            if !self.asm.is_used(stub.label) {
                continue;
            }
            self.asm.place(stub.label);
            let length = self.go_slow(stub.version);
            if stub.needed > 0 {
                self.asm
                    .jump_if32(op::JLT, length, stub.needed, self.no_match);
            }
            let to = self.slow_label(stub.version, stub.block, stub.op);
            self.asm.goto(to);
        }
    }

    /// Puts things where a slow version, which calls helpers, keeps them; says in which register
    /// the packet's length is.
    fn go_slow(&mut self, version: usize) -> u8 {
        self.emit(op::mov(reg::SLOW_SCRATCH, reg::SCRATCH));
        self.emit(op::mov(reg::SLOW_CONTEXT, reg::CONTEXT));
        let length = match self.target.hook {
            _ if self.keeps_length => reg::LENGTH,
            Hook::Xdp => {
                self.emit(op::call(helper::XDP_GET_BUFF_LEN));
                self.emit(op::mov32(reg::TMP, reg::TMP));
                reg::TMP
            }
            _ => {
                let view = self.versions[version].view;
                self.skb_length(reg::TMP, reg::SLOW_CONTEXT, view);
                reg::TMP
            }
        };
        self.emit(op::store(op::DW, reg::SLOW_SCRATCH, slot::LENGTH, length));
        length
    }

    /// Emits what is reached of a slow version.
    pub(super) fn slow(&mut self, version: usize) {
        // The verifier refuses code that nothing leads to, so first find what is led to.
        let mut open: Vec<(usize, usize)> = self.versions[version].slow.keys().copied().collect();
        let mut seen = BTreeSet::new();
        while let Some((block, _)) = open.pop() {
            if !seen.insert(block) {
                continue;
            }
            for next in self.versions[version].graph.blocks[block].successors() {
                if self.tail_of(version, Mode::Slow, next).is_none() {
                    self.slow_label(version, next, 0);
                    open.push((next, 0));
                }
            }
        }
        let slow_start = self.versions[version].slow_start;
        if self.asm.is_used(slow_start) {
            self.asm.place(slow_start);
            self.initialise(version, Mode::Slow);
            let first = self.slow_label(version, 0, 0);
            self.asm.goto(first);
        }
        for block in seen {
            let places: BTreeMap<usize, Label> = self.versions[version]
                .slow
                .range((block, 0)..=(block, usize::MAX))
                .map(|(&(_, at), &label)| (at, label))
                .collect();
            let Some(&first) = places.keys().next() else {
                continue;
            };
            let ops = self.versions[version].graph.blocks[block].ops.clone();
            for index in first..=ops.len() {
                if let Some(&label) = places.get(&index) {
                    self.asm.place(label);
                }
                if let Some(operation) = ops.get(index) {
                    let place = Place {
                        version,
                        block,
                        op: index,
                    };
                    self.operation(place, Mode::Slow, operation);
                }
            }
            self.block_end(version, Mode::Slow, block);
        }
    }

    /// Emits what follows the fast versions, which are all there now; says how many instructions
    /// they have.
    pub(super) fn finish_fast(&mut self) -> usize {
        // Right behind the fast code, so that its last block falls into one of them.
        self.emit_tails();
        let fast = self.asm.len();
        self.emit_stubs();
        fast
    }

    /// Emits those tails that something leads to and that are not there yet.
    fn emit_tails(&mut self) {
        let mut tails = vec![(0, self.no_match)];
        tails.extend(self.tails.iter().map(|(&k, &label)| (k, label)));
        for (k, label) in tails {
            if self.asm.is_used(label) && !self.asm.is_placed(label) {
                self.asm.place(label);
                self.emit(op::mov32_imm(reg::TMP, k));
                self.asm.goto(self.end);
            }
        }
    }

    /// Links it all.
    pub(super) fn finish(mut self, fast: usize, classic: usize) -> Result<Lowered, FilterError> {
        self.emit_tails();
        self.asm.place(self.end);
        let (checks, gotol) = (self.checks, self.target.gotol);
        let insns = self.asm.link(gotol)?;
        Ok(Lowered {
            stats: Stats {
                classic,
                ebpf: insns.len(),
                fast: fast.min(insns.len()),
                checks,
            },
            insns,
        })
    }

    pub(super) fn is_slow_only(&self) -> bool {
        self.target.hook == Hook::Socket
    }

    pub(super) fn is_copy(&self) -> bool {
        matches!(self.target.hook, Hook::Copy { .. })
    }
}

/// Whether the fast version of a program has to know how long the packet is.
fn asks_length(graph: &Graph, view: View) -> bool {
    graph.blocks.iter().flat_map(|block| &block.ops).any(|op| {
        matches!(op, Op::Length(_))
            // Such a load is checked by itself, see `touch`.
            || view == View::Tagged && matches!(op, Op::Touch { at: At::Ind(_), .. })
    })
}

/// A point of a version.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) version: usize,
    pub(super) block: usize,
    pub(super) op: usize,
}
