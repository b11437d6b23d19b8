//! Application protocols; their ports are in `transport.rs`.

pub mod dhcp;
pub mod dhcp6;
pub mod dns;
pub mod http;
pub mod nfs;
pub mod ntp;
pub mod radius;
pub mod snmp;
pub mod syslog;
pub mod tftp;
pub mod tls;
pub mod vpn;
