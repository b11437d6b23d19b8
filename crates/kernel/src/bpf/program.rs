//! Programs: loading finished instructions, and opening ones that exist.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{c_name, check, opts};
use crate::{Error, Result};

pub const XDP: u32 = libbpf_sys::BPF_PROG_TYPE_XDP;
pub const SCHED_CLS: u32 = libbpf_sys::BPF_PROG_TYPE_SCHED_CLS;
pub const SOCKET_FILTER: u32 = libbpf_sys::BPF_PROG_TYPE_SOCKET_FILTER;
pub const ATTACH_XDP: u32 = libbpf_sys::BPF_XDP;
pub const ATTACH_TCX_INGRESS: u32 = libbpf_sys::BPF_TCX_INGRESS;
pub const ATTACH_TCX_EGRESS: u32 = libbpf_sys::BPF_TCX_EGRESS;
/// The program copes with packets that are not in one piece.
pub const HAS_FRAGS: u32 = 1 << 5;
/// The program runs on one device only, and may ask it for its metadata.
pub const DEVICE_BOUND: u32 = 1 << 6;

/// Everything a load call needs beside the instructions.
#[derive(Clone, Debug)]
pub struct LoadOptions<'a> {
    pub name: &'a str,
    pub kind: u32,
    pub license: &'a str,
    pub expected_attach_type: u32,
    pub flags: u32,
    /// For programs bound to one device.
    pub ifindex: u32,
}

const LOG_SIZE: usize = 4 << 20;

pub fn load(instructions: &[libbpf_sys::bpf_insn], options: &LoadOptions<'_>) -> Result<OwnedFd> {
    match try_load(instructions, options, None) {
        Ok(fd) => Ok(fd),
        Err(error) => {
            let mut log = vec![0u8; LOG_SIZE];
            let retried = try_load(instructions, options, Some(&mut log));
            retried.map_err(|_| explain(options.name, error, &log))
        }
    }
}

fn try_load(
    instructions: &[libbpf_sys::bpf_insn],
    options: &LoadOptions<'_>,
    log: Option<&mut Vec<u8>>,
) -> io::Result<OwnedFd> {
    let LoadOptions {
        name,
        kind,
        license,
        expected_attach_type,
        flags,
        ifindex,
    } = *options;
    let mut opts = opts!(libbpf_sys::bpf_prog_load_opts);
    opts.expected_attach_type = expected_attach_type;
    opts.prog_flags = flags;
    opts.prog_ifindex = ifindex;
    if let Some(log) = log {
        opts.log_level = 1;
        opts.log_size = log.len() as u32;
        opts.log_buf = log.as_mut_ptr().cast();
    }
    let name = c_name(name);
    let license = CString::new(license).unwrap_or_default();
    // SAFETY: all pointers passed stay alive for the call, and the counts are those of the slices.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            kind,
            name.as_ptr(),
            license.as_ptr(),
            instructions.as_ptr(),
            instructions.len() as libbpf_sys::size_t,
            &mut opts,
        )
    };
    // SAFETY: a non-negative result is a descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(check(fd)?) })
}

/// The verifier's log ends with the reason; the line before its statistics is the one to show.
fn explain(name: &str, error: io::Error, log: &[u8]) -> Error {
    // Where the verifier takes lines of its log back it leaves zeroes, and real text behind them.
    let text = String::from_utf8_lossy(log).replace('\0', "");
    let reason = text.lines().rfind(|l| {
        !l.trim().is_empty() && !l.starts_with("processed ") && !l.starts_with("verification time")
    });
    let os = Error::os(format!("cannot load the program {name}"), error);
    match (os.errno(), reason) {
        (Some(libc::EPERM), None) => {
            os.mend("run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON")
        }
        (_, Some(reason)) => Error::failed(
            format!("cannot load the program {name}"),
            format!("the verifier says: {reason}"),
        ),
        _ => os,
    }
}

/// Opens a program that exists in the kernel.
pub fn open_by_id(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes a plain number.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
    // SAFETY: a non-negative result is a descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(check(fd)?) })
}

/// The identifier of an open program.
pub fn id(program: &OwnedFd) -> io::Result<u32> {
    use std::os::fd::AsFd;
    super::info::program(program.as_fd()).map(|info| info.id)
}

/// Binds a map to a program, so that the map lives as long as the program does.
pub fn bind_map(program: &OwnedFd, map: &OwnedFd) -> io::Result<()> {
    let opts = opts!(libbpf_sys::bpf_prog_bind_opts);
    // SAFETY: both descriptors are open, the options live for the call.
    check(unsafe { libbpf_sys::bpf_prog_bind_map(program.as_raw_fd(), map.as_raw_fd(), &opts) })
        .map(drop)
}
