//! Programs in the form of `tcpdump -ddd`, and packets to run them on.
#![no_main]

#[path = "../exercise/expression.rs"]
#[allow(dead_code, reason = "two targets share them")]
mod exercise;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| exercise::program(bytes));
