//! Output of a run: a live line, and a summary at its end.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use trawl_gen::engine::Notes;
use trawl_gen::pace::WIRE_OVERHEAD;
use trawl_gen::replay::ReplayAccount;
use trawl_gen::rfc2544::CHECKSUM;
use trawl_gen::run::{End, Figures, Percentiles, RunReport};
use trawl_sys::Result;
use trawl_sys::events::{Signal, Signals};

use crate::json::rounded;
use crate::published::{Published, Publisher, RunningGenerator};
use crate::{json, terminal};

/// Interval at which the live line is updated.
const SHOW_EVERY: Duration = Duration::from_millis(500);

/// The output to the terminal, and the signals that end the run.
#[derive(Debug)]
pub struct Watch {
    signals: Signals,
    notes: Notes,
    live: bool,
    shown: Instant,
    before: Figures,
    line: bool,
    /// Statistics for `trawl serve`.
    published: Option<Published>,
}

impl Watch {
    /// Blocks the signals for this thread and for all threads that it starts later.
    pub fn new() -> Result<Self> {
        Ok(Self {
            signals: Signals::watch()?,
            notes: Notes::default(),
            live: terminal::stderr_is_terminal(),
            shown: Instant::now(),
            before: Figures::default(),
            line: false,
            published: Published::begin(Publisher::Generator),
        })
    }

    /// Returns the list for notes on the choice of an engine. New notes are reported as they arrive.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Shows the statistics; returns true until a signal ends the run.
    pub fn show(&mut self, interface: &str, figures: &Figures) -> bool {
        if let Some(published) = self.published.as_mut().filter(|one| one.is_due()) {
            published.publish(&RunningGenerator {
                pid: std::process::id(),
                interface: interface.to_owned(),
                frames: figures.frames,
                bytes: figures.bytes,
                refused: figures.refused,
            });
        }
        let recent = Figures {
            frames: figures.frames - self.before.frames,
            bytes: figures.bytes - self.before.bytes,
            refused: figures.refused - self.before.refused,
            elapsed: figures.elapsed - self.before.elapsed,
        };
        let shown = self.shown;
        let continues = self.show_line(&line(figures, &recent));
        if self.shown != shown {
            self.before = *figures;
        }
        continues
    }

    /// Shows statistics of another kind, as a line; returns true until a signal ends the run.
    pub fn show_line(&mut self, line: &str) -> bool {
        self.report_notes();
        if self.live && self.shown.elapsed() >= SHOW_EVERY {
            terminal::show_over(line);
            (self.shown, self.line) = (Instant::now(), true);
        }
        loop {
            match self.signals.next() {
                None => return true,
                Some(Signal::Report) => json::say("progress", json!({}), line),
                Some(_) => return false,
            }
        }
    }

    fn report_notes(&mut self) {
        for note in self.notes.take() {
            if std::mem::take(&mut self.line) {
                terminal::end_line();
            }
            json::say("engine", json!({}), &note);
        }
    }

    /// Ends the live line, which stays as it is.
    pub fn end_line(&mut self) {
        self.report_notes();
        if std::mem::take(&mut self.line) {
            terminal::end_line();
        }
    }
}

/// Formats the totals so far, and the recent rate.
fn line(all: &Figures, recent: &Figures) -> String {
    format!(
        "{:.1} s: {} frames, {}, {}, refused {}",
        all.elapsed.as_secs_f64(),
        all.frames,
        rate(recent.frames_per_second(), "pps"),
        rate(recent.bits_per_second(0), "bit/s"),
        all.refused,
    )
}

/// Formats the summary of a run.
pub fn summary(interface: &str, report: &RunReport) -> String {
    let figures = &report.figures;
    let mut text = format!(
        "{interface}: {} frames, {} bytes in {:.3} s by the {} engine: {}, {} ({} on a wire)\n",
        figures.frames,
        figures.bytes,
        figures.elapsed.as_secs_f64(),
        report.engine,
        rate(figures.frames_per_second(), "pps"),
        rate(figures.bits_per_second(0), "bit/s"),
        rate(figures.bits_per_second(WIRE_OVERHEAD), "bit/s"),
    );
    if figures.refused > 0 {
        let then = match report.engine {
            "live" => "these frames are missing",
            _ => "each time the frame was offered again",
        };
        text.push_str(&format!("device full: {} times; {then}\n", figures.refused));
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
    if let Some(why) = report.unverified {
        text.push_str(&format!("not verified by the device's counters: {why}\n"));
    }
    match report.asked {
        _ if report.end == End::Stopped => text.push_str("stopped before its end\n"),
        Some(asked) if figures.frames < asked => {
            text.push_str(&format!("rate not reached: {} of {asked} frames were sent in the time\n", figures.frames))
        }
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
    /// Reason why the device's counters do not verify `frames`.
    unverified: Option<&'static str>,
    failure: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    replay: Option<&'a ReplayAccount>,
}

impl<'a> Sent<'a> {
    pub fn new(interface: &'a str, report: &RunReport, notes: &Notes, replay: Option<&'a ReplayAccount>) -> Self {
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
            unverified: report.unverified,
            failure: report.failure.as_ref().map(ToString::to_string),
            replay,
        }
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
        assert_eq!([time(999), time(1500), time(2_000_000)].join(" "), "999 ns 1.5 us 2.0 ms");
    }
}
