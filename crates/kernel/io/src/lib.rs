//! Packets and files: sockets that packets come from, engines that send them, files that they are written to.

pub mod disk;
pub mod dpdk;
pub mod libpcap;
pub mod outlet;
pub mod packet_socket;
pub mod receive;
pub mod send;
pub mod writeback;
pub mod xsk;
