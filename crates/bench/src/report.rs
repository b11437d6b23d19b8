//! The report: one page that needs no network, Markdown or a vector picture, out of the results of one or more runs.

mod behind;
mod compare;
mod markdown;
mod page;
mod palette;
mod plot;
mod svg;
mod table;

pub use behind::behind;
pub use compare::{Change, changes};
pub use markdown::markdown;
pub use page::page;
pub use svg::svg;

use super::model::Report;

/// Results and where they came from.
#[derive(Clone, Debug)]
pub struct Source {
    pub name: String,
    pub report: Report,
}
