//! Values as terms: how a number comes from the packet, whichever register it is in. Two terms that
//! are the same are the same number.

use std::collections::HashMap;

use super::super::ancillary::Answer;
use super::super::graph::BEYOND_ANY_PACKET;
use super::bits::Bits;
use trawl_ebpf::op;

/// A term by its number in [`Terms`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct TermId(u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Term {
    Const(u32),
    Fixed { width: u8, k: u32 },
    Indirect { width: u8, base: TermId, k: u32 },
    HeaderLength(u32),
    Length,
    Field(Answer),
    Alu(u8, TermId, TermId),
    Neg(TermId),
}

/// A term that takes more steps than this is not worth working out twice.
const MOST_STEPS: u32 = 32;

/// All terms, each kept once.
#[derive(Debug, Default)]
pub(super) struct Terms {
    terms: Vec<Term>,
    steps: Vec<u32>,
    known: HashMap<Term, TermId>,
    /// Whether any term got too large.
    pub(super) too_large: bool,
}

impl Terms {
    pub(super) fn get(&self, id: TermId) -> Term {
        self.terms[id.0 as usize]
    }

    pub(super) fn constant(&self, id: TermId) -> Option<u32> {
        match self.get(id) {
            Term::Const(k) => Some(k),
            _ => None,
        }
    }

    pub(super) fn add(&mut self, term: Term) -> TermId {
        if let Some(&id) = self.known.get(&term) {
            return id;
        }
        let steps = match term {
            Term::Indirect { base, .. } => 1 + self.steps(base),
            Term::Alu(_, a, b) => 1 + self.steps(a) + self.steps(b),
            Term::Neg(a) => 1 + self.steps(a),
            _ => 1,
        };
        self.too_large |= steps > MOST_STEPS;
        let id = TermId(self.terms.len() as u32);
        self.terms.push(term);
        self.steps.push(steps.min(MOST_STEPS));
        self.known.insert(term, id);
        id
    }

    fn steps(&self, id: TermId) -> u32 {
        self.steps[id.0 as usize]
    }

    pub(super) fn imm(&mut self, k: u32) -> TermId {
        self.add(Term::Const(k))
    }

    /// A load at an offset from a term.
    pub(super) fn indirect(&mut self, width: u8, base: TermId, k: u32) -> TermId {
        let fixed = self
            .constant(base)
            .and_then(|base| base.checked_add(k))
            .filter(|&k| k < BEYOND_ANY_PACKET);
        self.add(match fixed {
            Some(k) => Term::Fixed { width, k },
            None => Term::Indirect { width, base, k },
        })
    }

    /// One of the arithmetic operations, with libpcap's rules; nothing if it divides by zero.
    pub(super) fn alu(&mut self, operation: u8, a: TermId, b: TermId) -> Option<TermId> {
        let Some(right) = self.constant(b) else {
            return Some(self.add(Term::Alu(operation, a, b)));
        };
        if right == 0 && matches!(operation, op::DIV | op::MOD) {
            return None;
        }
        if right >= 32 && matches!(operation, op::LSH | op::RSH) {
            return Some(self.imm(0));
        }
        let Some(left) = self.constant(a) else {
            return Some(self.add(Term::Alu(operation, a, b)));
        };
        let result = match operation {
            op::ADD => left.wrapping_add(right),
            op::SUB => left.wrapping_sub(right),
            op::MUL => left.wrapping_mul(right),
            op::DIV => left / right,
            op::MOD => left % right,
            op::OR => left | right,
            op::AND => left & right,
            op::XOR => left ^ right,
            op::LSH => left << right,
            op::RSH => left >> right,
            _ => return Some(self.add(Term::Alu(operation, a, b))),
        };
        Some(self.imm(result))
    }

    pub(super) fn neg(&mut self, a: TermId) -> TermId {
        match self.constant(a) {
            Some(k) => self.imm(k.wrapping_neg()),
            None => self.add(Term::Neg(a)),
        }
    }

    /// The greatest number that it can be.
    pub(super) fn greatest(&self, id: TermId) -> u32 {
        let greatest = match self.get(id) {
            Term::Alu(op::AND, a, b) => self.greatest(a).min(self.greatest(b)),
            _ => u32::MAX,
        };
        greatest.min(self.bits(id).may)
    }

    /// The bits that it can have.
    pub(super) fn bits(&self, id: TermId) -> Bits {
        match self.get(id) {
            Term::Const(k) => Bits::of(k),
            Term::Fixed { width: 1, .. } | Term::Indirect { width: 1, .. } => Bits::within(0xff),
            Term::Fixed { width: 2, .. } | Term::Indirect { width: 2, .. } => Bits::within(0xffff),
            Term::HeaderLength(_) => Bits::within(0xf << 2),
            Term::Alu(operation, a, b) => {
                let (one, other) = (self.bits(a), self.bits(b));
                let shift = self.constant(b).filter(|&by| by < u32::BITS);
                let both = |with: fn(u32, u32) -> u32| Bits {
                    must: with(one.must, other.must),
                    may: with(one.may, other.may),
                };
                match (operation, shift) {
                    (op::AND, _) => both(|a, b| a & b),
                    (op::OR, _) => both(|a, b| a | b),
                    (op::XOR, _) => Bits::within(one.may | other.may),
                    (op::LSH, Some(by)) => Bits {
                        must: one.must << by,
                        may: one.may << by,
                    },
                    (op::RSH, Some(by)) => Bits {
                        must: one.must >> by,
                        may: one.may >> by,
                    },
                    _ => Bits::ANY,
                }
            }
            _ => Bits::ANY,
        }
    }

    /// Whether nothing of the packet can be there: a load at its length, or beyond.
    pub(super) fn is_beyond_end(&self, id: TermId) -> bool {
        // Packets are shorter than this by far, so that nothing wraps.
        const MOST_MORE: u32 = 1 << 16;
        match self.get(id) {
            Term::Length => true,
            Term::Alu(op::ADD, a, b) => [(a, b), (b, a)]
                .into_iter()
                .any(|(one, other)| self.is_beyond_end(one) && self.greatest(other) <= MOST_MORE),
            _ => false,
        }
    }

    /// Whether working it out may fail by itself, apart from its parts.
    pub(super) fn may_fail(&self, id: TermId) -> bool {
        match self.get(id) {
            Term::Fixed { .. } | Term::Indirect { .. } | Term::HeaderLength(_) => true,
            Term::Alu(op::DIV | op::MOD, _, b) => self.constant(b).is_none(),
            _ => false,
        }
    }

    /// Whether working it out may fail, in any of its parts.
    pub(super) fn can_fail(&self, id: TermId) -> bool {
        self.may_fail(id)
            || self
                .parts(id)
                .into_iter()
                .flatten()
                .any(|part| self.can_fail(part))
    }

    fn parts(&self, id: TermId) -> [Option<TermId>; 2] {
        match self.get(id) {
            Term::Indirect { base, .. } => [Some(base), None],
            Term::Alu(_, a, b) => [Some(a), Some(b)],
            Term::Neg(a) => [Some(a), None],
            _ => [None, None],
        }
    }

    /// Whether working out one term works out the other as well.
    pub(super) fn includes(&self, whole: TermId, part: TermId) -> bool {
        whole == part
            || self
                .parts(whole)
                .into_iter()
                .flatten()
                .any(|one| self.includes(one, part))
    }
}

/// What is known to be there, so that working out a term cannot fail.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Available {
    /// Bytes of the packet.
    fixed: u32,
    /// Bytes after a term's value.
    after: Vec<(TermId, u32)>,
    not_zero: Vec<TermId>,
}

impl Available {
    /// What is known on both of two ways.
    pub(super) fn meet(&mut self, other: &Available) {
        self.fixed = self.fixed.min(other.fixed);
        self.after.retain_mut(|(base, end)| {
            let there = other.after.iter().find(|(of, _)| of == base);
            *end = there.map_or(0, |&(_, there)| there.min(*end));
            *end > 0
        });
        self.not_zero.retain(|one| other.not_zero.contains(one));
    }

    /// After a term has been worked out.
    pub(super) fn learn(&mut self, terms: &Terms, id: TermId) {
        match terms.get(id) {
            Term::Fixed { width, k } => self.fixed = self.fixed.max(k + u32::from(width)),
            Term::HeaderLength(k) => self.fixed = self.fixed.max(k + 1),
            Term::Indirect { width, base, k } => {
                let end = k + u32::from(width);
                match self.after.iter_mut().find(|(of, _)| *of == base) {
                    Some((_, known)) => *known = end.max(*known),
                    None => self.after.push((base, end)),
                }
            }
            Term::Alu(op::DIV | op::MOD, _, b) if !self.not_zero.contains(&b) => {
                self.not_zero.push(b);
            }
            _ => {}
        }
        for part in terms.parts(id).into_iter().flatten() {
            self.learn(terms, part);
        }
    }

    /// Whether a term can be worked out without a failure.
    pub(super) fn covers(&self, terms: &Terms, id: TermId) -> bool {
        let itself = match terms.get(id) {
            Term::Fixed { width, k } => k + u32::from(width) <= self.fixed,
            Term::HeaderLength(k) => k < self.fixed,
            Term::Indirect { width, base, k } => self
                .after
                .iter()
                .any(|&(of, end)| of == base && k + u32::from(width) <= end),
            Term::Alu(op::DIV | op::MOD, _, b) => {
                terms.constant(b).is_some() || self.not_zero.contains(&b)
            }
            _ => true,
        };
        itself
            && terms
                .parts(id)
                .into_iter()
                .flatten()
                .all(|part| self.covers(terms, part))
    }
}
