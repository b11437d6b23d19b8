//! Sinks: destinations of the finished blocks of a capture.

mod direct;
mod file;
mod finished;
mod form;
mod intact;
mod next_files;
mod packed;
mod preamble;
mod readers;
mod series;
mod series_plan;
mod threaded;

pub use direct::DirectFile;
pub use file::{Pipe, PlainFile};
pub use finished::{Finished, check_command, wait_for_commands};
pub use form::OutputForm;
pub use next_files::NextFiles;
pub use packed::{COMPRESSION_LIMIT, Packed, compression_threads, is_nearly_full};
pub use readers::{Budget, Listener, ReaderFate, ReaderLog, ReaderNews, Readers};
pub use series::Series;
pub use series_plan::SeriesPlan;
pub use threaded::{OutputFate, Several, ThreadedOutput};
