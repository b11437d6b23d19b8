//! Several programs on one interface, each of which jumps to the next: their order, the verdicts that continue the
//! chain, and captures.

mod killed;

use std::fs;
use std::process::Output;

use serde_json::Value;
use trawl_bpf::{program, test_run};
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{is_loaded, nothing_attached, run, tshark, xdp_on};
use trawl_tests::xdp::all_gone;
use trawl_tests::{Capture, Lab, frames, programs, trawl, wait_until};

const PASS: u8 = 2;
const DROP: u8 = 1;
const TX: u8 = 3;
/// Offset of the test programs' answers in the frame.
const ANSWERS: usize = 14;
const COUNT: usize = 20;
const NOTES: usize = 21;

/// Returns the id of the loaded program.
#[track_caller]
fn number_in(output: &Output) -> u64 {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let printed = String::from_utf8_lossy(&output.stdout);
    let id = printed.split("(id ").nth(1).and_then(|rest| rest.split(',').next());
    id.and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("no number: {printed}"))
}

/// A lab whose chains are made by trawl's jumps, even if the kernel supports dispatchers.
struct Chained(Lab);

impl Chained {
    fn open() -> Option<Self> {
        Lab::open().map(Self::of)
    }

    fn of(lab: Lab) -> Self {
        programs::object_file(&lab, "steps");
        Self(lab)
    }

    /// Loads a tappable program, which never joins a dispatcher, so that all kernels behave alike.
    #[track_caller]
    fn load(&self, number: u32, arguments: &[&str]) -> u64 {
        number_in(&self.try_load(number, arguments))
    }

    /// Loads again as long as other commands change the chain between reading and joining it.
    fn load_with_retries(&self, number: u32, arguments: &[&str]) -> u64 {
        loop {
            let output = self.try_load(number, arguments);
            if !String::from_utf8_lossy(&output.stderr).contains("try again") {
                return number_in(&output);
            }
        }
    }

    fn try_load(&self, number: u32, arguments: &[&str]) -> std::process::Output {
        let file = self.0.file("steps.o");
        let name = format!("step_{number}");
        let place = self.0.receiver();
        let fixed = ["xdp", "load", &place, &file, "--prog", &name, "--tappable"];
        trawl(&[&fixed[..], arguments].concat())
    }

    #[track_caller]
    fn unload(&self, what: &str) {
        let output = trawl(&["xdp", "unload", &self.0.receiver(), what]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs a frame with these answers through the attached chain. Returns the programs that ran, and the verdict.
    #[track_caller]
    fn run(&self, answers: [u8; 4]) -> (Vec<u8>, u32) {
        let (id, _) = xdp_on(&self.0.pair.b).expect("a program");
        let head = program::open_by_id(id as u32).expect("it is there");
        let mut frame = frames::silent(64);
        frame[ANSWERS + 1..ANSWERS + 5].copy_from_slice(&answers);
        frame[COUNT..].fill(0);
        let outcome = test_run::xdp_outcome(std::os::fd::AsFd::as_fd(&head), &frame).expect("a test run");
        let count = usize::from(outcome.bytes[COUNT]);
        (outcome.bytes[NOTES..NOTES + count].to_vec(), outcome.value)
    }

    /// Returns the chain as shown by `trawl xdp status`: names, priorities, actions.
    #[track_caller]
    fn status(&self) -> Vec<(String, u64, String)> {
        let output = trawl(&["xdp", "status", "-i", &self.0.receiver(), "--json"]);
        let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let chain = &all["interfaces"][0]["programs"][0]["chain"];
        let member = |one: &Value| {
            let actions = one["chain_actions"].as_array().expect("a list");
            let actions: Vec<&str> = actions.iter().filter_map(Value::as_str).collect();
            (
                one["name"].as_str().expect("a name").to_owned(),
                one["priority"].as_u64().expect("a number"),
                actions.join(","),
            )
        };
        chain.as_array().expect("a list").iter().map(member).collect()
    }
}

fn row(name: &str, priority: u64, actions: &str) -> (String, u64, String) {
    (name.to_owned(), priority, actions.to_owned())
}

#[test]
fn order_follows_priority_and_verdicts_continue() {
    let Some(lab) = Chained::open() else { return };
    // The default priority is 50. The second program's source sets 20, and continues the chain after drop, too.
    lab.load(1, &[]);
    assert_eq!(lab.run([PASS; 4]), (vec![1], 2));
    lab.load(2, &[]);
    assert_eq!(lab.run([PASS; 4]), (vec![2, 1], 2));
    lab.load(3, &["--prio", "30"]);
    assert_eq!(lab.run([PASS; 4]), (vec![2, 3, 1], 2));
    assert_eq!(lab.status(), [row("step_2", 20, "drop,pass"), row("step_3", 30, "pass"), row("step_1", 50, "pass")]);
    // A verdict outside of a program's actions ends the chain, and the last verdict is returned.
    assert_eq!(lab.run([PASS, DROP, PASS, 0]), (vec![2, 3, 1], 2));
    assert_eq!(lab.run([PASS, TX, PASS, 0]), (vec![2], 3));
    assert_eq!(lab.run([PASS, PASS, DROP, 0]), (vec![2, 3], 1));
    assert_eq!(lab.run([TX, PASS, PASS, 0]), (vec![2, 3, 1], 3));
    assert_eq!(lab.run([DROP, DROP, PASS, 0]), (vec![2, 3, 1], 1));
    // An invalid verdict ends the chain.
    assert_eq!(lab.run([PASS, 7, PASS, 0]), (vec![2], 7));
    lab.unload("--all");
    nothing_attached(&lab.0.pair.b);
}

/// Each command may find a chain that another command has changed, and whose link has moved to another program.
#[test]
fn many_commands_come_and_go_at_once() {
    let Some(lab) = Chained::open() else { return };
    let lab = &lab;
    for _ in 0..3 {
        let ids: Vec<u64> = std::thread::scope(|scope| {
            let load = |number| scope.spawn(move || lab.load(number, &[]));
            let all = [1, 2, 3, 1, 2, 3, 1, 2].map(load);
            all.map(|one| one.join().expect("it is loaded")).into()
        });
        assert_eq!(lab.status().len(), ids.len());
        std::thread::scope(|scope| {
            for id in &ids {
                scope.spawn(|| lab.unload(&id.to_string()));
            }
        });
        all_gone(&lab.0, &ids, &[]);
    }
}

/// Another command may have loaded the first program on the interface before the lock is taken.
#[test]
fn all_programs_are_removed_while_others_join() {
    let Some(lab) = Chained::open() else { return };
    let lab = &lab;
    let place = lab.0.receiver();
    for _ in 0..6 {
        let ids: Vec<u64> = [2, 3, 2].map(|number| lab.load(number, &[])).into();
        let in_front: Vec<u64> = std::thread::scope(|scope| {
            let loads = [1, 2].map(|number| {
                let load = move || lab.load_with_retries(number, &["--prio", &number.to_string()]);
                scope.spawn(load)
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let output = trawl(&["xdp", "unload", &place, "--all"]);
                    let said = String::from_utf8_lossy(&output.stderr);
                    // The command may fail because the other one was faster.
                    let is_late = said.contains("no XDP program is on it");
                    assert!(output.status.success() || is_late, "{said}");
                });
            }
            loads.map(|one| one.join().expect("it is loaded")).into()
        });
        trawl(&["xdp", "unload", &place, "--all"]);
        all_gone(&lab.0, &[ids, in_front].concat(), &[]);
    }
}

#[test]
fn equal_priorities_run_in_order_of_loading() {
    let Some(lab) = Chained::open() else { return };
    for number in [3, 1, 2] {
        lab.load(number, &["--prio", "9"]);
    }
    assert_eq!(lab.run([PASS; 4]), (vec![3, 1, 2], 2));
    lab.unload("--all");
}

#[test]
fn each_program_may_leave() {
    let Some(lab) = Chained::open() else { return };
    for leaving in 0..3 {
        let mut ids = Vec::new();
        for number in 1..=3 {
            let priority = (10 * number).to_string();
            ids.push(lab.load(number, &["--prio", &priority]));
        }
        assert_eq!(lab.run([PASS; 4]).0, [1, 2, 3]);
        lab.unload(&ids[leaving].to_string());
        let left: Vec<u8> = [1, 2, 3].into_iter().filter(|number| usize::from(*number) != leaving + 1).collect();
        assert_eq!(lab.run([PASS; 4]).0, left);
        wait_until("the program is gone", || !is_loaded(ids[leaving]));
        // The other programs can be unloaded in any order.
        for id in ids.iter().rev().filter(|id| **id != ids[leaving]) {
            lab.unload(&id.to_string());
        }
        nothing_attached(&lab.0.pair.b);
        for id in ids {
            wait_until("the program is gone", || !is_loaded(id));
        }
    }
}

#[test]
fn replacing_all_replaces_the_whole_chain() {
    let Some(lab) = Chained::open() else { return };
    let ids: Vec<u64> = (1..=2).map(|number| lab.load(number, &[])).collect();
    lab.load(3, &["--replace"]);
    assert_eq!(lab.run([PASS; 4]).0, [3]);
    assert_eq!(lab.status(), []);
    for id in ids {
        wait_until("the program is gone", || !is_loaded(id));
    }
    lab.unload("--all");
    nothing_attached(&lab.0.pair.b);
}

#[test]
fn fragments_need_support_by_all_programs() {
    let Some(lab) = Chained::open() else { return };
    lab.load(1, &[]);
    let output = lab.try_load(4, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("several pieces") && said.contains("step_4"), "{said}");
    lab.unload("--all");
    // In the reverse order of loading, programs that could accept fragments get none.
    lab.load(4, &[]);
    lab.load(1, &[]);
    assert_eq!(lab.run([PASS; 4]).0, [4, 1]);
    lab.unload("--all");
}

#[test]
fn conflicting_programs_are_named() {
    let Some(lab) = Chained::open() else { return };
    lab.load(1, &["--mode", "skb"]);
    let output = lab.try_load(2, &["--mode", "native"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("--mode skb"), "{said}");
    // Without the option, the program joins the existing chain.
    lab.load(2, &[]);
    assert_eq!(lab.run([PASS; 4]).0, [2, 1]);
    for number in 0..8 {
        lab.load(3, &["--prio", &(60 + number).to_string()]);
    }
    let output = lab.try_load(3, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("10 programs"), "{said}");
    assert_eq!(lab.run([PASS; 4]).0.len(), 10);
    lab.unload("--all");
    nothing_attached(&lab.0.pair.b);
}

/// The chain changes constantly while packets arrive: each packet meets a whole chain.
#[test]
fn packets_see_whole_chains_only() {
    let Some(lab) = Chained::open() else { return };
    lab.load(1, &["--prio", "10"]);
    lab.load(3, &["--prio", "30"]);
    let file = lab.0.file("file.pcapng");
    let place = lab.0.receiver();
    let arguments = ["-i", &place, "--tap", "tailcall", "-Q", "in", "-w", &file];
    let capture = Capture::start(&lab.0, &arguments);
    let mut frame = frames::silent(64);
    frame[ANSWERS + 1..ANSWERS + 5].fill(PASS);
    frame[ANSWERS + 3] = DROP;
    frame[COUNT..].fill(0);
    const COUNT_SENT: u64 = 20_000;
    let pair = &lab.0.pair;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            // Each frame needs memory of its own, because the programs write into it.
            let engine = trawl_lab::sender::Engine::Packet;
            trawl_tests::lab::send_from(&pair.a, &[frame], COUNT_SENT, engine, None, Some(10_000));
        });
        while !sender.is_finished() {
            let id = lab.load(2, &["--prio", "20"]);
            lab.unload(&id.to_string());
        }
        sender.join().expect("all were sent");
    });
    capture.wait_seen(2 * COUNT_SENT);
    capture.stop_well().assert_all_recorded(2 * COUNT_SENT);
    // The exit of the last program shows the programs that the packet met.
    let notes = |bytes: &[u8]| bytes[NOTES..NOTES + usize::from(bytes[COUNT])].to_vec();
    let contents = Contents::read(&file);
    let mut met = std::collections::BTreeMap::<Vec<u8>, u64>::new();
    for packet in &contents.packets {
        *met.entry(notes(&packet.bytes)).or_default() += 1;
    }
    let whole = met.get(&vec![1, 3]).copied().unwrap_or(0) + met.get(&vec![1, 2, 3]).copied().unwrap_or(0);
    assert_eq!(whole, COUNT_SENT, "{met:?}");
    assert_eq!(met.get(&vec![1]), Some(&COUNT_SENT), "{met:?}");
    assert!(met.len() <= 3, "{met:?}");
    lab.unload("--all");
}

#[test]
fn capture_sees_each_program_of_the_chain() {
    let Some(lab) = Chained::open() else { return };
    lab.load(1, &["--prio", "10"]);
    lab.load(2, &["--prio", "20"]);
    let file = lab.0.file("file.pcapng");
    let place = lab.0.receiver();
    let fixed = ["-i", &place, "--tap", "tailcall", "-Q", "in", "--at", "both"];
    let capture = Capture::start(&lab.0, &[&fixed[..], &["-w", &file, "-c", "6"]].concat());
    let mut went_on = frames::silent(64);
    went_on[ANSWERS + 1] = PASS;
    went_on[ANSWERS + 2] = TX;
    went_on[COUNT..].fill(0);
    let mut ended = went_on.clone();
    ended[ANSWERS + 1] = DROP;
    lab.0.send(&[went_on, ended], 2);
    capture.wait().summary_of_success();
    let fields = ["frame.interface_description", "frame.packet_id", "frame.verdict.ebpf_xdp"];
    let rows = tshark(&file, &fields);
    let places: Vec<(&str, &str)> =
        rows.iter().map(|row| (row[0].split(" (").next().unwrap_or(""), row[2].as_str())).collect();
    assert_eq!(
        places,
        [
            ("xdp entry step_1", ""),
            ("xdp exit step_1", "2"),
            ("xdp entry step_2", ""),
            ("xdp exit step_2", "3"),
            ("xdp entry step_1", ""),
            ("xdp exit step_1", "1"),
        ]
    );
    assert!(rows[..4].iter().all(|row| row[1] == rows[0][1]), "{rows:?}");
    assert!(rows[4..].iter().all(|row| row[1] == rows[4][1]), "{rows:?}");
    assert_ne!(rows[0][1], rows[4][1]);
    lab.unload("--all");
}

/// The kernel would refuse further jumps, and the chain would end early.
#[test]
fn more_jumps_than_the_kernel_allows_are_refused() {
    let Some(lab) = Chained::open() else { return };
    for number in 0..8 {
        lab.load(1, &["--prio", &number.to_string()]);
    }
    let place = lab.0.receiver();
    let fixed = ["capture", "-i", &place, "--tap", "tailcall", "-Q", "in"];
    // The kernel's limit on jumps limits the number of captures. A capture is refused, or leaves the chain whole.
    let mut captures = Vec::new();
    for at in ["both", "exit", "exit"] {
        // A refused capture ends at once, and an accepted one at its time limit.
        let refused = trawl(&[&fixed[..], &["--at", at, "--duration", "1ms"]].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        if refused.status.success() {
            captures.push(Capture::start(&lab.0, &[&fixed[1..], &["--at", at]].concat()));
        } else {
            assert!(said.contains("jumps from program to program"), "{said}");
        }
        assert_eq!(lab.run([PASS; 4]).0.len(), 8);
    }
    assert!((1..3).contains(&captures.len()), "{} captures", captures.len());
    for added in 1..=2 {
        let output = lab.try_load(1, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            assert!(said.contains("end a capture"), "{said}");
            break;
        }
        assert_eq!(lab.run([PASS; 4]).0.len(), 8 + added);
    }
    captures.into_iter().for_each(|capture| drop(capture.stop_well()));
    lab.unload("--all");
}

/// A program whose exits cannot be rewritten still loads without hooks, and can be the last one of a chain by jumps.
#[test]
fn program_without_rewritable_exits_goes_last() {
    let Some(lab) = Chained::open() else { return };
    if trawl_bpf::probe::KernelFeature::Freplace.probe().is_supported() {
        trawl_tests::skip("this kernel makes chains by a dispatcher");
        return;
    }
    let file = lab.0.file("steps.o");
    fs::write(&file, programs::object("steps")).expect("the object is written");
    let place = lab.0.receiver();
    let load = |name: &str, priority: &str| {
        let output = trawl(&["xdp", "load", &place, &file, "--prog", name, "--prio", priority]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    assert_eq!(load("step_5", "40"), (true, String::new()));
    assert_eq!(load("step_1", "30"), (true, String::new()));
    assert_eq!(lab.run([PASS; 4]), (vec![1], 3));
    let (done, said) = load("step_2", "50");
    assert!(!done && said.contains("step_5") && said.contains("--prio"), "{said}");
    assert_eq!(lab.run([DROP; 4]), (vec![1], 1));
    lab.unload("--all");
    nothing_attached(&lab.0.pair.b);
}

#[test]
fn chain_goes_with_its_interface() {
    let Some(lab) = Chained::open() else { return };
    let ids: Vec<u64> = (1..=3).map(|number| lab.load(number, &[])).collect();
    let pair = &lab.0.pair;
    run("ip", &["-n", &pair.b.name, "link", "delete", &pair.b.interface]);
    // The next load, on any interface, cleans up.
    let Some(other) = Chained::open() else { return };
    other.load(1, &[]);
    for id in ids {
        wait_until("the program is gone", || !is_loaded(id));
    }
    other.unload("--all");
}
