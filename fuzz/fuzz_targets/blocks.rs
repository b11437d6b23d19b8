//! The walk over finished blocks and the options in them, on arbitrary bytes.
#![no_main]

#[path = "../exercise/capture.rs"]
mod capture;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| capture::blocks(bytes));
