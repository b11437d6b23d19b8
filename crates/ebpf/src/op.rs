//! Operation codes, by the names of `<linux/bpf.h>`, and constructors for the ones in use.
#![allow(missing_docs)]

use crate::Insn;

pub const LDX: u8 = 0x01;
pub const ST: u8 = 0x02;
pub const STX: u8 = 0x03;
pub const ALU: u8 = 0x04;
pub const JMP: u8 = 0x05;
pub const JMP32: u8 = 0x06;
pub const ALU64: u8 = 0x07;

/// Loads a 64-bit constant in this instruction and the next.
pub const LOAD_IMMEDIATE: u8 = 0x18;
/// Kinds of such a load, in the source register: a map, by descriptor; the address of its value; the address of a
/// kernel variable, by type number; a function of the program, by distance.
pub const MAP: u8 = 1;
pub const MAP_VALUE: u8 = 2;
pub const KERNEL_VARIABLE: u8 = 3;
pub const FUNCTION: u8 = 4;
/// Kinds of call, in the source register: of another function of the program, and of a kernel function.
pub const OWN_FUNCTION: u8 = 1;
pub const KERNEL_FUNCTION: u8 = 2;

pub const MEM: u8 = 0x60;
pub const ATOMIC: u8 = 0xc0;
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

/// Flag of an atomic operation that returns the previous value.
const FETCH: i32 = 0x01;
/// Atomic operation that compares memory with the result's register.
pub const COMPARE_EXCHANGE: i32 = 0xf0 | FETCH;

/// Complete codes.
pub const GOTO: u8 = JMP | JA;
pub const GOTO_FAR: u8 = JMP32 | JA;
/// Jumps to an address in a register.
pub const JUMP_INDIRECT: u8 = GOTO | X;
pub const CALL_CODE: u8 = JMP | CALL;
pub const EXIT_CODE: u8 = JMP | EXIT;

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
/// Converts to or from big-endian.
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
/// Adds atomically to memory at `base`.
pub const fn atomic_add(size: u8, base: u8, off: i16, src: u8) -> Insn {
    Insn::new(STX | ATOMIC | size, base, src, off, ADD as i32)
}
/// Adds atomically to memory at `base`, and loads the previous value into `src`. Requires Linux 5.12.
pub const fn atomic_fetch_add(size: u8, base: u8, off: i16, src: u8) -> Insn {
    Insn::new(STX | ATOMIC | size, base, src, off, ADD as i32 | FETCH)
}
/// Loads a map or another constant of this kind, in two slots.
pub const fn load_immediate(kind: u8, dst: u8, value: i32) -> [Insn; 2] {
    [Insn::new(LOAD_IMMEDIATE, dst, kind, 0, value), Insn::new(0, 0, 0, 0, 0)]
}
/// Skips `off` instructions if the comparison with a constant holds.
pub const fn jump_if(test: u8, dst: u8, imm: i32, off: i16) -> Insn {
    Insn::new(JMP | test | K, dst, 0, off, imm)
}
pub const fn goto(off: i16) -> Insn {
    Insn::new(GOTO, 0, 0, off, 0)
}
/// Jumps with a distance of 32 bits. Requires Linux 6.6.
pub const fn goto_far(imm: i32) -> Insn {
    Insn::new(GOTO_FAR, 0, 0, 0, imm)
}
pub const fn call(helper: i32) -> Insn {
    Insn::new(JMP | CALL, 0, 0, 0, helper)
}
pub const fn exit() -> Insn {
    Insn::new(JMP | EXIT, 0, 0, 0, 0)
}
