//! Strategies for rules and packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use trawl_packet::build::{Icmp, Ipv4, Ipv6, Layer, Tcp, Template, Vlan, flags};
use trawl_sys::clock;

use super::{GRE, LOOPBACK, SCTP};
use crate::model::{Macs, Packet, PortPair, Transport};
use crate::rule::{Action, Draft, IcmpType, Match, On, Ports, TcpState};
use crate::set::RuleSet;
use crate::values::{MacPrefix, Prefix};
use trawl_packet::net::protocol::{ICMP, ICMPV6, TCP, UDP};

fn prefix() -> impl Strategy<Value = Prefix> {
    let v4 = (0..4u32, 0..4u32, prop_oneof![Just(0u8), Just(8), Just(14), Just(16), Just(31), Just(32), 1..=32u8])
        .prop_map(|(a, b, length)| Prefix::new(v4(a, b).into(), length));
    let v6 = (0..4u32, 0..4u32, prop_oneof![Just(0u8), Just(32), Just(63), Just(64), Just(65), Just(128), 1..=128u8])
        .prop_map(|(a, b, length)| Prefix::new(v6(a, b).into(), length));
    prop_oneof![v4, v6].prop_map(|prefix| prefix.expect("a length that fits"))
}

/// Few addresses, so that prefixes match packets, with differences in both halves of IPv6 addresses.
pub(super) fn v4(a: u32, b: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 | a << 16 | b)
}

pub(super) fn v6(a: u32, b: u32) -> Ipv6Addr {
    let bits = 0x2001_0db8u128 << 96 | u128::from(a) << 64 | u128::from(b);
    Ipv6Addr::from_bits(bits)
}

/// Few addresses, so that rules match packets.
fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0x5e, 0, 0x53, last]
}

fn mac_prefix() -> impl Strategy<Value = MacPrefix> {
    let length = prop_oneof![Just(48u8), Just(47), Just(46), Just(24), Just(1)];
    (0..4u8, length).prop_map(|(last, length)| {
        MacPrefix::new(crate::values::mac_number(mac(last)), length).expect("a length that fits")
    })
}

pub(super) fn what() -> impl Strategy<Value = Match> {
    let protocol = prop_oneof![Just(TCP), Just(UDP), Just(ICMP), Just(ICMPV6), Just(GRE), Just(SCTP)];
    let ports = (0..6u16, 0..6u16).prop_map(|(a, b)| Ports { first: a.min(b), last: a.max(b) });
    let icmp = prop_oneof![
        Just(IcmpType { v4: Some(8), v6: Some(128) }),
        Just(IcmpType { v4: Some(3), v6: Some(3) }),
        Just(IcmpType { v4: None, v6: Some(2) }),
    ];
    let source_ports = (0..6u16, 0..6u16).prop_map(|(a, b)| Ports { first: a.min(b), last: a.max(b) });
    let tcp = prop_oneof![Just(TcpState::Syn), Just(TcpState::Established)];
    let on = prop_oneof![Just(LOOPBACK), Just(7)].prop_map(|index| On { index, name: format!("if{index}") });
    let maybe = |chance| proptest::bool::weighted(chance);
    (
        (prefix(), maybe(0.5), prefix(), maybe(0.4)),
        (protocol, maybe(0.4), ports, maybe(0.4), icmp, maybe(0.2)),
        (tcp, maybe(0.2), on, maybe(0.2)),
        (source_ports, maybe(0.2)),
        (mac_prefix(), maybe(0.1), mac_prefix(), maybe(0.1)),
    )
        .prop_map(
            |(
                (source, a, destination, b),
                (protocol, c, ports, d, icmp, e),
                (tcp, f, on, g),
                (source_ports, h),
                (source_mac, i, destination_mac, j),
            )| {
                Match {
                    source: a.then_some(source),
                    destination: b.then_some(destination),
                    protocol: c.then_some(protocol),
                    ports: d.then_some(ports),
                    source_ports: h.then_some(source_ports),
                    source_mac: i.then_some(source_mac),
                    destination_mac: j.then_some(destination_mac),
                    icmp: e.then_some(icmp),
                    tcp: f.then_some(tcp),
                    on: g.then_some(on),
                }
            },
        )
        .prop_filter_map("a rule that could match", |what| what.complete().ok())
}

/// Returns a time long past, or hours ahead.
fn expiry() -> impl Strategy<Value = Option<u64>> {
    let hour = 3_600_000_000_000;
    prop_oneof![4 => Just(None), 1 => Just(Some(1)), 1 => Just(Some(clock::monotonic() + hour))]
}

pub(super) fn draft() -> impl Strategy<Value = Draft> {
    let action = prop_oneof![Just(Action::Deny), Just(Action::Allow)];
    // The rate is too high to be reached, but the limit's code path runs.
    let rate = prop_oneof![4 => Just(None), 1 => Just(Some(100_000_000))];
    (action, what(), rate, expiry()).prop_map(|(action, what, rate, expires)| Draft { action, what, rate, expires })
}

/// A packet, its framing, and the length of its first buffer.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) packet: Packet,
    tags: usize,
    options: usize,
}

fn port_pair() -> impl Strategy<Value = PortPair> {
    (0..7u16, 0..7u16).prop_map(|(source, destination)| PortPair { source, destination })
}

pub(super) fn sent() -> impl Strategy<Value = Sent> {
    let state = prop_oneof![Just(None), Just(Some(TcpState::Syn)), Just(Some(TcpState::Established))];
    let transport = prop_oneof![
        4 => (port_pair(), state).prop_map(|(ports, state)| (TCP, Transport::Ports(ports, state))),
        4 => port_pair().prop_map(|ports| (UDP, Transport::Ports(ports, None))),
        1 => port_pair().prop_map(|ports| (SCTP, Transport::Ports(ports, None))),
        1 => Just((GRE, Transport::Other)),
        2 => prop_oneof![Just(8u8), Just(128), Just(2), Just(3)].prop_map(|number| (0, Transport::IcmpType(number))),
        2 => prop_oneof![Just(TCP), Just(UDP), Just(0), Just(GRE)].prop_map(|protocol| (protocol, Transport::LaterFragment)),
    ];
    let numbers = (0..5u32, 0..5u32, 0..5u32, 0..5u32);
    // Half of the packets are as plain as usual ones.
    let tags = prop_oneof![3 => Just(0usize), 1 => 0..=4usize];
    let options = prop_oneof![3 => Just(0usize), 1 => 0..=3usize];
    let macs =
        (0..4u8, 0..4u8).prop_map(|(source, destination)| Macs { source: mac(source), destination: mac(destination) });
    (any::<bool>(), numbers, transport, tags, options, macs).prop_map(
        |(ipv6, (a, b, c, d), (protocol, transport), tags, options, macs)| {
            let (source, destination): (IpAddr, IpAddr) =
                if ipv6 { (v6(a, b).into(), v6(c, d).into()) } else { (v4(a, b).into(), v4(c, d).into()) };
            let icmp = if ipv6 { ICMPV6 } else { ICMP };
            let protocol = if protocol == 0 { icmp } else { protocol };
            let packet = Packet { source, destination, protocol, transport, macs: Some(macs), on: LOOPBACK };
            Sent { packet, tags, options }
        },
    )
}

fn raw(bytes: Vec<u8>, protocol: u8) -> Layer {
    Layer::Raw { bytes, ethertype: None, protocol: Some(protocol) }
}

impl Sent {
    pub(super) fn frame(&self) -> Vec<u8> {
        let macs = self.packet.macs.expect("it has a link header");
        let mut frame = Template::new().ethernet(macs.source, macs.destination);
        for number in 0..self.tags {
            let service = number == 0 && self.tags > 1;
            frame = frame.layer(Layer::Vlan(Vlan { id: 9, service, ..Vlan::default() }));
        }
        let Packet { source, destination, protocol, transport, .. } = self.packet;
        let is_fragment = transport == Transport::LaterFragment;
        frame = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => frame.layer(Layer::Ipv4(Ipv4 {
                fragment_offset: if is_fragment { 1480 } else { 0 },
                protocol: Some(protocol),
                options: vec![1; self.options * 4],
                ..Ipv4::new(source, destination)
            })),
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let ip = Ipv6 {
                    src: source,
                    dst: destination,
                    traffic_class: 0,
                    flow_label: 0,
                    hop_limit: 64,
                    next_header: Some(protocol),
                };
                frame = frame.layer(Layer::Ipv6(ip));
                // Each header of options has eight bytes and names the next header.
                let chain = [0, 60, 43];
                for (number, kind) in chain.iter().take(self.options).enumerate() {
                    let more = number + 1 < self.options;
                    let next = if more {
                        chain[number + 1]
                    } else if is_fragment {
                        44
                    } else {
                        protocol
                    };
                    frame = frame.layer(raw(vec![next, 0, 1, 4, 0, 0, 0, 0], *kind));
                }
                if is_fragment { frame.layer(raw(vec![protocol, 0, 0x05, 0xc8, 0, 0, 0, 9], 44)) } else { frame }
            }
            _ => unreachable!("both of one version"),
        };
        let frame = match transport {
            Transport::Ports(ports, state) if protocol == TCP => frame.tcp(Tcp {
                src: ports.source,
                dst: ports.destination,
                flags: match state {
                    None => flags::FIN,
                    Some(TcpState::Syn) => flags::SYN,
                    Some(TcpState::Established) => flags::ACK | flags::PSH,
                },
                ..Tcp::default()
            }),
            Transport::Ports(ports, _) if protocol == UDP => frame.udp(ports.source, ports.destination),
            Transport::Ports(ports, _) => frame.layer(raw(
                [ports.source.to_be_bytes(), ports.destination.to_be_bytes(), [0; 2], [0; 2]].concat(),
                protocol,
            )),
            Transport::IcmpType(number) => {
                let icmp = Icmp { kind: number, ..Icmp::default() };
                if protocol == ICMP { frame.icmp(icmp) } else { frame.icmpv6(icmp) }
            }
            Transport::Other | Transport::LaterFragment => frame.layer(raw(vec![7; 24], protocol)),
        };
        frame.payload(vec![0; 200]).build()
    }
}

pub(super) fn set(drafts: Vec<Draft>, default: Action) -> RuleSet {
    let mut set = RuleSet::default();
    for draft in drafts {
        set.add(draft);
    }
    set.set_default(On { index: LOOPBACK, name: "lo".to_owned() }, default);
    set.set_default(On { index: 7, name: "if7".to_owned() }, Action::Deny);
    set
}
