//! Every reader of a filter gives libpcap's answer: the interpreter, and the lowered block at each hook with packets
//! divided into a linear part and the rest, with tags in the frame and out of band.
//!
//! `TRAWL_FILTER_FRAMES` sets the number of frames for each expression.

use crate::support::machine::{Scene, run};
use crate::support::oracle::{Oracle, oracle};
use crate::support::packets::{Random, frames};
use crate::support::{classic, expressions, lowered, quick_agrees, whole};
use trawl_ebpf::Insn;
use trawl_filter::{Classic, Quick, Target, lower_quick};

pub struct Readers {
    program: Classic,
    blocks: Vec<(Target, Vec<Insn>)>,
    quick: Option<Vec<Insn>>,
}

impl Readers {
    pub fn new(program: Classic) -> Self {
        let targets = [
            Target::xdp(),
            Target { load_helper: false, ..Target::xdp() },
            Target::tc(),
            Target::socket(),
            Target::copy(128),
            Target::copy(1024),
        ];
        // Tables are maps in the kernel: the tests of crates/capture cover them.
        let blocks =
            if program.has_tables() { Vec::new() } else { targets.map(|t| (t, lowered(&program, &t))).to_vec() };
        Readers { blocks, quick: lower_quick(&program, &Target::xdp()), program }
    }

    /// Returns libpcap's answer, unless this libpcap would never give one.
    pub fn ask(&self, oracle: &Oracle, frame: &[u8]) -> Option<bool> {
        let endless = self.program.evaluate(frame, frame.len() as u32).gave_up;
        (!endless).then(|| oracle.matches(frame))
    }

    /// Compares all readers on one frame; `expected` is libpcap's answer, if known.
    pub fn compare(&self, what: &str, frame: &[u8], expected: Option<bool>, r: &mut Random) -> usize {
        let length = frame.len() as u32;
        let ours = self.program.run(frame, length);
        if let Some(expected) = expected {
            assert_eq!(ours != 0, expected, "interpreter, {what} on {frame:02x?}");
        }
        let mut pairs = 1;
        for (target, block) in &self.blocks {
            let mut check = |scene: &Scene, expected: u32| match run(block, target, scene) {
                Ok(result) if result == expected => pairs += 1,
                other => panic!(
                    "{what}\n{}\n{}{target:?} on {scene:02x?}: {other:?} instead of {expected}",
                    self.program,
                    trawl_ebpf::disassemble(block)
                ),
            };
            let whole = whole(frame);
            if let trawl_filter::Hook::Copy { buffer } = target.hook {
                let seen = &frame[..frame.len().min(buffer.into())];
                check(&whole, self.program.run(seen, length));
                continue;
            }
            check(&whole, ours);
            if target.load_helper {
                let linear = r.below(frame.len() + 1);
                check(&Scene { linear, ..whole.clone() }, ours);
            }
            if target.vlan_out_of_band && frame.len() >= 18 {
                let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
                let stripped = [&frame[..12], &frame[16..]].concat();
                let scene = Scene { bytes: &stripped, linear: stripped.len(), tag: Some((word(12), word(14))) };
                check(&scene, ours);
                let linear = r.below(stripped.len() + 1);
                check(&Scene { linear, ..scene.clone() }, ours);
            }
        }
        if let Some(quick) = &self.quick {
            for linear in [frame.len(), r.below(frame.len() + 1)] {
                let scene = Scene { linear, ..whole(frame) };
                if let Err(why) = quick_agrees(quick, &scene, ours) {
                    panic!("{what}: {why}");
                }
                pairs += 1;
            }
        }
        pairs
    }
}

fn frames_per_expression() -> usize {
    std::env::var("TRAWL_FILTER_FRAMES").ok().and_then(|text| text.parse().ok()).unwrap_or(250)
}

#[test]
fn expressions_agree_with_libpcap() {
    let expressions = expressions();
    assert!(expressions.len() >= 400, "{} expressions", expressions.len());
    let count = frames_per_expression();
    let mut pairs = 0;
    for (index, expression) in expressions.iter().enumerate() {
        let oracle = oracle(expression, true);
        let readers = Readers::new(classic(expression));
        let mut r = Random::new(index as u64);
        for frame in frames(index as u64, count) {
            let expected = readers.ask(&oracle, &frame);
            pairs += readers.compare(expression, &frame, expected, &mut r);
        }
    }
    assert!(pairs > expressions.len() * count, "{pairs} pairs");
    println!("{pairs} pairs of program and packet");
}

/// libpcap 1.10.3 itself reads uninitialised stack, so the interpreter, which starts with zeroes like newer versions of
/// libpcap, is the reference. The machine that runs blocks stops at uninitialised reads.
#[test]
fn scratch_memory_begins_at_zero() {
    for expression in ["geneve or atalk", "not geneve", "geneve 5 or geneve 6 and ip"] {
        let readers = Readers::new(classic(expression));
        let mut r = Random::new(29);
        for frame in frames(29, 300) {
            readers.compare(expression, &frame, None, &mut r);
        }
    }
}

/// Nearly all usual filters decide on the linear part of a long packet at once.
#[test]
fn usual_filters_have_a_quick_version_that_decides() {
    let usual = [
        "ether proto 0x1111",
        "ip",
        "arp",
        "host 10.0.0.1",
        "udp port 53",
        "tcp dst port 443 and net 10.0.0.0/8",
        "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
        "vlan 7 and icmp",
        "ip6 and tcp port 22",
        "ether host 02:00:00:00:00:01",
        "portrange 1000-2000",
        "not ether multicast",
    ];
    for expression in usual {
        let program = classic(expression);
        let quick =
            lower_quick(&program, &Target::xdp()).unwrap_or_else(|| panic!("{expression} has no quick version"));
        let frames = frames(3, 300);
        let long = frames.iter().filter(|frame| frame.len() >= 150);
        let mut decided = 0;
        for frame in long {
            let result = run(&quick, &Target::xdp(), &whole(frame)).expect("it runs");
            assert_ne!(result, Quick::Undecided as u32, "{expression} on {frame:02x?}");
            decided += 1;
        }
        assert!(decided > 10, "{decided} long frames");
    }
}

#[test]
fn filters_that_need_more_than_registers_have_no_quick_version() {
    let has_none = |program: &Classic| lower_quick(program, &Target::xdp()).is_none();
    assert!(has_none(&classic("len > 100")));
    let returns_a = Classic::parse("2,48 0 0 14,22 0 0 0").expect("it is well formed");
    assert!(has_none(&returns_a));
    let text = (0..300).map(|n| format!("host 10.9.{}.{}", n / 200, n % 200));
    let long = text.collect::<Vec<_>>().join(" or ");
    assert!(has_none(&classic(&long)));
}

#[test]
fn every_expression_matches_something_and_not_everything() {
    // A corpus that never matches proves little: most expressions must distinguish frames.
    let mut always_alike = Vec::new();
    let corpus = frames(7, 4000);
    let expressions = expressions();
    for expression in &expressions {
        let program = classic(expression);
        let matches = corpus.iter().filter(|frame| program.run(frame, frame.len() as u32) != 0).count();
        if matches == 0 || matches == corpus.len() {
            always_alike.push(*expression);
        }
    }
    let share = always_alike.len() * 100 / expressions.len();
    assert!(share < 20, "{share} %: {always_alike:#?}");
}

#[test]
fn unoptimised_programs_agree_too() {
    let plain = trawl_filter::CompilerOptions { optimise: false, ..trawl_filter::CompilerOptions::default() };
    for (index, expression) in expressions().iter().enumerate() {
        // libpcap needs minutes for long expressions, and without its optimiser the result exceeds the range of jumps.
        if expression.len() > 500 {
            continue;
        }
        let oracle = oracle(expression, false);
        let program = crate::support::compile(expression, &plain).unwrap();
        let readers = Readers::new(program);
        let mut r = Random::new(index as u64);
        for frame in frames(index as u64 + 1000, 40) {
            let expected = readers.ask(&oracle, &frame);
            readers.compare(expression, &frame, expected, &mut r);
        }
    }
}

#[test]
fn every_length_agrees() {
    let mut r = Random::new(3);
    for expression in [
        "tcp port 80",
        "ip[ip[8]] = 0",
        "vlan 100 and ip6 and udp port 53",
        "ip6 protochain 17",
        "host 10.0.0.1 or arp",
        "ether[ether[5] + 13:4] = 0x00006408",
    ] {
        let oracle = oracle(expression, true);
        let readers = Readers::new(classic(expression));
        for seed in 0..6 {
            let mut frame = crate::support::packets::tunnel_frame(&mut Random::new(seed));
            frame.resize(200, 0);
            for length in 0..=200 {
                let frame = &frame[..length];
                readers.compare(expression, frame, readers.ask(&oracle, frame), &mut r);
            }
        }
    }
}
