//! Compares the program with the model: random tables, changes and packets, and the program's verdict on each.

mod model;

use std::net::IpAddr;
use std::os::fd::AsFd;

use model::{Answer, Fragment, Model, Packet};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use trawl_bpf::layout::Shared;
use trawl_bpf::layout::balance::{BALANCE_LINE, BalanceHeader};
use trawl_bpf::loader::{LoadedFile, ObjectFile};
use trawl_bpf::probe::{Capability, missing_capabilities};
use trawl_bpf::{object, test_run};
use trawl_packet::build::{Ipv4, Layer, Tcp, Template, flags};

use crate::compile::{compile, decompile};
use crate::live::Slot;
use crate::table::{Backend, Forward, Protocol, Sources, Table, Vip};

const DROP: u32 = 1;
const PASS: u32 = 2;
const TX: u32 = 3;
const PORT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The program and its table, on no interface.
struct Bench {
    program: LoadedFile,
    slot: Slot,
}

impl Bench {
    fn new() -> Option<Self> {
        if !missing_capabilities(&Capability::FOR_BPF).is_empty() {
            eprintln!("SKIPPED: it requires root");
            return None;
        }
        let slot = Slot::create().expect("all kernels have arrays of maps");
        let mut file = ObjectFile::open("balance", object::XDP_BALANCE).expect("an object");
        file.want(&["trawl_balance"]);
        file.reuse("balance_table", slot.as_fd()).expect("it has the map");
        let program = file.load().expect("the balancer loads");
        Some(Self { program, slot })
    }

    fn run(&self, frame: &[u8]) -> (u32, Vec<u8>) {
        let program = self.program.program("trawl_balance").expect("it is loaded");
        let outcome = test_run::xdp_outcome(program, frame).expect("the program runs");
        (outcome.value, outcome.bytes)
    }
}

/// Returns a MAC address that identifies a backend.
fn mac_of(number: u32) -> [u8; 6] {
    let [a, b, c, d] = number.to_be_bytes();
    [2, 1, a, b, c, d]
}

/// Assigns every backend the MAC address of its number, so that its packets leave by TX.
fn addressed(mut table: Table, before: &Table) -> Table {
    table.number_after(before).expect("numbers");
    for one in table.vips.iter_mut().flat_map(|vip| &mut vip.backends) {
        one.mac = Some(mac_of(one.number));
    }
    table.check().expect("it is right");
    table
}

fn seed_of(table: &Table) -> u32 {
    let bytes = compile(table).expect("it fits");
    BalanceHeader::from_bytes(&bytes).expect("a header").seed
}

fn address(ipv6: bool, network: u8, host: u8) -> IpAddr {
    if ipv6 {
        IpAddr::from([0x2001, 0xdb8, u16::from(network), 0, 0, 0, 0, u16::from(host)])
    } else {
        IpAddr::from([10, network, 0, host])
    }
}

fn backend(ipv6: bool) -> impl Strategy<Value = Backend> {
    let flag = || proptest::bool::weighted(0.15);
    (1..8u8, 1..4u32, flag(), flag(), proptest::option::weighted(0.5, 1..6u16)).prop_map(
        move |(host, weight, draining, down, server_id)| Backend {
            weight,
            draining,
            down,
            server_id,
            ..Backend::new(address(ipv6, 9, host))
        },
    )
}

fn vip() -> impl Strategy<Value = Vip> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Quic)];
    (any::<bool>(), 1..4u8, protocol, 0..3u16).prop_flat_map(|(ipv6, host, protocol, port)| {
        let service = crate::Service { protocol, address: address(ipv6, 1, host), port };
        prop::collection::vec(backend(ipv6), 0..6).prop_map(move |mut backends| {
            let mut addresses = std::collections::HashSet::new();
            let mut servers = std::collections::HashSet::new();
            backends.retain(|one| addresses.insert(one.address));
            for one in &mut backends {
                let is_new = one.server_id.is_some_and(|id| servers.insert(id));
                one.server_id = one.server_id.filter(|_| is_new && protocol == Protocol::Quic);
            }
            Vip { backends, ..Vip::new(service, Forward::Direct) }
        })
    })
}

fn table() -> impl Strategy<Value = Table> {
    prop::collection::vec(vip(), 1..6).prop_map(|vips| {
        let mut table = Table::default();
        for vip in vips {
            if !table.vips.iter().any(|other| other.service.overlaps(&vip.service)) {
                table.add_vip(vip);
            }
        }
        table
    })
}

fn packet() -> impl Strategy<Value = Packet> {
    let fragment = prop_oneof![
        4 => Just(Fragment::Whole),
        1 => (1..3u32).prop_map(Fragment::First),
        1 => (1..3u32).prop_map(Fragment::Later),
    ];
    let server = proptest::option::weighted(0.4, 1..7u16);
    (any::<bool>(), 1..4u8, 1..5u8, any::<bool>(), (1..5u16, 0..4u16), any::<bool>(), server, fragment).prop_map(
        |(ipv6, client, host, is_tcp, ports, opens, server_id, fragment)| Packet {
            source: address(ipv6, 2, client),
            destination: address(ipv6, 1, host),
            protocol: if is_tcp { 6 } else { 17 },
            ports,
            opens: is_tcp && opens,
            server_id: server_id.filter(|_| !is_tcp),
            fragment,
            is_error: false,
        },
    )
}

/// Returns the packet on the wire, with this many 32-bit words of options if it is IPv4.
fn frame_with(packet: &Packet, options: usize) -> Vec<u8> {
    let mut frame = plain_frame(packet);
    match packet.source {
        IpAddr::V4(_) => {
            // No-operation options.
            let nothing = vec![1; options * 4];
            frame.splice(34..34, nothing);
            frame[14] += options as u8;
            lengthen(&mut frame, 16, options * 4);
        }
        IpAddr::V6(_) => {
            let (offset, id) = match packet.fragment {
                Fragment::Whole => return frame,
                Fragment::First(id) => (1u16, id),
                Fragment::Later(id) => (0x10, id),
            };
            let header = [&[frame[20], 0][..], &offset.to_be_bytes(), &id.to_be_bytes()];
            frame.splice(54..54, header.concat());
            frame[20] = 44;
            lengthen(&mut frame, 18, 8);
        }
    }
    frame
}

/// Adds to the 16-bit length at an offset.
fn lengthen(frame: &mut [u8], at: usize, more: usize) {
    let length = u16::from_be_bytes([frame[at], frame[at + 1]]) + more as u16;
    frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
}

fn frame(packet: &Packet) -> Vec<u8> {
    frame_with(packet, 0)
}

/// Returns the frame without its IPv6 fragment header.
fn plain_frame(packet: &Packet) -> Vec<u8> {
    let template = Template::new().ethernet(CLIENT_MAC, PORT_MAC);
    let template = match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut ip = Ipv4::new(source, destination);
            match packet.fragment {
                Fragment::Whole => {}
                Fragment::First(id) | Fragment::Later(id) => ip.id = id as u16,
            }
            template.layer(Layer::Ipv4(ip))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => template.ipv6(source, destination),
        _ => unreachable!("both are of one version"),
    };
    // A short header of QUIC: configuration 0, or 7, which names no server.
    let payload = match packet.server_id {
        Some(id) => [&[0x40, 0x00][..], &id.to_be_bytes(), &[9; 12]].concat(),
        None => [&[0x40, 0xe0][..], &[0; 14]].concat(),
    };
    let (src, dst) = packet.ports;
    let mut frame = match packet.protocol {
        6 => {
            let flags = if packet.opens { flags::SYN } else { flags::ACK };
            let tcp = Tcp { src, dst, flags, ..Tcp::default() };
            template.tcp(tcp).payload(payload).build()
        }
        _ => template.udp(src, dst).payload(payload).build(),
    };
    match packet.fragment {
        _ if packet.source.is_ipv6() => {}
        Fragment::Whole => {}
        Fragment::First(_) => frame[20..22].copy_from_slice(&0x2000u16.to_be_bytes()),
        Fragment::Later(_) => frame[20..22].copy_from_slice(&0x0010u16.to_be_bytes()),
    }
    frame
}

/// Returns the packet inside a router's ICMP error about a backend's answer.
fn error_about(packet: &Packet, options: usize) -> Vec<u8> {
    let answer = Packet {
        source: packet.destination,
        destination: packet.source,
        ports: (packet.ports.1, packet.ports.0),
        opens: false,
        fragment: Fragment::Whole,
        ..packet.clone()
    };
    let quoted = frame_with(&answer, options)[14..].to_vec();
    let icmp = trawl_packet::build::Icmp::echo_request(0, 0);
    let template = Template::new().ethernet(CLIENT_MAC, PORT_MAC);
    // Unreachable, for one reason or the other.
    let (template, at, kind) = match packet.destination {
        IpAddr::V4(vip) => (template.ipv4([10, 3, 0, 1], vip), 34, 3),
        IpAddr::V6(vip) => {
            let router = std::net::Ipv6Addr::new(0x2001, 0xdb8, 3, 0, 0, 0, 0, 1);
            (template.ipv6(router, vip), 54, 1)
        }
    };
    let mut frame = template.icmp(icmp).payload(quoted).build();
    if at == 54 {
        frame[20] = 58;
    }
    frame[at] = kind;
    frame[at + 1] = 1;
    frame
}

fn compare(bench: &Bench, model: &mut Model, table: &Table, packet: &Packet, frame: &[u8]) {
    let seed = seed_of(table);
    let expected = model.judge(table, seed, packet);
    let (value, bytes) = bench.run(frame);
    match expected {
        Answer::ToStack => {
            assert_eq!(value, PASS, "{packet:?}");
            assert_eq!(bytes, frame, "{packet:?}");
        }
        Answer::Drop => assert_eq!(value, DROP, "{packet:?}"),
        Answer::Forward { backend, .. } => {
            assert_eq!(value, TX, "{packet:?}");
            assert_eq!(bytes[..6], mac_of(backend), "{packet:?}");
            assert_eq!(bytes[6..12], PORT_MAC, "{packet:?}");
            assert_eq!(bytes[12..], frame[12..], "{packet:?}");
        }
    }
}

#[test]
fn program_matches_the_model() {
    let Some(bench) = Bench::new() else { return };
    let mut runner = TestRunner::new(Config { cases: 150, ..Config::default() });
    let last = std::cell::RefCell::new(Table::default());
    let strategy = (prop::collection::vec(table(), 1..4), prop::collection::vec((packet(), 0..=10usize), 1..40));
    runner
        .run(&strategy, |(tables, packets)| {
            // Flow entries of earlier cases belong to generations that no longer exist.
            let mut model = Model::default();
            for (at, table) in tables.into_iter().enumerate() {
                let mut base = last.borrow().clone();
                if at == 0 {
                    base.vips.clear();
                }
                let table = addressed(table, &base);
                bench.slot.publish(&table).expect("it is put in force");
                *last.borrow_mut() = table.clone();
                for (packet, options) in &packets {
                    let on_the_wire = frame_with(packet, *options);
                    compare(&bench, &mut model, &table, packet, &on_the_wire);
                    let about = Packet {
                        opens: false,
                        server_id: None,
                        fragment: Fragment::Whole,
                        is_error: true,
                        ..packet.clone()
                    };
                    let error = error_about(&about, *options);
                    compare(&bench, &mut model, &table, &about, &error);
                }
            }
            Ok(())
        })
        .expect("they agree");
}

#[test]
fn tables_round_trip() {
    let mut runner = TestRunner::new(Config { cases: 100, ..Config::default() });
    runner
        .run(&table(), |table| {
            let mut table = table;
            table.number_after(&Table::default()).expect("numbers");
            let bytes = compile(&table).expect("it fits");
            let line = |number: usize| {
                let at = number * BALANCE_LINE;
                bytes.get(at..at + BALANCE_LINE).map(<[u8]>::to_vec)
            };
            prop_assert_eq!(decompile(line), Some(table));
            Ok(())
        })
        .expect("all are");
}

#[test]
fn change_moves_no_established_flow() {
    let Some(bench) = Bench::new() else { return };
    let service = "tcp:10.1.0.1:80".parse().expect("a service");
    let mut table = Table::default();
    table.add_vip(Vip::new(service, Forward::Direct));
    for host in 1..=5 {
        table.add_backend(&service, Backend::new(address(false, 9, host))).expect("it is there");
    }
    let first = addressed(table, &Table::default());
    bench.slot.publish(&first).expect("it is put in force");
    let frame_of = |port: u16, opens: bool| {
        frame(&Packet {
            source: address(false, 2, 1),
            destination: address(false, 1, 1),
            protocol: 6,
            ports: (port, 80),
            opens,
            server_id: None,
            fragment: Fragment::Whole,
            is_error: false,
        })
    };
    let to = |port: u16, opens: bool| bench.run(&frame_of(port, opens)).1[..6].to_vec();
    let before: Vec<_> = (1000..2000).map(|port| to(port, true)).collect();
    let mut second = first.clone();
    for host in 11..=15 {
        second.add_backend(&service, Backend::new(address(false, 9, host))).expect("it is there");
    }
    second.backend_mut(&service, address(false, 9, 2)).expect("it is there").draining = true;
    let second = addressed(second, &first);
    bench.slot.publish(&second).expect("it is put in force");
    let after: Vec<_> = (1000..2000).map(|port| to(port, false)).collect();
    assert_eq!(before, after);
    // The draining backend gets no new connections; reopened ones are spread over all others.
    let draining = mac_of(first.vips[0].backends[1].number).to_vec();
    let anew: std::collections::HashSet<_> = (1000..2000).map(|port| to(port, true)).collect();
    assert!(!anew.contains(&draining));
    assert_eq!(anew.len(), 9);
}

#[test]
fn thousand_addresses_with_a_hundred_backends_fit() {
    let mut table = Table { sources: Sources::default(), ..Table::default() };
    for number in 0..1000u32 {
        let [_, _, c, d] = number.to_be_bytes();
        let service = crate::Service { protocol: Protocol::Tcp, address: [10, 1, c, d].into(), port: 80 };
        let mut vip = Vip::new(service, Forward::Ipip);
        vip.backends = (0..100u8).map(|host| Backend::new([10, 9, c * 4 + d / 64, host].into())).collect();
        table.add_vip(vip);
    }
    table.check().expect("it is right");
    table.number_after(&Table::default()).expect("numbers");
    let bytes = compile(&table).expect("it fits");
    assert!(bytes.len() < 32 << 20, "{} bytes", bytes.len());
}
