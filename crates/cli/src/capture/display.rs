//! The display of a capture on the terminal. No other part of the capture depends on it.

use std::time::Duration;

use trawl_view::print::PrintOptions;

#[derive(Clone, Debug)]
pub(super) struct Display {
    /// Form in which packets are shown on standard output.
    pub form: Option<Form>,
    /// Notices are written as JSON.
    pub json: bool,
    pub quiet: bool,
    pub verbose: bool,
    /// Interval of statistics on standard error, if requested.
    pub stats: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(super) enum Form {
    Json,
    Lines(PrintOptions),
}
