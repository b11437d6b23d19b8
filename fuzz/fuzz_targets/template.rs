//! The generator's template files, and the frames that they describe.
#![no_main]

#[path = "../exercise/template.rs"]
mod exercise;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| exercise::file(bytes));
