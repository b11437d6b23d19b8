//! Chains after a command that adds or removes a program is killed half-way.

use trawl_tests::strace::{self, Call};
use trawl_tests::witness::output;
use trawl_tests::xdp::succeeds;
use trawl_tests::{args, binary, tools_or_skip};

use super::*;

const CALLS: &str = "bpf,?mkdir,?mkdirat,?unlink,?unlinkat,?rmdir";
/// Numbers of the programs that packets meet.
type Order = Vec<u8>;

/// A change of the chain: the command, and the order before and after it.
struct Change {
    before: Order,
    /// Arguments of the load, if the change is one.
    load: Option<Vec<&'static str>>,
    unload: Option<u8>,
    after: Order,
}

impl Change {
    fn command(&self, lab: &Chained, ids: &[(u8, u64)]) -> Vec<String> {
        let place = lab.0.receiver();
        let file = lab.0.file("steps.o");
        let words = match &self.load {
            Some(more) => {
                let load = args!("xdp load {place} {file} --prog step_3 --tappable");
                [&load[..], more].concat().join(" ")
            }
            None => {
                let mut there = ids.iter();
                let (_, id) = there.find(|(number, _)| Some(*number) == self.unload).expect("it is there");
                format!("xdp unload {place} {id}")
            }
        };
        words.split(' ').map(str::to_owned).collect()
    }

    /// Sets up the chain before the change. Returns the programs' numbers with their ids.
    fn set_up(&self, lab: &Chained) -> Vec<(u8, u64)> {
        let priority = |number: u8| match number {
            2 => "20",
            3 => "30",
            _ => "50",
        };
        let load = |number: &u8| (*number, lab.load(u32::from(*number), &["--prio", priority(*number)]));
        // The programs are loaded in reverse, so that the first one of the chain changes, too.
        let ids = self.before.iter().rev().map(load).collect();
        assert_eq!(lab.run([PASS; 4]), (self.before.clone(), 2));
        ids
    }

    fn killed_everywhere(&self, lab: &Chained) {
        let trawl = binary::path().to_str().expect("plain");
        let trace = lab.0.file("trace");
        let traced = format!("trace={CALLS}");
        let run = |ids: &[(u8, u64)], more: &[&str]| {
            let command = self.command(lab, ids);
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            let strace = ["-qq", "-e", &traced, "-o", &trace];
            output("strace", &[&strace[..], more, &[trawl], &command].concat())
        };
        let ids = self.set_up(lab);
        assert!(run(&ids, &[]).status.success());
        assert_eq!(lab.run([PASS; 4]).0, self.after);
        lab.unload("--all");
        let text = fs::read_to_string(&trace).expect("strace wrote it");
        let calls = strace::calls(&text);
        // Kills are useful at the calls that change the packets' path or other commands' view, from the first pin on.
        let begins = |call: &Call| call.text.contains("_PIN") || call.text.contains("LINK_");
        let changes = |call: &&Call| {
            let words = ["_PIN", "UPDATE", "DELETE", "DETACH", "unlink", "rmdir"];
            words.iter().any(|word| call.text.contains(word))
        };
        let first = calls.iter().position(begins).unwrap_or_default();
        for call in calls[first..].iter().filter(changes) {
            let ids = self.set_up(lab);
            let done = run(&ids, &["-e", &call.killing()]);
            let at = || format!("killed at {}", call.text);
            let order_now = || {
                let (order, verdict) = lab.run([PASS; 4]);
                assert_eq!(verdict, 2, "{}", at());
                let is_whole = order == self.before || order == self.after;
                assert!(is_whole, "{order:?}, {}", at());
                order
            };
            order_now();
            // The next command that changes something completes the interrupted change.
            succeeds(&["doctor", "--clean"]);
            let shown = lab.status().into_iter().map(|(name, ..)| name);
            let shown: Vec<String> = shown.collect();
            let order = order_now();
            let names: Vec<String> = order.iter().map(|number| format!("step_{number}")).collect();
            // A single program is no chain.
            if names.len() > 1 {
                assert_eq!(shown, names, "{}", at());
            }
            if done.status.success() {
                assert_eq!(order, self.after, "{}", at());
            }
            // The next command can continue from that state.
            if order == self.before {
                let again = run(&ids, &[]);
                let said = String::from_utf8_lossy(&again.stderr);
                assert!(again.status.success(), "{said}, {}", at());
                assert_eq!(lab.run([PASS; 4]).0, self.after, "{}", at());
            }
            // The programs are unloaded one by one, from the first on.
            while let Some((head, _)) = xdp_on(&lab.0.pair.b) {
                lab.unload(&head.to_string());
            }
            let programs: Vec<u64> = ids.iter().map(|(_, id)| *id).collect();
            all_gone(&lab.0, &programs, &[]);
        }
    }
}

fn check(before: &[u8], load: Option<&[&'static str]>, unload: Option<u8>, after: &[u8]) {
    if !tools_or_skip(&["strace"]) {
        return;
    }
    // The command also reads other tests' pins, which would change the number of calls.
    let Some(lab) = Lab::alone().map(Chained::of) else {
        return;
    };
    let change = Change { before: before.to_vec(), load: load.map(<[_]>::to_vec), unload, after: after.to_vec() };
    change.killed_everywhere(&lab);
    nothing_attached(&lab.0.pair.b);
}

#[test]
#[ignore = "make test-long runs it"]
fn while_one_comes_first() {
    check(&[2, 1], Some(&["--prio", "5"]), None, &[3, 2, 1]);
}

#[test]
#[ignore = "make test-long runs it"]
fn while_one_comes_between() {
    check(&[2, 1], Some(&["--prio", "30"]), None, &[2, 3, 1]);
}

#[test]
#[ignore = "make test-long runs it"]
fn while_the_first_one_goes() {
    check(&[2, 3, 1], None, Some(2), &[3, 1]);
}

#[test]
#[ignore = "make test-long runs it"]
fn while_one_between_goes() {
    check(&[2, 3, 1], None, Some(3), &[2, 1]);
}

#[test]
#[ignore = "make test-long runs it"]
fn while_one_takes_the_place_of_another() {
    check(&[1], Some(&["--replace"]), None, &[3]);
}

#[test]
#[ignore = "make test-long runs it"]
fn while_one_takes_the_place_of_a_chain() {
    check(&[2, 1], Some(&["--replace"]), None, &[3]);
}
