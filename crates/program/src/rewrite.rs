//! An XDP program's exits, rewritten: instead of returning, the main program jumps on through maps of programs, with
//! its verdict as the index, and returns the verdict where nobody sits there. Its subprograms stay as they are.
//!
//! The rewriting works on instructions as libbpf has prepared them: references resolved, subprograms appended. It
//! puts a few in front, which keep the context for later, turns each exit into a jump to a common end, and puts that
//! end after the main program. All distances between instructions are set anew.

mod context;
mod layout;

#[cfg(test)]
mod tests;

use std::fmt;

use trawl_ebpf::{Insn, op, places, target};

use context::FRAME;
pub use context::{Keep, STACK_SIZE};
pub use layout::Rewritten;

/// A jump to where a register says: nothing tells which instructions it reaches.
const JUMP_INDIRECT: u8 = op::GOTO | op::X;

/// Where an exit jumps on through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Through {
    /// The descriptor of a map of programs.
    pub map: i32,
    pub slots: Slots,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slots {
    /// The verdict's own, whatever the verdict is.
    Verdict,
    /// Those of these verdicts alone. While a slot is empty the kernel patches its jump away.
    Only(Vec<u32>),
}

/// A slot that the program jumps through before it does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub map: i32,
    pub slot: i32,
}

/// What a program is to become.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewriting {
    pub entry: Option<Entry>,
    /// In the order in which they are tried.
    pub exits: Vec<Through>,
}

/// Why a program cannot be rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The stack has no room for the context, and no register is free.
    StackFull { depth: u32 },
    /// A conditional jump would have to reach further than it can.
    TooFar { instruction: usize },
    /// A jump whose target is only known while the program runs.
    IndirectJump { instruction: usize },
    /// Not what the kernel would take either.
    Malformed { instruction: usize },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StackFull { depth } => write!(
                f,
                "its stack is full ({depth} of 512 bytes) and all of its registers are in use, so that there is no place for the packet's context"
            ),
            Self::TooFar { instruction } => write!(
                f,
                "its conditional jump at instruction {instruction} cannot reach over what has to be put in"
            ),
            Self::IndirectJump { instruction } => write!(
                f,
                "its instruction {instruction} jumps to where a register says, and such jumps cannot be followed"
            ),
            Self::Malformed { instruction } => {
                write!(f, "its instruction {instruction} leads out of the program")
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// A program as libbpf has prepared it.
#[derive(Clone, Debug)]
pub struct Code {
    instructions: Vec<Insn>,
    /// Where the main program ends and the first subprogram begins.
    main: usize,
}

impl Code {
    pub fn new(instructions: Vec<Insn>) -> Result<Self, Refusal> {
        let mut main = instructions.len();
        for (index, instruction) in whole(&instructions) {
            if instruction.code == JUMP_INDIRECT {
                return Err(Refusal::IndirectJump { instruction: index });
            }
            if instruction.distance().is_none() {
                continue;
            }
            let target = target(&instructions, index)
                .filter(|target| *target < instructions.len())
                .ok_or(Refusal::Malformed { instruction: index })?;
            if instruction.names_function() {
                main = main.min(target);
            }
        }
        match main {
            0 => Err(Refusal::Malformed { instruction: 0 }),
            _ => Ok(Self { instructions, main }),
        }
    }

    /// The main program, without its subprograms.
    pub fn main(&self) -> &[Insn] {
        &self.instructions[..self.main]
    }

    /// Whether it calls functions of a kernel module, which only libbpf knows how to name.
    pub fn calls_modules(&self) -> bool {
        whole(&self.instructions).any(|(_, instruction)| {
            instruction.code == op::CALL_CODE
                && instruction.src() == op::KERNEL_FUNCTION
                && instruction.off != 0
        })
    }

    /// The kernel's own functions that it calls, by the numbers of their types.
    pub fn kernel_functions(&self) -> Vec<i32> {
        whole(&self.instructions)
            .filter(|(_, one)| {
                one.code == op::CALL_CODE && one.src() == op::KERNEL_FUNCTION && one.off == 0
            })
            .map(|(_, one)| one.imm)
            .collect()
    }

    /// The callee-saved registers that the main program leaves alone; subprograms save them themselves.
    pub fn free_registers(&self) -> Vec<u8> {
        let names = |one: &Insn, register| one.dst() == register || one.src() == register;
        (6..=9)
            .filter(|register| !self.main().iter().any(|one| names(one, *register)))
            .collect()
    }

    /// How deep the stack of the main program is as far as one can see: what it names by the frame's end. Addresses
    /// that it works out in other ways are not seen.
    pub fn stack_in_sight(&self) -> u32 {
        let mut before: Option<Insn> = None;
        let mut deepest = 0;
        for (_, one) in whole(&self.instructions[..self.main]) {
            let base = match one.code & 0x07 {
                op::LDX => Some(one.src()),
                op::ST | op::STX => Some(one.dst()),
                _ => None,
            };
            let moved = before.is_some_and(|before| {
                before.code == op::ALU64 | op::MOV | op::X
                    && before.src() == FRAME
                    && before.dst() == one.dst()
            });
            let offset = match base {
                Some(FRAME) => i32::from(one.off),
                _ if moved && one.code == op::ALU64 | op::ADD | op::K => one.imm,
                _ => 0,
            };
            deepest = deepest.max(offset.min(0).unsigned_abs());
            before = Some(one);
        }
        deepest
    }

    pub fn rewrite(&self, plan: &Rewriting, keep: Keep) -> Result<Rewritten, Refusal> {
        layout::rewrite(self, plan, keep)
    }
}

/// The instructions without the second halves of 64-bit loads, with their places.
fn whole(instructions: &[Insn]) -> impl Iterator<Item = (usize, Insn)> {
    places(instructions).map(|at| (at, instructions[at]))
}
