//! Experiments: one harness drives every mechanism over the same traffic, with the same accounting.
//!
//! The mechanisms take turns (A B C A B C …), so that what else happens on the machine falls on all of them, and a
//! mechanism is compared with what ran in the same turn. Each run is in a lab of its own.

mod count;
pub mod drop_reasons;
mod figures;
pub mod generate;
pub mod guard_rules;
mod leftovers;
mod peer;
pub mod read;
pub mod study;
pub mod xdp_programs;

pub use count::addressed_to;
pub use figures::Spread;
pub use leftovers::clean_up;
pub use peer::Memory;
