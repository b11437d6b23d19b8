//! Words to the person at the terminal: on standard error, so that output can go through a pipe.

use std::io::{IsTerminal, Write};

/// One line with trawl's name in front. A closed standard error is no reason to stop.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "trawl: {text}");
}

/// A line that the next one overwrites, for figures that change; only on a terminal.
pub fn show_over(text: &str) {
    let _ = write!(std::io::stderr().lock(), "\r\x1b[K{text}");
}

/// Ends a line that was to be overwritten.
pub fn end_line() {
    let _ = writeln!(std::io::stderr().lock());
}

pub fn stderr_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

pub fn stdout_is_terminal() -> bool {
    std::io::stdout().is_terminal()
}
