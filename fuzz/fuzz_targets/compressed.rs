//! Files compressed by gzip, zstd or lz4, and the capture file inside.
#![no_main]

#[path = "../exercise/capture.rs"]
mod capture;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| capture::compressed_file(bytes));
