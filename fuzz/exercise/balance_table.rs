//! The load balancer's table files, from any text.

use trawl_balance::compile::{compile, decompile};
use trawl_balance::{Table, file};
use trawl_bpf::layout::balance::BALANCE_LINE;

/// Maximum number of backends to compile. More would be too slow for a fuzzer.
const MAX_COMPILED: usize = 50;

/// Parses a table file. An accepted table compiles, and decompiles to the same table.
pub fn table_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(mut table) = file::parse(text) else {
        return;
    };
    if table.check().is_err() || table.backends() > MAX_COMPILED || table.vips.len() > MAX_COMPILED {
        return;
    }
    table.number_after(&Table::default()).expect("so few numbers");
    let lines = compile(&table).expect("so few rings fit");
    let line = |number: usize| {
        let at = number * BALANCE_LINE;
        lines.get(at..at + BALANCE_LINE).map(<[u8]>::to_vec)
    };
    assert_eq!(decompile(line), Some(table));
}
