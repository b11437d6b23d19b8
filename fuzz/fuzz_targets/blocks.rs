//! The walk over finished blocks and the options in them, on any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| trawl_view::exercise::blocks(bytes));
