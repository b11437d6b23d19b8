//! The programs that a hook has: tcx programs of an interface, and programs of a cgroup.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::{check, info, program};

/// A program on a tcx hook, with its link if it is attached by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcxProgram {
    pub program_id: u32,
    pub link_id: Option<u32>,
}

/// Room for programs; the kernel itself allows 63.
const MOST: usize = 64;

/// Returns the tcx programs of an interface of the calling thread's namespace, in the order they run; none if the
/// kernel has no tcx.
pub fn tcx(index: u32, ingress: bool) -> io::Result<Vec<TcxProgram>> {
    let hook = if ingress { libbpf_sys::BPF_TCX_INGRESS } else { libbpf_sys::BPF_TCX_EGRESS };
    let (mut programs, mut links) = ([0u32; MOST], [0u32; MOST]);
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        prog_ids: programs.as_mut_ptr(),
        link_ids: links.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = MOST as u32;
    // SAFETY: both arrays hold as many entries as `count` says and outlive the call.
    let result = unsafe { libbpf_sys::bpf_prog_query_opts(index as i32, hook, &raw mut options) };
    match -result {
        0 => {}
        // The kernel has no such hook.
        libc::EINVAL => return Ok(Vec::new()),
        errno => return Err(io::Error::from_raw_os_error(errno)),
    }
    // SAFETY: both members of the union are the same number.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    let found = programs.into_iter().zip(links).take(count.min(MOST));
    Ok(found.map(|(program_id, link)| TcxProgram { program_id, link_id: Some(link).filter(|id| *id != 0) }).collect())
}

/// A program at a hook of a cgroup that allows no other program there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exclusive {
    pub program_id: u32,
    /// Empty if the kernel does not report it.
    pub name: String,
}

impl fmt::Display for Exclusive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => write!(f, "program {}", self.program_id),
            name => write!(f, "program {} ({name})", self.program_id),
        }
    }
}

/// The hooks of packets that processes in a cgroup send and receive.
pub const EGRESS: u32 = libbpf_sys::BPF_CGROUP_INET_EGRESS;
pub const INGRESS: u32 = libbpf_sys::BPF_CGROUP_INET_INGRESS;

/// Returns the programs at a hook of a cgroup, and the flags with which the first was attached.
fn query(cgroup: BorrowedFd<'_>, hook: u32, flags: u32) -> io::Result<(Vec<u32>, u32)> {
    let mut programs = [0u32; MOST];
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        query_flags: flags,
        prog_ids: programs.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = MOST as u32;
    // SAFETY: the array holds as many entries as `count` says and outlives the call; the descriptor is open.
    let result = unsafe { libbpf_sys::bpf_prog_query_opts(cgroup.as_raw_fd(), hook, &raw mut options) };
    check(result)?;
    // SAFETY: both members of the union are the same number.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    Ok((programs[..count.min(MOST)].to_vec(), options.attach_flags))
}

/// Returns the programs that run at a hook for a cgroup: the programs of its ancestors too.
pub fn in_force(cgroup: BorrowedFd<'_>, hook: u32) -> io::Result<Vec<u32>> {
    query(cgroup, hook, libbpf_sys::BPF_F_QUERY_EFFECTIVE).map(|(programs, _)| programs)
}

/// Returns the program that was attached to a hook of a cgroup without BPF_F_ALLOW_MULTI.
pub fn exclusive(cgroup: BorrowedFd<'_>, hook: u32) -> Option<Exclusive> {
    let (programs, flags) = query(cgroup, hook, 0).ok()?;
    if programs.is_empty() || flags & libbpf_sys::BPF_F_ALLOW_MULTI != 0 {
        return None;
    }
    let opened = program::open_by_id(programs[0]).ok();
    let about = opened.and_then(|program| info::program(program.as_fd()).ok());
    Some(Exclusive { program_id: programs[0], name: about.map(|about| about.name).unwrap_or_default() })
}
