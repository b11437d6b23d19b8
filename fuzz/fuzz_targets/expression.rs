//! Filter expressions, valid and invalid.
#![no_main]

#[path = "../exercise/expression.rs"]
#[allow(dead_code, reason = "two targets share them")]
mod exercise;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    trawl_io::libpcap::compile_filters();
    exercise::expression(bytes);
});
