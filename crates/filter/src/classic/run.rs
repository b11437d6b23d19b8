//! A plain interpreter with libpcap's semantics, and the kernel's where programs come from elsewhere, as a second opinion
//! and for files.

use super::{Classic, MAX_BACKWARD_JUMPS, MEMORY_CELLS, op};

/// Big-endian value of the `size` bytes at `offset`, if they are all there.
fn load(bytes: &[u8], offset: u64, size: u16) -> Option<u32> {
    let width = match size {
        op::W => 4,
        op::H => 2,
        _ => 1,
    };
    let start = usize::try_from(offset).ok()?;
    let field = bytes.get(start..start.checked_add(width)?)?;
    Some(field.iter().fold(0, |value, &b| value << 8 | u32::from(b)))
}

/// What a program said of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassicAnswer {
    /// What it returned; 0 is "no match".
    pub value: u32,
    /// Whether it was stopped because it jumped backward too often.
    pub gave_up: bool,
}

/// Runs the program.
pub(super) fn run(program: &Classic, bytes: &[u8], length: u32) -> ClassicAnswer {
    // Each turn of libpcap's loops goes on to a header at least eight bytes after the one before; there are few loops.
    let most = MAX_BACKWARD_JUMPS.max(bytes.len() as u32);
    run_within(program, bytes, length, most)
}

/// Runs the program with at most this many jumps backward.
pub(super) fn run_within(program: &Classic, bytes: &[u8], length: u32, most: u32) -> ClassicAnswer {
    let mut backward = 0;
    let value = step_through(program, bytes, length, most, &mut backward).unwrap_or(0);
    ClassicAnswer {
        value,
        gave_up: backward > most,
    }
}

fn step_through(
    classic: &Classic,
    bytes: &[u8],
    length: u32,
    most: u32,
    backward: &mut u32,
) -> Option<u32> {
    use op::*;
    // Ancillary fields are not known in a file.
    let fixed = |k: u32| classic.offset(k).map(u64::from);
    let program = classic.instructions();
    let (mut a, mut x) = (0u32, 0u32);
    let mut state = 0;
    let mut memory = [0u32; MEMORY_CELLS];
    let mut pc = 0usize;
    loop {
        let i = *program.get(pc)?;
        pc += 1;
        let operand = if i.code & X != 0 { x } else { i.k };
        match i.class() {
            LD => {
                a = match i.code & 0xe0 {
                    IMM => i.k,
                    ABS => load(bytes, fixed(i.k)?, i.code & 0x18)?,
                    IND if classic.wraps() => {
                        load(bytes, x.wrapping_add(i.k).into(), i.code & 0x18)?
                    }
                    IND => load(bytes, u64::from(x) + u64::from(i.k), i.code & 0x18)?,
                    MEM => memory[i.k as usize],
                    _ => length,
                }
            }
            LDX => {
                x = match i.code & 0xe0 {
                    IMM => i.k,
                    MEM => memory[i.k as usize],
                    LEN => length,
                    _ => (load(bytes, fixed(i.k)?, B)? & 0xf) << 2,
                }
            }
            ST => memory[i.k as usize] = a,
            STX => memory[i.k as usize] = x,
            ALU => {
                a = match i.code & 0xf0 {
                    ADD => a.wrapping_add(operand),
                    SUB => a.wrapping_sub(operand),
                    MUL => a.wrapping_mul(operand),
                    DIV => a.checked_div(operand)?,
                    MOD => a.checked_rem(operand)?,
                    AND => a & operand,
                    OR => a | operand,
                    XOR => a ^ operand,
                    LSH => a.checked_shl(operand).unwrap_or(0),
                    RSH => a.checked_shr(operand).unwrap_or(0),
                    _ => a.wrapping_neg(),
                }
            }
            JMP => {
                if i.is_jump_always() {
                    let distance = i.k as i32;
                    if distance < 0 {
                        *backward += 1;
                        if *backward > most {
                            return None;
                        }
                    }
                    pc = pc.checked_add_signed(distance as isize)?;
                    continue;
                }
                if let Some(table) = classic.find_at(pc - 1) {
                    let table = &classic.tables()[table];
                    let next = table.look_up(if table.is_first { 0 } else { state }, a);
                    // The last word leads to nothing: another may be looked up under the same state.
                    if !table.is_last {
                        state = next;
                    }
                    pc += usize::from(if next != 0 { i.jt } else { i.jf });
                    continue;
                }
                let holds = match i.code & 0xf0 {
                    JEQ => a == operand,
                    JGT => a > operand,
                    JGE => a >= operand,
                    _ => a & operand != 0,
                };
                pc += usize::from(if holds { i.jt } else { i.jf });
            }
            RET => return Some(if i.code & 0x18 == A { a } else { i.k }),
            _ => {
                if i.code & 0xf8 == TXA {
                    a = x;
                } else {
                    x = a;
                }
            }
        }
    }
}
