//! Commands compared with tcpdump, tshark and capinfos.

mod demo;
mod filter;
mod read;
mod stat;
