//! From blocks of operations to instructions: both versions of a program, and the transitions between them.

use std::collections::BTreeMap;
use std::sync::Arc;

use trawl_ebpf::{Insn, op};

use super::ancillary::Answer;
use super::assembler::{Assembler, Label};
use super::emitter::{EmitPoint, Emitter, Mode, Returns, Version, View, reg, skb, slot};
use super::flow::{self, Reader};
use super::graph::{self, Decoder, End, Graph, Op, Reg, Return, Value};
use super::quick::Quick;
use super::values::{self, LiveAtStart};
use super::{Hook, Lowered, Stats, Target, sets, slow};
use crate::classic::{Classic, MAX_BACKWARD_JUMPS};
use crate::error::FilterError;

/// Return value for packets that exceed a loop's limit: on a socket, the number of bytes kept.
const UNFINISHED: u32 = 0x4_0000;

pub(super) fn program(classic: &Classic, target: &Target) -> Result<Lowered, FilterError> {
    let mut emitter = Emitter::new(target);
    let expects_stripped = graph::expects_stripped_frames(classic, target.hook);
    let graph = emitter.graph(classic)?;
    let plain = emitter.version(&graph, View::Plain, None, Returns::Result)?;
    if target.restores_tag() && !expects_stripped {
        let tagged = emitter.version(&graph, View::Tagged, None, Returns::Result)?;
        let to_tagged = emitter.jump_if_tagged();
        emitter.begin(plain);
        emitter.asm.bind(to_tagged);
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
            tables: Vec::new(),
            keeps_length: matches!(target.hook, Hook::Copy { .. }),
            end_of_copy: None,
            undecided: None,
        }
    }

    pub(super) fn emit(&mut self, insn: Insn) {
        self.asm.emit(insn);
    }

    /// Decodes a program, with its comparisons gathered into sets.
    pub(super) fn graph(&self, classic: &Classic) -> Result<Graph, FilterError> {
        let decoder = Decoder { target: self.target };
        let mut graph = decoder.decode(classic)?;
        sets::gather(&mut graph);
        Ok(graph)
    }

    /// Analyses a program, and returns its version number.
    pub(super) fn version(
        &mut self,
        graph: &Graph,
        view: View,
        max_base: Option<u32>,
        returns: Returns,
    ) -> Result<usize, FilterError> {
        let mut graph = graph.clone();
        // Versions of one program share its tables.
        let known = (self.versions.iter()).find(|v| Arc::ptr_eq(&v.graph.tables, &graph.tables));
        let first_table = known.map_or(self.tables.len(), |version| version.first_table);
        if known.is_none() {
            self.tables.extend(graph.tables.iter().cloned());
        }
        flow::cut_unmatchable(&mut graph);
        let start = values::remove_dead(&mut graph);
        values::settle_loads(&mut graph, self.target)?;
        self.keeps_length |= !self.is_slow_only() && slow::needs_length(&graph, view);
        let plan = flow::plan(
            &graph,
            Reader {
                has_slow: self.target.helper().is_some(),
                min_indirect: match view {
                    View::Plain => 0,
                    View::Tagged => super::load::AFTER_TAG,
                },
            },
        );
        let fast = graph.blocks.iter().map(|_| self.asm.label()).collect();
        let slow_start = self.asm.label();
        self.versions.push(Version {
            x_bounds: graph::bounds_of_x(&graph),
            graph,
            plan,
            start,
            view,
            first_table,
            max_base,
            returns,
            fast,
            slow: BTreeMap::new(),
            slow_start,
        });
        Ok(self.versions.len() - 1)
    }

    /// Emits a jump for packets with an out-of-band tag.
    pub(super) fn jump_if_tagged(&mut self) -> Label {
        let to = self.asm.label();
        self.emit(op::load(op::W, reg::TMP, reg::CONTEXT, skb::VLAN_PRESENT));
        self.asm.jump_if(op::JNE, reg::TMP, 0, to);
        to
    }

    /// Stores the tag's bytes in the scratch, in the frame's order.
    pub(super) fn store_tag(&mut self) {
        self.emit(op::load(op::W, reg::TMP, reg::CONTEXT, skb::VLAN_PROTO));
        self.emit(op::store(op::H, reg::SCRATCH, slot::TAG, reg::TMP));
        self.emit(op::load(op::W, reg::TMP, reg::CONTEXT, skb::VLAN_TCI));
        self.emit(op::be(reg::TMP, 16));
        self.emit(op::store(op::H, reg::SCRATCH, slot::TAG + 2, reg::TMP));
    }

    pub(super) fn initialise(&mut self, version: usize, mode: Mode) {
        let v = &self.versions[version];
        if mode == Mode::Fast && self.keeps_length && v.max_base.is_none() {
            self.emit_length(v.view);
        }
        if self.versions[version].graph.has_loops() {
            let left = MAX_BACKWARD_JUMPS as i32 + 1;
            self.emit(op::store_imm(op::DW, mode.scratch(), slot::LOOPS, left));
        }
        let LiveAtStart { a, x, memory } = self.versions[version].start;
        // libpcap's programs may read cells before storing to them; newer versions of libpcap start with zeroes as
        // well.
        for cell in (0..16).filter(|cell| memory & 1 << cell != 0) {
            let at = slot::MEMORY + 8 * cell;
            self.emit(op::store_imm(op::DW, mode.scratch(), at, 0));
        }
        if a {
            self.emit(op::mov32_imm(reg::A, 0));
        }
        if x {
            self.emit(op::mov32_imm(reg::X, 0));
        }
    }

    /// Emits the first part of a version: its fast one, or the transition to the slow one if packet memory may not be
    /// read.
    pub(super) fn begin(&mut self, version: usize) {
        if !self.is_slow_only() {
            return self.fast(version);
        }
        self.enter_slow(version);
        let to = self.slow_start(version);
        self.asm.goto(to);
    }

    /// Emits a fast version, after its initialisation.
    pub(super) fn fast(&mut self, version: usize) {
        self.initialise(version, Mode::Fast);
        let count = self.versions[version].graph.blocks.len();
        let mut wanted = vec![false; count];
        wanted[0] = true;
        // Relevant jumps go forward, so a block comes after all its predecessors.
        for block in 0..count {
            if wanted[block] && self.fast_block(version, block) {
                for next in self.versions[version].graph.blocks[block].successors() {
                    wanted[next] = true;
                }
            }
        }
    }

    /// Emits a block; returns false if control never reaches its end.
    fn fast_block(&mut self, version: usize, block: usize) -> bool {
        if self.tail_of(version, Mode::Fast, block).is_some() && block != 0 {
            return true;
        }
        self.asm.bind(self.versions[version].fast[block]);
        let plan = self.versions[version].plan.blocks[block].clone();
        let point = |op| EmitPoint { version, block, op };
        if let Some(check) = plan.start {
            let leave = self.leave(point(0), check.needed);
            self.checks += 1;
            if !self.check_fixed(version, check, leave) {
                return false;
            }
        }
        let ops = self.versions[version].graph.blocks[block].ops.clone();
        for (index, (operation, check)) in ops.iter().zip(&plan.ops).enumerate() {
            if let Some(check) = *check {
                let leave = self.leave(point(index), 0);
                let x_bound = self.versions[version].x_bounds[block][index];
                self.checks += 1;
                if !self.check_after_x(version, check, x_bound, leave) {
                    return false;
                }
            }
            self.operation(point(index), Mode::Fast, operation);
        }
        self.block_end(version, Mode::Fast, block);
        true
    }

    pub(super) fn block_end(&mut self, version: usize, mode: Mode, block: usize) {
        match self.versions[version].graph.blocks[block].end {
            End::Return(value) => self.emit_return(version, mode, value),
            End::Goto(to) => {
                let to = self.block_label(version, mode, to);
                self.asm.goto(to);
            }
            End::Back(to) => {
                let (scratch, unfinished) = (mode.scratch(), self.unfinished());
                self.emit(op::load(op::DW, reg::TMP, scratch, slot::LOOPS));
                self.emit(op::alu_imm(op::ADD, reg::TMP, -1));
                self.asm.jump_if(op::JEQ, reg::TMP, 0, unfinished);
                self.emit(op::store(op::DW, scratch, slot::LOOPS, reg::TMP));
                self.forget_x(scratch);
                let to = self.block_label(version, mode, to);
                self.asm.goto(to);
            }
            End::Branch { test, value, yes, no } => {
                let yes = self.block_label(version, mode, yes);
                let no = self.block_label(version, mode, no);
                match value {
                    // The test is made on a copy, because the bits that it shows to the verifier may contradict the
                    // ranges that the verifier knows, which causes a kernel warning.
                    Value::K(k) if test == op::JSET => {
                        self.emit(op::mov32(reg::TMP, reg::A));
                        self.emit(op::alu32_imm(op::AND, reg::TMP, k));
                        self.asm.jump_if32(op::JNE, reg::TMP, 0, yes);
                    }
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

    fn emit_return(&mut self, version: usize, mode: Mode, value: Return) {
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

    /// Returns the target of a loop that exceeds its limit.
    pub(super) fn unfinished(&mut self) -> Label {
        if self.target.accepts_unfinished { self.tail(UNFINISHED) } else { self.no_match }
    }

    /// Returns the tail that is equivalent to a block, if the block only returns a constant.
    pub(super) fn tail_of(&mut self, version: usize, _mode: Mode, block: usize) -> Option<Label> {
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

    /// Emits the code after the fast versions, which are complete; returns the number of their instructions.
    pub(super) fn finish_fast(&mut self) -> usize {
        // The tails follow the fast code directly, so that its last block falls through into one of them.
        self.emit_tails();
        let fast = self.asm.len();
        self.emit_stubs();
        fast
    }

    /// Emits the used tails that have not been placed.
    fn emit_tails(&mut self) {
        let mut tails = vec![(0, self.no_match)];
        tails.extend(self.tails.iter().map(|(&k, &label)| (k, label)));
        for (k, label) in tails {
            if self.asm.is_used(label) && !self.asm.is_placed(label) {
                self.asm.bind(label);
                self.emit(op::mov32_imm(reg::TMP, k));
                self.asm.goto(self.end);
            }
        }
    }

    /// Links everything.
    pub(super) fn finish(mut self, fast: usize, classic: usize) -> Result<Lowered, FilterError> {
        self.emit_tails();
        self.asm.bind(self.end);
        let (checks, gotol) = (self.checks, self.target.gotol);
        let tables = std::mem::take(&mut self.tables);
        let insns = self.asm.link(gotol)?;
        Ok(Lowered { tables, stats: Stats { classic, ebpf: insns.len(), fast: fast.min(insns.len()), checks }, insns })
    }

    /// Links a quick version. The verifier refuses unreachable code.
    pub(super) fn finish_quick(mut self) -> Result<Vec<Insn>, FilterError> {
        let tails = std::mem::take(&mut self.tails).into_values();
        let ends = [
            (Quick::Matched, tails.collect()),
            (Quick::Undecided, Vec::from_iter(self.undecided)),
            (Quick::Rejected, vec![self.no_match]),
        ];
        for (outcome, labels) in ends {
            if !labels.iter().any(|label| self.asm.is_used(*label)) {
                continue;
            }
            for label in labels {
                self.asm.bind(label);
            }
            self.emit(op::mov32_imm(reg::TMP, outcome as u32));
            self.asm.goto(self.end);
        }
        self.asm.bind(self.end);
        self.asm.link(self.target.gotol)
    }

    pub(super) fn is_slow_only(&self) -> bool {
        self.target.hook == Hook::Socket
    }

    pub(super) fn is_copy(&self) -> bool {
        matches!(self.target.hook, Hook::Copy { .. })
    }
}

// Single operations as instructions: arithmetic, scratch memory, facts from the context.

impl Emitter<'_> {
    pub(super) fn operation(&mut self, point: EmitPoint, mode: Mode, operation: &Op) {
        let scratch = mode.scratch();
        let memory = |cell: u8| slot::MEMORY + 8 * i16::from(cell);
        let register = |r| match r {
            Reg::A => reg::A,
            Reg::X => reg::X,
        };
        match *operation {
            Op::Load { width, at, raw } => self.load(point, mode, at, width, raw),
            Op::Touch { width, at } => self.touch(point.version, mode, at, width),
            Op::HeaderLength(k) => {
                self.fixed(point.version, mode, reg::X, k, 1, false);
                self.emit(op::alu32_imm(op::AND, reg::X, 0xf));
                self.emit(op::alu32_imm(op::LSH, reg::X, 2));
            }
            Op::Field(answer) => self.field(mode, answer),
            Op::Length(r) => match mode {
                Mode::Fast => self.emit(op::mov32(register(r), reg::LENGTH)),
                Mode::Slow => self.emit(op::load(op::W, register(r), scratch, slot_low_word(slot::LENGTH))),
            },
            Op::Imm(r, k) => self.emit(op::mov32_imm(register(r), k)),
            Op::Recall(r, cell) => {
                self.emit(op::load(op::DW, register(r), scratch, memory(cell)));
            }
            Op::Store(r, cell) => {
                self.emit(op::store(op::DW, scratch, memory(cell), register(r)));
            }
            Op::Alu(operation, value) => self.alu(operation, value),
            Op::Find(table) => self.find(point.version, mode, table),
            Op::Neg => self.emit(Insn::new(op::ALU | op::NEG, reg::A, 0, 0, 0)),
            Op::Tax => self.emit(op::mov32(reg::X, reg::A)),
            Op::Txa => self.emit(op::mov32(reg::A, reg::X)),
            Op::NonZeroX => self.asm.jump_if32(op::JEQ, reg::X, 0, self.no_match),
        }
    }

    fn alu(&mut self, operation: u8, value: Value) {
        match (operation, value) {
            (_, Value::K(k)) => self.emit(op::alu32_imm(operation, reg::A, k)),
            // The kernel's division by zero gives 0; a classic filter's ends the filter.
            (op::DIV | op::MOD, Value::X) => {
                self.asm.jump_if32(op::JEQ, reg::X, 0, self.no_match);
                self.emit(op::alu32(operation, reg::A, reg::X));
            }
            // The processor shifts modulo 32; libpcap shifts out all bits.
            (op::LSH | op::RSH, Value::X) => {
                let (within, done) = (self.asm.label(), self.asm.label());
                self.asm.jump_if32(op::JLT, reg::X, 32, within);
                self.emit(op::mov32_imm(reg::A, 0));
                self.asm.goto(done);
                self.asm.bind(within);
                self.emit(op::alu32(operation, reg::A, reg::X));
                self.asm.bind(done);
            }
            (_, Value::X) => self.emit(op::alu32(operation, reg::A, reg::X)),
        }
    }

    fn field(&mut self, mode: Mode, answer: Answer) {
        match answer {
            Answer::Context(off) => self.emit(op::load(op::W, reg::A, mode.context(), off)),
            Answer::ContextBigEndian(off) => {
                self.emit(op::load(op::W, reg::A, mode.context(), off));
                self.emit(op::be(reg::A, 16));
            }
            Answer::Helper(id) => {
                let keeps_length = self.keeps_length;
                let kept =
                    (reg::CONTEXT..=reg::SCRATCH).filter(move |&register| register != reg::LENGTH || keeps_length);
                if mode == Mode::Fast {
                    self.emit(op::mov(reg::SLOW_SCRATCH, reg::SCRATCH));
                    for r in kept.clone() {
                        self.emit(op::store(op::DW, reg::SLOW_SCRATCH, kept_slot(r), r));
                    }
                }
                self.emit(op::call(id));
                self.emit(op::mov32(reg::A, reg::TMP));
                if mode == Mode::Fast {
                    for r in kept {
                        self.emit(op::load(op::DW, r, reg::SLOW_SCRATCH, kept_slot(r)));
                    }
                }
            }
            // Decoding and `settle_loads` have replaced these by other operations.
            Answer::Constant(_) | Answer::NotOutgoing | Answer::EtherType | Answer::XorX => {}
        }
    }

    /// Makes the verifier forget the bounds of X. Otherwise each iteration of a loop leaves X with different bounds,
    /// and the verifier follows each of them until it gives up.
    pub(super) fn forget_x(&mut self, scratch: u8) {
        let top = if cfg!(target_endian = "big") { 0 } else { 7 };
        self.emit(op::store(op::DW, scratch, slot::STAGING, reg::X));
        // X has 32 bits, so this byte is zero already; but a partly written slot has no bounds.
        self.emit(op::store_imm(op::B, scratch, slot::STAGING + top, 0));
        self.emit(op::load(op::DW, reg::X, scratch, slot::STAGING));
    }
}

/// Returns the offset of the lower half of an eight-byte slot.
fn slot_low_word(at: i16) -> i16 {
    if cfg!(target_endian = "big") { at + 4 } else { at }
}

fn kept_slot(register: u8) -> i16 {
    slot::KEPT + 8 * i16::from(register - reg::CONTEXT)
}
