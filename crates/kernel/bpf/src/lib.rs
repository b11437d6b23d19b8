//! BPF through libbpf and its raw calls: objects, maps, programs and links, pins, and probes of this kernel's features.

pub mod adapt;
pub mod arena;
pub mod bpffs;
pub mod classic_check;
pub mod deadline;
pub mod doorbell;
pub mod droppers;
mod entry;
pub mod functions;
pub mod info;
pub mod kallsyms;
pub mod kernel;
pub mod kernel_types;
pub mod layout;
pub mod link;
pub mod loader;
pub mod loading;
pub mod map;
pub mod object;
pub mod owners;
pub mod prepared;
pub mod probe;
pub mod process_traffic;
pub mod process_watch;
pub mod program;
pub mod redirect_events;
pub mod section;
pub mod slow_watch;
pub mod table;
mod tag;
pub mod test_run;
pub(crate) mod typed_reads;
mod types;
pub mod verifier_log;
pub mod xdp_events;

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Converts libbpf's results, in which failures are negative errno values.
pub(crate) fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

/// Returns the descriptor that a libbpf call returned, or its negative errno as an error.
pub(crate) fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call succeeded, so this is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(check(fd)?) })
}

/// Returns a name for the kernel, limited to 15 bytes and plain characters.
fn c_name(name: &str) -> CString {
    let plain: Vec<u8> =
        name.bytes().filter(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.')).take(15).collect();
    CString::new(plain).unwrap_or_default()
}

/// The options structs of libbpf start with their own size and are otherwise zero.
macro_rules! opts {
    ($kind:ty) => {{
        // SAFETY: libbpf's options are plain C data for which all zeroes means "not given".
        let mut opts: $kind = unsafe { std::mem::zeroed() };
        opts.sz = size_of::<$kind>() as libbpf_sys::size_t;
        opts
    }};
}
pub(crate) use opts;
