//! Sinks: where the finished blocks of a capture go.

mod beside;
mod direct;
mod file;
mod finished;
mod intact;
mod next_files;
mod packed;
mod pipe;
mod series;
mod series_plan;
mod walk;

pub use beside::{Beside, Fate, Several};
pub use direct::DirectFile;
pub use file::{PcapFile, PcapngFile};
pub use finished::{Finished, check_command, wait_for_commands};
pub use next_files::NextFiles;
pub use packed::{
    COMPRESSION_LIMIT, Form, Packed, compression_limits, compression_threads, is_nearly_full,
};
pub use pipe::{PcapStream, PcapngStream};
pub use series::Series;
pub use series_plan::SeriesPlan;
