//! Why connections are slow. `packets` measures connections in the packets of one place, `judge` turns measures into
//! verdicts. Both are pure: they read no clock, use no network and print nothing.

pub mod drops;
mod flow;
pub mod histogram;
pub mod joins;
pub mod judge;
pub mod lines;
pub mod measures;
pub mod news;
mod options;
pub mod packets;
pub mod report;
pub mod socket;
pub mod sockets;
mod tcp;
pub mod unacknowledged;
pub mod verdict;
