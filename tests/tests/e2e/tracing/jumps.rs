//! Programs that jump to others. A jump bypasses the function to which tracing programs are attached.

use trawl_tests::pcapng::Contents;
use trawl_tests::programs::{object_file, tail_call_exits};
use trawl_tests::witness::nothing_attached;
use trawl_tests::xdp::{CleanUp, fails, programs_on, succeeds};
use trawl_tests::{Capture, args, frames};

use super::lab;

#[test]
fn jumping_program_is_seen_with_the_final_verdict() {
    let Some(lab) = lab() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, object) = (lab.receiver(), object_file(&lab, "tail_calls"));
    let sent = tail_call_exits();
    let frames: Vec<Vec<u8>> = sent.iter().map(|(frame, _)| frame.clone()).collect();
    let file = lab.file("file.pcapng");
    let load = ["xdp", "load", &place, &object, "--prog", "tail_calls"];
    // The program runs first as a dispatcher's function, and then on its own.
    for more in [&[][..], &["--tappable", "--replace", "--yes"]] {
        succeeds(&[&load[..], more].concat());
        let both = ["-i", &place, "--tap", "xdp", "--at", "both", "-w", &file];
        let capture = Capture::start(&lab, &both);
        lab.send(&frames, 6);
        capture.wait_recorded(12);
        capture.stop_well().assert_all_recorded(12);
        let contents = Contents::read(&file);
        let ends = contents.of(0).into_iter().zip(contents.of(1));
        for ((entry, exit), (frame, verdict)) in ends.zip(&sent) {
            assert_eq!(&entry.bytes, frame);
            assert_eq!(entry.packet_id(), exit.packet_id());
            assert_eq!(exit.verdict(), Some((2, *verdict)));
        }
    }
    succeeds(&["xdp", "unload", &place, "--all"]);
    nothing_attached(&lab.pair.b);
}

#[test]
fn chain_by_jumps_is_seen_whole_and_its_members_by_hooks() {
    let Some(lab) = lab() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, members) = (lab.receiver(), object_file(&lab, "members"));
    for (name, priority) in [("passes", "10"), ("drops", "20")] {
        succeeds(&args!("xdp load {place} {members} --prog {name} --tappable --prio {priority}"));
    }
    let second = &programs_on(&place)[1];
    assert_eq!(second["name"], "drops");
    let number = second["id"].to_string();
    for chosen in ["drops", number.as_str()] {
        let capture = ["capture", "-i", &place, "--tap", "xdp", "--program", chosen];
        fails(&capture, 1, &["drops", &number, "by a jump", "--tap tailcall"]);
    }
    let file = lab.file("file.pcapng");
    let fixed = ["-i", &place, "-c", "3", "-w", &file];
    let all = [&fixed[..], &["--tap", "xdp", "--program", "all"]].concat();
    let capture = Capture::start(&lab, &all);
    assert!(capture.said().contains("by a tail call"), "{}", capture.said());
    lab.send(&[frames::silent(64)], 3);
    capture.wait().summary_of_success().assert_all_recorded(3);
    let verdicts = |file: &str| -> Vec<_> {
        let packets = Contents::read(file).packets;
        packets.iter().map(|one| one.verdict()).collect()
    };
    // The records have the verdict of the whole chain.
    assert_eq!(verdicts(&file), [Some((2, 1)); 3]);

    let hooks = ["-i", &place, "-c", "6", "-w", &file, "--tap", "tailcall"];
    let capture = Capture::start(&lab, &hooks);
    lab.send(&[frames::silent(64)], 3);
    capture.wait().summary_of_success().assert_all_recorded(6);
    let (pass, drop) = (Some((2, 2)), Some((2, 1)));
    assert_eq!(verdicts(&file), [pass, drop, pass, drop, pass, drop]);
    succeeds(&["xdp", "unload", &place, "--all"]);
    nothing_attached(&lab.pair.b);
}
