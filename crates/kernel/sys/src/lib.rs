//! System calls without BPF: namespaces, netlink, files, locks, processes, clocks, and the error that they all return.

pub mod beneath;
pub mod cgroup;
pub mod clock;
pub mod confirm;
pub mod counters;
pub mod create;
pub mod errno;
pub mod error;
pub mod ethtool;
pub mod events;
pub mod heap;
pub mod held;
pub mod helper;
pub mod host;
pub mod interface;
pub mod keyboard;
pub mod lock;
pub mod memory;
pub mod mounts;
pub mod names;
pub mod netlink;
pub mod netns;
pub mod outfile;
pub mod outlet;
pub mod privilege;
pub mod process;
pub mod run;
pub mod session;
pub mod socket_option;
pub mod socket_owners;
pub mod ssh;
#[doc(hidden)]
pub mod testing;
pub mod text_file;
pub mod units;
pub mod warden;
pub mod words;

pub use error::{Error, Result};
