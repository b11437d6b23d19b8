//! Registers whose values a program may read later, found by backward data flow inside each function.

use crate::Insn;
use crate::flow::{RESULT, starts, target};
use crate::op::{CALL_CODE, EXIT_CODE, GOTO, GOTO_FAR, JUMP_INDIRECT, X};

/// The registers that hold values; the frame's address is in another.
const ALL: u16 = 0x3ff;
/// Registers of a call's arguments.
const ARGUMENTS: u16 = 0b11_1110;
/// Registers whose values a call makes unreadable.
const CLOBBERED: u16 = 0b11_1111;

/// Registers that an instruction reads, and registers whose old values nothing can read after it.
#[derive(Clone, Copy, Debug)]
struct Effect {
    reads: u16,
    ends: u16,
}

/// Returns for each instruction the registers, as bits, whose values it or a later one may read. An instruction of
/// unknown effect reads all.
pub fn live_before(program: &[Insn]) -> Vec<u16> {
    let effects: Vec<(usize, Effect)> = starts(program).map(|at| (at, Effect::of(program[at]))).collect();
    let mut live = vec![0; program.len() + 1];
    let mut is_changed = true;
    while is_changed {
        is_changed = false;
        for (at, Effect { reads, ends }) in effects.iter().rev() {
            let before = live_after(program, *at, &live) & !ends | reads;
            is_changed |= before != live[*at];
            live[*at] = before;
        }
    }
    live.truncate(program.len());
    live
}

fn live_after(program: &[Insn], at: usize, live: &[u16]) -> u16 {
    let one = program[at];
    let live_at = |next: usize| live.get(next).copied().unwrap_or(0);
    let next = if one.never_falls_through() { 0 } else { live_at(at + one.length()) };
    // The registers of another function are its own.
    let jump = target(program, at).filter(|_| !one.names_function()).map_or(0, live_at);
    next | jump
}

impl Effect {
    fn of(one: Insn) -> Self {
        let reads = |reads| Self { reads, ends: 0 };
        match one.code {
            GOTO | GOTO_FAR => reads(0),
            EXIT_CODE => reads(bit(RESULT)),
            CALL_CODE => Self { reads: ARGUMENTS, ends: CLOBBERED },
            // Calls of and jumps to an address.
            _ if one.calls() || one.code == JUMP_INDIRECT => reads(ALL),
            _ if one.branches() && one.code & X == 0 => reads(bit(one.dst())),
            _ if one.branches() => reads(bit(one.dst()) | bit(one.src())),
            _ => {
                let of = |test: fn(Insn, u8) -> bool| (0..10).filter(|r| test(one, *r)).map(bit).sum();
                let ends = if one.loads_from_packet() { CLOBBERED } else { of(Insn::sets) };
                Self { reads: of(Insn::reads), ends }
            }
        }
    }
}

fn bit(register: u8) -> u16 {
    1 << register & ALL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op;

    fn set(register: u8) -> Insn {
        op::alu_imm(op::MOV, register, 1)
    }

    fn live(program: &[Insn]) -> Vec<Vec<u8>> {
        let registers = |live: u16| (0..16).filter(|register| live >> register & 1 == 1).collect();
        live_before(program).into_iter().map(registers).collect()
    }

    #[test]
    fn values_live_from_a_load_to_the_last_read() {
        let program = [op::load(op::W, 2, 1, 0), op::mov(0, 2), op::store(op::B, 10, -1, 2), op::exit()];
        assert_eq!(live(&program), [vec![1], vec![2], vec![0, 2], vec![0]]);
    }

    #[test]
    fn calls_read_arguments_and_end_values() {
        let own = op::call(1).with_src(op::OWN_FUNCTION);
        let program = [op::call(5), own, op::exit(), op::mov(0, 7), op::exit()];
        let arguments = vec![1, 2, 3, 4, 5];
        // Registers of the second function are not the first one's.
        assert_eq!(live(&program), [arguments.clone(), arguments, vec![0], vec![7], vec![0]]);
    }

    #[test]
    fn values_live_around_a_loop() {
        let may_goto = Insn::new(0xe5, 0, 0, 2, 0);
        let program = [
            set(0),
            may_goto,
            op::alu(op::ADD, 0, 6),
            op::goto(-3),                   // to the second instruction
            op::jump_if(op::JEQ, 7, 1, -3), // to the addition
            op::exit(),
        ];
        let all = vec![0, 6, 7];
        assert_eq!(live(&program), [vec![6, 7], all.clone(), all.clone(), all.clone(), all, vec![0]]);
    }

    #[test]
    fn loads_from_packets_end_values_as_calls_do() {
        let indirect = Insn::new(0x40, 0, 7, 0, 14);
        let program = [indirect, op::alu(op::ADD, 0, 8), op::exit()];
        assert_eq!(live(&program), [vec![6, 7, 8], vec![0, 8], vec![0]]);
    }

    #[test]
    fn all_registers_live_before_a_jump_to_an_address() {
        let program = [set(3), Insn::new(JUMP_INDIRECT, 1, 0, 0, 0), op::exit()];
        let live = live_before(&program);
        assert_eq!(live, [ALL & !bit(3), ALL, bit(0)]);
    }
}
