//! The kernel's count of each program's runs and of the time they take, which is off unless somebody asks for it.

use std::io;
use std::os::fd::OwnedFd;

use super::owned;

const SYSCTL: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Whether it is on for everybody (`kernel.bpf_stats_enabled`).
pub fn are_on() -> bool {
    std::fs::read_to_string(SYSCTL).is_ok_and(|text| text.trim() == "1")
}

/// Turns it on for as long as the descriptor is open.
pub fn enable() -> io::Result<OwnedFd> {
    // SAFETY: the call takes a number.
    owned(unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) })
}
