//! Names in the payload of any packet; the first byte selects the protocol and the port.
#![no_main]

#[path = "../exercise/capture.rs"]
mod capture;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| capture::names(bytes));
