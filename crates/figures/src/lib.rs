//! Figures of this machine for live views and metrics: counters of interfaces and programs, losses, verdicts, redirects,
//! and the traffic and the connections of processes.

pub mod connections;
pub mod counters;
pub mod losses;
mod notice;
pub mod processes;
pub mod rates;
pub mod redirects;
pub mod series;
mod totals;
pub mod verdicts;

use std::os::fd::OwnedFd;

pub use counters::{Counters, NamespaceInterfaces};
pub use notice::{Notice, OnNotice};

/// Makes the kernel measure the run time of programs until the result is dropped; `None` if it refuses.
pub fn measure_run_times() -> Option<OwnedFd> {
    trawl_bpf::info::enable_statistics().ok()
}
