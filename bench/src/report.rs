//! The report: one page that needs no network, Markdown or a vector picture, from the results of one or more runs.

pub mod command;
mod page;
mod plot;
mod svg;
mod tables;

use page::page;
use svg::svg;
use tables::{behind, changes, markdown};

use crate::model::Report;

/// Results and their origin.
#[derive(Clone, Debug)]
struct Source {
    name: String,
    report: Report,
}
