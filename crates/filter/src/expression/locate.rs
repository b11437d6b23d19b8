//! Position in an expression of a libpcap error.
//!
//! libpcap reports the error but not its position. If the message quotes a word of the expression, the word's position is
//! used. For a bare "syntax error" the first word is found that no ending can complete: a beginning of the expression is
//! *viable* if, with one of a few endings appended, libpcap reports anything other than a syntax error. Beginnings of a
//! viable beginning are viable, so the position is found by bisection. The endings close open brackets and complete a
//! dangling keyword; an exotic keyword unknown to them (`rulenum`) puts the caret one word early.

use std::ops::Range;

/// Endings of a beginning: a whole primitive, an operand of each kind, a comparison.
const ENDINGS: [&str; 14] = [
    "",
    "ip",
    "1",
    "= 1",
    "10.0.0.1",
    "1:2:3:4:5:6",
    "proto 1",
    "0 = 1",
    "] = 1",
    "1] = 1",
    "-2",
    "host 10.0.0.1",
    "mask 255.0.0.0",
    "i",
];

pub(super) fn is_syntax_error(message: &str) -> bool {
    message.contains("syntax error")
}

/// Returns the bytes that the message is about, if they can be determined.
pub(super) fn locate(
    expression: &str,
    message: &str,
    viable: impl Fn(&str) -> bool,
) -> Option<Range<usize>> {
    let tokens = tokens(expression);
    if !is_syntax_error(message) {
        return match known(expression, &tokens, message) {
            Some(found) => found,
            None => quoted(expression, &tokens, message),
        };
    }
    let end_of = |count: usize| match count {
        0 => 0,
        _ => tokens[count - 1].end,
    };
    // The maximum number of leading words that is viable.
    let (mut low, mut high) = (0, tokens.len());
    while low < high {
        let middle = (low + high).div_ceil(2);
        if can_be_saved(&expression[..end_of(middle)], &viable) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Some(match tokens.get(low) {
        Some(token) => token.clone(),
        None => expression.len()..expression.len(),
    })
}

fn can_be_saved(beginning: &str, viable: &impl Fn(&str) -> bool) -> bool {
    let closers = closers(beginning);
    ENDINGS.iter().any(|ending| {
        let text = format!("{beginning} {ending} {closers}");
        viable(&text)
            || (!closers.is_empty() && viable(&format!("{text} = 1")))
            // Inside an index: the comparison comes after the bracket, before the other closers.
            || closers.strip_prefix(']').is_some_and(|others| {
                viable(&format!("{beginning} {ending} ] = 1 {others}"))
            })
    })
}

fn closers(beginning: &str) -> String {
    let mut open = Vec::new();
    for c in beginning.chars() {
        match c {
            '(' => open.push(')'),
            '[' => open.push(']'),
            ')' | ']' => {
                open.pop();
            }
            _ => {}
        }
    }
    open.iter().rev().collect()
}

/// Returns words and signs, roughly like libpcap's scanner.
fn tokens(expression: &str) -> Vec<Range<usize>> {
    let is_word = |c: char| c.is_alphanumeric() || "._:-/\\".contains(c);
    let mut found = Vec::new();
    let mut depth = 0usize;
    let mut rest = expression.char_indices().peekable();
    while let Some((start, c)) = rest.next() {
        if c.is_whitespace() {
            continue;
        }
        let mut end = start + c.len_utf8();
        // In an index, signs such as `:` and `-` are tokens of their own.
        let part = |c: char| is_word(c) && (depth == 0 || c.is_alphanumeric() || c == '-');
        if part(c) {
            while let Some(&(at, next)) = rest.peek() {
                if !part(next) {
                    break;
                }
                end = at + next.len_utf8();
                rest.next();
            }
        } else {
            depth = match c {
                '[' => depth + 1,
                ']' => depth.saturating_sub(1),
                _ => depth,
            };
            let pair = rest.peek().map(|&(_, next)| (c, next));
            if let Some(
                ('&', '&')
                | ('|', '|')
                | ('=', '=')
                | ('<' | '>' | '!', '=')
                | ('<', '<')
                | ('>', '>'),
            ) = pair
            {
                end += 1;
                rest.next();
            }
        }
        found.push(start..end);
    }
    found
}

/// Returns the position for a known message that quotes no word of the expression; even a known one may have no position.
fn known(expression: &str, tokens: &[Range<usize>], message: &str) -> Option<Option<Range<usize>>> {
    let text = |at: &Range<usize>| &expression[at.clone()];
    let behind = |signs: &[&str], test: &dyn Fn(&str) -> bool| {
        let mut pairs = tokens.windows(2);
        pairs
            .find(|pair| signs.contains(&text(&pair[0])) && test(text(&pair[1])))
            .map(|pair| pair[1].clone())
    };
    let first = |test: &dyn Fn(&str) -> bool| tokens.iter().find(|at| test(text(at))).cloned();
    if message.contains("data size must be") {
        return Some(behind(&[":"], &|word| !["1", "2", "4"].contains(&word)));
    }
    if message.contains("mask length must be") {
        let too_long = |word: &str| {
            let length = word
                .split_once('/')
                .and_then(|(_, l)| l.parse::<u32>().ok());
            length.is_some_and(|length| length > 32)
        };
        return Some(first(&too_long));
    }
    if message.contains("by zero") {
        // In an expression outside of an index, the sign and the number are one word.
        let inside = |word: &&Range<usize>| text(word).ends_with("/0");
        return Some(
            behind(&["/", "%"], &|word| word == "0")
                .or_else(|| tokens.iter().find(inside).map(|at| at.end - 1..at.end)),
        );
    }
    if message.contains("802.11") {
        return Some(first(&|word| {
            ["wlan", "type", "subtype", "dir"].contains(&word)
        }));
    }
    if message.contains("supported only on") {
        let subject = message.split_whitespace().next().unwrap_or_default();
        return Some(
            first(&|word| word == subject.trim_matches('\''))
                // The keyword is `on`, or `hopc`, but the message names it differently.
                .or_else(|| first(&|word| word == "on" && subject == "ifname"))
                .or_else(|| {
                    first(&|word| word.strip_prefix('h') == Some(subject.trim_matches('\'')))
                }),
        );
    }
    let subjects: &[&str] = if message.starts_with("radio information") {
        &["radio"]
    } else if message.starts_with("unsupported index operation") {
        &["ah", "esp"]
    } else if message.starts_with("netmask not known") {
        &["broadcast"]
    } else if message.starts_with("AARP") {
        &["aarp"]
    } else if message.starts_with("link layer applied") {
        &["slip", "link"]
    } else if message.starts_with("ethernet address used") {
        let is_address = |word: &str| word.split(':').count() == 6;
        return Some(first(&is_address));
    } else {
        &[]
    };
    if !subjects.is_empty() {
        return Some(first(&|word| subjects.contains(&word)));
    }
    None
}

/// Returns the last word of the message that is also a word of the expression.
fn quoted(expression: &str, tokens: &[Range<usize>], message: &str) -> Option<Range<usize>> {
    let in_quotes = message
        .split(['\'', '"'])
        .skip(1)
        .step_by(2)
        .filter(|word| !word.is_empty());
    let words = message
        .split_whitespace()
        .map(|word| word.trim_matches(['\'', '"', ',', ':']));
    let find = |word: &str| {
        tokens
            .iter()
            .find(|at| {
                let token = &expression[(*at).clone()];
                let rest = token.strip_prefix('\\').unwrap_or(token).strip_prefix(word);
                // An invalid address is cut at its first colon.
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
            })
            .cloned()
    };
    // Numbers first: "illegal port number 99999 > 65535" has no quotes.
    in_quotes.filter_map(find).next().or_else(|| {
        words
            .filter(|word| word.starts_with(|c: char| c.is_ascii_digit()))
            .filter_map(find)
            .next()
    })
}
