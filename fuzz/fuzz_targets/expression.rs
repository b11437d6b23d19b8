//! Filter expressions, valid and not.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    trawl_io::libpcap::compile_filters();
    trawl_filter::exercise::expression(bytes);
});
