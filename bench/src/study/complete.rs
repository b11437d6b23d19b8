//! The highest rate at which each capture, at its best configuration, records every packet, and the CPU time per
//! packet.

use super::capture::configured;
use super::definition::Space;
use super::{Bench, Case, Outcome, Statements, Stop, of_aims};
use crate::capture::{Running, WHOLE, complete, configuration, lab_for};
use crate::machine::Busy;
use crate::model::{Experiment, Finding, Interval};
use crate::process;
use crate::recorder::{Recorder, Setting};
use crate::scratch;
use crate::traffic::{Amount, SENDER_CPU, Traffic, UNANSWERED};

const OURS: &str = "trawl hook, drop";
const PROBES: u32 = 6;
/// Measurements of the cost, each with and without a capture, of which the median counts: the CPUs of a virtual machine
/// change their speed, and a disk's late work counts too.
const COSTS: usize = 3;

pub fn cases(space: &Space) -> Result<Vec<Case>, trawl_sys::Error> {
    let (seconds, frames) = (space.number("seconds")?, space.number("cost_frames")? as u64);
    Case::each(space, "sizes", |series, size| {
        let (recorder, configuration) = configured(series)?;
        let setting = Setting { configuration, ..Setting::default() };
        let size = size as usize;
        Ok(move |bench: &Bench| measure(bench, recorder, &setting, size, seconds, frames))
    })
}

fn measure(bench: &Bench, recorder: Recorder, setting: &Setting, size: usize, seconds: f64, frames: u64) -> Outcome {
    let found = complete(bench, recorder, setting, size, seconds, PROBES)?;
    // The sender runs at full speed, because one that keeps to a rate waits for the next frame with its CPU busy.
    let mut traffic = Traffic::flood(size, seconds, &[SENDER_CPU]).with(&UNANSWERED);
    traffic.amount = Amount::Frames(frames);
    let (mut costs, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..COSTS {
        let alone = send_alone(bench, recorder, setting, &traffic)?;
        rates.push(alone.mpps);
        let (with, recorded) = send_recorded(bench, recorder, setting, &traffic)?;
        // The few packets of a capture that loses most would bear the cost of all.
        if recorded as f64 >= WHOLE * frames as f64 {
            costs.push((with - alone.busy).max(0.0) / recorded as f64 * 1e9);
        }
    }
    let median = |values| Interval::of(values).map(|interval: Interval| interval.median);
    let mut measured = found.flood;
    measured.values = [("complete_mpps", found.mpps)].into();
    measured.values.extend(median(costs).map(|cost| ("cpu_ns", cost)));
    measured.values.extend(median(rates).map(|rate| ("alone_mpps", rate)));
    if let Some(mpps) = found.first_loss_mpps {
        measured.values.insert("first_loss_mpps", mpps);
    }
    Ok(measured)
}

/// Traffic without a capture.
struct Alone {
    /// CPU seconds of the whole machine, until nothing is left to do.
    busy: f64,
    mpps: f64,
}

/// Sends this traffic without a capture, in the lab of a recorder.
fn send_alone(bench: &Bench, recorder: Recorder, setting: &Setting, traffic: &Traffic) -> Result<Alone, Stop> {
    let configuration = configuration(bench, recorder, setting.configuration)?;
    let (lab, _program) = lab_for(recorder, configuration, setting.mtu)?;
    let begun = Busy::now();
    let sent = traffic.send(&bench.trawl, &lab.a, &lab.b)?;
    std::thread::sleep(process::IDLE);
    Ok(Alone { busy: begun.seconds(), mpps: sent.per_second() / 1e6 })
}

/// Returns the CPU seconds of the whole machine for this traffic and its capture, until nothing is left to do, and the
/// recorded packets.
fn send_recorded(bench: &Bench, recorder: Recorder, setting: &Setting, traffic: &Traffic) -> Result<(f64, u64), Stop> {
    let running = Running::start(bench, recorder, setting)?;
    let begun = Busy::now();
    traffic.send(&bench.trawl, &running.lab.a, &running.lab.b)?;
    running.peer.wait_until_idle();
    let seconds = begun.seconds();
    running.peer.finish()?;
    let recorded = scratch::contents(running.file.path(), Some(running.lab.b.mac), recorder.tap().is_none())?.packets;
    Ok((seconds, recorded))
}

/// Aims: a metric, the series whose value is divided by the other's, and the minimum ratio.
const AIMS: [(&str, &str, &str, f64); 3] = [
    ("complete_mpps", OURS, "tcpdump", 4.0),
    ("complete_mpps", OURS, "xdpcap, drop", 2.5),
    ("cpu_ns", "tcpdump", OURS, 4.0),
];

pub fn judge(experiment: &Experiment) -> Finding {
    let (smallest, _) = experiment.ends();
    let mut statements = Statements::default();
    let mut shows = Vec::new();
    for (metric, more, less, aim) in AIMS {
        let axis = experiment.definition.metrics.iter().find(|one| one.name == metric);
        let ratios = experiment.paired(more, less, metric, smallest);
        if let Some((axis, found)) = axis.zip(ratios) {
            let text = format!(
                "{}: {more} has {:.1} ({:.1} to {:.1}) times what {less} has (aim: at least {aim})",
                axis.label, found.median, found.low, found.high
            );
            shows.push(text.clone());
            statements.check(text, found.median >= aim);
        }
    }
    let mut finding = of_aims(&statements, &shows);
    if let Some(ceiling) = sender_ceiling(experiment, smallest) {
        finding.sentence += &ceiling;
    }
    finding
}

/// Returns a sentence about the rate of the sender without a capture, which no capture exceeds.
fn sender_ceiling(experiment: &Experiment, smallest: f64) -> Option<String> {
    let alone = experiment.median(OURS, "alone_mpps", smallest)?;
    let tcpdump = experiment.median("tcpdump", "complete_mpps", smallest)?;
    Some(format!(
        " Without a capture, the sender reaches {alone:.1} Mpps at the program that drops, {:.1} times what tcpdump has: no \
         capture here can have more.",
        alone / tcpdump
    ))
}
