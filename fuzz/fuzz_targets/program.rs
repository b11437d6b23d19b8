//! Programs in the form of `tcpdump -ddd`, and packets that they are run on.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| trawl_filter::exercise::program(bytes));
