//! The printer compared with tcpdump, and on any bytes.

#[path = "../../../packet/tests/all/common.rs"]
mod common;
mod corpus;
#[path = "../../../packet/tests/all/packets/mod.rs"]
mod packets;
mod robust;
mod tcpdump;
