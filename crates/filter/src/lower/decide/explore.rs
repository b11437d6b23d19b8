//! Follows a program along its ways and remembers what has been found out on each: a question that
//! is answered already is not asked again, wherever the register is that held the value.
//!
//! A block is followed once for each different knowledge that ways bring to it, as far as something
//! after it still wants to know. The ways are then put together from their ends, and those that go
//! on alike become one.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::super::ancillary::Answer;
use super::super::graph::{Block, End, Graph, Op, Return, Value};
use super::super::values::LiveCells;
use super::cells::{AlwaysFails, Cells};
use super::nodes::{NodeId, Nodes, Question};
use super::ranges::{Ranges, Shared};
use super::terms::{TermId, Terms};

/// How often a block may be followed, on average, before it is given up.
const MOST_VISITS: usize = 16;

/// This many different values of the machine at one place are told apart when it is found out what is
/// asked later: libpcap lets the fields of a few protocols share their comparisons.
const MOST_ALTERNATIVES: usize = 4;

/// Up to which block something is still asked. Borders of sets tell numbers apart.
#[derive(Debug, Default)]
struct Interests {
    borders: HashMap<TermId, Borders>,
    /// Of values that are not the same on all ways.
    anywhere: Borders,
    questions: HashMap<Question, usize>,
}

impl Interests {
    fn of(graph: &Graph, live: &[LiveCells], terms: &mut Terms) -> Self {
        let mut interests = Interests::default();
        let mut known: Vec<Vec<Cells>> = vec![Vec::new(); graph.blocks.len()];
        known[0].push(Cells::start(terms));
        for (index, block) in graph.blocks.iter().enumerate() {
            for mut cells in std::mem::take(&mut known[index]) {
                if block.ops.iter().any(|op| cells.step(terms, op).is_err()) {
                    continue;
                }
                if let End::Branch { test, value, .. } = block.end {
                    interests.add(&cells, terms, test, value, index);
                }
                for next in block.successors() {
                    let mut cells = cells.clone();
                    cells.forget_dead(live[next]);
                    let there = &mut known[next];
                    if there.contains(&cells) {
                        continue;
                    }
                    if there.len() < MOST_ALTERNATIVES {
                        there.push(cells);
                        continue;
                    }
                    for other in there.drain(..) {
                        cells.meet(&other);
                    }
                    there.push(cells);
                }
            }
        }
        interests
    }

    fn add(&mut self, cells: &Cells, terms: &Terms, test: u8, value: Value, block: usize) {
        let set = match (cells.question(terms, test, value), value) {
            (Some(Question::Among(term, set)), _) => Some((Some(term), set)),
            (Some(question), _) => {
                self.questions.insert(question, block);
                None
            }
            (None, Value::K(k)) => Ranges::of_test(test, k).map(|set| (None, Shared::new(set))),
            (None, Value::X) => None,
        };
        let Some((term, set)) = set else { return };
        let borders = match term {
            Some(term) => self.borders.entry(term).or_default(),
            None => &mut self.anywhere,
        };
        for &(from, to) in set.ranges() {
            borders.add(from.into(), block);
            borders.add(u64::from(to) + 1, block);
        }
    }

    /// What of a value's possible numbers still matters from a block on; nothing if they all do alike.
    fn still(&self, terms: &Terms, term: TermId, set: &Ranges, block: usize) -> Option<Ranges> {
        let lists: Vec<&Borders> = (self.borders.get(&term).into_iter())
            .chain([&self.anywhere])
            .filter(|list| list.last >= block)
            .collect();
        if lists.is_empty() {
            return None;
        }
        let greatest = u64::from(terms.greatest(term));
        let mut impossible = Vec::new();
        // Numbers are told apart by cells between borders; a cell is out if all of it is.
        for &(from, to) in set.not(terms.greatest(term)).ranges() {
            let (from, end) = (u64::from(from), u64::from(to) + 1);
            let start = match from {
                0 => Some(0),
                _ => lists.iter().filter_map(|l| l.first(from, end, block)).min(),
            };
            let end = match start {
                Some(_) if end > greatest => Some(end),
                Some(start) => lists.iter().filter_map(|l| l.last(start, end, block)).max(),
                None => None,
            };
            if let (Some(start), Some(end)) = (start, end)
                && start < end
            {
                impossible.push((start as u32, (end - 1) as u32));
            }
        }
        (!impossible.is_empty()).then(|| Ranges::joined(impossible).not(terms.greatest(term)))
    }
}

/// Borders of the sets that a value is compared with, and the last block that does so.
#[derive(Debug, Default)]
struct Borders {
    at: BTreeMap<u64, usize>,
    last: usize,
}

impl Borders {
    fn add(&mut self, border: u64, block: usize) {
        self.at.insert(border, block);
        self.last = block;
    }

    /// The first that still matters from a block on.
    fn first(&self, from: u64, to: u64, block: usize) -> Option<u64> {
        let mut within = self.at.range(from..=to);
        within.find(|&(_, &last)| last >= block).map(|(&at, _)| at)
    }

    fn last(&self, from: u64, to: u64, block: usize) -> Option<u64> {
        let mut within = self.at.range(from..=to);
        within.rfind(|&(_, &last)| last >= block).map(|(&at, _)| at)
    }
}

/// What is known where a block begins.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Knowledge {
    cells: Cells,
    /// What values are among, in the order of their terms.
    among: Vec<(TermId, Shared)>,
    answers: Vec<(Question, bool)>,
}

impl Knowledge {
    fn possible(&self, terms: &Terms, term: TermId) -> Ranges {
        match self.among.iter().find(|(of, _)| *of == term) {
            Some((_, set)) => Ranges::clone(set),
            None => Ranges::up_to(terms.greatest(term)),
        }
    }

    fn answer(&self, terms: &Terms, question: &Question) -> Option<bool> {
        match question {
            Question::Among(term, set) => {
                let possible = match terms.constant(*term) {
                    Some(k) => Ranges::one(k),
                    None => self.possible(terms, *term),
                };
                let bits = terms.bits(*term);
                let others = set.not(u32::MAX);
                if bits.among(&possible.and(&others)).is_empty() {
                    Some(true)
                } else if bits.among(&possible.and(set)).is_empty() {
                    Some(false)
                } else {
                    None
                }
            }
            Question::Bits(term, mask) => match terms.constant(*term) {
                Some(k) => Some(k & mask != 0),
                None if terms.bits(*term).may & mask == 0 => Some(false),
                None => match self.possible(terms, *term).single() {
                    Some(k) => Some(k & mask != 0),
                    None => self.answered(question),
                },
            },
            Question::Compare(..) => self.answered(question),
        }
    }

    fn answered(&self, question: &Question) -> Option<bool> {
        let found = self.answers.iter().find(|(one, _)| one == question);
        found.map(|&(_, answer)| answer)
    }

    fn learn(&mut self, terms: &Terms, question: &Question, answer: bool) {
        let Question::Among(term, set) = question else {
            self.answers.push((question.clone(), answer));
            return;
        };
        let set = match answer {
            true => Ranges::clone(set),
            false => set.not(terms.greatest(*term)),
        };
        let possible = self.possible(terms, *term).and(&set);
        let possible = Shared::new(terms.bits(*term).among(&possible));
        match self.among.iter_mut().find(|(of, _)| of == term) {
            Some((_, known)) => *known = possible,
            None => self.among.push((*term, possible)),
        }
    }

    /// Leaves out what nobody asks for from a block on, so that ways that differ in nothing else are one.
    fn forget(&mut self, terms: &Terms, interests: &Interests, live: LiveCells, block: usize) {
        self.cells.forget_dead(live);
        self.among.retain_mut(|(term, set)| {
            let still = interests.still(terms, *term, set, block);
            if let Some(still) = still {
                *set = Shared::new(still);
                return true;
            }
            false
        });
        self.among.sort_unstable_by_key(|(term, _)| *term);
        self.answers.retain(|(question, _)| {
            interests
                .questions
                .get(question)
                .is_some_and(|&last| last >= block)
        });
    }
}

/// A block under some knowledge, by its number.
type Visit = usize;

#[derive(Debug)]
enum Determined {
    Give(u32),
    GiveTerm(TermId),
    Go(Visit),
    Ask(Question, Visit, Visit),
}

/// What a visit amounts to.
#[derive(Debug)]
struct Traversal {
    asked: Vec<TermId>,
    outcome: Determined,
}

struct Explorer<'a> {
    terms: &'a mut Terms,
    interests: Interests,
    live: Vec<LiveCells>,
    visits: Vec<HashMap<Rc<Knowledge>, Visit>>,
    /// By block, in the order of their numbers.
    open: Vec<Vec<(Visit, Rc<Knowledge>)>>,
    count: usize,
}

/// The program as decisions; nothing where it is not of that kind, or there would be too many.
pub(super) fn explore(graph: &Graph, terms: &mut Terms, nodes: &mut Nodes) -> Option<NodeId> {
    let helper = |op: &Op| matches!(op, Op::Field(Answer::Helper(_)) | Op::NonZeroX);
    if graph.has_loops() || graph.blocks.iter().flat_map(|block| &block.ops).any(helper) {
        return None;
    }
    let live = LiveCells::of(graph);
    let interests = Interests::of(graph, &live, terms);
    let start = Knowledge {
        cells: Cells::start(terms),
        ..Knowledge::default()
    };
    let mut explorer = Explorer {
        interests,
        terms,
        live,
        visits: vec![HashMap::new(); graph.blocks.len()],
        open: vec![Vec::new(); graph.blocks.len()],
        count: 0,
    };
    explorer.visit(0, start);
    let mut ways: Vec<Vec<(Visit, Traversal)>> = Vec::new();
    for (index, block) in graph.blocks.iter().enumerate() {
        let open = std::mem::take(&mut explorer.open[index]);
        let mut here = Vec::new();
        for (visit, knowledge) in open {
            here.push((visit, explorer.follow(block, &knowledge)?));
        }
        ways.push(here);
        if explorer.count > MOST_VISITS * (graph.blocks.len() + MOST_VISITS)
            || explorer.terms.too_large
        {
            return None;
        }
    }
    let mut made = vec![None; explorer.count];
    for (visit, way) in ways.into_iter().rev().flatten() {
        made[visit] = Some(finish(way, &made, terms, nodes)?);
    }
    made[0]
}

fn finish(
    way: Traversal,
    made: &[Option<NodeId>],
    terms: &Terms,
    nodes: &mut Nodes,
) -> Option<NodeId> {
    let end = match way.outcome {
        Determined::Give(k) => nodes.give(k),
        Determined::GiveTerm(term) => nodes.give_term(terms, term),
        Determined::Go(to) => made[to]?,
        Determined::Ask(question, yes, no) => nodes.test(terms, question, made[yes]?, made[no]?),
    };
    let asked = way.asked.into_iter().rev();
    Some(asked.fold(end, |next, term| nodes.touch(terms, term, next)))
}

impl Explorer<'_> {
    fn visit(&mut self, block: usize, mut knowledge: Knowledge) -> Visit {
        knowledge.forget(self.terms, &self.interests, self.live[block], block);
        if let Some(&visit) = self.visits[block].get(&knowledge) {
            return visit;
        }
        let knowledge = Rc::new(knowledge);
        let visit = self.count;
        self.count += 1;
        self.visits[block].insert(Rc::clone(&knowledge), visit);
        self.open[block].push((visit, knowledge));
        visit
    }

    fn follow(&mut self, block: &Block, knowledge: &Knowledge) -> Option<Traversal> {
        let mut now = knowledge.clone();
        let mut asked = Vec::new();
        for operation in &block.ops {
            match now.cells.step(self.terms, operation) {
                Ok(one) => asked.extend(one),
                Err(AlwaysFails) => {
                    return Some(Traversal {
                        asked: Vec::new(),
                        outcome: Determined::Give(0),
                    });
                }
            }
        }
        let outcome = match block.end {
            End::Return(Return::K(k)) => Determined::Give(k),
            End::Return(Return::A) => Determined::GiveTerm(now.cells.a?),
            End::Goto(to) => Determined::Go(self.visit(to, now)),
            End::Branch {
                test,
                value,
                yes,
                no,
            } => {
                let question = now.cells.question(self.terms, test, value)?;
                match now.answer(self.terms, &question) {
                    Some(true) => Determined::Go(self.visit(yes, now)),
                    Some(false) => Determined::Go(self.visit(no, now)),
                    None => {
                        let (mut if_yes, mut if_no) = (now.clone(), now);
                        if_yes.learn(self.terms, &question, true);
                        if_no.learn(self.terms, &question, false);
                        let (yes, no) = (self.visit(yes, if_yes), self.visit(no, if_no));
                        Determined::Ask(question, yes, no)
                    }
                }
            }
            End::Back(_) | End::Among { .. } => return None,
        };
        Some(Traversal { asked, outcome })
    }
}
