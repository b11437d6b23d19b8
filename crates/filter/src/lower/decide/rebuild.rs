//! From decisions back to blocks of operations. A value that a register still holds on all ways to
//! a question is not worked out again.

use super::super::graph::{At, Block, End, Graph, Op, Reg, Return, Value};
use super::nodes::{Node, NodeId, Nodes, Question};
use super::ranges::Ranges;
use super::terms::{Term, TermId, Terms};
use trawl_ebpf::op;

/// What A and X hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Held {
    a: Option<TermId>,
    x: Option<TermId>,
}

/// The decisions as a graph; nothing if a value takes more scratch memory than there is.
pub(super) fn rebuild(root: NodeId, terms: &Terms, nodes: &Nodes) -> Option<Graph> {
    let order = order(root, nodes);
    let mut place = vec![usize::MAX; nodes.len()];
    for (index, id) in order.iter().enumerate() {
        place[id.0 as usize] = index;
    }
    let mut held: Vec<Option<Held>> = vec![None; order.len()];
    held[0] = Some(Held::default());
    let mut graph = Graph {
        blocks: Vec::with_capacity(order.len()),
        sets: Vec::new(),
        tables: Default::default(),
    };
    for (index, &id) in order.iter().enumerate() {
        let mut writer = Writer {
            terms,
            ops: Vec::new(),
            held: held[index].unwrap_or_default(),
        };
        let to = |id: NodeId| place[id.0 as usize];
        let end = match nodes.get(id) {
            Node::Return(k) => End::Return(Return::K(*k)),
            Node::ReturnTerm(term) => {
                writer.put_a(*term, 0)?;
                End::Return(Return::A)
            }
            Node::Touch(term, next) => {
                writer.touch(*term)?;
                End::Goto(to(*next))
            }
            Node::Test { question, yes, no } => {
                let sets = &mut graph.sets;
                writer.ask(question, to(*yes), to(*no), sets)?
            }
        };
        let (after, ops) = (writer.held, writer.ops);
        let block = Block { ops, end };
        for next in block.successors() {
            match &mut held[next] {
                Some(other) => {
                    other.a = other.a.filter(|_| other.a == after.a);
                    other.x = other.x.filter(|_| other.x == after.x);
                }
                empty => *empty = Some(after),
            }
        }
        graph.blocks.push(block);
    }
    Some(graph)
}

/// All nodes that are reached, each before those it leads to, and the way on that is mostly taken
/// right after it.
fn order(root: NodeId, nodes: &Nodes) -> Vec<NodeId> {
    let mut seen = vec![false; nodes.len()];
    let mut order = Vec::new();
    let mut open = vec![(root, false)];
    while let Some((id, is_done)) = open.pop() {
        if is_done {
            order.push(id);
            continue;
        }
        if std::mem::replace(&mut seen[id.0 as usize], true) {
            continue;
        }
        open.push((id, true));
        let next: Vec<NodeId> = nodes.successors(id).collect();
        open.extend(next.into_iter().rev().map(|next| (next, false)));
    }
    order.reverse();
    order
}

struct Writer<'a> {
    terms: &'a Terms,
    ops: Vec<Op>,
    held: Held,
}

/// Cells of scratch memory.
const CELLS: u8 = 16;

impl Writer<'_> {
    fn ask(
        &mut self,
        question: &Question,
        yes: usize,
        no: usize,
        sets: &mut Vec<Ranges>,
    ) -> Option<End> {
        let branch = |test, value, yes, no| End::Branch {
            test,
            value,
            yes,
            no,
        };
        Some(match question {
            Question::Among(term, set) => {
                self.put_a(*term, 0)?;
                // Without what cannot be: the verifier may not see that, and would follow a way that nothing takes.
                let bits = self.terms.bits(*term);
                let set = bits.among(set);
                let others = bits.among(&set.not(self.terms.greatest(*term)));
                match (set.ranges(), others.ranges()) {
                    ([(k, last)], _) if k == last => branch(op::JEQ, Value::K(*k), yes, no),
                    (_, [(k, last)]) if k == last => branch(op::JEQ, Value::K(*k), no, yes),
                    // All from a number on, or all up to one.
                    ([(k, _)], [(0, _)]) => branch(op::JGE, Value::K(*k), yes, no),
                    ([(0, _)], [(k, _)]) => branch(op::JGE, Value::K(*k), no, yes),
                    _ => {
                        let (set, yes, no) = if set.ranges().len() <= others.ranges().len() {
                            (set, yes, no)
                        } else {
                            (others, no, yes)
                        };
                        sets.push(set);
                        let set = sets.len() - 1;
                        End::Among { set, yes, no }
                    }
                }
            }
            Question::Bits(term, mask) => {
                self.put_a(*term, 0)?;
                branch(op::JSET, Value::K(*mask), yes, no)
            }
            Question::Compare(test, one, two) => {
                self.put_both(*one, *two, 0)?;
                branch(*test, Value::X, yes, no)
            }
        })
    }

    fn emit(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// Asks for a value that is not used. What of this is needless is removed later.
    fn touch(&mut self, term: TermId) -> Option<()> {
        match self.terms.get(term) {
            Term::Fixed { width, k } => self.emit(Op::Touch {
                width,
                at: At::Abs(k),
            }),
            Term::Indirect { width, base, k } => {
                self.put_x(base, 0)?;
                self.emit(Op::Touch {
                    width,
                    at: At::Ind(k),
                });
            }
            Term::HeaderLength(k) => self.emit(Op::Touch {
                width: 1,
                at: At::Abs(k),
            }),
            _ => self.put_a(term, 0)?,
        }
        Some(())
    }

    /// Works a value out into A; cells of scratch memory below `cell` are in use.
    fn put_a(&mut self, term: TermId, cell: u8) -> Option<()> {
        if self.held.a == Some(term) {
            return Some(());
        }
        if self.held.x == Some(term) {
            self.emit(Op::Txa);
            self.held.a = Some(term);
            return Some(());
        }
        match self.terms.get(term) {
            Term::Const(k) => self.emit(Op::Imm(Reg::A, k)),
            Term::Fixed { width, k } => self.load(width, At::Abs(k)),
            Term::Indirect { width, base, k } => {
                self.put_x(base, cell)?;
                self.load(width, At::Ind(k));
            }
            Term::HeaderLength(_) => {
                self.put_x(term, cell)?;
                self.emit(Op::Txa);
            }
            Term::Length => self.emit(Op::Length(Reg::A)),
            Term::Field(answer) => self.emit(Op::Field(answer)),
            Term::Neg(one) => {
                self.put_a(one, cell)?;
                self.emit(Op::Neg);
            }
            Term::Alu(operation, one, two) => match self.terms.constant(two) {
                Some(k) => {
                    self.put_a(one, cell)?;
                    self.emit(Op::Alu(operation, Value::K(k)));
                }
                None => {
                    self.put_both(one, two, cell)?;
                    self.emit(Op::Alu(operation, Value::X));
                }
            },
        }
        self.held.a = Some(term);
        Some(())
    }

    fn load(&mut self, width: u8, at: At) {
        let raw = false;
        self.emit(Op::Load { width, at, raw });
    }

    fn put_x(&mut self, term: TermId, cell: u8) -> Option<()> {
        if self.held.x == Some(term) {
            return Some(());
        }
        match self.terms.get(term) {
            Term::Const(k) => self.emit(Op::Imm(Reg::X, k)),
            Term::HeaderLength(k) => self.emit(Op::HeaderLength(k)),
            Term::Length => self.emit(Op::Length(Reg::X)),
            _ => {
                self.put_a(term, cell)?;
                self.emit(Op::Tax);
            }
        }
        self.held.x = Some(term);
        Some(())
    }

    /// One value into A and one into X.
    fn put_both(&mut self, a: TermId, x: TermId, cell: u8) -> Option<()> {
        if self.leaves_x(a, x) {
            self.put_x(x, cell)?;
            return self.put_a(a, cell);
        }
        if cell == CELLS {
            return None;
        }
        self.put_a(x, cell)?;
        self.emit(Op::Store(Reg::A, cell));
        self.put_a(a, cell + 1)?;
        self.emit(Op::Recall(Reg::X, cell));
        self.held.x = Some(x);
        Some(())
    }

    /// Whether X still holds a value after another has been worked out into A.
    fn leaves_x(&self, term: TermId, x: TermId) -> bool {
        term == x
            || match self.terms.get(term) {
                Term::Indirect { base, .. } => base == x,
                Term::HeaderLength(_) => false,
                Term::Neg(one) => self.leaves_x(one, x),
                Term::Alu(_, one, two) => {
                    (two == x || self.terms.constant(two).is_some()) && self.leaves_x(one, x)
                }
                _ => true,
            }
    }
}
