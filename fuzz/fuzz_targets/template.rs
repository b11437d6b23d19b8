//! The generator's template files, and the frames that they ask for.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| trawl_gen::template::exercise::file(bytes));
