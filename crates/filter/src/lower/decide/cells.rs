//! What the classic machine's registers and memory hold at a place of the program.

use super::super::graph::{At, BEYOND_ANY_PACKET, Op, Reg, Value};
use super::super::values::LiveCells;
use super::nodes::Question;
use super::terms::{Term, TermId, Terms};

/// Which values the classic machine holds; nothing where that is unknown or does not matter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Cells {
    pub(super) a: Option<TermId>,
    pub(super) x: Option<TermId>,
    pub(super) memory: [Option<TermId>; 16],
}

impl Cells {
    pub(super) fn start(terms: &mut Terms) -> Self {
        let zero = Some(terms.imm(0));
        Cells {
            a: zero,
            x: zero,
            memory: [zero; 16],
        }
    }

    pub(super) fn meet(&mut self, other: &Cells) {
        let here = [&mut self.a, &mut self.x]
            .into_iter()
            .chain(&mut self.memory);
        let there = [&other.a, &other.x].into_iter().chain(&other.memory);
        for (here, there) in here.zip(there) {
            if here != there {
                *here = None;
            }
        }
    }

    pub(super) fn forget_dead(&mut self, live: LiveCells) {
        let keep = |cell: &mut Option<TermId>, is_live: bool| {
            if !is_live {
                *cell = None;
            }
        };
        keep(&mut self.a, live.register(Reg::A));
        keep(&mut self.x, live.register(Reg::X));
        for (index, cell) in self.memory.iter_mut().enumerate() {
            keep(cell, live.memory(index as u8));
        }
    }

    pub(super) fn get(&self, reg: Reg) -> Option<TermId> {
        match reg {
            Reg::A => self.a,
            Reg::X => self.x,
        }
    }

    pub(super) fn set(&mut self, reg: Reg, term: Option<TermId>) {
        match reg {
            Reg::A => self.a = term,
            Reg::X => self.x = term,
        }
    }

    /// Does an operation; says which value was asked for that may not be there. An error if it
    /// always fails.
    pub(super) fn step(
        &mut self,
        terms: &mut Terms,
        operation: &Op,
    ) -> Result<Option<TermId>, AlwaysFails> {
        let mut asked = None;
        match *operation {
            Op::Load { width, at, .. } => {
                self.a = self.load(terms, width, at)?;
                asked = self.a;
            }
            Op::Touch { width, at } => asked = self.load(terms, width, at)?,
            Op::HeaderLength(k) => {
                self.x = Some(terms.add(Term::HeaderLength(k)));
                asked = self.x;
            }
            Op::Field(answer) => self.a = Some(terms.add(Term::Field(answer))),
            Op::Length(reg) => {
                let length = terms.add(Term::Length);
                self.set(reg, Some(length));
            }
            Op::Imm(reg, k) => {
                let k = terms.imm(k);
                self.set(reg, Some(k));
            }
            Op::Recall(reg, cell) => self.set(reg, self.memory[usize::from(cell)]),
            Op::Store(reg, cell) => self.memory[usize::from(cell)] = self.get(reg),
            Op::Alu(operation, value) => {
                let right = match value {
                    Value::K(k) => Some(terms.imm(k)),
                    Value::X => self.x,
                };
                self.a = match self.a.zip(right) {
                    Some((a, b)) => Some(terms.alu(operation, a, b).ok_or(AlwaysFails)?),
                    None => None,
                };
                asked = self.a.filter(|&a| terms.may_fail(a));
            }
            Op::Neg => self.a = self.a.map(|a| terms.neg(a)),
            Op::Tax => self.x = self.a,
            Op::Txa => self.a = self.x,
            // Made later than this, and not here.
            Op::NonZeroX | Op::Find(_) => {}
        }
        Ok(asked)
    }

    pub(super) fn load(
        &self,
        terms: &mut Terms,
        width: u8,
        at: At,
    ) -> Result<Option<TermId>, AlwaysFails> {
        match (at, self.x) {
            (At::Abs(k), _) => Ok(Some(terms.add(Term::Fixed { width, k }))),
            (At::Ind(k), Some(base)) if k < BEYOND_ANY_PACKET && terms.is_beyond_end(base) => {
                Err(AlwaysFails)
            }
            // No term: graphs with such loads stay as they are.
            (At::Wrap(_), _) => Ok(None),
            (At::Ind(k), base) => Ok(base.map(|base| terms.indirect(width, base, k))),
        }
    }

    /// The question at a block's end.
    pub(super) fn question(&self, terms: &Terms, test: u8, value: Value) -> Option<Question> {
        let a = self.a?;
        Some(match value {
            Value::K(k) => Question::of_test(terms, test, a, k),
            Value::X => match terms.constant(self.x?) {
                Some(k) => Question::of_test(terms, test, a, k),
                None => Question::Compare(test, a, self.x?),
            },
        })
    }
}

/// An operation without which there is no match, and which never succeeds.
#[derive(Debug)]
pub(super) struct AlwaysFails;
