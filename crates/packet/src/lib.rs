//! Bytes: capture file formats, decoding and building of packets. No root, no system calls.

pub mod pcapng;
