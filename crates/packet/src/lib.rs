//! Bytes: capture file formats, decoding and building of packets. No root, no system calls.

pub mod build;
mod checksum;
pub mod decode;
#[doc(hidden)]
pub mod exercise;
pub mod link_type;
pub mod pcap;
pub mod pcapng;
pub mod print;
pub mod read;
pub mod verdict;
