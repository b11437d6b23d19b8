//! Type information for the probes: looked up in the kernel's own, and made by hand for a small program,
//! because tracing programs attach to nothing that has none.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::program::{LoadOptions, Types, XDP, returning};
use crate::{kernel_types, owned};

const KIND_INT: u32 = 1;
const KIND_PTR: u32 = 2;
const KIND_STRUCT: u32 = 4;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const LINKAGE_GLOBAL: u32 = 1;
const SIGNED: u32 = 1 << 24;
const XDP_PASS: i32 = 2;

/// Whether the kernel carries its own type information.
pub fn in_kernel() -> bool {
    Path::new(kernel_types::PATH).exists()
}

/// The number of a kernel function's type.
pub fn kernel_function(name: &str) -> io::Result<u32> {
    let found = kernel_types::find(kernel_types::FUNCTION, name)?;
    found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

/// An XDP program with type information: something for tracing programs to attach to.
#[derive(Debug)]
pub struct Target {
    program: OwnedFd,
    types: OwnedFd,
}

/// The type number of the target's only function.
pub const TARGET_FUNCTION: u32 = 5;

/// What a program that is this one function has to say of its types.
pub fn one_function(btf: BorrowedFd<'_>) -> Types<'_> {
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

/// `int trawl_probe(struct xdp_md *ctx)`, as the kernel's BTF documentation lays it out.
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
