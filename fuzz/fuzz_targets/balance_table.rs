//! The load balancer's table files.
#![no_main]

#[path = "../exercise/balance_table.rs"]
mod exercise;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| exercise::table_file(bytes));
