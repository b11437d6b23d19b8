//! The bytes of a packet under its line.

use std::fmt::Write;

use super::DumpForm;

const BYTES_A_LINE: usize = 16;
/// Eight groups of a space and four digits.
const HEX_WIDTH: usize = 40;

pub fn print(out: &mut String, form: DumpForm, bytes: &[u8]) {
    match form {
        DumpForm::Hex => hex(out, "\n\t", bytes),
        DumpForm::HexAscii => hex_ascii(out, bytes),
        DumpForm::Ascii => ascii(out, bytes),
    }
}

pub fn hex_ascii(out: &mut String, bytes: &[u8]) {
    rows(out, "\n\t", bytes, true);
}

/// Rows that begin with `before`, which has the line end.
pub fn hex(out: &mut String, before: &str, bytes: &[u8]) {
    rows(out, before, bytes, false);
}

fn rows(out: &mut String, before: &str, bytes: &[u8], with_ascii: bool) {
    for (row, chunk) in bytes.chunks(BYTES_A_LINE).enumerate() {
        let _ = write!(out, "{before}0x{:04x}: ", row * BYTES_A_LINE);
        let start = out.len();
        for pair in chunk.chunks(2) {
            out.push(' ');
            for byte in pair {
                let _ = write!(out, "{byte:02x}");
            }
        }
        if with_ascii {
            let width = out.len() - start;
            out.extend(std::iter::repeat_n(' ', HEX_WIDTH - width + 2));
            out.extend(chunk.iter().map(|byte| visible(*byte)));
        }
    }
}

fn visible(byte: u8) -> char {
    if byte.is_ascii_graphic() {
        char::from(byte)
    } else {
        '.'
    }
}

/// Text as it is, without the carriage returns that end a line.
fn ascii(out: &mut String, bytes: &[u8]) {
    out.push('\n');
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'\r' if bytes.get(at + 1).is_none_or(|next| *next == b'\n') => {}
            b'\t' | b'\n' | b' ' => out.push(char::from(*byte)),
            _ => out.push(visible(*byte)),
        }
    }
}
