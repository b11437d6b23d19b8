//! Classic programs as `tcpdump -d` shows them, to the column.

use super::{Classic, Instruction, op};
use std::fmt;

impl fmt::Display for Classic {
    /// One line for each instruction, exactly as `tcpdump -d` (libpcap's `bpf_image`).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, &instruction) in self.instructions().iter().enumerate() {
            writeln!(f, "{}", line(index, instruction))?;
        }
        Ok(())
    }
}

fn line(index: usize, i: Instruction) -> String {
    let (name, operand) = parts(index, i);
    let next = index + 1;
    if i.class() == op::JMP && !i.is_jump_always() {
        format!(
            "({index:03}) {name:<8} {operand:<16} jt {}\tjf {}",
            next + usize::from(i.jt),
            next + usize::from(i.jf)
        )
    } else {
        format!("({index:03}) {name:<8} {operand}")
    }
}

/// The instruction in a message: name and operand only.
pub(super) fn text(index: usize, i: Instruction) -> String {
    let (name, operand) = parts(index, i);
    format!("{name} {operand}").trim_end().to_owned()
}

fn parts(index: usize, i: Instruction) -> (&'static str, String) {
    use op::*;
    // libpcap prints offsets and most constants as signed numbers.
    let signed = i.k as i32;
    let absolute = |name| (name, format!("[{signed}]"));
    let indirect = |name| (name, format!("[x + {signed}]"));
    let memory = |name| (name, format!("M[{signed}]"));
    match i.code {
        code if code == LD | W | ABS => absolute("ld"),
        code if code == LD | H | ABS => absolute("ldh"),
        code if code == LD | B | ABS => absolute("ldb"),
        code if code == LD | W | IND => indirect("ld"),
        code if code == LD | H | IND => indirect("ldh"),
        code if code == LD | B | IND => indirect("ldb"),
        code if code == LD | W | LEN => ("ld", "#pktlen".into()),
        code if code == LDX | W | LEN => ("ldx", "#pktlen".into()),
        code if code == LD | IMM => ("ld", format!("#{:#x}", i.k)),
        code if code == LDX | IMM => ("ldx", format!("#{:#x}", i.k)),
        code if code == LDX | B | MSH => ("ldxb", format!("4*([{signed}]&0xf)")),
        code if code == LD | MEM => memory("ld"),
        code if code == LDX | MEM => memory("ldx"),
        ST => memory("st"),
        STX => memory("stx"),
        code if code == RET | K => ("ret", format!("#{signed}")),
        code if code == RET | A => ("ret", String::new()),
        code if code == JMP | JA => ("ja", (index as i64 + 1 + i64::from(signed)).to_string()),
        code if code == ALU | NEG => ("neg", String::new()),
        code if code == MISC | TAX => ("tax", String::new()),
        code if code == MISC | TXA => ("txa", String::new()),
        _ if i.class() == ALU || i.class() == JMP => operation(i),
        _ => ("unimp", format!("{:#x}", i.code)),
    }
}

fn operation(i: Instruction) -> (&'static str, String) {
    use op::*;
    let name = match (i.class(), i.code & 0xf0) {
        (ALU, ADD) => "add",
        (ALU, SUB) => "sub",
        (ALU, MUL) => "mul",
        (ALU, DIV) => "div",
        (ALU, MOD) => "mod",
        (ALU, AND) => "and",
        (ALU, OR) => "or",
        (ALU, XOR) => "xor",
        (ALU, LSH) => "lsh",
        (ALU, RSH) => "rsh",
        (JMP, JEQ) => "jeq",
        (JMP, JGT) => "jgt",
        (JMP, JGE) => "jge",
        (JMP, JSET) => "jset",
        _ => return ("unimp", format!("{:#x}", i.code)),
    };
    let operand = if i.code & X != 0 {
        "x".into()
    } else if i.class() == JMP || ["and", "or", "xor"].contains(&name) {
        format!("#{:#x}", i.k)
    } else {
        format!("#{}", i.k as i32)
    };
    (name, operand)
}
