//! A report that is shown anew while a command runs.

use crate::terminal;

/// The terminal, which shows the report so far.
pub(crate) struct Screen {
    is_live: bool,
    /// Number of lines that are shown.
    lines: usize,
}

impl Screen {
    pub(crate) fn new(is_json: bool) -> Self {
        Self { is_live: !is_json && terminal::stdout_is_terminal(), lines: 0 }
    }

    /// Returns true if a report is wanted before the end.
    pub(crate) fn is_live(&self) -> bool {
        self.is_live
    }

    /// Erases the shown text.
    pub(crate) fn clear(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        if lines > 0 {
            let _ = terminal::write_control(&format!("\x1b[{lines}A\x1b[J"));
        }
    }

    /// Shows a text in the place of the last one.
    pub(crate) fn show(&mut self, text: &str) {
        self.clear();
        let (text, lines) = terminal::fitted(text);
        self.lines = lines;
        // A closed terminal ends the command by a signal.
        let _ = terminal::write_out(&text);
    }
}
