//! The display of a capture on the terminal. No other part of the capture depends on it.

use std::time::Duration;

use trawl_view::print::PrintOptions;

#[derive(Clone, Debug)]
pub(super) struct Display {
    /// Packets are shown on standard output in this form.
    pub form: Option<Form>,
    /// Notices are for a machine.
    pub json: bool,
    pub quiet: bool,
    pub verbose: bool,
    /// How often figures are shown on standard error, if that was said.
    pub stats: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(super) enum Form {
    Json,
    Lines(PrintOptions),
}
