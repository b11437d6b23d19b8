//! Properties of single instructions, and their control flow.

use crate::Insn;
use crate::op::{
    ALU, ALU64, ATOMIC, CALL_CODE, COMPARE_EXCHANGE, END, EXIT_CODE, FUNCTION, GOTO, GOTO_FAR, JEQ, JGE, JGT, JLE, JLT,
    JMP, JMP32, JNE, JSET, LDX, LOAD_IMMEDIATE, MOV, OWN_FUNCTION, ST, STX, X,
};

const CLASS: u8 = 0x07;
const CLASS_LOAD: u8 = 0x00;
const MODE: u8 = 0xe0;
const OPERATION: u8 = 0xf0;
const MOVE_NUMBER: u8 = ALU64 | MOV;
const MOVE_NUMBER_32: u8 = ALU | MOV;
/// Register of a function's result.
pub(crate) const RESULT: u8 = 0;
/// Register of the packet's address for loads from packets.
const PACKET: u8 = 6;

/// Returns the indices of instructions, without the second halves of 64-bit loads.
pub fn starts(program: &[Insn]) -> impl Iterator<Item = usize> {
    let next = |at: &usize| Some(at + program.get(*at)?.length());
    std::iter::successors(Some(0), next).take_while(|at| *at < program.len())
}

/// Returns the index that an instruction's jump, call or address refers to.
pub fn target(program: &[Insn], at: usize) -> Option<usize> {
    usize::try_from(at as i64 + 1 + program[at].distance()?).ok()
}

/// The field of an instruction that contains a distance.
#[derive(Clone, Copy)]
enum Field {
    Offset,
    Immediate,
}

impl Insn {
    /// Returns the number of slots.
    pub const fn length(self) -> usize {
        if self.code == LOAD_IMMEDIATE { 2 } else { 1 }
    }

    /// Returns true for a jump to the next instruction.
    pub(crate) fn jumps_to_next(self) -> bool {
        self.code == GOTO && self.off == 0
    }

    /// Returns true if the next instruction never follows this one.
    pub(crate) fn never_falls_through(self) -> bool {
        matches!(self.code, GOTO | GOTO_FAR | EXIT_CODE)
    }

    /// Returns true if control may leave the straight path, temporarily or not.
    pub fn branches(self) -> bool {
        matches!(self.code & CLASS, JMP | JMP32)
    }

    /// Returns true if control comes back to the next instruction.
    pub(crate) fn calls(self) -> bool {
        self.code & !X == CALL_CODE
    }

    fn target_field(self) -> Option<Field> {
        match self.code {
            GOTO_FAR => Some(Field::Immediate),
            LOAD_IMMEDIATE | CALL_CODE => self.names_function().then_some(Field::Immediate),
            EXIT_CODE => None,
            _ => self.branches().then_some(Field::Offset),
        }
    }

    /// Returns true if it calls another function of the program, or loads its address.
    pub fn names_function(self) -> bool {
        matches!((self.code, self.src()), (LOAD_IMMEDIATE, FUNCTION) | (CALL_CODE, OWN_FUNCTION))
    }

    /// Returns the distance of its jump, call or address, from the next instruction.
    pub fn distance(self) -> Option<i64> {
        Some(match self.target_field()? {
            Field::Offset => i64::from(self.off),
            Field::Immediate => i64::from(self.imm),
        })
    }

    /// Sets the distance of a jump, call or address; `None` if it exceeds the instruction's field.
    #[must_use]
    pub fn set_distance(&mut self, distance: i64) -> Option<()> {
        match self.target_field()? {
            Field::Offset => self.off = i16::try_from(distance).ok()?,
            Field::Immediate => self.imm = i32::try_from(distance).ok()?,
        }
        Some(())
    }

    /// Returns the constant that it moves into its register, if it does nothing else. A 64-bit load, in two slots, may
    /// stand for a value inserted later.
    pub fn number(self) -> Option<u64> {
        match self.code {
            MOVE_NUMBER => Some(i64::from(self.imm) as u64),
            MOVE_NUMBER_32 => Some(u64::from(self.imm as u32)),
            _ => None,
        }
    }

    /// Returns whether a comparison with a constant holds for this value; `None` for other instructions.
    pub(crate) fn holds(self, value: u64) -> Option<bool> {
        let number = i64::from(self.imm) as u64;
        let (value, number) = match self.code & (CLASS | X) {
            JMP => (value, number),
            JMP32 => (value & u64::from(u32::MAX), number & u64::from(u32::MAX)),
            _ => return None,
        };
        match self.code & OPERATION {
            JEQ => Some(value == number),
            JGT => Some(value > number),
            JGE => Some(value >= number),
            JSET => Some(value & number != 0),
            JNE => Some(value != number),
            JLT => Some(value < number),
            JLE => Some(value <= number),
            _ => None,
        }
    }

    /// Returns true if the register's old value matters; for instructions that do not branch.
    pub(crate) fn reads(self, register: u8) -> bool {
        let (to, from) = (self.dst() == register, self.src() == register);
        match self.code & CLASS {
            CLASS_LOAD => self.loads_from_packet() && (from || register == PACKET),
            LDX => from,
            ST => to,
            STX => to || from || register == RESULT && self.compares_and_exchanges(),
            // The source bit of a byte swap stands for big-endian.
            _ => match self.code & OPERATION {
                END => to,
                MOV => from && self.code & X != 0,
                _ => to || from && self.code & X != 0,
            },
        }
    }

    fn compares_and_exchanges(self) -> bool {
        self.code & MODE == ATOMIC && self.imm == COMPARE_EXCHANGE
    }

    /// Returns true for classic BPF's loads, which the kernel makes by a call.
    pub(crate) fn loads_from_packet(self) -> bool {
        self.code & CLASS == CLASS_LOAD && self.code != LOAD_IMMEDIATE
    }

    /// Returns true if it overwrites the whole register; for instructions that do not branch.
    pub fn sets(self, register: u8) -> bool {
        self.dst() == register && matches!(self.code & CLASS, CLASS_LOAD | LDX | ALU | ALU64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op;

    #[test]
    fn comparisons_of_32_bits_ignore_the_upper_half() {
        let unequal = op::jump_if(op::JNE, 1, -1, 0);
        assert_eq!(unequal.holds(u64::from(u32::MAX)), Some(true));
        assert_eq!(unequal.holds(u64::MAX), Some(false));
        let unequal = Insn::new(JMP32 | JNE, 1, 0, 0, -1);
        assert_eq!(unequal.holds(u64::from(u32::MAX)), Some(false));
        // A comparison with another register, and a signed one.
        assert_eq!(Insn::new(0x1d, 1, 2, 0, 0).holds(0), None);
        assert_eq!(Insn::new(0x65, 1, 0, 0, 0).holds(0), None);
    }

    #[test]
    fn registers_read_and_set_are_found() {
        let add = op::alu(op::ADD, 1, 2);
        assert!(add.reads(1) && add.reads(2) && add.sets(1) && !add.sets(2));
        let set = op::alu_imm(op::MOV, 1, 5);
        assert!(!set.reads(1) && !set.reads(0) && set.sets(1));
        let store = op::store(op::DW, 1, 0, 2);
        assert!(store.reads(1) && store.reads(2) && !store.sets(1));
        // A compare-and-exchange reads r0 without naming it.
        assert!(Insn::new(0xdb, 1, 2, 0, 0xf1).reads(0));
        let swap_bytes = op::be(3, 16);
        assert!(swap_bytes.reads(3) && swap_bytes.sets(3) && !swap_bytes.reads(0));
        let add_atomically = op::atomic_add(op::DW, 1, 0, 2);
        assert!(add_atomically.reads(1) && add_atomically.reads(2) && !add_atomically.reads(0));
        let from_packet = Insn::new(0x40, 0, 3, 0, 12);
        assert!(from_packet.reads(6) && from_packet.reads(3) && !from_packet.reads(1));
    }
}
