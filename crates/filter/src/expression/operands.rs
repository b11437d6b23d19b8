//! Operands and operators of a long expression, as far as they can be parsed without libpcap.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use super::members::{List, member};
use crate::classic::{Instruction, op};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    And,
    Or,
    Not,
    Open,
    Close,
    /// A keyword after which the rest of the expression is about the inside of a header.
    Inwards,
    /// An arithmetic sign.
    Sign,
    Other,
}

/// The beginning of a long expression that changes the meaning of the operands: `vlan 5`.
#[derive(Debug, Default)]
pub(super) struct Context<'a> {
    pub(super) text: &'a str,
    /// Start of the operands.
    end: usize,
}

/// Returns the part of an expression that must hold before the rest is evaluated, and changes the meaning of the rest.
/// `None` if it cannot be separated.
pub(super) fn context(expression: &str) -> Option<Context<'_>> {
    let words = words(expression)?;
    let Some(last) = words.iter().rposition(|(word, _)| *word == Word::Inwards) else {
        return Some(Context::default());
    };
    let mut depth = 0usize;
    let mut operators = Vec::new();
    for (at, (word, _)) in words.iter().enumerate() {
        match word {
            Word::Open => depth += 1,
            Word::Close => depth = depth.checked_sub(1)?,
            Word::And | Word::Or if depth == 0 => operators.push((at, *word)),
            _ => {}
        }
    }
    let mut after = operators.into_iter().skip_while(|(at, _)| *at < last);
    let (cut, _) = after.next().filter(|(_, word)| *word == Word::And)?;
    // Later operands of `or` would be evaluated without the context.
    after
        .all(|(_, word)| word == Word::And)
        .then(|| Context { text: expression[..words[cut].1.start].trim_end(), end: words[cut].1.end })
}

/// A parsed expression.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// Text for libpcap: the bytes in the expression, after inherited qualifiers.
    Leaf {
        inherited: String,
        text: Range<usize>,
    },
    Not(Box<Node>),
    /// Operands that are looked up together.
    List(List),
    /// The first operand, then each further one with true for `or`.
    Chain(Box<Node>, Vec<(bool, Node)>),
}

impl Node {
    /// Returns a leaf's negation, qualifiers and text.
    pub(super) fn leaf(&self) -> Option<(bool, &str, Range<usize>)> {
        match self {
            Node::Leaf { inherited, text } => Some((false, inherited, text.clone())),
            Node::Not(inner) => inner.leaf().map(|(not, inherited, text)| (!not, inherited, text)),
            Node::Chain(..) | Node::List(_) => None,
        }
    }

    /// Returns a leaf in libpcap's syntax.
    pub(super) fn text(&self, expression: &str) -> Option<String> {
        let (not, inherited, text) = self.leaf()?;
        let not = if not { "not " } else { "" };
        Some(format!("{not}{inherited}{}", &expression[text]))
    }
}

/// Parses the operands after a context; `None` if it has fewer comparisons, or parts that cannot be parsed.
pub(super) fn parse(expression: &str, context: &Context<'_>, min_comparisons: usize, ask: Ask<'_>) -> Option<Node> {
    let mut words = words(expression)?;
    words.retain(|(_, at)| at.start >= context.end);
    if comparisons(&expression[context.end..]) < min_comparisons {
        return None;
    }
    let mut parser = Parser {
        expression,
        words: &words,
        at: 0,
        depth: 0,
        // The meaning of a bare number after a context is left to libpcap.
        qualifiers: context.text.is_empty().then(String::new),
        ask,
    };
    let node = parser.chain()?;
    (parser.at == words.len()).then_some(node)
}

/// Number of comparisons with single ports that cost libpcap as much as one with a range.
const RANGE: usize = 3;

/// Returns the number of operators, or more: libpcap's scanner may see some of these words as names.
pub(super) fn operators(expression: &str) -> usize {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric());
    let spelled = words.filter(|word| ["and", "or"].contains(word)).count();
    let signs = ["&&", "||"].map(|sign| expression.matches(sign).count());
    spelled + signs.iter().sum::<usize>()
}

/// Returns the number of ranges of ports.
pub(super) fn ranges(expression: &str) -> usize {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| *word == "portrange").count()
}

/// Returns the number of comparisons that libpcap compiles: one for each operator, more for a range.
pub(super) fn comparisons(expression: &str) -> usize {
    operators(expression) + (RANGE - 1) * ranges(expression)
}

/// Splits into words, brackets and operators; `None` if that is not possible.
fn words(expression: &str) -> Option<Vec<(Word, Range<usize>)>> {
    let mut words = Vec::new();
    let bytes = expression.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let word = match bytes[at] {
            b if b.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'(' => Word::Open,
            b')' => Word::Close,
            b'&' if bytes.get(at + 1) == Some(&b'&') => Word::And,
            b'|' if bytes.get(at + 1) == Some(&b'|') => Word::Or,
            b'!' if bytes.get(at + 1) != Some(&b'=') => Word::Not,
            // Arithmetic has brackets and signs of its own.
            b'[' => {
                at += length_in_brackets(&bytes[at..])?;
                words.push((Word::Sign, start..at));
                continue;
            }
            b'&' | b'|' | b'!' | b'<' | b'>' | b'=' | b'+' | b'*' | b'%' | b'^' => Word::Sign,
            b']' => return None,
            _ => {
                // The first byte always belongs to the word, so each turn of this loop advances.
                at += 1;
                while at < bytes.len() && !bytes[at].is_ascii_whitespace() && !b"()!<>=[]&|".contains(&bytes[at]) {
                    at += 1;
                }
                let word = match &expression[start..at] {
                    "and" => Word::And,
                    "or" => Word::Or,
                    "not" => Word::Not,
                    "vlan" | "mpls" | "pppoes" | "geneve" | "vxlan" => Word::Inwards,
                    "pppoed" => return None,
                    _ => Word::Other,
                };
                words.push((word, start..at));
                continue;
            }
        };
        at += if matches!(word, Word::And | Word::Or) { 2 } else { 1 };
        words.push((word, start..at));
    }
    Some(words)
}

/// Returns the length from an opening bracket to the closing one.
fn length_in_brackets(bytes: &[u8]) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'[' => depth += 1,
            b']' if depth == 1 => return Some(at + 1),
            b']' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// First words of an operand that qualify its name or number.
const QUALIFIERS: [&str; 27] = [
    "src",
    "dst",
    "host",
    "net",
    "port",
    "portrange",
    "proto",
    "protochain",
    "gateway",
    "ether",
    "link",
    "fddi",
    "tr",
    "wlan",
    "ip",
    "ip6",
    "arp",
    "rarp",
    "tcp",
    "udp",
    "sctp",
    "icmp",
    "icmp6",
    "ah",
    "esp",
    "less",
    "greater",
];

/// Qualifiers that further names or numbers inherit after `or` and `and`.
const INHERITABLE: [&str; 6] = ["host", "net", "port", "portrange", "src", "dst"];

/// Maximum nesting for the stack of a thread.
const MAX_NESTING: usize = 2048;

struct Parser<'a> {
    expression: &'a str,
    words: &'a [(Word, Range<usize>)],
    at: usize,
    depth: usize,
    /// Qualifiers of the previous operand, if others may inherit them.
    qualifiers: Option<String>,
    ask: Ask<'a>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<Word> {
        self.words.get(self.at).map(|(word, _)| *word)
    }

    fn chain(&mut self) -> Option<Node> {
        // A group at the beginning continues as a chain; a group of the same operator only adds its operands. So
        // parentheses without a meaning do not nest here.
        let (first, mut rest) = match self.operand()? {
            Node::Chain(first, rest) => (*first, rest),
            other => (other, Vec::new()),
        };
        while let Some(word @ (Word::And | Word::Or)) = self.peek() {
            self.at += 1;
            let is_or = word == Word::Or;
            match self.operand()? {
                Node::Chain(one, others) if others.iter().all(|(or, _)| *or == is_or) => {
                    rest.push((is_or, *one));
                    rest.extend(others);
                }
                other => rest.push((is_or, other)),
            }
        }
        Some(if rest.is_empty() { first } else { Node::Chain(Box::new(first), rest) })
    }

    fn operand(&mut self) -> Option<Node> {
        match self.peek()? {
            // Deeper nesting is left to libpcap.
            _ if self.depth > MAX_NESTING => None,
            Word::Not => {
                self.at += 1;
                self.depth += 1;
                let inner = self.operand()?;
                self.depth -= 1;
                Some(Node::Not(Box::new(inner)))
            }
            Word::Open => {
                self.at += 1;
                self.depth += 1;
                let inner = self.chain()?;
                if self.peek() != Some(Word::Close) {
                    return None;
                }
                self.at += 1;
                self.depth -= 1;
                // Inheritance of a name after a group is left to libpcap.
                self.qualifiers = None;
                Some(inner)
            }
            Word::Other => self.leaf(),
            _ => None,
        }
    }

    fn leaf(&mut self) -> Option<Node> {
        let first = self.at;
        while matches!(self.peek(), Some(Word::Other | Word::Sign)) {
            self.at += 1;
        }
        let is_arithmetic = (self.words[first..self.at].iter()).any(|(word, _)| *word == Word::Sign);
        // `src or dst port 80` and `dst and src …` are one operand with a qualifier in the middle.
        let word = |at: usize| {
            let (kind, range) = self.words.get(at)?;
            (*kind == Word::Other).then(|| &self.expression[range.clone()])
        };
        if matches!(self.peek(), Some(Word::And | Word::Or))
            && matches!((word(self.at - 1), word(self.at + 1)), (Some("src"), Some("dst")) | (Some("dst"), Some("src")))
        {
            self.at += 1;
            while self.peek() == Some(Word::Other) {
                self.at += 1;
            }
        }
        if self.peek() == Some(Word::Open) || self.peek() == Some(Word::Not) {
            return None;
        }
        let text = self.words[first].1.start..self.words[self.at - 1].1.end;
        let opening = &self.expression[self.words[first].1.clone()];
        let looks_bare = opening.starts_with(|c: char| c.is_ascii_digit()) || opening.contains(':');
        if is_arithmetic {
            // A comparison of numbers. One that begins with a number, and operands that could inherit from it, are left
            // to libpcap.
            self.qualifiers = None;
            let text = text.clone();
            return (!looks_bare).then_some(Node::Leaf { inherited: String::new(), text });
        }
        let is_keyword = QUALIFIERS.contains(&opening);
        if first + 1 == self.at && !is_keyword && !looks_bare {
            // A single word: a protocol, or a name that inherits. Other keywords are left to libpcap.
            const ALONE: [&str; 14] = [
                "igmp",
                "igrp",
                "pim",
                "vrrp",
                "carp",
                "atalk",
                "aarp",
                "decnet",
                "iso",
                "stp",
                "ipx",
                "netbeui",
                "multicast",
                "broadcast",
            ];
            if !ALONE.contains(&opening) {
                let inherited = self.qualifiers.clone().filter(|words| !words.is_empty())?;
                return can_be_name(opening, self.ask).then_some(Node::Leaf { inherited, text });
            }
        }
        if looks_bare {
            let inherited = self.qualifiers.clone()?;
            return Some(Node::Leaf { inherited, text });
        }
        self.qualifiers = self.inheritable(first);
        Some(Node::Leaf { inherited: String::new(), text })
    }

    /// Returns the operand's words except the last, if they are qualifiers of the last one.
    fn inheritable(&self, first: usize) -> Option<String> {
        let last = self.at - 1;
        let start = self.words[first].1.start;
        if last == first {
            return None;
        }
        let kind = &self.expression[self.words[last - 1].1.clone()];
        let text = &self.expression[start..self.words[last - 1].1.end];
        (INHERITABLE.contains(&kind) && !text.contains("mask")).then(|| format!("{text} "))
    }
}

// Names of hosts in long lists: libpcap resolves their addresses, which can then be in tables.

/// Compiles an expression with libpcap for Ethernet, without its optimiser.
pub(super) type Ask<'a> = &'a dyn Fn(&str) -> Result<Vec<Instruction>, String>;

/// Minimum number of names for which addresses replace them, because resolving each takes time.
const MIN_NAMES: usize = 32;

/// Offsets of the source address's words in an IPv6 frame, and of the source address in an IPv4 frame.
const IPV6_SOURCE: [u32; 4] = [22, 26, 30, 34];
const IPV4_SOURCE: u32 = 26;

/// Returns true if a word after `or` or `and` can be a name: libpcap refuses keywords at the position of a name.
pub(super) fn can_be_name(word: &str, ask: Ask<'_>) -> bool {
    match ask(&format!("ip proto {word}")) {
        Ok(_) => true,
        Err(message) => !message.contains("syntax error"),
    }
}

/// Replaces names by addresses if an expression has many of them. Names without an address are left for libpcap to
/// refuse.
pub(super) fn resolve(node: Node, expression: &str, ask: Ask<'_>) -> Node {
    match count(&node, expression) {
        MIN_NAMES.. => replace(node, expression, ask),
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

/// Returns the words before the name of a host, and the name.
fn named(leaf: &Node, expression: &str) -> Option<(String, String)> {
    let text = leaf.text(expression)?;
    let (before, name) = text.trim_end().rsplit_once(char::is_whitespace)?;
    let words: Vec<&str> = before.split_whitespace().collect();
    let is_host = ["host", "src", "dst"].contains(words.last()?)
        && !words.iter().any(|word| ["ether", "link", "wlan", "fddi", "tr"].contains(word));
    (is_host && member(&text).is_none()).then(|| (words.join(" "), name.to_owned()))
}

fn replace(node: Node, expression: &str, ask: Ask<'_>) -> Node {
    match node {
        Node::Not(inner) => Node::Not(Box::new(replace(*inner, expression, ask))),
        Node::Chain(first, rest) => {
            let rest = rest.into_iter().map(|(or, node)| (or, replace(node, expression, ask)));
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
                    if others.is_empty() { one } else { Node::Chain(Box::new(one), others) }
                }
            }
        }
        list @ Node::List(_) => list,
    }
}

/// Returns all addresses of a name after these words, according to libpcap.
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
        let words: Vec<_> = compared(&program).filter(|(at, _)| IPV6_SOURCE.contains(at)).collect();
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

/// Returns the offsets of words that a program compares unchanged, and the constants.
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

    /// Returns a program that compares these words with constants.
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
            Some(("ip6", "src host web")) => Ok(comparing(&[(22, 0x2001_0db8), (26, 0), (30, 0), (34, 7)])),
            _ => Err("unknown host".to_owned()),
        };
        let four = ["10.0.0.1", "10.0.0.2"];
        assert_eq!(addresses("ip host", "web", &ask), four);
        assert_eq!(addresses("ip6 src", "web", &ask), ["2001:db8::7"]);
        assert_eq!(addresses("dst", "web", &ask).len(), 3);
        assert!(addresses("host", "nobody", &ask).is_empty());
    }
}
