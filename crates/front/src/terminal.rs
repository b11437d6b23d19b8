//! The terminal: results on standard output, messages on standard error, so that results can go through a pipe.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use trawl_sys::files::outlet::Patient;
use trawl_sys::{Error, Result, clock, keyboard};
use trawl_view::print::{PrintOptions, Printer, Timestamp};
use trawl_view::text;

/// Writes text or JSON to standard output. It may contain names from outside, so characters that control a terminal are
/// escaped. A reader that closed the pipe is not an error.
pub fn write_out(text: &str) -> Result<()> {
    write_control(&printable(text))
}

/// Writes text that controls the terminal, otherwise like [`write_out`].
pub fn write_control(text: &str) -> Result<()> {
    write_to_reader(text).map(drop)
}

/// Writes one of many outputs, like [`write_out`]; returns false once the reader has closed the pipe.
pub fn write_to_reader(text: &str) -> Result<bool> {
    let mut out = Patient(io::stdout().lock());
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Error::os("cannot write to standard output", e)),
    }
}

/// Folds lines for people to the terminal's width: longer ones are continued below the beginning of their last column.
pub fn folded(text: &str) -> String {
    if stdout_is_terminal() { folded_at(text, window().0) } else { text.to_owned() }
}

/// Folds lines for people to the terminal's width, and to 80 columns where it is not known, as in a pipe.
pub fn wrapped(text: &str) -> String {
    let columns = if stdout_is_terminal() { window().0 } else { 80 };
    folded_at(text, columns)
}

fn folded_at(text: &str, columns: usize) -> String {
    text.split_inclusive('\n')
        .map(|line| if width(line.trim_end()) > columns { folded_line(line, columns) } else { line.to_owned() })
        .collect()
}

fn folded_line(line: &str, columns: usize) -> String {
    let indent = continued_at(line, columns);
    let mut folded = String::new();
    let mut at = 0;
    for word in line.trim_end().split_inclusive(' ') {
        if at > indent && at + width(word.trim_end()) > columns {
            folded.truncate(folded.trim_end().len());
            folded.push('\n');
            folded.push_str(&" ".repeat(indent));
            at = indent;
        }
        folded.push_str(word);
        at += width(word);
    }
    folded.push_str(&line[line.trim_end().len()..]);
    folded
}

/// Returns the start column of the line's last part: after two spaces, and after the colon of a line's first word.
fn continued_at(line: &str, columns: usize) -> usize {
    let leading = line.len() - line.trim_start().len();
    let gaps = line.match_indices("  ").map(|(at, _)| {
        let after = line[at..].trim_start();
        let is_first = line[..at].trim().is_empty();
        let label = after.split(' ').next().filter(|word| is_first && word.ends_with(':'));
        width(&line[..line.len() - after.len()]) + label.map_or(0, |label| width(label) + 1)
    });
    gaps.filter(|gap| *gap < columns * 2 / 3).max().unwrap_or(leading + 2).min(columns / 2)
}

/// Returns the width of text in columns, without colours.
fn width(text: &str) -> usize {
    let mut parts = text.split('\x1b');
    let plain = parts.next().map_or(0, |part| part.chars().count());
    let coloured = parts.map(|part| part.split_once('m').map_or(0, |(_, rest)| rest.chars().count()));
    plain + coloured.sum::<usize>()
}

/// Returns true on a terminal, unless NO_COLOR is set (see no-color.org).
pub fn colours_wanted() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Escapes control characters other than line ends and tabs in a form that JSON also uses: names of interfaces and
/// texts in files may contain any.
pub fn printable(text: &str) -> String {
    text::printable(text).into_owned()
}

/// Prints a message with trawl's name in front. A closed standard error does not end the command.
pub fn say(text: &str) {
    say_line(&format!("trawl: {}", printable(text)));
}

/// Writes a line to standard error in one piece, so that no line of another process gets into it. A closed standard
/// error does not end the command.
pub(crate) fn say_line(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Prints a line that the next one overwrites, for live statistics; only on a terminal.
pub fn show_over(text: &str) {
    let (columns, _) = window();
    let line = fit_parts(&printable(text), columns);
    let _ = write!(std::io::stderr().lock(), "\r\x1b[K{line}");
}

/// Returns the parts of a line, with a comma after each, that leave the last column free: a line that reaches it wraps,
/// and the wrapped part is not overwritten.
fn fit_parts(line: &str, columns: usize) -> String {
    let most = columns.saturating_sub(1);
    let mut fits = line;
    while fits.chars().count() > most {
        match fits.rsplit_once(", ") {
            Some((before, _)) => fits = before,
            None => return fits.chars().take(most).collect(),
        }
    }
    fits.to_owned()
}

/// Ends a line of [`show_over`], so that further output does not overwrite it.
pub fn end_line() {
    let _ = writeln!(std::io::stderr().lock());
}

pub fn stderr_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

pub fn stdout_is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Returns the part of a text that fits on the terminal, so that it can be erased again, and its number of lines.
pub fn fitted(text: &str) -> (String, usize) {
    let (columns, rows) = window();
    let mut fitted = String::new();
    let lines = text.lines().take(rows.saturating_sub(1).max(1));
    let mut count = 0;
    for line in lines {
        fitted.extend(line.chars().take(columns));
        fitted.push('\n');
        count += 1;
    }
    (fitted, count)
}

/// Returns columns and rows of the terminal, or 80 and 24 if they are unknown.
pub fn window() -> (usize, usize) {
    keyboard::window().unwrap_or((80, 24))
}

/// Returns date and time of day, as in lines of packets.
pub fn date_and_time(ns: u64) -> String {
    let mut printer = Printer::new(PrintOptions {
        timestamp: Timestamp::Date,
        utc_offset: Some(clock::local_offset()),
        ..PrintOptions::default()
    });
    printer.time(ns)
}

/// Returns one frame of a command that repeats its output, with the time of day above it. On a terminal it replaces the
/// previous frame, elsewhere it follows that.
pub fn frame(every: Duration, text: &str) -> String {
    let clear = if stdout_is_terminal() { "\x1b[H\x1b[J" } else { "" };
    let seconds = clock::wall() / 1_000_000_000;
    let local = seconds.saturating_add_signed(clock::utc_offset().into()) % 86_400;
    let (hour, minute, second) = (local / 3600, local / 60 % 60, local % 60);
    format!("{clear}{hour:02}:{minute:02}:{second:02}  every {:.1} s\n{}", every.as_secs_f64(), printable(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_continued_under_their_last_column() {
        let line = "dumpcap         version 1.3.1 loads nothing: build it anew\nshort  line\n";
        let folded = "dumpcap         version 1.3.1\n                loads nothing:\n                build it anew\nshort  line\n";
        assert_eq!(folded_at(line, 32), folded);
        let line = "          fix: \x1b[1mtrawl\x1b[0m xdp status and more words\n";
        let folded = "          fix: \x1b[1mtrawl\x1b[0m xdp status\n               and more words\n";
        assert_eq!(folded_at(line, 32), folded);
        let long = "a-word-that-is-longer-than-the-line-itself\n";
        assert_eq!(folded_at(long, 20), long);
        assert_eq!(folded_at(line, 80), line);
    }

    #[test]
    fn a_line_that_is_overwritten_leaves_the_last_column_free() {
        let line = "12.0 s: 1234567 seen, 0 filtered out, 1234567 recorded, 0 lost, 99 a second, file 9.9 MiB";
        for columns in 1..120 {
            let shown = fit_parts(line, columns);
            assert!(shown.chars().count() < columns.max(1), "{columns}");
            assert!(line.starts_with(&shown));
        }
        assert!(fit_parts(line, 80).ends_with("99 a second"));
        assert_eq!(fit_parts(line, 120), line);
    }
}
