//! Networks with fixed addresses: two namespaces joined by a veth, or three in a line: a host, a router with two interfaces, and
//! another host.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use trawl_sys::ethtool::Ethtool;
use trawl_sys::interface::Interface;
use trawl_sys::netlink::{Netlink, Route, VethEnd, create_veth};
use trawl_sys::netns::{self, Namespace, run_in};
use trawl_sys::{Error, Result};

use crate::record::{PREFIX, Record, check_id};

pub(crate) const LOOPBACK: u32 = 1;
/// Longest time until both ends of a veth are up, which takes the kernel up to a second, and an IPv6 address is routed.
const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const IPV4_PREFIX: u8 = 24;
pub(crate) const IPV6_PREFIX: u8 = 64;

/// Settings of a pair. The defaults suit native XDP and exact counts.
#[derive(Clone, Debug)]
pub struct PairOptions {
    /// Names of the interfaces in the first and the second namespace.
    pub interfaces: [String; 2],
    /// Receive and transmit queues of each end.
    pub queues: u32,
    /// GRO lets a veth accept XDP frames while it has no XDP program of its own.
    pub gro: bool,
    pub mtu: u32,
    /// Only frames that a process sends pass: no link-local address, no neighbour or multicast chatter. IPv4 and IPv6 still work.
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
        let LineOptions {
            queues,
            gro,
            mtu,
            quiet,
        } = LineOptions::default();
        Self {
            interfaces: ["veth0".to_owned(), "veth0".to_owned()],
            queues,
            gro,
            mtu,
            quiet,
        }
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
        let host = side as u8 + 1;
        Self {
            mac: [0x02, b't', b'r', b'a', b'w', host],
            ipv4: Ipv4Addr::from([10, 77, 0, host]),
            ipv6: Ipv6Addr::from([0xfd00, 0x77, 0, 0, 0, 0, 0, u16::from(host)]),
        }
    }

    /// Returns the addresses of an end of a line's `link`, at the router or at the host.
    fn on_line(link: u8, is_router: bool) -> Self {
        let host = if is_router { 1 } else { 2 };
        Self {
            mac: [0x02, b't', b'r', b'w', link, host],
            ipv4: Ipv4Addr::from([10, 77, link, host]),
            ipv6: Ipv6Addr::from([0xfd00, 0x77, link.into(), 0, 0, 0, 0, host.into()]),
        }
    }
}

/// An end: a namespace with an interface in it.
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
    /// Opens an existing interface.
    fn find(name: &str, interface: &str, plan: Addresses) -> Result<Self> {
        let namespace = Namespace::by_name(name)?;
        let index = Netlink::inside(&namespace)?.link(interface)?.index;
        Ok(Self {
            namespace,
            name: name.to_owned(),
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

    fn addresses(&self) -> [IpAddr; 2] {
        [self.ipv4.into(), self.ipv6.into()]
    }
}

/// Brings an interface up with its addresses, and adds the neighbour at `other` if given.
pub(crate) fn set_up(
    netlink: &mut Netlink,
    index: u32,
    own: [IpAddr; 2],
    other: Option<([IpAddr; 2], [u8; 6])>,
) -> Result<()> {
    netlink.set_up(index)?;
    for (at, prefix) in [IPV4_PREFIX, IPV6_PREFIX].into_iter().enumerate() {
        netlink.add_address(index, own[at], prefix)?;
        if let Some((addresses, mac)) = other {
            netlink.add_neighbour(index, addresses[at], mac)?;
        }
    }
    Ok(())
}

/// Waits until packets can be sent and received at these addresses.
pub(crate) fn wait_until_ready(
    netlink: &mut Netlink,
    index: u32,
    addresses: [IpAddr; 2],
) -> Result<()> {
    netlink.wait_until_operational(index, PATIENCE)?;
    let mut addresses = addresses.into_iter();
    addresses.try_for_each(|address| netlink.wait_until_local(address, PATIENCE))
}

/// Brings stations up, each with the other end of its link as neighbour.
fn bring_up(
    links: &[(&Station, &Station)],
    gro: bool,
    set_up: impl Fn(&Station, &Station) -> Result<()>,
) -> Result<()> {
    // A veth checks its peer's GRO when it goes up, to know whether others may redirect to it: both need it before either is up.
    for (station, _) in links {
        station.ethtool()?.set_feature("rx-gro", gro)?;
    }
    for (here, there) in links {
        here.netlink()?.set_up(LOOPBACK)?;
        set_up(here, there)?;
    }
    for (station, _) in links {
        wait_until_ready(&mut station.netlink()?, station.index, station.addresses())?;
    }
    Ok(())
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
    /// Makes a pair under a unique name, for this process.
    pub fn new(options: &PairOptions) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::named(&format!("{}-{count}", std::process::id()), options)
    }

    pub fn named(id: &str, options: &PairOptions) -> Result<Self> {
        check_id(id)?;
        let names = [0, 1].map(|side| namespace_name(id, side));
        let record = Record::new(id, names.to_vec());
        record.enter()?;
        let guard = Guard::of(record);
        let namespaces = [netns::create(&names[0])?, netns::create(&names[1])?];
        let end = |side: usize| VethEnd {
            name: &options.interfaces[side],
            namespace: Some(&namespaces[side]),
            mac: Some(Addresses::new(side).mac),
            mtu: Some(options.mtu),
            queues: options.queues,
            no_link_local: options.quiet,
        };
        create_veth(&end(0), &end(1))?;
        let [a, b] = Self::stations(id, options)?;
        bring_up(&[(&a, &b), (&b, &a)], options.gro, |here, there| {
            let mut netlink = here.netlink()?;
            if options.quiet {
                // An interface without ARP joins no solicited-node groups, and so has nothing to report.
                netlink.set_arp(here.index, false)?;
            }
            let other = Some((there.addresses(), there.mac));
            set_up(&mut netlink, here.index, here.addresses(), other)
        })?;
        Ok(Self { a, b, guard })
    }

    fn stations(id: &str, options: &PairOptions) -> Result<[Station; 2]> {
        let find = |side: usize| {
            let name = namespace_name(id, side);
            Station::find(&name, &options.interfaces[side], Addresses::new(side))
        };
        Ok([find(0)?, find(1)?])
    }

    pub fn id(&self) -> &str {
        self.guard
            .record
            .as_ref()
            .map_or("", |record| record.id.as_str())
    }

    /// Returns the ends of an existing pair of this name, if its interfaces match these options.
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
        let ends = Self::stations(id, options)?;
        for end in &ends {
            let found = end.describe()?;
            let same_gro = end.ethtool()?.feature("rx-gro")? == Some(options.gro);
            if found.mtu != options.mtu || found.rx_queues != options.queues || !same_gro {
                return Ok(None);
            }
        }
        Ok(Some(ends))
    }

    /// Keeps the pair after this process; [`crate::remove`] removes it.
    pub fn keep(mut self) -> Result<()> {
        if let Some(record) = &mut self.guard.record {
            record.disown()?;
        }
        self.guard.record = None;
        Ok(())
    }

    /// Removes the pair now, so that a failure can be reported.
    pub fn remove(mut self) -> Result<()> {
        self.guard
            .record
            .take()
            .map_or(Ok(()), |record| record.remove())
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
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::named(&format!("{}-line{count}", std::process::id()), options)
    }

    fn named(id: &str, options: &LineOptions) -> Result<Self> {
        check_id(id)?;
        let names = ["a", "r", "b"].map(|end| format!("{PREFIX}{id}-{end}"));
        let record = Record::new(id, names.to_vec());
        record.enter()?;
        let guard = Guard::of(record);
        let [host_a, router, host_b] = [
            netns::create(&names[0])?,
            netns::create(&names[1])?,
            netns::create(&names[2])?,
        ];
        let join =
            |link: u8, host: &Namespace, name: &str, at_router: &str| -> Result<[Station; 2]> {
                let plans = [false, true].map(|is_router| Addresses::on_line(link, is_router));
                let end = |namespace, interface, plan: Addresses| VethEnd {
                    name: interface,
                    namespace: Some(namespace),
                    mac: Some(plan.mac),
                    mtu: Some(options.mtu),
                    queues: options.queues,
                    no_link_local: options.quiet,
                };
                create_veth(
                    &end(host, "veth0", plans[0]),
                    &end(&router, at_router, plans[1]),
                )?;
                Ok([
                    Station::find(name, "veth0", plans[0])?,
                    Station::find(&names[1], at_router, plans[1])?,
                ])
            };
        let [a, left] = join(1, &host_a, &names[0], "left")?;
        let [b, right] = join(2, &host_b, &names[2], "right")?;
        let links = [(&a, &left), (&left, &a), (&b, &right), (&right, &b)];
        bring_up(&links, options.gro, |here, there| {
            let mut netlink = here.netlink()?;
            if options.quiet {
                netlink.set_arp(here.index, false)?;
                netlink.set_multicast(here.index, false)?;
            }
            let other = options.quiet.then(|| (there.addresses(), there.mac));
            set_up(&mut netlink, here.index, here.addresses(), other)
        })?;
        forward(&router)?;
        default_routes(&a, &left)?;
        default_routes(&b, &right)?;
        Ok(Self {
            a,
            left,
            right,
            b,
            _guard: guard,
        })
    }
}

fn default_routes(host: &Station, router: &Station) -> Result<()> {
    let everywhere: [(IpAddr, IpAddr); 2] = [
        (Ipv4Addr::UNSPECIFIED.into(), router.ipv4.into()),
        (Ipv6Addr::UNSPECIFIED.into(), router.ipv6.into()),
    ];
    everywhere
        .into_iter()
        .try_for_each(|(destination, gateway)| {
            host.netlink()?.add_route(Route {
                destination,
                prefix: 0,
                gateway: Some(gateway),
                interface: host.index,
            })
        })
}

fn forward(router: &Namespace) -> Result<()> {
    let turn_on = || {
        for family in ["ipv4", "ipv6"] {
            let setting = format!("/proc/sys/net/{family}/conf/all/forwarding");
            fs::write(&setting, "1").map_err(|e| Error::os(format!("cannot set {setting}"), e))?;
        }
        Ok(())
    };
    run_in(router, turn_on)?
}

/// Removes a lab that was not kept, also if building it failed half-way.
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

    /// Keeps the lab.
    pub fn keep(mut self) {
        self.record = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            // A failure leaves the lab's record, and `trawl lab clean` tries again.
            let _ = record.remove();
        }
    }
}
