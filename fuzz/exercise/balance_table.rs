//! The load balancer's table files, of any text.

use trawl_balance::compile::{compile, decompile};
use trawl_balance::{Table, file};
use trawl_bpf::layout::balance::BALANCE_LINE;

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
