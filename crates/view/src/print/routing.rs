//! Protocols between routers.

pub mod bfd;
pub mod bgp;
pub mod ospf;
pub mod ospf3;
pub mod pim;
pub mod vrrp;
