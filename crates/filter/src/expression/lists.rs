//! Long lists of hosts, networks or ports under one qualifier, and of combinations of them, as tables instead of
//! comparisons.
//!
//! libpcap compiles a list as if it had one member, without the optimiser, which would draw conclusions from that
//! member's number. Programs compiled for two different members differ only in the comparisons with them, which become
//! table look-ups.
//!
//! In a combination (`host A and port P`) a part is looked up under the state of the part before it. An address of
//! either side leads to two such states, so a list of combinations is one program for each choice of sides; only the
//! last part, without a next state, can combine both sides in one program.

use std::collections::HashMap;

use super::members::{Family, List, Part, Span, member};
use super::operands::Node;
use crate::classic::{Instruction, op};
use crate::table::{self, Table};

/// Minimum length of a list. Shorter ones are as fast as comparisons, and agree with libpcap on truncated frames too.
/// Alternating lists would be long programs.
const MIN_LIST_LEN: usize = 100;
/// Minimum length of a list of combinations, which are many comparisons each.
const MIN_COMBINATIONS: usize = 32;

/// Maximum number of parts with a choice of sides: each doubles the program.
const MAX_SIDED: usize = 3;
const MAX_PARTS: usize = 8;
/// Maximum number of combinations of one operand: `host A and (port P or port Q)` stands for two.
const MAX_PER_OPERAND: usize = 64;

/// An operand's parts, joined by `and`, and its members in order.
type Combination = (Vec<Part>, Vec<Span>);

/// A program with table look-ups.
pub(super) struct Compiled {
    pub(super) code: Vec<Instruction>,
    /// Instructions that are look-ups, with their tables.
    pub(super) lookups: Vec<(usize, usize)>,
    pub(super) tables: Vec<Table>,
}

/// A program, and its look-ups with their tables.
type Program = (Vec<Instruction>, Vec<(usize, usize)>);

/// A list's programs, one of which has to match, and the tables of all.
pub(super) struct Pieces {
    pub(super) programs: Vec<Program>,
    pub(super) tables: Vec<Table>,
}

/// Replaces operands that form a list: joined by `or`, or each negated and joined by `and`.
pub(super) fn gather(node: Node, expression: &str) -> Node {
    match node {
        Node::Not(inner) => Node::Not(Box::new(gather(*inner, expression))),
        Node::Chain(first, rest) => chain(*first, rest, expression),
        other => other,
    }
}

/// Returns the maximum number of members of one kind in a row.
pub(super) fn longest(node: &Node, expression: &str) -> usize {
    let (first, rest) = match node {
        Node::Chain(first, rest) => (&**first, &rest[..]),
        Node::Not(inner) => return longest(inner, expression),
        Node::Leaf { .. } | Node::List(_) => return 1,
    };
    let mut members: HashMap<Family, usize> = HashMap::new();
    let mut inside = 0;
    for node in std::iter::once(first).chain(rest.iter().map(|(_, node)| node)) {
        let text = match node {
            Node::Not(inner) => inner.text(expression),
            node => node.text(expression),
        };
        if let Some((family, _)) = text.as_deref().and_then(member) {
            *members.entry(family).or_default() += 1;
        }
        inside = inside.max(longest(node, expression));
    }
    inside.max(members.into_values().max().unwrap_or_default())
}

/// Returns true if the node has lists of combinations, which as comparisons would exceed the verifier's limits.
pub(super) fn has_combinations(node: &Node) -> bool {
    match node {
        Node::Leaf { .. } => false,
        Node::List(list) => list.parts.len() > 1,
        Node::Not(inner) => has_combinations(inner),
        Node::Chain(first, rest) => has_combinations(first) || rest.iter().any(|(_, node)| has_combinations(node)),
    }
}

fn chain(first: Node, rest: Vec<(bool, Node)>, expression: &str) -> Node {
    // Operands with the same operator between them may be reordered.
    let mut runs: Vec<(bool, Vec<Node>)> = Vec::new();
    let first_or = rest.first().is_none_or(|(or, _)| *or);
    runs.push((first_or, vec![first]));
    for (or, node) in rest {
        match runs.last_mut() {
            Some((of, nodes)) if *of == or => nodes.push(node),
            _ => runs.push((or, vec![node])),
        }
    }
    let mut operands =
        runs.into_iter().flat_map(|(or, nodes)| run(or, nodes, expression).into_iter().map(move |n| (or, n)));
    match operands.next() {
        Some((_, first)) => Node::Chain(Box::new(first), operands.collect()),
        // Each run has at least one operand.
        None => unreachable!("a chain has a first operand"),
    }
}

/// Returns the operands under one operator, with each list at the position of its first member.
fn run(or: bool, nodes: Vec<Node>, expression: &str) -> Vec<Node> {
    let asked: Vec<Vec<Combination>> = nodes
        .iter()
        .map(|node| {
            let node = match node {
                Node::Not(inner) if !or => inner,
                _ if !or => return Vec::new(),
                node => node,
            };
            combinations(node, expression).unwrap_or_default()
        })
        .collect();
    let mut sizes: HashMap<&[Part], usize> = HashMap::new();
    for (parts, _) in asked.iter().flatten() {
        *sizes.entry(parts.as_slice()).or_default() += 1;
    }
    sizes.retain(|parts, size| {
        *size
            >= match parts.len() {
                1 => MIN_LIST_LEN,
                _ => MIN_COMBINATIONS,
            }
    });
    let is_list = |combination: &Combination| sizes.contains_key(&combination.0[..]);
    let taken: Vec<bool> = (asked.iter()).map(|of_node| !of_node.is_empty() && of_node.iter().all(is_list)).collect();
    drop(sizes);
    let mut lists: Vec<List> = Vec::new();
    let mut list_of: HashMap<Vec<Part>, usize> = HashMap::new();
    let mut kept: Vec<Result<Node, usize>> = Vec::new();
    for ((node, combinations), is_taken) in nodes.into_iter().zip(asked).zip(taken) {
        if !is_taken {
            kept.push(Ok(gather(node, expression)));
            continue;
        }
        for (parts, row) in combinations {
            let at = *list_of.entry(parts).or_insert_with_key(|parts| {
                kept.push(Err(lists.len()));
                lists.push(List { parts: parts.clone(), rows: Vec::new() });
                lists.len() - 1
            });
            lists[at].rows.push(row);
        }
    }
    let mut lists: Vec<Option<List>> = lists.into_iter().map(Some).collect();
    kept.into_iter()
        .filter_map(|kept| match kept {
            Ok(node) => Some(node),
            Err(at) => {
                let list = Node::List(lists[at].take()?);
                Some(if or { list } else { Node::Not(Box::new(list)) })
            }
        })
        .collect()
}

/// Returns an operand's combinations, one of which has to hold.
fn combinations(node: &Node, expression: &str) -> Option<Vec<Combination>> {
    let (first, rest): (&Node, &[(bool, Node)]) = match node {
        Node::Chain(first, rest) if rest.iter().all(|(or, _)| !or) => (first, rest),
        node => (node, &[]),
    };
    let mut all: Vec<Combination> = vec![Default::default()];
    for part in std::iter::once(first).chain(rest.iter().map(|(_, node)| node)) {
        let choices = choices(part, expression)?;
        if all.len() * choices.len() > MAX_PER_OPERAND {
            return None;
        }
        all = (all.iter())
            .flat_map(|(parts, row)| {
                choices.iter().map(move |(part, span)| {
                    let parts = parts.iter().chain([part]).cloned().collect();
                    (parts, row.iter().chain(span).copied().collect())
                })
            })
            .collect();
    }
    let is_fit =
        |(parts, row): &Combination| !row.is_empty() && parts.len() <= MAX_PARTS && sided(parts).count() <= MAX_SIDED;
    all.iter().all(is_fit).then_some(all)
}

/// Returns the choices for one part of an operand: a single condition, or members joined by `or`.
fn choices(node: &Node, expression: &str) -> Option<Vec<(Part, Option<Span>)>> {
    let of_member = |text: &str| {
        let (family, span) = member(text)?;
        Some((Part::Member(family), Some(span)))
    };
    match node {
        Node::Leaf { .. } => {
            let text = node.text(expression)?;
            let member = of_member(&text);
            Some(vec![member.unwrap_or((Part::Same(text), None))])
        }
        Node::Not(_) => Some(vec![(Part::Same(node.text(expression)?), None)]),
        Node::Chain(first, rest) if rest.iter().all(|(or, _)| *or) => std::iter::once(&**first)
            .chain(rest.iter().map(|(_, node)| node))
            .map(|node| match node {
                Node::Leaf { .. } => of_member(&node.text(expression)?),
                _ => None,
            })
            .collect(),
        _ => None,
    }
}

/// Returns the parts with a program for each side.
fn sided(parts: &[Part]) -> impl Iterator<Item = usize> {
    let members = parts.iter().filter(|part| matches!(part, Part::Member(_)));
    let last = members.count() - 1;
    let members = parts.iter().enumerate().filter_map(|(at, part)| match part {
        Part::Member(family) => Some((at, family)),
        Part::Same(_) => None,
    });
    members
        .enumerate()
        .filter(move |(number, (_, family))| {
            // A list of single members has no next state. The last part of a combination, if it has a single word,
            // needs none either.
            family.has_sides() && (*number < last || last > 0 && family.kind.words() > 1)
        })
        .map(|(_, (at, _))| at)
}

impl List {
    /// Compiles the list with libpcap; an error is libpcap's.
    pub(super) fn compile(&self, run: impl Fn(&str) -> Result<Vec<Instruction>, String>) -> Result<Pieces, String> {
        let mut choices = vec![self.parts.clone()];
        for at in sided(&self.parts) {
            choices = (choices.into_iter())
                .flat_map(|parts| {
                    ["src", "dst"].map(|side| {
                        let mut parts = parts.clone();
                        if let Part::Member(family) = &mut parts[at] {
                            *family = family.of_side(side);
                        }
                        parts
                    })
                })
                .collect();
        }
        let programs = choices.iter().map(|parts| self.program(parts, &run));
        Ok(Pieces { programs: programs.collect::<Result<_, _>>()?, tables: self.tables()? })
    }

    /// Returns one program, and its look-ups.
    fn program(
        &self,
        parts: &[Part],
        run: impl Fn(&str) -> Result<Vec<Instruction>, String>,
    ) -> Result<Program, String> {
        let [(text, words), (other_text, other_words)] = [false, true].map(|second| {
            let (mut texts, mut words) = (Vec::new(), Vec::new());
            for (index, part) in parts.iter().enumerate() {
                texts.push(match part {
                    Part::Same(text) => text.clone(),
                    Part::Member(family) => {
                        let (number, of_number) = family.kind.stand_in(index, second);
                        words.extend(of_number);
                        format!("{} {number}", family.qualifiers)
                    }
                });
            }
            (texts.join(" and "), words)
        });
        let (code, other) = (run(&text)?, run(&other_text)?);
        let mut lookups = Vec::new();
        for (at, (one, two)) in code.iter().zip(&other).enumerate() {
            if one == two {
                continue;
            }
            let table = words.iter().zip(&other_words).position(|pair| pair == (&one.k, &two.k));
            match table {
                Some(table) if one.code == op::JMP | op::JEQ | op::K => lookups.push((at, table)),
                _ => return Err(format!("a list of `{text}` cannot be looked up")),
            }
        }
        Ok((code, lookups))
    }

    fn tables(&self) -> Result<Vec<Table>, String> {
        let kinds = (self.parts.iter()).filter_map(|part| match part {
            Part::Member(family) => Some(family.kind),
            Part::Same(_) => None,
        });
        let words = kinds.clone().map(|kind| kind.words()).sum();
        let rows = self.rows.iter().flat_map(|row| {
            let members = row.iter().zip(kinds.clone());
            members.flat_map(|(span, kind)| kind.ranges(*span))
        });
        table::tables(words, &rows.collect::<Vec<_>>())
            .ok_or_else(|| "the networks of this list overlap too often for a table".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use crate::CompilerOptions;

    /// With different addresses as source and destination, neither is on both sides.
    #[test]
    fn src_and_dst_is_not_a_list() {
        let host = |n: usize| format!("src and dst host 10.0.{}.{}", n / 250, n % 250);
        let list = (0..300).map(host).collect::<Vec<_>>().join(" or ");
        let program = crate::compile(&list, &CompilerOptions::default()).unwrap();
        let mut frame = [0u8; 60];
        frame[12] = 8;
        for (source, destination, expected) in [(5, 5, true), (5, 6, false), (6, 5, false)] {
            frame[26..30].copy_from_slice(&[10, 0, 0, source]);
            frame[30..34].copy_from_slice(&[10, 0, 0, destination]);
            assert_eq!(program.run(&frame, 60) != 0, expected);
        }
    }
}
