//! Removes instructions that a program's configuration makes superfluous: branches with a known outcome, and
//! unreachable code. The verifier removes unreachable code too, but only after it has verified everything. Besides, the
//! kernel sets up a program, above all its tail calls, by the instructions present at load time.

use crate::flow::{RESULT, starts, target};
use crate::{Insn, op};

/// Simplifies a program; jumps keep their targets.
pub fn simplify(program: &mut Vec<Insn>) {
    decide(program);
    remove(program, &unreached(program));
    let idle: Vec<bool> = program.iter().map(|one| one.jumps_to_next()).collect();
    remove(program, &idle);
    let unread: Vec<bool> = (0..program.len()).map(|at| is_unread(program, at)).collect();
    remove(program, &unread);
}

/// Replaces a comparison of a constant that was just loaded by a jump to its target or to the next instruction.
fn decide(program: &mut [Insn]) {
    let reached_by_jump = jump_targets(program);
    for at in starts(program).collect::<Vec<_>>() {
        let after = at + 1;
        if let Some(value) = program[at].number()
            && let Some(next) = program.get(after).copied()
            && !reached_by_jump[after]
            && next.dst() == program[at].dst()
            && let Some(holds) = next.holds(value)
        {
            program[after] = op::goto(if holds { next.off } else { 0 });
        }
    }
}

fn jump_targets(program: &[Insn]) -> Vec<bool> {
    let mut targets = vec![false; program.len() + 1];
    for at in starts(program) {
        if let Some(to) = target(program, at)
            && let Some(reached) = targets.get_mut(to)
        {
            *reached = true;
        }
    }
    targets
}

/// Returns the unreachable instructions, in the program or in its functions.
fn unreached(program: &[Insn]) -> Vec<bool> {
    let mut unreached = vec![true; program.len()];
    let mut open = vec![0];
    while let Some(at) = open.pop() {
        if at >= program.len() || !unreached[at] {
            continue;
        }
        let length = program[at].length();
        unreached[at..(at + length).min(program.len())].fill(false);
        open.extend(target(program, at));
        if !program[at].never_falls_through() {
            open.push(at + length);
        }
    }
    unreached
}

/// Returns true if an instruction loads a constant into a register that is overwritten on the straight path before any
/// read.
fn is_unread(program: &[Insn], at: usize) -> bool {
    if program[at].number().is_none() {
        return false;
    }
    let register = program[at].dst();
    let mut next = at + 1;
    while let Some(instruction) = program.get(next) {
        if instruction.code == op::EXIT_CODE {
            return register != RESULT;
        }
        if instruction.branches() || instruction.reads(register) {
            return false;
        }
        if instruction.sets(register) {
            return true;
        }
        next += instruction.length();
    }
    false
}

fn remove(program: &mut Vec<Insn>, gone: &[bool]) {
    let mut moved = Vec::with_capacity(program.len() + 1);
    let mut kept = 0usize;
    for gone in gone {
        moved.push(kept);
        kept += usize::from(!gone);
    }
    moved.push(kept);
    for at in starts(program).collect::<Vec<_>>() {
        if gone[at] {
            continue;
        }
        if let Some(to) = target(program, at) {
            let distance = moved[to] as i64 - moved[at] as i64 - 1;
            // Distances only shrink.
            let _ = program[at].set_distance(distance);
        }
    }
    let mut gone = gone.iter();
    program.retain(|_| gone.next() != Some(&true));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u8, register: u8, off: i16, imm: i32) -> Insn {
        Insn::new(code, register, 0, off, imm)
    }

    fn simplified(program: &[Insn]) -> Vec<(u8, i16, i32)> {
        let mut program = program.to_vec();
        simplify(&mut program);
        let fields = |one: &Insn| (one.code, one.off, one.imm);
        program.iter().map(fields).collect()
    }

    const SET: u8 = 0xb4;
    const IF_ZERO: u8 = 0x16;
    const IF_NOT_ZERO: u8 = 0x56;
    const EXIT: u8 = 0x95;
    const CALL: u8 = 0x85;

    #[test]
    fn branches_with_a_known_outcome_are_removed() {
        for (number, left) in [(0, 8), (7, 4)] {
            let program = [
                instruction(SET, 1, 0, number),
                instruction(IF_ZERO, 1, 2, 0),
                instruction(SET, 0, 0, 4),
                instruction(EXIT, 0, 0, 0),
                instruction(SET, 0, 0, 8),
                instruction(EXIT, 0, 0, 0),
            ];
            let expected = [(SET, 0, left), (EXIT, 0, 0)];
            assert_eq!(simplified(&program), expected);
        }
    }

    #[test]
    fn jumps_over_removed_code_become_shorter() {
        let program = [
            instruction(IF_NOT_ZERO, 2, 3, 0),
            instruction(SET, 1, 0, 1),
            instruction(IF_NOT_ZERO, 1, 1, 0),
            instruction(CALL, 0, 0, 12),
            instruction(SET, 1, 0, 2),
            instruction(IF_ZERO, 3, 0, 0),
            instruction(EXIT, 0, 0, 0),
        ];
        let expected = [(IF_NOT_ZERO, 0, 0), (SET, 0, 2), (IF_ZERO, 0, 0), (EXIT, 0, 0)];
        assert_eq!(simplified(&program), expected);
    }

    #[test]
    fn comparisons_of_unknown_values_are_kept() {
        let program = [
            instruction(SET, 1, 0, 0),
            instruction(IF_ZERO, 2, 1, 0),
            instruction(SET, 1, 0, 5),
            // Reached with either value.
            instruction(IF_ZERO, 1, 0, 0),
            instruction(EXIT, 0, 0, 0),
        ];
        assert_eq!(simplified(&program).len(), program.len());
    }

    #[test]
    fn called_functions_are_kept() {
        let call = instruction(CALL, 0, 0, 3).with_src(op::OWN_FUNCTION);
        let program = [
            instruction(SET, 1, 0, 1),
            instruction(IF_NOT_ZERO, 1, 1, 0),
            instruction(CALL, 0, 0, 12),
            call,
            instruction(EXIT, 0, 0, 0),
            // An uncalled function.
            instruction(EXIT, 0, 0, 1),
            instruction(SET, 0, 0, 9),
            instruction(EXIT, 0, 0, 0),
        ];
        let mut simple = program.to_vec();
        simple[3].imm = 2;
        simplify(&mut simple);
        let codes: Vec<u8> = simple.iter().map(|one| one.code).collect();
        assert_eq!(codes, [SET, CALL, EXIT, SET, EXIT]);
        assert_eq!(target(&simple, 1), Some(3));
    }
}
