//! Three namespaces in a line: a host, a router with two interfaces, and another host.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use trawl_sys::netlink::{Netlink, Route, VethEnd, create_veth};
use trawl_sys::netns::{self, Namespace, run_in};
use trawl_sys::{Error, Result};

use crate::pair::{Guard, Station};
use crate::record::{PREFIX, Record, check_id};

const LOOPBACK: u32 = 1;
const PATIENCE: Duration = Duration::from_secs(10);
const IPV4_PREFIX: u8 = 24;
const IPV6_PREFIX: u8 = 64;

/// How a line is to be made.
#[derive(Clone, Debug)]
pub struct LineOptions {
    /// Receive and transmit queues of each interface.
    pub queues: u32,
    /// GRO lets a veth take XDP frames while it has no XDP program of its own.
    pub gro: bool,
    pub mtu: u32,
    /// No packet goes by but those that someone sends: neighbours are known to each other.
    pub quiet: bool,
}

impl Default for LineOptions {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Self {
            queues: cpus,
            gro: true,
            mtu: 1500,
            quiet: true,
        }
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

/// Where an end stands: which of the two links it is on, and whether it is the router's.
#[derive(Clone, Copy)]
struct LineEnd {
    link: u8,
    is_router: bool,
    interface: &'static str,
}

const A: LineEnd = LineEnd {
    link: 1,
    is_router: false,
    interface: "veth0",
};
const LEFT: LineEnd = LineEnd {
    link: 1,
    is_router: true,
    interface: "left",
};
const RIGHT: LineEnd = LineEnd {
    link: 2,
    is_router: true,
    interface: "right",
};
const B: LineEnd = LineEnd {
    link: 2,
    is_router: false,
    interface: "veth0",
};

impl LineEnd {
    fn host(self) -> u8 {
        if self.is_router { 1 } else { 2 }
    }

    fn mac(self) -> [u8; 6] {
        [0x02, b't', b'r', b'w', self.link, self.host()]
    }

    fn ipv4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.link, self.host())
    }

    fn ipv6(self) -> Ipv6Addr {
        let (link, host) = (u16::from(self.link), u16::from(self.host()));
        Ipv6Addr::new(0xfd00, 0x77, link, 0, 0, 0, 0, host)
    }

    fn station(self, namespace: &Namespace, name: &str) -> Result<Station> {
        Ok(Station {
            namespace: namespace.clone(),
            name: name.to_owned(),
            interface: self.interface.to_owned(),
            index: Netlink::inside(namespace)?.link(self.interface)?.index,
            mac: self.mac(),
            ipv4: self.ipv4(),
            ipv6: self.ipv6(),
        })
    }

    fn end<'a>(self, namespace: &'a Namespace, options: &LineOptions) -> VethEnd<'a> {
        VethEnd {
            name: self.interface,
            namespace: Some(namespace),
            mac: Some(self.mac()),
            mtu: Some(options.mtu),
            queues: options.queues,
            no_link_local: options.quiet,
        }
    }
}

impl Line {
    /// A line with a name of its own, for this process.
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
        create_veth(&A.end(&host_a, options), &LEFT.end(&router, options))?;
        create_veth(&B.end(&host_b, options), &RIGHT.end(&router, options))?;
        let line = Self {
            a: A.station(&host_a, &names[0])?,
            left: LEFT.station(&router, &names[1])?,
            right: RIGHT.station(&router, &names[1])?,
            b: B.station(&host_b, &names[2])?,
            _guard: guard,
        };
        let links = [
            (&line.a, &line.left),
            (&line.left, &line.a),
            (&line.b, &line.right),
            (&line.right, &line.b),
        ];
        // Before they are up: a veth looks at its peer's GRO when it goes up.
        for (station, _) in links {
            station.ethtool()?.set_feature("rx-gro", options.gro)?;
        }
        for (here, there) in links {
            set_up(here, there, options.quiet)?;
        }
        forward(&router)?;
        for (station, _) in links {
            let mut netlink = station.netlink()?;
            netlink.wait_until_operational(station.index, PATIENCE)?;
            netlink.wait_until_local(station.ipv4.into(), PATIENCE)?;
            netlink.wait_until_local(station.ipv6.into(), PATIENCE)?;
        }
        for (host, router) in [(&line.a, &line.left), (&line.b, &line.right)] {
            default_routes(host, router)?;
        }
        Ok(line)
    }
}

fn set_up(here: &Station, there: &Station, quiet: bool) -> Result<()> {
    let mut netlink = here.netlink()?;
    if quiet {
        netlink.set_arp(here.index, false)?;
        netlink.set_multicast(here.index, false)?;
    }
    netlink.set_up(LOOPBACK)?;
    netlink.set_up(here.index)?;
    let families: [(IpAddr, IpAddr, u8); 2] = [
        (here.ipv4.into(), there.ipv4.into(), IPV4_PREFIX),
        (here.ipv6.into(), there.ipv6.into(), IPV6_PREFIX),
    ];
    for (own, other, prefix) in families {
        netlink.add_address(here.index, own, prefix)?;
        if quiet {
            netlink.add_neighbour(here.index, other, there.mac)?;
        }
    }
    Ok(())
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
