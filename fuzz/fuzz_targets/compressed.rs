//! Files that say they are compressed, by gzip, zstd or lz4, and the capture file inside.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| trawl_view::exercise::compressed_file(bytes));
