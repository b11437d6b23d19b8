//! Measures one cell of the table of kernels and cards: `trawl-cell CARD [FEATURE]...`, inside a virtual machine with
//! two pairs of interfaces (scripts/test-cells starts it). CARD is the model of the cards under test; `veth` and
//! `netkit` make their own pairs. Each feature of trawl prints one line: its name, a tab, and `works`, `refused:
//! MESSAGE` or `failed: REASON`; after `works`, a further tab and a detail. The frames of a feature are counted by the
//! far end, never by trawl alone.

mod cell;
mod doctor;
mod features;
mod outcome;
mod running;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;

use cell::Cell;
use outcome::{Outcome, Problem};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((card, wanted)) = arguments.split_first() else {
        eprintln!("usage: trawl-cell CARD [FEATURE]...");
        return ExitCode::from(2);
    };
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.to_string();
        *LAST_PANIC.lock().expect("a panic does not happen in here") = text;
    }));
    let cell = match catch_unwind(|| Cell::open(card)) {
        Ok(cell) => cell,
        Err(_) => {
            println!("cell\tfailed: {}", last_panic());
            return ExitCode::FAILURE;
        }
    };
    println!("machine\tworks\tLinux {}", release());
    let mut outcomes: BTreeMap<&'static str, Outcome> = BTreeMap::new();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|one| one == name);
    for (name, feature) in features::ALL {
        if !is_wanted(name) {
            continue;
        }
        let outcome = measure(&cell, *feature);
        println!("{name}\t{outcome}");
        outcomes.insert(name, outcome);
    }
    if is_wanted("doctor") {
        let outcome = outcome_of(catch_unwind(AssertUnwindSafe(|| doctor::judge(&cell, &outcomes))));
        println!("doctor\t{outcome}");
    }
    ExitCode::SUCCESS
}

fn release() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    text.trim().to_owned()
}

static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

fn last_panic() -> String {
    let text = LAST_PANIC.lock().expect("a panic does not happen in here");
    outcome::one_line(&text)
}

/// Runs a feature, and checks that it leaves nothing attached.
fn measure(cell: &Cell, feature: features::Feature) -> Outcome {
    let outcome = outcome_of(catch_unwind(AssertUnwindSafe(|| feature(cell))));
    let left = cell.clean();
    match (outcome, left) {
        (outcome @ Outcome::Failed(_), _) | (outcome, None) => outcome,
        (_, Some(left)) => Outcome::Failed(format!("left behind: {left}")),
    }
}

fn outcome_of(result: std::thread::Result<Result<String, Problem>>) -> Outcome {
    match result {
        Ok(Ok(detail)) => Outcome::Works(detail),
        Ok(Err(Problem::Refused(message))) => Outcome::Refused(message),
        Ok(Err(Problem::Failed(reason))) => Outcome::Failed(reason),
        Err(_) => Outcome::Failed(last_panic()),
    }
}
