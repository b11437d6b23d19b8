//! Programs with added hooks behave as before: in the kernel's test runs, each packet has the same verdict and the same
//! bytes.

mod foreign;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_bpf::{loading, map, object, program, test_run};
use trawl_ebpf::{Insn, helper, op};
use trawl_program::Site;
use trawl_program::hooks::{ACTIONS, ENTRY, HOOK};
use trawl_program::load::{Program, Source};
use trawl_sys::Error;
use trawl_tests::{programs, root_or_skip};

/// Number of packets for each program.
const PACKETS: u64 = 400;
/// Programs without space for hooks, or without an exit for one. Separate tests cover them.
const NOT_TAPPABLE: [&str; 5] = ["overcrowded", "jump_below", "step_5", "thrown", "enormous"];
/// Programs that older kernels refuse even without hooks.
const NEWER: [&str; 5] = ["newest", "arena", "may_end", "own_objects", "counted_otherwise"];
const GUARD_IN_ARENA: &str = "xdp_guard";
/// Base of the verdicts of the programs that stand in for a capture's; each adds its slot.
const SEEN: u32 = 1000;

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Returns a frame of random kind and length: sometimes cut, sometimes longer than a page.
fn frame(numbers: &mut Numbers) -> Vec<u8> {
    const TYPES: [u16; 6] = [0x0800, 0x86dd, 0x0806, 0x8100, 0x88a8, 0x88b5];
    let length = match numbers.below(10) {
        0 => 14 + numbers.below(8),
        1..=6 => 60 + numbers.below(80),
        7 | 8 => 60 + numbers.below(1440),
        _ => 3500 + numbers.below(5000),
    };
    let mut frame: Vec<u8> = (0..length).map(|_| numbers.next() as u8).collect();
    let kind = TYPES[numbers.below(TYPES.len() as u64) as usize];
    frame[12..14].copy_from_slice(&kind.to_be_bytes());
    let is_long = frame.len() > 40;
    match kind {
        0x0800 if is_long => {
            frame[14] = 0x45;
            frame[22] = 64;
            frame[23] = [1, 6, 17][numbers.below(3) as usize];
        }
        0x86dd if is_long => {
            frame[14] = 0x60;
            frame[20] = [58, 6, 17][numbers.below(3) as usize];
        }
        0x8100 | 0x88a8 if is_long => {
            frame[16..18].copy_from_slice(&0x0800u16.to_be_bytes());
            frame[18] = 0x45;
        }
        _ => {}
    }
    frame
}

fn load(name: &str, bytes: &[u8], program: &str, tappable: bool) -> trawl_sys::Result<Program> {
    let site = Site::find("lo", None).expect("every namespace has one");
    let mut source = Source::embedded(name, bytes)?;
    source.choose(Some(program))?;
    if tappable {
        source.make_tappable();
    }
    source.load(&site)
}

/// Returns all XDP programs of an object.
fn programs_of(name: &str, bytes: &[u8]) -> Vec<String> {
    let source = Source::embedded(name, bytes).expect("an object");
    source.programs().into_iter().map(|one| one.name).collect()
}

/// Runs both programs over the same packets, and compares their results.
fn assert_same(what: &str, original: &Program, tappable: &Program) {
    let mut numbers = Numbers(0x7472_6177_6c21);
    for packet in 0..PACKETS {
        let frame = frame(&mut numbers);
        let expected = test_run::xdp_outcome(original.as_fd(), &frame);
        let found = test_run::xdp_outcome(tappable.as_fd(), &frame);
        match (expected, found) {
            (Ok(expected), Ok(found)) => {
                assert_eq!(found, expected, "{what}, packet {packet}: {frame:02x?}");
            }
            // Both fail if the frame is longer than the maximum of a program without fragments, or of the test run.
            (Err(expected), Err(found)) => {
                assert_eq!(found.raw_os_error(), expected.raw_os_error(), "{what}");
            }
            (expected, found) => panic!("{what}, packet {packet}: {found:?}, not {expected:?}"),
        }
    }
}

/// Loads an XDP program that only returns a verdict.
fn answering(value: u32, like: (u32, u32)) -> OwnedFd {
    load_block(&[op::mov32_imm(0, value), op::exit()], like)
}

fn load_block(instructions: &[Insn], (expected_attach_type, flags): (u32, u32)) -> OwnedFd {
    let options =
        program::LoadOptions { expected_attach_type, flags, ..program::LoadOptions::new("trawl_test", program::XDP) };
    loading::load(instructions, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// Puts programs into the hooks and checks that each is entered for its verdict.
fn assert_entered(what: &str, original: &Program, tappable: &Program, like: (u32, u32)) {
    let hook = tappable.map(HOOK).expect("a hook");
    let entry = tappable.map(ENTRY).expect("an entry");
    let watchers: Vec<OwnedFd> = (0..ACTIONS)
        .map(|action| {
            let watcher = answering(SEEN + action, like);
            map::set_program(hook, action, watcher.as_fd()).unwrap_or_else(|e| panic!("{what}: {e}"));
            watcher
        })
        .collect();
    let mut numbers = Numbers(0x7472_6177_6c22);
    let outcome = |program: BorrowedFd<'_>, frame: &[u8]| test_run::xdp_outcome(program, frame);
    for _ in 0..50 {
        let frame = frame(&mut numbers);
        if let (Ok(mut expected), Ok(found)) = (outcome(original.as_fd(), &frame), outcome(tappable.as_fd(), &frame)) {
            if expected.value < ACTIONS {
                expected.value += SEEN;
            }
            assert_eq!(found, expected, "{what}");
        }
    }
    drop(watchers);
    // The program at the entry sees the packet first, and the original program runs only if it is jumped to.
    let watcher = answering(SEEN, like);
    map::set_program(entry, 0, watcher.as_fd()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let frame = [7u8; 64];
    let found = outcome(tappable.as_fd(), &frame).expect("a run");
    assert_eq!((found.value, found.bytes), (SEEN, frame.to_vec()), "{what}");
    map::clear_program(entry, 0).expect("the slot is emptied");
}

/// Checks a program with empty hooks, and with a program at the entry that only continues.
fn check(name: &str, bytes: &[u8], program: &str, with_frags: bool) {
    let what = format!("{program} of {name}");
    let original = load(name, bytes, program, false).unwrap_or_else(|e| panic!("{e}"));
    let tappable = load(name, bytes, program, true).unwrap_or_else(|e| panic!("{e}"));
    assert_same(&what, &original, &tappable);

    let original = load(name, bytes, program, false).unwrap_or_else(|e| panic!("{e}"));
    let tappable = load(name, bytes, program, true).unwrap_or_else(|e| panic!("{e}"));
    let frags = if with_frags { program::HAS_FRAGS } else { 0 };
    let like = (program::ATTACH_XDP, frags);
    let entry = tappable.map(ENTRY).expect("an entry");
    let through = going_on(entry, like);
    map::set_program(entry, 0, through.as_fd()).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_same(&format!("{what}, entered"), &original, &tappable);
    map::clear_program(entry, 0).expect("the slot is emptied");
    assert_entered(&what, &original, &tappable, like);
}

/// Loads a program that jumps on to the original program, like a capture at its entry.
fn going_on(entry: BorrowedFd<'_>, like: (u32, u32)) -> OwnedFd {
    use std::os::fd::AsRawFd;
    let [map, upper_half] = op::load_immediate(op::MAP, 2, entry.as_raw_fd());
    let instructions =
        [map, upper_half, op::mov32_imm(3, 1), op::call(helper::TAIL_CALL), op::mov32_imm(0, SEEN + 99), op::exit()];
    load_block(&instructions, like)
}

fn has_frags(name: &str, bytes: &[u8], program: &str) -> bool {
    let source = Source::embedded(name, bytes).expect("an object");
    let found = source.programs().into_iter().find(|one| one.name == program);
    found.is_some_and(|one| one.section.contains("frags"))
}

#[test]
fn programs_of_different_shapes_behave_as_before() {
    if !root_or_skip() {
        return;
    }
    let mut checked = 0;
    for (name, bytes) in programs::PROGRAMS {
        for program in programs_of(name, bytes) {
            if NOT_TAPPABLE.iter().any(|one| program.starts_with(one)) {
                continue;
            }
            if NEWER.contains(name) && load(name, bytes, &program, false).is_err() {
                println!("this kernel does not accept {program}");
                continue;
            }
            check(name, bytes, &program, has_frags(name, bytes, &program));
            checked += 1;
        }
    }
    assert!(checked >= 10, "only {checked} programs were checked");
}

#[test]
fn bundled_programs_behave_as_before() {
    if !root_or_skip() {
        return;
    }
    let bundled = object::ALL.iter().filter(|(name, _)| name.starts_with("xdp_"));
    let mut checked = 0;
    for (name, bytes) in bundled {
        for program in programs_of(name, bytes) {
            // One of the guard's two programs is for kernels with arenas.
            if *name == GUARD_IN_ARENA && load(name, bytes, &program, false).is_err() {
                println!("this kernel does not accept {program}");
                continue;
            }
            check(name, bytes, &program, has_frags(name, bytes, &program));
            checked += 1;
        }
    }
    assert!(checked >= 5, "only {checked} programs were checked");
}

#[test]
fn program_without_space_for_hooks_is_refused_by_name() {
    if !root_or_skip() {
        return;
    }
    let bytes = programs::object("crowded");
    load("crowded", bytes, "overcrowded", false).expect("it is fine as it is");
    let error = load("crowded", bytes, "overcrowded", true).expect_err("nothing is left");
    assert_not_tappable(&error, &["overcrowded", "512 of 512 bytes"]);
}

/// Checks that the refusal has this reason, and suggests loading without hooks.
#[track_caller]
fn assert_not_tappable(error: &Error, words: &[&str]) {
    let text = error.to_string();
    for words in words {
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(error.how_to_fix(), Some("load it without --tappable"));
}

/// An exit by an exception runs no hook, which is reported, and has the same verdict.
#[test]
fn exits_by_exceptions_are_reported() {
    if !root_or_skip() {
        return;
    }
    let (name, bytes) = ("thrown", programs::object("thrown"));
    let Ok(original) = load(name, bytes, name, false) else {
        eprintln!("SKIPPED: this kernel has no exceptions in BPF programs");
        return;
    };
    let tappable = load(name, bytes, name, true).unwrap_or_else(|e| panic!("{e}"));
    let reported = tappable.notices();
    assert!(reported.len() == 1 && reported[0].contains("thrown throws exceptions"), "{reported:?}");
    assert_same(name, &original, &tappable);
}

#[test]
fn jumps_through_maps_filled_later_are_reported() {
    if !root_or_skip() {
        return;
    }
    let notices = |name: &str| {
        let bytes = programs::object(name);
        let program = load(name, bytes, name, true).unwrap_or_else(|e| panic!("{e}"));
        program.notices().to_vec()
    };
    let found = notices("filled_later");
    assert!(found.len() == 1 && found[0].contains("filled_later") && found[0].contains("later"), "{found:?}");
    // All slots of this map lead to programs of the same object, which also have hooks.
    assert_eq!(notices("tail_calls"), Vec::<String>::new());
}

#[test]
fn stack_too_deep_for_a_jump_is_refused() {
    if !root_or_skip() {
        return;
    }
    let load = |name: &str, tappable| load(name, programs::object(name), name, tappable);
    // Older kernels refuse the deeper stacks even without hooks.
    let deepest = ["jump_below_240", "jump_below_224", "jump_below_192"]
        .into_iter()
        .find(|name| load(name, false).is_ok())
        .expect("one of them is fine");
    let error = load(deepest, true).expect_err("it gets too deep");
    assert_not_tappable(&error, &[deepest, "with hooks inserted", "stack"]);
}

/// A program near the verifier's limit is accepted, because the hooks add few instructions to verify.
#[test]
fn program_near_the_verifiers_limit_is_accepted() {
    if !root_or_skip() {
        return;
    }
    let (name, bytes) = ("enormous", programs::object("enormous"));
    let original = load(name, bytes, name, false).unwrap_or_else(|e| panic!("{e}"));
    let tappable = load(name, bytes, name, true).unwrap_or_else(|e| panic!("{e}"));
    assert_same(name, &original, &tappable);
}
