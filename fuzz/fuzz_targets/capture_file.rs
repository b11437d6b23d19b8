//! The stream reader on arbitrary bytes: pcapng and pcap, recognised by their magic.
#![no_main]

#[path = "../exercise/capture.rs"]
mod capture;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| capture::capture_file(bytes));
