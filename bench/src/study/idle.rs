//! The cost of a capture that always runs: its CPU time, wake-ups and memory at low rates.

use std::time::{Duration, Instant};

use trawl_sys::Result;

use super::definition::Space;
use super::{Bench, Case, Comparison, Measured, Outcome, Stop, compared};
use crate::capture::Running;
use crate::model::{Experiment, Finding};
use crate::outcome::percent;
use crate::recorder::{Choice, Recorder, Setting};
use crate::scratch;
use crate::traffic::{Traffic, UNANSWERED};

/// Time after the start in which a capture may still prepare itself.
const SETTLING: Duration = Duration::from_secs(2);

pub fn cases(space: &Space) -> Result<Vec<Case>> {
    let seconds = space.number("seconds")?;
    Case::each(space, "rates", |series, rate| {
        let recorder = Recorder::find(series)?;
        Ok(move |bench: &Bench| measure(bench, recorder, rate, seconds))
    })
}

fn measure(bench: &Bench, recorder: Recorder, rate: f64, seconds: f64) -> Outcome {
    if bench.hosts.is_some() {
        return Err(Stop::NotHere("the capture's process is read on this host".into()));
    }
    let setting = Setting { configuration: Choice::Published, ..Setting::default() };
    let running = Running::start(bench, recorder, &setting)?;
    std::thread::sleep(SETTLING);
    let (cpu, wake_ups, began) = (running.peer.cpu_seconds(), running.peer.wake_ups(), Instant::now());
    let sent = if rate > 0.0 {
        let traffic = Traffic::at(64, rate, seconds).with(&UNANSWERED);
        Some(traffic.send(&bench.trawl, &running.lab.a, &running.lab.b)?)
    } else {
        std::thread::sleep(Duration::from_secs_f64(seconds));
        None
    };
    let elapsed = began.elapsed().as_secs_f64();
    let wake_ups = running.peer.wake_ups().saturating_sub(wake_ups) as f64 / elapsed;
    // Packets reach the file only after a while, and writing them is work too.
    running.peer.wait_until_idle();
    let cpu = running.peer.cpu_seconds() - cpu;
    let resident = running.peer.resident_memory();
    let memory_bytes = running.peer.peak_memory();
    let Running { lab, file, peer, .. } = running;
    let claim = recorder.claim(&peer.finish()?);
    let recorded = scratch::contents(file.path(), Some(lab.b.mac), recorder.tap().is_none())?.packets;
    let expected = sent.as_ref().map_or(0, |sent| sent.frames);
    let values = [
        ("cpu_percent", percent(cpu, elapsed)),
        ("wake_ups", wake_ups),
        ("memory_mb", resident.unwrap_or(0) as f64 / 1e6),
        ("lost_percent", percent(expected.saturating_sub(recorded) as f64, expected.max(1) as f64)),
    ];
    let measured = match sent {
        Some(sent) => Measured::after(sent, values),
        None => Measured { values: values.into(), seconds: elapsed, ..Measured::default() },
    };
    Ok(Measured { claim, memory_bytes, expected: Some(expected), recorded: Some(recorded), ..measured })
}

pub fn judge(experiment: &Experiment) -> Finding {
    compared(experiment, &[("trawl tc", "tcpdump"), ("trawl xdp", "tcpdump")], "cpu_percent", Comparison::Share)
}
