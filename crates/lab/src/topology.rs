//! The topology of a lab: nodes and links, from a file or a preset, and the addresses and routes that follow from them.
//! docs/GUIDE.md describes the file format.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use trawl_packet::net::mac_text;

use serde::{Deserialize, Serialize};
use trawl_sys::{Error, Result};

pub const PRESETS: &[&str] = &["pair", "forward", "router", "rfc2544", "tree", "chain", "fleet", "balance"];
/// The kernel's limit for an interface's name.
const NAME_MAX: usize = 15;
const LINKS_MAX: usize = 250;
/// Prefix of the names of everything that trawl creates.
pub(crate) const PREFIX: &str = "trawl-";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    #[serde(default, rename = "node")]
    pub nodes: Vec<Node>,
    #[serde(default, rename = "link")]
    pub links: Vec<Link>,
    /// True for the plain pair, whose link has the number 0; others are numbered from 1.
    #[serde(default, skip_serializing_if = "is_false")]
    pub plain: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub name: String,
    /// True for a node that forwards between its links.
    #[serde(default)]
    pub forward: bool,
    /// Further addresses on its loopback interface: a service's, for example.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// True for a node with an IPIP device, tunnel0, for packets to its first link, if the kernel has such devices.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ipip: bool,
    /// Neighbour that its default routes lead to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Sysctls, for example "net.ipv4.tcp_timestamps" = "0".
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctl: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The two ends, NODE:INTERFACE.
    pub ends: [String; 2],
    #[serde(default = "mtu")]
    pub mtu: u32,
    /// Receive and transmit queues of each end; 0: one for each CPU.
    #[serde(default)]
    pub queues: u32,
    #[serde(default = "yes")]
    pub gro: bool,
    /// True if offloads are off, as in study C.
    #[serde(default = "yes")]
    pub offloads: bool,
    /// True if both ends have a permanent neighbour entry for each other.
    #[serde(default = "yes")]
    pub neighbours: bool,
    /// Rate limit of each end in tc's syntax: "100mbit".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaper: Option<Shaper>,
    /// CPUs that process received packets (RPS), as a hexadecimal mask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rps: Option<String>,
    /// True if kernel threads receive packets (threaded NAPI).
    #[serde(default)]
    pub threaded: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shaper {
    #[default]
    Tbf,
    Htb,
}

fn mtu() -> u32 {
    1500
}

fn yes() -> bool {
    true
}

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End<'a> {
    pub node: &'a str,
    pub interface: &'a str,
}

impl Link {
    pub fn between(first: &str, second: &str) -> Self {
        Self {
            ends: [first.to_owned(), second.to_owned()],
            mtu: mtu(),
            gro: true,
            offloads: true,
            neighbours: true,
            ..Self::default()
        }
    }

    pub fn end(&self, side: usize) -> End<'_> {
        let (node, interface) = self.ends[side].split_once(':').unwrap_or((&self.ends[side], ""));
        End { node, interface }
    }
}

/// Returns the address of a link's end.
pub fn ipv4(link: usize, side: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, link as u8, side as u8 + 1)
}

pub fn ipv6(link: usize, side: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x77, link as u16, 0, 0, 0, 0, side as u16 + 1)
}

pub fn mac(link: usize, side: usize) -> [u8; 6] {
    match link {
        0 => [0x02, b't', b'r', b'a', b'w', side as u8 + 1],
        _ => [0x02, b't', b'r', b'l', link as u8, side as u8 + 1],
    }
}

/// A route of a node: to a link's network via an address, out of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop<'a> {
    pub network: usize,
    pub interface: &'a str,
    pub gateways: [IpAddr; 2],
}

impl Topology {
    pub fn parse(text: &str) -> Result<Self> {
        let topology: Self = toml::from_str(text)
            .map_err(|e| Error::usage("cannot use the lab's file", e.to_string().trim().to_owned()))?;
        topology.check()?;
        Ok(topology)
    }

    pub fn preset(name: &str) -> Result<Self> {
        let edges: Vec<(&str, &str)> = match name {
            "pair" => vec![("a", "b")],
            "forward" | "rfc2544" => vec![("a", "r"), ("r", "b")],
            "router" => vec![("r", "a"), ("r", "b"), ("r", "c"), ("r", "d")],
            "chain" => vec![("a", "r1"), ("r1", "r2"), ("r2", "r3"), ("r3", "b")],
            "tree" => {
                vec![("root", "left"), ("root", "right"), ("left", "a"), ("left", "b"), ("right", "c"), ("right", "d")]
            }
            "fleet" => vec![
                ("hub", "h1"),
                ("hub", "h2"),
                ("hub", "h3"),
                ("hub", "h4"),
                ("hub", "h5"),
                ("hub", "h6"),
                ("hub", "h7"),
                ("hub", "h8"),
            ],
            "balance" => vec![("client", "lb"), ("lb", "s1"), ("lb", "s2"), ("lb", "s3")],
            _ => {
                return Err(Error::usage(
                    format!("cannot use the preset {name}"),
                    format!("the presets are {}", PRESETS.join(", ")),
                ));
            }
        };
        let mut topology = Self::default();
        let mut used: BTreeMap<&str, usize> = BTreeMap::new();
        for (first, second) in edges {
            let mut end = |node| {
                let count = used.entry(node).or_default();
                *count += 1;
                format!("{node}:veth{}", *count - 1)
            };
            let (first, second) = (end(first), end(second));
            let link = Link { offloads: name != "rfc2544", ..Link::between(&first, &second) };
            topology.links.push(link);
        }
        topology.nodes = used
            .into_iter()
            .map(|(node, links)| Node { name: node.to_owned(), forward: links > 1, ..Node::default() })
            .collect();
        if name == "balance" {
            topology.nodes.iter_mut().for_each(serve_by_direct_return);
        }
        Ok(topology)
    }

    /// Returns the node's interface to a neighbour, and the neighbour's addresses.
    pub fn path_to_neighbour(&self, node: &str, neighbour: &str) -> Option<(&str, [IpAddr; 2])> {
        let mut links = self.links_of(node);
        let (number, link, side) = links.find(|(_, link, side)| link.end(1 - side).node == neighbour)?;
        let addresses = [ipv4(number, 1 - side).into(), ipv6(number, 1 - side).into()];
        Some((link.end(side).interface, addresses))
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: String, why: &str| Err(Error::usage(what, why.to_owned()));
        if self.nodes.is_empty() {
            return wrong("cannot use the lab's file".to_owned(), "it has no [[node]]");
        }
        if self.links.len() > LINKS_MAX {
            return wrong("cannot use the lab's file".to_owned(), "it has more than 250 links");
        }
        for (at, node) in self.nodes.iter().enumerate() {
            check_id(&node.name)?;
            if self.nodes[..at].iter().any(|one| one.name == node.name) {
                return wrong(format!("node {}", node.name), "it is defined twice");
            }
            if let Some(gateway) = &node.gateway
                && self.path_to_neighbour(&node.name, gateway).is_none()
            {
                return wrong(format!("node {}", node.name), "its gateway is not one of its neighbours");
            }
            for key in node.sysctl.keys() {
                if !key.starts_with("net.") || key.contains("..") || key.contains('/') {
                    return wrong(format!("sysctl {key}"), "only sysctls of a network namespace can be set: net.…");
                }
            }
        }
        let mut ends: Vec<&str> = Vec::new();
        for link in &self.links {
            for side in [0, 1] {
                let end = link.end(side);
                if !self.nodes.iter().any(|node| node.name == end.node) {
                    return wrong(
                        format!("link end {}", link.ends[side]),
                        "no node has that name; an end is NODE:INTERFACE",
                    );
                }
                if end.interface.is_empty() || end.interface.len() > NAME_MAX || check_id(end.interface).is_err() {
                    return wrong(
                        format!("link end {}", link.ends[side]),
                        "an interface's name is 1 to 15 letters, digits, - or _",
                    );
                }
                if ends.contains(&link.ends[side].as_str()) {
                    return wrong(format!("link end {}", link.ends[side]), "it is defined twice");
                }
                ends.push(&link.ends[side]);
            }
            if !(68..=65_535).contains(&link.mtu) || link.queues > 1024 {
                return wrong(
                    format!("link {} - {}", link.ends[0], link.ends[1]),
                    "its mtu is 68 to 65535, its queues at most 1024",
                );
            }
        }
        Ok(())
    }

    /// Returns the routes of a node to all networks without an end of its own, by the fewest hops.
    pub fn hops(&self, node: &str) -> Vec<Hop<'_>> {
        let mut first: BTreeMap<&str, (&str, [IpAddr; 2])> = BTreeMap::new();
        let mut queue = VecDeque::from([node.to_owned()]);
        let mut seen = vec![node.to_owned()];
        let mut networks: Vec<usize> = self.links_of(node).map(|(number, ..)| number).collect();
        let mut hops = Vec::new();
        while let Some(here) = queue.pop_front() {
            for (number, link, side) in self.links_of(&here) {
                let path = first.get(here.as_str()).copied();
                if let Some((interface, gateways)) = path
                    && !networks.contains(&number)
                {
                    networks.push(number);
                    hops.push(Hop { network: number, interface, gateways });
                }
                let there = link.end(1 - side).node;
                if seen.iter().any(|one| one == there) {
                    continue;
                }
                seen.push(there.to_owned());
                let gateways = [ipv4(number, 1 - side).into(), ipv6(number, 1 - side).into()];
                first.insert(there, path.unwrap_or((link.end(side).interface, gateways)));
                queue.push_back(there.to_owned());
            }
        }
        hops
    }

    /// Returns the links by their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (usize, &Link)> {
        (usize::from(!self.plain)..).zip(&self.links)
    }

    /// Returns a node's links: their numbers, and the node's end.
    pub(crate) fn links_of<'a>(&'a self, node: &str) -> impl Iterator<Item = (usize, &'a Link, usize)> {
        let own = |(number, link): (usize, &'a Link)| {
            let side = [0, 1].into_iter().find(|side| link.end(*side).node == node)?;
            Some((number, link, side))
        };
        self.numbered().filter_map(own).collect::<Vec<_>>().into_iter()
    }

    /// Draws the topology for the terminal: each node with its links below it.
    pub fn draw(&self, id: &str) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            let mut role = String::new();
            if node.forward {
                role.push_str("  (forwards)");
            }
            for address in &node.addresses {
                let _ = write!(role, "  {address}");
            }
            let _ = writeln!(text, "┌ {} = {}{role}", node.name, namespace(id, &node.name));
            let links: Vec<_> = self.links_of(&node.name).collect();
            for (at, (number, link, side)) in links.iter().enumerate() {
                let corner = if at + 1 == links.len() { "└" } else { "├" };
                let (own, other) = (link.end(*side), link.end(1 - side));
                let mac = mac_text(mac(*number, *side));
                let mut notes = vec![format!("mtu {}", link.mtu)];
                notes.extend(link.rate.iter().map(|rate| format!("rate {rate}")));
                notes.extend(link.threaded.then(|| "threaded".to_owned()));
                notes.extend(link.rps.iter().map(|mask| format!("rps {mask}")));
                notes.extend((!link.offloads).then(|| "no offloads".to_owned()));
                let _ = writeln!(
                    text,
                    "{corner}─ {} {} {} {} ───── {} {}:{}   {}",
                    own.interface,
                    mac,
                    ipv4(*number, *side),
                    ipv6(*number, *side),
                    ipv4(*number, 1 - side),
                    other.node,
                    other.interface,
                    notes.join(", ")
                );
            }
        }
        text
    }
}

/// Addresses that the lab of a load balancer serves.
const SERVED: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 80)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x80))];

/// Gives a server the virtual addresses, so that it answers from them directly.
fn serve_by_direct_return(node: &mut Node) {
    match node.name.as_str() {
        "client" => node.gateway = Some("lb".to_owned()),
        "lb" => node.sysctl = no_reverse_path_filter(),
        _ => {
            node.addresses = SERVED.to_vec();
            node.ipip = true;
            node.sysctl = no_reverse_path_filter();
        }
    }
}

/// Turns off reverse path filters: the balancer has no route back to the virtual address, nor has a server one to a
/// tunnel's source.
fn no_reverse_path_filter() -> BTreeMap<String, String> {
    let settings = ["all", "default"].map(|of| format!("net.ipv4.conf.{of}.rp_filter"));
    settings.map(|key| (key, "0".to_owned())).into()
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Checks that an id can be part of the names of namespaces and files.
pub(crate) fn check_id(id: &str) -> Result<()> {
    let fits =
        (1..=32).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    if fits {
        return Ok(());
    }
    Err(Error::usage(format!("lab {id:?}"), "a lab's name is 1 to 32 letters, digits, - or _"))
}

/// Returns the name of a node's namespace.
pub fn namespace(id: &str, node: &str) -> String {
    format!("{PREFIX}{id}-{node}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_complete_and_reach_every_network() {
        for preset in PRESETS {
            let topology = Topology::preset(preset).expect(preset);
            topology.check().expect(preset);
            for node in &topology.nodes {
                let own = topology.links_of(&node.name).count();
                assert_eq!(own + topology.hops(&node.name).len(), topology.links.len(), "{preset} {}", node.name);
            }
        }
        assert!(Topology::preset("ring").is_err());
    }

    #[test]
    fn routes_lead_over_the_next_router() {
        let chain = Topology::preset("chain").expect("there is one");
        let hops = chain.hops("a");
        assert_eq!(hops.len(), 3);
        assert!(hops.iter().all(|hop| hop.interface == "veth0" && hop.gateways[0] == IpAddr::from(ipv4(1, 1))));
    }

    #[test]
    fn inconsistent_files_are_refused() {
        let node = "[[node]]\nname = \"a\"\n[[node]]\nname = \"b\"\n";
        let link = |more: &str| format!("{node}[[link]]\nends = [\"a:x\", \"b:x\"]\n{more}");
        assert!(Topology::parse(&link("")).is_ok());
        assert!(Topology::parse(&link("rate = \"10mbit\"\nshaper = \"htb\"\nrps = \"3\"\nthreaded = true")).is_ok());
        for text in [
            "",
            "[[node]]\nname = \"a/b\"",
            "[[node]]\nname = \"a\"\n[[node]]\nname = \"a\"",
            &link("mtu = 1"),
            &link("speed = 1"),
            &link("shaper = \"red\""),
            &format!("{node}[[link]]\nends = [\"a:x\", \"c:x\"]"),
            &format!("{node}[[link]]\nends = [\"a:x\", \"b\"]"),
            &format!("{node}[[link]]\nends = [\"a:x\", \"a:x\"]"),
            "[[node]]\nname = \"a\"\nsysctl = { \"kernel.panic\" = \"1\" }",
        ] {
            assert!(Topology::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_that_would_escape_the_directory_are_refused() {
        for id in ["", "../x", "a b", "a/b", &"x".repeat(33)] {
            assert!(check_id(id).is_err(), "{id:?}");
        }
        assert!(check_id("my-lab_2").is_ok());
    }
}
