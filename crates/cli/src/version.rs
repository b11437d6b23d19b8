//! `trawl --version`: with the versions of what is loaded or run beside the binary.

use std::process::ExitCode;

use trawl_io::dpdk::{self, Presence};
use trawl_io::libpcap::Library;
use trawl_sys::Result;

use crate::terminal::write_out;

/// `-V` prints the first line alone.
pub fn run() -> Result<ExitCode> {
    let text = format!(
        "trawl {}\n{}\n{}\n",
        env!("CARGO_PKG_VERSION"),
        libpcap(),
        dpdk_helper()
    );
    write_out(&text).map(|()| ExitCode::SUCCESS)
}

fn libpcap() -> String {
    match Library::load(None) {
        Ok(library) => library.version().to_owned(),
        Err(_) => "libpcap: not installed".to_owned(),
    }
}

fn dpdk_helper() -> String {
    let what = match dpdk::presence() {
        Presence::Ready { program, dpdk } => format!("{dpdk} ({})", program.display()),
        Presence::NotThere => "not there (make build-dpdk)".to_owned(),
        Presence::DoesNotRun { program, .. } => {
            format!(
                "does not run (trawl doctor says why): {}",
                program.display()
            )
        }
        Presence::OtherBuild { program } => {
            format!(
                "of another build of trawl (make build-dpdk): {}",
                program.display()
            )
        }
    };
    format!("{}: {what}", dpdk::PROGRAM)
}
