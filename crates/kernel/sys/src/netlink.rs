//! Interfaces, addresses, routes and tc over routing netlink; driver abilities over generic netlink; traces of
//! nftables.
//!
//! A [`Netlink`] stays in the namespace it was opened in: it may be used from any thread.

mod conntrack;
pub mod counters;
pub mod ethtool;
mod generic;
pub mod interface;
mod link;
mod monitor;
mod route;
mod rule_trace;
mod socket;
pub mod socket_option;
pub mod tc;

use std::net::{IpAddr, UdpSocket};

use crate::error::Result;
use crate::netns::{Namespace, NamespaceSearch, exec_prefix, run_maybe_in};
pub use conntrack::{Translated, TranslationEvent, Translations};
pub use generic::{XdpAbilities, traps, xdp_abilities};
pub use link::{LinkRecord, LinkStatistics, VlanTag, XdpAttachment, XdpExpected, XdpMode};
pub use link::{VethEnd, create_netkit, create_veth};
pub use monitor::{LinkEvent, LinkMonitor};
pub use route::Route;
pub use route::{Neighbour, NextHop, carriers};
pub use rule_trace::{MarkedPlaces, RuleTrace, TracedDrop, nft_family};
pub use socket::{Refusal, Socket};

/// A routing netlink socket in one namespace.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    namespace: Option<Namespace>,
    /// The namespace's name for messages, with a leading blank and brackets; empty for the current one.
    scope: String,
}

impl Netlink {
    /// Opens a socket in the namespace of the calling thread.
    pub fn current() -> Result<Self> {
        Self::open(None)
    }

    pub fn inside(namespace: &Namespace) -> Result<Self> {
        Self::open(Some(namespace))
    }

    pub fn open(namespace: Option<&Namespace>) -> Result<Self> {
        let scope = match namespace {
            Some(namespace) => format!(" (namespace {})", namespace.label()),
            None => String::new(),
        };
        Ok(Self { socket: Socket::route(namespace)?, namespace: namespace.cloned(), scope })
    }
}

// Resolution of a neighbour's address.

const DISCARD: u16 = 9;

/// Makes the kernel resolve an address, by an empty datagram to its discard port. The table of neighbours then has the
/// result.
fn resolve(namespace: Option<&Namespace>, address: IpAddr) {
    let any: IpAddr = match address {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let _ = run_maybe_in(namespace, || {
        UdpSocket::bind((any, 0)).and_then(|socket| socket.send_to(&[], (address, DISCARD)))
    });
}

// The other end of a veth, in any namespace.

/// The other end of a veth.
#[derive(Clone, Debug)]
pub struct Peer {
    pub link: LinkRecord,
    /// `None`: the namespace of the calling thread.
    pub namespace: Option<Namespace>,
}

impl Peer {
    /// Returns `veth0`, or `veth0 in NAMESPACE`.
    pub fn label(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} in {}", self.link.name, namespace.label()),
            None => self.link.name.clone(),
        }
    }

    /// Returns the prefix of a command that runs in the peer's namespace.
    pub fn exec_prefix(&self) -> String {
        exec_prefix(self.namespace.as_ref())
    }
}

/// Finds the other end of a veth in the namespaces that can be found; `None` if it is in none of them, or if the
/// interface has no other end.
pub fn veth_peer(namespace: Option<&Namespace>, interface: &LinkRecord) -> Result<Option<Peer>> {
    veth_peer_in(&mut NamespaceSearch::default(), namespace, interface)
}

/// Finds the other end of a veth like [`veth_peer`], for callers that search for several.
pub fn veth_peer_in(
    search: &mut NamespaceSearch,
    namespace: Option<&Namespace>,
    interface: &LinkRecord,
) -> Result<Option<Peer>> {
    let Some(index) = interface.peer_index else {
        return Ok(None);
    };
    let mut here = Netlink::open(namespace)?;
    let Some(wanted) = interface.peer_namespace_id else {
        let link = here.find_link_by_index(index)?;
        return Ok(link.map(|link| Peer { link, namespace: namespace.cloned() }));
    };
    let mut failure = None;
    let is_there = |candidate: &Namespace| match here.namespace_id(candidate) {
        Ok(id) => id == Some(wanted),
        Err(error) => {
            failure.get_or_insert(error);
            false
        }
    };
    let Some(there) = search.find(is_there).cloned() else {
        return failure.map_or(Ok(None), Err);
    };
    let link = Netlink::inside(&there)?.find_link_by_index(index)?;
    Ok(link.map(|link| Peer { link, namespace: Some(there) }))
}
