//! System calls without BPF: namespaces, netlink, files, locks, processes, clocks, and the error that they all return.

pub mod clock;
pub mod confirm;
pub mod errno;
pub mod error;
pub mod events;
pub mod files;
pub mod host;
pub mod keyboard;
pub mod memory;
pub mod names;
pub mod netlink;
pub mod netns;
pub mod process;
pub mod rights;
#[doc(hidden)]
pub mod testing;
pub mod units;
pub mod words;

pub use error::{Error, Result};
