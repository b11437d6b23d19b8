//! Which classic programs are taken: what the kernel's `bpf_check_classic` takes, so that a raw
//! program means the same on a socket and at a hook.

use super::{Instruction, MAX_COMPILED, MAX_RAW, MEMORY_CELLS, ancillary, op};
use crate::error::FilterError;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A person or another program wrote it: the kernel's rules.
    Raw,
    /// libpcap made it: loops and more instructions are fine.
    Compiler,
}

pub(super) fn check(program: &[Instruction], source: Source) -> Result<(), FilterError> {
    let max = match source {
        Source::Raw => MAX_RAW,
        Source::Compiler => MAX_COMPILED,
    };
    if program.is_empty() || program.len() > max {
        return Err(FilterError::Length {
            len: program.len(),
            max,
        });
    }
    for (index, &instruction) in program.iter().enumerate() {
        let fail = |reason: String| FilterError::Instruction {
            index,
            text: super::display::text(index, instruction),
            reason,
        };
        check_one(instruction, source).map_err(|reason| fail(reason.to_owned()))?;
        for target in targets(index, instruction) {
            if target < 0 || target >= program.len() as i64 {
                return Err(fail(format!(
                    "it jumps to {target}, outside the program of {} instructions",
                    program.len()
                )));
            }
            if target <= index as i64 && source == Source::Raw {
                return Err(fail("it jumps backward, which the kernel refuses".into()));
            }
        }
    }
    let last = program.len() - 1;
    if program[last].class() != op::RET {
        return Err(FilterError::Instruction {
            index: last,
            text: super::display::text(last, program[last]),
            reason: "the last instruction must be a return".into(),
        });
    }
    if source == Source::Raw {
        check_memory(program)?;
    }
    Ok(())
}

fn targets(index: usize, instruction: Instruction) -> Vec<i64> {
    if instruction.class() != op::JMP {
        return Vec::new();
    }
    let next = index as i64 + 1;
    if instruction.is_jump_always() {
        // libpcap counts the distance as signed; the kernel as unsigned, beyond any program.
        return vec![next + i64::from(instruction.k as i32)];
    }
    vec![
        next + i64::from(instruction.jt),
        next + i64::from(instruction.jf),
    ]
}

fn check_one(i: Instruction, source: Source) -> Result<(), &'static str> {
    use op::*;
    const UNKNOWN: &str = "no such instruction";
    let k_or_x = |operation: u16| i.code == i.class() | operation | (i.code & X);
    match i.class() {
        LD => match i.code & !0x07 {
            x if [W | ABS, H | ABS, B | ABS].contains(&x) => {
                // libpcap takes any number for an offset, and finds no byte there.
                if source == Source::Raw
                    && i.k >= ancillary::AD_OFF
                    && crate::lower::ancillary::Ancillary::at(i.k).is_none()
                {
                    return Err("it reads an ancillary field that the kernel does not have");
                }
                Ok(())
            }
            x if [W | IND, H | IND, B | IND, IMM, W | LEN].contains(&x) => Ok(()),
            x if x == MEM => cell(i.k),
            _ => Err(UNKNOWN),
        },
        LDX => match i.code & !0x07 {
            x if [IMM, W | LEN, B | MSH].contains(&x) => Ok(()),
            x if x == MEM => cell(i.k),
            _ => Err(UNKNOWN),
        },
        ST | STX if i.code == i.class() => cell(i.k),
        ALU => match i.code & 0xf0 {
            operation @ (ADD | SUB | MUL | AND | OR | XOR) if k_or_x(operation) => Ok(()),
            operation @ (DIV | MOD) if k_or_x(operation) => {
                if i.code & X == 0 && i.k == 0 {
                    return Err("it divides by zero");
                }
                Ok(())
            }
            operation @ (LSH | RSH) if k_or_x(operation) => {
                if i.code & X == 0 && i.k >= 32 {
                    return Err("it shifts by 32 bits or more");
                }
                Ok(())
            }
            NEG if i.code == ALU | NEG => Ok(()),
            _ => Err(UNKNOWN),
        },
        JMP => match i.code & 0xf0 {
            JA if i.code == JMP | JA => Ok(()),
            operation @ (JEQ | JGT | JGE | JSET) if k_or_x(operation) => Ok(()),
            _ => Err(UNKNOWN),
        },
        RET if i.code == RET | K || i.code == RET | A => Ok(()),
        MISC if i.code == MISC | TAX || i.code == MISC | TXA => Ok(()),
        _ => Err(UNKNOWN),
    }
}

fn cell(k: u32) -> Result<(), &'static str> {
    if k as usize >= MEMORY_CELLS {
        return Err("scratch memory has the cells M[0] to M[15]");
    }
    Ok(())
}

/// Refuses a read of a scratch cell that some path leaves unwritten, as the kernel does.
fn check_memory(program: &[Instruction]) -> Result<(), FilterError> {
    // For each instruction, the cells written on every path to it. Jumps go forward only, so one
    // pass in order sees each instruction after all that lead to it.
    let mut written_at = vec![u16::MAX; program.len()];
    let mut written: u16 = 0;
    for (index, &i) in program.iter().enumerate() {
        written &= written_at[index];
        match i.class() {
            op::ST | op::STX => written |= 1 << i.k,
            op::LD | op::LDX if i.code & !0x07 == op::MEM && written & (1 << i.k) == 0 => {
                return Err(FilterError::Instruction {
                    index,
                    text: super::display::text(index, i),
                    reason: format!("M[{}] is read before anything was stored in it", i.k),
                });
            }
            op::JMP => {
                for target in targets(index, i) {
                    written_at[target as usize] &= written;
                }
                written = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Classic;

    fn refused(text: &str) -> (usize, String) {
        match Classic::parse(text) {
            Err(FilterError::Instruction { index, reason, .. }) => (index, reason),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn the_failing_instruction_is_named() {
        for (text, index, reason) in [
            ("2,0 0 0 1,0 0 0 1", 1, "return"),
            ("2,21 5 0 1,6 0 0 0", 0, "outside"),
            ("2,21 0 1 1,6 0 0 0", 0, "outside"),
            ("2,5 0 0 4294967295,6 0 0 0", 0, "backward"),
            ("2,5 0 0 4294967294,6 0 0 0", 0, "outside"),
            ("2,52 0 0 0,6 0 0 0", 0, "zero"),
            ("2,148 0 0 0,6 0 0 0", 0, "zero"),
            ("2,100 0 0 32,6 0 0 0", 0, "32 bits"),
            ("2,2 0 0 16,6 0 0 0", 0, "M[0] to M[15]"),
            ("2,255 0 0 0,6 0 0 0", 0, "no such"),
            ("2,6 0 0 0,14 0 0 0", 1, "no such"),
            ("2,8 0 0 0,6 0 0 0", 0, "no such"),
            ("2,132 0 0 0,140 0 0 0", 1, "no such"),
            ("2,32 0 0 4294966999,6 0 0 0", 0, "ancillary"),
            ("2,96 0 0 3,6 0 0 0", 0, "M[3] is read"),
            ("4,21 0 1 1,2 0 0 3,97 0 0 3,6 0 0 0", 2, "M[3] is read"),
        ] {
            let (found, why) = refused(text);
            assert_eq!(found, index, "{text}: {why}");
            assert!(why.contains(reason), "{text}: {why}");
        }
    }

    #[test]
    fn what_the_kernel_takes_is_taken() {
        for text in [
            "1,6 0 0 0",
            "1,22 0 0 0",
            "3,2 0 0 3,97 0 0 3,6 0 0 0",
            "2,32 0 0 2147483648,6 0 0 0",
            "2,48 0 0 4294963248,6 0 0 0",
            "4,21 1 0 1,5 0 0 0,2 0 0 15,22 0 0 0",
        ] {
            Classic::parse(text).unwrap();
        }
    }
}
