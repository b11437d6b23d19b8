//! A thousand hosts and ports in turn: every term is hit and narrowly missed, and each reader agrees with libpcap.

use crate::agreement::Readers;
use crate::kernel::root_or_skip;
use crate::support::classic;
use crate::support::oracle::oracle;
use trawl_bpf::probe::KernelFeature;

const TERMS: u32 = 1000;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
const ICMP: u8 = 1;

/// The condition of a term.
#[derive(Clone, Copy, Debug)]
enum Term {
    V4([u8; 4]),
    V6([u8; 16]),
    Port(u16),
}

/// Returns IPv4 hosts close to each other and far apart, alternating with ports; some hosts are IPv6, if requested.
fn term(number: u32, both_versions: bool) -> Term {
    let [_, b, c, d] = (number * 37).to_be_bytes();
    match (number % 2, number % 10) {
        (1, _) => Term::Port((number * 41 % 60_000) as u16 + 1),
        (_, 4) if both_versions => {
            let mut address = [0; 16];
            address[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
            address[13..].copy_from_slice(&[b, c, d]);
            Term::V6(address)
        }
        _ => Term::V4([10 + (number % 3) as u8, b, c, d]),
    }
}

fn expression(both_versions: bool) -> String {
    let written = |number| match (term(number, both_versions), number % 4) {
        (Term::V4(address), 0) => format!("host {}", std::net::Ipv4Addr::from(address)),
        (Term::V4(address), _) => format!("src host {}", std::net::Ipv4Addr::from(address)),
        (Term::V6(address), _) => format!("host {}", std::net::Ipv6Addr::from(address)),
        (Term::Port(port), 1) => format!("port {port}"),
        (Term::Port(port), _) => format!("dst port {port}"),
    };
    let terms: Vec<String> = (0..TERMS).map(written).collect();
    terms.join(" or ")
}

const NOBODY: [u8; 4] = [203, 0, 113, 77];
const NO_PORT: u16 = 65_000;

fn ethernet(kind: u16, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend(kind.to_be_bytes());
    frame.extend(rest);
    frame
}

fn ports(source: u16, destination: u16) -> Vec<u8> {
    let mut bytes = [source.to_be_bytes(), destination.to_be_bytes()].concat();
    bytes.resize(28, 0);
    bytes
}

/// Builds an IPv4 frame with this number of option words and this fragment offset.
fn ipv4([source, destination]: [[u8; 4]; 2], protocol: u8, options: u8, fragment: u16, behind: &[u8]) -> Vec<u8> {
    let mut header = vec![0x45 + options, 0, 0, 60, 0, 1];
    header.extend(fragment.to_be_bytes());
    header.extend([64, protocol, 0, 0]);
    header.extend([source, destination].concat());
    header.resize(20 + 4 * usize::from(options), 1);
    header.extend(behind);
    ethernet(0x0800, &header)
}

fn ipv6([source, destination]: [[u8; 16]; 2], protocol: u8, behind: &[u8]) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0, 0, behind.len() as u8, protocol, 64];
    header.extend([source, destination].concat());
    header.extend(behind);
    ethernet(0x86dd, &header)
}

fn arp(sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut body = vec![0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1];
    body.extend(sender);
    body.extend([0; 6]);
    body.extend(target);
    ethernet(0x0806, &body)
}

fn tagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat()
}

/// Returns hits and near misses of a host.
fn about_host(address: [u8; 4]) -> Vec<Vec<u8>> {
    let number = u32::from_be_bytes(address);
    let behind = ports(NO_PORT, NO_PORT);
    let mut frames = Vec::new();
    let neighbours = [number, number ^ 1, number.wrapping_add(1), number.wrapping_sub(37), number ^ 0x8000_0000];
    for near in neighbours.map(u32::to_be_bytes) {
        for ends in [[near, NOBODY], [NOBODY, near]] {
            frames.push(ipv4(ends, UDP, 0, 0, &behind));
            frames.push(ipv4(ends, 89, 1, 0x2001, &behind));
            frames.push(arp(ends[0], ends[1]));
        }
    }
    let hit = ipv4([address, NOBODY], TCP, 0, 0, &behind);
    frames.push(tagged(&hit));
    // Around the end of the addresses: a list is looked up once both are present.
    frames.extend([28, 29, 34].map(|length| hit[..length].to_vec()));
    frames
}

fn about_v6_host(address: [u8; 16]) -> Vec<Vec<u8>> {
    let nobody = [0x20; 16];
    let behind = ports(NO_PORT, NO_PORT);
    let mut frames = Vec::new();
    for changed in [None, Some(0), Some(5), Some(10), Some(15)] {
        let mut near = address;
        if let Some(changed) = changed {
            near[changed] ^= 1;
        }
        frames.push(ipv6([near, nobody], UDP, &behind));
        frames.push(ipv6([nobody, near], 58, &behind));
    }
    let hit = ipv6([nobody, address], TCP, &behind);
    frames.extend([53, 54, 57].map(|length| hit[..length].to_vec()));
    frames
}

fn about_port(port: u16) -> Vec<Vec<u8>> {
    let nobody = [NOBODY; 2];
    let nobody_v6 = [[0x20; 16]; 2];
    let mut frames = Vec::new();
    for near in [port, port ^ 1, port.wrapping_sub(1), port.swap_bytes()] {
        for behind in [ports(near, NO_PORT), ports(NO_PORT, near)] {
            for protocol in [TCP, UDP, SCTP, ICMP] {
                frames.push(ipv4(nobody, protocol, 0, 0, &behind));
            }
            frames.push(ipv6(nobody_v6, UDP, &behind));
            frames.push(ipv6(nobody_v6, 58, &behind));
        }
    }
    let hit = ports(port, port);
    frames.push(ipv4(nobody, UDP, 10, 0, &hit));
    // Only the first fragment has ports.
    frames.push(ipv4(nobody, UDP, 0, 0x2000, &hit));
    frames.push(ipv4(nobody, UDP, 0, 0x0001, &hit));
    let hit = ipv4(nobody, UDP, 0, 0, &hit);
    frames.push(tagged(&hit));
    frames.extend([34, 35, 38].map(|length| hit[..length].to_vec()));
    frames
}

#[test]
fn each_of_a_thousand_hosts_and_ports_is_hit_and_missed_as_by_libpcap() {
    if !root_or_skip() {
        return;
    }
    compare(false, false);
}

/// IPv6 hosts in between make a program that requires far jumps.
#[test]
fn each_of_a_thousand_hosts_of_both_versions_is_hit_and_missed_as_by_libpcap() {
    if !root_or_skip() {
        return;
    }
    if let Some(reason) = KernelFeature::FarJumps.reason_to_skip() {
        eprintln!("SKIPPED: {reason}");
        return;
    }
    compare(true, true);
}

fn compare(both_versions: bool, far_jumps: bool) {
    let expression = expression(both_versions);
    // libpcap's optimiser would need minutes.
    let oracle = oracle(&expression, false);
    let classic = classic(&expression);
    let readers = Readers::new(classic, far_jumps).expect("accepted by the verifier");
    let (mut hits, mut misses) = (0, 0);
    for number in 0..TERMS {
        let term = term(number, both_versions);
        let frames = match term {
            Term::V4(address) => about_host(address),
            Term::V6(address) => about_v6_host(address),
            Term::Port(port) => about_port(port),
        };
        let mut hit = false;
        // Each kind of miss is tried with every fourth term: enough, and fast.
        let turn = |index: &usize| *index < 4 || (index + number as usize).is_multiple_of(4);
        for (index, frame) in frames.iter().enumerate().filter(|(index, _)| turn(index)) {
            let expected = oracle.matches(frame);
            assert_eq!(expected, readers.interpret(frame, frame.len()), "{term:?}: libpcap on {frame:02x?}");
            // Cut at a different offset for each frame, within the headers.
            let linear = (frame.len() > 60).then_some(14 + index % 30);
            readers.compare(&format!("{term:?}"), frame, linear);
            hit |= expected;
            *if expected { &mut hits } else { &mut misses } += 1;
        }
        assert!(hit, "no frame hits {term:?}");
    }
    assert!(hits > 2_000 && misses > 2_000, "{hits} hits, {misses} misses");
}
