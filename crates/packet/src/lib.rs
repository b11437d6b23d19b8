//! Bytes: capture file formats, decoding and building of packets. No root, no system calls.

pub mod build;
pub mod checksum;
pub mod decode;
pub mod link_type;
pub mod pcap;
pub mod pcapng;
pub mod read;
pub mod seekable;
pub mod verdict;
pub mod walk;
