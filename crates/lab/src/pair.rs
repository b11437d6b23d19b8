//! Networks with fixed addresses: two namespaces joined by a veth, or three in a line: a host, a router with two
//! interfaces, and another host.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};

use trawl_sys::Result;
use trawl_sys::netlink::Netlink;
use trawl_sys::netlink::ethtool::Ethtool;
use trawl_sys::netlink::interface::Interface;
use trawl_sys::netns::Namespace;

use crate::build::{Guard, build};
use crate::topology::{Link, Node, Topology, ipv4, ipv6, mac, namespace};

/// Settings of a pair. The defaults suit native XDP and exact counts.
#[derive(Clone, Debug)]
pub struct PairOptions {
    /// Names of the interfaces in the first and the second namespace.
    pub interfaces: [String; 2],
    /// Receive and transmit queues of each end.
    pub queues: u32,
    /// True if GRO is on, which lets a veth accept XDP frames while it has no XDP program of its own.
    pub gro: bool,
    pub mtu: u32,
    /// True if only frames that a process sends pass: without link-local addresses, neighbour discovery and multicast
    /// reports. IPv4 and IPv6 still work.
    pub quiet: bool,
}

/// Settings of a line; the fields are named as in [`PairOptions`].
#[derive(Clone, Debug)]
pub struct LineOptions {
    pub queues: u32,
    pub gro: bool,
    pub mtu: u32,
    pub quiet: bool,
}

impl Default for PairOptions {
    fn default() -> Self {
        let LineOptions { queues, gro, mtu, quiet } = LineOptions::default();
        Self { interfaces: ["veth0".to_owned(), "veth0".to_owned()], queues, gro, mtu, quiet }
    }
}

impl Default for LineOptions {
    fn default() -> Self {
        Self {
            queues: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            gro: true,
            mtu: 1500,
            quiet: true,
        }
    }
}

impl PairOptions {
    /// Returns the topology of a pair: nodes `a` and `b`, and the link between them.
    pub fn topology(&self) -> Topology {
        let [a, b] = &self.interfaces;
        let nodes = ["a", "b"].map(|name| Node { name: name.to_owned(), ..Node::default() });
        Topology {
            nodes: nodes.into(),
            links: vec![Link {
                mtu: self.mtu,
                queues: self.queues,
                gro: self.gro,
                neighbours: self.quiet,
                ..Link::between(&format!("a:{a}"), &format!("b:{b}"))
            }],
            plain: true,
        }
    }
}

impl LineOptions {
    fn topology(&self) -> Topology {
        let node = |name: &str, gateway: Option<&str>| Node {
            name: name.to_owned(),
            forward: gateway.is_none(),
            gateway: gateway.map(str::to_owned),
            ..Node::default()
        };
        let link = |first: &str, second: &str| Link {
            mtu: self.mtu,
            queues: self.queues,
            gro: self.gro,
            neighbours: self.quiet,
            ..Link::between(first, second)
        };
        Topology {
            nodes: vec![node("a", Some("r")), node("r", None), node("b", Some("r"))],
            links: vec![link("r:left", "a:veth0"), link("r:right", "b:veth0")],
            plain: false,
        }
    }
}

/// Addresses of an end, the same in each lab: labs do not see each other.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    pub mac: [u8; 6],
    pub ipv4: Ipv4Addr,
    pub ipv6: Ipv6Addr,
}

impl Addresses {
    /// Returns the addresses of a side of a pair, which is 0 or 1.
    pub fn new(side: usize) -> Self {
        Self::of(0, side)
    }

    fn of(link: usize, side: usize) -> Self {
        Self { mac: mac(link, side), ipv4: ipv4(link, side), ipv6: ipv6(link, side) }
    }
}

/// An end of a link: a namespace with an interface in it.
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
    /// Opens the interface at an end of a link.
    fn find(id: &str, topology: &Topology, number: usize, side: usize) -> Result<Self> {
        let end = topology.links[number - usize::from(!topology.plain)].end(side);
        let name = namespace(id, end.node);
        let namespace = Namespace::by_name(&name)?;
        let index = Netlink::inside(&namespace)?.link(end.interface)?.index;
        let Addresses { mac, ipv4, ipv6 } = Addresses::of(number, side);
        Ok(Self { namespace, name, interface: end.interface.to_owned(), index, mac, ipv4, ipv6 })
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

/// Returns a name that no other lab of this process has.
fn unique(kind: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{}-{kind}{count}", std::process::id())
}

/// A pair of namespaces joined by a veth, removed when dropped.
#[derive(Debug)]
pub struct Pair {
    pub a: Station,
    pub b: Station,
    guard: Guard,
}

impl Pair {
    /// Makes a pair under a unique name, for this process.
    pub fn new(options: &PairOptions) -> Result<Self> {
        Self::named(&unique(""), options)
    }

    pub fn named(id: &str, options: &PairOptions) -> Result<Self> {
        let topology = options.topology();
        let guard = build(id, &topology)?;
        let station = |side| Station::find(id, &topology, 0, side);
        Ok(Self { a: station(0)?, b: station(1)?, guard })
    }

    pub fn id(&self) -> &str {
        self.guard.id()
    }

    /// Keeps the pair after this process; [`crate::remove`] removes it.
    pub fn keep(mut self) -> Result<()> {
        self.guard.keep(None)
    }

    /// Removes the pair now, so that a failure can be reported.
    pub fn remove(mut self) -> Result<()> {
        self.guard.remove()
    }
}

/// A host `a`, a router that forwards, with its interfaces `left` and `right`, and a host `b`; removed when dropped.
#[derive(Debug)]
pub struct Line {
    pub a: Station,
    pub left: Station,
    pub right: Station,
    pub b: Station,
    _guard: Guard,
}

impl Line {
    /// Makes a line under a unique name, for this process.
    pub fn new(options: &LineOptions) -> Result<Self> {
        let (id, topology) = (unique("line"), options.topology());
        let guard = build(&id, &topology)?;
        let station = |number, side| Station::find(&id, &topology, number, side);
        Ok(Self { a: station(1, 1)?, left: station(1, 0)?, right: station(2, 0)?, b: station(2, 1)?, _guard: guard })
    }
}
