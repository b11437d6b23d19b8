//! Changes to replayed frames, on any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| trawl_gen::replay::rewrite::exercise(bytes));
