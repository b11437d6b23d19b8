//! The printer and the summary on any packet; the first byte selects link type and options.
#![no_main]

#[path = "../exercise/capture.rs"]
mod capture;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| capture::packet(bytes));
