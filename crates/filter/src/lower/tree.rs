//! Whether A is in a set: a search tree of comparisons.

use super::assembler::Label;
use super::decide::ranges::Ranges;
use super::emit::Emitter;
use super::layout::reg;
use trawl_ebpf::op;

/// This many ranges are tried one after the other.
const IN_A_ROW: usize = 3;

impl Emitter<'_> {
    pub(super) fn among(&mut self, set: &Ranges, yes: Label, no: Label) {
        let ranges = set.ranges();
        // Most values lie outside of it all.
        if let (Some(&(least, _)), Some(&(_, greatest))) = (ranges.first(), ranges.last())
            && ranges.len() > IN_A_ROW
        {
            self.asm.jump_if32(op::JLT, reg::A, least, no);
            self.asm.jump_if32(op::JGT, reg::A, greatest, no);
        }
        self.search(ranges, yes, no);
        self.asm.goto(no);
    }

    /// Jumps if A is in one of the ranges; otherwise goes on after it, or jumps there already.
    fn search(&mut self, ranges: &[(u32, u32)], yes: Label, no: Label) {
        if ranges.len() <= IN_A_ROW {
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
        self.asm.place(in_upper);
        self.search(upper, yes, no);
    }
}
