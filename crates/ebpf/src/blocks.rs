//! Parts of a program: functions, and basic blocks, each of which runs from its first instruction to its last.

use std::collections::BTreeSet;

use crate::Insn;
use crate::flow::{starts, target};

/// Returns the starts of functions: the main program's, at the beginning, and those that instructions name.
pub fn functions(program: &[Insn]) -> Vec<usize> {
    let named = starts(program).filter(|at| program[*at].names_function());
    let mut found: BTreeSet<usize> = named.filter_map(|at| target(program, at)).collect();
    found.insert(0);
    in_program(found, program)
}

/// Returns the starts of basic blocks. Calls do not end a block.
pub fn blocks(program: &[Insn]) -> Vec<usize> {
    let mut found: BTreeSet<usize> = functions(program).into_iter().collect();
    for at in starts(program).filter(|at| program[*at].branches() && !program[*at].calls()) {
        found.extend(target(program, at));
        found.insert(at + 1);
    }
    in_program(found, program)
}

fn in_program(found: BTreeSet<usize>, program: &[Insn]) -> Vec<usize> {
    found.into_iter().filter(|at| *at < program.len()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op;

    #[test]
    fn blocks_begin_at_targets_and_after_jumps() {
        let [load, half] = op::load_immediate(op::FUNCTION, 2, 7);
        let call = |distance| op::call(distance).with_src(op::OWN_FUNCTION);
        let [first, _] = op::load_immediate(op::FUNCTION, 2, 8);
        let program = [
            first,
            half,
            op::call(5),
            op::jump_if(op::JEQ, 0, 0, 2),
            load,
            half,
            op::goto(-4), // to the jump before
            call(2),
            op::exit(),
            op::exit(), // the function whose address is loaded first
            op::mov(0, 1),
            op::exit(),
            op::exit(), // the one loaded second
            op::goto(9),
        ];
        assert_eq!(functions(&program), [0, 9, 10, 12]);
        assert_eq!(blocks(&program), [0, 3, 4, 6, 7, 9, 10, 12, 13]);
    }

    #[test]
    fn jumps_that_may_be_ignored_end_blocks() {
        let may_goto = Insn::new(0xe5, 0, 0, 1, 0);
        assert_eq!(blocks(&[may_goto, op::goto_far(-2), op::exit()]), [0, 1, 2]);
        assert_eq!(blocks(&[]), []);
    }
}
