//! Output of a run: a live line, and a summary at its end.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use trawl_gen::connections::Account;
use trawl_gen::engine::Notes;
use trawl_gen::pace::WIRE_OVERHEAD;
use trawl_gen::receive::{Counts, FlowReport, Latency, Report as ReceiveReport};
use trawl_gen::replay::ReplayAccount as Replayed;
use trawl_gen::rfc2544::{CHECKSUM, Rfc2544Results, Trial};
use trawl_gen::run::{End, Figures, Percentiles, Report};
use trawl_sys::Result;
use trawl_sys::events::{Signal, Signals};

use crate::json::{rounded, rounded_option};
use crate::published::{Kind, Published, RunningGenerator};
use crate::terminal::{folded, write_out};
use crate::{json, terminal};

const SHOW_EVERY: Duration = Duration::from_millis(500);

/// The output to the terminal, and the signals that end the run.
#[derive(Debug)]
pub struct Watch {
    signals: Signals,
    json: bool,
    live: bool,
    shown: Instant,
    before: Figures,
    line: bool,
    /// Statistics for `trawl serve`.
    published: Option<Published>,
}

impl Watch {
    /// Blocks the signals, for this thread and all it starts later.
    pub fn new(json: bool) -> Result<Self> {
        Ok(Self {
            signals: Signals::watch()?,
            json,
            live: terminal::stderr_is_terminal(),
            shown: Instant::now(),
            before: Figures::default(),
            line: false,
            published: Published::begin(Kind::Generator),
        })
    }

    /// Reports new notes on the choice of an engine.
    pub fn notes(&mut self, notes: &Notes) {
        for note in notes.take() {
            self.end_line();
            json::say("engine", json!({}), &note);
        }
    }

    /// Shows the statistics; returns true until a signal ends the run.
    pub fn look(&mut self, place: &str, figures: &Figures) -> bool {
        if let Some(published) = self.published.as_mut().filter(|one| one.is_due()) {
            published.tell(&RunningGenerator {
                pid: std::process::id(),
                interface: place.to_owned(),
                frames: figures.frames,
                bytes: figures.bytes,
                refused: figures.refused,
            });
        }
        if self.live && self.shown.elapsed() >= SHOW_EVERY {
            self.show(figures);
        }
        self.goes_on(&line(figures, figures))
    }

    /// Shows statistics of another kind, as a line.
    pub fn look_at(&mut self, line: &str) -> bool {
        if self.live && self.shown.elapsed() >= SHOW_EVERY {
            terminal::show_over(line);
            (self.shown, self.line) = (Instant::now(), true);
        }
        self.goes_on(line)
    }

    fn goes_on(&self, line: &str) -> bool {
        loop {
            match self.signals.next() {
                None => return true,
                Some(Signal::Report) => json::say("progress", json!({}), line),
                Some(_) => return false,
            }
        }
    }

    fn show(&mut self, figures: &Figures) {
        let since = Figures {
            frames: figures.frames - self.before.frames,
            bytes: figures.bytes - self.before.bytes,
            refused: figures.refused - self.before.refused,
            elapsed: figures.elapsed - self.before.elapsed,
        };
        terminal::show_over(&line(figures, &since));
        (self.shown, self.before, self.line) = (Instant::now(), *figures, true);
    }

    /// Ends the live line, which stays as it is.
    pub fn end_line(&mut self) {
        if std::mem::take(&mut self.line) {
            terminal::end_line();
        }
    }

    /// Reports the sent frames; the exit status shows if all went well.
    pub fn end(&mut self, place: &str, report: &Report, notes: &Notes) -> Result<ExitCode> {
        self.end_line();
        if self.json {
            json::print(&Sent::new(place, report, notes))?;
        } else {
            write_out(&folded(&in_words(place, report)))?;
        }
        match &report.failure {
            Some(error) => Err(error.clone()),
            None => Ok(ExitCode::SUCCESS),
        }
    }
}

/// Formats the totals so far, and the recent rate.
fn line(all: &Figures, of_late: &Figures) -> String {
    format!(
        "{:.1} s: {} frames, {}, {}, refused {}",
        all.elapsed.as_secs_f64(),
        all.frames,
        rate(of_late.frames_per_second(), "pps"),
        rate(of_late.bits_per_second(0), "bit/s"),
        all.refused,
    )
}

pub fn in_words(place: &str, report: &Report) -> String {
    let figures = &report.figures;
    let mut text = format!(
        "{place}: {} frames, {} bytes in {:.3} s by the {} engine: {}, {} ({} on a wire)\n",
        figures.frames,
        figures.bytes,
        figures.elapsed.as_secs_f64(),
        report.engine,
        rate(figures.frames_per_second(), "pps"),
        rate(figures.bits_per_second(0), "bit/s"),
        rate(figures.bits_per_second(WIRE_OVERHEAD), "bit/s"),
    );
    if figures.refused > 0 {
        text.push_str(&format!(
            "device full: {} times; each time the frame was offered again\n",
            figures.refused
        ));
    }
    if let Some(gaps) = &report.gaps {
        let p = gaps.percentiles();
        text.push_str(&format!(
            "inter-frame gap error: p50 {}, p90 {}, p99 {}, p99.9 {}, max {}\n",
            time(p.p50),
            time(p.p90),
            time(p.p99),
            time(p.p99_9),
            time(p.max),
        ));
    }
    match report.asked {
        _ if report.end == End::Stopped => text.push_str("stopped before its end\n"),
        Some(asked) if figures.frames < asked => text.push_str(&format!(
            "rate not reached: {} of {asked} frames were sent in the time\n",
            figures.frames
        )),
        _ => {}
    }
    text
}

/// Formats a number with three digits or more before its unit.
pub fn rate(value: f64, unit: &str) -> String {
    let (scaled, prefix) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "k"),
        v => (v, ""),
    };
    format!("{scaled:.3} {prefix}{unit}")
}

pub fn time(nanoseconds: u64) -> String {
    match nanoseconds {
        n if n >= 1_000_000 => format!("{:.1} ms", n as f64 / 1e6),
        n if n >= 1000 => format!("{:.1} us", n as f64 / 1e3),
        n => format!("{n} ns"),
    }
}

// The JSON documents of `trawl gen`.

/// The sent frames of a run.
#[derive(Debug, Serialize)]
pub struct Sent<'a> {
    interface: &'a str,
    engine: &'static str,
    notes: Vec<String>,
    frames: u64,
    /// Number of frames by rate and duration, if both were given.
    frames_asked: Option<u64>,
    bytes: u64,
    refused: u64,
    #[serde(serialize_with = "rounded")]
    seconds: f64,
    #[serde(serialize_with = "rounded")]
    frames_per_second: f64,
    #[serde(serialize_with = "rounded")]
    bits_per_second: f64,
    #[serde(serialize_with = "rounded")]
    wire_bits_per_second: f64,
    gap_error_ns: Option<Percentiles>,
    stopped: bool,
    failure: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    replay: Option<&'a Replayed>,
}

impl<'a> Sent<'a> {
    pub fn new(interface: &'a str, report: &Report, notes: &Notes) -> Self {
        let figures = &report.figures;
        Self {
            interface,
            engine: report.engine,
            notes: notes.all(),
            frames: figures.frames,
            frames_asked: report.asked,
            bytes: figures.bytes,
            refused: figures.refused,
            seconds: figures.elapsed.as_secs_f64(),
            frames_per_second: figures.frames_per_second(),
            bits_per_second: figures.bits_per_second(0),
            wire_bits_per_second: figures.bits_per_second(WIRE_OVERHEAD),
            gap_error_ns: report.gaps.as_ref().map(|gaps| gaps.percentiles()),
            stopped: report.end == End::Stopped,
            failure: report.failure.as_ref().map(ToString::to_string),
            replay: None,
        }
    }

    #[must_use]
    pub fn of_replay(mut self, outcome: &'a Replayed) -> Self {
        self.replay = Some(outcome);
        self
    }
}

/// A frame that `--print` shows.
#[derive(Debug, Serialize)]
pub struct Frame<'a> {
    pub number: u64,
    pub length: usize,
    pub hex: String,
    /// The frame decoded, as `trawl capture -e -v` prints it.
    pub text: &'a str,
}

/// The results of `trawl gen tcp-conn`.
#[derive(Debug, Serialize)]
pub struct Connections<'a> {
    to: String,
    connected: u64,
    failed: u64,
    closed: u64,
    ended_by_peer: u64,
    open: u64,
    /// Bytes that the other side acknowledged.
    bytes_sent: u64,
    bytes_received: u64,
    #[serde(serialize_with = "rounded")]
    seconds: f64,
    handshake_ns: Handshakes,
    last_failure: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Handshakes {
    p50: u64,
    p99: u64,
    max: u64,
}

impl<'a> Connections<'a> {
    pub fn new(to: String, account: &'a Account) -> Self {
        let at = |share| account.handshakes.value_at_quantile(share);
        Self {
            to,
            connected: account.connected,
            failed: account.failed,
            closed: account.closed,
            ended_by_peer: account.ended,
            open: account.open,
            bytes_sent: account.sent,
            bytes_received: account.received,
            seconds: account.elapsed.as_secs_f64(),
            handshake_ns: Handshakes {
                p50: at(0.5),
                p99: at(0.99),
                max: at(1.0),
            },
            last_failure: account.why.as_deref(),
        }
    }
}

/// The receiver's counts.
#[derive(Debug, Serialize)]
pub struct Received<'a> {
    interface: &'a str,
    mode: &'a str,
    #[serde(serialize_with = "rounded")]
    seconds: f64,
    received: u64,
    received_bytes: u64,
    #[serde(serialize_with = "rounded_option")]
    packets_per_second: Option<f64>,
    unstamped: u64,
    unstamped_bytes: u64,
    untracked: u64,
    #[serde(flatten)]
    counts: Counts,
    latency_ns: Option<Latencies>,
    flows: Vec<Flow>,
}

#[derive(Debug, Serialize)]
struct Flow {
    flow: String,
    received: u64,
    received_bytes: u64,
    #[serde(flatten)]
    counts: Counts,
    latency_ns: Option<Latencies>,
}

impl<'a> Received<'a> {
    pub fn new(interface: &'a str, mode: &'a str, took: Duration, report: &ReceiveReport) -> Self {
        Self {
            interface,
            mode,
            seconds: took.as_secs_f64(),
            received: report.stamped.packets,
            received_bytes: report.stamped.bytes,
            packets_per_second: report.packets_per_second(),
            unstamped: report.unstamped.packets,
            unstamped_bytes: report.unstamped.bytes,
            untracked: report.untracked,
            counts: report.counts,
            latency_ns: Latencies::of(&report.latency),
            flows: report.flows.iter().map(Flow::new).collect(),
        }
    }
}

impl Flow {
    fn new(flow: &FlowReport) -> Self {
        Self {
            flow: flow_name(flow),
            received: flow.received.packets,
            received_bytes: flow.received.bytes,
            counts: flow.counts,
            latency_ns: Latencies::of(&flow.latency),
        }
    }
}

#[derive(Debug, Serialize)]
struct Latencies {
    count: u64,
    /// Packets stamped later than they arrived: the clocks differ.
    negative: u64,
    min: u64,
    #[serde(serialize_with = "rounded")]
    mean: f64,
    max: u64,
    p50: u64,
    p90: u64,
    p99: u64,
    p99_9: u64,
    p99_99: u64,
}

impl Latencies {
    /// Returns the latency, or `None` without any packet.
    fn of(latency: &Latency) -> Option<Self> {
        let [p50, p90, p99, p99_9, p99_99] = latency.percentiles;
        (latency.count > 0).then_some(Self {
            count: latency.count,
            negative: latency.negative,
            min: latency.least,
            mean: latency.mean,
            max: latency.most,
            p50,
            p90,
            p99,
            p99_9,
            p99_99,
        })
    }
}

/// A measurement by RFC 2544.
#[derive(Debug, Serialize)]
pub struct Rfc2544<'a> {
    conditions: &'a Conditions<'a>,
    results: Vec<SizeResult>,
}

#[derive(Debug, Serialize)]
pub struct Conditions<'a> {
    pub tx: &'a str,
    pub rx: &'a str,
    pub tx_driver: Option<&'a str>,
    pub rx_driver: Option<&'a str>,
    pub engine: &'a str,
    pub receive_mode: &'a str,
    pub trial_seconds: f64,
    pub accepted_loss_percent: f64,
    pub resolution_percent: f64,
    pub max_rate: Option<f64>,
    /// Latencies are from the stamp in the sender to the XDP hook of the receiver, by this clock.
    pub latency_clock: &'static str,
    pub kernel: String,
    pub cpus: u32,
    pub trawl: &'static str,
}

#[derive(Debug, Serialize)]
struct SizeResult {
    size: usize,
    #[serde(serialize_with = "rounded")]
    sender_frames_per_second: f64,
    #[serde(serialize_with = "rounded_option")]
    throughput_frames_per_second: Option<f64>,
    #[serde(serialize_with = "rounded_option")]
    throughput_wire_bits_per_second: Option<f64>,
    latency_ns: Option<Latencies>,
    trials: Vec<OneTrial>,
    frame_loss: Option<Vec<OneTrial>>,
    back_to_back_frames: Option<u64>,
}

#[derive(Debug, Serialize)]
struct OneTrial {
    #[serde(serialize_with = "rounded_option")]
    offered_frames_per_second: Option<f64>,
    sent: u64,
    refused: u64,
    #[serde(serialize_with = "rounded")]
    seconds: f64,
    received: u64,
    lost: u64,
    #[serde(serialize_with = "rounded")]
    loss_percent: f64,
    duplicates: u64,
    reordered: u64,
    latency_ns: Option<Latencies>,
}

impl<'a> Rfc2544<'a> {
    pub fn new(conditions: &'a Conditions<'a>, outcomes: &[Rfc2544Results]) -> Self {
        Self {
            conditions,
            results: outcomes.iter().map(SizeResult::new).collect(),
        }
    }
}

impl SizeResult {
    fn new(outcome: &Rfc2544Results) -> Self {
        let of = |trials: &[Trial]| trials.iter().map(OneTrial::new).collect();
        let best = outcome.throughput.as_ref();
        Self {
            size: outcome.size,
            sender_frames_per_second: outcome.fastest,
            throughput_frames_per_second: best.map(Trial::rate),
            throughput_wire_bits_per_second: best.map(|best| wire_bits(best.rate(), outcome.size)),
            latency_ns: best.and_then(|best| Latencies::of(&best.latency)),
            trials: of(&outcome.trials),
            frame_loss: outcome.frame_loss.as_deref().map(of),
            back_to_back_frames: outcome.back_to_back,
        }
    }
}

impl OneTrial {
    fn new(trial: &Trial) -> Self {
        Self {
            offered_frames_per_second: trial.offered,
            sent: trial.sent,
            refused: trial.refused,
            seconds: trial.took.as_secs_f64(),
            received: trial.received,
            lost: trial.lost(),
            loss_percent: trial.loss() * 100.0,
            duplicates: trial.duplicates,
            reordered: trial.reordered,
            latency_ns: Latencies::of(&trial.latency),
        }
    }
}

/// Returns the name of a flow: its stream and its number.
pub fn flow_name(flow: &FlowReport) -> String {
    format!("{:04x}.{}", flow.key.stream, flow.key.flow)
}

/// Returns the bits a second on the wire: with checksum, preamble and gap.
pub fn wire_bits(frames: f64, size: usize) -> f64 {
    frames * ((size - CHECKSUM) as f64 + f64::from(WIRE_OVERHEAD)) * 8.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_units() {
        assert_eq!(rate(1_234_567.0, "pps"), "1.235 Mpps");
        assert_eq!(rate(12.0, "bit/s"), "12.000 bit/s");
        assert_eq!(
            [time(999), time(1500), time(2_000_000)].join(" "),
            "999 ns 1.5 us 2.0 ms"
        );
    }
}
