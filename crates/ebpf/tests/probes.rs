//! Runs random programs on a small emulator, before and after edits with probes: they do the same, and exactly the bytes
//! of the blocks and edges that ran are set.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;
use trawl_ebpf::coverage::{Form, Parts, Probes, add_probes};
use trawl_ebpf::op::{
    ADD, ALU64, ATOMIC, B, CALL_CODE, COMPARE_EXCHANGE, DW, EXIT_CODE, GOTO, GOTO_FAR, JEQ, JGT, JMP, JMP32, JNE, JSET,
    K, LDX, LOAD_IMMEDIATE, MAP_VALUE, MEM, MOV, MUL, OWN_FUNCTION, ST, STX, X, XOR,
};
use trawl_ebpf::{Edge, Edits, Insn, Way, functions, op, starts};

const CONTEXT: u64 = 0xc0_ffee;
const MAP: i32 = 33;
const MAP_ADDRESS: u64 = 1 << 40;
/// Offset of the first part's byte.
const FIRST: u32 = 100;
const FUEL: usize = 2_000;
/// A helper that only returns a number.
const CLOCK: i32 = 5;
const NOW: i32 = 1_234;
/// Value of a register that is not set.
const UNSET: i32 = -77;
const LOAD_FROM_PACKET: u8 = 0x20;
const SWAP_BYTES: u8 = 0xdc;
const MAY_GOTO: u8 = 0xe5;
/// Stack that the programs use.
const DEPTH: u32 = 32;
const FUNCTION_MAX: usize = 12;

/// Effects of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Trace {
    /// Arguments of helpers.
    noted: Vec<[u64; 5]>,
    result: u64,
}

#[derive(Debug, Default)]
struct Machine {
    registers: [u64; 11],
    stack: HashMap<(usize, i16), u64>,
    frames: Vec<(usize, [u64; 4])>,
    /// Offsets of bytes that were set in the map.
    bytes: BTreeSet<u64>,
    may_goto: usize,
    trace: Trace,
    /// Instructions that ran.
    ran: BTreeSet<usize>,
    /// Conditional jumps that ran, each with whether its condition held.
    decided: BTreeSet<(usize, bool)>,
}

impl Machine {
    /// Runs a program; `None` if it runs for too long or past its end.
    fn run(code: &[Insn], fuel: usize) -> Option<Self> {
        let mut machine = Self::default();
        machine.unset(0..=9);
        machine.registers[1] = CONTEXT;
        let mut at = 0;
        for _ in 0..fuel {
            machine.ran.insert(at);
            match machine.step(code, at)? {
                Some(next) => at = next,
                None => return Some(machine),
            }
        }
        None
    }

    fn unset(&mut self, registers: std::ops::RangeInclusive<usize>) {
        self.registers[registers].fill(i64::from(UNSET) as u64);
    }

    /// Returns true if this edge of the program ran.
    fn passed(&self, edge: &Edge) -> bool {
        match edge.way {
            Way::Taken => self.decided.contains(&(edge.last, true)),
            Way::NotTaken => self.decided.contains(&(edge.last, false)),
            Way::Only => self.ran.contains(&edge.last),
        }
    }

    /// Returns the number of the next instruction; `Some(None)` at the end.
    fn step(&mut self, code: &[Insn], at: usize) -> Option<Option<usize>> {
        let one = *code.get(at)?;
        let (dst, src) = (usize::from(one.dst()), usize::from(one.src()));
        let slot = (self.frames.len(), one.off);
        let value = if one.code & X == 0 { i64::from(one.imm) as u64 } else { self.registers[src] };
        let target = |distance: i64| usize::try_from(at as i64 + 1 + distance).ok();
        match one.code {
            LOAD_IMMEDIATE => {
                let half = u64::from(code.get(at + 1)?.imm as u32);
                let number = u64::from(one.imm as u32) | half << 32;
                self.registers[dst] = if one.src() == MAP_VALUE { MAP_ADDRESS + half } else { number };
                return Some(Some(at + 2));
            }
            LOAD_FROM_PACKET => {
                let packet = self.registers[6];
                self.unset(1..=5);
                self.registers[0] = packet ^ value;
            }
            SWAP_BYTES => self.registers[dst] = u64::from((self.registers[dst] as u16).swap_bytes()),
            c if c == STX | MEM | DW => drop(self.stack.insert(slot, self.registers[src])),
            c if c == LDX | MEM | DW => self.registers[dst] = self.stack.get(&slot).copied().unwrap_or(0),
            c if c == STX | ATOMIC | DW => {
                let old = self.stack.get(&slot).copied().unwrap_or(0);
                if old == self.registers[0] {
                    self.stack.insert(slot, self.registers[src]);
                }
                self.registers[0] = old;
            }
            c if c == ST | MEM | B => {
                assert_eq!((one.off, one.imm), (0, 1));
                self.bytes.insert(self.registers[dst].checked_sub(MAP_ADDRESS).expect("an address in the map"));
            }
            CALL_CODE if one.src() == OWN_FUNCTION => {
                let saved = [6, 7, 8, 9].map(|register: usize| self.registers[register]);
                self.frames.push((at + 1, saved));
                self.stack.retain(|(frame, _), _| *frame < self.frames.len());
                self.unset(0..=0);
                self.unset(6..=9);
                return Some(Some(target(one.imm.into())?));
            }
            CALL_CODE => {
                self.trace.noted.push([1, 2, 3, 4, 5].map(|register: usize| self.registers[register]));
                self.unset(1..=5);
                self.registers[0] = NOW as u64;
            }
            EXIT_CODE => {
                self.trace.result = self.registers[0];
                let Some((back, saved)) = self.frames.pop() else { return Some(None) };
                self.unset(1..=5);
                self.registers[6..10].copy_from_slice(&saved);
                return Some(Some(back));
            }
            GOTO => return Some(Some(target(one.off.into())?)),
            GOTO_FAR => return Some(Some(target(one.imm.into())?)),
            MAY_GOTO => {
                self.may_goto += 1;
                let holds = self.may_goto.is_multiple_of(3);
                self.decided.insert((at, holds));
                return Some(Some(target(if holds { one.off.into() } else { 0 })?));
            }
            c if matches!(c & 7, JMP | JMP32) => {
                let half = if c & 7 == JMP32 { u64::from(u32::MAX) } else { u64::MAX };
                let (left, right) = (self.registers[dst] & half, value & half);
                let holds = match c & 0xf0 {
                    JEQ => left == right,
                    JNE => left != right,
                    JGT => left > right,
                    JSET => left & right != 0,
                    other => panic!("the emulator has no jump {other:#x}"),
                };
                self.decided.insert((at, holds));
                return Some(Some(target(if holds { one.off.into() } else { 0 })?));
            }
            c if c & 7 == ALU64 => {
                let old = self.registers[dst];
                self.registers[dst] = match c & 0xf0 {
                    MOV => value,
                    ADD => old.wrapping_add(value),
                    MUL => old.wrapping_mul(value),
                    XOR => old ^ value,
                    other => panic!("the emulator has no operation {other:#x}"),
                };
            }
            other => panic!("the emulator has no instruction {other:#x}"),
        }
        Some(Some(at + 1))
    }
}

/// Part of a random function: a kind of instruction, two registers, a number and a choice.
type Piece = (u8, u8, u8, i32, u16);

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    prop::collection::vec((0..18u8, 0..10u8, 0..10u8, -2..4, any::<u16>()), 0..FUNCTION_MAX * 3)
}

/// Returns a function, with jumps anywhere in it, and calls of the function after it if that exists.
fn function(pieces: &[Piece], calls: bool) -> Vec<Insn> {
    let mut code = Vec::new();
    let mut positions = Vec::new();
    for &(kind, to, from, value, choice) in pieces {
        positions.push(code.len());
        let slot = -8 * (1 + (choice % 4) as i16);
        let operation = [MOV, ADD, MUL, XOR][usize::from(choice) % 4];
        let test = [JEQ, JNE, JGT, JSET][usize::from(choice) % 4];
        match kind {
            0 | 1 => code.push(op::alu(operation, to, from)),
            2 | 3 => code.push(op::alu_imm(operation, to, value)),
            4 => code.push(op::be(to, 16)),
            5 => code.push(op::store(DW, 10, slot, from)),
            6 => code.push(op::load(DW, to, 10, slot)),
            7 => code.push(Insn::new(STX | ATOMIC | DW, 10, from, slot, COMPARE_EXCHANGE)),
            8 => code.extend(op::load_immediate(0, to, value.abs())),
            9 | 10 => code.push(Insn::new(JMP | test | X, to, from, 0, 0)),
            11 | 12 => code.push(Insn::new(JMP32 | test | K, to, 0, 0, value)),
            13 => code.push(op::goto(0)),
            14 => code.push(Insn::new(MAY_GOTO, 0, 0, 0, 0)),
            15 => code.push(Insn::new(LOAD_FROM_PACKET, 0, 0, 0, value)),
            16 => code.push(op::call(CLOCK)),
            _ if calls => code.push(op::call(0).with_src(OWN_FUNCTION)),
            _ => code.push(op::exit()),
        }
    }
    positions.push(code.len());
    code.push(op::exit());
    let end = code.len();
    for ((kind, .., choice), at) in pieces.iter().zip(positions.clone()) {
        let to = positions[usize::from(*choice) % positions.len()];
        let distance = to as i64 - at as i64 - 1;
        match kind {
            9..=14 => code[at].off = distance as i16,
            17 if calls => code[at].imm = (end - at - 1) as i32,
            _ => {}
        }
    }
    code
}

fn clobber() -> impl Iterator<Item = Insn> {
    (1..=5).map(|register| op::alu_imm(MOV, register, UNSET))
}

/// Inserts code without an effect, and replaces clocks and loads by code with the same effect.
fn edit(program: &[Insn], edits: &mut Edits, choices: u64) {
    edits.begin_with(vec![op::goto(1), op::exit()]);
    for at in starts(program).filter(|at| choices >> (at % 64) & 1 == 1) {
        let one = program[at];
        edits.insert(at, vec![op::goto(1), op::exit()]);
        if one.code == LOAD_IMMEDIATE {
            edits.replace(at, vec![op::alu_imm(MOV, one.dst(), one.imm)]);
        } else if one == op::call(CLOCK) {
            let now = op::load_immediate(0, 0, NOW);
            // The emulator notes the arguments of calls alone.
            edits.replace(at, now.into_iter().chain(clobber()).collect());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn edited_programs_do_the_same_and_mark_their_parts(
        main in pieces(),
        callee in pieces(),
        choices in prop_oneof![Just(0), any::<u64>()],
        selected in any::<u8>(),
        depth in prop::option::of(prop::sample::select(vec![DEPTH, 512])),
        always_spill in any::<bool>(),
    ) {
        let mut program = function(&main, true);
        program.extend(function(&callee, false));
        let Some(mut before) = Machine::run(&program, FUEL) else { return Ok(()) };
        let mut edits = Edits::default();
        edit(&program, &mut edits, choices);
        let depths = depth.map(|depth| vec![depth; functions(&program).len()]);
        let is_selected = |part: usize| selected >> (part % 8) & 1 == 1;
        let parts = Parts::of(&program);
        let form = Form { map: MAP, first: FIRST, stack_depths: depths.as_deref(), always_spill };
        let Probes { spilled, unseen } = add_probes(&program, &parts, &mut edits, form, is_selected);
        let edited = edits.apply(&program).expect("all jumps are near");
        let mut after = Machine::run(&edited.instructions, FUEL * 10).expect("it ends as before");

        let Parts { blocks, edges, count } = parts;
        let is_seen = |part: &usize| is_selected(*part) && !unseen.contains(part);
        let passed = (0..blocks.len()).filter(|block| before.ran.contains(&blocks[*block]));
        let passed_edges = edges.iter().filter(|(edge, _)| before.passed(edge)).map(|(_, part)| *part);
        let expected: BTreeSet<usize> = passed.chain(passed_edges).filter(is_seen).collect();
        let marked: BTreeSet<usize> = after.bytes.iter().map(|byte| (byte - u64::from(FIRST)) as usize).collect();
        prop_assert!(marked.iter().all(|part| *part < count));
        for (edge, part) in edges.iter().filter(|(_, part)| is_seen(part)) {
            prop_assert_eq!(marked.contains(part), before.passed(edge), "{:?}", edge);
        }
        prop_assert_eq!(marked, expected);
        for at in starts(&program) {
            let block = blocks.iter().rfind(|start| **start <= at).expect("the first block");
            prop_assert_eq!(before.ran.contains(&at), before.ran.contains(block));
        }
        if depth == Some(DEPTH) {
            prop_assert!(unseen.is_empty());
        } else {
            prop_assert!(spilled.is_empty());
        }
        // Nothing notes a replaced call.
        if choices != 0 {
            before.trace.noted.clear();
            after.trace.noted.clear();
        }
        prop_assert_eq!(after.trace, before.trace);
    }
}
