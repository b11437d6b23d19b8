//! A program without loops as decisions: what is asked of which value, and where each answer leads.

use std::collections::HashMap;

use super::ranges::{Ranges, Shared};
use super::terms::{TermId, Terms};
use trawl_ebpf::op;

/// A node by its number in [`Nodes`]; the nodes it leads to have lower ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodeId(pub(super) u32);

/// A question about values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Question {
    /// Is it one of these?
    Among(TermId, Shared),
    /// Has it any of these bits?
    Bits(TermId, u32),
    /// How do two compare? The test is one of `ebpf::op`.
    Compare(u8, TermId, TermId),
}

impl Question {
    /// A comparison with a constant, as a set of numbers where it is one.
    pub(super) fn of_test(terms: &Terms, test: u8, term: TermId, k: u32) -> Self {
        let Some(set) = Ranges::of_test(test, k) else {
            return Question::Bits(term, k);
        };
        let (term, set) = under_mask(terms, term, k, test).unwrap_or((term, set));
        let set = set.and(&Ranges::up_to(terms.greatest(term)));
        let set = terms.bits(term).among(&set);
        Question::Among(term, Shared::new(set))
    }

    /// The values that are worked out for it.
    pub(super) fn terms(&self) -> impl Iterator<Item = TermId> + use<> {
        let (one, two) = match *self {
            Question::Among(term, _) | Question::Bits(term, _) => (term, None),
            Question::Compare(_, one, two) => (one, Some(two)),
        };
        std::iter::once(one).chain(two)
    }
}

/// `t & mask == k` for a mask of leading bits: t lies in a range.
fn under_mask(terms: &Terms, term: TermId, k: u32, test: u8) -> Option<(TermId, Ranges)> {
    use super::terms::Term;
    let Term::Alu(op::AND, inner, mask) = terms.get(term) else {
        return None;
    };
    let rest = !terms.constant(mask)?;
    let leading = rest & rest.wrapping_add(1) == 0;
    (test == op::JEQ && leading && k & rest == 0).then(|| (inner, Ranges::between(k, k | rest)))
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    Return(u32),
    ReturnTerm(TermId),
    /// Without this value there is no match.
    Touch(TermId, NodeId),
    Test {
        question: Question,
        yes: NodeId,
        no: NodeId,
    },
}

/// All nodes, each kept once: ways that go on alike are one way.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    nodes: Vec<Node>,
    known: HashMap<Node, NodeId>,
}

impl Nodes {
    pub(super) fn get(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    fn add(&mut self, node: Node) -> NodeId {
        if let Some(&id) = self.known.get(&node) {
            return id;
        }
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(node.clone());
        self.known.insert(node, id);
        id
    }

    pub(super) fn give(&mut self, k: u32) -> NodeId {
        self.add(Node::Return(k))
    }

    pub(super) fn give_term(&mut self, terms: &Terms, term: TermId) -> NodeId {
        match terms.constant(term) {
            Some(k) => self.give(k),
            None => self.add(Node::ReturnTerm(term)),
        }
    }

    /// Asks for a value before it goes on, unless that is done there anyway, or there is no match.
    pub(super) fn touch(&mut self, terms: &Terms, term: TermId, next: NodeId) -> NodeId {
        let done = match self.get(next) {
            Node::Return(k) => *k == 0,
            Node::ReturnTerm(other) | Node::Touch(other, _) => terms.includes(*other, term),
            Node::Test { question, .. } => {
                question.terms().any(|other| terms.includes(other, term))
            }
        };
        if done {
            return next;
        }
        self.add(Node::Touch(term, next))
    }

    /// Asks; where the answer does not matter, only for the values.
    pub(super) fn test(
        &mut self,
        terms: &Terms,
        question: Question,
        yes: NodeId,
        no: NodeId,
    ) -> NodeId {
        let settled = match &question {
            _ if yes == no => Some(yes),
            Question::Among(_, set) if set.is_empty() => Some(no),
            Question::Among(term, set) if set.not(terms.greatest(*term)).is_empty() => Some(yes),
            _ => None,
        };
        match settled {
            Some(next) => question
                .terms()
                .fold(next, |next, term| self.touch_parts(terms, term, next)),
            None => self.add(Node::Test { question, yes, no }),
        }
    }

    fn touch_parts(&mut self, terms: &Terms, term: TermId, next: NodeId) -> NodeId {
        if terms.can_fail(term) {
            self.touch(terms, term, next)
        } else {
            next
        }
    }

    pub(super) fn successors(&self, id: NodeId) -> impl Iterator<Item = NodeId> + use<> {
        let (one, two) = match *self.get(id) {
            Node::Return(_) | Node::ReturnTerm(_) => (None, None),
            Node::Touch(_, next) => (Some(next), None),
            Node::Test { yes, no, .. } => (Some(yes), Some(no)),
        };
        one.into_iter().chain(two)
    }
}
