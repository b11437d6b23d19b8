//! Queries of a store's index: SQL by DataFusion, and conditions made from filters.

mod cache;
mod condition;
mod engine;
mod footer;
pub mod limits;
mod pruning;
mod read_only;

pub use condition::Conditions;
pub use engine::{Answer, Query};
