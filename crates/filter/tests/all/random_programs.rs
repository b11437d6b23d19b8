//! Random classic programs: for every program that the checker accepts, the lowered block agrees with the interpreter,
//! and the interpreter with libpcap's rules.

use crate::support::machine::{Scene, run};
use crate::support::packets::{Random, frames};
use crate::support::{lowered, quick_agrees, whole};
use proptest::prelude::*;
use trawl_filter::{Classic, Hook, Instruction, Target, lower_quick};

/// Generates offsets near the borders of packets, headers and tags, and a few far ones.
fn offset() -> impl Strategy<Value = u32> {
    prop_oneof![
        12 => 0u32..70,
        4 => 0u32..220,
        1 => prop::sample::select(vec![1000, 0x7ffe, 0x7fff, 0x8000, 0xfffe, 0xffff, 0x10000, 0x7fff_ffff, 0x8000_0000, 0xffe0_000c, 0xfff0_0002]),
        1 => (0u32..80).prop_map(|k| 0xffff_efff - k),
        1 => any::<u32>().prop_filter("ancillary fields differ by hook", |k| *k < 0xffff_f000),
    ]
}

fn constant() -> impl Strategy<Value = u32> {
    prop_oneof![
        0u32..70,
        prop::sample::select(vec![
            0x0800,
            0x86dd,
            0x8100,
            6,
            17,
            0xff,
            0xffff,
            0x0a00_0001,
            0xffff_ffff,
            0x1020,
            0x1050,
            0x8000_0000,
            0x1fff
        ]),
        any::<u32>(),
    ]
}

/// Generates an instruction other than a jump; jumps are inserted with distances that fit.
fn operation() -> impl Strategy<Value = Instruction> {
    let loads = (prop::sample::select(vec![0x20u16, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1]), offset());
    let constants = (prop::sample::select(vec![0x00u16, 0x01, 0x80, 0x81, 0x07, 0x87, 0x84]), constant());
    let memory = (prop::sample::select(vec![0x02u16, 0x03, 0x60, 0x61]), 0u32..16);
    let arithmetic = (
        prop::sample::select(vec![
            0x04u16, 0x14, 0x24, 0x44, 0x54, 0xa4, 0x0c, 0x1c, 0x2c, 0x3c, 0x4c, 0x5c, 0x6c, 0x7c, 0x9c, 0xac,
        ]),
        constant(),
    );
    let shifts = (prop::sample::select(vec![0x64u16, 0x74]), 0u32..32);
    let divisions = (prop::sample::select(vec![0x34u16, 0x94]), constant().prop_map(|k| k.max(1)));
    prop_oneof![8 => loads, 3 => constants, 3 => memory, 4 => arithmetic, 2 => shifts, 1 => divisions]
        .prop_map(|(code, k)| Instruction::new(code, 0, 0, k))
}

#[derive(Debug, Clone)]
enum Step {
    Plain(Instruction),
    Jump(u16, u32, u8, u8),
    Always(u8),
    Return(bool, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let tests = prop::sample::select(vec![0x15u16, 0x25, 0x35, 0x45, 0x1d, 0x2d, 0x3d, 0x4d]);
    prop_oneof![
        10 => operation().prop_map(Step::Plain),
        4 => (tests, constant(), any::<u8>(), any::<u8>()).prop_map(|(t, k, yes, no)| Step::Jump(t, k, yes, no)),
        1 => any::<u8>().prop_map(Step::Always),
        1 => (any::<bool>(), prop::sample::select(vec![0u32, 0, 1, 65535])).prop_map(|(a, k)| Step::Return(a, k)),
    ]
}

/// Sets X, loads at X plus an offset, and returns the value and 1.
fn load_at_x(set_x: &[(u16, u32)], code: u16, k: u32) -> Classic {
    let steps = [(code, k), (0x44, 1), (0x16, 0)];
    let insns = set_x.iter().chain(&steps);
    let insns = insns.map(|&(code, k)| Instruction::new(code, 0, 0, k));
    Classic::new(insns.collect()).expect("a program")
}

/// Guards offsets beyond 2^32, which wrap around in the kernel: with X as a constant, as the length of the packet, and
/// as bytes of the packet minus or plus a constant.
#[test]
fn offsets_wrap_as_in_the_kernel() {
    for k in [
        0,
        1,
        3,
        12,
        15,
        20,
        0x7fff,
        0xfff3,
        0x7fff_ff00,
        0x8000_0000,
        0xfff0_0003,
        0xffff_fff0,
        0xffff_fffd,
        0xffff_ffff,
    ] {
        for at in [0u32, 1, 3, 11, 12, 13, 15, 16, 17, 40, 63, 64] {
            let x = at.wrapping_sub(k);
            for code in [0x40, 0x48, 0x50] {
                agree(&load_at_x(&[(0x01, x)], code, k), u64::from(k ^ at));
                let byte = [(0x30, 5), (0x04, x), (0x07, 0)];
                agree(&load_at_x(&byte, code, k), u64::from(k ^ at));
                let length = [(0x80, 0), (0x14, k), (0x14, at), (0x07, 0)];
                agree(&load_at_x(&length, code, k), u64::from(k ^ at));
            }
        }
    }
    let program = load_at_x(&[(0x01, 0xffff_fffd)], 0x50, 3);
    assert_eq!(program.run(&[2, 0, 0], 3), 3);
    assert_eq!(program.run(&[], 0), 0);
}

/// Fits jumps into the program's length, and replaces reads of unwritten cells.
fn program(steps: Vec<Step>) -> Option<Classic> {
    let length = steps.len() + 1;
    let mut instructions: Vec<Instruction> = steps
        .iter()
        .enumerate()
        .map(|(index, step)| {
            let room = length - index - 1;
            // Most jumps are short, so that programs do not end after three instructions.
            let fit = |distance: u8| (usize::from(distance % 8).min(room - 1)) as u8;
            match *step {
                Step::Plain(instruction) => instruction,
                Step::Jump(code, k, yes, no) => Instruction::new(code, fit(yes), fit(no), k),
                Step::Always(by) => Instruction::new(0x05, 0, 0, fit(by).into()),
                Step::Return(true, _) => Instruction::new(0x16, 0, 0, 0),
                Step::Return(false, k) => Instruction::new(0x06, 0, 0, k),
            }
        })
        .collect();
    instructions.push(Instruction::new(0x16, 0, 0, 0));
    Classic::new(instructions.clone()).ok().or_else(|| {
        // Reads of cells that are unwritten on some path become reads of constants.
        for i in &mut instructions {
            if i.code == 0x60 || i.code == 0x61 {
                i.code &= 1;
            }
        }
        Classic::new(instructions).ok()
    })
}

fn programs(longest: usize) -> impl Strategy<Value = Classic> {
    prop::collection::vec(step(), 0..longest).prop_filter_map("the checker refuses it", program)
}

fn agree(program: &Classic, seed: u64) {
    let targets = [
        Target::xdp(),
        Target { load_helper: false, ..Target::xdp() },
        Target::tc(),
        Target::socket(),
        Target::copy(64),
    ];
    let blocks = targets.map(|target| (target, lowered(program, &target)));
    let quick = lower_quick(program, &Target::xdp());
    let mut r = Random::new(seed);
    for frame in frames(seed, 12) {
        let length = frame.len() as u32;
        let expected = program.run(&frame, length);
        if let Some(quick) = &quick
            && let Err(why) = quick_agrees(quick, &whole(&frame), expected)
        {
            panic!("{program}\n{why}");
        }
        for (target, block) in &blocks {
            let check = |scene: &Scene, expected: u32| {
                let result = run(block, target, scene);
                assert_eq!(
                    result,
                    Ok(expected),
                    "{target:?} on {scene:02x?}\n{program}\n{}",
                    trawl_ebpf::disassemble(block)
                );
            };
            let linear = match target.hook {
                Hook::Copy { buffer } => {
                    let seen = &frame[..frame.len().min(buffer.into())];
                    check(&Scene { bytes: &frame, linear: 0, tag: None }, program.run(seen, length));
                    continue;
                }
                _ if target.load_helper => r.below(frame.len() + 1),
                _ => frame.len(),
            };
            check(&Scene { bytes: &frame, linear, tag: None }, expected);
            check(&Scene { bytes: &frame, linear: frame.len(), tag: None }, expected);
            if target.vlan_out_of_band && frame.len() >= 18 {
                let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
                let tag = Some((word(12), word(14)));
                let stripped = [&frame[..12], &frame[16..]].concat();
                let linear = r.below(stripped.len() + 1);
                check(&Scene { bytes: &stripped, linear, tag }, expected);
                check(&Scene { bytes: &stripped, linear: stripped.len(), tag }, expected);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn short_programs_agree(program in programs(24), seed in any::<u64>()) {
        agree(&program, seed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn long_programs_agree(program in programs(400), seed in any::<u64>()) {
        agree(&program, seed);
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in ".{0,200}") {
        let _ = Classic::parse(&text);
    }

    #[test]
    fn programs_survive_being_text(program in programs(60)) {
        prop_assert_eq!(Classic::parse(&program.to_ddd()).unwrap(), program);
    }
}
