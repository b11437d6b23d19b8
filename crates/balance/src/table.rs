//! A balancer's table: virtual addresses and their backends, and the changes to them.
//!
//! Numbers are indices of the program's counters and stay as long as their owner. A backend also has a generation,
//! which is never reused: flows remember it.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use trawl_bpf::layout::balance::{BALANCE_MAX_BACKENDS, BALANCE_MAX_VIPS};
use trawl_sys::{Error, Result};

/// GUE's port as registered with IANA.
pub const GUE_PORT: u16 = 6080;
pub const MOST_WEIGHT: u32 = 10_000;

/// Forwarding of packets to the backends of a virtual address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Forward {
    /// Sends the packet on the same link, to the backend's MAC address.
    Direct,
    /// IP in IP, with an outer header of the backend's IP version.
    #[default]
    Ipip,
    /// Generic UDP encapsulation, variant 1.
    Gue,
}

impl Forward {
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Ipip => "ipip",
            Self::Gue => "gue",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    pub address: IpAddr,
    pub weight: u32,
    /// `None`: the kernel's neighbour table knows it.
    pub mac: Option<[u8; 6]>,
    /// Accepts no new flows.
    pub draining: bool,
    /// Set while a health check fails.
    pub down: bool,
    /// Server id in QUIC connection ids.
    pub server_id: Option<u16>,
    pub number: u32,
    pub generation: u32,
}

impl Backend {
    pub fn new(address: IpAddr) -> Self {
        Self { address, weight: 1, mac: None, draining: false, down: false, server_id: None, number: 0, generation: 0 }
    }

    pub fn accepts_new_flows(&self) -> bool {
        !self.draining && !self.down
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vip {
    pub service: Service,
    pub forward: Forward,
    pub gue_port: u16,
    pub number: u32,
    pub backends: Vec<Backend>,
}

impl Vip {
    pub fn new(service: Service, forward: Forward) -> Self {
        Self { service, forward, gue_port: GUE_PORT, number: 0, backends: Vec::new() }
    }
}

/// Source networks of tunnel packets; the last 16 bits hold the flow's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources {
    pub ipv4: Ipv4Addr,
    pub ipv6: Ipv6Addr,
}

impl Default for Sources {
    /// 172.16.0.0/16, and the discard prefix of RFC 6666.
    fn default() -> Self {
        Self { ipv4: Ipv4Addr::new(172, 16, 0, 0), ipv6: Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub vips: Vec<Vip>,
    pub sources: Sources,
    pub next_generation: u32,
}

impl Default for Table {
    fn default() -> Self {
        Self { vips: Vec::new(), sources: Sources::default(), next_generation: 1 }
    }
}

impl Table {
    pub fn vip(&self, service: &Service) -> Result<&Vip> {
        let found = self.vips.iter().find(|vip| vip.service == *service);
        found.ok_or_else(|| no_vip(service))
    }

    pub fn vip_mut(&mut self, service: &Service) -> Result<&mut Vip> {
        let found = self.vips.iter_mut().find(|vip| vip.service == *service);
        found.ok_or_else(|| no_vip(service))
    }

    pub fn backend_mut(&mut self, service: &Service, address: IpAddr) -> Result<&mut Backend> {
        let vip = self.vip_mut(service)?;
        let found = vip.backends.iter_mut().find(|one| one.address == address);
        found.ok_or_else(|| no_backend(service, address))
    }

    pub fn add_vip(&mut self, vip: Vip) {
        self.vips.push(vip);
    }

    pub fn remove_vip(&mut self, service: &Service) -> Result<Vip> {
        let at = self.vips.iter().position(|vip| vip.service == *service);
        Ok(self.vips.remove(at.ok_or_else(|| no_vip(service))?))
    }

    pub fn add_backend(&mut self, service: &Service, backend: Backend) -> Result<()> {
        self.vip_mut(service)?.backends.push(backend);
        Ok(())
    }

    pub fn remove_backend(&mut self, service: &Service, address: IpAddr) -> Result<Backend> {
        let vip = self.vip_mut(service)?;
        let at = vip.backends.iter().position(|one| one.address == address);
        let at = at.ok_or_else(|| no_backend(service, address))?;
        Ok(vip.backends.remove(at))
    }

    pub fn backends(&self) -> usize {
        self.vips.iter().map(|vip| vip.backends.len()).sum()
    }

    /// Numbers new entries; entries that `before` has under the same name keep their numbers.
    pub fn number_after(&mut self, before: &Self) -> Result<()> {
        self.next_generation = before.next_generation.max(self.next_generation);
        let mut vips = Numbers::default();
        let mut backends = Numbers::default();
        for vip in &mut self.vips {
            let old = before.vips.iter().find(|old| old.service == vip.service);
            vip.number = old.map_or(u32::MAX, |old| old.number);
            vips.taken.extend(old.map(|old| old.number));
            for one in &mut vip.backends {
                let same = |other: &&Backend| other.address == one.address;
                let old = old.and_then(|old| old.backends.iter().find(same));
                one.number = old.map_or(u32::MAX, |old| old.number);
                one.generation = old.map_or(0, |old| old.generation);
                backends.taken.extend(old.map(|old| old.number));
            }
        }
        for vip in &mut self.vips {
            if vip.number == u32::MAX {
                vip.number = vips.next();
            }
            for one in &mut vip.backends {
                if one.generation == 0 {
                    one.number = backends.next();
                    one.generation = self.next_generation;
                    self.next_generation = self.next_generation.checked_add(1).ok_or_else(|| {
                        refused("the table has had four billion backends: unload the balancer, and load it again")
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Refuses a table that the program cannot apply.
    pub fn check(&self) -> Result<()> {
        if self.vips.len() > BALANCE_MAX_VIPS {
            return Err(refused(format!(
                "{} virtual addresses exceed the maximum of {BALANCE_MAX_VIPS}",
                self.vips.len()
            )));
        }
        if self.backends() > BALANCE_MAX_BACKENDS {
            return Err(refused(format!("{} backends exceed the maximum of {BALANCE_MAX_BACKENDS}", self.backends())));
        }
        let mut sorted: Vec<&Service> = self.vips.iter().map(|vip| &vip.service).collect();
        sorted.sort_by_key(|one| (one.address, one.protocol.number(), one.port));
        for pair in sorted.windows(2) {
            // The service with all ports is the first of its address and protocol.
            if let [first, second] = pair
                && first.overlaps(second)
            {
                return Err(refused(format!("the virtual addresses {first} and {second} overlap")));
            }
        }
        self.vips.iter().try_for_each(check_vip)
    }
}

fn check_vip(vip: &Vip) -> Result<()> {
    let service = &vip.service;
    let address = service.address;
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
        return Err(refused(format!("{address} cannot be a virtual address")));
    }
    let mut addresses = HashSet::new();
    let mut servers = HashSet::new();
    for one in &vip.backends {
        let at = one.address;
        let why = if !addresses.insert(at) {
            format!("duplicate backend {at}")
        } else if one.weight == 0 {
            format!("the backend {at} has a weight of zero; to send it no new flows, drain it")
        } else if one.weight > MOST_WEIGHT {
            format!("the weight of {at} is above {MOST_WEIGHT}")
        } else if at.is_unspecified() || at.is_multicast() || at.is_loopback() {
            format!("the address {at} belongs to no backend")
        } else if at == address {
            format!("the backend {at} is the virtual address itself")
        } else if vip.forward == Forward::Direct && at.is_ipv4() != address.is_ipv4() {
            format!("the backend {at} is of another IP version, which forwarding `direct` does not change")
        } else if vip.forward != Forward::Direct && one.mac.is_some() {
            format!("the backend {at} has a MAC address, which is for forwarding `direct` only")
        } else if one.mac.is_some_and(|mac| mac[0] & 1 == 1 || mac == [0; 6]) {
            format!("the MAC address of {at} belongs to no host")
        } else if one.server_id.is_some() && service.protocol != Protocol::Quic {
            format!("the backend {at} has a server id, which is for quic only")
        } else if let Some(id) = one.server_id
            && !servers.insert(id)
        {
            format!("duplicate server id {id}")
        } else {
            continue;
        };
        return Err(refused(format!("{service}: {why}")));
    }
    Ok(())
}

/// Allocator of free numbers.
#[derive(Default)]
struct Numbers {
    taken: HashSet<u32>,
    next: u32,
}

impl Numbers {
    fn next(&mut self) -> u32 {
        while self.taken.contains(&self.next) {
            self.next += 1;
        }
        self.next += 1;
        self.next - 1
    }
}

fn refused(why: impl std::fmt::Display) -> Error {
    Error::failed("the table stays as it is", why)
}

fn no_vip(service: &Service) -> Error {
    Error::failed(
        format!("cannot find the virtual address {service}"),
        "the balancer has none with this protocol, address and port",
    )
    .fix("trawl balance vip list shows them")
}

fn no_backend(service: &Service, address: IpAddr) -> Error {
    Error::failed(format!("cannot find the backend {address}"), format!("{service} has no backend with this address"))
        .fix("trawl balance vip list shows them")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    Tcp,
    Udp,
    /// UDP with the server's id in the connection id.
    Quic,
}

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Quic => "quic",
        }
    }

    /// Returns the number in IP headers.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp | Self::Quic => 17,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Service {
    pub protocol: Protocol,
    pub address: IpAddr,
    /// 0: all ports.
    pub port: u16,
}

impl Service {
    /// Returns true if some packet would match both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.address == other.address
            && self.protocol.number() == other.protocol.number()
            && (self.port == other.port || self.port == 0 || other.port == 0)
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol.name();
        match (self.address, self.port) {
            (address, 0) => write!(f, "{protocol}:{address}"),
            (IpAddr::V4(address), port) => write!(f, "{protocol}:{address}:{port}"),
            (IpAddr::V6(address), port) => write!(f, "{protocol}:[{address}]:{port}"),
        }
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage =
            || format!("'{text}' is not PROTOCOL:ADDRESS[:PORT], for example tcp:192.0.2.1:80 or udp:[2001:db8::1]:53");
        let (protocol, rest) = text.split_once(':').ok_or_else(usage)?;
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "quic" => Protocol::Quic,
            _ => return Err(usage()),
        };
        let (address, port) = if let Ok(address) = rest.parse::<IpAddr>() {
            (address, 0)
        } else if let Some(inner) = rest.strip_prefix('[') {
            let (address, port) = inner.split_once(']').ok_or_else(usage)?;
            let port = match port.strip_prefix(':') {
                Some(port) => port.parse().map_err(|_| usage())?,
                None if port.is_empty() => 0,
                None => return Err(usage()),
            };
            let address: std::net::Ipv6Addr = address.parse().map_err(|_| usage())?;
            (IpAddr::V6(address), port)
        } else {
            let (address, port) = rest.rsplit_once(':').ok_or_else(usage)?;
            let address: std::net::Ipv4Addr = address.parse().map_err(|_| usage())?;
            (IpAddr::V4(address), port.parse().map_err(|_| usage())?)
        };
        Ok(Self { protocol, address, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(services: &[&str]) -> Table {
        let mut table = Table::default();
        for text in services {
            table.add_vip(Vip::new(text.parse().expect("a service"), Forward::Ipip));
        }
        table
    }

    #[test]
    fn overlaps_duplicates_and_zero_weights_are_refused() {
        assert!(table(&["tcp:10.9.0.1:80", "udp:10.9.0.1:80", "tcp:10.9.0.2"]).check().is_ok());
        assert!(table(&["tcp:10.9.0.1:80", "tcp:10.9.0.2", "tcp:10.9.0.1"]).check().is_err());
        assert!(table(&["quic:10.9.0.1:443", "udp:10.9.0.1:443"]).check().is_err());
        let with = |backends: &[Backend]| {
            let mut table = table(&["tcp:10.9.0.1:80"]);
            table.vips[0].backends.extend_from_slice(backends);
            table.check()
        };
        let one = Backend::new("10.0.0.1".parse().expect("an address"));
        assert!(with(std::slice::from_ref(&one)).is_ok());
        assert!(with(&[one.clone(), one.clone()]).is_err());
        assert!(with(&[Backend { weight: 0, ..one.clone() }]).is_err());
        assert!(with(&[Backend { server_id: Some(3), ..one }]).is_err());
    }

    #[test]
    fn numbers_stay_and_generations_are_never_reused() {
        let service = "tcp:10.9.0.1:80".parse().expect("a service");
        let mut first = table(&["tcp:10.9.0.1:80"]);
        for last in 1..=3 {
            let address = IpAddr::from([10, 0, 0, last]);
            first.add_backend(&service, Backend::new(address)).expect("it is there");
        }
        first.number_after(&Table::default()).expect("numbers");
        let mut second = first.clone();
        second.remove_backend(&service, IpAddr::from([10, 0, 0, 2])).expect("it is there");
        second.number_after(&first).expect("numbers");
        let mut third = second.clone();
        third.add_backend(&service, Backend::new(IpAddr::from([10, 0, 0, 2]))).expect("it is there");
        third.number_after(&second).expect("numbers");
        let of = |table: &Table, at: usize| {
            let one = &table.vips[0].backends[at];
            (one.number, one.generation)
        };
        assert_eq!(of(&first, 2), (2, 3));
        assert_eq!(of(&second, 1), (2, 3));
        assert_eq!(of(&third, 2), (1, 4));
    }

    #[test]
    fn services_parse_as_displayed() {
        for text in ["tcp:192.0.2.1:80", "udp:192.0.2.1", "quic:[2001:db8::1]:443", "tcp:2001:db8::1"] {
            let service: Service = text.parse().expect(text);
            assert_eq!(service.to_string(), text);
        }
        for text in ["", "tcp", "sctp:1.2.3.4:5", "tcp:1.2.3.4:x", "tcp:1.2.3.4:70000", "udp:[::1", "udp:[::1]x"] {
            assert!(text.parse::<Service>().is_err(), "{text}");
        }
    }

    #[test]
    fn all_ports_overlap_each_single_port() {
        let service = |text: &str| text.parse::<Service>().expect(text);
        let all = service("udp:192.0.2.1");
        assert!(all.overlaps(&service("quic:192.0.2.1:443")));
        assert!(!all.overlaps(&service("tcp:192.0.2.1:443")));
        assert!(!service("tcp:192.0.2.1:1").overlaps(&service("tcp:192.0.2.1:2")));
    }
}
