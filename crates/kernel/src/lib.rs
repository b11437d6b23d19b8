//! The kernel's side of things: the only crate with `unsafe` and system calls.

pub mod errno;
pub mod warden;
pub mod error;
pub mod events;
pub mod clock;
pub mod ring;
pub mod memory;
pub mod layout;
pub mod bpf;
pub mod bpffs;
pub mod ethtool;
pub mod host;
pub mod interface;
pub mod netlink;
pub mod netns;
pub mod packet_socket;
pub mod probe;
pub mod process;
pub mod producer;
pub mod send;
#[cfg(test)]
mod testing;

pub use error::{Error, Result};
