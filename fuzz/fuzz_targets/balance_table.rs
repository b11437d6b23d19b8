//! The load balancer's table files.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| trawl_balance::exercise::table_file(bytes));
