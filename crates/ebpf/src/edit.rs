//! Edits of a program, made all at once: code goes before instructions or replaces them, and all distances between
//! instructions are recomputed.

use std::collections::BTreeMap;

use crate::flow::{starts, target};
use crate::{Insn, op};

/// Edits, each at the number of an instruction of the unedited program, or at its end.
#[derive(Clone, Debug, Default)]
pub struct Edits {
    no_far_jumps: bool,
    places: BTreeMap<usize, Place>,
}

/// Edits at one instruction, in the order of their code.
#[derive(Clone, Debug, Default)]
struct Place {
    apart: Vec<Insn>,
    inserted: Vec<Insn>,
    replacement: Option<Replacement>,
}

#[derive(Clone, Debug)]
enum Replacement {
    Code(Vec<Insn>),
    JumpTo(usize),
    JumpThrough(Vec<Insn>),
}

/// A program with other instructions, and the new position of each old one and of the end. If code was inserted before
/// an instruction, its position is the first of the inserted code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    pub instructions: Vec<Insn>,
    pub moved: Vec<u32>,
}

/// A jump that cannot reach across the inserted code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFar {
    /// Its number in the unedited program.
    pub instruction: usize,
}

impl Edits {
    /// Creates edits that lengthen no unconditional jumps, for kernels before 6.6.
    pub fn without_far_jumps() -> Self {
        Self { no_far_jumps: true, ..Self::default() }
    }

    /// Runs this code before the program; jumps to the first instruction do not pass it.
    pub fn begin_with(&mut self, code: Vec<Insn>) {
        self.insert_apart(0, code);
    }

    /// Inserts code before an instruction; jumps, calls and addresses that lead to the instruction do not pass it.
    pub fn insert_apart(&mut self, at: usize, code: Vec<Insn>) {
        self.place(at).apart.extend(code);
    }

    /// Inserts code before an instruction; jumps, calls and addresses that lead to the instruction lead to the code.
    /// Insertions before the same instruction are in the order of the calls.
    pub fn insert(&mut self, at: usize, code: Vec<Insn>) {
        self.place(at).inserted.extend(code);
    }

    /// Replaces an instruction, a 64-bit load as a whole.
    pub fn replace(&mut self, at: usize, code: Vec<Insn>) {
        self.place(at).replacement = Some(Replacement::Code(code));
    }

    /// Replaces an instruction by an unconditional jump to another one, or to the first of the code inserted before it, apart or not.
    pub fn replace_by_jump(&mut self, at: usize, to: usize) {
        self.place(at).replacement = Some(Replacement::JumpTo(to));
    }

    /// Leads a conditional jump through code on its way to its target; it replaces other edits of the jump itself.
    pub fn lead_through(&mut self, at: usize, code: Vec<Insn>) {
        self.place(at).replacement = Some(Replacement::JumpThrough(code));
    }

    fn place(&mut self, at: usize) -> &mut Place {
        self.places.entry(at).or_default()
    }

    /// Returns the program with these edits. Its own jumps, calls and addresses keep their targets.
    pub fn apply(&self, program: &[Insn]) -> Result<Edited, TooFar> {
        let unedited = Place::default();
        let mut out: Vec<Insn> = Vec::with_capacity(program.len());
        let mut moved = Vec::with_capacity(program.len() + 1);
        // Old and new numbers of instructions with a distance, their targets, and the length of code before these.
        let mut open = Vec::new();
        for at in starts(program).chain([program.len()]) {
            let place = self.places.get(&at).unwrap_or(&unedited);
            let length = program.get(at).map_or(0, |one| one.length());
            let old = &program[at..(at + length).min(program.len())];
            out.extend_from_slice(&place.apart);
            // Nothing leads to the second half of a 64-bit load.
            moved.resize(at + old.len().max(1), out.len() as u32);
            out.extend_from_slice(&place.inserted);
            match &place.replacement {
                None => {
                    let to = old.first().and_then(|_| target(program, at));
                    open.extend(to.map(|to| (at, out.len(), to, 0)));
                    out.extend_from_slice(old);
                }
                Some(Replacement::Code(code)) => out.extend_from_slice(code),
                Some(Replacement::JumpTo(to)) => {
                    let apart = self.places.get(to).map_or(0, |place| place.apart.len());
                    open.push((at, out.len(), *to, apart));
                    out.push(op::goto(0));
                }
                Some(Replacement::JumpThrough(code)) => {
                    let over = out.len() + 1;
                    out.push(Insn { off: 1, ..old[0] });
                    out.push(op::goto(0));
                    out.extend_from_slice(code);
                    let to = target(program, at);
                    open.extend(to.map(|to| (at, out.len(), to, 0)));
                    out.push(op::goto(0));
                    let distance = out.len() - over - 1;
                    self.set_distance(&mut out[over], distance as i64).ok_or(TooFar { instruction: at })?;
                }
            }
        }
        for (at, now, to, apart) in open {
            // The kernel refuses a program with a target outside.
            let Some(to) = moved.get(to) else { continue };
            let distance = i64::from(*to) - apart as i64 - now as i64 - 1;
            self.set_distance(&mut out[now], distance).ok_or(TooFar { instruction: at })?;
        }
        Ok(Edited { instructions: out, moved })
    }

    fn set_distance(&self, instruction: &mut Insn, distance: i64) -> Option<()> {
        instruction.set_distance(distance).or_else(|| {
            let far = i32::try_from(distance).ok()?;
            let may_grow = instruction.code == op::GOTO && !self.no_far_jumps;
            may_grow.then(|| *instruction = op::goto_far(far))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value: i32) -> Insn {
        op::alu_imm(op::MOV, 0, value)
    }

    fn if_zero(off: i16) -> Insn {
        op::jump_if(op::JEQ, 1, 0, off)
    }

    #[test]
    fn jumps_pass_inserted_code_but_not_the_beginning() {
        let program = [set(1), if_zero(-2), if_zero(0), op::exit()];
        let mut edits = Edits::default();
        edits.begin_with(vec![set(9)]);
        edits.insert(0, vec![set(10)]);
        edits.insert(3, vec![set(30)]);
        edits.insert(3, vec![set(31)]);
        let Edited { instructions, moved } = edits.apply(&program).expect("near");
        let expected = [set(9), set(10), set(1), if_zero(-3), if_zero(0), set(30), set(31), op::exit()];
        assert_eq!(instructions, expected);
        assert_eq!(moved, [1, 3, 4, 5, 8]);
    }

    #[test]
    fn whole_loads_are_replaced_and_functions_found() {
        let [load, half] = op::load_immediate(op::FUNCTION, 2, 2);
        let call = |distance| op::call(distance).with_src(op::OWN_FUNCTION);
        let program = [load, half, call(1), op::exit(), set(4), op::exit()];
        let mut edits = Edits::default();
        edits.replace(0, vec![set(7)]);
        edits.insert_apart(4, vec![set(8), op::exit()]);
        edits.insert(4, vec![set(9)]);
        let Edited { instructions, moved } = edits.apply(&program).expect("near");
        let expected = [set(7), call(3), op::exit(), set(8), op::exit(), set(9), set(4), op::exit()];
        assert_eq!(instructions, expected);
        assert_eq!(moved, [0, 0, 1, 2, 5, 7, 8]);
    }

    #[test]
    fn addresses_of_functions_are_moved() {
        let [load, half] = op::load_immediate(op::FUNCTION, 2, 2);
        let mut edits = Edits::default();
        edits.insert(2, vec![set(1), set(1)]);
        let edited = edits.apply(&[load, half, op::exit(), op::exit()]).expect("near");
        assert_eq!((edited.instructions[0].imm, edited.moved[3]), (4, 5));
    }

    #[test]
    fn replacing_jumps_lead_to_code_apart() {
        let program = [op::exit(), set(1), op::exit()];
        let mut edits = Edits::default();
        edits.insert_apart(3, vec![set(5), op::exit()]);
        edits.replace_by_jump(0, 3);
        edits.replace_by_jump(2, 1);
        let edited = edits.apply(&program).expect("near");
        assert_eq!(edited.instructions, [op::goto(2), set(1), op::goto(-2), set(5), op::exit()]);
        assert_eq!(edited.moved, [0, 1, 2, 5]);
    }

    #[test]
    fn jumps_lead_through_code_that_nothing_else_passes() {
        let program = [if_zero(1), set(1), if_zero(-3), op::exit()];
        let mut edits = Edits::default();
        edits.lead_through(0, vec![set(7)]);
        edits.insert(2, vec![set(5)]);
        edits.insert_apart(2, vec![set(6)]);
        edits.lead_through(2, vec![set(8), set(9)]);
        let edited = edits.apply(&program).expect("near");
        let first = [if_zero(1), op::goto(2), set(7), op::goto(2)];
        let second = [if_zero(1), op::goto(3), set(8), set(9), op::goto(-12)];
        let expected = [&first[..], &[set(1), set(6), set(5)], &second, &[op::exit()]].concat();
        assert_eq!(edited.instructions, expected);
        assert_eq!(edited.moved, [0, 4, 6, 12, 13]);
    }

    #[test]
    fn jumps_that_lead_through_code_reach_far() {
        let program = [if_zero(1), set(1), op::exit()];
        let mut edits = Edits::default();
        edits.lead_through(0, vec![set(7)]);
        edits.insert(1, vec![set(0); 40_000]);
        let edited = edits.apply(&program).expect("it becomes far");
        assert_eq!(edited.instructions[3], op::goto_far(40_001));
    }

    #[test]
    fn unconditional_jumps_alone_become_far() {
        let across = |jump: Insn, mut edits: Edits| {
            edits.insert(2, vec![set(0); 40_000]);
            edits.apply(&[set(1), jump, set(2), op::exit()])
        };
        let far = across(op::goto(1), Edits::default()).expect("it becomes far");
        assert_eq!(far.instructions[1], op::goto_far(40_001));
        let too_far = Err(TooFar { instruction: 1 });
        assert_eq!(across(op::goto(1), Edits::without_far_jumps()), too_far);
        assert_eq!(across(if_zero(1), Edits::default()), too_far);
    }

    #[test]
    fn malformed_programs_do_not_panic() {
        let [load, _] = op::load_immediate(op::MAP, 1, 0);
        let mut edits = Edits::default();
        edits.insert(1, vec![set(1)]);
        let edited = edits.apply(&[op::goto(70), load]).expect("near");
        assert_eq!(edited.instructions, [op::goto(70), set(1), load]);
        assert!(Edits::default().apply(&[]).is_ok());
    }
}
