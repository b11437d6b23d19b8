//! Changes to replayed frames, on arbitrary bytes.
#![no_main]

#[path = "../exercise/rewrite.rs"]
mod exercise;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| exercise::exercise(bytes));
