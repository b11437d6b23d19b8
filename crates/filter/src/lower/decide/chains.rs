//! Gathers what is asked of one value. libpcap asks the terms of an `or` in the order in which they
//! were written: the source, the port, the next source, the next port. Where several questions lead
//! to the same place if answered alike, their order does not matter, as long as none of them can fail
//! for want of bytes; so those about one value become a single question, for a set.

use super::nodes::{Node, NodeId, Nodes, Question};
use super::ranges::{Ranges, Shared};
use super::terms::{Available, TermId, Terms};

/// How far along a chain a question about the same value is looked for. In a chain that is gathered
/// already each value comes up once or twice.
const FARTHEST: usize = 24;

/// The same decisions with fewer questions.
pub(super) fn gather(root: NodeId, terms: &Terms, nodes: &mut Nodes) -> NodeId {
    let available = available(root, terms, nodes);
    let mut made: Vec<Option<NodeId>> = vec![None; available.len()];
    // Nodes lead to lower numbers, so their successors come first.
    for (index, known) in available.iter().enumerate() {
        let Some(known) = known else { continue };
        let now = |id: NodeId| made[id.0 as usize].unwrap_or(id);
        let id = NodeId(index as u32);
        made[index] = Some(match nodes.get(id).clone() {
            Node::Return(_) | Node::ReturnTerm(_) => id,
            Node::Touch(term, next) if known.covers(terms, term) => now(next),
            Node::Touch(term, next) => nodes.touch(terms, term, now(next)),
            Node::Test { question, yes, no } => {
                let (yes, no) = (now(yes), now(no));
                let mut known = known.clone();
                for term in question.terms() {
                    known.learn(terms, term);
                }
                let mut gatherer = Gatherer {
                    terms,
                    nodes,
                    known,
                };
                gatherer.test(question, yes, no)
            }
        });
    }
    made[root.0 as usize].unwrap_or(root)
}

/// For each node that is reached, what all ways to it have worked out.
fn available(root: NodeId, terms: &Terms, nodes: &Nodes) -> Vec<Option<Available>> {
    let mut known: Vec<Option<Available>> = vec![None; nodes.len()];
    known[root.0 as usize] = Some(Available::default());
    for index in (0..nodes.len()).rev() {
        let Some(mut after) = known[index].clone() else {
            continue;
        };
        let id = NodeId(index as u32);
        match nodes.get(id) {
            Node::Touch(term, _) => after.learn(terms, *term),
            Node::Test { question, .. } => {
                question.terms().for_each(|term| after.learn(terms, term));
            }
            Node::Return(_) | Node::ReturnTerm(_) => {}
        }
        for next in nodes.successors(id) {
            match &mut known[next.0 as usize] {
                Some(other) => other.meet(&after),
                empty => *empty = Some(after.clone()),
            }
        }
    }
    known
}

/// A question of a chain: the way out of it is taken if the answer is `leaves`.
struct Link {
    question: Question,
    leaves: bool,
}

struct Gatherer<'a> {
    terms: &'a Terms,
    nodes: &'a mut Nodes,
    /// What is known to be there once the first question has been asked.
    known: Available,
}

impl Gatherer<'_> {
    fn test(&mut self, question: Question, yes: NodeId, no: NodeId) -> NodeId {
        if let Question::Among(term, set) = &question {
            let greatest = self.terms.greatest(*term);
            if let Some((more, rest)) = self.same_value(*term, yes, no) {
                let set = Shared::new(set.or(&more));
                return self
                    .nodes
                    .test(self.terms, Question::Among(*term, set), yes, rest);
            }
            if let Some((more, rest)) = self.same_value(*term, no, yes) {
                // Those that go to `no` are the others.
                let set = Shared::new(set.and(&more.not(greatest)));
                return self
                    .nodes
                    .test(self.terms, Question::Among(*term, set), rest, no);
            }
        }
        self.nodes.test(self.terms, question, yes, no)
    }

    /// Along the chain whose ways out lead to `out`, the numbers that a value leaves by, and the
    /// chain without these questions.
    fn same_value(
        &mut self,
        term: TermId,
        out: NodeId,
        mut at: NodeId,
    ) -> Option<(Ranges, NodeId)> {
        let mut passed = Vec::new();
        let mut found: Option<(Ranges, usize, NodeId)> = None;
        while passed.len() < FARTHEST {
            let Node::Test { question, yes, no } = self.nodes.get(at).clone() else {
                break;
            };
            let (leaves, next) = match (yes == out, no == out) {
                (true, false) => (true, no),
                (false, true) => (false, yes),
                _ => break,
            };
            if !question
                .terms()
                .all(|term| self.known.covers(self.terms, term))
            {
                break;
            }
            match &question {
                Question::Among(other, set) if *other == term => {
                    let set = match leaves {
                        true => Ranges::clone(set),
                        false => set.not(self.terms.greatest(term)),
                    };
                    let all = found.map_or(set.clone(), |(before, ..)| before.or(&set));
                    found = Some((all, passed.len(), next));
                }
                _ => passed.push(Link { question, leaves }),
            }
            at = next;
        }
        let (set, kept, rest) = found?;
        passed.truncate(kept);
        let chain = passed.into_iter().rev().fold(rest, |next, link| {
            let (yes, no) = if link.leaves {
                (out, next)
            } else {
                (next, out)
            };
            self.nodes.test(self.terms, link.question, yes, no)
        });
        Some((set, chain))
    }
}
