//! Programs: loading finished instructions, and opening existing ones.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use trawl_ebpf::{Insn, op};
use trawl_sys::error::Refusal;
use trawl_sys::{Error, Result};

use super::{c_name, check, deadline, opts, owned, typed_reads, verifier_log};
use crate::probe::{self, Capability, lack_of};

pub const XDP: u32 = libbpf_sys::BPF_PROG_TYPE_XDP;
pub const SCHED_CLS: u32 = libbpf_sys::BPF_PROG_TYPE_SCHED_CLS;
pub const CGROUP_SKB: u32 = libbpf_sys::BPF_PROG_TYPE_CGROUP_SKB;
pub const SOCKET_FILTER: u32 = libbpf_sys::BPF_PROG_TYPE_SOCKET_FILTER;
pub const RAW_TRACEPOINT: u32 = libbpf_sys::BPF_PROG_TYPE_RAW_TRACEPOINT;
/// Run by a system call, not by an event.
pub const SYSCALL: u32 = libbpf_sys::BPF_PROG_TYPE_SYSCALL;
pub const TRACING: u32 = libbpf_sys::BPF_PROG_TYPE_TRACING;
/// In place of a function of another program.
pub const EXTENSION: u32 = libbpf_sys::BPF_PROG_TYPE_EXT;
pub const ATTACH_FENTRY: u32 = libbpf_sys::BPF_TRACE_FENTRY;
pub const ATTACH_FEXIT: u32 = libbpf_sys::BPF_TRACE_FEXIT;
/// At a tracepoint of the kernel, with the types of its arguments.
pub const ATTACH_TYPED_TRACEPOINT: u32 = libbpf_sys::BPF_TRACE_RAW_TP;
/// At the objects of an iterator.
pub const ATTACH_ITERATOR: u32 = libbpf_sys::BPF_TRACE_ITER;
pub const ATTACH_XDP: u32 = libbpf_sys::BPF_XDP;
pub const ATTACH_TCX_INGRESS: u32 = libbpf_sys::BPF_TCX_INGRESS;
pub const ATTACH_TCX_EGRESS: u32 = libbpf_sys::BPF_TCX_EGRESS;
pub const ATTACH_NETFILTER: u32 = libbpf_sys::BPF_NETFILTER;
/// At netfilter's hooks: since 6.4.
pub const NETFILTER: u32 = libbpf_sys::BPF_PROG_TYPE_NETFILTER;
/// The program accepts packets in several pieces.
pub const HAS_FRAGS: u32 = 1 << 5;
/// The verifier refuses a program on which it contradicts itself (since 6.8), instead of warning in the kernel's log.
pub const TEST_REG_INVARIANTS: u32 = 1 << 7;
/// The program may sleep.
pub const SLEEPABLE: u32 = 1 << 4;
/// The program runs on one device only, and may ask it for its metadata.
pub const DEVICE_BOUND: u32 = 1 << 6;

/// Parameters of a load call in addition to the instructions.
#[derive(Clone, Debug)]
pub struct LoadOptions<'a> {
    pub name: &'a str,
    pub kind: u32,
    pub license: &'a str,
    pub expected_attach_type: u32,
    pub flags: u32,
    /// For programs bound to one device.
    pub ifindex: u32,
    /// For tracing programs and extensions.
    pub traced: Option<Traced<'a>>,
    pub types: Option<Types<'a>>,
}

impl<'a> LoadOptions<'a> {
    /// Returns options with a licence for all helpers, for any attach type that suits the kind.
    pub fn new(name: &'a str, kind: u32) -> Self {
        Self { name, kind, license: "GPL", expected_attach_type: 0, flags: 0, ifindex: 0, traced: None, types: None }
    }

    /// Loads a small program that is known to be valid; the error is the kernel's errno.
    pub fn load(&self, instructions: &[Insn]) -> io::Result<OwnedFd> {
        try_load(instructions, self, None)
    }
}

/// Returns a program that only returns this value.
pub fn returning(value: i32) -> [Insn; 2] {
    [op::alu_imm(op::MOV, 0, value), op::exit()]
}

/// Type information of a program, with its records of functions and lines.
#[derive(Clone, Copy, Debug)]
pub struct Types<'a> {
    pub(crate) btf: BorrowedFd<'a>,
    pub(crate) functions: &'a [libbpf_sys::bpf_func_info],
    pub(crate) lines: &'a [libbpf_sys::bpf_line_info],
}

/// The target of a tracing program.
#[derive(Clone, Copy, Debug)]
pub struct Traced<'a> {
    /// `None`: the kernel itself.
    pub program: Option<BorrowedFd<'a>>,
    /// The number of one of its functions in its type information, or of a tracepoint in the kernel's.
    pub function: u32,
}

const LOG_SIZE: usize = 4 << 20;

const _: () = assert!(size_of::<Insn>() == size_of::<libbpf_sys::bpf_insn>());
const _: () = assert!(align_of::<Insn>() == align_of::<libbpf_sys::bpf_insn>());

pub fn load(instructions: &[Insn], options: &LoadOptions<'_>) -> Result<OwnedFd> {
    // Only these kinds were tried with typed loads; others are refused under lockdown, and the error says so.
    let may_be_typed = matches!(options.kind, TRACING | RAW_TRACEPOINT | NETFILTER | SYSCALL);
    let typed = may_be_typed.then(|| typed_reads::instead_of_helpers(instructions)).flatten();
    let instructions = typed.as_deref().unwrap_or(instructions);
    if verifier_log::is_kept() {
        let mut log = vec![0u8; super::loader::LOG_SIZE];
        let loaded = try_load(instructions, options, Some((&mut log, verifier_log::WHOLE)));
        verifier_log::add(options.name, loaded.as_ref().err(), &log);
        if let Ok(fd) = loaded {
            return Ok(fd);
        }
    }
    let loaded = match deadline::limit() {
        Some(limit) => {
            let (loaded, is_late) = deadline::within(limit, || try_load(instructions, options, None));
            if loaded.is_err() && is_late {
                let what = format!("cannot load the program {}", options.name);
                let why = format!("the verifier did not finish within {limit:.1?} of a usual processor");
                return Err(Error::failed(what, why).refused(Refusal::TooSlow));
            }
            // Writing the verifier's log takes as long again, and it would only say that the program is too large.
            if loaded.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::E2BIG)) {
                let what = format!("cannot load the program {}", options.name);
                let why = "the program is too large for the verifier";
                return Err(Error::failed(what, why).refused(Refusal::TooLong));
            }
            loaded
        }
        None => try_load(instructions, options, None),
    };
    match loaded {
        Ok(fd) => Ok(fd),
        Err(error) => {
            let mut log = vec![0u8; LOG_SIZE];
            let retried = try_load(instructions, options, Some((&mut log, 1)));
            retried.map_err(|_| explain(options.name, error, &log))
        }
    }
}

/// Makes one attempt: the error is the kernel's errno, and the verifier's messages are written to the log, if one is
/// given, at that level. A kernel whose packets are never in several pieces has no flag for programs that accept them.
pub(super) fn try_load(
    instructions: &[Insn],
    options: &LoadOptions<'_>,
    log: Option<(&mut Vec<u8>, u32)>,
) -> io::Result<OwnedFd> {
    let mut options = options.clone();
    if options.flags & HAS_FRAGS != 0 && !probe::has_xdp_frags() {
        options.flags &= !HAS_FRAGS;
    }
    load_as_is(instructions, &options, log)
}

/// Calls the kernel's load with exactly these options; the only caller.
pub(super) fn load_as_is(
    instructions: &[Insn],
    options: &LoadOptions<'_>,
    log: Option<(&mut Vec<u8>, u32)>,
) -> io::Result<OwnedFd> {
    let LoadOptions { name, kind, license, expected_attach_type, flags, ifindex, traced, types } = *options;
    let mut opts = opts!(libbpf_sys::bpf_prog_load_opts);
    opts.expected_attach_type = expected_attach_type;
    opts.prog_flags = flags;
    opts.prog_ifindex = ifindex;
    if let Some(Traced { program, function }) = traced {
        opts.attach_prog_fd = program.map_or(0, |program| program.as_raw_fd() as u32);
        opts.attach_btf_id = function;
    }
    if let Some(types) = types {
        opts.prog_btf_fd = types.btf.as_raw_fd() as u32;
        opts.func_info = types.functions.as_ptr().cast();
        opts.func_info_cnt = types.functions.len() as u32;
        opts.func_info_rec_size = size_of::<libbpf_sys::bpf_func_info>() as u32;
        opts.line_info = types.lines.as_ptr().cast();
        opts.line_info_cnt = types.lines.len() as u32;
        opts.line_info_rec_size = size_of::<libbpf_sys::bpf_line_info>() as u32;
    }
    if let Some((log, level)) = log {
        opts.log_level = level;
        opts.log_size = log.len() as u32;
        opts.log_buf = log.as_mut_ptr().cast();
    }
    let name = c_name(name);
    let license = CString::new(license)?;
    // SAFETY: an Insn has the layout of struct bpf_insn; instructions, records and log stay alive for the call, and
    // have the counts and sizes given.
    owned(unsafe {
        libbpf_sys::bpf_prog_load(
            kind,
            name.as_ptr(),
            license.as_ptr(),
            instructions.as_ptr().cast(),
            instructions.len() as libbpf_sys::size_t,
            &mut opts,
        )
    })
}

/// Returns the line of the verifier's log with the reason: the last one before its statistics.
fn reason_in(log: &[u8]) -> Option<String> {
    // Where the verifier removes lines of its log it leaves zeroes. The text after them may be the rest of the log, or
    // remains of an earlier attempt to verify a branch: the part with the statistics is the end.
    let text = String::from_utf8_lossy(log);
    let is_end = |part: &&str| part.lines().any(|line| line.starts_with("processed "));
    let text = match text.split('\0').find(is_end) {
        Some(end) => end.to_owned(),
        None => text.replace('\0', ""),
    };
    let reason = text.lines().rfind(|line| {
        !line.trim().is_empty() && !line.starts_with("processed ") && !line.starts_with("verification time")
    });
    reason.map(str::to_owned)
}

fn explain(name: &str, error: io::Error, log: &[u8]) -> Error {
    if let Some((why, how)) = lack_of(&Capability::FOR_BPF) {
        return Error::failed(format!("cannot load the program {name}"), why).fix(how);
    }
    let reason = reason_in(log);
    let os = Error::os(format!("cannot load the program {name}"), error);
    match (os.errno(), reason) {
        (Some(libc::EPERM), None) => os.fix("this requires root (CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON)"),
        (_, Some(reason)) if reason.contains("bpf_probe_read") && typed_reads::is_locked() => {
            let why = typed_reads::reason();
            Error::failed(format!("cannot load the program {name}"), why)
        }
        (_, Some(reason)) => {
            Error::failed(format!("cannot load the program {name}"), format!("the verifier says: {reason}"))
                .refused(Refusal::Verifier)
        }
        _ if os.errno() == Some(libc::E2BIG) => os.refused(Refusal::TooLong),
        _ => os,
    }
}

/// Opens an existing program.
pub fn open_by_id(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes a plain number.
    owned(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })
}

/// Returns the identifier of an open program.
pub fn id(program: &OwnedFd) -> io::Result<u32> {
    use std::os::fd::AsFd;
    super::info::program(program.as_fd()).map(|info| info.id)
}

/// Binds a map to a program, so that the map lives as long as the program does.
pub fn bind_map(program: &OwnedFd, map: &OwnedFd) -> io::Result<()> {
    let opts = opts!(libbpf_sys::bpf_prog_bind_opts);
    // SAFETY: both descriptors are open, the options live for the call.
    check(unsafe { libbpf_sys::bpf_prog_bind_map(program.as_raw_fd(), map.as_raw_fd(), &opts) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::reason_in;

    #[test]
    fn reason_is_found_despite_removed_lines() {
        let stale: &[u8] = b"0: exit\nR0 !read_ok\nprocessed 2 insns (limit 1000000)\n\0from 1 to 9: safe\n\0\0\0";
        assert_eq!(reason_in(stale).as_deref(), Some("R0 !read_ok"));
        let later: &[u8] = b"0: r1 = r0\n\0\0R0 !read_ok\nprocessed 1 insns\n\0";
        assert_eq!(reason_in(later).as_deref(), Some("R0 !read_ok"));
        let unfinished: &[u8] = b"back-edge from insn 3 to 1\n\0\0";
        assert_eq!(reason_in(unfinished).as_deref(), Some("back-edge from insn 3 to 1"));
        assert_eq!(reason_in(&[0; 16]), None);
    }
}
