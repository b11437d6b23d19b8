//! The guard's rule files, and the values in them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| trawl_guard::exercise::rule_file(bytes));
