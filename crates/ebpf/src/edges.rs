//! Edges of a program: the ways from the end of a basic block to the beginning of another in the same function.

use crate::blocks::functions;
use crate::flow::{starts, target};
use crate::op::{CALL_CODE, EXIT_CODE, GOTO, GOTO_FAR, JUMP_INDIRECT, KERNEL_FUNCTION, OWN_FUNCTION};
use crate::{Insn, helper};

/// A way from a block to another, both given by their positions among the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub from: usize,
    pub to: usize,
    /// Last instruction of the first block.
    pub last: usize,
    pub way: Way,
}

/// The condition of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The condition of the jump holds.
    Taken,
    /// The condition of the jump does not hold.
    NotTaken,
    /// The block has no other end.
    Only,
}

/// Returns the edges between blocks, by the blocks at which they begin; a jump's own way precedes the other one.
pub fn edges(program: &[Insn], blocks: &[usize]) -> Vec<Edge> {
    let functions = functions(program);
    let mut edges = Vec::new();
    for (from, last) in last_instructions(program, blocks).into_iter().enumerate() {
        let one = program[last];
        let next = Some(last + one.length()).filter(|next| functions.binary_search(next).is_err());
        let ways = match one.code {
            EXIT_CODE | JUMP_INDIRECT => vec![],
            GOTO | GOTO_FAR => vec![(Way::Only, target(program, last))],
            _ if one.branches() && !one.calls() => vec![(Way::Taken, target(program, last)), (Way::NotTaken, next)],
            _ => vec![(Way::Only, next)],
        };
        // The kernel refuses a program with a target outside.
        let known = |(way, start): (Way, Option<usize>)| Some((way, blocks.binary_search(&start?).ok()?));
        edges.extend(ways.into_iter().filter_map(known).map(|(way, to)| Edge { from, to, last, way }));
    }
    edges
}

fn last_instructions(program: &[Insn], blocks: &[usize]) -> Vec<usize> {
    let mut last = blocks.to_vec();
    let mut block = 0;
    for at in starts(program) {
        block += usize::from(blocks.get(block + 1) == Some(&at));
        if let Some(last) = last.get_mut(block) {
            *last = at;
        }
    }
    last
}

/// Returns for each block whether control always reaches its end. A tail call does not return, functions of the kernel may
/// not (`bpf_throw`), and neither may functions that call them.
pub(crate) fn reaching_their_ends(program: &[Insn], blocks: &[usize]) -> Vec<bool> {
    let is_call = |one: Insn, kind| one.code == CALL_CODE && one.src() == kind;
    let may_throw = starts(program).any(|at| is_call(program[at], KERNEL_FUNCTION));
    let may_leave = |one: Insn| {
        is_call(one, 0) && one.imm == helper::TAIL_CALL
            || is_call(one, KERNEL_FUNCTION)
            || is_call(one, OWN_FUNCTION) && may_throw
    };
    let mut reaches = vec![true; blocks.len()];
    for at in starts(program).filter(|at| may_leave(program[*at])) {
        let block = blocks.partition_point(|start| *start <= at).saturating_sub(1);
        reaches[block] = false;
    }
    reaches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{blocks, op};

    fn found(program: &[Insn]) -> Vec<(usize, usize, Way)> {
        edges(program, &blocks(program)).iter().map(|edge| (edge.from, edge.to, edge.way)).collect()
    }

    #[test]
    fn conditional_jumps_have_two_edges() {
        let may_goto = Insn::new(0xe5, 0, 0, 1, 0);
        let program = [
            op::jump_if(op::JEQ, 1, 0, 1), // to the goto
            may_goto,                      // to the exit
            op::goto(0),
            op::exit(),
        ];
        let expected =
            [(0, 2, Way::Taken), (0, 1, Way::NotTaken), (1, 3, Way::Taken), (1, 2, Way::NotTaken), (2, 3, Way::Only)];
        assert_eq!(found(&program), expected);
    }

    #[test]
    fn edges_stay_in_their_function() {
        let [load, half] = op::load_immediate(0, 2, 7);
        let program = [
            op::call(4).with_src(op::OWN_FUNCTION), // of the function at the end
            op::goto_far(0),
            load,
            half,
            op::exit(),
            op::alu_imm(op::MOV, 0, 1),
            op::goto(-2),
            op::goto(70),
        ];
        assert_eq!(found(&program), [(0, 1, Way::Only), (2, 2, Way::Only)]);
        assert_eq!(found(&[]), []);
    }

    #[test]
    fn calls_may_leave_a_block_before_its_end() {
        let mut program = [
            op::call(helper::TAIL_CALL),
            op::goto(0),
            op::call(helper::KTIME_GET_NS),
            op::goto(0),
            op::call(1).with_src(op::OWN_FUNCTION),
            op::exit(),
            op::exit(),
        ];
        let blocks = blocks(&program);
        assert_eq!(reaching_their_ends(&program, &blocks), [false, true, true, true]);
        program[2] = op::call(1000).with_src(op::KERNEL_FUNCTION);
        assert_eq!(reaching_their_ends(&program, &blocks), [false, false, false, true]);
    }
}
