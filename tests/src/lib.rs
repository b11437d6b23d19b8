//! What the end-to-end tests stand on: a lab for each test, the real binary started and stopped, its account read,
//! and other people's tools as witnesses.

pub mod binary;
pub mod capture;
pub mod frames;
pub mod lab;
pub mod pcapng;
pub mod running;
pub mod summary;
pub mod tiny;
pub mod turn;
pub mod wait;
pub mod witness;

pub use capture::{Capture, Finished, trawl};
pub use lab::Lab;
pub use running::{Done, Running};
pub use summary::Summary;
pub use wait::wait_until;

use std::io::Write;

/// Says that a test cannot run here, past the capture of output by the test runner: a skip that nobody sees is as
/// bad as a test that passes without testing.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED: {name}: {reason}");
}

/// Whether this process is root; says that the test is skipped where it is not.
pub fn root_or_skip() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("it takes root");
    }
    root
}
