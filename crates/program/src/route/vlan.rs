//! The VLAN interfaces on top of the router's ports, and what the program is told of them.

use trawl_kernel::layout::Shared;
use trawl_kernel::layout::bundled::{RouteArrival, RouteArrivalKey, RouteTags};
use trawl_kernel::netlink::{Link, VlanTag};

/// An Ethernet address in two numbers, as the program compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac {
    pub first: u32,
    pub last: u32,
}

impl Mac {
    pub fn of(link: &Link) -> Self {
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
    /// Those that are up, belong to no bridge or the like, and have one of these ports below them.
    pub fn on(ports: &[u32], links: &[Link]) -> Self {
        let by_index = |index: u32| links.iter().find(|link| link.index == index);
        let below = |link: &Link| match link.peer_namespace_id {
            None => link.peer_index,
            Some(_) => None,
        };
        let is_routed = |link: &&Link| {
            let master = link.master.and_then(by_index);
            link.is_up() && master.is_none_or(|one| one.kind.as_deref() == Some("vrf"))
        };
        let find = |link: &Link| {
            let tag = link.vlan?;
            let under = below(link)?;
            let (port, outer, inner) = match ports.contains(&under) {
                true => (under, tag, None),
                false => {
                    let outer = by_index(under)?;
                    let port = below(outer).filter(|port| ports.contains(port))?;
                    (port, outer.vlan?, Some(tag))
                }
            };
            Some(Vlan {
                name: link.name.clone(),
                index: link.index,
                mac: Mac::of(link),
                port,
                outer,
                inner,
            })
        };
        Self(links.iter().filter(is_routed).filter_map(find).collect())
    }

    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|vlan| vlan.name.clone()).collect()
    }

    /// Each with the port that its frames leave by.
    pub fn ports(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().map(|vlan| (vlan.index, vlan.port))
    }

    pub fn arrivals(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let entry = |vlan: &Vlan| {
            let key = RouteArrivalKey {
                port: vlan.port,
                outer: number(vlan.outer),
                inner: vlan.inner.map_or(0, number),
            };
            let arrival = RouteArrival {
                ifindex: vlan.index,
                mac_first: vlan.mac.first,
                mac_last: vlan.mac.last,
            };
            (key.to_bytes(), arrival.to_bytes())
        };
        self.0.iter().map(entry).collect()
    }

    pub fn departures(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let entry = |vlan: &Vlan| {
            let tags = RouteTags {
                outer: number(vlan.outer),
                inner: vlan.inner.map_or(0, number),
            };
            (vlan.index.to_ne_bytes().to_vec(), tags.to_bytes())
        };
        self.0.iter().map(entry).collect()
    }
}

/// As bundled.h has it.
fn number(tag: VlanTag) -> u32 {
    u32::from(tag.protocol) << 16 | u32::from(tag.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: u32 = 1;

    fn link(index: u32, name: &str) -> Link {
        Link {
            index,
            name: name.to_owned(),
            flags: UP,
            mac: vec![2, 0, 0, 0, 0, index as u8],
            ..Link::default()
        }
    }

    fn vlan(index: u32, name: &str, below: u32, protocol: u16, id: u16) -> Link {
        Link {
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
            Link {
                flags: 0,
                ..vlan(7, "down", 1, 0x8100, 12)
            },
            Link {
                master: Some(9),
                ..vlan(8, "bridged", 1, 0x8100, 13)
            },
            Link {
                kind: Some("bridge".to_owned()),
                ..link(9, "bridge")
            },
        ];
        let vlans = Vlans::on(&[1], &links);
        assert_eq!(vlans.names(), ["single", "service", "double"]);
        assert_eq!(vlans.ports().collect::<Vec<_>>(), [(2, 1), (3, 1), (4, 1)]);
        let words = |numbers: &[u32]| -> Vec<u8> {
            numbers
                .iter()
                .flat_map(|number| number.to_ne_bytes())
                .collect()
        };
        let (key, arrival) = &vlans.arrivals()[2];
        assert_eq!(*key, words(&[1, 0x88a8_0008, 0x8100_0009]));
        assert_eq!(arrival[..4], 4u32.to_ne_bytes());
        let (key, tags) = &vlans.departures()[0];
        assert_eq!(*key, words(&[2]));
        assert_eq!(*tags, words(&[0x8100_0007, 0]));
    }

    #[test]
    fn an_address_is_in_the_order_of_the_frame() {
        let mac = Mac::of(&Link {
            mac: vec![1, 2, 3, 4, 5, 6],
            ..Link::default()
        });
        assert_eq!(mac.first.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!((mac.last as u16).to_ne_bytes(), [5, 6]);
    }
}
