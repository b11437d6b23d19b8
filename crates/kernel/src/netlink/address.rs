//! Addresses, neighbours and routes.

use std::net::IpAddr;

use super::Netlink;
use super::wire::Request;
use crate::error::Result;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;

/// A route to be added: `destination/prefix` through an interface, by way of a gateway or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub destination: IpAddr,
    pub prefix: u8,
    pub gateway: Option<IpAddr>,
    pub interface: u32,
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn family(address: IpAddr) -> u8 {
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

    fn put(&mut self, request: Request, what: impl Fn() -> String) -> Result<()> {
        self.socket
            .change(request)
            .map_err(|r| r.about(format!("{}{}", what(), self.place)))
    }
}
