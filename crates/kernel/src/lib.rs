//! The kernel's side of things: the only crate with `unsafe` and system calls.

pub mod bpf;
pub mod bpffs;
pub mod clock;
pub mod clock_state;
pub mod confirm;
pub mod counters;
pub mod create;
pub mod disk;
pub mod dpdk;
pub mod errno;
pub mod error;
pub mod ethtool;
pub mod events;
pub mod helper;
pub mod host;
pub mod interface;
pub mod kallsyms;
pub mod keyboard;
pub mod layout;
pub mod libpcap;
pub mod lock;
pub mod memory;
pub mod mounts;
pub mod names;
pub mod netlink;
pub mod netns;
pub mod outlet;
pub mod owners;
pub mod packet_socket;
pub mod privilege;
pub mod probe;
pub mod process;
pub mod producer;
pub mod receive;
pub mod redirect_events;
pub mod ring;
pub mod run;
pub mod send;
pub mod session;
mod socket_option;
pub mod socket_owners;
pub mod ssh;
#[cfg(test)]
mod testing;
pub mod text_file;
pub mod warden;
pub mod writeback;

pub mod xsk;

pub use error::{Error, Result};
