//! What single instructions of a program do.

use libbpf_sys::bpf_insn;

const CLASS: u8 = 0x07;
const CLASS_LOAD: u8 = 0x00;
const CLASS_LOAD_REGISTER: u8 = 0x01;
const CLASS_STORE: u8 = 0x02;
const CLASS_STORE_REGISTER: u8 = 0x03;
const CLASS_ALU: u8 = 0x04;
const CLASS_JMP: u8 = 0x05;
const CLASS_JMP32: u8 = 0x06;
const CLASS_ALU64: u8 = 0x07;

const MODE: u8 = 0xe0;
const MODE_ATOMIC: u8 = 0xc0;
const OPERATION: u8 = 0xf0;
const FROM_REGISTER: u8 = 0x08;
const MOVE: u8 = 0xb0;
const MOVE_NUMBER: u8 = CLASS_ALU64 | MOVE;
const MOVE_NUMBER_32: u8 = CLASS_ALU | MOVE;
const GOTO: u8 = CLASS_JMP;
pub const GOTO_FAR: u8 = CLASS_JMP32;
pub const CALL: u8 = CLASS_JMP | 0x80;
const EXIT: u8 = CLASS_JMP | 0x90;
/// Sets a 64-bit register to a number, with the next instruction's number as its upper half.
pub const LOAD_IMMEDIATE: u8 = 0x18;
/// In the source register's place: a call, or an address, of another function of the program.
pub const PSEUDO_CALL: u8 = 1;
const PSEUDO_FUNCTION: u8 = 4;
/// The register that a function's result is in.
pub const RESULT: u8 = 0;

/// Where the instructions of a program begin.
pub fn places(program: &[bpf_insn]) -> impl Iterator<Item = usize> {
    let next = |at: &usize| Some(at + length(program.get(*at)?));
    std::iter::successors(Some(0), next).take_while(|at| *at < program.len())
}

/// How many places an instruction takes.
pub fn length(instruction: &bpf_insn) -> usize {
    if instruction.code == LOAD_IMMEDIATE {
        2
    } else {
        1
    }
}

pub fn goto(distance: i16) -> bpf_insn {
    bpf_insn {
        code: GOTO,
        off: distance,
        ..bpf_insn::default()
    }
}

pub fn goto_far(distance: i64) -> bpf_insn {
    bpf_insn {
        code: GOTO_FAR,
        imm: distance as i32,
        ..bpf_insn::default()
    }
}

/// A jump to the next instruction.
pub fn goes_nowhere(instruction: &bpf_insn) -> bool {
    instruction.code == GOTO && instruction.off == 0
}

/// The instruction behind this one is not the next.
pub fn never_goes_on(instruction: &bpf_insn) -> bool {
    matches!(instruction.code, GOTO | GOTO_FAR | EXIT)
}

pub fn is_exit(instruction: &bpf_insn) -> bool {
    instruction.code == EXIT
}

/// Control may go elsewhere than on, for a while or for good.
pub fn branches(instruction: &bpf_insn) -> bool {
    matches!(instruction.code & CLASS, CLASS_JMP | CLASS_JMP32)
}

/// Where an instruction keeps the distance to another one.
#[derive(Clone, Copy)]
enum Field {
    Offset,
    Immediate,
}

fn target_field(instruction: &bpf_insn) -> Option<Field> {
    match instruction.code {
        GOTO_FAR => Some(Field::Immediate),
        LOAD_IMMEDIATE => (instruction.src_reg() == PSEUDO_FUNCTION).then_some(Field::Immediate),
        CALL => (instruction.src_reg() == PSEUDO_CALL).then_some(Field::Immediate),
        EXIT => None,
        _ => branches(instruction).then_some(Field::Offset),
    }
}

/// Whether it calls another function of the program, or takes its address.
pub fn names_function(instruction: &bpf_insn) -> bool {
    matches!(instruction.code, LOAD_IMMEDIATE | CALL) && target_field(instruction).is_some()
}

/// Where an instruction's jump, call or address leads.
pub fn target(program: &[bpf_insn], at: usize) -> Option<usize> {
    let distance = match target_field(&program[at])? {
        Field::Offset => i64::from(program[at].off),
        Field::Immediate => i64::from(program[at].imm),
    };
    usize::try_from(at as i64 + 1 + distance).ok()
}

/// Gives a jump, call or address another distance; `None` if it is more than the instruction can hold.
#[must_use]
pub fn set_distance(instruction: &mut bpf_insn, distance: i64) -> Option<()> {
    match target_field(instruction)? {
        Field::Offset => instruction.off = i16::try_from(distance).ok()?,
        Field::Immediate => instruction.imm = i32::try_from(distance).ok()?,
    }
    Some(())
}

/// The number that an instruction puts into its register, if it does nothing else. One of 64 bits, which takes two
/// places, may stand for something that is put there later.
pub fn number(instruction: &bpf_insn) -> Option<u64> {
    match instruction.code {
        MOVE_NUMBER => Some(i64::from(instruction.imm) as u64),
        MOVE_NUMBER_32 => Some(u64::from(instruction.imm as u32)),
        _ => None,
    }
}

/// Whether a comparison with a number holds for a register with this value; `None` if it is no such comparison.
pub fn holds(comparison: &bpf_insn, value: u64) -> Option<bool> {
    let number = i64::from(comparison.imm) as u64;
    let (value, number) = match comparison.code & (CLASS | FROM_REGISTER) {
        CLASS_JMP => (value, number),
        CLASS_JMP32 => (value & u64::from(u32::MAX), number & u64::from(u32::MAX)),
        _ => return None,
    };
    match comparison.code & OPERATION {
        0x10 => Some(value == number),
        0x20 => Some(value > number),
        0x30 => Some(value >= number),
        0x40 => Some(value & number != 0),
        0x50 => Some(value != number),
        0xa0 => Some(value < number),
        0xb0 => Some(value <= number),
        _ => None,
    }
}

/// Whether what a register held before plays a part; of instructions that do not branch.
pub fn reads(instruction: &bpf_insn, register: u8) -> bool {
    let is = |other: u8| other == register;
    let (to, from) = (instruction.dst_reg(), instruction.src_reg());
    match instruction.code & CLASS {
        CLASS_LOAD => instruction.code != LOAD_IMMEDIATE,
        CLASS_LOAD_REGISTER => is(from),
        CLASS_STORE => is(to),
        CLASS_STORE_REGISTER => is(to) || is(from) || instruction.code & MODE == MODE_ATOMIC,
        _ => {
            let moves = instruction.code & OPERATION == MOVE;
            is(to) && !moves || is(from) && instruction.code & FROM_REGISTER != 0
        }
    }
}

/// Whether all of a register is set anew; of instructions that do not branch.
pub fn sets(instruction: &bpf_insn, register: u8) -> bool {
    instruction.dst_reg() == register
        && matches!(
            instruction.code & CLASS,
            CLASS_LOAD | CLASS_LOAD_REGISTER | CLASS_ALU | CLASS_ALU64
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u8, to: u8, from: u8, imm: i32) -> bpf_insn {
        let mut instruction = bpf_insn {
            code,
            imm,
            ..bpf_insn::default()
        };
        instruction.set_dst_reg(to);
        instruction.set_src_reg(from);
        instruction
    }

    #[test]
    fn comparisons_of_32_bits_see_only_those() {
        let unequal = instruction(CLASS_JMP | 0x50, 1, 0, -1);
        assert_eq!(holds(&unequal, u64::from(u32::MAX)), Some(true));
        assert_eq!(holds(&unequal, u64::MAX), Some(false));
        let unequal = instruction(CLASS_JMP32 | 0x50, 1, 0, -1);
        assert_eq!(holds(&unequal, u64::from(u32::MAX)), Some(false));
        // With another register, and one with signs.
        assert_eq!(holds(&instruction(0x1d, 1, 2, 0), 0), None);
        assert_eq!(holds(&instruction(0x65, 1, 0, 0), 0), None);
    }

    #[test]
    fn it_is_known_which_registers_are_read_and_set() {
        let add = instruction(0x0f, 1, 2, 0);
        assert!(reads(&add, 1) && reads(&add, 2) && sets(&add, 1) && !sets(&add, 2));
        let set = instruction(MOVE_NUMBER, 1, 0, 5);
        assert!(!reads(&set, 1) && !reads(&set, 0) && sets(&set, 1));
        let store = instruction(0x7b, 1, 2, 0);
        assert!(reads(&store, 1) && reads(&store, 2) && !sets(&store, 1));
        // A compare-and-exchange reads r0 without naming it.
        assert!(reads(&instruction(0xdb, 1, 2, 0xf1), 0));
        let swap_bytes = instruction(0xdc, 3, 0, 16);
        assert!(reads(&swap_bytes, 3) && sets(&swap_bytes, 3));
    }
}
