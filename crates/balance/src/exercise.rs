//! For the fuzzer and its seeds: table files of any text.

use crate::compile::{compile, decompile};
use crate::file;
use crate::table::Table;
use trawl_kernel::layout::balance::BALANCE_LINE;

/// More are not compiled: that takes longer than a fuzzer has.
const COMPILED: usize = 50;

/// A table file: what is accepted compiles, and is read back as it was.
pub fn table_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(mut table) = file::parse(text) else {
        return;
    };
    if table.check().is_err() || table.backends() > COMPILED || table.vips.len() > COMPILED {
        return;
    }
    table
        .number_after(&Table::default())
        .expect("so few numbers");
    let lines = compile(&table).expect("so few rings fit");
    let line = |number: usize| {
        let at = number * BALANCE_LINE;
        lines.get(at..at + BALANCE_LINE).map(<[u8]>::to_vec)
    };
    assert_eq!(decompile(line), Some(table));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fuzzer's seeds, and whatever it once found.
    #[test]
    fn seeds() {
        let root = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fuzz/corpus/balance_table"
        );
        let entries = std::fs::read_dir(root).expect("the seeds are part of the source");
        let mut seeds = 0;
        for entry in entries {
            let bytes = std::fs::read(entry.expect("an entry").path()).expect("a seed");
            (0..=bytes.len()).for_each(|cut| table_file(&bytes[..cut]));
            seeds += 1;
        }
        assert!(seeds > 0);
    }
}
