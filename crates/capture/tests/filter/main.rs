//! Filters in the kernel against libpcap: for each expression and packet, libpcap's own compiler
//! and interpreter, trawl's interpreter, and trawl's eBPF run by the kernel at XDP, at tc and on a
//! copy of the packet's beginning must agree; and what the kernel's classic checker takes, its
//! verifier takes too once it is lowered.
//!
//! `TRAWL_ORACLE_PAIRS` sets how many pairs of program and packet are tried, 1,000,000 by default.

#[path = "../../../filter/tests/all/support/mod.rs"]
#[allow(
    dead_code,
    reason = "shared with the filter crate's own tests, which use all of it"
)]
mod support;

mod agreement;
mod capture;
mod kernel;
mod long;
mod long_agreement;
mod random;
mod warnings;
