//! Rewrites an XDP program's exits: instead of returning, the main program jumps on through maps of programs, with its
//! verdict as the index, and returns the verdict if the slot is empty. Its subprograms stay as they are.
//!
//! The rewriter works on instructions as prepared by libbpf: references resolved, subprograms appended. It inserts
//! instructions in front that keep the context for later, turns each exit into a jump to a common end, and puts that
//! end after the main program. All distances between instructions are recomputed.

use std::fmt;

use trawl_ebpf::op::JUMP_INDIRECT;
use trawl_ebpf::{Edited, Edits, Insn, TooFar, helper, op, slot_below, starts, target};

/// A map that an exit jumps on through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitMap {
    /// The descriptor of a map of programs.
    pub map: i32,
    pub slots: ExitSlots,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitSlots {
    /// The verdict's own slot, for every verdict.
    Verdict,
    /// The slots of these verdicts alone. While a slot is empty the kernel patches its jump away.
    Only(Vec<u32>),
}

/// A slot that the program jumps through before it does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntrySlot {
    pub map: i32,
    pub slot: i32,
}

/// Changes to make to a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewriting {
    pub entry: Option<EntrySlot>,
    /// Maps in the order in which they are tried.
    pub exits: Vec<ExitMap>,
}

/// Reason why a program cannot be rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The stack has no room for the context, and no register is free.
    StackFull { depth: u32 },
    /// A conditional jump would exceed its range.
    TooFar { instruction: usize },
    /// A jump whose target is known only at run time.
    IndirectJump { instruction: usize },
    /// The kernel would refuse this program too.
    Malformed { instruction: usize },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StackFull { depth } => write!(
                f,
                "its stack is full ({depth} of 512 bytes) and all of its registers are in use, leaving no room for the packet's context"
            ),
            Self::TooFar { instruction } => write!(
                f,
                "its conditional jump at instruction {instruction} cannot reach across the instructions to insert"
            ),
            Self::IndirectJump { instruction } => write!(
                f,
                "its instruction {instruction} jumps to an address in a register, and such jumps cannot be followed"
            ),
            Self::Malformed { instruction } => {
                write!(f, "its instruction {instruction} leads out of the program")
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// A program as prepared by libbpf.
#[derive(Clone, Debug)]
pub struct Code {
    instructions: Vec<Insn>,
    /// Position at which the main program ends and the first subprogram begins.
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

    /// Returns the main program, without its subprograms.
    pub fn main(&self) -> &[Insn] {
        &self.instructions[..self.main]
    }

    /// Returns true if it calls functions of a kernel module, which only libbpf can resolve.
    pub fn calls_modules(&self) -> bool {
        whole(&self.instructions).any(|(_, instruction)| {
            instruction.code == op::CALL_CODE && instruction.src() == op::KERNEL_FUNCTION && instruction.off != 0
        })
    }

    /// Returns the kernel functions that it calls, by the numbers of their types.
    pub fn kernel_functions(&self) -> Vec<i32> {
        whole(&self.instructions)
            .filter(|(_, one)| one.code == op::CALL_CODE && one.src() == op::KERNEL_FUNCTION && one.off == 0)
            .map(|(_, one)| one.imm)
            .collect()
    }

    /// Returns the callee-saved registers that the main program does not use; subprograms save them themselves.
    pub fn free_registers(&self) -> Vec<u8> {
        let names = |one: &Insn, register| one.dst() == register || one.src() == register;
        (6..=9).filter(|register| !self.main().iter().any(|one| names(one, *register))).collect()
    }

    /// Returns the visible stack depth of the main program: accesses relative to the frame's end. Addresses computed
    /// otherwise are not seen.
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
                before.code == op::ALU64 | op::MOV | op::X && before.src() == FRAME && before.dst() == one.dst()
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

    pub fn rewrite(&self, plan: &Rewriting, place: ContextPlace) -> Result<Edited, Refusal> {
        lay_out(self, plan, place)
    }
}

/// Returns the instructions and their positions, without the second halves of 64-bit loads.
fn whole(instructions: &[Insn]) -> impl Iterator<Item = (usize, Insn)> {
    starts(instructions).map(|at| (at, instructions[at]))
}

const RESULT: u8 = 0;
const SECOND_ARGUMENT: u8 = 2;
const THIRD_ARGUMENT: u8 = 3;
/// Maximum distance from an exit to a shared end; it leaves room for inserted instructions.
const NEAR: usize = 32_000;

fn lay_out(program: &Code, plan: &Rewriting, place: ContextPlace) -> Result<Edited, Refusal> {
    let end = ending(&plan.exits, place);
    let mut edits = Edits::default();
    edits.begin_with(beginning(plan.entry, place));
    edits.insert_apart(program.main, end.clone());
    let exits: Vec<usize> = whole(program.main())
        .filter(|(_, instruction)| instruction.code == op::EXIT_CODE)
        .map(|(index, _)| index)
        .collect();
    // Each exit jumps to the nearest end after it.
    let mut nearest = program.main;
    for exit in exits.into_iter().rev() {
        if nearest - exit <= NEAR {
            edits.replace_by_jump(exit, nearest);
        } else {
            nearest = exit;
            edits.replace(exit, end.clone());
        }
    }
    edits.apply(&program.instructions).map_err(|TooFar { instruction }| Refusal::TooFar { instruction })
}

/// Builds the code that keeps the context, and runs the program in the entry's slot first.
fn beginning(entry: Option<EntrySlot>, place: ContextPlace) -> Vec<Insn> {
    let mut code = vec![place.save()];
    if let Some(EntrySlot { map, slot }) = entry {
        code.extend(load_map(map));
        code.push(op::mov32_imm(THIRD_ARGUMENT, slot as u32));
        code.push(op::call(helper::TAIL_CALL));
        code.push(place.restore());
    }
    code
}

/// Builds the code that jumps through the maps by the verdict, and returns the verdict if no jump succeeds.
fn ending(exits: &[ExitMap], place: ContextPlace) -> Vec<Insn> {
    // A failed jump clobbers the verdict. A slot for one verdict implies it, so it need not be kept.
    let is_kept = exits.iter().any(|exit| exit.slots == ExitSlots::Verdict);
    let verdict = if is_kept { place.register_for_verdict() } else { RESULT };
    let mut code = Vec::new();
    if is_kept {
        code.push(op::mov(verdict, RESULT));
    }
    for ExitMap { map, slots } in exits {
        match slots {
            ExitSlots::Verdict => {
                code.push(place.restore());
                code.extend(load_map(*map));
                code.push(op::mov(THIRD_ARGUMENT, verdict));
                code.push(op::call(helper::TAIL_CALL));
            }
            ExitSlots::Only(verdicts) => {
                for one in verdicts {
                    let mut jump = vec![place.restore()];
                    jump.extend(load_map(*map));
                    jump.push(op::mov32_imm(THIRD_ARGUMENT, *one));
                    jump.push(op::call(helper::TAIL_CALL));
                    if !is_kept {
                        jump.push(op::mov32_imm(RESULT, *one));
                    }
                    let other = op::JMP32 | op::JNE | op::K;
                    code.push(Insn::new(other, verdict, 0, jump.len() as i16, *one as i32));
                    code.extend(jump);
                }
            }
        }
    }
    if is_kept {
        code.push(op::mov(RESULT, verdict));
    }
    code.push(op::exit());
    code
}

fn load_map(map: i32) -> [Insn; 2] {
    op::load_immediate(op::MAP, SECOND_ARGUMENT, map)
}

const CONTEXT: u8 = 1;
const FRAME: u8 = 10;
const CALLEE_SAVED: [u8; 4] = [6, 7, 8, 9];

/// Location of the context while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextPlace {
    /// A callee-saved register that the program does not use.
    Register(u8),
    /// On the stack, at this offset from the frame's end, below all that the program uses.
    Stack(i16),
}

impl ContextPlace {
    /// Returns the position on the stack below the part that the program uses.
    pub fn below(depth: u32) -> Result<Self, Refusal> {
        slot_below(depth).map(Self::Stack).ok_or(Refusal::StackFull { depth })
    }

    fn save(self) -> Insn {
        match self {
            Self::Register(register) => op::mov(register, CONTEXT),
            Self::Stack(offset) => op::store(op::DW, FRAME, offset, CONTEXT),
        }
    }

    /// Loads the context into the register of a helper's first argument.
    fn restore(self) -> Insn {
        match self {
            Self::Register(register) => op::mov(CONTEXT, register),
            Self::Stack(offset) => op::load(op::DW, CONTEXT, FRAME, offset),
        }
    }

    /// Returns the register for the verdict: at an exit only the one that holds the context is still needed.
    fn register_for_verdict(self) -> u8 {
        CALLEE_SAVED.into_iter().find(|register| self != Self::Register(*register)).unwrap_or(CALLEE_SAVED[0])
    }
}

#[cfg(test)]
mod tests;
