//! BPF objects: maps, programs and links, by libbpf and its raw calls.

pub mod addresses;
pub mod arena;
pub mod classic_check;
pub mod deadline;
pub mod functions;
pub mod info;
pub mod kernel_types;
pub mod link;
pub mod loader;
pub mod map;
pub mod object;
pub mod prepared;
pub mod program;
pub mod shared_array;
pub mod statistics;
pub mod table;
pub mod test_run;
pub mod verifier_log;
pub mod xdp_events;

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use trawl_ebpf::Insn;

/// libbpf reports failures as negative errno values.
pub(crate) fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::from_raw_os_error(-result))
    } else {
        Ok(result)
    }
}

/// The descriptor that a libbpf call returned, or its negative errno as an error.
pub(crate) fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call succeeded, so this is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(check(fd)?) })
}

/// Loads a program, with room for the verifier's log at a level if that is wanted.
pub(crate) fn load_program(
    (kind, name, license): (u32, &str, &str),
    instructions: &[Insn],
    opts: &mut libbpf_sys::bpf_prog_load_opts,
    log: Option<(&mut [u8], u32)>,
) -> io::Result<OwnedFd> {
    if let Some((log, level)) = log {
        opts.log_level = level;
        opts.log_size = log.len() as u32;
        opts.log_buf = log.as_mut_ptr().cast();
    }
    let (name, license) = (c_name(name), CString::new(license)?);
    // SAFETY: an Insn has the layout of struct bpf_insn, and the count is the slice's own; what the options point to is the
    // caller's for the length of the call, as are log, name and license.
    owned(unsafe {
        libbpf_sys::bpf_prog_load(
            kind,
            name.as_ptr(),
            license.as_ptr(),
            instructions.as_ptr().cast(),
            instructions.len() as libbpf_sys::size_t,
            opts,
        )
    })
}

/// Kernel names are limited to 15 bytes and plain characters.
fn c_name(name: &str) -> CString {
    let plain: Vec<u8> = name
        .bytes()
        .filter(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.'))
        .take(15)
        .collect();
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
