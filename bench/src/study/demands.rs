//! The four demands of study E on any capture: time stamps from the source, order, both directions in one file, and no
//! hidden loss. Frames carry stamps (a number and their time of sending), so the file itself is the evidence.

use std::collections::HashMap;
use std::path::Path;
use std::time::SystemTime;

use trawl_gen::stamp::Stamp;
use trawl_lab::{Line, LineOptions};
use trawl_sys::{Result, clock};

use super::capture::given;
use super::definition::Space;
use super::{Bench, Case, Measured, Outcome, Stop, percent};
use crate::capture::{capture, capture_and, tcpdump, trawl_capture};
use crate::model::{Agreement, Experiment, Finding};
use crate::process::{self, Peer};
use crate::recorder::{Recorder, Setting};
use crate::scratch::{Scratch, each_packet};
use crate::traffic::{Amount, Traffic, UNANSWERED, capture_cpu, frames_per_second, label};

/// A stamped frame of a file.
struct Seen {
    interface: usize,
    time: u64,
    length: usize,
    stamp: Stamp,
}

/// Length above which a frame is an ICMP error: it quotes a frame with its stamp, and is longer than any frame of 64
/// bytes with its headers.
const QUOTED: usize = 85;

/// Values of `--time`.
const CLOCKS: [&str; 3] = ["auto", "poll", "precise"];

pub fn timestamps(space: &Space) -> Result<Vec<Case>> {
    let seconds = space.number("seconds")?;
    Case::each(space, "kpps", |series, thousands| {
        let (recorder, setting) = set_up(series)?;
        let traffic = Traffic::at(64, thousands * 1e3, seconds);
        let traffic = traffic.with(&["--stamp"]).with(&UNANSWERED);
        Ok(move |bench: &Bench| capture_and(bench, recorder, &setting, &traffic, delays))
    })
}

pub fn orders(space: &Space) -> Result<Vec<Case>> {
    let seconds = space.number("seconds")?;
    Case::each(space, "threads", |series, threads| {
        let (recorder, setting) = set_up(series)?;
        let traffic = Traffic::at(64, 200_000.0, seconds);
        let mut traffic = traffic.with(&["--stamp"]).with(&UNANSWERED);
        traffic.cpus = (0..threads as usize).map(|thread| thread % 2).collect();
        Ok(move |bench: &Bench| capture_and(bench, recorder, &setting, &traffic, disorder))
    })
}

pub fn merges(space: &Space) -> Result<Vec<Case>> {
    let seconds = space.number("seconds")?;
    Case::each(space, "kpps", |series, thousands| {
        let (recorder, _) = set_up(series)?;
        Ok(move |bench: &Bench| merge(bench, recorder, thousands * 1e3, seconds))
    })
}

pub fn losses(space: &Space) -> Result<Vec<Case>> {
    let seconds = space.number("seconds")?;
    Case::each(space, "mbits", |series, megabits| {
        let (recorder, setting) = set_up(series)?;
        let traffic = Traffic::at(64, frames_per_second(megabits, 64), seconds).with(&UNANSWERED);
        Ok(move |bench: &Bench| loss(bench, recorder, &setting, &traffic))
    })
}

pub fn judge_timestamps(experiment: &Experiment) -> Finding {
    judge(experiment, |ours| {
        let text = format!(
            "trawl's time stamps are taken at the hook: at most {ours:.1} us (median) after the frame was sent{}.",
            by_clock(experiment)
        );
        (ours < 100.0, text)
    })
}

pub fn judge_order(experiment: &Experiment) -> Finding {
    judge(experiment, |ours| {
        let text = format!("trawl's files have {ours:.4} % of their packets out of order.");
        (ours == 0.0, text)
    })
}

pub fn judge_merge(experiment: &Experiment) -> Finding {
    judge(experiment, |ours| {
        let text = format!(
            "In trawl's files {ours:.4} % of the forwarded frames lack one side, or have it in the wrong order."
        );
        (ours == 0.0, text)
    })
}

pub fn judge_loss(experiment: &Experiment) -> Finding {
    judge(experiment, |ours| {
        let text =
            format!("trawl hides {ours:.4} % of what was sent: all packets missing from its file are in its account.");
        (ours < 0.01, text)
    })
}

/// Judges trawl's worst value of the first metric.
fn judge(experiment: &Experiment, of_ours: impl FnOnce(f64) -> (bool, String)) -> Finding {
    let metric = &experiment.definition.metrics[0];
    let worst = |is: &dyn Fn(&str) -> bool| {
        let points = experiment.points.iter();
        let own = points.filter(|point| point.metric == metric.name && is(&point.series));
        own.map(|point| point.value.median).reduce(f64::max)
    };
    let Some(ours) = worst(&|series| series.starts_with("trawl")) else {
        return Finding::default();
    };
    let show = |series: String| {
        let value = worst(&|one| one == series)?;
        Some(format!("{series} {value:.3} {}", metric.unit))
    };
    let shows: Vec<String> = experiment.series().into_iter().filter_map(show).collect();
    let (holds, sentence) = of_ours(ours);
    Finding { agrees: Agreement::of(holds), shows: format!("{}, worst: {}", metric.label, shows.join(", ")), sentence }
}

/// Returns the delays of each of trawl's clocks at the highest rate, by the median and by 99 % of the packets.
fn by_clock(experiment: &Experiment) -> String {
    let at_most = |series: &str, metric: &str| {
        let line = experiment.line(series, metric);
        line.last().map(|point| (point.x, point.value.median))
    };
    let of = |clock: &&str| {
        let series = format!("trawl hook, drop, {clock}");
        let (rate, middle) = at_most(&series, "delay_p50_us")?;
        let (_, late) = at_most(&series, "delay_p99_us")?;
        Some((rate, format!("{clock} {middle:.2} us (99 %: {late:.2})")))
    };
    let found: Vec<(f64, String)> = CLOCKS.iter().filter_map(of).collect();
    let Some((rate, _)) = found.first() else {
        return String::new();
    };
    let clocks: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
    format!("; by clock, at {rate:.0} kpps: {}", clocks.join(", "))
}

/// Splits a series into the tool and trawl's setting.
fn set_up(series: &str) -> Result<(Recorder, Setting)> {
    let (recorder, setting) = match series.rsplit_once(", ") {
        Some((rest, time)) if CLOCKS.contains(&time) => (rest, given(&format!("--time {time}"))),
        Some((rest, "ring 64KiB")) => (rest, given("--ring-size 64KiB")),
        _ => (series, Setting::default()),
    };
    Ok((Recorder::find(recorder)?, setting))
}

/// Measures the lost frames that the tool does not admit.
fn loss(bench: &Bench, recorder: Recorder, setting: &Setting, traffic: &Traffic) -> Outcome {
    let mut measured = capture(bench, recorder, setting, traffic)?;
    let expected = measured.expected.unwrap_or(0);
    let lost = expected.saturating_sub(measured.recorded.unwrap_or(0));
    let admitted = measured.claim.as_ref().and_then(|claim| claim.lost);
    let hidden = lost.saturating_sub(admitted.unwrap_or(0));
    let share = |count: u64| percent(count as f64, expected.max(1) as f64);
    measured.values = [("hidden_percent", share(hidden)), ("lost_percent", share(lost))].into();
    Ok(measured)
}

fn read(path: &Path, mut each: impl FnMut(Seen)) -> Result<()> {
    each_packet(path, |packet| {
        if let Some(stamp) = Stamp::read(packet.captured) {
            each(Seen { interface: packet.interface, time: packet.timestamp_ns, length: packet.captured.len(), stamp });
        }
    })
}

/// Computes the delays from the time of sending in the frame to the time stamp in the file.
fn delays(path: &Path, measured: &mut Measured) -> Result<()> {
    // Stamps are in atomic time, files in universal time.
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    let offset = clock::tai().wrapping_sub(now) as i64;
    let mut delays = Vec::new();
    read(path, |seen| delays.push(seen.stamp.age_at(seen.time.wrapping_add_signed(offset))))?;
    delays.sort_unstable();
    let at = |share: f64| {
        let index = ((delays.len() as f64 - 1.0) * share).round() as usize;
        delays.get(index).map_or(f64::NAN, |&delay| delay as f64 / 1e3)
    };
    measured.values = [("delay_p50_us", at(0.5)), ("delay_p99_us", at(0.99))].into();
    Ok(())
}

/// Counts frames of a stream with a lower number than an earlier one, and time stamps that go back.
fn disorder(path: &Path, measured: &mut Measured) -> Result<()> {
    let mut newest: HashMap<u16, u32> = HashMap::new();
    let (mut all, mut wrong, mut last) = (0u64, 0u64, 0);
    read(path, |seen| {
        all += 1;
        let before = newest.entry(seen.stamp.stream).or_default();
        wrong += u64::from(seen.stamp.sequence < *before || seen.time < last);
        *before = (*before).max(seen.stamp.sequence);
        last = last.max(seen.time);
    })?;
    measured.values = [("disorder_percent", percent(wrong as f64, all.max(1) as f64))].into();
    Ok(())
}

/// Measures forwarded frames, recorded at the incoming and the outgoing interface in one file.
fn merge(bench: &Bench, recorder: Recorder, rate: f64, seconds: f64) -> Outcome {
    let line = Line::new(&LineOptions::default())?;
    let file = Scratch::new(&bench.scratch, "merged")?;
    let (router, left, right) = (&line.left.name, &line.left.interface, &line.right.interface);
    let (mut command, ready) = match (recorder, recorder.tap()) {
        (_, Some(tap @ ("tc" | "packet"))) => {
            let both = [label(&line.left), label(&line.right)];
            let both = both.each_ref().map(String::as_str);
            trawl_capture(bench, tap, "inout", &both, file.path())
        }
        (Recorder::Dumpcap, _) => {
            let mut dumpcap = process::command_in(router, bench.peers.path("dumpcap")?);
            dumpcap.args(["-q", "-n", "-i", left, "-i", right, "-w"]);
            dumpcap.arg(file.path());
            (dumpcap, "File:")
        }
        (Recorder::Tcpdump, _) => (tcpdump(bench, router, "any", file.path())?, "listening on"),
        _ => {
            let why = format!("{} sees one direction only", recorder.name());
            return Err(Stop::NotHere(why));
        }
    };
    let peer = Peer::start(recorder.name(), &mut command, capture_cpu(), ready)?;
    let mut traffic = Traffic::at(64, rate, seconds).with(&["--stamp"]);
    // The number is fixed, because the hosts send packets of their own now and then.
    let stamped = ((rate * seconds) as u64).max(100);
    traffic.amount = Amount::Frames(stamped);
    let sent = traffic.send(&bench.trawl, &line.a, &line.b)?;
    peer.wait_until_idle();
    peer.finish()?;
    let mut sides: HashMap<(u16, u32), Vec<usize>> = HashMap::new();
    read(file.path(), |seen| {
        if seen.length < QUOTED {
            let key = (seen.stamp.stream, seen.stamp.sequence);
            sides.entry(key).or_default().push(seen.interface);
        }
    })?;
    let whole = sides
        .values()
        .filter(|sides| sides.len() == 2 && (sides[0] < sides[1] || recorder == Recorder::Tcpdump))
        .count();
    let wrong = stamped.saturating_sub(whole as u64);
    let recorded = sides.values().map(|sides| sides.len() as u64).sum();
    let values = [("unmerged_percent", percent(wrong as f64, stamped as f64))];
    Ok(Measured { expected: Some(stamped * 2), recorded: Some(recorded), ..Measured::after(sent, values) })
}
