//! The interfaces that a session's packets may come in by.

use std::collections::HashSet;
use std::net::UdpSocket;

use trawl_sys::Result;
use trawl_sys::netlink::{Link, Netlink};
use trawl_sys::netns::{Namespace, run_maybe_in};

use trawl_sys::session::Session;

use crate::model::Macs;

/// Whether the session may come through a namespace: its server's address is there, or not in the present one either.
pub fn is_of(session: &Session, namespace: Option<&Namespace>) -> Result<bool> {
    let guarded = match namespace {
        Some(namespace) => namespace.clone(),
        None => Namespace::current()?,
    };
    let is_here = |namespace| {
        run_maybe_in(namespace, || {
            UdpSocket::bind((session.server.ip(), 0)).is_ok()
        })
    };
    Ok(is_here(namespace)? || Namespace::current()? == guarded || !is_here(None)?)
}

/// The interfaces that the session may come in by: those that its answers leave by or that have the server's address,
/// what they stand on, and what stands on them. `None` where that cannot be told.
pub fn of(session: &Session, namespace: Option<&Namespace>) -> Result<Option<HashSet<u32>>> {
    let mut netlink = Netlink::open(namespace)?;
    let mut ways: HashSet<u32> = HashSet::new();
    ways.extend(netlink.interface_with(session.server.ip())?);
    ways.extend(netlink.interface_towards(session.client.ip())?);
    if ways.is_empty() {
        return Ok(None);
    }
    let links = netlink.links()?;
    if links
        .iter()
        .any(|link| ways.contains(&link.index) && is_tunnel(link))
    {
        return Ok(None);
    }
    loop {
        let before = ways.len();
        for link in &links {
            // A bridge's or a bond's port, and a VLAN's lower device. A veth names its peer in the same place.
            let lower = link
                .peer_index
                .filter(|_| link.kind.as_deref() != Some("veth"));
            if link.master.is_some_and(|master| ways.contains(&master)) {
                ways.insert(link.index);
            }
            if ways.contains(&link.index) {
                ways.extend(lower);
            }
        }
        if ways.len() == before {
            return Ok(Some(ways));
        }
    }
}

/// The addresses of the frames that the session comes in, where the kernel knows them.
pub fn macs_of(session: &Session, namespace: Option<&Namespace>) -> Result<Option<Macs>> {
    let mut netlink = Netlink::open(namespace)?;
    let client = session.client.ip();
    let Some(way) = netlink.way_to(client, None)? else {
        return Ok(None);
    };
    let next = way.gateway.unwrap_or(client);
    let neighbours = netlink.neighbours(way.interface)?;
    let source = neighbours.iter().find(|one| one.address == next);
    let own = netlink.find_link_by_index(way.interface)?;
    let destination = own.and_then(|link| link.mac.try_into().ok());
    Ok(source.zip(destination).map(|(one, destination)| Macs {
        source: one.mac,
        destination,
    }))
}

/// Its packets come in by another interface, inside of others that nothing is known of.
fn is_tunnel(link: &Link) -> bool {
    const KINDS: [&str; 14] = [
        "tun",
        "wireguard",
        "vxlan",
        "geneve",
        "gre",
        "gretap",
        "ip6gre",
        "ip6gretap",
        "ipip",
        "sit",
        "ip6tnl",
        "vti",
        "xfrm",
        "ppp",
    ];
    link.kind
        .as_deref()
        .is_some_and(|kind| KINDS.contains(&kind))
}
