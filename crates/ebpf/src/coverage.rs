//! Probes that note in a map which parts of a program ran: one byte for each basic block, set to 1 when it begins, and
//! one for each edge that the blocks do not show.

use crate::blocks::{blocks, functions};
use crate::edges::{Edge, Way, edges, reaching_their_ends};
use crate::liveness::live_before;
use crate::stack::slot_below;
use crate::{Edits, Insn, op};

const FRAME: u8 = 10;
const RAN: i32 = 1;

/// The parts of a program that probes can note. Each has a number: first the blocks, in the order of their starts, then
/// the critical edges: the block before such an edge has other ends, and the block after it has other beginnings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The first instruction of each block.
    pub blocks: Vec<usize>,
    /// The edges, each with the part that ran if and only if the edge did.
    pub edges: Vec<(Edge, usize)>,
    /// Number of parts.
    pub count: usize,
}

/// The probes of a program, by the numbers of their parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probes {
    /// Parts whose probe keeps a register on the stack meanwhile.
    pub spilled: Vec<usize>,
    /// Selected parts without a probe: all registers are in use, and the stack is full or its depth unknown.
    pub unseen: Vec<usize>,
}

/// The form of probes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Form<'p> {
    /// Descriptor of the map.
    pub map: i32,
    /// Offset of the first part's byte in the map's value. The others follow.
    pub first: u32,
    /// Depth of the stack of each function. Without it no probe uses the stack.
    pub stack_depths: Option<&'p [u32]>,
    /// True if probes keep a register on the stack even if another one is free.
    pub always_spill: bool,
}

/// The place of a probe.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Before an instruction, on each way to it.
    Before(usize),
    /// Between an instruction and the one before it.
    Between(usize),
    /// Between a conditional jump and its target.
    Jump(usize),
}

impl Parts {
    pub fn of(program: &[Insn]) -> Self {
        let blocks = blocks(program);
        let all = edges(program, &blocks);
        let reaches_end = reaching_their_ends(program, &blocks);
        let functions = functions(program);
        let mut entries: Vec<usize> =
            blocks.iter().map(|start| usize::from(functions.binary_search(start).is_ok())).collect();
        let mut exits = vec![0; blocks.len()];
        for edge in &all {
            entries[edge.to] += 1;
            exits[edge.from] += 1;
        }
        let mut count = blocks.len();
        let part = |edge: Edge| {
            let shows = if entries[edge.to] == 1 {
                edge.to
            } else if exits[edge.from] == 1 && reaches_end[edge.from] {
                edge.from
            } else {
                count += 1;
                count - 1
            };
            (edge, shows)
        };
        let edges = all.into_iter().map(part).collect();
        Self { blocks, edges, count }
    }

    /// Returns the place of each part's probe, and the instruction before which it runs.
    fn places(&self, program: &[Insn]) -> Vec<(Place, usize)> {
        let of_blocks = self.blocks.iter().map(|start| (Place::Before(*start), *start));
        let critical = self.edges.iter().filter(|(_, part)| *part >= self.blocks.len());
        let of_edges = critical.map(|(edge, _)| {
            let to = self.blocks[edge.to];
            let place = match edge.way {
                Way::Taken => Place::Jump(edge.last),
                Way::Only if program[edge.last].never_falls_through() => Place::Before(edge.last),
                Way::NotTaken | Way::Only => Place::Between(to),
            };
            (place, to)
        });
        of_blocks.chain(of_edges).collect()
    }
}

/// Adds a probe to each selected part. A probe uses a register without a value, or else keeps one on the stack.
pub fn add_probes(
    program: &[Insn],
    parts: &Parts,
    edits: &mut Edits,
    form: Form<'_>,
    selected: impl Fn(usize) -> bool,
) -> Probes {
    let Form { map, first, stack_depths, always_spill } = form;
    let live = live_before(program);
    let functions = functions(program);
    // The verifier may have removed a function.
    let stack_depths = stack_depths.filter(|depths| depths.len() == functions.len());
    let mut probes = Probes::default();
    let places = parts.places(program).into_iter().enumerate();
    for (number, (place, at)) in places.filter(|(number, _)| selected(*number)) {
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
        match place {
            Place::Before(at) => edits.insert(at, code),
            Place::Between(at) => edits.insert_apart(at, code),
            Place::Jump(at) => edits.lead_through(at, code),
        }
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

    /// Returns a program with two blocks, before each of which the registers given by the argument live.
    fn reading(registers: std::ops::Range<u8>) -> Vec<Insn> {
        let mut program = vec![op::jump_if(JEQ, 1, 0, 0)];
        program.extend(registers.map(|register| op::alu(ADD, 10, register)));
        program.extend([op::alu_imm(MOV, 0, 2), op::exit()]);
        program
    }

    fn probed(program: &[Insn], stack_depths: Option<&[u32]>, always_spill: bool) -> (Probes, Vec<Insn>) {
        let mut edits = Edits::default();
        let form = Form { map: MAP, first: 100, stack_depths, always_spill };
        let probes = add_probes(program, &Parts::of(program), &mut edits, form, |_| true);
        (probes, edits.apply(program).expect("all jumps are near").instructions)
    }

    #[test]
    fn probes_use_a_register_without_a_value() {
        let program = reading(1..2);
        let (probes, edited) = probed(&program, None, false);
        assert_eq!(probes, Probes::default());
        assert_eq!(edited[..3], set_byte(0, MAP, 100));
        assert_eq!((edited[0].imm, edited[1].imm), (MAP, 100));
        // Both ways of the jump lead to the same block, each through a probe.
        assert_eq!(edited[3..5], [op::jump_if(JEQ, 1, 0, 1), op::goto(4)]);
        assert_eq!(edited[5..8], set_byte(0, MAP, 102));
        assert_eq!(edited[8], op::goto(3));
        assert_eq!(edited[9..12], set_byte(0, MAP, 103));
        assert_eq!(edited[12..15], set_byte(0, MAP, 101));
    }

    #[test]
    fn probes_keep_a_register_on_the_stack_if_all_have_values() {
        let program = reading(0..10);
        let (probes, edited) = probed(&program, Some(&[20]), false);
        assert_eq!((probes.spilled, probes.unseen), (vec![0, 1, 2, 3], vec![]));
        assert_eq!(edited[0], op::store(DW, FRAME, -32, 6));
        assert_eq!(edited[4], op::load(DW, 6, FRAME, -32));
        for depths in [None, Some(&[505][..]), Some(&[20, 20])] {
            let (probes, edited) = probed(&program, depths, true);
            assert_eq!((probes.spilled, probes.unseen), (vec![], vec![0, 1, 2, 3]));
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
        assert_eq!(probes.spilled, [0, 1, 2, 3]);
    }

    /// Returns the part that shows each edge.
    fn shown_by(program: &[Insn]) -> Vec<(usize, usize, usize)> {
        Parts::of(program).edges.iter().map(|(edge, part)| (edge.from, edge.to, *part)).collect()
    }

    #[test]
    fn edges_without_an_alternative_are_shown_by_a_block() {
        let program = [
            op::jump_if(JEQ, 1, 0, 1), // to the exit
            op::alu_imm(MOV, 0, 1),
            op::exit(),
        ];
        // The way to the move is the only one to it. The exit has two beginnings, the jump two ends.
        assert_eq!(shown_by(&program), [(0, 2, 3), (0, 1, 1), (1, 2, 1)]);
        let loops = [op::alu_imm(MOV, 0, 1), op::jump_if(JEQ, 1, 0, -2), op::exit()];
        assert_eq!(
            shown_by(&loops),
            [(0, 0, 2), (0, 1, 1)],
            "the function's beginning is another way to its first block"
        );
    }

    #[test]
    fn edges_after_a_tail_call_have_their_own_probe() {
        let program = [
            op::jump_if(JEQ, 1, 0, 2), // to the exit
            op::call(crate::helper::TAIL_CALL),
            op::goto(0),
            op::exit(),
        ];
        assert_eq!(shown_by(&program), [(0, 2, 3), (0, 1, 1), (1, 2, 4)]);
        let (_, edited) = probed(&program, None, false);
        let goto = edited.len() - 5;
        assert_eq!(edited[goto - 4..goto], [&[op::call(12)][..], &set_byte(1, MAP, 104)].concat());
        assert_eq!(edited[goto], op::goto(0));
    }
}
