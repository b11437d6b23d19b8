//! Small BPF programs written as instructions: what the probes and the sender load.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// One instruction, laid out as struct bpf_insn.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    code: u8,
    /// Destination in the low nibble, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const _: () = assert!(size_of::<Insn>() == size_of::<libbpf_sys::bpf_insn>());
const _: () = assert!(align_of::<Insn>() == align_of::<libbpf_sys::bpf_insn>());

const ALU64_MOV_K: u8 = 0xb7;
const ALU64_MOV_X: u8 = 0xbf;
const ALU64_ADD_K: u8 = 0x07;
const ST_DW: u8 = 0x7a;
const JMP_CALL: u8 = 0x85;
const LOAD_WIDE: u8 = 0x18;
const ATOMIC_DW: u8 = 0xdb;
const JMP32_JA: u8 = 0x06;
const JMP_EXIT: u8 = 0x95;

impl Insn {
    const fn new(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Self {
        Self {
            code,
            registers: destination | source << 4,
            offset,
            immediate,
        }
    }

    /// `register = value`
    pub const fn set(register: u8, value: i32) -> Self {
        Self::new(ALU64_MOV_K, register, 0, 0, value)
    }

    /// `register = from`
    pub const fn copy(register: u8, from: u8) -> Self {
        Self::new(ALU64_MOV_X, register, from, 0, 0)
    }

    /// `register += value`
    pub const fn add(register: u8, value: i32) -> Self {
        Self::new(ALU64_ADD_K, register, 0, 0, value)
    }

    /// `*(u64 *)(base + offset) = value`
    pub const fn store_u64(base: u8, offset: i16, value: i32) -> Self {
        Self::new(ST_DW, base, 0, offset, value)
    }

    /// `register = map`; takes the place of two instructions.
    pub const fn map(register: u8, map: RawFd) -> [Self; 2] {
        const MAP_BY_DESCRIPTOR: u8 = 1;
        [
            Self::new(LOAD_WIDE, register, MAP_BY_DESCRIPTOR, 0, map),
            Self::new(0, 0, 0, 0, 0),
        ]
    }

    /// `register = from`, an address in the program's arena.
    pub const fn to_arena(register: u8, from: u8) -> Self {
        Self::new(ALU64_MOV_X, register, from, 1, 1)
    }

    /// `*(u64 *)(base + offset) += register`, as one step.
    pub const fn atomic_add_u64(base: u8, offset: i16, register: u8) -> Self {
        Self::new(ATOMIC_DW, base, register, offset, 0)
    }

    /// Calls a helper by its number.
    pub const fn call(helper: u32) -> Self {
        Self::new(JMP_CALL, 0, 0, 0, helper as i32)
    }

    /// Goes on so many instructions behind the next, at any distance.
    pub const fn jump_far(distance: i32) -> Self {
        Self::new(JMP32_JA, 0, 0, 0, distance)
    }

    pub const fn exit() -> Self {
        Self::new(JMP_EXIT, 0, 0, 0, 0)
    }
}

/// The program that does nothing but answer.
pub fn returning(value: i32) -> [Insn; 2] {
    [Insn::set(0, value), Insn::exit()]
}

/// What to load and how; the rest of `bpf_prog_load_opts` stays zero.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// `BPF_PROG_TYPE_…`
    pub kind: u32,
    pub instructions: &'a [Insn],
    /// `BPF_…` attach type
    pub attach_type: u32,
    /// `BPF_F_…`
    pub flags: u32,
    /// What a tracing program is attached to, by BTF id.
    pub attach_btf_id: u32,
    /// The program that a tracing program is attached to, 0 for the kernel itself.
    pub attach_program: RawFd,
    /// Type information, and the number of the type of the program's function in it.
    pub types: Option<(BorrowedFd<'a>, u32)>,
}

impl<'a> Program<'a> {
    pub fn new(kind: u32, instructions: &'a [Insn]) -> Self {
        Self {
            kind,
            instructions,
            attach_type: 0,
            flags: 0,
            attach_btf_id: 0,
            attach_program: 0,
            types: None,
        }
    }

    /// Loads it; the error is the kernel's errno.
    pub fn load(&self, name: &str) -> io::Result<OwnedFd> {
        let name = CString::new(name)?;
        // struct bpf_func_info: the function starts at instruction 0.
        let function = [0, self.types.map_or(0, |(_, id)| id)];
        let mut options = libbpf_sys::bpf_prog_load_opts {
            sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as _,
            attempts: 1,
            expected_attach_type: self.attach_type,
            prog_flags: self.flags,
            attach_btf_id: self.attach_btf_id,
            attach_prog_fd: self.attach_program as u32,
            ..Default::default()
        };
        if let Some((types, _)) = self.types {
            options.prog_btf_fd = types.as_raw_fd() as u32;
            options.func_info = function.as_ptr().cast();
            options.func_info_cnt = 1;
            options.func_info_rec_size = size_of_val(&function) as u32;
        }
        // SAFETY: Insn has the layout of bpf_insn, the count is the slice's own; name, options
        // and function outlive the call.
        let fd = unsafe {
            libbpf_sys::bpf_prog_load(
                self.kind,
                name.as_ptr(),
                c"GPL".as_ptr(),
                self.instructions.as_ptr().cast(),
                self.instructions.len() as _,
                &raw mut options,
            )
        };
        owned(fd)
    }
}

/// The descriptor that a libbpf call returned, or its negative errno as an error.
pub(crate) fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the call succeeded, so this is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
