//! Labels and jumps: instructions whose distances are known only after layout.

use crate::error::FilterError;
use trawl_ebpf::{Insn, op};

/// A position in the block, possibly not yet placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Label(usize);

#[derive(Debug, Clone, Copy)]
enum Item {
    Insn(Insn),
    /// A jump; its distance is set at the end.
    Jump(Insn, Label),
}

#[derive(Debug, Default)]
pub(super) struct Assembler {
    items: Vec<Item>,
    /// For each label the index of its item, once placed.
    positions: Vec<Option<usize>>,
    /// True for labels that are jump targets.
    used: Vec<bool>,
}

impl Assembler {
    pub(super) fn label(&mut self) -> Label {
        self.positions.push(None);
        self.used.push(false);
        Label(self.positions.len() - 1)
    }

    pub(super) fn bind(&mut self, label: Label) {
        self.positions[label.0] = Some(self.items.len());
    }

    pub(super) fn is_placed(&self, label: Label) -> bool {
        self.positions[label.0].is_some()
    }

    pub(super) fn is_used(&self, label: Label) -> bool {
        self.used[label.0]
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn emit(&mut self, insn: Insn) {
        self.items.push(Item::Insn(insn));
    }

    pub(super) fn goto(&mut self, to: Label) {
        self.jump(Insn::new(op::JMP | op::JA, 0, 0, 0, 0), to);
    }

    /// Emits a jump if the 64 bits of the register satisfy a comparison with a constant (of 31 bits).
    pub(super) fn jump_if(&mut self, test: u8, dst: u8, imm: u32, to: Label) {
        self.jump(Insn::new(op::JMP | test | op::K, dst, 0, 0, imm as i32), to);
    }

    /// Emits a jump if the lower 32 bits of the register satisfy a comparison with a constant.
    pub(super) fn jump_if32(&mut self, test: u8, dst: u8, imm: u32, to: Label) {
        self.jump(Insn::new(op::JMP32 | test | op::K, dst, 0, 0, imm as i32), to);
    }

    /// Emits a jump if the 64 bits of two registers satisfy a comparison.
    pub(super) fn jump_if_reg(&mut self, test: u8, dst: u8, src: u8, to: Label) {
        self.jump(Insn::new(op::JMP | test | op::X, dst, src, 0, 0), to);
    }

    /// Emits a jump if the lower 32 bits of two registers satisfy a comparison.
    pub(super) fn jump_if_reg32(&mut self, test: u8, dst: u8, src: u8, to: Label) {
        self.jump(Insn::new(op::JMP32 | test | op::X, dst, src, 0, 0), to);
    }

    fn jump(&mut self, insn: Insn, to: Label) {
        self.used[to.0] = true;
        self.items.push(Item::Jump(insn, to));
    }

    /// Returns the finished block.
    pub(super) fn link(mut self, gotol: bool) -> Result<Vec<Insn>, FilterError> {
        self.simplify_jumps();
        let mut widths = vec![1usize; self.items.len()];
        loop {
            let starts = starts(&widths);
            let mut grown = false;
            for (index, item) in self.items.iter().enumerate() {
                let Item::Jump(insn, to) = *item else {
                    continue;
                };
                let distance = self.distance(&starts, index, widths[index], to);
                if widths[index] == 1 && i16::try_from(distance).is_err() {
                    if !gotol {
                        return Err(FilterError::TooLong { len: self.items.len(), max: i16::MAX as usize });
                    }
                    let long = long_form(insn).len();
                    // A `gotol` is as wide as a `goto`, so the width alone does not show a change.
                    if long != widths[index] {
                        widths[index] = long;
                        grown = true;
                    }
                }
            }
            if !grown {
                return Ok(self.lay_out(&starts, &widths));
            }
        }
    }

    fn distance(&self, starts: &[usize], index: usize, width: usize, to: Label) -> i64 {
        let target = self.positions[to.0].map_or(0, |item| starts[item]);
        target as i64 - (starts[index] + width) as i64
    }

    fn lay_out(&self, starts: &[usize], widths: &[usize]) -> Vec<Insn> {
        let mut block = Vec::with_capacity(starts[self.items.len()]);
        for (index, item) in self.items.iter().enumerate() {
            match *item {
                Item::Insn(insn) => block.push(insn),
                Item::Jump(mut insn, to) => {
                    let distance = self.distance(starts, index, widths[index], to);
                    match i16::try_from(distance) {
                        Ok(off) if widths[index] == 1 => {
                            insn.off = off;
                            block.push(insn);
                        }
                        _ => {
                            let mut form = long_form(insn);
                            if let Some(last) = form.last_mut() {
                                last.imm = distance as i32;
                            }
                            block.extend(form);
                        }
                    }
                }
            }
        }
        block
    }

    /// Removes jumps to the next instruction and inverts `if c goto next; goto else`.
    fn simplify_jumps(&mut self) {
        loop {
            let mut labelled = vec![false; self.items.len() + 1];
            for position in self.positions.iter().flatten() {
                labelled[*position] = true;
            }
            let mut drop = vec![false; self.items.len()];
            for index in 0..self.items.len() {
                let Item::Jump(insn, to) = self.items[index] else {
                    continue;
                };
                let target = self.positions[to.0];
                if is_always(insn) {
                    drop[index] |= target == Some(index + 1);
                } else if let Some(&Item::Jump(next, other)) = self.items.get(index + 1)
                    && is_always(next)
                    && !labelled[index + 1]
                    && target == Some(index + 2)
                    && self.positions[other.0] != Some(index + 2)
                    && let Some(inverse) = invert(insn)
                {
                    self.items[index] = Item::Jump(inverse, other);
                    drop[index + 1] = true;
                }
            }
            if !drop.contains(&true) {
                return;
            }
            self.remove(&drop);
        }
    }

    fn remove(&mut self, drop: &[bool]) {
        let mut moved = Vec::with_capacity(drop.len() + 1);
        let mut kept = 0;
        for &dropped in drop {
            moved.push(kept);
            kept += usize::from(!dropped);
        }
        moved.push(kept);
        let mut index = 0;
        self.items.retain(|_| {
            index += 1;
            !drop[index - 1]
        });
        for position in self.positions.iter_mut().flatten() {
            *position = moved[*position];
        }
    }
}

fn starts(widths: &[usize]) -> Vec<usize> {
    let mut starts = Vec::with_capacity(widths.len() + 1);
    let mut at = 0;
    for width in widths {
        starts.push(at);
        at += width;
    }
    starts.push(at);
    starts
}

fn is_always(insn: Insn) -> bool {
    insn.code == op::JMP | op::JA
}

fn invert(insn: Insn) -> Option<Insn> {
    let inverse = match insn.code & 0xf0 {
        op::JEQ => op::JNE,
        op::JNE => op::JEQ,
        op::JGT => op::JLE,
        op::JLE => op::JGT,
        op::JGE => op::JLT,
        op::JLT => op::JGE,
        _ => return None,
    };
    Some(Insn { code: insn.code & 0x0f | inverse, ..insn })
}

/// Returns a jump whose last instruction has a distance of 32 bits.
fn long_form(insn: Insn) -> Vec<Insn> {
    let far = Insn::new(op::JMP32 | op::JA, 0, 0, 0, 0);
    if is_always(insn) {
        return vec![far];
    }
    match invert(insn) {
        Some(inverse) => vec![Insn { off: 1, ..inverse }, far],
        None => vec![Insn { off: 1, ..insn }, Insn::new(op::JMP | op::JA, 0, 0, 1, 0), far],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needless_jumps_are_removed() {
        let mut asm = Assembler::default();
        let (next, end) = (asm.label(), asm.label());
        asm.jump_if32(op::JEQ, 7, 1, next);
        asm.goto(end);
        asm.bind(next);
        asm.emit(op::mov32_imm(0, 1));
        asm.goto(end);
        asm.bind(end);
        let block = asm.link(false).unwrap();
        assert_eq!(block, [Insn::new(op::JMP32 | op::JNE, 7, 0, 1, 1), op::mov32_imm(0, 1)]);
    }

    #[test]
    fn far_jumps_are_an_error_or_long() {
        let far = |gotol| {
            let mut asm = Assembler::default();
            let end = asm.label();
            asm.jump_if32(op::JSET, 7, 1, end);
            asm.jump_if32(op::JEQ, 7, 1, end);
            asm.goto(end);
            for _ in 0..40_000 {
                asm.emit(op::mov32_imm(0, 1));
            }
            asm.bind(end);
            asm.link(gotol)
        };
        assert_eq!(far(false), Err(FilterError::TooLong { len: 40_003, max: 32_767 }));
        let block = far(true).unwrap();
        assert_eq!(block.len(), 40_006);
        let long = |index: usize| index as i64 + 1 + i64::from(block[index].imm);
        for index in [2, 4, 5] {
            assert_eq!(block[index].code, op::JMP32 | op::JA);
            assert_eq!(long(index), 40_006);
        }
        assert_eq!((block[0].off, block[1].off, block[3].off), (1, 1, 1));
    }
}
