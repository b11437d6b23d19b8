//! Versions of what a capture uses besides the kernel.

use trawl_io::dpdk::{self, Presence};
use trawl_io::libpcap::Library;

/// Returns the version of the libpcap that captures use.
pub fn of_libpcap() -> String {
    match Library::load(None) {
        Ok(library) => library.version().to_owned(),
        Err(_) => "libpcap: not installed".to_owned(),
    }
}

/// Returns the version of the helper for the dpdk tap, or why it cannot be used.
pub fn of_dpdk_helper() -> String {
    let what = match dpdk::presence() {
        Presence::Ready { program, dpdk } => format!("{dpdk} ({})", program.display()),
        Presence::NotThere => "missing (make build-dpdk)".to_owned(),
        Presence::DoesNotRun { program, .. } => {
            format!("does not run (trawl doctor says why): {}", program.display())
        }
        Presence::OtherBuild { program } => {
            format!("belongs to another build of trawl (make build-dpdk): {}", program.display())
        }
    };
    format!("{}: {what}", dpdk::PROGRAM)
}
