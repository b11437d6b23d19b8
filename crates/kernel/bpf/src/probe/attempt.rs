//! Attempts behind the probes: each creates a small instance of the feature, and releases it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use trawl_ebpf::{Insn, helper, op};
use trawl_sys::{netns, socket_option};

use super::ProbeAnswer;
use crate::link::{TcxPosition, attach_raw_tracepoint, attach_tcx, attach_tracing, attach_xdp};
use crate::program::{
    EXTENSION, LoadOptions, RAW_TRACEPOINT, SCHED_CLS, TRACING, Traced, Types, XDP, returning,
};
use crate::{arena, info, kernel_types, map, owned, typed_reads};

const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const TC_NEXT: i32 = -1;
const LOOPBACK: u32 = 1;
const NAME: &str = "trawl_probe";
const LARGE_MAP: u32 = 16 << 20;
/// A function in every kernel that can trace functions with BPF, for tests like this one.
const TRACEABLE: &str = "bpf_fentry_test1";

fn map(kind: u32, key: u32, value: u32, entries: u32, flags: u32) -> io::Result<OwnedFd> {
    map::create(NAME, kind, (key, value), entries, flags)
}

fn xdp(code: &[Insn], flags: u32) -> io::Result<OwnedFd> {
    LoadOptions {
        flags,
        expected_attach_type: libbpf_sys::BPF_XDP,
        ..LoadOptions::new(NAME, XDP)
    }
    .load(code)
}

pub fn bpf() -> ProbeAnswer {
    ProbeAnswer::from_result(map(libbpf_sys::BPF_MAP_TYPE_ARRAY, 4, 4, 1, 0))
}

pub fn btf_in_kernel() -> ProbeAnswer {
    match in_kernel() {
        true => ProbeAnswer::Supported,
        false => {
            ProbeAnswer::lacking("/sys/kernel/btf/vmlinux does not exist (CONFIG_DEBUG_INFO_BTF)")
        }
    }
}

/// Tests the JIT. Its switch is hidden in all network namespaces but the first: there a program of trawl's shows the
/// answer.
pub fn jit() -> ProbeAnswer {
    if fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").is_ok_and(|text| text.trim() == "0")
    {
        return ProbeAnswer::lacking("it is off (net.core.bpf_jit_enable is 0)");
    }
    match xdp(&returning(XDP_PASS), 0).and_then(|program| info::program(program.as_fd())) {
        Ok(about) if about.jited_bytes == 0 => {
            ProbeAnswer::lacking("the kernel interprets programs")
        }
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
    match map(libbpf_sys::BPF_MAP_TYPE_ARRAY, 4, LARGE_MAP, 1, 0) {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) && bpf().is_supported() => {
            ProbeAnswer::Refused {
                errno: libc::EPERM,
                why: "the limit on locked memory is too low for a ring of 16 MiB".to_owned(),
            }
        }
        result => ProbeAnswer::from_result(result),
    }
}

pub fn xdp_program() -> ProbeAnswer {
    ProbeAnswer::from_result(xdp(&returning(XDP_PASS), 0))
}

pub fn xdp_frags() -> ProbeAnswer {
    ProbeAnswer::from_result(xdp(&returning(XDP_PASS), libbpf_sys::BPF_F_XDP_HAS_FRAGS))
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
    in_scratch_namespace(|| {
        attach_tcx(
            program.as_fd(),
            LOOPBACK,
            libbpf_sys::BPF_TCX_INGRESS,
            TcxPosition::Last,
        )
    })
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
    let code = returning(XDP_PASS);
    let loaded = Target::load().and_then(|target| {
        LoadOptions {
            traced: Some(Traced {
                program: Some(target.program()),
                function: TARGET_FUNCTION,
            }),
            types: Some(one_function(target.types())),
            ..LoadOptions::new(NAME, EXTENSION)
        }
        .load(&code)
    });
    ProbeAnswer::from_result(loaded)
}

/// Tells whether programs can read the kernel's memory.
pub fn kernel_memory() -> ProbeAnswer {
    typed_reads::answer()
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

/// Sends one live frame, dropped by the program that makes it.
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
        let result =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
        if result < 0 {
            Err(io::Error::from_raw_os_error(-result))
        } else {
            Ok(())
        }
    });
    ProbeAnswer::from_result(run)
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
        ProbeAnswer::Refused { errno, .. } => ProbeAnswer::Refused {
            errno,
            why: "not permitted: CAP_NET_RAW missing".to_owned(),
        },
        answer => answer,
    }
}

pub fn xdp_socket() -> ProbeAnswer {
    from_socket(socket(libc::AF_XDP))
}

pub fn packet_v3() -> ProbeAnswer {
    let version: libc::c_int = libc::tpacket_versions::TPACKET_V3 as libc::c_int;
    from_socket(socket(libc::AF_PACKET).and_then(|socket| {
        socket_option::set(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)
    }))
}

pub fn xdp_metadata() -> ProbeAnswer {
    match kernel_function("bpf_xdp_metadata_rx_timestamp") {
        Ok(_) => ProbeAnswer::Supported,
        Err(_) if !in_kernel() => btf_in_kernel(),
        Err(_) => ProbeAnswer::lacking("the kernel has no such function (before 6.3)"),
    }
}

pub fn tai_clock() -> ProbeAnswer {
    let code = [
        op::call(helper::KTIME_GET_TAI_NS),
        op::alu_imm(op::MOV, 0, XDP_PASS),
        op::exit(),
    ];
    ProbeAnswer::from_result(xdp(&code, 0))
}

pub fn far_jumps() -> ProbeAnswer {
    // A jump to the next instruction: only its acceptance by the verifier matters.
    let code = [
        op::alu_imm(op::MOV, 0, XDP_PASS),
        op::goto_far(0),
        op::exit(),
    ];
    ProbeAnswer::from_result(xdp(&code, 0))
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

const KIND_INT: u32 = 1;
const KIND_PTR: u32 = 2;
const KIND_STRUCT: u32 = 4;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const LINKAGE_GLOBAL: u32 = 1;
const SIGNED: u32 = 1 << 24;

/// Returns true if the kernel has its own type information.
pub fn in_kernel() -> bool {
    Path::new(kernel_types::PATH).exists()
}

/// Returns the number of a kernel function's type.
pub fn kernel_function(name: &str) -> io::Result<u32> {
    let found = kernel_types::find(kernel_types::FUNCTION, name)?;
    found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

/// An XDP program with type information, as a target for tracing programs.
#[derive(Debug)]
pub struct Target {
    program: OwnedFd,
    types: OwnedFd,
}

/// The type number of the target's only function.
const TARGET_FUNCTION: u32 = 5;

/// Returns the type information of a program that consists of this one function.
fn one_function(btf: BorrowedFd<'_>) -> Types<'_> {
    const FUNCTION: &[libbpf_sys::bpf_func_info] = &[libbpf_sys::bpf_func_info {
        insn_off: 0,
        type_id: TARGET_FUNCTION,
    }];
    Types {
        btf,
        functions: FUNCTION,
        lines: &[],
    }
}

impl Target {
    pub fn load() -> io::Result<Self> {
        let types = load_types()?;
        let code = returning(XDP_PASS);
        let program = LoadOptions {
            types: Some(one_function(types.as_fd())),
            ..LoadOptions::new("trawl_probe", XDP)
        }
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

fn load_types() -> io::Result<OwnedFd> {
    let blob = types_of_target();
    // SAFETY: the bytes are given with their length, no options.
    let fd = unsafe {
        libbpf_sys::bpf_btf_load(blob.as_ptr().cast(), blob.len() as _, std::ptr::null_mut())
    };
    owned(fd)
}

/// Encodes `int trawl_probe(struct xdp_md *ctx)` in the format of the kernel's BTF documentation.
fn types_of_target() -> Vec<u8> {
    let mut names = vec![0u8];
    let mut name = |text: &str| {
        let at = names.len() as u32;
        names.extend_from_slice(text.as_bytes());
        names.push(0);
        at
    };
    let (int, context, argument, function) = (
        name("int"),
        name("xdp_md"),
        name("ctx"),
        name("trawl_probe"),
    );
    let info = |kind: u32, extra: u32| kind << 24 | extra;
    let types: Vec<u32> = [
        &[int, info(KIND_INT, 0), 4, SIGNED | 32][..],
        &[context, info(KIND_STRUCT, 0), 4],
        &[0, info(KIND_PTR, 0), 2],
        &[0, info(KIND_FUNC_PROTO, 1), 1, argument, 3],
        &[function, info(KIND_FUNC, LINKAGE_GLOBAL), 4],
    ]
    .concat();
    let length = types.len() as u32 * 4;
    let header = [24, 0, length, length, names.len() as u32];
    let mut blob = 0xeb9f_u16.to_ne_bytes().to_vec();
    blob.extend_from_slice(&[1, 0]);
    blob.extend(
        header
            .iter()
            .chain(&types)
            .flat_map(|word| word.to_ne_bytes()),
    );
    blob.extend_from_slice(&names);
    blob
}
