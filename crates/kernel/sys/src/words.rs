//! Names from outside in text: of interfaces, namespaces, tables, processes, hosts and files. Others choose them, also
//! inside containers.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;

/// Bytes, besides letters and digits of ASCII, that mean nothing to a shell.
const PLAIN: &[u8] = b"-_./:=,%@+";

/// Returns a name as one word of a shell's command line.
pub fn word(name: &str) -> Cow<'_, str> {
    if !name.is_empty() && name.bytes().all(is_plain) {
        return Cow::Borrowed(name);
    }
    if name.chars().all(|one| matches!(one, ' '..='~')) {
        return Cow::Owned(format!("'{}'", name.replace('\'', "'\\''")));
    }
    let mut quoted = "$'".to_owned();
    for byte in name.bytes() {
        match byte {
            b'\\' | b'\'' => quoted.extend(['\\', byte.into()]),
            b' '..=b'~' => quoted.push(byte.into()),
            // Writing to a String cannot fail.
            _ => drop(write!(quoted, "\\x{byte:02x}")),
        }
    }
    Cow::Owned(quoted + "'")
}

/// Returns a path as one word of a shell's command line.
pub fn path_word(path: &Path) -> String {
    word(&path.to_string_lossy()).into_owned()
}

/// Returns a name for a sentence: characters that control a terminal, the line or the direction of the text are escaped
/// as `\u001b`, which JSON understands too.
pub fn shown(name: &str) -> Cow<'_, str> {
    if !name.chars().any(steers) {
        return Cow::Borrowed(name);
    }
    let mut text = String::with_capacity(name.len());
    for letter in name.chars() {
        if steers(letter) {
            let _ = write!(text, "\\u{:04x}", u32::from(letter));
        } else {
            text.push(letter)
        }
    }
    Cow::Owned(text)
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || PLAIN.contains(&byte)
}

fn steers(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const HOSTILE: [&str; 10] = [
        "",
        "eth0",
        "x;touch P;#",
        "$(touch P)",
        "`touch P`",
        "it's \"q\" \\ *",
        "a\nb\tc",
        "\u{1b}[2J",
        "~root",
        "über\u{202e}",
    ];

    #[test]
    fn word_reaches_a_command_unchanged() {
        for name in HOSTILE {
            let script = format!("printf %s {}", word(name));
            let output = Command::new("bash").args(["-c", &script]).output();
            let printed = output.expect("bash runs").stdout;
            assert_eq!(String::from_utf8_lossy(&printed), name, "{script}");
            assert!(!word(name).contains(['\n', '\u{1b}']));
        }
        assert!(matches!(word("ns:eth0.5"), Cow::Borrowed("ns:eth0.5")));
    }

    #[test]
    fn shown_name_stays_on_its_line() {
        for name in HOSTILE {
            assert!(!shown(name).chars().any(steers));
        }
        assert_eq!(shown("a\nb"), "a\\u000ab");
        assert!(matches!(shown("x;touch P"), Cow::Borrowed(_)));
    }
}
