//! Inserts a filter's instructions at a program's placeholder.

use crate::op::{self, LOAD_IMMEDIATE};
use crate::{Edits, Insn, functions};

/// Both halves of the placeholder load for a filter: FILTER_MARK in bpf/lib/filter.h.
pub const FILTER: i32 = 0x7477_fffe;
/// The placeholder for a filter's quick version: QUICK_MARK.
pub const QUICK_FILTER: i32 = 0x7477_fffc;
/// The placeholder for the filter that reads a copy of a frame: FRAME_MARK.
pub const FRAME_FILTER: i32 = 0x7477_fff8;
const MARK_LENGTH: usize = 2;

/// Reason why a block cannot be inserted into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The program has no placeholder.
    NoMark,
    /// The block is longer than a jump's maximum distance.
    TooLong { instructions: usize },
}

/// Returns the position of a placeholder in a program.
fn position(program: &[Insn], mark: i32) -> Option<usize> {
    program
        .windows(MARK_LENGTH)
        .position(|pair| pair[0].code == LOAD_IMMEDIATE && pair[0].imm == mark && pair[1].imm == mark)
}

/// Returns true if a program has a placeholder.
pub fn has_mark(program: &[Insn], mark: i32) -> bool {
    position(program, mark).is_some()
}

/// Returns the program with the block at the placeholder: control enters the block at its top and leaves it at its end.
/// If jumps cannot span the block, it goes after the function, with far jumps to it and back, if the kernel supports
/// them.
pub fn splice(program: &[Insn], mark: i32, block: &[Insn], far_jumps: bool) -> Result<Vec<Insn>, Unfit> {
    let at = position(program, mark).ok_or(Unfit::NoMark)?;
    let mut edits = if far_jumps { Edits::default() } else { Edits::without_far_jumps() };
    edits.replace(at, block.to_vec());
    let spliced = edits
        .apply(program)
        .or_else(|too_far| if far_jumps { after_function(program, at, block).apply(program) } else { Err(too_far) });
    Ok(spliced.map_err(|_| Unfit::TooLong { instructions: block.len() })?.instructions)
}

/// Plans the block after the first function, inside which jumps to it and back must stay.
fn after_function(program: &[Insn], at: usize, block: &[Insn]) -> Edits {
    let end = functions(program).get(1).copied().unwrap_or(program.len());
    let moved_end = end + 1 - MARK_LENGTH;
    let far = |from: usize, to: usize| op::goto_far((to as i64 - from as i64 - 1) as i32);
    let mut edits = Edits::default();
    edits.replace(at, vec![far(at, moved_end)]);
    edits.insert_apart(end, [block, &[far(moved_end + block.len(), at + 1)]].concat());
    edits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u8, off: i16, imm: i32) -> Insn {
        Insn::new(code, 0, 0, off, imm)
    }

    fn nothing() -> Insn {
        instruction(0xb7, 0, 0)
    }

    fn program() -> Vec<Insn> {
        vec![
            instruction(0x15, 4, 0), // over the placeholder, to the exit
            nothing(),
            instruction(LOAD_IMMEDIATE, 0, FILTER),
            instruction(0, 0, FILTER),
            instruction(0x05, -4, 0), // back over the placeholder, to the second instruction
            instruction(0x95, 0, 0),
        ]
    }

    #[test]
    fn jumps_over_the_filter_keep_their_targets() {
        for length in [0, 1, 2, 7, 1000] {
            let spliced =
                splice(&program(), FILTER, &vec![nothing(); length], false).expect("the program has a placeholder");
            assert_eq!(spliced.len(), 4 + length);
            assert_eq!(spliced[0].off as usize + 1, spliced.len() - 1, "forward, {length}");
            let back = spliced.len() - 2;
            assert_eq!(back as i64 + 1 + i64::from(spliced[back].off), 1, "backward, {length}");
        }
    }

    #[test]
    fn filters_too_long_for_jumps_are_refused() {
        let error = splice(&program(), FILTER, &vec![nothing(); 40_000], false).expect_err("too long");
        let instructions = 40_000;
        assert_eq!(error, Unfit::TooLong { instructions });
    }

    #[test]
    fn filters_too_long_for_jumps_go_after_the_function() {
        let call = op::call(3).with_src(op::OWN_FUNCTION);
        let mut program = program();
        program[1] = call; // of the function after the exit
        program[1].imm = 4;
        program.push(instruction(0xb7, 0, 7));
        program.push(instruction(0x95, 0, 0));
        let block = vec![instruction(0xb7, 0, 9); 40_000];
        let spliced = splice(&program, FILTER, &block, true).expect("far jumps may be used");
        let target = |at: usize| (at as i64 + 1 + i64::from(spliced[at].imm)) as usize;
        assert_eq!(spliced.len(), program.len() - 1 + block.len() + 1);
        assert_eq!(spliced[0].off as usize + 1, 4, "over the placeholder, to the exit");
        let there = target(2);
        assert_eq!((spliced[2].code, spliced[there].imm), (op::GOTO_FAR, 9));
        assert_eq!(spliced[there - 1].code, 0x95);
        let back = there + block.len();
        assert_eq!((spliced[back].code, target(back)), (op::GOTO_FAR, 3));
        assert_eq!((target(1), spliced[target(1)].imm), (back + 1, 7));
    }

    #[test]
    fn programs_without_a_placeholder_are_refused() {
        assert!(splice(&[nothing()], FILTER, &[nothing()], true).is_err());
    }
}
