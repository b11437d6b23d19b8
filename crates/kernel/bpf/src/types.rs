//! Type information (BTF) that is built by hand, for small programs and maps without an object file.

use std::io;
use std::os::fd::OwnedFd;

use super::owned;

const KIND_INT: u32 = 1;
const KIND_PTR: u32 = 2;
const KIND_STRUCT: u32 = 4;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const LINKAGE_GLOBAL: u32 = 1;
const SIGNED: u32 = 1 << 24;

/// The number of the only function in [`of_target`].
pub(crate) const TARGET_FUNCTION: u32 = 5;
/// The numbers of the types of key and value in [`of_lock`].
pub(crate) const LOCK_KEY: u32 = 1;
pub(crate) const LOCK_VALUE: u32 = 3;

/// Loads the types of `int trawl_probe(struct xdp_md *ctx)`.
pub(crate) fn of_target() -> io::Result<OwnedFd> {
    let mut names = Names::new();
    let int = names.add("int");
    let context = names.add("xdp_md");
    let argument = names.add("ctx");
    let function = names.add("trawl_probe");
    let types: [&[u32]; 5] = [
        &[int, info(KIND_INT, 0), 4, SIGNED | 32],
        &[context, info(KIND_STRUCT, 0), 4],
        &[0, info(KIND_PTR, 0), 2],
        &[0, info(KIND_FUNC_PROTO, 1), 1, argument, 3],
        &[function, info(KIND_FUNC, LINKAGE_GLOBAL), 4],
    ];
    load(&types.concat(), &names)
}

/// Loads the types of a map whose value is `struct lock_of_capture` of bpf/lib/ring.h.
pub(crate) fn of_lock() -> io::Result<OwnedFd> {
    let mut names = Names::new();
    let number = names.add("unsigned int");
    let kernels = names.add("bpf_spin_lock");
    let own = names.add("lock_of_capture");
    let (value, lock, taken) = (names.add("val"), names.add("lock"), names.add("taken"));
    let types: [&[u32]; 3] = [
        &[number, info(KIND_INT, 0), 4, 32],
        &[kernels, info(KIND_STRUCT, 1), 4, value, 1, 0],
        &[own, info(KIND_STRUCT, 2), 8, lock, 2, 0, taken, 1, 32],
    ];
    load(&types.concat(), &names)
}

/// Returns the second word of a type: its kind, and the number of its members.
fn info(kind: u32, members: u32) -> u32 {
    kind << 24 | members
}

/// The section of names, which begins with an empty one.
struct Names(Vec<u8>);

impl Names {
    fn new() -> Self {
        Self(vec![0])
    }

    /// Adds a name, and returns its offset.
    fn add(&mut self, text: &str) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
        at
    }
}

/// Encodes types in the format of the kernel's BTF documentation, and loads them.
fn load(types: &[u32], names: &Names) -> io::Result<OwnedFd> {
    let length = types.len() as u32 * 4;
    let header = [24, 0, length, length, names.0.len() as u32];
    let mut blob = 0xeb9f_u16.to_ne_bytes().to_vec();
    blob.extend_from_slice(&[1, 0]);
    let words = header.iter().chain(types);
    blob.extend(words.flat_map(|word| word.to_ne_bytes()));
    blob.extend_from_slice(&names.0);
    // SAFETY: the bytes are given with their length, no options.
    owned(unsafe { libbpf_sys::bpf_btf_load(blob.as_ptr().cast(), blob.len() as _, std::ptr::null_mut()) })
}
