//! What routers say to each other.

pub mod bfd;
pub mod bgp;
pub mod ospf;
pub mod ospf3;
pub mod pim;
pub mod vrrp;
