//! `trawl slow` while connections are open: each end names planted faults, and accuses nobody of healthy traffic.

use std::any::Any;
use std::fmt::Write as _;

use serde_json::Value;
use trawl_lab::Station;
use trawl_tests::stage::Stage;
use trawl_tests::{Running, args};

mod applications;
mod connections;
mod events;
mod faults;
mod healthy;
mod often;
mod starved;

/// Descriptors and processes of a connection that is still open when the report is made.
type Kept = Box<dyn Any>;

/// Causes that a report may have, as `CAUSE` or `CAUSE FIELD=VALUE`.
#[derive(Clone, Copy)]
struct End {
    /// One of these has to be found, if there are any.
    named: &'static [&'static str],
    /// These are neither necessary nor wrong.
    also: &'static [&'static str],
}

const SILENT: End = End { named: &[], also: &[] };

const fn names(named: &'static [&'static str]) -> End {
    End { named, also: &[] }
}

const fn may_name(also: &'static [&'static str]) -> End {
    End { named: &[], also }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Right,
    /// No cause was found.
    Unknown,
    /// A cause was found that accuses someone else.
    Wrong,
}

/// Returns the reports of both ends, client first, each of a command that watches only the end's namespace.
fn watched(stage: &Stage, traffic: impl FnOnce() -> Kept) -> [Value; 2] {
    let watches = [&stage.client, &stage.server].map(watch);
    let kept = traffic();
    let reports = watches.map(|watch| watch.stop().json());
    drop(kept);
    reports
}

fn watch(end: &Station) -> Running {
    Running::start(&args!("slow --netns {} --json", end.name), "measuring connections")
}

fn is(finding: &Value, cause: &str) -> bool {
    let mut words = cause.split(' ');
    let has = |field: &str| field.split_once('=').is_some_and(|(name, value)| finding[name] == value);
    words.next().is_some_and(|name| finding["cause"] == name) && words.all(has)
}

/// Returns whether a finding contradicts itself: it is about the other side, or joins too few losses of the peer. The
/// sender may repeat a lost packet of many segments in pieces.
fn is_inconsistent(finding: &Value, side: &str) -> bool {
    let is_other = finding["side"].as_str().is_some_and(|found| found != side);
    let [joined, repeated] = ["joined", "repeated"].map(|name| finding[name].as_u64().unwrap_or_default());
    is_other || (finding["cause"] == "loss_here" && finding["of"] != side && joined * 100 < repeated * 95)
}

/// Judges the report of a side.
fn outcome(end: End, side: &str, report: &Value) -> Outcome {
    let findings = report["findings"].as_array().expect("a list");
    let is_one_of = |finding: &Value, causes: &[&str]| causes.iter().any(|cause| is(finding, cause));
    let is_wrong = |finding: &&Value| {
        is_inconsistent(finding, side) || !(is_one_of(finding, end.named) || is_one_of(finding, end.also))
    };
    if findings.iter().any(|finding| is_wrong(&finding)) {
        Outcome::Wrong
    } else if end.named.is_empty() || findings.iter().any(|finding| is_one_of(finding, end.named)) {
        Outcome::Right
    } else {
        Outcome::Unknown
    }
}

/// Judges the reports of both ends; returns the worse outcome, and the reports as text.
fn judge(ends: [End; 2], reports: &[Value; 2]) -> (Outcome, String) {
    let (mut worst, mut text) = (Outcome::Right, String::new());
    for ((end, side), report) in ends.into_iter().zip(["client", "server"]).zip(reports) {
        let one = outcome(end, side, report);
        worst = worst.max(one);
        let _ = writeln!(text, "{side}: {one:?}, expected {:?}: {report}", end.named);
    }
    (worst, text)
}

#[track_caller]
fn assert_right(ends: [End; 2], reports: &[Value; 2]) {
    let (outcome, text) = judge(ends, reports);
    assert_eq!(outcome, Outcome::Right, "{text}");
}
