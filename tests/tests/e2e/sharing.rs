//! Several captures at once on one interface: each records all packets, and each may end first.

use std::os::fd::AsFd;

use trawl_bpf::{map, program};
use trawl_lab::program::{Does, Loaded};
use trawl_tests::pcapng::Contents;
use trawl_tests::taps::{TAILCALL, TAPS, Tap};
use trawl_tests::witness::{nothing_attached, slots};
use trawl_tests::{Capture, Lab, frames, turn, wait_until};

/// A capture with its file.
struct Watch {
    capture: Capture,
    file: String,
    /// Number of packets sent so far that the capture must record.
    due: u64,
}

/// A lab with captures of one tap.
struct Scene<'a> {
    lab: &'a Lab,
    program: Option<Loaded>,
    tap: &'a Tap,
    started: u32,
}

impl<'a> Scene<'a> {
    fn open(lab: &'a Lab, tap: &'a Tap) -> Self {
        Self { lab, program: tap.load(lab), tap, started: 0 }
    }

    /// Runs a scene with each tap, and checks that nothing is left afterwards.
    fn play(act: impl Fn(&mut Scene<'_>)) {
        let Some(lab) = Lab::open() else { return };
        for tap in TAPS {
            let mut scene = Scene::open(&lab, tap);
            act(&mut scene);
            scene.assert_nothing_left();
        }
    }

    fn start(&mut self) -> Watch {
        let file = self.lab.file(&format!("{}.pcapng", self.started));
        self.started += 1;
        let place = self.lab.receiver();
        let fixed = ["-i", &place, "-Q", "in", "-w", &file];
        Watch { capture: Capture::start(self.lab, &[&fixed[..], self.tap.options].concat()), file, due: 0 }
    }

    /// Sends ten packets that all of these see.
    fn send(&self, watches: &mut [&mut Watch]) {
        self.lab.send(&[frames::silent(64)], 10);
        for watch in watches {
            watch.due += 10;
            watch.capture.wait_recorded(watch.due);
        }
    }

    fn stop(&self, watch: Watch) {
        watch.capture.stop_well().assert_all_recorded(watch.due);
        assert_eq!(Contents::read(&watch.file).packets.len() as u64, watch.due);
    }

    fn assert_nothing_left(&self) {
        match &self.program {
            None => nothing_attached(&self.lab.pair.b),
            Some(program) => assert_eq!(slots(hook_id(program)), []),
        }
    }
}

fn hook_id(program: &Loaded) -> u32 {
    map::info(program.hook().expect("a hook")).expect("a map").id
}

#[test]
fn the_first_ends_first() {
    Scene::play(|scene| {
        let (mut first, mut second) = (scene.start(), scene.start());
        scene.send(&mut [&mut first, &mut second]);
        scene.stop(first);
        scene.send(&mut [&mut second]);
        scene.stop(second);
    });
}

#[test]
fn the_second_ends_first() {
    Scene::play(|scene| {
        let (mut first, mut second) = (scene.start(), scene.start());
        scene.send(&mut [&mut first, &mut second]);
        scene.stop(second);
        scene.send(&mut [&mut first]);
        // A later capture can use the slot of the one that ended.
        let mut third = scene.start();
        scene.send(&mut [&mut first, &mut third]);
        scene.stop(first);
        scene.send(&mut [&mut third]);
        scene.stop(third);
    });
}

#[test]
fn the_middle_of_three_ends_first() {
    Scene::play(|scene| {
        let (mut first, mut second, mut third) = (scene.start(), scene.start(), scene.start());
        scene.send(&mut [&mut first, &mut second, &mut third]);
        scene.stop(second);
        scene.send(&mut [&mut first, &mut third]);
        scene.stop(first);
        scene.send(&mut [&mut third]);
        scene.stop(third);
    });
}

#[test]
fn the_first_is_killed() {
    Scene::play(|scene| {
        let (mut first, mut second) = (scene.start(), scene.start());
        scene.send(&mut [&mut first, &mut second]);
        first.capture.kill();
        scene.send(&mut [&mut second]);
        scene.stop(second);
    });
}

#[test]
fn the_second_is_killed() {
    Scene::play(|scene| {
        let (mut first, mut second) = (scene.start(), scene.start());
        scene.send(&mut [&mut first, &mut second]);
        second.capture.kill();
        scene.send(&mut [&mut first]);
        scene.stop(first);
    });
}

#[test]
fn slots_of_another_tools_program_are_restored() {
    let _turn = turn::hooks();
    let Some(lab) = Lab::open() else { return };
    let owner = Loaded::native(Does::DropWithHook, &lab.pair.b).expect("the program");
    // Another tool puts a different program of the same kind into the slot.
    let other = Loaded::native(Does::DropWithHook, &lab.pair.a).expect("the program");
    let hook = owner.hook().expect("a hook");
    map::set_program(hook, 2, other.program()).expect("the slot takes it");
    let id =
        u64::from(program::id(&other.program().as_fd().try_clone_to_owned().expect("a descriptor")).expect("an id"));
    let before = slots(hook_id(&owner));
    assert_eq!(before, [(2, id)]);

    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", "tailcall"]);
    assert_eq!(slots(hook_id(&owner)).len(), 5);
    capture.stop_well();
    assert_eq!(slots(hook_id(&owner)), before);

    for kill in [Capture::kill, Capture::kill_by_name] {
        let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", "tailcall"]);
        kill(capture);
        wait_until("the slots are restored", || slots(hook_id(&owner)) == before);
    }

    // The last of several captures restores the slots, in either order.
    for first_ends_first in [true, false] {
        let start = || Capture::start(&lab, &["-i", &lab.receiver(), "--tap", "tailcall"]);
        let (first, second) = (start(), start());
        let (one, other) = if first_ends_first { (first, second) } else { (second, first) };
        one.stop_well();
        assert_eq!(slots(hook_id(&owner)).len(), 5);
        other.stop_well();
        assert_eq!(slots(hook_id(&owner)), before);
    }

    // If captures were killed with all their processes, the next capture restores the slots, and does not disturb
    // running captures.
    let start = || Capture::start(&lab, &["-i", &lab.receiver(), "--tap", "tailcall"]);
    let (lives_on, first, second) = (start(), start(), start());
    first.kill_all();
    second.kill_all();
    let next = start();
    lab.send(&[frames::patterned(100)], 10);
    next.wait_recorded(10);
    lives_on.wait_recorded(10);
    lives_on.stop_well();
    next.kill_all();
    assert_eq!(slots(hook_id(&owner)).len(), 5);
    // Once the last process that knew the slot's original program is dead, the program cannot be restored. The kernel
    // frees a dead process's maps with a delay.
    wait_until("the slots are empty", || {
        start().stop_well();
        slots(hook_id(&owner)).is_empty()
    });
}

#[test]
fn captures_come_and_go_in_front_of_one_that_stays() {
    let Some(lab) = Lab::open() else { return };
    let mut scene = Scene::open(&lab, &TAILCALL);
    let mut stays = scene.start();
    let mut last = scene.start();
    for _ in 0..10 {
        let mut next = scene.start();
        scene.send(&mut [&mut stays, &mut last, &mut next]);
        scene.stop(std::mem::replace(&mut last, next));
    }
    scene.send(&mut [&mut stays, &mut last]);
    scene.stop(last);
    scene.send(&mut [&mut stays]);
    scene.stop(stays);
    scene.assert_nothing_left();
}

#[test]
fn different_taps_at_once() {
    let Some(lab) = Lab::open() else { return };
    let captures: Vec<Capture> = ["xdp", "tc", "packet"]
        .iter()
        .map(|tap| Capture::start(&lab, &["-i", &lab.receiver(), "--tap", tap, "-Q", "in"]))
        .collect();
    lab.send(&[frames::silent(64)], 10);
    for capture in captures {
        capture.wait_recorded(10);
        capture.stop_well().assert_all_recorded(10);
    }
    nothing_attached(&lab.pair.b);
}
