//! Links: attachments that end with the descriptor that holds them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use trawl_sys::netlink::XdpMode;

use super::{check, opts, owned};

/// Position among the programs on a tcx hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcxPosition {
    First,
    Last,
}

/// Attaches an XDP program. The interface is looked up in the calling thread's network namespace.
pub fn attach_xdp(program: BorrowedFd<'_>, ifindex: u32, mode: XdpMode) -> io::Result<OwnedFd> {
    let mut opts = opts!(libbpf_sys::bpf_link_create_opts);
    opts.flags = mode.flags();
    create(program, ifindex, libbpf_sys::BPF_XDP, &opts)
}

/// Attaches a tc program by tcx, in the calling thread's network namespace.
pub fn attach_tcx(
    program: BorrowedFd<'_>,
    ifindex: u32,
    attach_type: u32,
    position: TcxPosition,
) -> io::Result<OwnedFd> {
    let mut opts = opts!(libbpf_sys::bpf_link_create_opts);
    // BEFORE or AFTER without naming another program means the very first or the very last.
    opts.flags = match position {
        TcxPosition::First => libbpf_sys::BPF_F_BEFORE,
        TcxPosition::Last => libbpf_sys::BPF_F_AFTER,
    };
    create(program, ifindex, attach_type, &opts)
}

/// Attaches a program to one of netfilter's hooks, in the calling thread's network namespace: `family` is NFPROTO_…,
/// `hook` NF_INET_…, and programs with lower priorities come first.
pub fn attach_netfilter(program: BorrowedFd<'_>, family: u32, hook: u32, priority: i32) -> io::Result<OwnedFd> {
    let mut opts = opts!(libbpf_sys::bpf_link_create_opts);
    opts.__bindgen_anon_1.netfilter.pf = family;
    opts.__bindgen_anon_1.netfilter.hooknum = hook;
    opts.__bindgen_anon_1.netfilter.priority = priority;
    create(program, 0, super::program::ATTACH_NETFILTER, &opts)
}

/// Attaches a program to a cgroup and those below it, next to the programs of others.
pub fn attach_cgroup(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>, attach_type: u32) -> io::Result<OwnedFd> {
    let opts = opts!(libbpf_sys::bpf_link_create_opts);
    // SAFETY: both descriptors are open and the options live for the call.
    owned(unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), cgroup.as_raw_fd(), attach_type, &opts) })
}

/// Runs an iterator's program once for each of its objects.
pub fn iterate(program: BorrowedFd<'_>) -> io::Result<()> {
    let opts = opts!(libbpf_sys::bpf_link_create_opts);
    let kind = super::program::ATTACH_ITERATOR;
    // SAFETY: the program is open and the options live for the call.
    let link = owned(unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), 0, kind, &opts) })?;
    // SAFETY: the call takes an open descriptor.
    let iterator = owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) })?;
    io::copy(&mut std::fs::File::from(iterator), &mut io::sink()).map(drop)
}

/// Replaces a function of another program by a program of the extension kind.
pub fn replace_function(program: BorrowedFd<'_>, target: BorrowedFd<'_>, function: u32) -> io::Result<OwnedFd> {
    let mut opts = opts!(libbpf_sys::bpf_link_create_opts);
    opts.target_btf_id = function;
    // SAFETY: both programs are open and the options live for the call.
    owned(unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), target.as_raw_fd(), 0, &opts) })
}

/// Attaches a tracing program to the function or tracepoint that it was loaded for.
pub fn attach_tracing(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: no name is given, and the program is open.
    owned(unsafe { libbpf_sys::bpf_raw_tracepoint_open(std::ptr::null(), program.as_raw_fd()) })
}

/// Attaches a raw tracepoint program to a tracepoint by its name.
pub fn attach_raw_tracepoint(program: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: the name ends with a zero, and the program is open.
    owned(unsafe { libbpf_sys::bpf_raw_tracepoint_open(name.as_ptr(), program.as_raw_fd()) })
}

fn create(
    program: BorrowedFd<'_>,
    ifindex: u32,
    attach_type: u32,
    opts: &libbpf_sys::bpf_link_create_opts,
) -> io::Result<OwnedFd> {
    // SAFETY: the program is open and the options live for the call.
    owned(unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, attach_type, opts) })
}

/// Exchanges a link's program without a gap. Fails with EPERM if the link's program is not `old`.
pub fn replace_program(link: BorrowedFd<'_>, program: BorrowedFd<'_>, old: BorrowedFd<'_>) -> io::Result<()> {
    let mut opts = opts!(libbpf_sys::bpf_link_update_opts);
    opts.flags = libbpf_sys::BPF_F_REPLACE;
    opts.old_prog_fd = old.as_raw_fd() as u32;
    // SAFETY: both descriptors are open and the options live for the call.
    check(unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), &opts) }).map(drop)
}

/// Ends an attachment even if other processes hold the link open.
pub fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the call takes an open descriptor.
    check(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) }).map(drop)
}

/// Opens an existing link; holding it keeps the attachment alive.
pub fn open_by_id(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes a plain number.
    owned(unsafe { libbpf_sys::bpf_link_get_fd_by_id(id) })
}

/// Returns the identifiers of all links.
pub fn all_ids() -> Vec<u32> {
    let mut ids = Vec::new();
    let mut id = 0u32;
    // SAFETY: the call reads a number and writes the next one.
    while unsafe { libbpf_sys::bpf_link_get_next_id(id, &mut id) } == 0 {
        ids.push(id);
    }
    ids
}
