//! The report: one page that needs no network, or Markdown, out of the results of one or more runs.

mod behind;
mod compare;
mod markdown;
mod page;
mod table;

pub use behind::behind;
pub use compare::{Change, changes};
pub use markdown::markdown;
pub use page::page;

use super::model::Report;

/// Results and where they came from.
#[derive(Clone, Debug)]
pub struct Source {
    pub name: String,
    pub report: Report,
}
