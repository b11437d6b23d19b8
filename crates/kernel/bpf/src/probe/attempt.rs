//! Attempts behind the probes: each creates a small instance of the feature, and releases it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use trawl_ebpf::{Insn, helper, op};
use trawl_sys::{netlink::socket_option, netns};

use super::{ProbeAnswer, kernel_is_at_least};
use crate::kernel::kernel_function;
use crate::link::{TcxPosition, attach_raw_tracepoint, attach_tcx, attach_tracing, attach_xdp};
use crate::program::{EXTENSION, LoadOptions, RAW_TRACEPOINT, SCHED_CLS, TRACING, Traced, Types, XDP, returning};
use crate::types::{self, TARGET_FUNCTION};
use crate::{arena, info, kernel_types, map, program, typed_reads};

const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const TC_NEXT: i32 = -1;
const LOOPBACK: u32 = 1;
const NAME: &str = "trawl_probe";
/// Value that fits into the maps of all kernels, and the number of such values that makes a ring.
const USUAL_VALUE: u32 = 2 << 20;
const USUAL_VALUES: u32 = 8;
/// Value that kernels before 6.0 refuse: they limit values to the largest piece of consecutive memory.
const LARGE_VALUE: u32 = 8 << 20;
/// The kernel's function at which programs see the open files of all processes.
const FILES_ITERATOR: &str = "bpf_iter_task_file";
const STORAGE_ITERATOR: &str = "bpf_iter_bpf_sk_storage_map";
/// A function in every kernel that can trace functions with BPF, for tests like this one.
const TRACEABLE: &str = "bpf_fentry_test1";

fn map(kind: u32, key: u32, value: u32, entries: u32, flags: u32) -> io::Result<OwnedFd> {
    map::create(NAME, kind, (key, value), entries, flags)
}

fn xdp(code: &[Insn], flags: u32) -> io::Result<OwnedFd> {
    LoadOptions { flags, expected_attach_type: libbpf_sys::BPF_XDP, ..LoadOptions::new(NAME, XDP) }.load(code)
}

pub fn bpf() -> ProbeAnswer {
    ProbeAnswer::from_result(map(libbpf_sys::BPF_MAP_TYPE_ARRAY, 4, 4, 1, 0))
}

pub fn btf_in_kernel() -> ProbeAnswer {
    if in_kernel() {
        ProbeAnswer::Supported
    } else {
        ProbeAnswer::lacking("/sys/kernel/btf/vmlinux does not exist (CONFIG_DEBUG_INFO_BTF)")
    }
}

/// Tests the JIT. Its switch is hidden in all network namespaces but the first; in the others, a loaded program shows
/// the answer.
pub fn jit() -> ProbeAnswer {
    if fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").is_ok_and(|text| text.trim() == "0") {
        return ProbeAnswer::lacking("it is off (net.core.bpf_jit_enable is 0)");
    }
    match xdp(&returning(XDP_PASS), 0).and_then(|program| info::program(program.as_fd())) {
        Ok(about) if about.jited_bytes == 0 => ProbeAnswer::lacking("the kernel interprets programs"),
        Ok(_) => ProbeAnswer::Supported,
        Err(e) => ProbeAnswer::from_error(&e),
    }
}

pub fn mmapable_array() -> ProbeAnswer {
    let flags = libbpf_sys::BPF_F_MMAPABLE;
    let mapped = map(libbpf_sys::BPF_MAP_TYPE_ARRAY, 4, 4096, 1, flags).and_then(|fd| {
        // SAFETY: a fresh mapping of a descriptor that is open; it is unmapped right below.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: mapped above with this length, and nothing refers to it.
        unsafe { libc::munmap(memory, 4096) };
        Ok(())
    });
    ProbeAnswer::from_result(mapped)
}

/// Tries memory for a ring. Kernels before 5.11 count it against RLIMIT_MEMLOCK.
pub fn large_map() -> ProbeAnswer {
    match map(libbpf_sys::BPF_MAP_TYPE_ARRAY, 4, USUAL_VALUE, USUAL_VALUES, 0) {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) && bpf().is_supported() => ProbeAnswer::Refused {
            errno: libc::EPERM,
            why: "the limit on locked memory is too low for a ring of 16 MiB".to_owned(),
        },
        result => ProbeAnswer::from_result(result),
    }
}

pub fn xdp_program() -> ProbeAnswer {
    ProbeAnswer::from_result(xdp(&returning(XDP_PASS), 0))
}

pub fn xdp_frags() -> ProbeAnswer {
    let options = LoadOptions {
        flags: program::HAS_FRAGS,
        expected_attach_type: libbpf_sys::BPF_XDP,
        ..LoadOptions::new(NAME, XDP)
    };
    ProbeAnswer::from_result(program::load_as_is(&returning(XDP_PASS), &options, None))
}

/// Tries an arena that a program may write to, and that CPUs can share for counters (kernel 6.10).
pub fn arena() -> ProbeAnswer {
    let used = arena::create(NAME, 1, arena::address_of(0)).and_then(|map| {
        let [first, second] = op::load_immediate(op::MAP, 1, map.as_raw_fd());
        let code = [
            first,
            second,
            op::alu_imm(op::MOV, 2, 0),
            // r2 becomes an address in the program's arena.
            Insn::new(op::ALU64 | op::MOV | op::X, 2, 2, 1, 1),
            op::alu_imm(op::MOV, 1, 1),
            op::atomic_add(op::DW, 2, 0, 1),
            op::alu_imm(op::MOV, 0, XDP_PASS),
            op::exit(),
        ];
        xdp(&code, 0)
    });
    ProbeAnswer::from_result(used)
}

/// Tries a link on the loopback interface of a temporary namespace.
pub fn xdp_link() -> ProbeAnswer {
    let program = match xdp(&returning(XDP_PASS), 0) {
        Ok(program) => program,
        Err(e) => return ProbeAnswer::from_error(&e),
    };
    // Generic mode, the only one that loopback has.
    in_scratch_namespace(|| attach_xdp(program.as_fd(), LOOPBACK, trawl_sys::netlink::XdpMode::Skb))
}

pub fn tcx_link() -> ProbeAnswer {
    let code = returning(TC_NEXT);
    let program = match LoadOptions::new(NAME, SCHED_CLS).load(&code) {
        Ok(program) => program,
        Err(e) => return ProbeAnswer::from_error(&e),
    };
    in_scratch_namespace(|| attach_tcx(program.as_fd(), LOOPBACK, libbpf_sys::BPF_TCX_INGRESS, TcxPosition::Last))
}

fn in_scratch_namespace(attach: impl FnOnce() -> io::Result<OwnedFd> + Send) -> ProbeAnswer {
    match netns::run_in_scratch(attach) {
        Ok(result) => ProbeAnswer::from_result(result),
        Err(e) => ProbeAnswer::from_error(&e),
    }
}

pub fn fentry() -> ProbeAnswer {
    tracing(libbpf_sys::BPF_TRACE_FENTRY)
}

pub fn fexit() -> ProbeAnswer {
    tracing(libbpf_sys::BPF_TRACE_FEXIT)
}

/// Attaches to a BPF program, as the xdp tap does, or to a kernel function if that fails for lack of a program to
/// attach to.
fn tracing(attach_type: u32) -> ProbeAnswer {
    let code = returning(0);
    let attempt = |program: Option<BorrowedFd<'_>>, function| {
        LoadOptions {
            expected_attach_type: attach_type,
            traced: Some(Traced { program, function }),
            ..LoadOptions::new(NAME, TRACING)
        }
        .load(&code)
        .and_then(|program| attach_tracing(program.as_fd()))
    };
    ProbeAnswer::from_result(match Target::load() {
        Ok(target) => attempt(Some(target.program()), TARGET_FUNCTION),
        Err(_) => kernel_function(TRACEABLE).and_then(|function| attempt(None, function)),
    })
}

pub fn freplace() -> ProbeAnswer {
    // Without this, trawl cannot find the programs of a chain again.
    if !kernel_is_at_least(5, 13) {
        return ProbeAnswer::lacking("links do not name the function that they replace");
    }
    let code = returning(XDP_PASS);
    let loaded = Target::load().and_then(|target| {
        LoadOptions {
            traced: Some(Traced { program: Some(target.program()), function: TARGET_FUNCTION }),
            types: Some(one_function(target.types())),
            ..LoadOptions::new(NAME, EXTENSION)
        }
        .load(&code)
    });
    ProbeAnswer::from_result(loaded)
}

/// Tests whether programs can read the kernel's memory.
pub fn kernel_memory() -> ProbeAnswer {
    match typed_reads::lack() {
        Some(why) => ProbeAnswer::Refused { errno: libc::EPERM, why },
        None => ProbeAnswer::Supported,
    }
}

/// Looks for the kernel's list of reasons, with which its tracepoint of dropped packets names them.
pub fn drop_reasons() -> ProbeAnswer {
    match kernel_types::find(kernel_types::ENUMERATION, "skb_drop_reason") {
        Ok(Some(_)) => ProbeAnswer::Supported,
        Ok(None) => ProbeAnswer::lacking("the kernel's type information has no drop reasons"),
        Err(_) if !in_kernel() => btf_in_kernel(),
        Err(e) => ProbeAnswer::from_error(&e),
    }
}

/// Calls a helper with a wrong argument: a kernel that has the helper complains of the argument.
pub fn socket_of_file() -> bool {
    let code = [op::alu_imm(op::MOV, 1, 0), op::call(helper::SOCK_FROM_FILE), op::alu_imm(op::MOV, 0, 0), op::exit()];
    let Ok(function) = kernel_function(FILES_ITERATOR) else {
        return false;
    };
    iterator(function, &code).map_or_else(|e| e.raw_os_error() != Some(libc::EINVAL), |_| true)
}

/// Loads an iterator over the storage of sockets, which some hosts forbid.
pub fn storage_iterator() -> bool {
    kernel_function(STORAGE_ITERATOR).and_then(|function| iterator(function, &returning(0))).is_ok()
}

fn iterator(function: u32, code: &[Insn]) -> io::Result<OwnedFd> {
    LoadOptions {
        expected_attach_type: program::ATTACH_ITERATOR,
        traced: Some(Traced { program: None, function }),
        ..LoadOptions::new(NAME, TRACING)
    }
    .load(code)
}

pub fn raw_tracepoint() -> ProbeAnswer {
    let code = returning(0);
    let attached = LoadOptions::new(NAME, RAW_TRACEPOINT)
        .load(&code)
        .and_then(|program| attach_raw_tracepoint(program.as_fd(), "xdp_exception"));
    ProbeAnswer::from_result(attached)
}

pub fn ring_buffer() -> ProbeAnswer {
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    ProbeAnswer::from_result(map(libbpf_sys::BPF_MAP_TYPE_RINGBUF, 0, 0, page, 0))
}

/// Sends one live frame, dropped by the program that makes it. Kernels without live frames ignore the flag and return
/// the program's verdict, which a live frame does not have.
pub fn live_frames() -> ProbeAnswer {
    let frame = [0u8; 64];
    let run = xdp(&returning(XDP_DROP), 0).and_then(|program| {
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            repeat: 1,
            flags: libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES,
            ..Default::default()
        };
        // SAFETY: the frame is read only, with its true size, and outlives the call.
        let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(options.retval) }
    });
    match run {
        Ok(0) => ProbeAnswer::Supported,
        Ok(_) => ProbeAnswer::lacking("the kernel has none (before 5.18)"),
        Err(e) => ProbeAnswer::from_error(&e),
    }
}

fn socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Interprets a socket's refusal, which is about CAP_NET_RAW, not about BPF.
fn from_socket<T>(result: io::Result<T>) -> ProbeAnswer {
    match ProbeAnswer::from_result(result) {
        ProbeAnswer::Refused { errno, .. } => {
            ProbeAnswer::Refused { errno, why: "not permitted: CAP_NET_RAW missing".to_owned() }
        }
        answer => answer,
    }
}

pub fn xdp_socket() -> ProbeAnswer {
    from_socket(socket(libc::AF_XDP))
}

pub fn packet_v3() -> ProbeAnswer {
    let version: libc::c_int = libc::tpacket_versions::TPACKET_V3 as libc::c_int;
    from_socket(
        socket(libc::AF_PACKET)
            .and_then(|socket| socket_option::set(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)),
    )
}

pub fn xdp_metadata() -> ProbeAnswer {
    match kernel_function("bpf_xdp_metadata_rx_timestamp") {
        Ok(_) => ProbeAnswer::Supported,
        Err(_) if !in_kernel() => btf_in_kernel(),
        Err(_) => ProbeAnswer::lacking("the kernel has no such function (before 6.3)"),
    }
}

pub fn tai_clock() -> ProbeAnswer {
    let code = [op::call(helper::KTIME_GET_TAI_NS), op::alu_imm(op::MOV, 0, XDP_PASS), op::exit()];
    ProbeAnswer::from_result(xdp(&code, 0))
}

pub fn far_jumps() -> ProbeAnswer {
    // A jump to the next instruction: only its acceptance by the verifier matters.
    let code = [op::alu_imm(op::MOV, 0, XDP_PASS), op::goto_far(0), op::exit()];
    ProbeAnswer::from_result(xdp(&code, 0))
}

/// Tries an atomic operation that returns the value from before it.
pub fn atomics() -> ProbeAnswer {
    let code = [
        op::store_imm(op::DW, 10, -8, 0),
        op::alu_imm(op::MOV, 1, 1),
        op::atomic_fetch_add(op::DW, 10, -8, 1),
        op::alu_imm(op::MOV, 0, XDP_PASS),
        op::exit(),
    ];
    ProbeAnswer::from_result(xdp(&code, 0))
}

/// Calls the helper without a function: a kernel that has it complains of the arguments.
pub fn loops() -> ProbeAnswer {
    let code = [op::alu_imm(op::MOV, 1, 0), op::call(helper::LOOP), op::alu_imm(op::MOV, 0, XDP_PASS), op::exit()];
    match xdp(&code, 0) {
        Err(e) if e.raw_os_error() == Some(libc::EACCES) => ProbeAnswer::Supported,
        result => ProbeAnswer::from_result(result),
    }
}

/// Tries a value as large as a part of a ring's memory.
pub fn large_values() -> ProbeAnswer {
    ProbeAnswer::from_result(map(libbpf_sys::BPF_MAP_TYPE_ARRAY, 4, LARGE_VALUE, 1, 0))
}

pub fn xdp_load_bytes() -> ProbeAnswer {
    // bpf_xdp_load_bytes(ctx, 0, stack, 8); r1 holds the context from the start.
    let code = [
        op::store_imm(op::DW, 10, -8, 0),
        op::alu_imm(op::MOV, 2, 0),
        op::mov(3, 10),
        op::alu_imm(op::ADD, 3, -8),
        op::alu_imm(op::MOV, 4, 8),
        op::call(helper::XDP_LOAD_BYTES),
        op::alu_imm(op::MOV, 0, XDP_PASS),
        op::exit(),
    ];
    ProbeAnswer::from_result(xdp(&code, 0))
}

// Type information for the probes: looked up in the kernel's own, and built by hand for a small program, because
// tracing programs can only attach to programs that have some.

/// Returns true if the kernel has its own type information.
pub fn in_kernel() -> bool {
    Path::new(kernel_types::PATH).exists()
}

/// An XDP program with type information, as a target for tracing programs.
#[derive(Debug)]
pub struct Target {
    program: OwnedFd,
    types: OwnedFd,
}

/// Returns the type information of a program that consists of this one function.
fn one_function(btf: BorrowedFd<'_>) -> Types<'_> {
    const FUNCTION: &[libbpf_sys::bpf_func_info] =
        &[libbpf_sys::bpf_func_info { insn_off: 0, type_id: TARGET_FUNCTION }];
    Types { btf, functions: FUNCTION, lines: &[] }
}

impl Target {
    pub fn load() -> io::Result<Self> {
        let types = types::of_target()?;
        let code = returning(XDP_PASS);
        let program = LoadOptions { types: Some(one_function(types.as_fd())), ..LoadOptions::new("trawl_probe", XDP) }
            .load(&code)?;
        Ok(Self { program, types })
    }

    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    pub fn types(&self) -> BorrowedFd<'_> {
        self.types.as_fd()
    }
}
