//! A capture on a program without hooks names the command that reloads it with hooks, and that command works.

use trawl_bpf::probe::KernelFeature;
use trawl_tests::programs::{Attached, object_file};
use trawl_tests::witness::output;
use trawl_tests::xdp::{CleanUp, only_program, programs_on, succeeds};
use trawl_tests::{Capture, Lab, binary, frames, skip, trawl};

/// Returns the advice of the refused capture.
#[track_caller]
fn advice(arguments: &[&str]) -> String {
    let refused = trawl(&[&["capture"], arguments].concat());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    let (_, rest) = said.split_once("with hooks: ").expect("advice");
    let ends = [";", "\n", " or "];
    let end = ends.iter().filter_map(|end| rest.find(end)).min();
    rest[..end.unwrap_or(rest.len())].trim().to_owned()
}

/// Follows the advice like a user, and then captures.
#[track_caller]
fn follow(lab: &Lab, advice: &str) {
    let trawl = binary::path().to_str().expect("plain");
    let done = output("sh", &["-ec", &advice.replace("trawl ", &format!("{trawl} "))]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{advice}: {said}");
    let (place, file) = (lab.receiver(), lab.file("file.pcapng"));
    let fixed = ["-i", &place, "--tap", "tailcall", "--at", "both", "-Q", "in"];
    let capture = Capture::start(lab, &[&fixed[..], &["-c", "2", "-w", &file]].concat());
    lab.send(&[frames::choosing(1)], 1);
    capture.wait().summary_of_success().assert_all_recorded(2);
}

#[test]
fn advice_depends_on_the_kind_of_program() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    let (chosen, several) = (object_file(&lab, "chosen"), object_file(&lab, "several"));
    let with_prog = format!("{several} --prog several_first");
    for (load, expected) in [
        (format!("guard load {place}"), format!("trawl guard load {place} --tappable")),
        (format!("route load {place}"), format!("trawl route load {place} --tappable")),
        (format!("xdp load {place} drop"), format!("trawl xdp load {place} drop --replace --keep-maps --tappable")),
        (
            format!("xdp load {place} pass --mode skb"),
            format!("trawl xdp load {place} pass --replace --keep-maps --tappable --mode skb"),
        ),
        (
            format!("xdp load {place} {with_prog}"),
            format!("trawl xdp load {place} {with_prog} --replace --keep-maps --tappable"),
        ),
    ] {
        succeeds(&load.split(' ').collect::<Vec<_>>());
        let place_alone = ["-i", &place, "--tap", "tailcall"];
        let given = advice(&place_alone);
        assert_eq!(given, expected);
        // If the namespace is given separately from the interface, the advised command still names it.
        let (namespace, name) = place.split_once(':').expect("both");
        let apart = ["-i", name, "--netns", namespace, "--tap", "tailcall"];
        assert_eq!(advice(&apart), expected);
        follow(&lab, &given);
        only_program(&place);
        succeeds(&["xdp", "unload", &place, "--all", "--yes"]);
    }
    // Only the user knows the file of another tool's program.
    let _by_others = Attached::native("chosen", "chosen", &lab.pair.b);
    let given = advice(&["-i", &place, "--tap", "tailcall"]);
    let expected = format!("trawl xdp load {place} FILE.o --replace --keep-maps --tappable");
    assert_eq!(given, expected);
    follow(&lab, &given.replace("FILE.o", &chosen));
}

/// The first program of a chain is reloaded, and the other programs stay.
#[test]
fn first_program_of_a_chain_is_reloaded() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, chosen) = (lab.receiver(), object_file(&lab, "chosen"));
    succeeds(&["xdp", "load", &place, &chosen]);
    succeeds(&["xdp", "load", &place, "pass", "--prio", "90"]);
    let given = advice(&["-i", &place, "--tap", "tailcall"]);
    assert!(given.contains(&format!("&& trawl xdp unload {place} ")), "{given}");
    // Programs behind a dispatcher have no hooks, and captures need none.
    if trawl_bpf::probe::KernelFeature::Freplace.probe().is_supported() {
        return;
    }
    follow(&lab, &given);
    assert_eq!(programs_on(&place).len(), 2);
}

/// A capture without --tap records the packets that the program passes, and reports which packets it does not see.
#[test]
fn default_capture_records_behind_a_program_that_cannot_be_traced() {
    let Some(lab) = Lab::open() else { return };
    if KernelFeature::Fentry.probe().is_supported() {
        skip("this kernel traces the program");
        return;
    }
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    succeeds(&["xdp", "load", &place, "pass"]);
    let capture = Capture::start(&lab, &["-i", &place]);
    lab.send(&[frames::silent(64)], 5);
    capture.wait_recorded(5);
    let finished = capture.stop();
    finished.summary_of_success().assert_all_recorded(5);
    let expected = format!("{place}: using tap packet: packets that the XDP program drops are not seen: cannot trace");
    let said = finished.stderr;
    assert!(said.contains(&expected) && said.contains("--tappable"), "{said}");
    // A capture of both ends of the program is refused.
    let refused = trawl(&["capture", "-i", &place, "--at", "both"]);
    assert_eq!(refused.status.code(), Some(1));
}
