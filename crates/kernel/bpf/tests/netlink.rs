//! Tests netlink calls in separate namespaces.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use trawl_bpf::program::{LoadOptions, SCHED_CLS, returning};
use trawl_sys::netlink::tc::{Direction, FilterHandle};
use trawl_sys::netlink::*;
use trawl_sys::testing::{ScratchNamespace, root_or_skip};

struct Pair {
    a: ScratchNamespace,
    b: ScratchNamespace,
}

fn pair() -> Pair {
    let (a, b) = (ScratchNamespace::create(), ScratchNamespace::create());
    create_veth(
        &VethEnd {
            name: "veth0",
            index: 0,
            namespace: Some(&a.namespace),
            mac: Some([2, 0, 0, 0, 0, 1]),
            mtu: Some(3000),
            queues: 2,
            no_link_local: true,
        },
        &VethEnd {
            name: "veth0",
            index: 0,
            namespace: Some(&b.namespace),
            mac: None,
            mtu: None,
            queues: 3,
            no_link_local: false,
        },
    )
    .expect("a veth pair");
    Pair { a, b }
}

fn wait_for(monitor: &mut LinkMonitor) -> Vec<LinkEvent> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        assert!(Instant::now() < deadline, "no event within 5 s");
        monitor.wait(Duration::from_secs(5)).unwrap();
        let events = monitor.events().unwrap();
        if !events.is_empty() {
            return events.into_iter().map(|(_, event)| event).collect();
        }
    }
}

#[test]
fn pair_is_created_in_two_namespaces() {
    if !root_or_skip() {
        return;
    }
    let Pair { a, b } = pair();
    let mut in_a = Netlink::inside(&a.namespace).unwrap();
    let mut in_b = Netlink::inside(&b.namespace).unwrap();
    let (link_a, link_b) = (in_a.link("veth0").unwrap(), in_b.link("veth0").unwrap());
    assert_eq!(link_a.mac, [2, 0, 0, 0, 0, 1]);
    assert_eq!((link_a.mtu, link_b.mtu), (3000, 1500));
    assert_eq!((link_a.rx_queues, link_a.tx_queues), (2, 2));
    assert_eq!((link_b.rx_queues, link_b.tx_queues), (3, 3));
    assert_eq!(link_a.kind.as_deref(), Some("veth"));
    assert_eq!(link_a.hardware_type, libc::ARPHRD_ETHER);
    assert_eq!(link_a.peer_index, Some(link_b.index));
    assert_eq!(link_a.peer_namespace_id, in_a.namespace_id(&b.namespace).unwrap());
    assert!(link_a.peer_namespace_id.is_some());
    assert!(!link_a.is_up() && link_a.xdp.is_empty());
    let names: Vec<_> = in_a.links().unwrap().into_iter().map(|l| l.name).collect();
    assert_eq!(names, ["lo", "veth0"]);
}

#[test]
fn unknown_interface_error_lists_existing_ones() {
    if !root_or_skip() {
        return;
    }
    let Pair { a, b: _b } = pair();
    let mut netlink = Netlink::inside(&a.namespace).unwrap();
    let error = format!("{:?}", netlink.link("eth7").unwrap_err());
    assert!(error.contains("interface eth7") && error.contains(&a.name), "{error}");
    assert!(error.contains("lo, veth0"), "{error}");
    let too_long = "x".repeat(128);
    for name in ["", "a name", "much-too-long-a-name", "a/b", &too_long] {
        assert!(netlink.link(name).is_err(), "{name:?}");
    }
    assert_eq!(netlink.find_link_by_index(4711).unwrap(), None);
}

#[test]
fn addresses_neighbours_and_routes_are_accepted() {
    if !root_or_skip() {
        return;
    }
    let Pair { a, b } = pair();
    let mut netlink = Netlink::inside(&a.namespace).unwrap();
    let index = netlink.link("veth0").unwrap().index;
    let mut other = Netlink::inside(&b.namespace).unwrap();
    let other_index = other.link("veth0").unwrap().index;
    netlink.set_up(index).unwrap();
    let error = netlink.wait_until_operational(index, Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("is the other end up?"), "{error}");
    other.set_up(other_index).unwrap();
    netlink.wait_until_operational(index, Duration::from_secs(5)).unwrap();
    assert!(netlink.link("veth0").unwrap().operational);
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    for (own, prefix, neighbour) in [("10.7.0.1", 24, "10.7.0.2"), ("fd00:7::1", 64, "fd00:7::2")] {
        netlink.add_address(index, address(own), prefix).unwrap();
        netlink.add_neighbour(index, address(neighbour), [2, 0, 0, 0, 0, 2]).unwrap();
    }
    for own in ["10.7.0.1", "fd00:7::1"] {
        netlink.wait_until_local(address(own), Duration::from_secs(5)).unwrap();
    }
    let error = netlink.wait_until_local(address("fd00:7::9"), Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("fd00:7::9"), "{error}");
    for (destination, prefix, gateway) in [("10.8.0.0", 16, "10.7.0.2"), ("fd00:8::", 48, "fd00:7::2")] {
        let route =
            Route { destination: address(destination), prefix, gateway: Some(address(gateway)), interface: index };
        netlink.add_route(route).unwrap();
    }
    let error = netlink
        .add_route(Route {
            destination: address("10.9.0.0"),
            prefix: 16,
            gateway: Some(address("192.0.2.1")),
            interface: index,
        })
        .unwrap_err();
    let error = format!("{error:?}");
    assert!(error.contains("10.9.0.0/16") && error.contains("gateway"), "{error}");
}

#[test]
fn monitor_reports_down_up_rename_move_and_removal() {
    if !root_or_skip() {
        return;
    }
    let Pair { a, b } = pair();
    let mut netlink = Netlink::inside(&a.namespace).unwrap();
    let index = netlink.link("veth0").unwrap().index;
    let mut monitor = LinkMonitor::new(Some(&a.namespace), index).unwrap();
    assert_eq!(monitor.events().unwrap(), []);
    netlink.set_up(index).unwrap();
    assert_eq!(wait_for(&mut monitor), [LinkEvent::Up]);
    netlink.set_down(index).unwrap();
    assert_eq!(wait_for(&mut monitor), [LinkEvent::Down]);
    netlink.rename(index, "other").unwrap();
    assert_eq!(wait_for(&mut monitor), [LinkEvent::Renamed("other".to_owned())]);
    netlink.move_to(index, &b.namespace).unwrap();
    assert_eq!(wait_for(&mut monitor), [LinkEvent::MovedAway]);

    let mut in_b = Netlink::inside(&b.namespace).unwrap();
    let index = in_b.link("other").unwrap().index;
    let mut monitor = LinkMonitor::new(Some(&b.namespace), index).unwrap();
    in_b.delete_link(index).unwrap();
    assert_eq!(wait_for(&mut monitor), [LinkEvent::Removed]);
    assert!(LinkMonitor::new(Some(&b.namespace), index).is_err());
}

#[test]
fn clsact_is_added_once_and_filters_come_and_go() {
    if !root_or_skip() {
        return;
    }
    let Pair { a, b: _b } = pair();
    let mut netlink = Netlink::inside(&a.namespace).unwrap();
    let index = netlink.link("veth0").unwrap().index;
    assert!(!netlink.has_clsact(index).unwrap());
    assert!(netlink.add_clsact(index).unwrap());
    assert!(!netlink.add_clsact(index).unwrap());
    assert!(netlink.has_clsact(index).unwrap());
    let program = LoadOptions::new("trawl_test", SCHED_CLS).load(&returning(-1)).unwrap();
    for direction in [Direction::Ingress, Direction::Egress] {
        let handle = FilterHandle { interface: index, direction, priority: 49_000, handle: 1 };
        netlink.add_filter(handle, program.as_fd(), "trawl").unwrap();
        let found = netlink.filters(index, direction).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].handle, found[0].name.as_str()), (handle, "trawl"));
        assert!(found[0].direct_action && found[0].program_id.is_some());
        netlink.del_filter(handle).unwrap();
        assert_eq!(netlink.filters(index, direction).unwrap(), []);
    }
    netlink.del_clsact(index).unwrap();
    assert!(!netlink.has_clsact(index).unwrap());
}

#[test]
fn veth_has_native_xdp_only_with_enough_receive_queues() {
    if !root_or_skip() {
        return;
    }
    let Pair { a, b } = pair();
    let abilities = |scratch: &ScratchNamespace| {
        let index = Netlink::inside(&scratch.namespace).unwrap().link("veth0").unwrap().index;
        xdp_abilities(Some(&scratch.namespace), index).unwrap()
    };
    // Two receive queues cannot handle the packets of the peer's three transmit queues.
    let (Some(fewer), Some(more)) = (abilities(&a), abilities(&b)) else {
        eprintln!("SKIPPED: this kernel has no netdev netlink family");
        return;
    };
    assert!(!fewer.native(), "{fewer:?}");
    assert!(more.native() && more.multi_buffer() && !more.offload(), "{more:?}");
}

#[test]
fn other_end_of_a_veth_is_found_in_its_namespace() {
    if !root_or_skip() {
        return;
    }
    let pair = pair();
    let left = Netlink::inside(&pair.a.namespace).unwrap().link("veth0").unwrap();
    let peer = veth_peer(Some(&pair.a.namespace), &left).unwrap().unwrap();
    assert_eq!(Some(peer.link.index), left.peer_index);
    assert_eq!(peer.namespace, Some(pair.b.namespace.clone()));
}

#[test]
fn vlan_reports_its_tag_and_the_interface_below_it() {
    if !root_or_skip() {
        return;
    }
    let pair = pair();
    let added = std::process::Command::new("ip")
        .args(["-n", &pair.a.name, "link", "add", "veth0.7"])
        .args(["link", "veth0", "type", "vlan", "proto", "802.1ad", "id", "7"])
        .status();
    if !added.unwrap().success() {
        eprintln!("SKIPPED: this kernel has no VLAN interfaces");
        return;
    }
    let mut netlink = Netlink::inside(&pair.a.namespace).unwrap();
    let (below, vlan) = (netlink.link("veth0").unwrap(), netlink.link("veth0.7").unwrap());
    let tag = VlanTag { protocol: 0x88a8, id: 7 };
    assert_eq!((below.vlan, vlan.vlan), (None, Some(tag)));
    assert_eq!(vlan.peer_index, Some(below.index));
}
