//! The stream reader on any bytes: pcapng and pcap, told apart by their start.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| trawl_view::exercise::capture_file(bytes));
