//! eBPF instructions: the form the kernel loads, and how bpftool shows it.

use std::fmt;

/// One eBPF instruction, laid out as the kernel's `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// An instruction from its fields.
    pub const fn new(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Self {
        Self {
            code,
            regs: dst | src << 4,
            off,
            imm,
        }
    }

    /// Destination register.
    pub const fn dst(self) -> u8 {
        self.regs & 0x0f
    }

    /// Source register.
    pub const fn src(self) -> u8 {
        self.regs >> 4
    }

    /// The instruction whose eight bytes are this number's, as they lie in memory.
    pub const fn from_u64(word: u64) -> Self {
        let [code, regs, off0, off1, imm0, imm1, imm2, imm3] = word.to_ne_bytes();
        Self {
            code,
            regs,
            off: i16::from_ne_bytes([off0, off1]),
            imm: i32::from_ne_bytes([imm0, imm1, imm2, imm3]),
        }
    }

    /// The eight bytes as they lie in memory, as one number of the host's byte order.
    pub fn to_u64(self) -> u64 {
        u64::from_ne_bytes(self.to_bytes())
    }

    /// The eight bytes as they lie in memory.
    pub fn to_bytes(self) -> [u8; 8] {
        let off = self.off.to_ne_bytes();
        let imm = self.imm.to_ne_bytes();
        [
            self.code, self.regs, off[0], off[1], imm[0], imm[1], imm[2], imm[3],
        ]
    }
}

/// Operation codes, by the names of `<linux/bpf.h>`, and constructors for those in use.
#[allow(missing_docs)]
pub mod op {
    use super::Insn;

    pub const LDX: u8 = 0x01;
    pub const ST: u8 = 0x02;
    pub const STX: u8 = 0x03;
    pub const ALU: u8 = 0x04;
    pub const JMP: u8 = 0x05;
    pub const JMP32: u8 = 0x06;
    pub const ALU64: u8 = 0x07;

    /// Loads 64 bits that stand in this instruction and the next.
    pub const LOAD_IMMEDIATE: u8 = 0x18;
    /// As its source register: the bits are the address of a map's value.
    pub const MAP_VALUE: u8 = 2;

    pub const MEM: u8 = 0x60;
    pub const W: u8 = 0x00;
    pub const H: u8 = 0x08;
    pub const B: u8 = 0x10;
    pub const DW: u8 = 0x18;

    pub const K: u8 = 0x00;
    pub const X: u8 = 0x08;

    pub const ADD: u8 = 0x00;
    pub const SUB: u8 = 0x10;
    pub const MUL: u8 = 0x20;
    pub const DIV: u8 = 0x30;
    pub const OR: u8 = 0x40;
    pub const AND: u8 = 0x50;
    pub const LSH: u8 = 0x60;
    pub const RSH: u8 = 0x70;
    pub const NEG: u8 = 0x80;
    pub const MOD: u8 = 0x90;
    pub const XOR: u8 = 0xa0;
    pub const MOV: u8 = 0xb0;
    pub const END: u8 = 0xd0;

    pub const JA: u8 = 0x00;
    pub const JEQ: u8 = 0x10;
    pub const JGT: u8 = 0x20;
    pub const JGE: u8 = 0x30;
    pub const JSET: u8 = 0x40;
    pub const JNE: u8 = 0x50;
    pub const JSLE: u8 = 0xd0;
    pub const CALL: u8 = 0x80;
    pub const EXIT: u8 = 0x90;
    pub const JLT: u8 = 0xa0;
    pub const JLE: u8 = 0xb0;

    pub const fn mov(dst: u8, src: u8) -> Insn {
        Insn::new(ALU64 | MOV | X, dst, src, 0, 0)
    }
    pub const fn mov32(dst: u8, src: u8) -> Insn {
        Insn::new(ALU | MOV | X, dst, src, 0, 0)
    }
    pub const fn mov32_imm(dst: u8, imm: u32) -> Insn {
        Insn::new(ALU | MOV | K, dst, 0, 0, imm as i32)
    }
    pub const fn alu(operation: u8, dst: u8, src: u8) -> Insn {
        Insn::new(ALU64 | operation | X, dst, src, 0, 0)
    }
    pub const fn alu_imm(operation: u8, dst: u8, imm: i32) -> Insn {
        Insn::new(ALU64 | operation | K, dst, 0, 0, imm)
    }
    pub const fn alu32(operation: u8, dst: u8, src: u8) -> Insn {
        Insn::new(ALU | operation | X, dst, src, 0, 0)
    }
    pub const fn alu32_imm(operation: u8, dst: u8, imm: u32) -> Insn {
        Insn::new(ALU | operation | K, dst, 0, 0, imm as i32)
    }
    /// To or from big-endian.
    pub const fn be(dst: u8, bits: i32) -> Insn {
        Insn::new(ALU | END | X, dst, 0, 0, bits)
    }
    pub const fn load(size: u8, dst: u8, base: u8, off: i16) -> Insn {
        Insn::new(LDX | MEM | size, dst, base, off, 0)
    }
    pub const fn store(size: u8, base: u8, off: i16, src: u8) -> Insn {
        Insn::new(STX | MEM | size, base, src, off, 0)
    }
    pub const fn store_imm(size: u8, base: u8, off: i16, imm: i32) -> Insn {
        Insn::new(ST | MEM | size, base, 0, off, imm)
    }
    pub const fn call(helper: i32) -> Insn {
        Insn::new(JMP | CALL, 0, 0, 0, helper)
    }
    pub const fn exit() -> Insn {
        Insn::new(JMP | EXIT, 0, 0, 0, 0)
    }
}

/// Helper functions that lowered filters call.
#[allow(missing_docs)]
pub mod helper {
    pub const GET_PRANDOM_U32: i32 = 7;
    pub const GET_SMP_PROCESSOR_ID: i32 = 8;
    pub const SKB_LOAD_BYTES: i32 = 26;
    pub const XDP_GET_BUFF_LEN: i32 = 188;
    pub const XDP_LOAD_BYTES: i32 = 189;

    pub(super) fn name(id: i32) -> &'static str {
        match id {
            GET_PRANDOM_U32 => "bpf_get_prandom_u32",
            GET_SMP_PROCESSOR_ID => "bpf_get_smp_processor_id",
            SKB_LOAD_BYTES => "bpf_skb_load_bytes",
            XDP_GET_BUFF_LEN => "bpf_xdp_get_buff_len",
            XDP_LOAD_BYTES => "bpf_xdp_load_bytes",
            _ => "unknown",
        }
    }
}

/// A block of instructions as `bpftool prog dump xlated` shows it, one a line.
pub fn disassemble(block: &[Insn]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for (index, insn) in block.iter().enumerate() {
        let _ = writeln!(text, "{index:4}: {insn}");
    }
    text
}

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({:02x}) ", self.code)?;
        let (dst, src) = (self.dst(), self.src());
        match self.code & 0x07 {
            op::LDX => write!(f, "r{dst} = *({} *)(r{src} {:+})", self.size(), self.off),
            op::STX => write!(f, "*({} *)(r{dst} {:+}) = r{src}", self.size(), self.off),
            op::ST => write!(
                f,
                "*({} *)(r{dst} {:+}) = {}",
                self.size(),
                self.off,
                self.imm
            ),
            op::ALU | op::ALU64 => self.fmt_alu(f),
            op::JMP | op::JMP32 => self.fmt_jump(f),
            _ => write!(f, "BUG_{:02x}", self.code),
        }
    }
}

impl Insn {
    fn size(self) -> &'static str {
        match self.code & 0x18 {
            op::W => "u32",
            op::H => "u16",
            op::B => "u8",
            _ => "u64",
        }
    }

    fn fmt_alu(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = if self.code & 0x07 == op::ALU {
            'w'
        } else {
            'r'
        };
        let (dst, src) = (self.dst(), self.src());
        let sign = match self.code & 0xf0 {
            op::NEG => return write!(f, "{r}{dst} = -{r}{dst}"),
            op::END => {
                let order = if self.code & op::X != 0 { "be" } else { "le" };
                return write!(f, "r{dst} = {order}{} r{dst}", self.imm);
            }
            op::ADD => "+=",
            op::SUB => "-=",
            op::MUL => "*=",
            op::DIV => "/=",
            op::OR => "|=",
            op::AND => "&=",
            op::LSH => "<<=",
            op::RSH => ">>=",
            op::MOD => "%=",
            op::XOR => "^=",
            op::MOV => "=",
            _ => "?=",
        };
        if self.code & op::X != 0 {
            write!(f, "{r}{dst} {sign} {r}{src}")
        } else {
            write!(f, "{r}{dst} {sign} {}", self.imm)
        }
    }

    fn fmt_jump(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wide = self.code & 0x07 == op::JMP;
        let (dst, src) = (self.dst(), self.src());
        let sign = match self.code & 0xf0 {
            op::JA if wide => return write!(f, "goto pc{:+}", self.off),
            op::JA => return write!(f, "gotol pc{:+}", self.imm),
            op::CALL => return write!(f, "call {}#{}", helper::name(self.imm), self.imm),
            op::EXIT => return write!(f, "exit"),
            op::JEQ => "==",
            op::JGT => ">",
            op::JGE => ">=",
            op::JSET => "&",
            op::JNE => "!=",
            op::JSLE => "s<=",
            op::JLT => "<",
            op::JLE => "<=",
            _ => "??",
        };
        let r = if wide { 'r' } else { 'w' };
        if self.code & op::X != 0 {
            write!(f, "if {r}{dst} {sign} {r}{src} goto pc{:+}", self.off)
        } else {
            write!(
                f,
                "if {r}{dst} {sign} {:#x} goto pc{:+}",
                self.imm, self.off
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::op::*;
    use super::*;

    #[test]
    fn instructions_read_as_bpftool_prints_them() {
        for (insn, text) in [
            (mov(9, 2), "(bf) r9 = r2"),
            (alu_imm(ADD, 9, 14), "(07) r9 += 14"),
            (load(H, 7, 2, 12), "(69) r7 = *(u16 *)(r2 +12)"),
            (be(7, 16), "(dc) r7 = be16 r7"),
            (
                Insn::new(JMP32 | JNE | K, 7, 0, 3, 0x1111),
                "(56) if w7 != 0x1111 goto pc+3",
            ),
            (
                Insn::new(JMP | JGT | X, 9, 3, -2, 0),
                "(2d) if r9 > r3 goto pc-2",
            ),
            (store(DW, 5, 8, 7), "(7b) *(u64 *)(r5 +8) = r7"),
            (store_imm(W, 5, 8, 7), "(62) *(u32 *)(r5 +8) = 7"),
            (mov32_imm(0, 1), "(b4) w0 = 1"),
            (Insn::new(ALU | NEG, 7, 0, 0, 0), "(84) w7 = -w7"),
            (call(189), "(85) call bpf_xdp_load_bytes#189"),
            (Insn::new(JMP | JA, 0, 0, 4, 0), "(05) goto pc+4"),
            (Insn::new(JMP32 | JA, 0, 0, 0, 40000), "(06) gotol pc+40000"),
            (exit(), "(95) exit"),
        ] {
            assert_eq!(insn.to_string(), text);
        }
    }

    #[test]
    fn bytes_are_the_kernels_layout() {
        let insn = load(W, 1, 2, -4);
        assert_eq!(insn.to_bytes()[..2], [0x61, 0x21]);
        assert_eq!(insn.to_u64().to_ne_bytes(), insn.to_bytes());
    }
}
