//! The load balancer: an XDP program that spreads the flows to virtual addresses over backends.
//!
//! A table ([`table`]) is compiled ([`compile`]) with a Maglev ring for each virtual address ([`maglev`]) into one
//! array that the program reads ([`live`]). A change makes a new array and replaces the old one by a single store.
//! [`balancer`] holds program and table of an interface together.

pub mod balancer;
pub mod check;
pub mod compile;
pub mod file;
pub mod live;
pub mod maglev;
pub mod stats;
pub mod table;
#[cfg(test)]
mod tests;

pub use balancer::Balancer;
pub use table::{Backend, Forward, Protocol, Service, Table, Vip};
