//! A part of an answer: the first rows of CSV, or the first lines.

use std::io::{self, BufRead, BufReader, Read};

use serde::Serialize;

/// Maximum number of bytes of an answer on the page.
const LARGEST: usize = 8 << 20;

/// Rows of an answer.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rows {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Places of the rows in their order; empty without an order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cursors: Vec<String>,
    /// True if the answer has further rows.
    pub more: bool,
}

impl Rows {
    /// Reads the names of the columns, and at most this number of rows.
    pub fn read(from: impl Read, most: usize) -> io::Result<Self> {
        let mut table = Self::default();
        let mut record = Record::default();
        let mut size = 0;
        for byte in BufReader::new(from).bytes() {
            size += 1;
            let Some(row) = record.add(byte?) else {
                if size > LARGEST {
                    table.more = true;
                    return Ok(table);
                }
                continue;
            };
            if table.columns.is_empty() {
                table.columns = row;
            } else if table.rows.len() < most {
                table.rows.push(row);
            } else {
                table.more = true;
                return Ok(table);
            }
        }
        Ok(table)
    }
}

/// A row of CSV while it is read.
#[derive(Debug, Default)]
struct Record {
    fields: Vec<String>,
    field: Vec<u8>,
    /// Set within quotes.
    is_quoted: bool,
    /// Set after a quote within quotes, which ends them unless another quote follows.
    is_open: bool,
}

impl Record {
    /// Adds a byte; returns the row at its end.
    fn add(&mut self, byte: u8) -> Option<Vec<String>> {
        match byte {
            b'"' if self.is_quoted => {
                if self.is_open {
                    self.field.push(b'"');
                }
                self.is_open = !self.is_open;
            }
            b'"' if self.field.is_empty() => self.is_quoted = true,
            b',' if !self.is_quoted || self.is_open => self.end_field(),
            b'\n' if !self.is_quoted || self.is_open => {
                self.end_field();
                return Some(std::mem::take(&mut self.fields));
            }
            _ => self.field.push(byte),
        }
        None
    }

    fn end_field(&mut self) {
        let field = std::mem::take(&mut self.field);
        self.fields.push(String::from_utf8_lossy(&field).into_owned());
        (self.is_quoted, self.is_open) = (false, false);
    }
}

/// Lines of an answer.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lines {
    pub lines: Vec<String>,
    /// True if the answer has further lines.
    pub more: bool,
}

impl Lines {
    /// Reads at most `LARGEST` bytes.
    pub fn read(from: impl Read) -> io::Result<Self> {
        let mut from = BufReader::new(from.take(LARGEST as u64));
        let mut lines = Vec::new();
        let mut line = Vec::new();
        let mut size = 0;
        while from.read_until(b'\n', &mut line)? > 0 {
            size += line.len();
            lines.push(String::from_utf8_lossy(line.trim_ascii_end()).into_owned());
            line.clear();
        }
        Ok(Self { lines, more: size == LARGEST })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str, most: usize) -> Rows {
        Rows::read(text.as_bytes(), most).expect("text")
    }

    #[test]
    fn fields_may_have_commas_quotes_and_lines() {
        let text = "a,b\n1,\"x,\"\"y\"\"\nz\"\n,\n\"\",é\n";
        let expected = [["1", "x,\"y\"\nz"], ["", ""], ["", "é"]];
        let Rows { columns, rows, more, .. } = rows(text, 10);
        assert_eq!((columns, more), (vec!["a".to_owned(), "b".to_owned()], false));
        assert_eq!(rows, expected);
    }

    #[test]
    fn rows_and_bytes_are_limited() {
        let text = "a\n1\n2\n3\n";
        assert!(!rows(text, 3).more);
        let two = rows(text, 2);
        assert_eq!((two.rows.len(), two.more), (2, true));
        let endless = Rows::read(io::repeat(b'x'), 2).expect("text");
        assert_eq!((endless.rows.len(), endless.more), (0, true));
        let lines = Lines::read(io::repeat(b'\n')).expect("text");
        assert_eq!((lines.lines.len(), lines.more), (LARGEST, true));
    }
}
