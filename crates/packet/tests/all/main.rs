//! Written, built and read files compared with Wireshark's tools.

mod build;
mod common;
mod packets;
mod read;
mod wireshark;
