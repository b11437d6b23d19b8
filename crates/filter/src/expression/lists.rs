//! Long lists of hosts, networks or ports under one qualifier, as tables in place of comparisons.
//!
//! A list is compiled by libpcap as if it had one member, without the optimiser, which would draw conclusions from that
//! member's number. Compiled for two different members, the programs differ in the comparisons with them, and nowhere
//! else; there the table is looked up.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::operands::Node;
use crate::classic::{Instruction, op};
use crate::table::{self, Table};

/// Shorter lists are as fast as comparisons, and are judged as libpcap does on frames cut short too.
pub(super) const LEAST: usize = 256;

/// What a list's members are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Ipv4,
    Ipv6,
    Port,
    /// An Ethernet address, with its last four bytes first: so libpcap asks for them.
    Mac,
}

/// A leaf's words before its number, and what the number is.
type Family = (String, Kind);

/// Members from a first one to a last one.
type Span = (u128, u128);

/// A list in an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct List {
    qualifiers: String,
    kind: Kind,
    spans: Vec<Span>,
}

/// A program in which comparisons are look-ups.
pub(super) struct Compiled {
    pub(super) code: Vec<Instruction>,
    /// Which instructions look up which of the tables.
    pub(super) finds: Vec<(usize, usize)>,
    pub(super) tables: Vec<Table>,
}

/// Puts lists in the place of operands that are one: under `or`, or each negated and under `and`.
pub(super) fn gather(node: Node, expression: &str) -> Node {
    match node {
        Node::Not(inner) => Node::Not(Box::new(gather(*inner, expression))),
        Node::Chain(first, rest) => chain(*first, rest, expression),
        other => other,
    }
}

fn chain(first: Node, rest: Vec<(bool, Node)>, expression: &str) -> Node {
    // Operands that one operator joins may change places, as far as the operator stays the same.
    let mut runs: Vec<(bool, Vec<Node>)> = Vec::new();
    let first_or = rest.first().is_none_or(|(or, _)| *or);
    runs.push((first_or, vec![first]));
    for (or, node) in rest {
        match runs.last_mut() {
            Some((of, nodes)) if *of == or => nodes.push(node),
            _ => runs.push((or, vec![node])),
        }
    }
    let mut operands = runs
        .into_iter()
        .flat_map(|(or, nodes)| run(or, nodes, expression).into_iter().map(move |n| (or, n)));
    match operands.next() {
        Some((_, first)) => Node::Chain(Box::new(first), operands.collect()),
        // Each run has an operand at least.
        None => unreachable!("a chain has a first operand"),
    }
}

/// The operands under one operator, those of a list in the place of the first of them.
fn run(or: bool, nodes: Vec<Node>, expression: &str) -> Vec<Node> {
    let members: Vec<Option<(Family, Span)>> = nodes
        .iter()
        .map(|node| member(node, or, expression))
        .collect();
    let mut families: HashMap<&Family, Vec<Span>> = HashMap::new();
    for (family, span) in members.iter().flatten() {
        families.entry(family).or_default().push(*span);
    }
    families.retain(|_, spans| spans.len() >= LEAST);
    let mut kept = Vec::new();
    for (node, member) in nodes.into_iter().zip(&members) {
        let Some((family, _)) = member else {
            kept.push(gather(node, expression));
            continue;
        };
        if let Some(spans) = families.get_mut(family) {
            if !spans.is_empty() {
                let list = Node::List(List {
                    qualifiers: family.0.clone(),
                    kind: family.1,
                    spans: std::mem::take(spans),
                });
                kept.push(if or { list } else { Node::Not(Box::new(list)) });
            }
        } else {
            kept.push(node);
        }
    }
    kept
}

/// What a leaf says, if it is one that lists are made of.
fn member(node: &Node, or: bool, expression: &str) -> Option<(Family, Span)> {
    let (inherited, text) = match node {
        Node::Leaf { inherited, text } if or => (inherited, text),
        Node::Not(inner) if !or => match &**inner {
            Node::Leaf { inherited, text } => (inherited, text),
            _ => return None,
        },
        _ => return None,
    };
    let whole = format!("{inherited}{}", &expression[text.clone()]);
    let mut words: Vec<&str> = whole.split_whitespace().collect();
    let number = words.pop()?;
    let what = words.pop()?;
    let is_ethernet = words.contains(&"ether");
    let (kind, span) = match what {
        "host" | "src" | "dst" if is_ethernet => {
            if what != "host" {
                words.push(what);
            }
            let address = mac(number)?;
            (Kind::Mac, (address, address))
        }
        "host" | "net" => address(number, what == "net")?,
        "src" | "dst" => {
            words.push(what);
            address(number, false)?
        }
        "port" => (Kind::Port, port(number).map(|port| (port, port))?),
        "portrange" => {
            let (from, to) = number.split_once('-')?;
            (Kind::Port, (port(from)?, port(to)?))
        }
        _ => return None,
    };
    (span.0 <= span.1).then(|| ((words.join(" "), kind), span))
}

/// An address or a network. What libpcap refuses is left for it to refuse.
fn address(text: &str, is_net: bool) -> Option<(Kind, Span)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) if is_net => (address, Some(length.parse::<u32>().ok()?)),
        None => (text, None),
        _ => return None,
    };
    let (kind, value, bits) = match address.parse::<Ipv4Addr>() {
        Ok(address) => (Kind::Ipv4, u128::from(u32::from(address)), 32),
        Err(_) => {
            let address: Ipv6Addr = address.parse().ok()?;
            (Kind::Ipv6, u128::from(address), 128)
        }
    };
    // A network without a length is that of its class, or of no use for IPv6.
    let length = match length {
        Some(length) => length,
        None if is_net => return None,
        None => bits,
    };
    let host = 1u128
        .checked_shl(bits.checked_sub(length)?)
        .map_or(u128::MAX, |size| size - 1);
    (value & host == 0).then_some((kind, (value, value | host)))
}

/// Six bytes in libpcap's usual way of writing them, with the last four before the others.
fn mac(text: &str) -> Option<u128> {
    let mut bytes = [0u8; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| (1..=2).contains(&part.len()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    let [a, b, c, d, e, f] = bytes;
    let [low, high] = [
        u32::from_be_bytes([c, d, e, f]),
        u32::from_be_bytes([0, 0, a, b]),
    ];
    parts
        .next()
        .is_none()
        .then_some(u128::from(low) << 32 | u128::from(high))
}

fn port(text: &str) -> Option<u128> {
    let is_plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    let port: u16 = text.parse().ok().filter(|_| is_plain)?;
    Some(port.into())
}

impl List {
    /// Compiles it with libpcap's help; an error is libpcap's.
    pub(super) fn compile(
        &self,
        run: impl Fn(&str) -> Result<Vec<Instruction>, String>,
    ) -> Result<Compiled, String> {
        const IPV6: [[u32; 4]; 2] = [
            [0x2a01_0203, 0x0405_0607, 0x0809_1011, 0x1213_1415],
            [0x2b21_2223, 0x2425_2627, 0x2829_3031, 0x3233_3435],
        ];
        let (texts, words): ([String; 2], [Vec<u32>; 2]) = match self.kind {
            Kind::Ipv4 => (
                ["host 9.8.7.6".into(), "host 5.4.3.2".into()],
                [vec![0x0908_0706], vec![0x0504_0302]],
            ),
            Kind::Ipv6 => (
                IPV6.map(|words| {
                    let bits = words
                        .iter()
                        .fold(0u128, |bits, &w| bits << 32 | u128::from(w));
                    format!("host {}", Ipv6Addr::from(bits))
                }),
                IPV6.map(|words| words.to_vec()),
            ),
            Kind::Mac => (
                [
                    "host 2a:2b:2c:2d:2e:2f".into(),
                    "host 3a:3b:3c:3d:3e:3f".into(),
                ],
                [vec![0x2c2d_2e2f, 0x2a2b], vec![0x3c3d_3e3f, 0x3a3b]],
            ),
            Kind::Port => (
                ["port 21001".into(), "port 22002".into()],
                [vec![21001], vec![22002]],
            ),
        };
        let [code, other] = texts.map(|text| run(&format!("{} {text}", self.qualifiers)));
        let (code, other) = (code?, other?);
        let mut finds = Vec::new();
        for (at, (one, two)) in code.iter().zip(&other).enumerate() {
            if one == two {
                continue;
            }
            let table = words[0]
                .iter()
                .zip(&words[1])
                .position(|pair| pair == (&one.k, &two.k));
            match table {
                Some(table) if one.code == op::JMP | op::JEQ | op::K => finds.push((at, table)),
                _ => {
                    return Err(format!(
                        "a list of `{}` is nothing to look up",
                        self.qualifiers
                    ));
                }
            }
        }
        Ok(Compiled {
            code,
            finds,
            tables: self.tables(),
        })
    }

    fn tables(&self) -> Vec<Table> {
        let spans = self.spans.iter();
        match self.kind {
            Kind::Ipv6 => {
                let words = |bits: u128| [96, 64, 32, 0].map(|shift| (bits >> shift) as u32);
                table::tables(spans.map(|&(from, to)| (words(from), words(to))).collect())
            }
            Kind::Mac => {
                let words = |bits: u128| [32, 0].map(|shift| (bits >> shift) as u32);
                table::tables(spans.map(|&(from, to)| (words(from), words(to))).collect())
            }
            _ => table::tables(
                spans
                    .map(|&(from, to)| ([from as u32], [to as u32]))
                    .collect(),
            ),
        }
    }
}
