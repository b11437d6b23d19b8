//! The stream reader on any bytes: pcapng and pcap, told apart by their start.
#![no_main]

#[path = "../exercise/capture.rs"]
mod capture;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| capture::capture_file(bytes));
