//! Written, built and read files beside Wireshark's tools.

mod build;
mod common;
mod packets;
mod read;
mod wireshark;
