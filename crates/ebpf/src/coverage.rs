//! Probes that note in a map which parts of a program ran: one byte for each basic block, set to 1 when it begins.

use crate::blocks::{blocks, functions};
use crate::liveness::live_before;
use crate::stack::slot_below;
use crate::{Edits, Insn, op};

const FRAME: u8 = 10;
const RAN: i32 = 1;

/// The probes of a program. Blocks are named by their numbers, in the order of their starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probes {
    /// The first instruction of each block.
    pub blocks: Vec<usize>,
    /// Blocks whose probe keeps a register on the stack meanwhile.
    pub spilled: Vec<usize>,
    /// Selected blocks without a probe: all registers are in use, and the stack is full or its depth unknown.
    pub unseen: Vec<usize>,
}

/// Adds a probe to each selected block. Block N has the byte at the offset `first` + N in the value of the map, given by
/// its descriptor. `stack_depths` has an entry for each function; without it no probe uses the stack. If all registers
/// are in use, or always if `always_spill`, a probe keeps one on the stack if possible.
pub fn add_probes(
    program: &[Insn],
    edits: &mut Edits,
    map: i32,
    first: u32,
    stack_depths: Option<&[u32]>,
    selected: impl Fn(usize) -> bool,
    always_spill: bool,
) -> Probes {
    let live = live_before(program);
    let functions = functions(program);
    // The verifier may have removed a function.
    let stack_depths = stack_depths.filter(|depths| depths.len() == functions.len());
    let mut probes = Probes { blocks: blocks(program), ..Probes::default() };
    for (number, at) in probes.blocks.iter().copied().enumerate().filter(|(number, _)| selected(*number)) {
        let is_live = |register: &u8| live[at] >> register & 1 == 1;
        let function = functions.partition_point(|start| *start <= at) - 1;
        let slot = stack_depths.and_then(|depths| slot_below(depths[function]));
        // Calls count as reads of registers that may never have been set, which must not be stored; of these registers
        // a value is live only if an instruction reads it.
        let kept = slot.zip((6..10).find(is_live));
        let free = (0..10).find(|register| !is_live(register)).filter(|_| !always_spill || kept.is_none());
        let byte = first + number as u32;
        let code = match (free, kept) {
            (Some(register), _) => set_byte(register, map, byte).to_vec(),
            (None, Some((slot, register))) => {
                probes.spilled.push(number);
                let store = op::store(op::DW, FRAME, slot, register);
                let load = op::load(op::DW, register, FRAME, slot);
                [&[store][..], &set_byte(register, map, byte), &[load]].concat()
            }
            (None, None) => {
                probes.unseen.push(number);
                continue;
            }
        };
        edits.insert(at, code);
    }
    probes
}

fn set_byte(register: u8, map: i32, offset: u32) -> [Insn; 3] {
    let [address, half] = op::load_immediate(op::MAP_VALUE, register, map);
    [address, Insn { imm: offset as i32, ..half }, op::store_imm(op::B, register, 0, RAN)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{ADD, DW, JEQ, MOV};

    const MAP: i32 = 7;

    /// Returns a program with two blocks, before each of which the registers given by the second argument live.
    fn reading(registers: std::ops::Range<u8>) -> Vec<Insn> {
        let mut program = vec![op::jump_if(JEQ, 1, 0, 0)];
        program.extend(registers.map(|register| op::alu(ADD, 10, register)));
        program.extend([op::alu_imm(MOV, 0, 2), op::exit()]);
        program
    }

    fn probed(program: &[Insn], depths: Option<&[u32]>, always_spill: bool) -> (Probes, Vec<Insn>) {
        let mut edits = Edits::default();
        let probes = add_probes(program, &mut edits, MAP, 100, depths, |_| true, always_spill);
        (probes, edits.apply(program).expect("all jumps are near").instructions)
    }

    #[test]
    fn probes_use_a_register_without_a_value() {
        let program = reading(1..2);
        let (probes, edited) = probed(&program, None, false);
        assert_eq!(probes, Probes { blocks: vec![0, 1], ..Probes::default() });
        assert_eq!(edited[..3], set_byte(0, MAP, 100));
        assert_eq!((edited[0].imm, edited[1].imm), (MAP, 100));
        assert_eq!(edited[3], program[0]);
        assert_eq!(edited[4..7], set_byte(0, MAP, 101));
    }

    #[test]
    fn probes_keep_a_register_on_the_stack_if_all_have_values() {
        let program = reading(0..10);
        let (probes, edited) = probed(&program, Some(&[20]), false);
        assert_eq!((probes.spilled, probes.unseen), (vec![0, 1], vec![]));
        assert_eq!(edited[0], op::store(DW, FRAME, -32, 6));
        assert_eq!(edited[4], op::load(DW, 6, FRAME, -32));
        for depths in [None, Some(&[505][..]), Some(&[20, 20])] {
            let (probes, edited) = probed(&program, depths, true);
            assert_eq!((probes.spilled, probes.unseen), (vec![], vec![0, 1]));
            assert_eq!(edited, program);
        }
    }

    #[test]
    fn registers_that_may_be_unset_are_never_kept() {
        // A call reads all arguments, though the helper may have none.
        let program = [op::call(5), op::exit()];
        let (probes, edited) = probed(&program, Some(&[0]), true);
        assert_eq!((probes.spilled, edited.len()), (vec![], 5));
        let (probes, _) = probed(&reading(9..10), Some(&[0]), true);
        assert_eq!(probes.spilled, [0, 1]);
    }
}
