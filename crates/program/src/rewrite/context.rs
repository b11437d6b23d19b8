//! Where the packet's context is kept from a program's entry to its exits.

use trawl_ebpf::{Insn, op};

use super::Refusal;

const CONTEXT: u8 = 1;
pub(super) const FRAME: u8 = 10;
/// What a program, with the subprograms it is in the middle of calling, may have.
pub const STACK_SIZE: u32 = 512;
const SLOT: u32 = 8;
const CALLEE_SAVED: [u8; 4] = [6, 7, 8, 9];

/// The place of the context while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// A register that a call preserves and that the program does not use.
    Register(u8),
    /// On the stack, this far from the frame's end, below all that the program uses of it.
    Stack(i16),
}

impl Keep {
    /// The stack below what the program uses of it.
    pub fn below(depth: u32) -> Result<Self, Refusal> {
        let bottom = depth.next_multiple_of(SLOT) + SLOT;
        match i16::try_from(bottom) {
            Ok(bottom) if u32::from(bottom.unsigned_abs()) <= STACK_SIZE => {
                Ok(Self::Stack(-bottom))
            }
            _ => Err(Refusal::StackFull { depth }),
        }
    }

    pub(super) fn save(self) -> Insn {
        match self {
            Self::Register(register) => op::mov(register, CONTEXT),
            Self::Stack(offset) => op::store(op::DW, FRAME, offset, CONTEXT),
        }
    }

    /// Into the register of a helper's first argument.
    pub(super) fn restore(self) -> Insn {
        match self {
            Self::Register(register) => op::mov(CONTEXT, register),
            Self::Stack(offset) => op::load(op::DW, CONTEXT, FRAME, offset),
        }
    }

    /// At an exit no register is needed any more but the one that the context is in.
    pub(super) fn register_for_verdict(self) -> u8 {
        CALLEE_SAVED
            .into_iter()
            .find(|register| self != Self::Register(*register))
            .unwrap_or(CALLEE_SAVED[0])
    }
}
