//! The slow version of a program, which reads each field with a helper; the transitions to it, and the packet's length,
//! which only it and few other programs need.

use std::collections::{BTreeMap, BTreeSet};

use super::Hook;
use super::assembler::Label;
use super::emitter::{EmitPoint, Emitter, Mode, Stub, View, reg, skb, slot};
use super::graph::{At, Graph, Op};
use trawl_ebpf::{helper, op};

const TAG_LENGTH: i32 = 4;

/// Returns true if the fast version of a program needs the packet's length.
pub(super) fn needs_length(graph: &Graph, view: View) -> bool {
    graph.blocks.iter().flat_map(|block| &block.ops).any(|op| {
        matches!(op, Op::Length(_) | Op::Touch { at: At::Wrap(_), .. })
            // Such a load has a check of its own, see `touch`.
            || view == View::Tagged && matches!(op, Op::Touch { at: At::Ind(_), .. })
    })
}

impl Emitter<'_> {
    /// Emits the computation of the packet's length in the fast version.
    pub(super) fn emit_length(&mut self, view: View) {
        match self.target.hook {
            Hook::Copy { .. } => {}
            Hook::Xdp if self.target.load_helper => {
                let kept = [(reg::SLOW_SCRATCH, reg::SCRATCH), (7, reg::DATA), (8, reg::DATA_END), (9, reg::CONTEXT)];
                for (keeper, register) in kept {
                    self.emit(op::mov(keeper, register));
                }
                self.emit(op::call(helper::XDP_GET_BUFF_LEN));
                self.emit(op::mov32(reg::LENGTH, reg::TMP));
                for (keeper, register) in kept {
                    self.emit(op::mov(register, keeper));
                }
            }
            // Kernels without the load helper have no length helper either, and no fragmented packets.
            Hook::Xdp => {
                self.emit(op::mov(reg::LENGTH, reg::DATA_END));
                self.emit(op::alu(op::SUB, reg::LENGTH, reg::DATA));
            }
            Hook::Tc | Hook::Socket => self.skb_length(reg::LENGTH, reg::CONTEXT, view),
        }
    }

    pub(super) fn skb_length(&mut self, into: u8, context: u8, view: View) {
        self.emit(op::load(op::W, into, context, skb::LEN));
        if view == View::Tagged {
            self.emit(op::alu_imm(op::ADD, into, TAG_LENGTH));
        }
    }

    pub(super) fn slow_label(&mut self, version: usize, block: usize, op: usize) -> Label {
        let asm = &mut self.asm;
        *self.versions[version].slow.entry((block, op)).or_insert_with(|| asm.label())
    }

    /// Returns the target to which a fast version jumps if the packet may lack the bytes of its next loads.
    pub(super) fn leave(&mut self, point: EmitPoint, needed: u32) -> Label {
        if let Some(undecided) = self.undecided {
            return undecided;
        }
        if self.target.helper().is_none() {
            let is_copy = matches!(self.target.hook, Hook::Copy { .. });
            let loops = self.versions[point.version].graph.has_loops();
            return if is_copy && loops && self.target.accepts_unfinished { self.end_of_copy() } else { self.no_match };
        }
        let label = self.asm.label();
        self.stubs.push(Stub { label, point, needed });
        label
    }

    fn end_of_copy(&mut self) -> Label {
        let asm = &mut self.asm;
        *self.end_of_copy.get_or_insert_with(|| asm.label())
    }

    /// Returns the beginning of a slow version, for code already in slow mode.
    pub(super) fn slow_start(&mut self, version: usize) -> Label {
        self.slow_label(version, 0, 0);
        self.versions[version].slow_start
    }

    pub(super) fn emit_stubs(&mut self) {
        if let Some(label) = self.end_of_copy {
            self.asm.bind(label);
            // The packet continues after the copy's end.
            let unfinished = self.unfinished();
            self.asm.jump_if_reg(op::JGT, reg::LENGTH, reg::DATA_END, unfinished);
            let no_match = self.no_match;
            self.asm.goto(no_match);
        }
        for stub in std::mem::take(&mut self.stubs) {
            if !self.asm.is_used(stub.label) {
                continue;
            }
            self.asm.bind(stub.label);
            let EmitPoint { version, block, op } = stub.point;
            let length = self.enter_slow(version);
            if stub.needed > 0 {
                self.asm.jump_if32(op::JLT, length, stub.needed, self.no_match);
            }
            let to = self.slow_label(version, block, op);
            self.asm.goto(to);
        }
    }

    /// Emits the transition to a slow version, which calls helpers; returns the register of the packet's length.
    pub(super) fn enter_slow(&mut self, version: usize) -> u8 {
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

    /// Emits the reachable part of a slow version.
    pub(super) fn slow(&mut self, version: usize) {
        // The verifier refuses unreachable code, so the reachable blocks are found first.
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
            self.asm.bind(slow_start);
            self.initialise(version, Mode::Slow);
            let first = self.slow_label(version, 0, 0);
            self.asm.goto(first);
        }
        for block in seen {
            let labels: BTreeMap<usize, Label> = self.versions[version]
                .slow
                .range((block, 0)..=(block, usize::MAX))
                .map(|(&(_, at), &label)| (at, label))
                .collect();
            let Some(&first) = labels.keys().next() else {
                continue;
            };
            let ops = self.versions[version].graph.blocks[block].ops.clone();
            for index in first..=ops.len() {
                if let Some(&label) = labels.get(&index) {
                    self.asm.bind(label);
                }
                if let Some(operation) = ops.get(index) {
                    let point = EmitPoint { version, block, op: index };
                    self.operation(point, Mode::Slow, operation);
                }
            }
            self.block_end(version, Mode::Slow, block);
        }
    }
}
