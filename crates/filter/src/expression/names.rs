//! Names of hosts in long lists: libpcap is asked for their addresses, so that these can be in tables.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::members::member;
use super::operands::Node;
use crate::classic::{Instruction, op};

/// Asks libpcap to compile an expression for Ethernet, without its optimiser.
pub(super) type Ask<'a> = &'a dyn Fn(&str) -> Result<Vec<Instruction>, String>;

/// Fewer names are no list, and asking for each takes time.
const LEAST: usize = 32;

/// Where in an IPv6 frame the words of the source address are, and that of an IPv4 frame.
const IPV6_SOURCE: [u32; 4] = [22, 26, 30, 34];
const IPV4_SOURCE: u32 = 26;

/// Whether a word that follows `or` or `and` can be a name: keywords are refused where a name has to stand.
pub(super) fn can_be_name(word: &str, ask: Ask<'_>) -> bool {
    match ask(&format!("ip proto {word}")) {
        Ok(_) => true,
        Err(message) => !message.contains("syntax error"),
    }
}

/// Puts addresses in the place of names, where there are many. What has none is left for libpcap to refuse.
pub(super) fn resolve(node: Node, expression: &str, ask: Ask<'_>) -> Node {
    match count(&node, expression) {
        LEAST.. => replace(node, expression, ask),
        _ => node,
    }
}

fn count(node: &Node, expression: &str) -> usize {
    match node {
        Node::Leaf { .. } => usize::from(named(node, expression).is_some()),
        Node::Not(inner) => count(inner, expression),
        Node::List(_) => 0,
        Node::Chain(first, rest) => {
            let rest = rest.iter().map(|(_, node)| count(node, expression));
            count(first, expression) + rest.sum::<usize>()
        }
    }
}

/// The words before the name of a host, and the name.
fn named(leaf: &Node, expression: &str) -> Option<(String, String)> {
    let text = leaf.text(expression)?;
    let (before, name) = text.trim_end().rsplit_once(char::is_whitespace)?;
    let words: Vec<&str> = before.split_whitespace().collect();
    let is_host = ["host", "src", "dst"].contains(words.last()?)
        && !words
            .iter()
            .any(|word| ["ether", "link", "wlan", "fddi", "tr"].contains(word));
    (is_host && member(&text).is_none()).then(|| (words.join(" "), name.to_owned()))
}

fn replace(node: Node, expression: &str, ask: Ask<'_>) -> Node {
    match node {
        Node::Not(inner) => Node::Not(Box::new(replace(*inner, expression, ask))),
        Node::Chain(first, rest) => {
            let rest = rest.into_iter();
            let rest = rest.map(|(or, node)| (or, replace(node, expression, ask)));
            Node::Chain(Box::new(replace(*first, expression, ask)), rest.collect())
        }
        Node::Leaf { text, inherited } => {
            let end = text.end;
            let leaf = Node::Leaf { text, inherited };
            let Some((before, name)) = named(&leaf, expression) else {
                return leaf;
            };
            let mut found = addresses(&before, &name, ask).into_iter().map(|address| {
                let inherited = format!("{before} {address}");
                let text = end..end;
                Node::Leaf { inherited, text }
            });
            match (found.next(), found) {
                (None, _) => leaf,
                (Some(one), others) => {
                    let others: Vec<_> = others.map(|node| (true, node)).collect();
                    match others.is_empty() {
                        true => one,
                        false => Node::Chain(Box::new(one), others),
                    }
                }
            }
        }
        list @ Node::List(_) => list,
    }
}

/// All addresses that libpcap takes a name for after these words.
fn addresses(before: &str, name: &str, ask: Ask<'_>) -> Vec<String> {
    let has = |word| before.split_whitespace().any(|other| other == word);
    let mut found = Vec::new();
    if !has("ip6") {
        let program = ask(&format!("ip src host {name}")).unwrap_or_default();
        let compared = compared(&program).filter(|(at, _)| *at == IPV4_SOURCE);
        found.extend(compared.map(|(_, word)| Ipv4Addr::from(word).to_string()));
    }
    if !has("ip") {
        let program = ask(&format!("ip6 src host {name}")).unwrap_or_default();
        let words: Vec<_> = compared(&program)
            .filter(|(at, _)| IPV6_SOURCE.contains(at))
            .collect();
        for words in words.chunks_exact(IPV6_SOURCE.len()) {
            let bits = words.iter().fold(0u128, |bits, &(at, word)| {
                let shift = 96 - 8 * (at - IPV6_SOURCE[0]);
                bits | u128::from(word) << shift
            });
            found.push(Ipv6Addr::from(bits).to_string());
        }
    }
    found
}

/// The words of a packet that a program compares as they are: where they are, and with what.
fn compared(program: &[Instruction]) -> impl Iterator<Item = (u32, u32)> {
    program.windows(2).filter_map(|pair| {
        let [load, jump] = [pair[0], pair[1]];
        let loads = load.code == op::LD | op::W | op::ABS;
        (loads && jump.code == op::JMP | op::JEQ | op::K).then_some((load.k, jump.k))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that compares these words with those.
    fn comparing(words: &[(u32, u32)]) -> Vec<Instruction> {
        let of_word = |&(at, word): &(u32, u32)| {
            [
                Instruction::new(op::LD | op::W | op::ABS, 0, 0, at),
                Instruction::new(op::JMP | op::JEQ | op::K, 0, 1, word),
            ]
        };
        words.iter().flat_map(of_word).collect()
    }

    #[test]
    fn names_with_several_addresses_have_all_of_them() {
        let ask = |text: &str| match text.split_once(' ') {
            Some(("ip", "src host web")) => Ok(comparing(&[(26, 0x0a00_0001), (26, 0x0a00_0002)])),
            Some(("ip6", "src host web")) => {
                Ok(comparing(&[(22, 0x2001_0db8), (26, 0), (30, 0), (34, 7)]))
            }
            _ => Err("unknown host".to_owned()),
        };
        let four = ["10.0.0.1", "10.0.0.2"];
        assert_eq!(addresses("ip host", "web", &ask), four);
        assert_eq!(addresses("ip6 src", "web", &ask), ["2001:db8::7"]);
        assert_eq!(addresses("dst", "web", &ask).len(), 3);
        assert!(addresses("host", "nobody", &ask).is_empty());
    }
}
