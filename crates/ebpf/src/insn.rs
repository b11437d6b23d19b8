//! One eBPF instruction, in the form that the kernel loads.

/// One eBPF instruction, laid out as the kernel's `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Insn {
    /// Operation.
    pub code: u8,
    /// Destination register in the low four bits, source register in the high four.
    pub regs: u8,
    /// Jump distance or memory offset.
    pub off: i16,
    /// Constant.
    pub imm: i32,
}

const _: () = assert!(size_of::<Insn>() == 8);

impl Insn {
    /// Creates an instruction from its fields.
    pub const fn new(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Self {
        Self { code, regs: dst | src << 4, off, imm }
    }

    /// Returns the same with another source register, which in loads and calls is the kind of constant.
    #[must_use]
    pub const fn with_src(self, src: u8) -> Self {
        Self { regs: self.dst() | src << 4, ..self }
    }

    /// Returns the destination register.
    pub const fn dst(self) -> u8 {
        self.regs & 0x0f
    }

    /// Returns the source register.
    pub const fn src(self) -> u8 {
        self.regs >> 4
    }

    /// Returns the eight bytes in memory order.
    pub fn to_bytes(self) -> [u8; 8] {
        let off = self.off.to_ne_bytes();
        let imm = self.imm.to_ne_bytes();
        [self.code, self.regs, off[0], off[1], imm[0], imm[1], imm[2], imm[3]]
    }
}

#[cfg(test)]
mod tests {
    use crate::op;

    #[test]
    fn bytes_are_the_kernels_layout() {
        let insn = op::load(op::W, 1, 2, -4);
        assert_eq!(insn.to_bytes(), [0x61, 0x21, 0xfc, 0xff, 0, 0, 0, 0]);
        assert_eq!(insn.with_src(5).to_bytes()[..2], [0x61, 0x51]);
    }
}
