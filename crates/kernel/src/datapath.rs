//! The way of the packets: rings and sockets that they come through, engines that send, files that take them.

pub mod disk;
pub mod dpdk;
pub mod layout;
pub mod libpcap;
pub mod outlet;
pub mod packet_socket;
pub mod producer;
pub mod receive;
pub mod redirect_events;
pub mod ring;
pub mod send;
pub mod writeback;
pub mod xsk;
