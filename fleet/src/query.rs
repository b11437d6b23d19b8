//! Questions to a store's index: SQL by DataFusion, and the conditions that a filter becomes.

mod cache;
mod condition;
mod engine;
mod footer;
pub mod limits;
mod pruning;

pub use condition::Conditions;
pub use engine::{Answer, Query};
