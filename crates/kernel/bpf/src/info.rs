//! The kernel's descriptions of maps, programs and links.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use trawl_ebpf::Insn;

use super::{check, owned};

#[derive(Clone, Debug)]
pub struct MapInfo {
    pub id: u32,
    pub kind: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
    /// The meaning depends on the kind.
    pub extra: u64,
    pub name: String,
}

#[derive(Clone, Debug)]
pub struct ProgramInfo {
    pub id: u32,
    pub kind: u32,
    pub name: String,
    pub tag: String,
    pub map_ids: Vec<u32>,
    pub btf_id: u32,
    /// The user who loaded it.
    pub user: u32,
    /// Set if its licence allows it the kernel's GPL-only functions.
    pub gpl_compatible: bool,
    pub run_count: u64,
    pub run_time_ns: u64,
    /// Number of runs skipped because it was already running on that CPU.
    pub recursion_misses: u64,
    /// Instructions that the verifier processed; 0 on kernels before 5.16.
    pub verified: u32,
    /// Bytes of machine code; 0 if the kernel interprets the program.
    pub jited_bytes: u32,
}

#[derive(Clone, Debug)]
pub struct LinkInfo {
    pub id: u32,
    pub kind: u32,
    pub program: u32,
    /// For links to an interface (XDP, tcx): its index in its own namespace.
    pub ifindex: u32,
    /// For links to a function of another program: that program, and the function's number in its types.
    pub function: Option<(u32, u32)>,
}

fn text(name: &[std::os::raw::c_char]) -> String {
    let bytes: Vec<u8> = name.iter().map(|&c| c as u8).chain([0]).collect();
    CStr::from_bytes_until_nul(&bytes).map(|c| c.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Fills one of the structures with which the kernel describes maps, programs and links. Arrays that it points to must
/// have room for as many records as it says.
pub(crate) fn fill<T>(fd: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    let mut length = size_of::<T>() as u32;
    // SAFETY: the kernel writes at most `length` bytes into `info`, which is that large, and as many records as fit.
    let result = unsafe { libbpf_sys::bpf_obj_get_info_by_fd(fd.as_raw_fd(), (&raw mut *info).cast(), &mut length) };
    check(result).map(drop)
}

pub fn map(fd: BorrowedFd<'_>) -> io::Result<MapInfo> {
    let mut raw = libbpf_sys::bpf_map_info::default();
    fill(fd, &mut raw)?;
    Ok(MapInfo {
        id: raw.id,
        kind: raw.type_,
        key_size: raw.key_size,
        value_size: raw.value_size,
        max_entries: raw.max_entries,
        flags: raw.map_flags,
        extra: raw.map_extra,
        name: text(&raw.name),
    })
}

pub fn program(fd: BorrowedFd<'_>) -> io::Result<ProgramInfo> {
    let mut raw = libbpf_sys::bpf_prog_info::default();
    fill(fd, &mut raw)?;
    let mut map_ids = vec![0u32; raw.nr_map_ids as usize];
    if !map_ids.is_empty() {
        let mut again = libbpf_sys::bpf_prog_info { nr_map_ids: raw.nr_map_ids, ..Default::default() };
        again.map_ids = map_ids.as_mut_ptr() as u64;
        fill(fd, &mut again)?;
        map_ids.truncate(again.nr_map_ids as usize);
    }
    Ok(ProgramInfo {
        id: raw.id,
        kind: raw.type_,
        name: text(&raw.name),
        tag: raw.tag.iter().map(|b| format!("{b:02x}")).collect(),
        map_ids,
        btf_id: raw.btf_id,
        user: raw.created_by_uid,
        gpl_compatible: raw.gpl_compatible() != 0,
        run_count: raw.run_cnt,
        run_time_ns: raw.run_time_ns,
        recursion_misses: raw.recursion_misses,
        verified: raw.verified_insns,
        jited_bytes: raw.jited_prog_len,
    })
}

/// Returns the instructions of a loaded program after the verifier has changed them. Addresses of maps are replaced by
/// the maps' identifiers.
pub fn instructions(fd: BorrowedFd<'_>) -> io::Result<Vec<Insn>> {
    let mut raw = libbpf_sys::bpf_prog_info::default();
    fill(fd, &mut raw)?;
    let mut instructions = vec![Insn::default(); raw.xlated_prog_len as usize / size_of::<Insn>()];
    let mut again = libbpf_sys::bpf_prog_info { xlated_prog_len: raw.xlated_prog_len, ..Default::default() };
    again.xlated_prog_insns = instructions.as_mut_ptr() as u64;
    fill(fd, &mut again)?;
    instructions.truncate(again.xlated_prog_len as usize / size_of::<Insn>());
    Ok(instructions)
}

pub fn link(fd: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let mut raw = libbpf_sys::bpf_link_info::default();
    fill(fd, &mut raw)?;
    let ifindex = match raw.type_ {
        // SAFETY: the kernel fills the union's member that belongs to the link's type.
        libbpf_sys::BPF_LINK_TYPE_XDP => unsafe { raw.__bindgen_anon_1.xdp.ifindex },
        // SAFETY: as above.
        libbpf_sys::BPF_LINK_TYPE_TCX => unsafe { raw.__bindgen_anon_1.tcx.ifindex },
        _ => 0,
    };
    let function = match raw.type_ {
        libbpf_sys::BPF_LINK_TYPE_TRACING => {
            // SAFETY: as above.
            let tracing = unsafe { raw.__bindgen_anon_1.tracing };
            Some((tracing.target_obj_id, tracing.target_btf_id)).filter(|(id, _)| *id != 0)
        }
        _ => None,
    };
    Ok(LinkInfo { id: raw.id, kind: raw.type_, program: raw.prog_id, ifindex, function })
}

/// Returns the name of a kind of map, in bpftool's spelling.
pub fn map_kind_name(kind: u32) -> String {
    // SAFETY: the call takes a number and returns a constant C string or null.
    let name = unsafe { libbpf_sys::libbpf_bpf_map_type_str(kind) };
    if name.is_null() {
        return format!("type {kind}");
    }
    // SAFETY: a constant C string of libbpf's.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_string_lossy().into_owned()
}

/// Returns the memory that a map uses, if the kernel reports it.
pub fn map_memory(map: BorrowedFd<'_>) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd())).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("memlock:"))?;
    line.trim().parse().ok()
}

// The kernel's count of each program's runs and of their duration, which is off unless requested.

const SYSCTL: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Returns true if the count is on for all processes (`kernel.bpf_stats_enabled`).
pub fn statistics_are_on() -> bool {
    std::fs::read_to_string(SYSCTL).is_ok_and(|text| text.trim() == "1")
}

/// Turns the count on for as long as the descriptor is open.
pub fn enable_statistics() -> io::Result<OwnedFd> {
    // SAFETY: the call takes a number.
    owned(unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) })
}
