//! Random classic programs: the kernel's classic checker and trawl's accept the same ones, and the verifier accepts
//! each of them once lowered.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use trawl_bpf::classic_check::{self, ClassicChecker};
use trawl_filter::{Classic, FilterError, Instruction, Target};

use crate::kernel::{Loaded, root_or_skip};
use crate::support::packets::frames;

/// Offset from which Linux returns facts about the packet.
const ANCILLARY: u32 = 0xffff_f000;
/// Facts that a hook can provide: type, interface, queue, CPU, tag, a random number.
const FACTS: [u32; 9] = [0, 4, 8, 24, 36, 44, 48, 56, 60];

fn constant() -> impl Strategy<Value = u32> {
    prop_oneof![
        6 => 0u32..70,
        2 => prop::sample::select(vec![0x0800u32, 0x86dd, 0x8100, 6, 17, 0xff, 0xffff, 0x1fff, 0x8000_0000, u32::MAX]),
        1 => any::<u32>(),
    ]
}

fn offset() -> impl Strategy<Value = u32> {
    prop_oneof![
        16 => 0u32..80,
        2 => prop::sample::select(vec![0x7ffeu32, 0x7fff, 0x8000, 0xffff, 0x10000, 0x7fff_fffd, 0x7fff_ffff, 0x8000_0000, 0xffef_ffff]),
        1 => (0u32..70).prop_map(|k| 0xfff0_0000 + k),
        1 => (0u32..70).prop_map(|k| 0xffe0_0000 + k),
        1 => prop::sample::select(FACTS.to_vec()).prop_map(|k| ANCILLARY + k),
        1 => any::<u32>(),
    ]
}

/// Generates mostly sound instructions; jumps still exceed the program's length.
fn sound() -> impl Strategy<Value = Instruction> {
    let one = |codes: &[u16], k: BoxedStrategy<u32>| {
        (prop::sample::select(codes.to_vec()), k).prop_map(|(code, k)| Instruction::new(code, 0, 0, k))
    };
    let jump =
        (prop::sample::select(vec![0x15u16, 0x25, 0x35, 0x45, 0x1d, 0x2d, 0x3d, 0x4d]), 0u8..10, 0u8..10, constant())
            .prop_map(|(code, jt, jf, k)| Instruction::new(code, jt, jf, k));
    prop_oneof![
        10 => one(&[0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1], offset().boxed()),
        3 => one(&[0x00, 0x01, 0x80, 0x81, 0x07, 0x87, 0x84], constant().boxed()),
        4 => one(&[0x02, 0x03, 0x02, 0x03, 0x60, 0x61], (0u32..16).boxed()),
        4 => one(&[0x04, 0x14, 0x24, 0x44, 0x54, 0xa4, 0x0c, 0x1c, 0x2c, 0x3c, 0x4c, 0x5c, 0x6c, 0x7c, 0x9c, 0xac], constant().boxed()),
        2 => one(&[0x64, 0x74], (0u32..32).boxed()),
        1 => one(&[0x34, 0x94], constant().prop_map(|k| k.max(1)).boxed()),
        8 => jump,
        1 => one(&[0x05], (0u32..10).boxed()),
        1 => one(&[0x06, 0x16], constant().boxed()),
    ]
}

/// Fits jumps into the program and ends it, so that most programs are accepted.
fn fixed(mut program: Vec<Instruction>) -> Vec<Instruction> {
    program.push(Instruction::new(0x16, 0, 0, 0));
    let last = program.len() - 1;
    for (index, instruction) in program.iter_mut().enumerate() {
        let room = last.saturating_sub(index + 1);
        if instruction.code == 0x05 {
            instruction.k = instruction.k.min(room as u32);
        } else if instruction.code & 7 == 5 {
            instruction.jt = usize::from(instruction.jt).min(room) as u8;
            instruction.jf = usize::from(instruction.jf).min(room) as u8;
        }
    }
    program
}

/// Stores a value in each cell first, so that no read finds one empty.
fn with_cells(program: Vec<Instruction>) -> Vec<Instruction> {
    let stores = (0..16).map(|cell| Instruction::new(0x02, 0, 0, cell));
    stores.chain(program).collect()
}

/// Turns loads of facts into loads of bytes, so that answers can be compared.
fn without_facts(mut program: Vec<Instruction>) -> Vec<Instruction> {
    for instruction in &mut program {
        if is_fact(instruction) {
            instruction.k &= 0x3f;
        }
    }
    program
}

fn programs(longest: usize) -> impl Strategy<Value = Vec<Instruction>> {
    let steps = prop::collection::vec(sound(), 0..longest);
    (steps, any::<bool>(), any::<bool>()).prop_map(|(mut program, facts, cells)| {
        if !facts {
            program = without_facts(program);
        }
        if cells {
            program = with_cells(program);
        }
        fixed(program)
    })
}

/// Generates arbitrary instructions.
fn noise() -> impl Strategy<Value = Vec<Instruction>> {
    let any_one = (any::<u8>(), any::<u8>(), any::<u8>(), constant())
        .prop_map(|(code, jt, jf, k)| Instruction::new(code.into(), jt % 4, jf % 4, k));
    let mixed = prop_oneof![1 => any_one, 6 => sound()];
    prop::collection::vec(mixed, 0..12).prop_map(|mut program| {
        program.push(Instruction::new(6, 0, 0, 1));
        program
    })
}

fn kernels(program: &[Instruction]) -> Vec<classic_check::Instruction> {
    let one = |i: &Instruction| classic_check::Instruction { code: i.code, jt: i.jt, jf: i.jf, k: i.k };
    program.iter().map(one).collect()
}

fn is_fact(instruction: &Instruction) -> bool {
    instruction.code & 7 == 0 && instruction.k >= ANCILLARY
}

/// Returns a runner with the same programs on every run.
fn runner(cases: u32) -> TestRunner {
    let config = Config { failure_persistence: None, ..Config::with_cases(cases) };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

fn fail(text: String) -> TestCaseError {
    TestCaseError::fail(text)
}

#[test]
fn both_checkers_accept_the_same_programs() {
    let checker = ClassicChecker::new().expect("a socket to try filters on");
    let accepted = std::cell::Cell::new(0);
    let cases = 8_000;
    let strategy = prop_oneof![programs(30), noise()];
    let result = runner(cases).run(&strategy, |program| {
        let kernel = checker.check(&kernels(&program));
        let ours = Classic::new(program);
        accepted.set(accepted.get() + u32::from(kernel.is_ok()));
        match (kernel, ours) {
            (Ok(()), Ok(_)) | (Err(_), Err(_)) => Ok(()),
            (kernel, ours) => Err(fail(format!("the kernel: {kernel:?}; trawl: {ours:?}"))),
        }
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    let accepted = accepted.get();
    assert!((cases / 4..cases * 9 / 10).contains(&accepted), "one-sided: {accepted} of {cases} are accepted");
    println!("{accepted} of {cases} programs are accepted");
}

/// Loads each program at both hooks and runs a few frames.
fn load_all(cases: u32, longest: usize) {
    let checker = ClassicChecker::new().expect("a socket to try filters on");
    let (loaded, pairs) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let gotol = |target| Target { gotol: true, ..target };
    let result = runner(cases).run(&(programs(longest), any::<u64>()), |(program, seed)| {
        if checker.check(&kernels(&program)).is_err() {
            return Ok(());
        }
        let facts = program.iter().any(is_fact);
        let classic = Classic::new(program).map_err(|e| fail(e.to_string()))?;
        for target in [gotol(Target::xdp()), gotol(Target::tc())] {
            let in_kernel = match trawl_filter::lower(&classic, &target) {
                // The only fact among these that a hook may lack: the packet type.
                Err(FilterError::NotAtHook { .. }) => continue,
                _ => Loaded::new(&classic, target),
            };
            let in_kernel = in_kernel.map_err(|e| fail(format!("{target:?}: {e}\n{classic}")))?;
            loaded.set(loaded.get() + 1);
            if facts {
                continue;
            }
            for frame in frames(seed, 16).iter().filter(|f| in_kernel.can_ask(f)) {
                let expected = classic.run(frame, frame.len() as u32) != 0;
                prop_assert_eq!(in_kernel.ask(frame, None), expected, "{:?} on {:02x?}\n{}", target, frame, classic);
                pairs.set(pairs.get() + 1);
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    println!("{} random programs of at most {longest} instructions loaded, {} pairs", loaded.get(), pairs.get());
    assert!(loaded.get() > cases / 2, "only {} were loaded", loaded.get());
}

#[test]
fn verifier_accepts_programs_of_the_checker() {
    if root_or_skip() {
        load_all(600, 40);
    }
}

#[test]
fn verifier_accepts_long_programs() {
    if root_or_skip() {
        load_all(60, 400);
    }
}
