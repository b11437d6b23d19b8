//! Sinks: where the finished blocks of a capture go.

mod file;
mod pipe;

pub use file::{PcapFile, PcapngFile};
pub use pipe::{PcapStream, PcapngStream};
