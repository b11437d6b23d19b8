//! Small BPF programs that the probes and the sender load.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use trawl_ebpf::{Insn, op};

use crate::bpf::load_program;

/// The program that does nothing but answer.
pub fn returning(value: i32) -> [Insn; 2] {
    [op::alu_imm(op::MOV, 0, value), op::exit()]
}

/// What to load and how; the rest of `bpf_prog_load_opts` stays zero.
#[derive(Clone, Copy, Debug)]
pub struct SmallProgram<'a> {
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

impl<'a> SmallProgram<'a> {
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
        load_program(
            (self.kind, name, "GPL"),
            self.instructions,
            &mut options,
            None,
        )
    }
}
