//! The guard: an XDP program that drops what its rules deny.
//!
//! Rules are kept as one compiled set for each network namespace ([`set`], [`compile`]) in a map that the programs on
//! all guarded interfaces share. A change builds a new set and replaces the old one by a single store.

pub mod compile;
pub mod file;
pub mod live;
pub mod model;
pub mod outcomes;
pub mod rule;
pub mod session;
pub mod set;
pub mod state;
#[cfg(test)]
mod tests;
pub mod values;

pub use rule::{Action, Draft, Match, Rule};
pub use set::RuleSet;
pub use state::{Guard, Post, Totals};
pub use trawl_program::safety::SessionCare;
pub use values::Prefix;
