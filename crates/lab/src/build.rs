//! Builds a lab from its topology: namespaces, veths with queues and GRO, addresses, neighbours, routes, offloads,
//! sysctls, rates, and the CPUs that receive. A lab exists as a whole or not at all.

use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use trawl_sys::netlink::ethtool::Ethtool;
use trawl_sys::netlink::{Netlink, Route, VethEnd, create_veth};
use trawl_sys::netns::{self, Namespace, run_in};
use trawl_sys::{Error, Result, process};

use crate::record::{Record, list};
use crate::topology::{Link, Node, Shaper, Topology, check_id, ipv4, ipv6, mac, namespace};

const LOOPBACK: u32 = 1;
/// Maximum time until both ends of a veth are up, for which the kernel needs up to a second, and an IPv6 address is
/// routed.
const PATIENCE: Duration = Duration::from_secs(10);
const IPV4_PREFIX: u8 = 24;
const IPV6_PREFIX: u8 = 64;

/// The device of a node with `ipip`.
pub const IPIP_DEVICE: &str = "tunnel0";
/// Offloads that study C turns off.
const OFFLOADS: &[&str] =
    &["tx-checksum-ip-generic", "tx-generic-segmentation", "tx-tcp-segmentation", "tx-scatter-gather"];

/// Builds a lab that stays. Returns false if a lab of the same name and topology exists, which is kept.
pub fn raise(id: &str, topology: &Topology) -> Result<bool> {
    check_id(id)?;
    if let Some(there) = list()?.into_iter().find(|lab| lab.id == id) {
        let existing = netns::list();
        let is_whole = there.namespaces.iter().all(|name| existing.contains(name));
        if there.topology.as_ref() == Some(topology) && there.owner.is_none() && is_whole {
            return Ok(false);
        }
        return Err(Error::failed(format!("cannot make the lab {id}"), "another lab has that name")
            .fix(format!("trawl lab down {id}")));
    }
    let mut guard = build(id, topology)?;
    guard.keep(Some(topology.clone()))?;
    Ok(true)
}

/// Builds a lab, which is removed when its guard is dropped.
pub(crate) fn build(id: &str, topology: &Topology) -> Result<Guard> {
    check_id(id)?;
    let names: Vec<String> = topology.nodes.iter().map(|node| namespace(id, &node.name)).collect();
    let record = Record::new(id, names.clone());
    record.write_new()?;
    let guard = Guard::of(record);
    let made = names.iter().map(|name| netns::create(name)).collect::<Result<Vec<_>>>()?;
    let namespace_of = |node: &str| {
        let at = topology.nodes.iter().position(|one| one.name == node).unwrap_or_default();
        &made[at]
    };
    for (node, inside) in topology.nodes.iter().zip(&made) {
        let mut netlink = Netlink::inside(inside)?;
        netlink.set_up(LOOPBACK)?;
        for address in &node.addresses {
            let prefix = if address.is_ipv4() { 32 } else { 128 };
            netlink.add_address(LOOPBACK, *address, prefix)?;
        }
        sysctls(node, inside)?;
    }
    let has_routers = topology.nodes.iter().any(|node| node.forward);
    for (number, link) in topology.numbered() {
        let ends = [namespace_of(link.end(0).node), namespace_of(link.end(1).node)];
        connect(number, link, ends, has_routers)?;
    }
    for (number, link) in topology.numbered() {
        for side in [0, 1] {
            let inside = namespace_of(link.end(side).node);
            let mut netlink = Netlink::inside(inside)?;
            let index = netlink.link(link.end(side).interface)?.index;
            netlink.wait_until_operational(index, PATIENCE)?;
            for address in [ipv4(number, side).into(), ipv6(number, side).into()] {
                netlink.wait_until_local(address, PATIENCE)?;
            }
        }
    }
    for (node, inside) in topology.nodes.iter().zip(&made) {
        // Forwarding is turned on after the links exist: an interface that is created in a forwarding namespace joins
        // groups of routers, and sends reports of that.
        if node.forward {
            forward(inside)?;
        }
        routes(topology, node, inside)?;
        if let (true, Some((number, _, side))) = (node.ipip, topology.links_of(&node.name).next()) {
            let mut netlink = Netlink::inside(inside)?;
            if netlink.create_ipip(IPIP_DEVICE, ipv4(number, side))? {
                let index = netlink.link(IPIP_DEVICE)?.index;
                netlink.set_up(index)?;
            }
        }
    }
    Ok(guard)
}

/// A guard that removes a lab unless it is kept, also if building the lab failed half-way.
#[derive(Debug)]
pub(crate) struct Guard {
    record: Option<Record>,
}

impl Guard {
    fn of(record: Record) -> Self {
        Self { record: Some(record) }
    }

    pub fn id(&self) -> &str {
        self.record.as_ref().map_or("", |record| &record.id)
    }

    /// Keeps the lab after this process; with its topology, it can be compared and drawn later.
    pub fn keep(&mut self, topology: Option<Topology>) -> Result<()> {
        if let Some(record) = &mut self.record {
            record.topology = topology;
            record.disown()?;
        }
        self.record = None;
        Ok(())
    }

    /// Removes the lab now, so that a failure can be reported.
    pub fn remove(&mut self) -> Result<()> {
        self.record.take().map_or(Ok(()), |record| record.remove())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A failure leaves the lab's record, and `trawl lab clean` tries again.
        let _ = self.remove();
    }
}

/// Finds the lab of this name.
pub fn find(id: &str) -> Result<Record> {
    let labs = list()?;
    if let Some(lab) = labs.iter().find(|lab| lab.id == id) {
        return Ok(lab.clone());
    }
    let names: Vec<&str> = labs.iter().map(|lab| lab.id.as_str()).collect();
    let error = Error::failed(format!("cannot find the lab {id}"), "no lab has that name");
    Err(if names.is_empty() {
        error.fix("make one with trawl lab up")
    } else {
        error.fix(format!("existing labs: {}", names.join(", ")))
    })
}

/// Returns a command that runs in a node of a lab.
pub fn inside(id: &str, node: &str, program: &[String]) -> Result<Command> {
    let lab = find(id)?;
    let name = namespace(id, node);
    if !lab.namespaces.contains(&name) {
        let prefix = namespace(id, "");
        let nodes: Vec<&str> = lab.namespaces.iter().filter_map(|one| one.strip_prefix(&prefix)).collect();
        return Err(Error::usage(
            format!("cannot find the node {node}"),
            format!("the lab {id} has the nodes {}", nodes.join(", ")),
        ));
    }
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &name]).args(program);
    Ok(command)
}

fn connect(number: usize, link: &Link, ends: [&Namespace; 2], has_routers: bool) -> Result<()> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let queues = if link.queues == 0 { cpus } else { link.queues };
    let end = |side: usize| VethEnd {
        name: link.end(side).interface,
        index: 0,
        namespace: Some(ends[side]),
        mac: Some(mac(number, side)),
        mtu: Some(link.mtu),
        queues,
        no_link_local: link.neighbours,
    };
    create_veth(&end(0), &end(1))?;
    // Features are set before the ends are up: a veth checks its peer's GRO when it goes up.
    for (side, inside) in ends.into_iter().enumerate() {
        let ethtool = Ethtool::open(Some(inside), link.end(side).interface)?;
        ethtool.set_feature("rx-gro", link.gro)?;
        if !link.offloads {
            for feature in OFFLOADS {
                ethtool.set_feature(feature, false)?;
            }
        }
    }
    for (side, inside) in ends.into_iter().enumerate() {
        let mut netlink = Netlink::inside(inside)?;
        let index = netlink.link(link.end(side).interface)?.index;
        if link.neighbours {
            // An interface without ARP joins no solicited-node groups, and so sends no reports; in a forwarding
            // namespace it would still join groups of routers.
            netlink.set_arp(index, false)?;
            if has_routers {
                netlink.set_multicast(index, false)?;
            }
        }
        netlink.set_up(index)?;
        let addresses = |side| -> [IpAddr; 2] { [ipv4(number, side).into(), ipv6(number, side).into()] };
        let prefixes = [IPV4_PREFIX, IPV6_PREFIX];
        for (at, (address, prefix)) in addresses(side).into_iter().zip(prefixes).enumerate() {
            netlink.add_address(index, address, prefix)?;
            if link.neighbours {
                netlink.add_neighbour(index, addresses(1 - side)[at], mac(number, 1 - side))?;
            }
        }
        receive(link, side, inside)?;
        shape(link, side, inside)?;
    }
    Ok(())
}

/// Sets the CPUs that receive packets. The settings are in /sys, of which each namespace has its own.
fn receive(link: &Link, side: usize, inside: &Namespace) -> Result<()> {
    let interface = link.end(side).interface;
    let mut settings = String::new();
    if link.threaded {
        settings.push_str(&format!("echo 1 > /sys/class/net/{interface}/threaded;"));
    }
    if let Some(mask) = &link.rps {
        if mask.is_empty() || !mask.chars().all(|c| c.is_ascii_hexdigit() || c == ',') {
            return Err(Error::usage(format!("rps = {mask:?}"), "it must be a hexadecimal mask, such as 3"));
        }
        settings
            .push_str(&format!("for q in /sys/class/net/{interface}/queues/rx-*; do echo {mask} > $q/rps_cpus; done;"));
    }
    if settings.is_empty() {
        return Ok(());
    }
    let script = format!("set -e; {settings}");
    run(Command::new("ip").args(["netns", "exec", inside.label(), "sh", "-c", &script]))
}

fn shape(link: &Link, side: usize, inside: &Namespace) -> Result<()> {
    let Some(rate) = &link.rate else {
        return Ok(());
    };
    let interface = link.end(side).interface;
    let tc = |words: &[&str]| run(Command::new("tc").args(["-n", inside.label()]).args(words));
    match link.shaper.unwrap_or_default() {
        Shaper::Tbf => {
            tc(&["qdisc", "replace", "dev", interface, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"])
        }
        Shaper::Htb => {
            tc(&["qdisc", "replace", "dev", interface, "root", "handle", "1:", "htb", "default", "1"])?;
            tc(&["class", "replace", "dev", interface, "parent", "1:", "classid", "1:1", "htb", "rate", rate])
        }
    }
}

fn run(command: &mut Command) -> Result<()> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let what = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let output = process::with_signals(command).output().map_err(|e| Error::os(format!("cannot run {what}"), e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::failed(what, said.trim().to_owned()))
}

fn forward(inside: &Namespace) -> Result<()> {
    let families = ["ipv4", "ipv6"];
    let settings = families.map(|family| (format!("net/{family}/conf/all/forwarding"), "1"));
    set(&settings, inside)
}

fn sysctls(node: &Node, inside: &Namespace) -> Result<()> {
    let settings = node.sysctl.iter();
    let settings: Vec<(String, &str)> = settings.map(|(key, value)| (key.replace('.', "/"), value.as_str())).collect();
    set(&settings, inside)
}

fn set(settings: &[(String, &str)], inside: &Namespace) -> Result<()> {
    if settings.is_empty() {
        return Ok(());
    }
    run_in(inside, || {
        settings.iter().try_for_each(|(key, value)| {
            let path = format!("/proc/sys/{key}");
            fs::write(&path, value).map_err(|e| Error::os(format!("cannot set {path} to {value}"), e))
        })
    })?
}

fn routes(topology: &Topology, node: &Node, inside: &Namespace) -> Result<()> {
    let mut netlink = Netlink::inside(inside)?;
    for hop in topology.hops(&node.name) {
        let interface = netlink.link(hop.interface)?.index;
        let networks: [(IpAddr, u8); 2] =
            [(network(ipv4(hop.network, 0).into()), IPV4_PREFIX), (network(ipv6(hop.network, 0).into()), IPV6_PREFIX)];
        for ((destination, prefix), gateway) in networks.into_iter().zip(hop.gateways) {
            netlink.add_route(Route { destination, prefix, gateway: Some(gateway), interface })?;
        }
    }
    let neighbour = node.gateway.as_deref();
    let path = neighbour.and_then(|neighbour| topology.path_to_neighbour(&node.name, neighbour));
    if let Some((interface, gateways)) = path {
        let interface = netlink.link(interface)?.index;
        for gateway in gateways {
            let destination = match gateway {
                IpAddr::V4(_) => IpAddr::from([0; 4]),
                IpAddr::V6(_) => IpAddr::from([0u16; 8]),
            };
            netlink.add_route(Route { destination, prefix: 0, gateway: Some(gateway), interface })?;
        }
    }
    Ok(())
}

/// Returns the network of a lab's address: all but the last byte, which is the host's number.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            std::net::Ipv4Addr::new(a, b, c, 0).into()
        }
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}
