//! Connections in capture files.
#![no_main]

#[path = "../exercise/connections.rs"]
mod connections;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| connections::capture_file(bytes));
