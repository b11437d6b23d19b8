//! Runs rewritten programs on a small emulator: programs behave as before, and their exits jump through the maps first.

use proptest::prelude::*;
use trawl_ebpf::Insn;
use trawl_ebpf::helper::TAIL_CALL;
use trawl_ebpf::op::{
    self, CALL_CODE as CALL, EXIT_CODE as EXIT, FUNCTION as PSEUDO_FUNCTION, GOTO as JUMP, GOTO_FAR as JUMP_FAR,
    LOAD_IMMEDIATE, OWN_FUNCTION as PSEUDO_CALL,
};

use super::*;

const CONTEXT: u64 = 0x00c0_ffee;
const HOOK: i32 = 33;
const NEXT: i32 = 44;
const FUEL: usize = 20_000;

/// Observable effects of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Trace {
    /// Numbers noted by the helper 1000.
    noted: Vec<u64>,
    result: u64,
    /// Attempted jumps: context, map and slot.
    jumps: Vec<(u64, u64, u64)>,
}

/// Runs a program; `None` if it runs for too long or past its end.
fn run(code: &[Insn]) -> Option<Trace> {
    let mut registers = [0u64; 11];
    registers[1] = CONTEXT;
    let mut stack: std::collections::HashMap<i64, u64> = std::collections::HashMap::new();
    let mut frames: Vec<(usize, [u64; 4])> = Vec::new();
    let mut trace = Trace::default();
    let mut at = 0usize;
    for _ in 0..FUEL {
        let one = *code.get(at)?;
        let (dst, src) = (usize::from(one.dst()), usize::from(one.src()));
        let wide = one.code & 7 == op::JMP;
        at += 1;
        match one.code {
            LOAD_IMMEDIATE => {
                registers[dst] = one.imm as u32 as u64 | u64::from(code.get(at)?.imm as u32) << 32;
                at += 1;
            }
            c if c == op::ALU64 | op::MOV | op::X => registers[dst] = registers[src],
            c if c == op::ALU64 | op::MOV | op::K => registers[dst] = one.imm as i64 as u64,
            c if c == op::ALU | op::MOV | op::K => registers[dst] = one.imm as u32 as u64,
            c if c == op::ALU64 | op::ADD | op::K => {
                registers[dst] = registers[dst].wrapping_add(one.imm as i64 as u64);
            }
            c if c == op::STX | op::MEM | op::DW => {
                let slot = frames.len() as i64 * 1000 + i64::from(one.off);
                stack.insert(slot, registers[src]);
            }
            c if c == op::LDX | op::MEM | op::DW => {
                let slot = frames.len() as i64 * 1000 + i64::from(one.off);
                registers[dst] = *stack.get(&slot)?;
            }
            CALL if one.src() == PSEUDO_CALL => {
                let saved = [registers[6], registers[7], registers[8], registers[9]];
                frames.push((at, saved));
                at = (at as i64 + i64::from(one.imm)) as usize;
            }
            CALL => {
                match one.imm {
                    TAIL_CALL => {
                        trace.jumps.push((registers[1], registers[2], registers[3]));
                    }
                    _ => trace.noted.push(registers[1]),
                }
                // Helpers leave undefined values in these registers.
                registers[..6].fill(0xdead_dead_dead_dead);
            }
            EXIT => match frames.pop() {
                Some((back, saved)) => {
                    registers[6..10].copy_from_slice(&saved);
                    at = back;
                }
                None => {
                    trace.result = registers[0];
                    return Some(trace);
                }
            },
            JUMP => at = (at as i64 + i64::from(one.off)) as usize,
            JUMP_FAR => at = (at as i64 + i64::from(one.imm)) as usize,
            c if c & 7 == op::JMP || c & 7 == op::JMP32 => {
                let (left, right) = if wide {
                    (registers[dst], one.imm as i64 as u64)
                } else {
                    (registers[dst] & 0xffff_ffff, u64::from(one.imm as u32))
                };
                let taken = match c & 0xf0 {
                    op::JEQ => left == right,
                    op::JNE => left != right,
                    op::JGT => left > right,
                    other => panic!("the emulator has no jump {other:#x}"),
                };
                if taken {
                    at = (at as i64 + i64::from(one.off)) as usize;
                }
            }
            other => panic!("the emulator has no instruction {other:#x}"),
        }
    }
    None
}

fn through(map: i32, slots: ExitSlots) -> ExitMap {
    ExitMap { map, slots }
}

fn rewritten(code: &[Insn], plan: &Rewriting, place: ContextPlace) -> Edited {
    let program = Code::new(code.to_vec()).expect("a program");
    program.rewrite(plan, place).expect("it can be rewritten")
}

/// Checks that the rewritten program has the original's trace apart from the added jumps, which are checked too.
fn same(code: &[Insn], plan: &Rewriting, place: ContextPlace) {
    let Some(expected) = run(code) else { return };
    let code = rewritten(code, plan, place).instructions;
    let mut found = run(&code).expect("it ends as the original does");
    let mut jumps = Vec::new();
    if let Some(entry) = plan.entry {
        jumps.push((CONTEXT, entry.map as u64, entry.slot as u64));
    }
    for ExitMap { map, slots } in &plan.exits {
        let verdict = expected.result;
        match slots {
            ExitSlots::Verdict => jumps.push((CONTEXT, *map as u64, verdict)),
            ExitSlots::Only(some) if some.contains(&(verdict as u32)) => {
                jumps.push((CONTEXT, *map as u64, verdict));
            }
            ExitSlots::Only(_) => {}
        }
    }
    assert_eq!(std::mem::take(&mut found.jumps), jumps);
    assert_eq!(found, expected);
}

fn note(number: i32) -> [Insn; 2] {
    [Insn::new(op::ALU64 | op::MOV | op::K, 1, 0, 0, number), op::call(1000)]
}

fn set(register: u8, value: i32) -> Insn {
    Insn::new(op::ALU64 | op::MOV | op::K, register, 0, 0, value)
}

fn full_plan() -> Rewriting {
    Rewriting {
        entry: Some(EntrySlot { map: 22, slot: 0 }),
        exits: vec![through(HOOK, ExitSlots::Verdict), through(NEXT, ExitSlots::Only(vec![2, 1]))],
    }
}

fn chain_only() -> Rewriting {
    Rewriting { entry: None, exits: vec![through(NEXT, ExitSlots::Only(vec![2, 1]))] }
}

#[test]
fn plain_program_jumps_through_the_maps() {
    for verdict in 0..6 {
        let code = [set(0, verdict), op::exit()];
        same(&code, &full_plan(), ContextPlace::Register(9));
        same(&code, &chain_only(), ContextPlace::Register(9));
        same(&code, &chain_only(), ContextPlace::Stack(-8));
        same(&code, &full_plan(), ContextPlace::Stack(-8));
        same(&code, &Rewriting::default(), ContextPlace::Register(6));
    }
}

#[test]
fn exits_of_subprograms_stay() {
    let mut code = vec![
        op::mov(6, 1),
        Insn::new(CALL, 0, PSEUDO_CALL, 0, 3),
        Insn::new(op::JMP | op::JEQ | op::K, 0, 0, 1, 7),
        op::exit(),
        op::exit(),
    ];
    code.extend(note(5));
    code.extend([set(0, 7), op::exit()]);
    let found = rewritten(&code, &full_plan(), ContextPlace::Register(7));
    let exits = |code: &[Insn]| code.iter().filter(|one| one.code == EXIT).count();
    assert_eq!((exits(&code), exits(&found.instructions)), (3, 2));
    same(&code, &full_plan(), ContextPlace::Register(7));
}

#[test]
fn address_of_a_callback_is_adjusted() {
    let code = [
        Insn::new(LOAD_IMMEDIATE, 2, PSEUDO_FUNCTION, 0, 3),
        Insn::new(0, 0, 0, 0, 0),
        set(0, 2),
        op::exit(),
        set(0, 0),
        op::exit(),
    ];
    let found = rewritten(&code, &full_plan(), ContextPlace::Register(9));
    let at = found.moved[0] as usize;
    let callback = (at as i64 + 1 + i64::from(found.instructions[at].imm)) as usize;
    assert_eq!(callback, found.moved[4] as usize);
    assert_eq!(found.instructions[callback], set(0, 0));
    assert_eq!(found.moved.last().copied(), Some(found.instructions.len() as u32));
}

#[test]
fn loop_back_to_the_beginning_does_not_enter_again() {
    let code = [
        Insn::new(op::ALU64 | op::ADD | op::K, 6, 0, 0, 1),
        Insn::new(op::JMP | op::JNE | op::K, 6, 0, -2, 5),
        set(0, 2),
        op::exit(),
    ];
    same(&code, &full_plan(), ContextPlace::Register(9));
}

#[test]
fn exits_far_from_the_end_get_their_own_end() {
    let mut code = vec![set(0, 1), Insn::new(op::JMP | op::JEQ | op::K, 1, 0, 1, 0), op::exit()];
    code.extend(std::iter::repeat_n(set(3, 0), 90_000));
    code.extend([set(0, 2), op::exit()]);
    let found = rewritten(&code, &full_plan(), ContextPlace::Register(9));
    let (beginning, end) = (6, 20);
    // One end after the program, and one in place of the first exit.
    assert_eq!(found.instructions.len() - code.len(), beginning + 2 * end - 1);
    same(&code, &full_plan(), ContextPlace::Register(9));
}

#[test]
fn unconditional_jumps_may_grow_and_conditional_ones_may_not() {
    let filler = usize::from(i16::MAX as u16);
    let program = |first: Insn| {
        let mut code = vec![first, set(0, 1), op::exit()];
        code.extend(std::iter::repeat_n(set(3, 0), filler - 3));
        code.extend([set(0, 3), op::exit()]);
        code
    };
    let far = program(Insn::new(JUMP, 0, 0, i16::MAX - 1, 0));
    let found = rewritten(&far, &full_plan(), ContextPlace::Register(9));
    assert_eq!(found.instructions[found.moved[0] as usize].code, JUMP_FAR);
    same(&far, &full_plan(), ContextPlace::Register(9));
    let conditional = program(Insn::new(op::JMP | op::JEQ | op::K, 1, 0, i16::MAX - 1, 7));
    let program = Code::new(conditional.clone()).expect("a program");
    assert_eq!(
        program.rewrite(&full_plan(), ContextPlace::Register(9)).expect_err("too far"),
        Refusal::TooFar { instruction: 0 }
    );
}

#[test]
fn indirect_and_stray_jumps_are_refused() {
    let refused = |code: &[Insn]| Code::new(code.to_vec()).expect_err("refused");
    let indirect = Insn::new(JUMP_INDIRECT, 1, 0, 0, 0);
    assert_eq!(refused(&[set(0, 1), indirect]), Refusal::IndirectJump { instruction: 1 });
    let out = Insn::new(JUMP, 0, 0, 5, 0);
    assert_eq!(refused(&[out, op::exit()]), Refusal::Malformed { instruction: 0 });
    assert_eq!(refused(&[]), Refusal::Malformed { instruction: 0 });
}

#[test]
fn context_goes_below_the_stack_in_use() {
    assert_eq!(ContextPlace::below(0), Ok(ContextPlace::Stack(-8)));
    assert_eq!(ContextPlace::below(61), Ok(ContextPlace::Stack(-72)));
    assert_eq!(ContextPlace::below(504), Ok(ContextPlace::Stack(-512)));
    assert_eq!(ContextPlace::below(505), Err(Refusal::StackFull { depth: 505 }));
    assert_eq!(ContextPlace::below(512), Err(Refusal::StackFull { depth: 512 }));
}

#[test]
fn registers_in_use_are_known_from_the_main_program_alone() {
    let code = [op::mov(6, 1), Insn::new(CALL, 0, PSEUDO_CALL, 0, 1), op::exit(), set(9, 1), set(0, 1), op::exit()];
    let program = Code::new(code.to_vec()).expect("a program");
    assert_eq!(program.free_registers(), [7, 8, 9]);
    assert_eq!(program.main().len(), 3);
}

#[test]
fn stack_accesses_are_seen() {
    let add = |register, value| Insn::new(op::ALU64 | op::ADD | op::K, register, 0, 0, value);
    let end = [set(0, 2), op::exit()];
    let depth = |code: &[Insn]| {
        let code = [code, &end].concat();
        Code::new(code.clone()).expect("a program").stack_in_sight()
    };
    assert_eq!(depth(&[]), 0);
    assert_eq!(depth(&[op::store(op::DW, 10, -24, 1)]), 24);
    assert_eq!(depth(&[op::load(op::DW, 2, 10, -8)]), 8);
    assert_eq!(depth(&[op::load(op::DW, 2, 1, -80)]), 0);
    assert_eq!(depth(&[op::mov(2, 10), add(2, -40)]), 40);
    assert_eq!(depth(&[op::mov(2, 10), add(3, -40)]), 0);
    assert_eq!(depth(&[op::mov(2, 1), add(2, -40)]), 0);
}

/// Random code: straight pieces, jumps anywhere, exits, calls of a subprogram.
fn piece() -> impl Strategy<Value = (u8, u8, i32, u16)> {
    (0u8..8, 2u8..6, -3i32..6, any::<u16>())
}

fn assemble(pieces: &[(u8, u8, i32, u16)], callee: &[(u8, u8, i32, u16)]) -> Vec<Insn> {
    let emit = |pieces: &[(u8, u8, i32, u16)], calls: bool| {
        let mut code = vec![set(0, 2)];
        code.extend((2..6).map(|register| set(register, i32::from(register))));
        let mut starts = Vec::new();
        for (kind, register, value, _) in pieces {
            starts.push(code.len());
            match kind {
                0 => code.push(set(*register, *value)),
                1 => code.extend(note(*value).into_iter().chain((0..6).map(|r| set(r, *value)))),
                2 => code.push(Insn::new(op::ALU64 | op::ADD | op::K, *register, 0, 0, *value)),
                3 => code.push(Insn::new(op::JMP | op::JEQ | op::K, *register, 0, 0, *value)),
                4 => code.push(Insn::new(op::JMP32 | op::JGT | op::K, *register, 0, 0, *value)),
                5 => code.push(Insn::new(JUMP, 0, 0, 0, 0)),
                6 if calls => {
                    code.push(Insn::new(CALL, 0, PSEUDO_CALL, 0, 0));
                    code.extend((1..6).map(|register| set(register, *value)));
                }
                _ => code.extend([set(0, *value), op::exit()]),
            }
        }
        starts.push(code.len());
        code.extend([set(0, 1), op::exit()]);
        for (index, (kind, _, _, anywhere)) in pieces.iter().enumerate() {
            let at = starts[index];
            if matches!(kind, 3..=5) {
                let target = starts[usize::from(*anywhere) % starts.len()];
                code[at].off = (target as i64 - at as i64 - 1) as i16;
            }
        }
        code
    };
    let mut main = emit(pieces, !callee.is_empty());
    let length = main.len();
    for (index, one) in main.iter_mut().enumerate() {
        if one.code == CALL && one.src() == PSEUDO_CALL {
            one.imm = (length - index - 1) as i32;
        }
    }
    let called = main.iter().any(|one| one.src() == PSEUDO_CALL && one.code == CALL);
    if called {
        main.extend(emit(callee, false));
    }
    main
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_programs_do_what_they_did(
        main in proptest::collection::vec(piece(), 0..40),
        callee in proptest::collection::vec(piece(), 0..10),
        entry in any::<bool>(),
        on_stack in any::<bool>(),
    ) {
        let code = assemble(&main, &callee);
        let mut plan = full_plan();
        if !entry {
            plan.entry = None;
        }
        let place = if on_stack { ContextPlace::Stack(-16) } else { ContextPlace::Register(8) };
        same(&code, &plan, place);
        same(&code, &chain_only(), place);
    }

    #[test]
    fn arbitrary_instructions_never_panic(fields in proptest::collection::vec(any::<(u8, u8, i16, i32)>(), 0..60)) {
        let code = fields.into_iter().map(|(code, regs, off, imm)| Insn { code, regs, off, imm });
        if let Ok(program) = Code::new(code.collect()) {
            let _ = program.rewrite(&full_plan(), ContextPlace::Register(9));
        }
    }
}
