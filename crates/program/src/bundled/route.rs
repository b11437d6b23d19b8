//! The router: the ports it forwards between, and the VLANs on them.
//!
//! Each port has a copy of the program, with its own counters; all ports of a namespace share the maps of permitted
//! destinations. The maps are filled when ports are added or the router is refreshed; frames for any other destination
//! go to the stack.

use trawl_attach::AttachRequest;
use trawl_attach::site::Site;
use trawl_bpf::layout::Shared;
use trawl_bpf::layout::bundled::{
    ROUTE_BLACKHOLE, ROUTE_FORWARDED_IPV4, ROUTE_FORWARDED_IPV6, ROUTE_FORWARDING_OFF, ROUTE_IN_PIECES, ROUTE_LOCAL,
    ROUTE_MALFORMED, ROUTE_MARTIAN, ROUTE_MAX_PORTS, ROUTE_MULTICAST, ROUTE_NO_NEIGHBOUR, ROUTE_NO_ROOM, ROUTE_NOT_IP,
    ROUTE_NOT_OURS, ROUTE_OPTIONS, ROUTE_OTHER_PORT, ROUTE_REFRESH, ROUTE_TOO_BIG, ROUTE_TTL, ROUTE_TUNNEL,
    ROUTE_UNKNOWN_VLAN, ROUTE_UNREACHABLE, RouteArrival, RouteArrivalKey, RouteConfig, RouteTags,
};
use trawl_bpf::object;
use trawl_bpf::table::{self, Table};
use trawl_sys::netlink::{LinkRecord, Netlink, VlanTag, XdpMode};
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_sys::{Error, Result};

use crate::bundled::redirect::is_in_stack;
use crate::bundled::stats::{Layout, ProgramAccount};
use crate::bundled::{open_table, put_interfaces};
use crate::counters;
use crate::hooks::HOOK;
use crate::install::{self, Put};
use crate::load::{Program, Source};
use crate::pins::{Installed, ROUTE};
use crate::readiness::{self, Readiness};
use crate::sending;
use trawl_sys::words::word;

const FUNCTION: &str = "trawl_route";
const PORTS: &str = "ports";
const ARRIVALS: &str = "arrivals";
const DEPARTURES: &str = "departures";
const OWN: &str = "own";
const SHARED: [&str; 4] = [PORTS, ARRIVALS, DEPARTURES, "refresh"];
const ETHERNET: u16 = 1;

const LAYOUT: Layout = Layout {
    outcomes: counters! {
        ROUTE_FORWARDED_IPV4 "forwarded_ipv4" "forwarded, IPv4";
        ROUTE_FORWARDED_IPV6 "forwarded_ipv6" "forwarded, IPv6";
        ROUTE_BLACKHOLE "blackhole" "dropped by a blackhole route";
        ROUTE_NOT_IP "to_stack_not_ip" "to the stack: not IP";
        ROUTE_NOT_OURS "to_stack_not_ours" "to the stack: not addressed to the port";
        ROUTE_UNKNOWN_VLAN "to_stack_unknown_vlan" "to the stack: a VLAN without interface";
        ROUTE_MULTICAST "to_stack_multicast" "to the stack: multicast";
        ROUTE_MARTIAN "to_stack_martian" "to the stack: an address that is not forwarded";
        ROUTE_MALFORMED "to_stack_malformed" "to the stack: malformed";
        ROUTE_OPTIONS "to_stack_options" "to the stack: options";
        ROUTE_TTL "to_stack_ttl" "to the stack: time to live is over";
        ROUTE_TOO_BIG "to_stack_too_big" "to the stack: larger than the MTU";
        ROUTE_LOCAL "to_stack_local" "to the stack: for this host, or no route";
        ROUTE_UNREACHABLE "to_stack_unreachable" "to the stack: unreachable or prohibited";
        ROUTE_NO_NEIGHBOUR "to_stack_no_neighbour" "to the stack: neighbour to be found";
        ROUTE_FORWARDING_OFF "to_stack_forwarding_off" "to the stack: forwarding is off";
        ROUTE_TUNNEL "to_stack_tunnel" "to the stack: a tunnel begins";
        ROUTE_OTHER_PORT "to_stack_other_port" "to the stack: leaves by another interface";
        ROUTE_REFRESH "to_stack_refresh" "to the stack: so that it looks after the neighbour";
        ROUTE_NO_ROOM "to_stack_no_room" "to the stack: no room for a tag";
        ROUTE_IN_PIECES "to_stack_in_pieces" "to the stack: in several buffers, which XDP does not send on";
    },
    again: &[],
    of_queue: 0,
};

/// A port of the router: an interface with the program on it.
#[derive(Debug)]
pub struct Port {
    pub site: Site,
    pub installed: Installed,
}

impl Port {
    /// Returns the port on the interface.
    pub fn at(site: Site) -> Result<Self> {
        match installed_on(&site)? {
            Some(installed) => Ok(Self { site, installed }),
            None => {
                Err(Error::failed(format!("{} is not a port of a router", site.label()), "the program is not on it")
                    .fix(format!("trawl route load {}", word(site.label()))))
            }
        }
    }

    pub fn account(&self) -> Result<ProgramAccount> {
        ProgramAccount::with_layout(&self.installed, LAYOUT)
    }
}

/// Result of loading.
#[derive(Debug)]
pub struct Loaded {
    /// All ports after loading.
    pub ports: Vec<Port>,
    /// VLAN interfaces that are routed with them.
    pub vlans: Vec<String>,
    /// Changes made to other interfaces.
    pub notices: Vec<String>,
    /// Settings that keep the router from forwarding as expected.
    pub warnings: Vec<String>,
}

/// Returns the router on an interface.
pub fn installed_on(site: &Site) -> Result<Option<Installed>> {
    Installed::named(site, FUNCTION)
}

/// Returns the ports of the router in a namespace.
pub fn ports(namespace: Option<&Namespace>) -> Result<Vec<Port>> {
    let mut ports = Vec::new();
    for site in Site::all_in(namespace)? {
        if let Some(installed) = installed_on(&site)? {
            ports.push(Port { site, installed });
        }
    }
    Ok(ports)
}

/// Adds ports to the router of their namespace, and brings it up to date with the addresses and VLANs of all its
/// ports.
pub fn load(sites: &[Site], request: &AttachRequest) -> Result<Loaded> {
    let Some(first) = sites.first() else {
        return Err(Error::usage("cannot route", "no interface is named"));
    };
    let namespace = first.namespace();
    // Of two concurrent commands, neither would see the other's ports, and their ports would never share maps.
    let _turn = first.lock_namespace()?;
    let links = Netlink::open(namespace)?.links()?;
    let mut all = ports(namespace)?;
    let is_port = |all: &[Port], site: &Site| all.iter().any(|port| port.site.index() == site.index());
    let new: Vec<&Site> = sites.iter().filter(|site| !is_port(&all, site)).collect();
    for site in &new {
        check_port(site, &links)?;
    }
    if all.len() + new.len() > ROUTE_MAX_PORTS {
        return Err(Error::usage("cannot route", format!("the maximum is {ROUTE_MAX_PORTS} ports")));
    }
    let is_wanted = |site: &Site| sites.iter().any(|one| one.index() == site.index());
    let closed = |port: &Port| port.installed.map(HOOK).is_err();
    let again: Vec<Port> = if request.tappable {
        ports(namespace)?.into_iter().filter(|port| is_wanted(&port.site) && closed(port)).collect()
    } else {
        Vec::new()
    };
    // The kernel drops what a native program sends to a driver that sends no XDP frames: with such a port, all run in
    // skb mode.
    let is_native = |port: &Port| port.installed.mode() == Some(XdpMode::Native);
    let some_native = all.iter().any(is_native);
    let mut in_stack = false;
    for site in &new {
        in_stack |= is_in_stack(site, request)?;
    }
    for port in all.iter().filter(|port| !is_native(port)) {
        in_stack |= !sending::accepts_frames(&port.site)?;
    }
    let request = &AttachRequest {
        mode: match request.mode {
            None if in_stack && !some_native => Some(XdpMode::Skb),
            asked => asked,
        },
        ..*request
    };
    let mut ready = Readiness::default();
    let by_stack = request.mode == Some(XdpMode::Skb);
    if !by_stack || some_native {
        for site in new.iter().copied().chain(again.iter().map(|port| &port.site)) {
            let made_ready = if by_stack {
                ready.for_sending_as_is(site)
            } else {
                ready.for_sending_on(site).and_then(|()| ready.for_sending_with_program(site))
            };
            made_ready.map_err(|error| if some_native { advise_one_mode(error) } else { error })?;
        }
        for port in all.iter().filter(|port| !is_native(port)) {
            ready.for_sending_as_is(&port.site).map_err(advise_one_mode)?;
        }
    }
    for Port { site, installed } in again {
        let source = source(&all)?;
        let fill = |program: &mut Program| program.remember(&ready);
        let Put { installed, .. } = install::put_instead(&site, source, request, installed, fill)?;
        all.retain(|port| port.site.index() != site.index());
        all.push(Port { site, installed });
    }
    let known = all.len();
    for site in new {
        let fill = |program: &mut Program| program.remember(&ready);
        let put = source(&all).and_then(|one| install::put_alone(site, one, request, fill));
        let put = put.and_then(|Put { installed, .. }| {
            let installed = readiness::check_sending(site, installed)?;
            // A kernel that does not report the driver's abilities may have fallen back to skb mode.
            if installed.mode() != Some(XdpMode::Native)
                && request.mode != Some(XdpMode::Skb)
                && let Err(error) = ready.for_sending_as_is(site)
            {
                installed.detach(site)?;
                return Err(advise_one_mode(error));
            }
            Ok(installed)
        });
        match put {
            Ok(installed) => all.push(Port { site: site.clone(), installed }),
            Err(error) => {
                for port in all.drain(known..) {
                    let _ = port.installed.detach(&port.site);
                }
                return Err(error);
            }
        }
    }
    let vlans = refresh(&all, &links)?;
    let notices = ready.notices();
    ready.keep();
    let warnings = all.iter().map(|port| warnings(&port.site)).collect::<Result<Vec<_>>>()?.concat();
    Ok(Loaded { vlans: vlans.names(), ports: all, notices, warnings })
}

/// Advises to use one mode for all ports, since those in native mode cannot send through the stack.
fn advise_one_mode(error: Error) -> Error {
    error.fix("unload the router's ports, and load all of them with --mode skb")
}

/// Removes ports from the router; all others keep running.
pub fn unload(sites: &[Site]) -> Result<()> {
    for site in sites {
        let _turn = site.lock_namespace()?;
        let Port { installed, .. } = Port::at(site.clone())?;
        // The other ports stop sending to it before its settings are restored.
        let table = open(&installed, PORTS)?;
        for key in table.keys().map_err(|e| cannot_fill(PORTS, e))? {
            let leaves_by_it = table
                .lookup(&key)
                .map_err(|e| cannot_fill(PORTS, e))?
                .is_some_and(|port| port.starts_with(&site.index().to_ne_bytes()));
            if leaves_by_it {
                table.delete(&key).map_err(|e| cannot_fill(PORTS, e))?;
            }
        }
        installed.detach(site)?;
    }
    Ok(())
}

/// Refuses interfaces whose packets belong to another one.
fn check_port(site: &Site, links: &[LinkRecord]) -> Result<()> {
    let what = || format!("cannot route on {}", site.label());
    let named = |index: Option<u32>| links.iter().find(|link| Some(link.index) == index);
    let Some(link) = named(Some(site.index())) else {
        return Err(Error::failed(what(), "it is gone"));
    };
    if link.hardware_type != ETHERNET || link.is_loopback() {
        return Err(Error::failed(what(), "it is not an Ethernet interface"));
    }
    if link.vlan.is_some() {
        let below = named(link.peer_index).map_or("the one below", |below| &below.name);
        return Err(Error::failed(what(), format!("it is a VLAN of {below}, where XDP sees its packets"))
            .fix(format!("trawl route load {} routes all VLANs on it too", word(below))));
    }
    match named(link.master) {
        Some(master) if master.kind.as_deref() != Some("vrf") => {
            Err(Error::failed(what(), format!("it is a port of {}, to which its packets belong", master.name)))
        }
        _ => Ok(()),
    }
}

/// Returns the program, with the maps that it shares with the router's other ports.
fn source(others: &[Port]) -> Result<Source> {
    let mut source = Source::embedded(ROUTE, object::XDP_ROUTE)?;
    source.choose(Some(FUNCTION))?;
    let mut shared = Vec::new();
    if let Some(port) = others.first() {
        for name in SHARED {
            shared.push((name, port.installed.map(name)?));
        }
    }
    for (name, map) in &shared {
        source.reuse(name, std::os::fd::AsFd::as_fd(map))?;
    }
    Ok(source)
}

/// Updates the maps to match the interfaces.
fn refresh(ports: &[Port], links: &[LinkRecord]) -> Result<Vlans> {
    let Some(first) = ports.first() else {
        return Ok(Vlans::default());
    };
    let indices: Vec<u32> = ports.iter().map(|port| port.site.index()).collect();
    let vlans = Vlans::on(&indices, links);
    let whole_only = !sending::all_send_several_buffers(ports.iter().map(|port| &port.site))?;
    for port in ports {
        let own = open(&port.installed, OWN)?;
        let link = port.site.link()?;
        let mac = Mac::of(&link);
        let config = RouteConfig {
            mac_first: mac.first,
            mac_last: mac.last,
            vlans: vlans.names().len() as u32,
            whole_only: whole_only.into(),
        };
        own.update(&0u32.to_ne_bytes(), &config.to_bytes(), table::ANY).map_err(|e| cannot_fill(OWN, e))?;
    }
    replace_all(&open(&first.installed, ARRIVALS)?, ARRIVALS, vlans.arrivals())?;
    replace_all(&open(&first.installed, DEPARTURES)?, DEPARTURES, vlans.departures())?;
    let devices = open(&first.installed, PORTS)?;
    let wanted: Vec<(u32, u32)> = indices.iter().map(|index| (*index, *index)).chain(vlans.ports()).collect();
    for key in devices.keys().map_err(|e| cannot_fill(PORTS, e))? {
        if !wanted.iter().any(|(index, _)| key == index.to_ne_bytes()) {
            devices.delete(&key).map_err(|e| cannot_fill(PORTS, e))?;
        }
    }
    put_interfaces(&devices, &first.site, wanted.into_iter())?;
    Ok(vlans)
}

/// Removes the entries that are not wanted, and writes the others. A wanted entry is never missing in between.
fn replace_all(table: &Table, name: &str, wanted: Vec<(Vec<u8>, Vec<u8>)>) -> Result<()> {
    let fail = |e| cannot_fill(name, e);
    for key in table.keys().map_err(fail)? {
        if !wanted.iter().any(|(one, _)| *one == key) {
            table.delete(&key).map_err(fail)?;
        }
    }
    for (key, value) in wanted {
        table.update(&key, &value, table::ANY).map_err(fail)?;
    }
    Ok(())
}

fn open(installed: &Installed, name: &str) -> Result<Table> {
    let map = installed.map(name)?;
    open_table(std::os::fd::AsFd::as_fd(&map), name)
}

fn cannot_fill(name: &str, error: std::io::Error) -> Error {
    Error::os(format!("cannot fill the router's map {name}"), error)
}

/// Returns kernel settings that contradict the router's behaviour.
fn warnings(site: &Site) -> Result<Vec<String>> {
    let name = site.name();
    let read = |family: &str, which: &str, setting: &str| {
        let path = format!("/proc/sys/net/{family}/conf/{which}/{setting}");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.trim().parse::<u32>().ok()
    };
    let read_settings = || {
        let forwards = ["ipv4", "ipv6"].map(|family| read(family, name, "forwarding") != Some(0));
        let reverse = ["all", name].map(|which| read("ipv4", which, "rp_filter").unwrap_or(0));
        (forwards, reverse)
    };
    let (forwards, reverse) = run_maybe_in(site.namespace(), read_settings)?;
    let prefix = site.prefix();
    let mut warnings = Vec::new();
    for (family, forwards) in ["ipv4", "ipv6"].into_iter().zip(forwards) {
        if !forwards {
            warnings.push(format!(
                "{}: forwarding of {} is off, so none of it is forwarded; {prefix}sysctl -w net.{family}.conf.all.forwarding=1",
                site.label(),
                if family == "ipv4" { "IPv4" } else { "IPv6" },
            ));
        }
    }
    if reverse.iter().any(|value| *value != 0) {
        warnings
            .push(format!("{}: rp_filter is set, but XDP forwarding bypasses the reverse-path filter", site.label()));
    }
    Ok(warnings)
}

/// An Ethernet address as two numbers, as the program compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac {
    pub first: u32,
    pub last: u32,
}

impl Mac {
    pub fn of(link: &LinkRecord) -> Self {
        let byte = |at: usize| link.mac.get(at).copied().unwrap_or(0);
        Self {
            first: u32::from_ne_bytes([byte(0), byte(1), byte(2), byte(3)]),
            last: u16::from_ne_bytes([byte(4), byte(5)]).into(),
        }
    }
}

/// A VLAN interface on a port, with one tag or two.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Vlan {
    name: String,
    index: u32,
    mac: Mac,
    port: u32,
    outer: VlanTag,
    inner: Option<VlanTag>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vlans(Vec<Vlan>);

impl Vlans {
    /// Returns the VLAN interfaces on these ports that are up and enslaved to no bridge or other master.
    pub fn on(ports: &[u32], links: &[LinkRecord]) -> Self {
        let by_index = |index: u32| links.iter().find(|link| link.index == index);
        let below = |link: &LinkRecord| match link.peer_namespace_id {
            None => link.peer_index,
            Some(_) => None,
        };
        let is_routed = |link: &&LinkRecord| {
            let master = link.master.and_then(by_index);
            link.is_up() && master.is_none_or(|one| one.kind.as_deref() == Some("vrf"))
        };
        let find = |link: &LinkRecord| {
            let tag = link.vlan?;
            let under = below(link)?;
            let (port, outer, inner) = if ports.contains(&under) {
                (under, tag, None)
            } else {
                let outer = by_index(under)?;
                let port = below(outer).filter(|port| ports.contains(port))?;
                (port, outer.vlan?, Some(tag))
            };
            Some(Vlan { name: link.name.clone(), index: link.index, mac: Mac::of(link), port, outer, inner })
        };
        Self(links.iter().filter(is_routed).filter_map(find).collect())
    }

    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|vlan| vlan.name.clone()).collect()
    }

    /// Returns each VLAN with the port that its frames leave by.
    pub fn ports(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().map(|vlan| (vlan.index, vlan.port))
    }

    pub fn arrivals(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let entry = |vlan: &Vlan| {
            let key =
                RouteArrivalKey { port: vlan.port, outer: number(vlan.outer), inner: vlan.inner.map_or(0, number) };
            let arrival = RouteArrival { ifindex: vlan.index, mac_first: vlan.mac.first, mac_last: vlan.mac.last };
            (key.to_bytes(), arrival.to_bytes())
        };
        self.0.iter().map(entry).collect()
    }

    pub fn departures(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let entry = |vlan: &Vlan| {
            let tags = RouteTags { outer: number(vlan.outer), inner: vlan.inner.map_or(0, number) };
            (vlan.index.to_ne_bytes().to_vec(), tags.to_bytes())
        };
        self.0.iter().map(entry).collect()
    }
}

/// Returns the tag as encoded in bundled.h.
fn number(tag: VlanTag) -> u32 {
    u32::from(tag.protocol) << 16 | u32::from(tag.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: u32 = 1;

    fn link(index: u32, name: &str) -> LinkRecord {
        LinkRecord {
            index,
            name: name.to_owned(),
            flags: UP,
            mac: vec![2, 0, 0, 0, 0, index as u8],
            ..LinkRecord::default()
        }
    }

    fn vlan(index: u32, name: &str, below: u32, protocol: u16, id: u16) -> LinkRecord {
        LinkRecord {
            vlan: Some(VlanTag { protocol, id }),
            peer_index: Some(below),
            kind: Some("vlan".to_owned()),
            ..link(index, name)
        }
    }

    #[test]
    fn one_tag_and_two_are_found_and_no_more() {
        let links = [
            link(1, "port"),
            vlan(2, "single", 1, 0x8100, 7),
            vlan(3, "service", 1, 0x88a8, 8),
            vlan(4, "double", 3, 0x8100, 9),
            vlan(5, "triple", 4, 0x8100, 10),
            vlan(6, "elsewhere", 99, 0x8100, 11),
            LinkRecord { flags: 0, ..vlan(7, "down", 1, 0x8100, 12) },
            LinkRecord { master: Some(9), ..vlan(8, "bridged", 1, 0x8100, 13) },
            LinkRecord { kind: Some("bridge".to_owned()), ..link(9, "bridge") },
        ];
        let vlans = Vlans::on(&[1], &links);
        assert_eq!(vlans.names(), ["single", "service", "double"]);
        assert_eq!(vlans.ports().collect::<Vec<_>>(), [(2, 1), (3, 1), (4, 1)]);
        let words = |numbers: &[u32]| -> Vec<u8> { numbers.iter().flat_map(|number| number.to_ne_bytes()).collect() };
        let (key, arrival) = &vlans.arrivals()[2];
        assert_eq!(*key, words(&[1, 0x88a8_0008, 0x8100_0009]));
        assert_eq!(arrival[..4], 4u32.to_ne_bytes());
        let (key, tags) = &vlans.departures()[0];
        assert_eq!(*key, words(&[2]));
        assert_eq!(*tags, words(&[0x8100_0007, 0]));
    }

    #[test]
    fn address_is_in_the_order_of_the_frame() {
        let mac = Mac::of(&LinkRecord { mac: vec![1, 2, 3, 4, 5, 6], ..LinkRecord::default() });
        assert_eq!(mac.first.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!((mac.last as u16).to_ne_bytes(), [5, 6]);
    }
}
