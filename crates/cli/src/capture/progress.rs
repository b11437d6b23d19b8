//! What is said on standard error while a capture runs.

use std::time::Duration;

use trawl_tap::account::Summary;
use trawl_tap::assembly::Point;
use trawl_tap::notice::Notice;
use trawl_tap::session::Observer;

use super::args::Args;
use super::words;
use crate::terminal;

/// What is said on standard error while the capture runs.
pub(super) struct Terminal {
    quiet: bool,
    verbose: bool,
    stats: Option<Duration>,
    live_line: bool,
    previous: Option<(f64, u64)>,
}

impl Terminal {
    pub(super) fn new(args: &Args) -> Self {
        Self {
            quiet: args.quiet,
            verbose: args.lines.is_verbose(),
            stats: args.stats,
            live_line: false,
            previous: None,
        }
    }

    pub(super) fn finish(&mut self) {
        if std::mem::take(&mut self.live_line) {
            terminal::end_line();
        }
    }
}

impl Observer for Terminal {
    fn notice(&mut self, notice: &Notice) {
        // What a capture does not see is no chatter.
        if !self.quiet || matches!(notice, Notice::Blind(_) | Notice::SeesAgain(_)) {
            self.finish();
            terminal::say(&words::notice(notice));
        }
    }

    fn detail(&mut self, text: &str) {
        if self.verbose {
            self.notice(&text.into());
        }
    }

    fn started(&mut self, points: &[Point]) {
        for Point {
            label, hook, mode, ..
        } in points
        {
            let how = if mode.is_empty() {
                String::new()
            } else {
                format!(" ({mode})")
            };
            self.notice(&format!("capturing on {label} at {hook}{how}").into());
        }
    }

    fn interval(&self) -> Option<Duration> {
        self.stats
    }

    fn figures(&mut self, summary: &Summary) {
        let (then, recorded) = self.previous.unwrap_or_default();
        let rate = (summary.total.recorded - recorded) as f64 / (summary.seconds - then).max(1e-9);
        self.previous = Some((summary.seconds, summary.total.recorded));
        let text = format!(
            "{:.1} s: {}, {rate:.0} a second",
            summary.seconds, summary.total
        );
        if terminal::stderr_is_terminal() {
            terminal::show_over(&text);
            self.live_line = true;
        } else {
            terminal::say(&text);
        }
    }
}
