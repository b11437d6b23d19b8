//! What is said of a run: a line that changes while it goes on, a summary at its end.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use trawl_gen::engine::Notes;
use trawl_gen::pace::WIRE_OVERHEAD;
use trawl_gen::run::{End, Figures, Report};
use trawl_sys::Result;
use trawl_sys::events::{Signal, Signals};

use super::json::Sent;
use crate::json::Remark;
use crate::published::{Kind, Published, RunningGenerator};

use crate::terminal::{folded, write_out};
use crate::{json, terminal};

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
    /// For `trawl serve`.
    published: Option<Published>,
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
            published: Published::begin(Kind::Generator),
        })
    }

    /// Tells what is new on the choice of an engine.
    pub fn notes(&mut self, notes: &Notes) {
        for note in notes.take() {
            self.end_line();
            json::say(&Remark::Engine, &note);
        }
    }

    /// Whether to go on.
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
                Some(Signal::Report) => json::say(&Remark::Progress, line),
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
