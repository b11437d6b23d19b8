//! Sinks: where the finished blocks of a capture go.

mod file;

pub use file::{PcapFile, PcapngFile};
