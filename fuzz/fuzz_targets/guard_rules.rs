//! The guard's rule files, and the values in them.
#![no_main]

#[path = "../exercise/guard_rules.rs"]
mod exercise;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| exercise::rule_file(bytes));
