//! Instructions in bpftool's notation.

use std::fmt;

use crate::{Insn, helper, op};

/// Formats a block of instructions like `bpftool prog dump xlated`, one per line.
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
            op::ST => write!(f, "*({} *)(r{dst} {:+}) = {}", self.size(), self.off, self.imm),
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
        let r = if self.code & 0x07 == op::ALU { 'w' } else { 'r' };
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
            write!(f, "if {r}{dst} {sign} {:#x} goto pc{:+}", self.imm, self.off)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::*;

    #[test]
    fn instructions_are_printed_like_bpftool() {
        for (insn, text) in [
            (mov(9, 2), "(bf) r9 = r2"),
            (alu_imm(ADD, 9, 14), "(07) r9 += 14"),
            (load(H, 7, 2, 12), "(69) r7 = *(u16 *)(r2 +12)"),
            (be(7, 16), "(dc) r7 = be16 r7"),
            (Insn::new(JMP32 | JNE | K, 7, 0, 3, 0x1111), "(56) if w7 != 0x1111 goto pc+3"),
            (Insn::new(JMP | JGT | X, 9, 3, -2, 0), "(2d) if r9 > r3 goto pc-2"),
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
}
