//! Programs: their kinds and options, the call that loads one, and opening existing ones.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use trawl_ebpf::{Insn, op};

use super::{c_name, check, opts, owned};

pub const XDP: u32 = libbpf_sys::BPF_PROG_TYPE_XDP;
pub const SCHED_CLS: u32 = libbpf_sys::BPF_PROG_TYPE_SCHED_CLS;
pub const CGROUP_SKB: u32 = libbpf_sys::BPF_PROG_TYPE_CGROUP_SKB;
pub const SOCKET_FILTER: u32 = libbpf_sys::BPF_PROG_TYPE_SOCKET_FILTER;
pub const RAW_TRACEPOINT: u32 = libbpf_sys::BPF_PROG_TYPE_RAW_TRACEPOINT;
/// Kind of program that a system call runs, not an event.
pub const SYSCALL: u32 = libbpf_sys::BPF_PROG_TYPE_SYSCALL;
pub const TRACING: u32 = libbpf_sys::BPF_PROG_TYPE_TRACING;
/// Kind of program that replaces a function of another program.
pub const EXTENSION: u32 = libbpf_sys::BPF_PROG_TYPE_EXT;
pub const ATTACH_FENTRY: u32 = libbpf_sys::BPF_TRACE_FENTRY;
pub const ATTACH_FEXIT: u32 = libbpf_sys::BPF_TRACE_FEXIT;
/// Attach type at a tracepoint of the kernel, with the types of its arguments.
pub const ATTACH_TYPED_TRACEPOINT: u32 = libbpf_sys::BPF_TRACE_RAW_TP;
/// Attach type at the objects of an iterator.
pub const ATTACH_ITERATOR: u32 = libbpf_sys::BPF_TRACE_ITER;
pub const ATTACH_XDP: u32 = libbpf_sys::BPF_XDP;
pub const ATTACH_TCX_INGRESS: u32 = libbpf_sys::BPF_TCX_INGRESS;
pub const ATTACH_TCX_EGRESS: u32 = libbpf_sys::BPF_TCX_EGRESS;
pub const ATTACH_NETFILTER: u32 = libbpf_sys::BPF_NETFILTER;
/// Kind of program at netfilter's hooks, since 6.4.
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
        load_as_is(instructions, self, None)
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

const _: () = assert!(size_of::<Insn>() == size_of::<libbpf_sys::bpf_insn>());
const _: () = assert!(align_of::<Insn>() == align_of::<libbpf_sys::bpf_insn>());

/// Calls the kernel's load with exactly these options. No other function calls it.
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
