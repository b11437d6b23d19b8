//! Interfaces, addresses, routes and tc over routing netlink; driver abilities over generic netlink.
//!
//! A [`Netlink`] belongs for good to the namespace it was opened in: it may be used from any thread.

mod address;
mod ask;
pub mod devlink;
mod generic;
mod ipip;
mod link;
mod monitor;
mod peer;
mod route;
mod socket;
pub mod tc;
mod veth;
mod wire;

pub use address::Route;
pub use generic::{XdpAbilities, xdp_abilities};
pub use link::{Link, Statistics, VlanTag, XdpAttachment, XdpExpected, XdpMode};
pub use monitor::{LinkEvent, LinkMonitor};
pub use peer::{Peer, veth_peer, veth_peer_in};
pub use route::{Neighbour, NextHop, carriers};
pub use socket::{Refusal, Socket};
pub use veth::{VethEnd, create_veth};

use crate::error::Result;
use crate::netns::Namespace;

/// A routing netlink socket in one namespace.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    namespace: Option<Namespace>,
    /// The namespace's name for messages, with a leading blank and brackets; empty for here.
    place: String,
}

impl Netlink {
    /// In the namespace of the calling thread.
    pub fn here() -> Result<Self> {
        Self::open(None)
    }

    pub fn inside(namespace: &Namespace) -> Result<Self> {
        Self::open(Some(namespace))
    }

    pub fn open(namespace: Option<&Namespace>) -> Result<Self> {
        let place = match namespace {
            Some(namespace) => format!(" (namespace {})", namespace.label()),
            None => String::new(),
        };
        Ok(Self {
            socket: Socket::route(namespace)?,
            namespace: namespace.cloned(),
            place,
        })
    }
}
