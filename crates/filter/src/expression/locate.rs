//! Position in an expression of a libpcap error.
//!
//! libpcap reports the error but not its position. If the message quotes a word of the expression, the word's position
//! is used. Else a number that libpcap refuses is put after a beginning of the expression: libpcap complains about the
//! number if the beginning is sound, and about the beginning otherwise. The longest sound beginning is found by
//! bisection. libpcap before 1.10 accepts the number, which may put the caret one word early.

use std::ops::Range;

/// A number that overflows 32 bits.
const REFUSED: &str = "99999999999";
/// Longest expression whose error is located: a search compiles a long text several times, which is slow.
const MAX_LEN: usize = 2048;

/// Returns the bytes that the message is about, if they can be determined. `compile` returns libpcap's message on a
/// text.
pub(super) fn locate(
    expression: &str,
    message: &str,
    compile: impl Fn(&str) -> Option<String>,
) -> Option<Range<usize>> {
    if expression.len() > MAX_LEN {
        return None;
    }
    let tokens = tokens(expression);
    let mut quoted = message.split(['\'', '"']).skip(1).step_by(2);
    let named = quoted.find_map(|word| tokens.iter().find(|at| expression[(*at).clone()] == *word));
    if let Some(named) = named {
        return Some(named.clone());
    }
    let sound = tokens.partition_point(|token| {
        let text = format!("{} {REFUSED}", &expression[..token.end]);
        compile(&text).as_deref() != Some(message)
    });
    match tokens.get(sound) {
        Some(token) => Some(token.clone()),
        // Other errors at the end are about the whole expression.
        None => message.contains("syntax error").then_some(expression.len()..expression.len()),
    }
}

/// Returns words and signs, roughly like libpcap's scanner.
fn tokens(expression: &str) -> Vec<Range<usize>> {
    const PAIRS: [&str; 8] = ["&&", "||", "==", "<<", ">>", "<=", ">=", "!="];
    let is_word = |c: char| c.is_alphanumeric() || "._:-/\\".contains(c);
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let len = match rest.find(|c| !is_word(c)) {
            None => rest.len(),
            Some(0) if PAIRS.iter().any(|pair| rest.starts_with(pair)) => 2,
            Some(0) => first.len_utf8(),
            Some(len) => len,
        };
        let start = expression.len() - rest.len();
        if !first.is_whitespace() {
            found.push(start..start + len);
        }
        rest = &rest[len..];
    }
    found
}
