//! The report: one page that needs no network, Markdown or a vector picture, from the results of one or more runs.

mod page;
mod plot;
mod svg;
mod tables;

pub use page::page;
pub use svg::svg;
pub use tables::{Change, behind, changes, markdown};

use super::model::Report;

/// Results and their origin.
#[derive(Clone, Debug)]
pub struct Source {
    pub name: String,
    pub report: Report,
}
