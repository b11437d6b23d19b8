//! The kernel's knowledge of the path to an address: route, source, neighbour.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::socket::{NetlinkRequest, Refusal, Socket, attributes, find, read_u16, read_u32};
use super::{LinkRecord, Netlink};
use crate::error::{Error, Result};

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_VIA: u16 = 18;
const RTA_MULTIPATH: u16 = 9;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
/// Longest prefix of routes that together act as a default route, as VPNs and IPv6 providers set them.
const LONGEST_DEFAULT: u8 = 3;
const NEXT_HOP_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;
const NEIGHBOUR_HEADER: usize = 12;
const ADDRESS_HEADER: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// States in which the kernel has no address to send to.
const NUD_INCOMPLETE: u16 = 0x01;
const NUD_FAILED: u16 = 0x20;
const NUD_NOARP: u16 = 0x40;

/// The route to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    pub interface: u32,
    /// `None`: the address itself is the neighbour.
    pub gateway: Option<IpAddr>,
    /// The address that packets are sent from.
    pub source: Option<IpAddr>,
    /// The address is this host's own.
    pub local: bool,
}

/// A neighbour whose address the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub interface: u32,
    pub address: IpAddr,
    pub mac: [u8; 6],
}

fn read_address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

/// The interfaces of a route with several next hops: `struct rtnexthop`, each with attributes of its own.
fn next_hops(mut value: &[u8]) -> Vec<u32> {
    let mut found = Vec::new();
    while let (Some(length), Some(interface)) = (read_u16(value, 0), read_u32(value, 4)) {
        found.push(interface);
        let length = usize::from(length).next_multiple_of(4);
        match value.get(length..) {
            Some(rest) if length >= NEXT_HOP_HEADER => value = rest,
            _ => break,
        }
    }
    found
}

/// Returns these interfaces, and all that carry their packets: ports of a bridge or a bond, and lower devices. A veth
/// names its peer in the field in which others name their lower device.
pub fn carriers(mut found: HashSet<u32>, links: &[LinkRecord]) -> HashSet<u32> {
    loop {
        let before = found.len();
        for link in links {
            if link.master.is_some_and(|master| found.contains(&master)) {
                found.insert(link.index);
            }
            let is_lower = link.kind.as_deref() != Some("veth") && link.peer_namespace_id.is_none();
            if is_lower && found.contains(&link.index) {
                found.extend(link.peer_index);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

impl Netlink {
    /// Looks up the route to an address, by that interface if one is given; `None` if no route exists.
    pub fn next_hop(&mut self, address: IpAddr, interface: Option<u32>) -> Result<Option<NextHop>> {
        let bytes = octets(address);
        let mut header = [0; ROUTE_HEADER];
        header[0] = family(address);
        header[1] = bytes.len() as u8 * 8;
        let mut request = NetlinkRequest::new(libc::RTM_GETROUTE, 0).family_header(&header);
        request.attribute(RTA_DST, &bytes);
        if let Some(index) = interface {
            request.u32(RTA_OIF, index);
        }
        let reply = match self.socket.get(request) {
            Ok(reply) => reply,
            Err(Refusal { errno: libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL, .. }) => {
                return Ok(None);
            }
            Err(refusal) => {
                return Err(refusal.about(format!("cannot look up the route to {address}{}", self.scope)));
            }
        };
        let mut hop =
            NextHop { interface: 0, gateway: None, source: None, local: reply.payload.get(7) == Some(&RTN_LOCAL) };
        for (kind, value) in attributes(reply.payload.get(ROUTE_HEADER..).unwrap_or(&[])) {
            match kind {
                RTA_OIF => hop.interface = read_u32(value, 0).unwrap_or(0),
                RTA_GATEWAY => hop.gateway = read_address(value),
                // An IPv6 gateway of an IPv4 route: family, then address.
                RTA_VIA => hop.gateway = read_address(value.get(2..).unwrap_or(&[])),
                RTA_PREFSRC => hop.source = read_address(value),
                _ => {}
            }
        }
        Ok((hop.interface != 0).then_some(hop))
    }

    /// Returns the neighbours of an interface whose addresses are known.
    pub fn neighbours(&mut self, interface: u32) -> Result<Vec<Neighbour>> {
        let replies = self
            .socket
            .dump(|| NetlinkRequest::new(libc::RTM_GETNEIGH, 0).family_header(&[0; NEIGHBOUR_HEADER]))
            .map_err(|refusal| refusal.about("cannot list the neighbours"))?;
        let parse = |payload: &[u8]| {
            let state = read_u16(payload, 8)?;
            if state & (NUD_INCOMPLETE | NUD_FAILED | NUD_NOARP) != 0 {
                return None;
            }
            let (mut address, mut mac) = (None, None);
            for (kind, value) in attributes(payload.get(NEIGHBOUR_HEADER..)?) {
                match kind {
                    NDA_DST => address = read_address(value),
                    NDA_LLADDR => mac = value.try_into().ok(),
                    _ => {}
                }
            }
            Some(Neighbour { interface: read_u32(payload, 4)?, address: address?, mac: mac? })
        };
        let all = replies.iter().filter_map(|reply| parse(&reply.payload));
        Ok(all.filter(|one| one.interface == interface).collect())
    }

    /// Returns the interfaces that default routes lead to, by each of their next hops, and those that carry these:
    /// ports of a bridge or a bond, the parent of a VLAN or a macvlan. Routes that split all addresses between them
    /// (0/1 and 128/1, or four quarters) and the route to all of the IPv6 internet (2000::/3) count as default routes.
    pub fn default_route_interfaces(&mut self) -> Result<Vec<u32>> {
        let mut found = HashSet::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut header = [0; ROUTE_HEADER];
            header[0] = family as u8;
            let replies = self.socket.dump(|| NetlinkRequest::new(libc::RTM_GETROUTE, 0).family_header(&header));
            let replies = match replies {
                Ok(replies) => replies,
                // A kernel without IPv6 has no such routes.
                Err(refusal) if refusal.errno == libc::EOPNOTSUPP => continue,
                Err(refusal) => return Err(refusal.about("cannot list the routes")),
            };
            for reply in &replies {
                let is_unicast = reply.payload.get(7) == Some(&RTN_UNICAST);
                let prefix = reply.payload.get(1).copied();
                if !is_unicast || prefix.is_none_or(|length| length > LONGEST_DEFAULT) {
                    continue;
                }
                for (kind, value) in attributes(reply.payload.get(ROUTE_HEADER..).unwrap_or(&[])) {
                    match kind {
                        RTA_OIF => found.extend(read_u32(value, 0)),
                        RTA_MULTIPATH => found.extend(next_hops(value)),
                        _ => {}
                    }
                }
            }
        }
        let links = self.links()?;
        Ok(carriers(found, &links).into_iter().collect())
    }

    /// Returns the addresses of an interface.
    pub fn addresses(&mut self, interface: u32) -> Result<Vec<IpAddr>> {
        let replies = self
            .socket
            .dump(|| NetlinkRequest::new(libc::RTM_GETADDR, 0).family_header(&[0; ADDRESS_HEADER]))
            .map_err(|refusal| refusal.about("cannot list the addresses"))?;
        let parse = |payload: &[u8]| {
            if read_u32(payload, 4)? != interface {
                return None;
            }
            let mut found = None;
            for (kind, value) in attributes(payload.get(ADDRESS_HEADER..)?) {
                if kind == IFA_LOCAL || (kind == IFA_ADDRESS && found.is_none()) {
                    found = read_address(value);
                }
            }
            found
        };
        Ok(replies.iter().filter_map(|reply| parse(&reply.payload)).collect())
    }

    /// Returns the MAC address of a neighbour. An unknown one is resolved first, as the kernel does before it sends.
    pub fn mac_of(&mut self, interface: u32, address: IpAddr) -> Result<[u8; 6]> {
        const TRIES: u32 = 100;
        for attempt in 0..TRIES {
            let known = self.neighbours(interface)?;
            if let Some(one) = known.iter().find(|one| one.address == address) {
                return Ok(one.mac);
            }
            if attempt == 0 {
                super::resolve(self.namespace.as_ref(), address);
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let link = self.find_link_by_index(interface)?;
        let name = link.map_or_else(|| format!("number {interface}"), |link| link.name);
        Err(Error::failed(
            format!("the MAC address of {address} on {name}{}", self.scope),
            "the kernel does not know it, and no neighbour answered",
        )
        .fix("name it with --dst-mac MAC"))
    }
}

// Addresses, neighbours and routes.

const IFA_F_NODAD: u8 = 2;
const NTF_USE: u8 = 1;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;

/// A route to be added: `destination/prefix` through an interface, with or without a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub destination: IpAddr,
    pub prefix: u8,
    pub gateway: Option<IpAddr>,
    pub interface: u32,
}

pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

pub(super) fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

/// Creates the object, or replaces an existing one.
const PUT: u16 = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;

impl Netlink {
    /// Adds an address. IPv6 ones are usable at once: no duplicate address detection.
    pub fn add_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> Result<()> {
        let flags = if address.is_ipv6() { IFA_F_NODAD } else { 0 };
        let [a, b, c, d] = index.to_ne_bytes();
        let header = [family(address), prefix, flags, SCOPE_UNIVERSE, a, b, c, d];
        let mut request = NetlinkRequest::new(libc::RTM_NEWADDR, PUT).family_header(&header);
        let bytes = octets(address);
        request.attribute(IFA_LOCAL, &bytes).attribute(IFA_ADDRESS, &bytes);
        self.put(request, || format!("cannot add the address {address}/{prefix}"))
    }

    /// Adds a neighbour that is never resolved (no ARP, no neighbour discovery).
    pub fn add_neighbour(&mut self, index: u32, address: IpAddr, mac: [u8; 6]) -> Result<()> {
        let mut header = [0; 12];
        header[0] = family(address);
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        header[8..10].copy_from_slice(&libc::NUD_PERMANENT.to_ne_bytes());
        let mut request = NetlinkRequest::new(libc::RTM_NEWNEIGH, PUT).family_header(&header);
        request.attribute(NDA_DST, &octets(address)).attribute(NDA_LLADDR, &mac);
        self.put(request, || format!("cannot add the neighbour {address}"))
    }

    /// Makes the kernel resolve a neighbour now, as if a packet were to be sent to it (NTF_USE).
    pub fn ask_for_neighbour(&mut self, index: u32, address: IpAddr) -> Result<()> {
        let mut header = [0; 12];
        header[0] = family(address);
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        header[10] = NTF_USE;
        let create = libc::NLM_F_CREATE as u16;
        let mut request = NetlinkRequest::new(libc::RTM_NEWNEIGH, create).family_header(&header);
        request.attribute(NDA_DST, &octets(address));
        self.put(request, || format!("cannot ask for the neighbour {address}"))
    }

    pub fn add_route(&mut self, route: Route) -> Result<()> {
        let Route { destination, prefix, gateway, interface } = route;
        let scope = if gateway.is_some() || destination.is_ipv6() { SCOPE_UNIVERSE } else { SCOPE_LINK };
        let header = [family(destination), prefix, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, scope, RTN_UNICAST, 0, 0, 0, 0];
        let mut request = NetlinkRequest::new(libc::RTM_NEWROUTE, PUT).family_header(&header);
        request.attribute(RTA_DST, &octets(destination)).u32(RTA_OIF, interface);
        if let Some(gateway) = gateway {
            request.attribute(RTA_GATEWAY, &octets(gateway));
        }
        self.put(request, || format!("cannot add the route to {destination}/{prefix}"))
    }

    /// Waits until packets to that address are accepted. The kernel puts an IPv6 address into its routes only some time
    /// after the address was added.
    pub fn wait_until_local(&mut self, address: IpAddr, patience: Duration) -> Result<()> {
        let groups = (libc::RTMGRP_IPV4_ROUTE | libc::RTMGRP_IPV6_ROUTE) as u32;
        let what = || format!("cannot wait for the address {address}");
        let mut events = Socket::route_events(self.namespace.as_ref(), groups)?;
        let deadline = Instant::now() + patience;
        while !self.is_local(address)? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = format!("the kernel accepts no packets to it {} s after it was added", patience.as_secs());
                let what = format!("address {address}{} is not ready", self.scope);
                return Err(Error::failed(what, why).fix("set the interface up"));
            }
            events.wait(left).map_err(|r| r.about(what()))?;
            // Lost events do not matter: only the current state counts.
            let _ = events.events();
        }
        Ok(())
    }

    fn is_local(&mut self, address: IpAddr) -> Result<bool> {
        Ok(self.next_hop(address, None)?.is_some_and(|hop| hop.local))
    }

    /// Returns the interface that packets to this address leave by, if a route exists.
    pub fn interface_towards(&mut self, address: IpAddr) -> Result<Option<u32>> {
        Ok(self.next_hop(address, None)?.map(|hop| hop.interface))
    }

    /// Returns the interface that has this address.
    pub fn interface_with(&mut self, address: IpAddr) -> Result<Option<u32>> {
        let header = [0; ADDRESS_HEADER];
        let replies = self
            .socket
            .dump(|| NetlinkRequest::new(libc::RTM_GETADDR, 0).family_header(&header))
            .map_err(|r| r.about(format!("cannot list addresses{}", self.scope)))?;
        let wanted = octets(address);
        let has_it = |payload: &[u8]| {
            let attributes = payload.get(ADDRESS_HEADER..).unwrap_or_default();
            [IFA_LOCAL, IFA_ADDRESS].iter().find_map(|kind| find(attributes, *kind)) == Some(wanted.as_slice())
        };
        let found = replies.iter().find(|reply| has_it(&reply.payload));
        Ok(found.and_then(|reply| read_u32(&reply.payload, 4)))
    }

    fn put(&mut self, request: NetlinkRequest, what: impl Fn() -> String) -> Result<()> {
        self.socket.change(request).map_err(|r| r.about(format!("{}{}", what(), self.scope)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_next_hop_is_read() {
        let mut bytes = Vec::new();
        for interface in [7u32, 9] {
            // Length 16: the header and a gateway's attribute.
            bytes.extend(16u16.to_ne_bytes());
            bytes.extend([0, 0]);
            bytes.extend(interface.to_ne_bytes());
            bytes.extend([8, 0, 5, 0, 10, 0, 0, 1]);
        }
        assert_eq!(next_hops(&bytes), [7, 9]);
        assert_eq!(next_hops(&bytes[..20]), [7]);
        assert_eq!(next_hops(&[0; 16]), [0]);
        assert_eq!(next_hops(&[]), []);
    }

    #[test]
    fn carriers_of_an_interface_are_found() {
        let link = |index, kind: &str, master, peer_index| LinkRecord {
            index,
            kind: Some(kind.to_owned()),
            master,
            peer_index,
            ..LinkRecord::default()
        };
        let links = [
            link(1, "veth", Some(3), Some(9)),
            link(2, "dummy", None, None),
            link(3, "bridge", None, None),
            link(4, "macvlan", None, Some(3)),
            link(9, "veth", None, Some(1)),
        ];
        let mut found: Vec<u32> = carriers([4].into(), &links).into_iter().collect();
        found.sort_unstable();
        assert_eq!(found, [1, 3, 4]);
    }
}
