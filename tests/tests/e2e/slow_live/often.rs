//! Many runs of each fault and each kind of healthy traffic, with a table of the outcomes.

use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use trawl_tests::stage::Stage;

use super::applications::Application;
use super::faults::FAULTS;
use super::healthy::KINDS;
use super::{Outcome, SILENT, judge, watched};

/// Runs at the same time.
const WORKERS: usize = 2;

/// Returns the number of runs of each fault, from the variable TRAWL_TESTS_RUNS.
fn runs() -> usize {
    let configured = std::env::var("TRAWL_TESTS_RUNS").ok();
    configured.and_then(|count| count.parse().ok()).unwrap_or(20)
}

/// The outcomes of the runs of a fault.
#[derive(Clone, Copy, Default)]
struct Count {
    right: usize,
    unknown: usize,
    wrong: usize,
    /// Runs without the fault, whatever was reported.
    not_planted: usize,
}

/// Judges each fault in many runs, by both versions of IP in turn, among processes that use a CPU each; prints and
/// returns the outcomes.
fn outcomes(
    names: &[&str],
    busy: usize,
    judged: impl Fn(usize, usize) -> Option<(Outcome, String)> + Sync,
) -> Vec<Count> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _busy: Vec<_> = (0..busy).map(|_| Application::busy(None)).collect();
    let (next, counts) = (AtomicUsize::new(0), Mutex::new(vec![Count::default(); names.len()]));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let (fault, run) = (number % names.len(), number / names.len());
            if run >= runs() {
                return;
            }
            let judged = catch_unwind(AssertUnwindSafe(|| judged(fault, run % 2)));
            let mut counts = counts.lock().expect("counts");
            let count = &mut counts[fault];
            match judged {
                Ok(Some((Outcome::Right, _))) => count.right += 1,
                Ok(Some((outcome, text))) => {
                    println!("{}, run {run}: {text}", names[fault]);
                    *if outcome == Outcome::Wrong { &mut count.wrong } else { &mut count.unknown } += 1;
                }
                Ok(None) | Err(_) => count.not_planted += 1,
            }
        }
    };
    thread::scope(|scope| (0..WORKERS).for_each(|_| drop(scope.spawn(work))));
    let counts = counts.into_inner().expect("counts");
    let mut table = format!("{:40} {:>5} {:>7} {:>5} {:>11}\n", "", "right", "unknown", "wrong", "not planted");
    for (name, Count { right, unknown, wrong, not_planted }) in names.iter().zip(&counts) {
        let _ = writeln!(table, "{name:40} {right:5} {unknown:7} {wrong:5} {not_planted:11}");
    }
    // The runner hides the output of tests that pass.
    let _ = std::io::stderr().lock().write_all(table.as_bytes());
    counts
}

/// At least 19 of 20 runs name each fault, and none accuses someone else.
#[test]
#[ignore = "make test-long runs it"]
fn faults_are_named_in_most_runs() {
    let names: Vec<_> = FAULTS.iter().map(|fault| fault.name).collect();
    let counts = outcomes(&names, 0, |fault, version| {
        let fault = &FAULTS[fault];
        let stage = fault.stage()?;
        Some(judge(fault.ends, &fault.reports(&stage, version)))
    });
    let is_good = |count: &Count| {
        let planted = runs() - count.not_planted;
        count.wrong == 0 && count.right * 20 >= planted * 19 && planted * 2 > runs()
    };
    assert!(counts.iter().all(is_good), "the table shows the faults");
}

/// Judges each kind of healthy traffic in many runs, among processes that use a CPU each.
fn healthy_traffic_is_not_accused(busy: usize) {
    let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
    let counts = outcomes(&names, busy, |kind, version| {
        let stage = Stage::open()?;
        let reports = watched(&stage, || {
            (KINDS[kind].run)(&stage, stage.servers()[version]);
            Box::new(())
        });
        Some(judge([SILENT; 2], &reports))
    });
    assert!(counts.iter().all(|count| count.right == runs()), "the table shows the kinds");
}

#[test]
#[ignore = "make test-long runs it"]
fn healthy_traffic_is_not_accused_in_many_runs() {
    healthy_traffic_is_not_accused(0);
}

#[test]
#[ignore = "make test-long runs it"]
fn healthy_traffic_is_not_accused_in_many_runs_on_a_busy_host() {
    healthy_traffic_is_not_accused(4);
}
