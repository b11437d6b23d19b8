//! What is said of a run: a line that changes while it goes on, a summary at its end.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;
use trawl_gen::engine::Notes;
use trawl_gen::pace::WIRE_OVERHEAD;
use trawl_gen::run::{End, Figures, Report};
use trawl_kernel::Result;
use trawl_kernel::events::{Signal, Signals};

use crate::terminal;
use crate::terminal::write_out;

const SHOW_EVERY: Duration = Duration::from_millis(500);

/// The person at the terminal: sees the figures, and may end the run.
#[derive(Debug)]
pub struct Watch {
    signals: Signals,
    json: bool,
    live: bool,
    shown: Instant,
    before: Figures,
    line: bool,
}

impl Watch {
    /// Signals are watched from here on, on this thread and all it starts.
    pub fn new(json: bool) -> Result<Self> {
        Ok(Self {
            signals: Signals::watch()?,
            json,
            live: terminal::stderr_is_terminal(),
            shown: Instant::now(),
            before: Figures::default(),
            line: false,
        })
    }

    /// Tells what is new on the choice of an engine.
    pub fn notes(&mut self, notes: &Notes) {
        for note in notes.take() {
            self.end_line();
            terminal::say(&note);
        }
    }

    /// Whether to go on.
    pub fn look(&mut self, figures: &Figures) -> bool {
        if self.live && self.shown.elapsed() >= SHOW_EVERY {
            self.show(figures);
        }
        self.goes_on(&line(figures, figures))
    }

    /// The same for an account of another kind, as a line.
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
                Some(Signal::Report) => terminal::say(line),
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

    /// Leaves the line that changes as it is.
    pub fn end_line(&mut self) {
        if std::mem::take(&mut self.line) {
            terminal::end_line();
        }
    }

    /// Tells what was sent; the exit status says whether all went well.
    pub fn end(&mut self, place: &str, report: &Report, notes: &Notes) -> Result<ExitCode> {
        self.end_line();
        let text = if self.json {
            format!("{}\n", in_json(place, report, notes))
        } else {
            in_words(place, report, "the rate's")
        };
        write_out(&text)?;
        match &report.failure {
            Some(error) => Err(error.clone()),
            None => Ok(ExitCode::SUCCESS),
        }
    }
}

/// What went so far, and how fast it went of late.
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

/// `wanted` says whose gaps those between frames are compared with.
pub fn in_words(place: &str, report: &Report, wanted: &str) -> String {
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
            "the device had no room {} times, and was offered those frames, or others in their stead, again\n",
            figures.refused
        ));
    }
    if let Some(gaps) = &report.gaps {
        let p = gaps.percentiles();
        text.push_str(&format!(
            "gaps between frames differ from {wanted} by {} (half of them), {} (90 %), {} (99 %), {} (99.9 %), {} at most\n",
            time(p.p50), time(p.p90), time(p.p99), time(p.p99_9), time(p.max),
        ));
    }
    if report.end == End::Stopped {
        text.push_str("stopped before its end\n");
    }
    text
}

pub fn in_json(place: &str, report: &Report, notes: &Notes) -> serde_json::Value {
    let figures = &report.figures;
    json!({
        "interface": place,
        "engine": report.engine,
        "notes": notes.all(),
        "frames": figures.frames,
        "bytes": figures.bytes,
        "refused": figures.refused,
        "seconds": figures.elapsed.as_secs_f64(),
        "frames_per_second": figures.frames_per_second(),
        "bits_per_second": figures.bits_per_second(0),
        "wire_bits_per_second": figures.bits_per_second(WIRE_OVERHEAD),
        "gap_error_ns": report.gaps.as_ref().map(|gaps| gaps.percentiles()),
        "stopped": report.end == End::Stopped,
        "failure": report.failure.as_ref().map(ToString::to_string),
    })
}

/// A figure with three digits or more before its unit.
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
