//! The new order of a rewritten program's instructions, and the distances between them.

use trawl_ebpf::{Insn, helper, op, target};

use super::{Code, Entry, Keep, Refusal, Rewriting, Slots, Through, whole};

const RESULT: u8 = 0;
const SECOND_ARGUMENT: u8 = 2;
const THIRD_ARGUMENT: u8 = 3;
/// An exit further than this from an end gets one of its own: some room is left for what is put in between.
const NEAR: usize = 32_000;

/// A program with its exits rewritten.
#[derive(Clone, Debug)]
pub struct Rewritten {
    pub instructions: Vec<Insn>,
    /// Where each instruction of the original stands now, and the end.
    pub moved: Vec<usize>,
}

/// What becomes of one exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    /// The end itself stands in its place.
    End,
    /// A jump to the end that stands in that exit's place, or after the main program for the main program's length.
    JumpTo(usize),
}

pub(super) fn rewrite(program: &Code, plan: &Rewriting, keep: Keep) -> Result<Rewritten, Refusal> {
    let Code { instructions, main } = program;
    let begin = beginning(plan.entry, keep);
    let end = ending(&plan.exits, keep);
    let exits = place_ends(program);
    let mut exits = exits.iter().copied().peekable();

    let mut out: Vec<Insn> = begin;
    let mut moved = Vec::with_capacity(instructions.len() + 1);
    // Jumps to ends, whose places are known only when all are laid out.
    let mut open = Vec::new();
    let mut end_after_main = 0;
    for (index, instruction) in instructions.iter().enumerate() {
        if index == *main {
            end_after_main = out.len();
            out.extend_from_slice(&end);
        }
        moved.push(out.len());
        match exits.next_if(|(exit, _)| *exit == index) {
            Some((_, Becomes::End)) => out.extend_from_slice(&end),
            Some((_, Becomes::JumpTo(to))) => {
                open.push((out.len(), to));
                out.push(op::goto(0));
            }
            None => out.push(*instruction),
        }
    }
    if *main == instructions.len() {
        end_after_main = out.len();
        out.extend_from_slice(&end);
    }
    moved.push(out.len());

    for (at, to) in open {
        let target = if to == *main {
            end_after_main
        } else {
            moved[to]
        };
        set_distance(&mut out[at], at, target).ok_or(Refusal::TooFar { instruction: at })?;
    }
    for (index, _) in whole(instructions) {
        let Some(target) = target(instructions, index) else {
            continue;
        };
        let (at, target) = (moved[index], moved[target]);
        set_distance(&mut out[at], at, target).ok_or(Refusal::TooFar { instruction: index })?;
    }
    Ok(Rewritten {
        instructions: out,
        moved,
    })
}

/// The main program's exits and what becomes of them, seen from its end: each jumps to the nearest end after it.
fn place_ends(program: &Code) -> Vec<(usize, Becomes)> {
    let exits: Vec<usize> = whole(program.main())
        .filter(|(_, instruction)| instruction.code == op::EXIT_CODE)
        .map(|(index, _)| index)
        .collect();
    let mut nearest = program.main;
    let mut placed: Vec<(usize, Becomes)> = exits
        .into_iter()
        .rev()
        .map(|exit| {
            if nearest - exit <= NEAR {
                return (exit, Becomes::JumpTo(nearest));
            }
            nearest = exit;
            (exit, Becomes::End)
        })
        .collect();
    placed.reverse();
    placed
}

/// Sets how far an instruction points; an unconditional jump may become one that reaches further.
fn set_distance(instruction: &mut Insn, at: usize, target: usize) -> Option<()> {
    let distance = target as i64 - at as i64 - 1;
    instruction.set_distance(distance).or_else(|| {
        let far = i32::try_from(distance).ok()?;
        (instruction.code == op::GOTO).then(|| *instruction = op::goto_far(far))
    })
}

/// Keeps the context, and lets the program in the entry's slot look first.
fn beginning(entry: Option<Entry>, keep: Keep) -> Vec<Insn> {
    let mut code = vec![keep.save()];
    if let Some(Entry { map, slot }) = entry {
        code.extend(load_map(map));
        code.push(op::mov32_imm(THIRD_ARGUMENT, slot as u32));
        code.push(op::call(helper::TAIL_CALL));
        code.push(keep.restore());
    }
    code
}

/// Takes the verdict in the result's register through the maps, and returns it if no jump is taken.
fn ending(exits: &[Through], keep: Keep) -> Vec<Insn> {
    // A jump that is not taken spoils it. Where the slot says what it was, it need not be kept.
    let is_kept = exits.iter().any(|exit| exit.slots == Slots::Verdict);
    let verdict = match is_kept {
        true => keep.register_for_verdict(),
        false => RESULT,
    };
    let mut code = Vec::new();
    if is_kept {
        code.push(op::mov(verdict, RESULT));
    }
    for Through { map, slots } in exits {
        match slots {
            Slots::Verdict => {
                code.push(keep.restore());
                code.extend(load_map(*map));
                code.push(op::mov(THIRD_ARGUMENT, verdict));
                code.push(op::call(helper::TAIL_CALL));
            }
            Slots::Only(verdicts) => {
                for one in verdicts {
                    let mut jump = vec![keep.restore()];
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
