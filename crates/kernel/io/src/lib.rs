//! Packets and files: sockets that receive packets, engines that send them, and files that record them.

pub mod disk;
pub mod dpdk;
pub mod libpcap;
pub mod packet_socket;
pub mod receive;
pub mod send;
pub mod writeback;
pub mod xsk;
