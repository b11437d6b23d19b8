//! Sinks: where the finished blocks of a capture go.

mod direct;
mod file;
mod pipe;
mod walk;

pub use direct::DirectFile;
pub use file::{PcapFile, PcapngFile};
pub use pipe::{PcapStream, PcapngStream};
