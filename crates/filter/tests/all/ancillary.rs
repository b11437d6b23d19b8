//! Facts outside the packet's bytes: each hook's answers and refusals.

use crate::support::machine::{Scene, run};
use crate::support::{classic, lowered};
use trawl_filter::{Classic, FilterError, Target, lower};

fn result(program: &Classic, target: &Target) -> u32 {
    let scene = Scene { bytes: &[0; 60], linear: 60, tag: None };
    run(&lowered(program, target), target, &scene).unwrap()
}

/// Returns a program that returns one ancillary field.
fn field(offset: u32) -> Classic {
    Classic::parse(&format!("2,32 0 0 {},22 0 0 0", 0xffff_f000 + offset)).unwrap()
}

#[test]
fn direction_is_known_at_every_hook() {
    for target in [Target::xdp(), Target::copy(128)] {
        assert_ne!(result(&classic("inbound"), &target), 0);
        assert_eq!(result(&classic("outbound"), &target), 0);
        assert_ne!(result(&classic("not outbound and greater 60"), &target), 0);
    }
    // The machine's packet type is 0x104, which is not "outgoing".
    for target in [Target::tc(), Target::socket()] {
        assert_ne!(result(&classic("inbound"), &target), 0);
    }
}

#[test]
fn fields_come_from_the_context() {
    let of_skb = &[(0, 0x86dd), (4, 0x104), (8, 0x128), (20, 0x108), (24, 0x10c), (32, 0x144), (48, 0)][..];
    for (target, fields) in [
        (Target::xdp(), &[(8, 0x10c), (24, 0x110), (44, 0), (48, 0), (36, 3), (56, 3)][..]),
        (Target::tc(), of_skb),
        (Target::socket(), of_skb),
        (Target::tc_copy(64), &[(4, 0x104), (8, 0x128), (20, 0x108), (24, 0x10c), (32, 0x144), (48, 0)]),
    ] {
        for &(offset, expected) in fields {
            assert_eq!(result(&field(offset), &target), expected, "{offset} {target:?}");
        }
    }
}

#[test]
fn facts_unknown_to_a_hook_are_refused() {
    for (offset, target) in [
        (4, Target::xdp()),
        (20, Target::xdp()),
        (28, Target::xdp()),
        (32, Target::xdp()),
        (52, Target::tc()),
        (52, Target::socket()),
        (12, Target::tc()),
        (8, Target::copy(64)),
        (24, Target::copy(64)),
    ] {
        match lower(&field(offset), &target) {
            Err(error @ FilterError::NotAtHook { .. }) => {
                let text = error.to_string();
                assert!(text.contains("not known at"), "{text}");
            }
            other => panic!("{offset} {target:?}: {other:?}"),
        }
    }
}

#[test]
fn fields_survive_the_helpers_that_answer_them() {
    // A random number, then fields of the packet, including an address after X.
    let program =
        Classic::parse("8,177 0 0 14,32 0 0 4294963256,7 0 0 0,40 0 0 12,1 0 0 4,80 0 0 10,20 0 0 0,22 0 0 0").unwrap();
    let mut frame = [0; 60];
    frame[14] = 0x45;
    for target in [Target::xdp(), Target::tc(), Target::socket()] {
        for linear in [0, 13, 20, 60] {
            let scene = Scene { bytes: &frame, linear, tag: None };
            assert_eq!(run(&lowered(&program, &target), &target, &scene), Ok(0x45));
        }
    }
}

#[test]
fn programs_for_stripped_frames_see_stripped_frames() {
    // As on a live socket: the kernel provides the tag, and lengths exclude it.
    let program = Classic::parse("3,32 0 0 4294963244,84 0 0 4095,22 0 0 0").unwrap();
    let scene = Scene { bytes: &[0; 60], linear: 60, tag: Some((0x8100, 0x2064)) };
    let length = Classic::parse("6,32 0 0 4294963248,21 0 2 1,128 0 0 0,22 0 0 0,6 0 0 0,6 0 0 0").unwrap();
    for target in [Target::tc(), Target::socket()] {
        assert_eq!(run(&lowered(&program, &target), &target, &scene), Ok(100));
        assert_eq!(run(&lowered(&length, &target), &target, &scene), Ok(60));
    }
}
