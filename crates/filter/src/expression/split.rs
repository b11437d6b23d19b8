//! Compilation of long expressions in pieces.
//!
//! libpcap's optimiser needs at least quadratic time in an expression's length: minutes for a thousand hosts. So a long
//! expression is split into its operands, libpcap compiles runs of them, and the programs are joined by jumps. `and`
//! and `or` have equal precedence and are left-associative, as in libpcap, so an expression is a fold over its
//! operands; a group in brackets is split in the same way.
//!
//! This is done only if the meaning is certain to be the same. Keywords that change the meaning of the rest of an
//! expression (`vlan`, `mpls`, `pppoes`, `geneve`) may precede it with `and`: they are compiled again with each piece,
//! and first alone, so that a piece is evaluated only if they hold. In other positions they leave the whole to libpcap,
//! as does anything that does not look like operands and operators. libpcap needs cubic time then, so the number of
//! comparisons is limited.

use super::lists::{self, Compiled};
use super::members::List;

use super::operands::{self, Node};
use crate::classic::{Instruction, op};
use crate::table::Table;

/// Number of comparisons below which expressions are compiled whole, to the program that tcpdump shows, in 0.1 s.
pub(crate) const MIN_LONG: usize = 150;
/// Longer expressions are compiled whole too, if libpcap's optimiser needs no more than about a second. It processes
/// the program once for each member of the longest list, each time in quadratic time.
const MAX_WORK: usize = 8_000_000;
/// Minimum number of members of a list that is always compiled in pieces.
pub const MIN_SPLIT_LIST: usize = 201;
const _: () = assert!(MIN_SPLIT_LIST * MIN_SPLIT_LIST * MIN_SPLIT_LIST > MAX_WORK);
/// Maximum number of comparisons of an expression that libpcap has to compile whole: about a second without its
/// optimiser.
pub const MAX_WHOLE: usize = 500;
/// Number of operands that libpcap compiles together, and of comparisons in a context, compiled with each: enough to
/// share loads, few enough to be fast.
const OPERANDS_PER_PIECE: usize = 32;

/// Result of splitting an expression.
pub(super) enum Split {
    /// To be compiled whole, with or without libpcap's optimiser.
    Whole {
        optimise: bool,
    },
    Compiled(Compiled),
    Refused(Refused),
    /// To be compiled whole, which would take too long.
    TooLong {
        comparisons: usize,
    },
}

/// A piece that libpcap refused: the message, and the piece's position in the expression.
pub(super) struct Refused {
    pub(super) message: String,
    pub(super) piece: String,
    /// Start of the piece's text in the expression, and in the piece after its inherited part.
    pub(super) start: usize,
    pub(super) inherited: usize,
}

/// Splits an expression into operands after a short context; `None` if that is not possible.
fn split_at_operands<'e>(
    expression: &'e str,
    ask: operands::Ask<'_>,
) -> Option<(operands::Context<'e>, operands::Node)> {
    let context = operands::context(expression)?;
    if operands::comparisons(context.text) > OPERANDS_PER_PIECE {
        return None;
    }
    let node = operands::parse(expression, &context, MIN_LONG, ask)?;
    Some((context, node))
}

/// Returns the number of comparisons of an expression that `compile` refuses for it. No libpcap is needed.
pub(super) fn too_many(expression: &str) -> Option<usize> {
    let comparisons = operands::comparisons(expression);
    // Without answers, no word is a name.
    let no_answer = |_: &str| Err(String::new());
    let is_refused = comparisons > MAX_WHOLE && split_at_operands(expression, &no_answer).is_none();
    is_refused.then_some(comparisons)
}

/// Compiles a long expression.
pub(super) fn compile(
    expression: &str,
    snaplen: u32,
    run: impl Fn(&str, bool) -> Result<Vec<Instruction>, String>,
    ask: operands::Ask<'_>,
) -> Split {
    let comparisons = operands::comparisons(expression);
    if comparisons < MIN_LONG {
        return Split::Whole { optimise: true };
    }
    let Some((context, node)) = split_at_operands(expression, ask) else {
        return if comparisons <= MAX_WHOLE {
            Split::Whole { optimise: false }
        } else {
            Split::TooLong { comparisons }
        };
    };
    let node = operands::resolve(node, expression, ask);
    let longest = lists::longest(&node, expression).max(operands::ranges(expression));
    let work = comparisons * comparisons * (1 + longest);
    let node = lists::gather(node, expression);
    if work <= MAX_WORK && !lists::has_combinations(&node) {
        return Split::Whole { optimise: true };
    }
    let (before, after) = match context.text {
        "" => (String::new(), ""),
        text => (format!("{text} and ("), ")"),
    };
    let whole = |text: &str| run(text, false);
    let run = |piece: &str, is_plain: bool| run(&format!("{before}{piece}{after}"), is_plain);
    let mut joiner = Joiner {
        expression,
        run: &run,
        before: &before,
        code: Vec::new(),
        positions: Vec::new(),
        lookups: Vec::new(),
        tables: Vec::new(),
    };
    let (yes, no) = (joiner.label(), joiner.label());
    if !before.is_empty() {
        let inside = joiner.label();
        match whole(context.text) {
            Ok(program) => joiner.append(&program, inside, no),
            Err(message) => {
                return Split::Refused(Refused { message, piece: context.text.to_owned(), start: 0, inherited: 0 });
            }
        }
        joiner.bind(inside);
    }
    if let Err(refused) = joiner.node(&node, yes, no) {
        return Split::Refused(refused);
    }
    for (label, value) in [(yes, snaplen), (no, 0)] {
        joiner.bind(label);
        let end = Instruction::new(op::RET | op::K, 0, 0, value);
        joiner.code.push(Item::Plain(end));
    }
    Split::Compiled(joiner.link())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Label(usize);

#[derive(Debug, Clone, Copy)]
enum Item {
    Plain(Instruction),
    Goto(Label),
}

/// Operands that are compiled together.
struct Group<'a> {
    /// True if `or` joins the group to its predecessor.
    joined_by_or: bool,
    /// True if `or` joins its nodes; the same, except in the first group.
    or: bool,
    nodes: Vec<&'a Node>,
}

/// Divides a chain into runs of leaves under one operator and single other nodes.
fn groups<'a>(first: &'a Node, rest: &'a [(bool, Node)]) -> Vec<Group<'a>> {
    let is_leaf = |node: &Node| node.leaf().is_some();
    let mut groups = vec![Group { joined_by_or: true, or: true, nodes: vec![first] }];
    for (or, node) in rest {
        let is_first = groups.len() == 1;
        if let Some(last) = groups.last_mut()
            && is_leaf(node)
            && is_leaf(last.nodes[0])
            && last.nodes.len() < OPERANDS_PER_PIECE
            && (last.or == *or || is_first && last.nodes.len() == 1)
        {
            last.or = *or;
            last.nodes.push(node);
            continue;
        }
        groups.push(Group { joined_by_or: *or, or: *or, nodes: vec![node] });
    }
    groups
}

/// Joins the pieces' programs into one.
struct Joiner<'a, F> {
    expression: &'a str,
    run: &'a F,
    /// A context and a bracket, which precede each piece given to libpcap.
    before: &'a str,
    code: Vec<Item>,
    positions: Vec<usize>,
    lookups: Vec<(usize, usize)>,
    tables: Vec<Table>,
}

impl<F: Fn(&str, bool) -> Result<Vec<Instruction>, String>> Joiner<'_, F> {
    fn label(&mut self) -> Label {
        self.positions.push(0);
        Label(self.positions.len() - 1)
    }

    fn bind(&mut self, label: Label) {
        self.positions[label.0] = self.code.len();
    }

    fn node(&mut self, node: &Node, yes: Label, no: Label) -> Result<(), Refused> {
        match node {
            Node::Not(inner) => self.node(inner, no, yes),
            Node::Leaf { .. } => self.leaves(&[node], true, yes, no),
            Node::List(list) => self.list(list, yes, no),
            Node::Chain(first, rest) => {
                let groups = groups(first, rest);
                // Targets for the fold's value so far: the next group, or the first one that can still change it.
                let mut targets = vec![(yes, no, None)];
                for group in groups.iter().skip(1).rev() {
                    let (yes, no, _) = targets[targets.len() - 1];
                    let next = self.label();
                    targets.push(if group.joined_by_or { (yes, next, Some(next)) } else { (next, no, Some(next)) });
                }
                for (group, &(yes, no, next)) in groups.iter().zip(targets.iter().rev()) {
                    match group.nodes[..] {
                        [single] => self.node(single, yes, no)?,
                        _ => self.leaves(&group.nodes, group.or, yes, no)?,
                    }
                    if let Some(next) = next {
                        self.bind(next);
                    }
                }
                Ok(())
            }
        }
    }

    /// Compiles leaves joined by `or` or `and`, all in one piece.
    fn leaves(&mut self, leaves: &[&Node], or: bool, yes: Label, no: Label) -> Result<(), Refused> {
        let texts: Vec<String> = (leaves.iter()).filter_map(|leaf| leaf.text(self.expression)).collect();
        match (self.run)(&texts.join(if or { " or " } else { " and " }), false) {
            Ok(program) => self.append(&program, yes, no),
            // In the whole expression, such a piece is only false.
            Err(message) if message.contains("rejects all packets") => {
                self.code.push(Item::Goto(no));
            }
            Err(message) => return Err(self.refusal(message, leaves, texts)),
        }
        Ok(())
    }

    fn list(&mut self, list: &List, yes: Label, no: Label) -> Result<(), Refused> {
        let pieces = list.compile(|text| (self.run)(text, true)).map_err(|message| Refused {
            message,
            piece: String::new(),
            start: 0,
            inherited: 0,
        })?;
        let first_table = self.tables.len();
        self.tables.extend(pieces.tables);
        let mut programs = pieces.programs.into_iter().peekable();
        while let Some((code, lookups)) = programs.next() {
            let start = self.code.len();
            let lookups = lookups.into_iter();
            self.lookups.extend(lookups.map(|(at, table)| (start + at, first_table + table)));
            match programs.peek() {
                Some(_) => {
                    let next = self.label();
                    self.append(&code, yes, next);
                    self.bind(next);
                }
                None => self.append(&code, yes, no),
            }
        }
        Ok(())
    }

    /// Finds the leaf that libpcap refuses.
    fn refusal(&self, message: String, leaves: &[&Node], texts: Vec<String>) -> Refused {
        for (node, piece) in leaves.iter().zip(texts) {
            if let Err(message) = (self.run)(&piece, false)
                && !message.contains("rejects all packets")
                && let Some((not, inherited, text)) = node.leaf()
            {
                let start = text.start;
                let inherited = inherited.len() + if not { "not ".len() } else { 0 };
                return Refused {
                    message,
                    piece: match self.before {
                        "" => piece,
                        before => format!("{before}{piece})"),
                    },
                    start,
                    inherited: inherited + self.before.len(),
                };
            }
        }
        Refused { message, piece: String::new(), start: 0, inherited: 0 }
    }

    fn append(&mut self, program: &[Instruction], yes: Label, no: Label) {
        for i in program {
            self.code.push(if i.class() == op::RET {
                Item::Goto(if i.k == 0 { no } else { yes })
            } else {
                Item::Plain(*i)
            });
        }
    }

    fn link(self) -> Compiled {
        let distance = |from: usize, to: Label| (self.positions[to.0] - from - 1) as u32;
        let code = self.code.iter().enumerate().map(|(at, item)| match *item {
            Item::Plain(instruction) => instruction,
            Item::Goto(to) => Instruction::new(op::JMP | op::JA, 0, 0, distance(at, to)),
        });
        Compiled { code: code.collect(), lookups: self.lookups, tables: self.tables }
    }
}

#[cfg(test)]
mod tests {
    use super::{MIN_SPLIT_LIST, OPERANDS_PER_PIECE, Split, operands};
    use crate::{CompilerOptions, FilterError};
    use std::cell::Cell;

    fn hosts(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("10.{}.{}.{}", i / 250, i % 250, i % 200 + 1)).collect()
    }

    /// Returns the maximum number of operators in a piece for libpcap's optimiser; all of them if it gets the whole.
    fn most_optimised(expression: &str) -> usize {
        let options = CompilerOptions { netmask: Some([255, 255, 255, 0].into()), ..CompilerOptions::default() };
        let compiler = super::super::ready().unwrap();
        let most = Cell::new(0);
        let run = |piece: &str, is_plain: bool| {
            if !is_plain {
                most.set(most.get().max(operands::operators(piece)));
            }
            let optimise = !is_plain;
            compiler.compile(piece, &CompilerOptions { optimise, ..options })
        };
        let ask = |text: &str| compiler.compile(text, &options);
        match super::compile(expression, options.snaplen, run, &ask) {
            Split::Whole { optimise: true } => operands::operators(expression),
            Split::Whole { optimise: false } => 0,
            Split::Compiled(_) => most.get(),
            Split::Refused(refused) => panic!("{}", refused.message),
            Split::TooLong { comparisons } => panic!("{comparisons} comparisons"),
        }
    }

    fn ranges(count: usize) -> String {
        let ranges = (1..=count).map(|first| format!("portrange {first}-{}", first + 8));
        ranges.collect::<Vec<_>>().join(" and ")
    }

    /// A keyword between the operands changes the meaning of all that follow.
    #[test]
    fn long_expressions_that_cannot_be_split_are_refused() {
        let pairs = |count: usize| {
            let pairs = (1..=count).map(|number| format!("pppoes {number} and not port {number}"));
            pairs.collect::<Vec<_>>().join(" and ")
        };
        let contexts = format!("{} and {}", pairs(400), ranges(200));
        for expression in [pairs(700), contexts] {
            let error = crate::compile(&expression, &CompilerOptions::default()).unwrap_err();
            assert!(matches!(error, FilterError::Unsplit { .. }), "{error}");
            assert_eq!(crate::check_length(&expression), Err(error.clone()));
            let text = error.to_string();
            assert!(text.contains("pppoes") && text.contains("500"), "{text}");
        }
        assert!(crate::compile(&pairs(100), &CompilerOptions::default()).is_ok());
    }

    /// The optimiser needs at least quadratic time in a piece's length, so the pieces are short.
    #[test]
    fn optimiser_gets_short_pieces() {
        let hosts = hosts(1000);
        let mut nested = "port 1".to_owned();
        for port in 2..2000 {
            nested = format!("({nested} or port {port})");
        }
        for expression in [
            format!("host {}", hosts.join(" or ")),
            format!("not host {}", hosts.join(" and not ")),
            format!("tcp and (src host {}) and not port 22", hosts.join(" or ")),
            format!("(ip src {} and ip)", hosts[..300].join(" and ip) or (ip src ")),
            format!("ip broadcast or host {}", hosts[..400].join(" or ")),
            ranges(200),
            format!("vlan 5 and ({})", ranges(600)),
            nested,
        ] {
            let most = most_optimised(&expression);
            assert!(most <= 2 * OPERANDS_PER_PIECE, "{most}: {expression:.40}");
            let program = crate::compile(&expression, &CompilerOptions::default());
            if !expression.contains("broadcast") {
                crate::lower(&program.unwrap(), &crate::Target::xdp()).unwrap();
            }
        }
    }

    #[test]
    fn errors_in_long_expressions_are_located() {
        let mut hosts = hosts(MIN_SPLIT_LIST);
        hosts[70] = "10.0.0.999".into();
        let expression = format!("host {}", hosts.join(" or "));
        match crate::compile(&expression, &CompilerOptions::default()) {
            Err(FilterError::Expression { at: Some(at), message }) => {
                assert_eq!(&expression[at], "10.0.0.999", "{message}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn folds_go_from_the_left() {
        // Each `and` restricts the whole expression before it, each `or` extends it.
        let long = "port 1".to_owned() + &" or port 1".repeat(MIN_SPLIT_LIST);
        let mut frame = [0u8; 60];
        frame[12] = 8;
        frame[14] = 0x45;
        frame[23] = 6;
        frame[37] = 80;
        for (expression, expected) in [
            (format!("{long} or port 80 and ip"), true),
            (format!("port 80 or {long} and ip6"), false),
            (format!("{long} and ip6 or port 80"), true),
            (format!("ip and ({long}) or ip6 or not arp and tcp"), true),
            (format!("not ({long} or port 80)"), false),
            (format!("not ({long}) and not port 80 or ip6"), false),
            (format!("{long} or src or dst port 80"), true),
            (format!("{long} or src and dst port 80"), false),
            (format!("{long} or dst or src port 80"), true),
            (format!("{long} or dst and src port 80"), false),
            (format!("{long} or ip[0] & 0xf0 = 0x40 and tcp[(1+1):2] == 80"), true),
            (format!("{long} or ip[9] > 6 or ether[0] | 1 != 1"), false),
            (format!("mpls and ({long} or port 80)"), false),
        ] {
            let program = crate::compile(&expression, &CompilerOptions::default()).unwrap();
            assert_eq!(program.run(&frame, 60) != 0, expected, "{expression:.60}…");
        }
    }
}
