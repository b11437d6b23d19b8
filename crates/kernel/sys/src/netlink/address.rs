//! Addresses, neighbours and routes.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::Netlink;
use super::socket::{Reply, Socket};
use super::wire::{Request, find, read_u32};
use crate::error::{Error, Result};

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NTF_USE: u8 = 1;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const ROUTE_HEADER: usize = 12;
const ADDRESS_HEADER: usize = 8;

/// A route to be added: `destination/prefix` through an interface, by way of a gateway or not.
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

/// Create it, or bring what is there in line.
const PUT: u16 = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;

impl Netlink {
    /// Adds an address. IPv6 ones are usable at once: no duplicate address detection.
    pub fn add_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> Result<()> {
        let flags = if address.is_ipv6() { IFA_F_NODAD } else { 0 };
        let [a, b, c, d] = index.to_ne_bytes();
        let header = [family(address), prefix, flags, SCOPE_UNIVERSE, a, b, c, d];
        let mut request = Request::new(libc::RTM_NEWADDR, PUT).family_header(&header);
        let bytes = octets(address);
        request
            .attribute(IFA_LOCAL, &bytes)
            .attribute(IFA_ADDRESS, &bytes);
        self.put(request, || {
            format!("cannot add the address {address}/{prefix}")
        })
    }

    /// Adds a neighbour that never needs to be asked for (no ARP, no neighbour discovery).
    pub fn add_neighbour(&mut self, index: u32, address: IpAddr, mac: [u8; 6]) -> Result<()> {
        let mut header = [0; 12];
        header[0] = family(address);
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        header[8..10].copy_from_slice(&libc::NUD_PERMANENT.to_ne_bytes());
        let mut request = Request::new(libc::RTM_NEWNEIGH, PUT).family_header(&header);
        request
            .attribute(NDA_DST, &octets(address))
            .attribute(NDA_LLADDR, &mac);
        self.put(request, || format!("cannot add the neighbour {address}"))
    }

    /// Has the kernel ask for a neighbour's address now, as if a packet were to be sent there (NTF_USE).
    pub fn ask_for_neighbour(&mut self, index: u32, address: IpAddr) -> Result<()> {
        let mut header = [0; 12];
        header[0] = family(address);
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        header[10] = NTF_USE;
        let create = libc::NLM_F_CREATE as u16;
        let mut request = Request::new(libc::RTM_NEWNEIGH, create).family_header(&header);
        request.attribute(NDA_DST, &octets(address));
        self.put(request, || {
            format!("cannot ask for the neighbour {address}")
        })
    }

    pub fn add_route(&mut self, route: Route) -> Result<()> {
        let Route {
            destination,
            prefix,
            gateway,
            interface,
        } = route;
        let scope = if gateway.is_some() || destination.is_ipv6() {
            SCOPE_UNIVERSE
        } else {
            SCOPE_LINK
        };
        let header = [
            family(destination),
            prefix,
            0,
            0,
            RT_TABLE_MAIN,
            RTPROT_STATIC,
            scope,
            RTN_UNICAST,
            0,
            0,
            0,
            0,
        ];
        let mut request = Request::new(libc::RTM_NEWROUTE, PUT).family_header(&header);
        request
            .attribute(RTA_DST, &octets(destination))
            .u32(RTA_OIF, interface);
        if let Some(gateway) = gateway {
            request.attribute(RTA_GATEWAY, &octets(gateway));
        }
        self.put(request, || {
            format!("cannot add the route to {destination}/{prefix}")
        })
    }

    /// Waits until packets to that address are taken. The kernel puts an IPv6 address into its routes only
    /// some time after the address was added.
    pub fn wait_until_local(&mut self, address: IpAddr, patience: Duration) -> Result<()> {
        let groups = (libc::RTMGRP_IPV4_ROUTE | libc::RTMGRP_IPV6_ROUTE) as u32;
        let what = || format!("cannot wait for the address {address}");
        let mut events = Socket::route_events(self.namespace.as_ref(), groups)?;
        let deadline = Instant::now() + patience;
        while !self.is_local(address)? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = format!(
                    "no packets to it are taken {} s after it was added",
                    patience.as_secs()
                );
                return Err(
                    Error::failed(format!("address {address}{}", self.place), why)
                        .fix("is the interface up?"),
                );
            }
            events.wait(left).map_err(|r| r.about(what()))?;
            // Overrun or not: what counts is how things are now.
            let _ = events.events();
        }
        Ok(())
    }

    fn is_local(&mut self, address: IpAddr) -> Result<bool> {
        let reply = self.look_up_route(address)?;
        Ok(reply.is_some_and(|reply| reply.payload.get(7) == Some(&RTN_LOCAL)))
    }

    /// The interface that packets to this address leave by, if there is a route.
    pub fn interface_towards(&mut self, address: IpAddr) -> Result<Option<u32>> {
        let reply = self.look_up_route(address)?;
        Ok(reply.and_then(|reply| {
            let attributes = reply.payload.get(ROUTE_HEADER..)?;
            read_u32(find(attributes, RTA_OIF)?, 0)
        }))
    }

    /// The interface that has this address.
    pub fn interface_with(&mut self, address: IpAddr) -> Result<Option<u32>> {
        let header = [0; ADDRESS_HEADER];
        let replies = self
            .socket
            .dump(|| Request::new(libc::RTM_GETADDR, 0).family_header(&header))
            .map_err(|r| r.about(format!("cannot list addresses{}", self.place)))?;
        let wanted = octets(address);
        let has_it = |payload: &[u8]| {
            let attributes = payload.get(ADDRESS_HEADER..).unwrap_or_default();
            [IFA_LOCAL, IFA_ADDRESS]
                .iter()
                .find_map(|kind| find(attributes, *kind))
                == Some(wanted.as_slice())
        };
        let found = replies.iter().find(|reply| has_it(&reply.payload));
        Ok(found.and_then(|reply| read_u32(&reply.payload, 4)))
    }

    fn look_up_route(&mut self, address: IpAddr) -> Result<Option<Reply>> {
        let bytes = octets(address);
        let mut header = [0; ROUTE_HEADER];
        header[0] = family(address);
        header[1] = bytes.len() as u8 * 8;
        let mut request = Request::new(libc::RTM_GETROUTE, 0).family_header(&header);
        request.attribute(RTA_DST, &bytes);
        match self.socket.get(request) {
            Ok(reply) => Ok(Some(reply)),
            Err(refusal)
                if matches!(
                    refusal.errno,
                    libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES
                ) =>
            {
                Ok(None)
            }
            Err(refusal) => Err(refusal.about(format!(
                "cannot look up the route to {address}{}",
                self.place
            ))),
        }
    }

    fn put(&mut self, request: Request, what: impl Fn() -> String) -> Result<()> {
        self.socket
            .change(request)
            .map_err(|r| r.about(format!("{}{}", what(), self.place)))
    }
}
