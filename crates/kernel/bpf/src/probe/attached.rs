//! The tcx programs of an interface.

use std::io;

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
    let hook = if ingress {
        libbpf_sys::BPF_TCX_INGRESS
    } else {
        libbpf_sys::BPF_TCX_EGRESS
    };
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
    Ok(found
        .map(|(program_id, link)| TcxProgram {
            program_id,
            link_id: Some(link).filter(|id| *id != 0),
        })
        .collect())
}
