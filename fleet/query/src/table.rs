//! Rows as a table for people. The first rows set the widths of the columns, so that few rows are in memory.

use std::fmt::Write as _;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// Number of rows that set the widths of the columns. A longer value in a later row moves the rest of its row.
const MEASURED: usize = 10_000;

type Row = Vec<String>;

/// A table being written.
pub struct Table {
    widths: Vec<usize>,
    /// Names of the columns, and the rows that set the widths.
    first: Vec<Row>,
    is_begun: bool,
}

impl Table {
    pub fn new(schema: &Schema) -> Self {
        let mut table = Self { widths: vec![0; schema.fields().len()], first: Vec::new(), is_begun: false };
        table.measure(schema.fields().iter().map(|field| printable(field.name())).collect());
        table
    }

    fn measure(&mut self, row: Row) {
        for (width, value) in self.widths.iter_mut().zip(&row) {
            *width = value.chars().count().max(*width);
        }
        self.first.push(row);
    }

    /// Adds rows; returns the text that is complete.
    pub fn add(&mut self, batch: &RecordBatch) -> Result<String, ArrowError> {
        let options = FormatOptions::default();
        let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let mut text = String::new();
        for number in 0..batch.num_rows() {
            let values = columns.iter().map(|column| Ok(printable(&column.value(number).try_to_string()?)));
            let row = values.collect::<Result<Row, ArrowError>>()?;
            if self.first.len() <= MEASURED && !self.is_begun {
                self.measure(row);
            } else {
                self.begin(&mut text);
                self.line(&row, &mut text);
            }
        }
        Ok(text)
    }

    /// Writes the names of the columns and the first rows, once.
    fn begin(&mut self, text: &mut String) {
        if std::mem::replace(&mut self.is_begun, true) {
            return;
        }
        self.border(text);
        for (number, row) in std::mem::take(&mut self.first).iter().enumerate() {
            self.line(row, text);
            if number == 0 {
                self.border(text);
            }
        }
    }

    /// Returns the rest of the text.
    pub fn end(mut self) -> String {
        let mut text = String::new();
        self.begin(&mut text);
        self.border(&mut text);
        text
    }

    fn border(&self, text: &mut String) {
        self.widths.iter().for_each(|width| text.extend(["+", &"-".repeat(width + 2)]));
        text.push_str("+\n");
    }

    fn line(&self, row: &[String], text: &mut String) {
        for (width, value) in self.widths.iter().zip(row) {
            // Writing to a String cannot fail.
            let _ = write!(text, "| {value:<width$} ");
        }
        text.push_str("|\n");
    }
}

/// Escapes the characters that control a terminal: names in packets may have them.
fn printable(value: &str) -> String {
    if !value.contains(char::is_control) {
        return value.to_owned();
    }
    let escaped =
        |letter: char| if letter.is_control() { letter.escape_default().collect() } else { letter.to_string() };
    value.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Int32Array, StringArray};

    use super::*;

    fn batch(values: &[(Option<&str>, i32)]) -> RecordBatch {
        let texts: StringArray = values.iter().map(|(text, _)| *text).collect();
        let numbers: Int32Array = values.iter().map(|(_, number)| Some(*number)).collect();
        let columns = [("host", Arc::new(texts) as ArrayRef), ("n", Arc::new(numbers))];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).expect("columns")
    }

    #[test]
    fn columns_are_as_wide_as_their_values() {
        let rows = batch(&[(Some("a"), 1), (None, 22), (Some("\u{1b}[2J\n"), 3)]);
        let mut table = Table::new(&rows.schema());
        let mut text = table.add(&rows).expect("rows");
        assert_eq!(text, "");
        text.push_str(&table.end());
        let expected = "\
            +-------------+----+\n\
            | host        | n  |\n\
            +-------------+----+\n\
            | a           | 1  |\n\
            |             | 22 |\n\
            | \\u{1b}[2J\\n | 3  |\n\
            +-------------+----+\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn later_rows_are_written_at_once() {
        let one = batch(&[(Some("a"), 1)]);
        let mut table = Table::new(&one.schema());
        for _ in 0..MEASURED {
            assert_eq!(table.add(&one).expect("a row"), "");
        }
        let lines = |text: &str| text.lines().count();
        assert_eq!(lines(&table.add(&one).expect("a row")), MEASURED + 4);
        let longer = batch(&[(Some("longer"), 2)]);
        assert_eq!(table.add(&longer).expect("a row"), "| longer | 2 |\n");
        assert_eq!(table.end(), "+------+---+\n");
    }

    #[test]
    fn table_without_rows_has_the_names() {
        let none = batch(&[]);
        assert_eq!(Table::new(&none.schema()).end(), "+------+---+\n| host | n |\n+------+---+\n+------+---+\n");
    }
}
