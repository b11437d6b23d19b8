//! Filters in the kernel against libpcap: for each expression and packet, libpcap's own compiler and interpreter,
//! trawl's interpreter, and trawl's eBPF run by the kernel at XDP, at tc and on a copy of the packet's beginning must
//! agree; and the verifier must accept every lowered program that the kernel's classic checker accepts.
//!
//! `TRAWL_ORACLE_PAIRS` sets the number of pairs of program and packet, 1,000,000 by default.

#[path = "../../../filter/tests/all/support/mod.rs"]
#[allow(dead_code, reason = "shared with the filter crate's own tests, which use all of it")]
mod support;

mod agreement;
mod capture;
mod kernel;
mod long;
mod long_agreement;
mod random;
mod warnings;
