//! Fills missing addresses of frames from the kernel's routes and neighbours, and protects interfaces in use from
//! floods.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use trawl_packet::net::mac_text;
use trawl_sys::netlink::Netlink;
use trawl_sys::netlink::interface::Interface;
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_sys::process::session::Session;
use trawl_sys::{Error, Result};

use crate::traffic::{Protocol, Spec};

/// Default addresses inside tunnels: reserved for documentation.
const INNER_V4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const INNER_V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];
const INNER_MACS: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
const BROADCAST: [u8; 6] = [0xff; 6];

/// Returns the interface of the route to the destination of these frames.
pub fn interface_for(spec: &Spec, namespace: Option<&Namespace>) -> Result<String> {
    let Some(destination) = spec.destination()? else {
        return Err(Error::usage("cannot send", "neither an interface nor a destination is given")
            .fix("give -i IF or --dst ADDRESS"));
    };
    let mut netlink = Netlink::open(namespace)?;
    let hop = netlink.next_hop(destination, None)?.ok_or_else(|| no_route(destination))?;
    let link = netlink.find_link_by_index(hop.interface)?;
    link.map(|link| link.name).ok_or_else(|| no_route(destination))
}

fn no_route(destination: IpAddr) -> Error {
    Error::failed(format!("cannot send to {destination}"), "there is no route to it")
        .fix("give -i IF, --src and --dst-mac, or add a route")
}

/// Fills in missing addresses. `v6` is the family if no address determines it.
pub fn complete(spec: &mut Spec, namespace: Option<&Namespace>, interface: &Interface, v6: bool) -> Result<()> {
    if spec.protocol == Protocol::Raw {
        return Ok(());
    }
    let tunnel = spec.get("vxlan").is_some();
    let (src_mac, dst_mac, src, dst) = if tunnel {
        ("outer-src-mac", "outer-dst-mac", "outer-src", "outer-dst")
    } else {
        ("src-mac", "dst-mac", "src", "dst")
    };
    if tunnel {
        fill_inner(spec, v6)?;
    }
    let mut netlink = Netlink::open(namespace)?;
    let own = interface.mac.or(interface.loopback.then_some([0; 6]));
    let Some(own) = own else {
        return Err(Error::failed(
            format!("cannot send out of {}", interface.name),
            "it is not an Ethernet interface: it has no MAC address",
        ));
    };
    spec.set_default(src_mac, mac_text(own));
    if !(tunnel || spec.protocol.is_ip() || spec.protocol == Protocol::Arp) {
        if spec.get(dst_mac).is_none() {
            let one = only_neighbour(&mut netlink, interface, None)?;
            spec.set_default(dst_mac, mac_text(one.map_or(BROADCAST, |(_, mac)| mac)));
        }
        return Ok(());
    }
    let wants_v6 = v6 && spec.protocol != Protocol::Arp;
    let destination = match spec.address(dst)? {
        Some(address) => address,
        None => {
            let found = only_neighbour(&mut netlink, interface, Some(wants_v6))?;
            let (address, mac) = found.ok_or_else(|| {
                Error::usage(
                    "cannot send",
                    "no destination is given, and the interface has no neighbour or more than one",
                )
                .fix(format!("give --{dst} ADDRESS"))
            })?;
            spec.set_default(dst, address.to_string());
            if spec.protocol != Protocol::Arp || tunnel {
                spec.set_default(dst_mac, mac_text(mac));
            }
            address
        }
    };
    if spec.get(src).is_some() && (spec.get(dst_mac).is_some() || spec.protocol == Protocol::Arp) {
        if spec.protocol == Protocol::Arp {
            spec.set_default(dst_mac, mac_text(BROADCAST));
        }
        return Ok(());
    }
    let hop = netlink.next_hop(destination, Some(interface.index))?;
    if spec.get(src).is_none() {
        let source = match hop.and_then(|hop| hop.source) {
            Some(source) => source,
            None => own_address(&mut netlink, interface, destination)?,
        };
        spec.set_default(src, source.to_string());
    }
    if spec.protocol == Protocol::Arp && !tunnel {
        spec.set_default(dst_mac, mac_text(BROADCAST));
    }
    if spec.get(dst_mac).is_none() {
        let mac = match group_mac(destination) {
            Some(mac) => mac,
            None if interface.loopback => [0; 6],
            None => {
                let hop = hop.ok_or_else(|| no_route(destination))?;
                netlink.mac_of(interface.index, hop.gateway.unwrap_or(destination))?
            }
        };
        spec.set_default(dst_mac, mac_text(mac));
    }
    Ok(())
}

/// Fills in the addresses inside a tunnel, which this host has no route to.
fn fill_inner(spec: &mut Spec, v6: bool) -> Result<()> {
    let given = spec.address("dst")?.or(spec.address("src")?);
    let is_v6 = given.map_or(v6, |address| address.is_ipv6());
    let [src, dst] = if is_v6 && spec.protocol.is_ip() { INNER_V6 } else { INNER_V4 };
    if spec.protocol.is_ip() || spec.protocol == Protocol::Arp {
        spec.set_default("src", src);
        spec.set_default("dst", dst);
    }
    spec.set_default("src-mac", INNER_MACS[0]);
    spec.set_default("dst-mac", INNER_MACS[1]);
    Ok(())
}

/// Returns the only neighbour of that family.
fn only_neighbour(netlink: &mut Netlink, interface: &Interface, v6: Option<bool>) -> Result<Option<(IpAddr, [u8; 6])>> {
    let mut found = netlink.neighbours(interface.index)?;
    found.retain(|one| v6.is_none_or(|v6| one.address.is_ipv6() == v6));
    // Link-local neighbours are ignored if others exist.
    let link_local = |address: IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    if found.iter().any(|one| !link_local(one.address)) {
        found.retain(|one| !link_local(one.address));
    }
    let same_mac = found.windows(2).all(|pair| pair[0].mac == pair[1].mac);
    match &found[..] {
        [one] => Ok(Some((one.address, one.mac))),
        [first, ..] if v6.is_none() && same_mac => Ok(Some((first.address, first.mac))),
        _ => Ok(None),
    }
}

fn own_address(netlink: &mut Netlink, interface: &Interface, to: IpAddr) -> Result<IpAddr> {
    let addresses = netlink.addresses(interface.index)?;
    addresses.into_iter().find(|one| one.is_ipv6() == to.is_ipv6()).ok_or_else(|| {
        Error::failed(
            format!("cannot send from {} to {to}", interface.name),
            "the interface has no address of that family",
        )
        .fix("give --src ADDRESS")
    })
}

/// Returns the MAC address of a group, which follows from its IP address.
fn group_mac(address: IpAddr) -> Option<[u8; 6]> {
    match address {
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some(BROADCAST),
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(v6) if v6.is_multicast() => {
            let [.., a, b, c, d] = v6.octets();
            Some([0x33, 0x33, a, b, c, d])
        }
        _ => None,
    }
}

/// Returns the reason why an interface should not be flooded, if any.
pub fn in_use(namespace: Option<&Namespace>, interface: &Interface) -> Result<Option<String>> {
    let mut netlink = Netlink::open(namespace)?;
    if netlink.default_route_interfaces()?.contains(&interface.index) {
        return Ok(Some("the default route leads through it".to_owned()));
    }
    let own = netlink.addresses(interface.index)?;
    let sessions = run_maybe_in(namespace, sessions)?;
    Ok(sessions
        .into_iter()
        .find(|(local, _)| own.contains(local))
        .map(|(local, remote)| format!("its address {local} is in use by a session with {remote}")))
}

const SSH: u16 = 22;
const ESTABLISHED: &str = "01";

/// Finds remote logins: local and remote addresses of established connections to the port of ssh, and of the connection
/// that runs this command.
fn sessions() -> Vec<(IpAddr, IpAddr)> {
    let mut found = Vec::new();
    for file in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        found.extend(text.lines().skip(1).filter_map(ssh_session));
    }
    if let Some(session) = Session::of_this_command() {
        found.push((session.server.ip(), session.client.ip()));
    }
    found.retain(|(_, remote)| !remote.is_loopback());
    found
}

/// Parses one line of /proc/net/tcp.
fn ssh_session(line: &str) -> Option<(IpAddr, IpAddr)> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    let (address, port) = local.split_once(':')?;
    let is_ssh = state == ESTABLISHED && u16::from_str_radix(port, 16) == Ok(SSH);
    let remote = remote.split_once(':')?.0;
    is_ssh.then(|| Some((proc_address(address)?, proc_address(remote)?)))?
}

/// Parses an address: u32 values in the machine's byte order, in hexadecimal digits.
fn proc_address(text: &str) -> Option<IpAddr> {
    let mut bytes = Vec::new();
    for word in text.as_bytes().chunks(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    if let Ok(v4) = <[u8; 4]>::try_from(&bytes[..]) {
        return Some(v4.into());
    }
    let v6 = Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..]).ok()?);
    Some(v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_read_from_the_kernels_table() {
        let line = "   1: 0100000A:0016 0200000A:C000 01 00000000:00000000 02:000A 00000000 0 0 1";
        let expected = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        assert_eq!(ssh_session(line), Some(expected));
        assert_eq!(ssh_session(&line.replace(":0016", ":0050")), None);
        assert_eq!(ssh_session(&line.replace(" 01 ", " 0A ")), None);
        assert_eq!(ssh_session("nonsense"), None);
        let mapped = "0000000000000000FFFF00000100000A";
        assert_eq!(proc_address(mapped), Some("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn groups_have_their_own_macs() {
        assert_eq!(group_mac("224.129.2.3".parse().unwrap()), Some([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(group_mac("ff02::1".parse().unwrap()), Some([0x33, 0x33, 0, 0, 0, 1]));
        assert_eq!(group_mac("10.0.0.1".parse().unwrap()), None);
    }
}
