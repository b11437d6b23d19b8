//! Text from outside: names of interfaces, comments of files, reports of other hosts.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns true for a character that controls a terminal or the direction of the text: the control characters of ASCII
/// and of Latin-1, and Unicode's embeddings, overrides and isolates of direction.
pub fn controls_terminal(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Formats a number with a noun, given in the singular: `1 chunk`, `2 chunks`.
pub fn count(number: impl Into<u64>, name: &str) -> String {
    match number.into() {
        1 => format!("1 {name}"),
        number => format!("{number} {name}s"),
    }
}

/// Returns the beginning of a line that is longer than this.
pub fn cut(line: &str, columns: usize) -> String {
    match line.char_indices().nth(columns) {
        Some(_) => line.chars().take(columns - 1).chain(['…']).collect(),
        None => line.to_owned(),
    }
}

/// Breaks a text between words into lines of at most this many characters; a longer word has a line of its own.
pub fn lines(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Escapes characters that control a terminal, except line ends and tabs, in a form that JSON also uses: `\u001b`.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| controls_terminal(letter) && !matches!(letter, '\n' | '\t'))
}

/// Escapes the characters that control a terminal in a JSON document. Its writer has escaped those before DEL already.
pub fn in_json(document: &str) -> Cow<'_, str> {
    escaped(document, |letter| letter > '\u{7e}' && controls_terminal(letter))
}

fn escaped(text: &str, must_escape: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&must_escape) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if must_escape(letter) {
            // Writing to a String cannot fail.
            let _ = write!(shown, "\\u{:04x}", u32::from(letter));
        } else {
            shown.push(letter);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_broken_between_words() {
        assert_eq!(lines("a bc def g", 4), ["a bc", "def", "g"]);
        assert_eq!(lines("longest b", 4), ["longest", "b"]);
    }

    #[test]
    fn long_line_is_cut() {
        assert_eq!((cut("→→→→", 4), cut("→→→→→", 4)), ("→→→→".to_owned(), "→→→…".to_owned()));
    }

    #[test]
    fn characters_that_steer_a_terminal_are_escaped() {
        let hostile = "a\u{1b}[2Jb\u{9b}c\u{202e}d\u{2066}e\u{7f}f\tg\nü";
        let shown = "a\\u001b[2Jb\\u009bc\\u202ed\\u2066e\\u007ff\tg\nü";
        assert_eq!(printable(hostile), shown);
        assert!(matches!(printable("eth0"), Cow::Borrowed("eth0")));
        let document = serde_json::to_string(hostile).unwrap();
        let document = in_json(&document);
        assert!(!document.chars().any(controls_terminal), "{document}");
        let read: String = serde_json::from_str(&document).unwrap();
        assert_eq!(read, hostile);
    }
}
