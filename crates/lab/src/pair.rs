//! Two namespaces and a veth between them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use trawl_sys::Result;
use trawl_sys::ethtool::Ethtool;
use trawl_sys::interface::Interface;
use trawl_sys::netlink::{Netlink, VethEnd, create_veth};
use trawl_sys::netns::{self, Namespace};

use crate::record::{PREFIX, Record, check_id};

const LOOPBACK: u32 = 1;
/// The kernel takes up to a second to notice that both ends of a veth are up, and a little to route to
/// an IPv6 address.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a pair is to be made. The defaults suit native XDP and exact counts.
#[derive(Clone, Debug)]
pub struct PairOptions {
    /// Names of the interfaces in the first and the second namespace.
    pub interfaces: [String; 2],
    /// Receive and transmit queues of each end.
    pub queues: u32,
    /// GRO lets a veth take XDP frames while it has no XDP program of its own.
    pub gro: bool,
    pub mtu: u32,
    /// No packet goes by but those that someone sends: no link-local address, no neighbour or
    /// multicast chatter. IPv4 and IPv6 still work.
    pub quiet: bool,
}

impl Default for PairOptions {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Self {
            interfaces: ["veth0".to_owned(), "veth0".to_owned()],
            queues: cpus,
            gro: true,
            mtu: 1500,
            quiet: true,
        }
    }
}

/// One end: a namespace with an interface in it.
#[derive(Clone, Debug)]
pub struct Station {
    pub namespace: Namespace,
    /// The namespace's name under /run/netns.
    pub name: String,
    pub interface: String,
    pub index: u32,
    pub mac: [u8; 6],
    pub ipv4: Ipv4Addr,
    pub ipv6: Ipv6Addr,
}

impl Station {
    /// Opens what is there of an end; `side` is 0 or 1.
    fn find(id: &str, side: usize, interface: &str) -> Result<Self> {
        let plan = Addresses::new(side);
        let name = namespace_name(id, side);
        let namespace = Namespace::by_name(&name)?;
        let index = Netlink::inside(&namespace)?.link(interface)?.index;
        Ok(Self {
            namespace,
            name,
            interface: interface.to_owned(),
            index,
            mac: plan.mac,
            ipv4: plan.ipv4,
            ipv6: plan.ipv6,
        })
    }

    pub fn netlink(&self) -> Result<Netlink> {
        Netlink::inside(&self.namespace)
    }

    pub fn ethtool(&self) -> Result<Ethtool> {
        Ethtool::open(Some(&self.namespace), &self.interface)
    }

    pub fn describe(&self) -> Result<Interface> {
        Interface::find(Some(&self.namespace), &self.interface)
    }
}

/// The addresses of one side, the same in each lab: labs do not see each other.
#[derive(Debug)]
pub struct Addresses {
    pub mac: [u8; 6],
    pub ipv4: Ipv4Addr,
    pub ipv6: Ipv6Addr,
}

const IPV4_PREFIX: u8 = 24;
const IPV6_PREFIX: u8 = 64;

impl Addresses {
    pub fn new(side: usize) -> Self {
        let host = side as u8 + 1;
        Self {
            mac: [0x02, b't', b'r', b'a', b'w', host],
            ipv4: Ipv4Addr::from([10, 77, 0, host]),
            ipv6: Ipv6Addr::from([0xfd00, 0x77, 0, 0, 0, 0, 0, u16::from(host)]),
        }
    }
}

fn namespace_name(id: &str, side: usize) -> String {
    format!("{PREFIX}{id}-{}", ["a", "b"][side])
}

/// A pair of namespaces joined by a veth, removed when dropped.
#[derive(Debug)]
pub struct Pair {
    pub a: Station,
    pub b: Station,
    guard: Guard,
}

impl Pair {
    /// A pair with a name of its own, for this process.
    pub fn new(options: &PairOptions) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::named(&format!("{}-{count}", std::process::id()), options)
    }

    pub fn named(id: &str, options: &PairOptions) -> Result<Self> {
        check_id(id)?;
        let record = Record::new(id, vec![namespace_name(id, 0), namespace_name(id, 1)]);
        record.enter()?;
        let guard = Guard::of(record);
        let namespaces = [
            netns::create(&namespace_name(id, 0))?,
            netns::create(&namespace_name(id, 1))?,
        ];
        let end = |side: usize| VethEnd {
            name: &options.interfaces[side],
            namespace: Some(&namespaces[side]),
            mac: Some(Addresses::new(side).mac),
            mtu: Some(options.mtu),
            queues: options.queues,
            no_link_local: options.quiet,
        };
        create_veth(&end(0), &end(1))?;
        let a = Station::find(id, 0, &options.interfaces[0])?;
        let b = Station::find(id, 1, &options.interfaces[1])?;
        // A veth looks at its peer's GRO when it goes up, to know whether others may redirect to it:
        // both have to have it before either is up.
        for station in [&a, &b] {
            station.ethtool()?.set_feature("rx-gro", options.gro)?;
        }
        for (here, there) in [(&a, &b), (&b, &a)] {
            set_up(here, there, options.quiet)?;
        }
        for station in [&a, &b] {
            let mut netlink = station.netlink()?;
            netlink.wait_until_operational(station.index, PATIENCE)?;
            netlink.wait_until_local(station.ipv4.into(), PATIENCE)?;
            netlink.wait_until_local(station.ipv6.into(), PATIENCE)?;
        }
        Ok(Self { a, b, guard })
    }

    pub fn id(&self) -> &str {
        self.guard
            .record
            .as_ref()
            .map_or("", |record| record.id.as_str())
    }

    /// A pair of this name that was made before and stays, if its interfaces are as these options say.
    pub fn existing(id: &str, options: &PairOptions) -> Result<Option<[Station; 2]>> {
        let wanted = [namespace_name(id, 0), namespace_name(id, 1)];
        let all = crate::list()?;
        let Some(there) = all.iter().find(|lab| lab.id == id) else {
            return Ok(None);
        };
        let existing = netns::list();
        let is_pair = there.topology.is_none()
            && there.owner.is_none()
            && there.namespaces == wanted
            && wanted.iter().all(|name| existing.contains(name));
        if !is_pair {
            return Ok(None);
        }
        let ends = [
            Station::find(id, 0, &options.interfaces[0])?,
            Station::find(id, 1, &options.interfaces[1])?,
        ];
        for end in &ends {
            let found = end.describe()?;
            let same_gro = end.ethtool()?.feature("rx-gro")? == Some(options.gro);
            if found.mtu != options.mtu || found.rx_queues != options.queues || !same_gro {
                return Ok(None);
            }
        }
        Ok(Some(ends))
    }

    /// Lets it stay after this process; [`crate::remove`] takes it down.
    pub fn keep(mut self) -> Result<()> {
        if let Some(record) = &mut self.guard.record {
            record.disown()?;
        }
        self.guard.record = None;
        Ok(())
    }

    /// Removes it now, so that a failure can be told.
    pub fn remove(mut self) -> Result<()> {
        self.guard
            .record
            .take()
            .map_or(Ok(()), |record| record.remove())
    }
}

fn set_up(here: &Station, there: &Station, quiet: bool) -> Result<()> {
    let mut netlink = here.netlink()?;
    if quiet {
        // An interface without ARP joins no solicited-node groups, and so has nothing to report.
        netlink.set_arp(here.index, false)?;
    }
    netlink.set_up(LOOPBACK)?;
    netlink.set_up(here.index)?;
    let families: [(IpAddr, IpAddr, u8); 2] = [
        (here.ipv4.into(), there.ipv4.into(), IPV4_PREFIX),
        (here.ipv6.into(), there.ipv6.into(), IPV6_PREFIX),
    ];
    for (own, other, prefix) in families {
        netlink.add_address(here.index, own, prefix)?;
        netlink.add_neighbour(here.index, other, there.mac)?;
    }
    Ok(())
}

/// Removes a lab that was not kept, also when making it failed half-way.
#[derive(Debug)]
pub(crate) struct Guard {
    record: Option<Record>,
}

impl Guard {
    pub fn of(record: Record) -> Self {
        Self {
            record: Some(record),
        }
    }

    /// The lab stays.
    pub fn keep(mut self) {
        self.record = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            // A failure leaves the entry in the book, and `trawl lab clean` tries again.
            let _ = record.remove();
        }
    }
}
