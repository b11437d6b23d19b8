//! The tree of an expression, for other crates: its operands as values, joined from the leaves to the root.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use super::members::{MemberKind, member};
use super::operands::{self, Node};

/// A part of an expression, whose own parts have become values.
#[derive(Debug)]
pub enum Step<T> {
    /// An operand; `None` if only libpcap understands it.
    Operand(Option<Operand>),
    Not(T),
    /// Parts joined by `and`.
    All(Vec<T>),
    /// Parts joined by `or`.
    Any(Vec<T>),
}

/// An operand about a protocol, addresses or ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operand {
    /// Words other than `host`, `net`, `port` and `portrange`: `tcp src`. Without `src` and `dst`, either side matches.
    pub qualifiers: String,
    pub values: Values,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Values {
    /// None: the operand is a single word.
    Word,
    Addresses(RangeInclusive<IpAddr>),
    Ports(RangeInclusive<u16>),
}

impl Operand {
    fn of(text: &str) -> Option<Self> {
        let Some((family, (from, to))) = member(text) else {
            let mut words = text.split_whitespace();
            let qualifiers = words.next()?.to_owned();
            return words.next().is_none().then_some(Self { qualifiers, values: Values::Word });
        };
        let values = match family.kind {
            MemberKind::Ipv4 => {
                let address = |bits: u128| IpAddr::from(Ipv4Addr::from(bits as u32));
                Values::Addresses(address(from)..=address(to))
            }
            MemberKind::Ipv6 => {
                let address = |bits: u128| IpAddr::from(Ipv6Addr::from(bits));
                Values::Addresses(address(from)..=address(to))
            }
            MemberKind::Port => Values::Ports(from as u16..=to as u16),
            MemberKind::Mac => return None,
        };
        Some(Self { qualifiers: family.qualifiers, values })
    }
}

/// Computes a value of an expression from the values of its parts. Returns `None` for an expression that only libpcap
/// can parse, or whose operands are about inner headers (`vlan`, `geneve`). An error in an operand is not found.
pub fn fold<T>(expression: &str, mut join: impl FnMut(Step<T>) -> T) -> Option<T> {
    let context = operands::context(expression).filter(|context| context.text.is_empty())?;
    // Any word at the position of a name is taken as one.
    let ask = |_: &str| Err(String::new());
    let node = operands::parse(expression, &context, 0, &ask)?;
    Some(value(&node, expression, &mut join))
}

fn value<T>(node: &Node, expression: &str, join: &mut impl FnMut(Step<T>) -> T) -> T {
    match node {
        Node::Not(inner) => {
            let inner = value(inner, expression, join);
            join(Step::Not(inner))
        }
        Node::Chain(first, rest) => {
            let mut all = vec![value(first, expression, join)];
            for run in rest.chunk_by(|(one, _), (next, _)| one == next) {
                for (_, node) in run {
                    all.push(value(node, expression, join));
                }
                let joined = if run[0].0 { Step::Any(all) } else { Step::All(all) };
                all = vec![join(joined)];
            }
            all.remove(0)
        }
        Node::Leaf { .. } | Node::List(_) => {
            join(Step::Operand(node.text(expression).and_then(|text| Operand::of(&text))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an expression with parentheses around each operand, and the operands' words in one order.
    fn shown(expression: &str) -> Option<String> {
        fold(expression, |step| match step {
            Step::Operand(None) => "?".to_owned(),
            Step::Operand(Some(Operand { qualifiers, values })) => match values {
                Values::Word => qualifiers,
                Values::Addresses(range) => format!("{qualifiers} {}-{}", range.start(), range.end()),
                Values::Ports(range) => format!("{qualifiers} {}-{}", range.start(), range.end()),
            },
            Step::Not(inner) => format!("not {inner}"),
            Step::All(all) => format!("({})", all.join(" and ")),
            Step::Any(all) => format!("({})", all.join(" or ")),
        })
    }

    #[test]
    fn operators_have_one_precedence_and_words_are_inherited() {
        for (expression, expected) in [
            ("udp", "udp"),
            ("tcp src port 80 or 81", "(tcp src 80-80 or tcp src 81-81)"),
            ("src or dst port 80", " 80-80"),
            ("tcp or udp or arp and not net 10.0.0.0/8", "((tcp or udp or arp) and not  10.0.0.0-10.255.255.255)"),
            ("tcp && (dst host 2001:db8::1 || portrange 1-9)", "(tcp and (dst 2001:db8::1-2001:db8::1 or  1-9))"),
            ("ip[8] = 1 or src and dst host 10.0.0.1 or ether host 2:0:0:0:0:1", "(? or ? or ?)"),
        ] {
            assert_eq!(shown(expression).as_deref(), Some(expected), "{expression}");
        }
    }

    #[test]
    fn expressions_for_libpcap_alone_have_no_tree() {
        for expression in ["", "(port 80", "vlan and port 80", "port 80 and (tcp[0] & (1|2) != 0)", "not"] {
            assert_eq!(shown(expression), None, "{expression}");
        }
    }
}
