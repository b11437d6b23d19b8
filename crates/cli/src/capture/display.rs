//! The display of a capture on the terminal. No other part of the capture depends on it.

use std::time::Duration;

use trawl_view::Show;
use trawl_view::json::{JsonArray, JsonLines};
use trawl_view::print::{PrintOptions, Printer};

use crate::args::JsonForm;

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
    Json(JsonForm),
    Lines(PrintOptions),
}

impl Form {
    pub fn writer(&self) -> Box<dyn Show + Send> {
        match self {
            Self::Lines(options) => Box::new(Printer::new(*options)),
            Self::Json(JsonForm::Lines) => Box::new(JsonLines),
            Self::Json(JsonForm::Array) => Box::new(JsonArray::default()),
        }
    }
}
