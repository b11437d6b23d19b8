//! The bytes of a packet under its line.

use super::DumpForm;

const BYTES_A_LINE: usize = 16;
/// Width of eight groups of a space and four digits.
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

/// Appends rows that begin with `before`, which has the line end.
pub fn hex(out: &mut String, before: &str, bytes: &[u8]) {
    rows(out, before, bytes, false);
}

fn rows(out: &mut String, before: &str, bytes: &[u8], with_ascii: bool) {
    for (row, chunk) in bytes.chunks(BYTES_A_LINE).enumerate() {
        out.push_str(before);
        out.push_str("0x");
        digits(out, (row * BYTES_A_LINE) as u64, 4);
        out.push_str(": ");
        let start = out.len();
        for pair in chunk.chunks(2) {
            out.push(' ');
            pair.iter().for_each(|one| byte(out, *one));
        }
        if with_ascii {
            let width = out.len() - start;
            out.extend(std::iter::repeat_n(' ', HEX_WIDTH - width + 2));
            out.extend(chunk.iter().map(|byte| visible(*byte)));
        }
    }
}

/// Appends a number in hexadecimal, padded with zeros to `least` digits.
pub fn digits(out: &mut String, number: u64, least: usize) {
    let needed = (64 - number.leading_zeros() as usize).div_ceil(4);
    for at in (0..needed.max(least)).rev() {
        out.push(digit((number >> (4 * at)) as u8));
    }
}

/// Appends two hexadecimal digits.
pub fn byte(out: &mut String, byte: u8) {
    out.push(digit(byte >> 4));
    out.push(digit(byte));
}

fn digit(value: u8) -> char {
    char::from(b"0123456789abcdef"[usize::from(value & 0xf)])
}

fn visible(byte: u8) -> char {
    if byte.is_ascii_graphic() { char::from(byte) } else { '.' }
}

/// Appends text as it is, without the carriage returns that end a line.
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
