//! Turns layers into bytes, from the inside out so that lengths and checksums are known.

use super::layer::{Arp, Icmp, Ipv4, Ipv6, Layer, Tcp, Udp, Vlan};
use crate::checksum::{Addresses, Sum};

const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_ICMPV6: u8 = 58;
/// What a header names whose content says nothing: RFC 3692's and IEEE's experimental numbers.
const PROTOCOL_EXPERIMENT: u8 = 253;
const ETHERTYPE_EXPERIMENT: u16 = 0x88b5;
const ARP_LEN: usize = 28;

/// `enclosing` are the addresses of the innermost IP layer outside of `layers`.
pub(super) fn emit(layers: &[Layer], enclosing: Option<Addresses>, payload: Vec<u8>) -> Vec<u8> {
    let Some((layer, inside)) = layers.split_first() else {
        return payload;
    };
    let addresses = match layer {
        Layer::Ipv4(ip) => Some(Addresses::V4(ip.src, ip.dst)),
        Layer::Ipv6(ip) => Some(Addresses::V6(ip.src, ip.dst)),
        _ => enclosing,
    };
    let inner = emit(inside, addresses, payload);
    let next = inside.first();
    let mut bytes = match layer {
        Layer::Ethernet {
            src,
            dst,
            ethertype,
        } => {
            let kind = ethertype_of(next)
                .or(*ethertype)
                .unwrap_or(ETHERTYPE_EXPERIMENT);
            [&dst[..], src, &kind.to_be_bytes()].concat()
        }
        Layer::Vlan(vlan) => {
            let kind = ethertype_of(next)
                .or(vlan.ethertype)
                .unwrap_or(ETHERTYPE_EXPERIMENT);
            [tag(vlan).to_be_bytes(), kind.to_be_bytes()].concat()
        }
        Layer::Arp(arp) => arp_bytes(arp).to_vec(),
        Layer::Ipv4(ip) => ipv4(ip, protocol_of(next), inner.len()),
        Layer::Ipv6(ip) => ipv6(ip, protocol_of(next), inner.len()),
        Layer::Udp(udp) => udp_bytes(udp, addresses, &inner),
        Layer::Tcp(header) => tcp(header, addresses, &inner),
        Layer::Icmp(message) => icmp(message, Sum::default(), &inner),
        Layer::Icmpv6(message) => {
            let len = inner.len() + 8;
            let pseudo = addresses.map(|ip| ip.pseudo_header(PROTOCOL_ICMPV6, len));
            icmp(message, pseudo.unwrap_or_default(), &inner)
        }
        Layer::Vxlan { vni } => [8u32 << 24, vni << 8].map(u32::to_be_bytes).concat(),
        Layer::Raw { bytes, .. } => bytes.clone(),
    };
    bytes.extend_from_slice(&inner);
    bytes
}

fn ethertype_of(layer: Option<&Layer>) -> Option<u16> {
    match layer? {
        Layer::Vlan(vlan) => Some(if vlan.service { 0x88a8 } else { 0x8100 }),
        Layer::Arp(_) => Some(0x0806),
        Layer::Ipv4(_) => Some(0x0800),
        Layer::Ipv6(_) => Some(0x86dd),
        Layer::Raw { ethertype, .. } => *ethertype,
        _ => None,
    }
}

fn protocol_of(layer: Option<&Layer>) -> Option<u8> {
    match layer? {
        Layer::Ipv4(_) => Some(4),
        Layer::Ipv6(_) => Some(41),
        Layer::Udp(_) => Some(PROTOCOL_UDP),
        Layer::Tcp(_) => Some(PROTOCOL_TCP),
        Layer::Icmp(_) => Some(PROTOCOL_ICMP),
        Layer::Icmpv6(_) => Some(PROTOCOL_ICMPV6),
        Layer::Raw { protocol, .. } => *protocol,
        _ => None,
    }
}

fn tag(vlan: &Vlan) -> u16 {
    u16::from(vlan.priority) << 13 | u16::from(vlan.drop_eligible) << 12 | vlan.id & 0xfff
}

fn arp_bytes(arp: &Arp) -> [u8; ARP_LEN] {
    let mut bytes = [0; ARP_LEN];
    bytes[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
    bytes[6..8].copy_from_slice(&arp.operation.to_be_bytes());
    bytes[8..14].copy_from_slice(&arp.sender_mac);
    bytes[14..18].copy_from_slice(&arp.sender_ip.octets());
    bytes[18..24].copy_from_slice(&arp.target_mac);
    bytes[24..].copy_from_slice(&arp.target_ip.octets());
    bytes
}

fn ipv4(ip: &Ipv4, protocol: Option<u8>, content_len: usize) -> Vec<u8> {
    let header_len = 20 + ip.options.len().next_multiple_of(4);
    let fragment = u16::from(ip.dont_fragment) << 14
        | u16::from(ip.more_fragments) << 13
        | (ip.fragment_offset / 8);
    let mut bytes = vec![0x40 | (header_len / 4) as u8, ip.tos];
    bytes.extend(((header_len + content_len) as u16).to_be_bytes());
    bytes.extend(ip.id.to_be_bytes());
    bytes.extend(fragment.to_be_bytes());
    bytes.extend([
        ip.ttl,
        protocol.or(ip.protocol).unwrap_or(PROTOCOL_EXPERIMENT),
        0,
        0,
    ]);
    bytes.extend(ip.src.octets());
    bytes.extend(ip.dst.octets());
    bytes.extend(&ip.options);
    bytes.resize(header_len, 0);
    let checksum = Sum::default().add(&bytes).finish();
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

fn ipv6(ip: &Ipv6, next_header: Option<u8>, content_len: usize) -> Vec<u8> {
    let first = 6 << 28 | u32::from(ip.traffic_class) << 20 | ip.flow_label & 0xf_ffff;
    let mut bytes = first.to_be_bytes().to_vec();
    bytes.extend((content_len as u16).to_be_bytes());
    bytes.push(
        next_header
            .or(ip.next_header)
            .unwrap_or(PROTOCOL_EXPERIMENT),
    );
    bytes.push(ip.hop_limit);
    bytes.extend(ip.src.octets());
    bytes.extend(ip.dst.octets());
    bytes
}

fn udp_bytes(udp: &Udp, addresses: Option<Addresses>, inner: &[u8]) -> Vec<u8> {
    let len = inner.len() + 8;
    let mut bytes = [udp.src, udp.dst, len as u16, 0]
        .map(u16::to_be_bytes)
        .concat();
    if let Some(ip) = addresses.filter(|_| udp.checksum) {
        // A sum of zero is sent as all ones: zero means unchecked.
        let sum = match ip
            .pseudo_header(PROTOCOL_UDP, len)
            .add(&bytes)
            .add(inner)
            .finish()
        {
            0 => 0xffff,
            sum => sum,
        };
        bytes[6..].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

fn tcp(tcp: &Tcp, addresses: Option<Addresses>, inner: &[u8]) -> Vec<u8> {
    let header_len = 20 + tcp.options.len().next_multiple_of(4);
    let mut bytes = [tcp.src, tcp.dst].map(u16::to_be_bytes).concat();
    bytes.extend(tcp.seq.to_be_bytes());
    bytes.extend(tcp.ack.to_be_bytes());
    bytes.extend([(header_len << 2) as u8, tcp.flags]);
    bytes.extend(tcp.window.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(tcp.urgent.to_be_bytes());
    bytes.extend(&tcp.options);
    bytes.resize(header_len, 0);
    if let Some(ip) = addresses {
        let pseudo = ip.pseudo_header(PROTOCOL_TCP, header_len + inner.len());
        let checksum = pseudo.add(&bytes).add(inner).finish();
        bytes[16..18].copy_from_slice(&checksum.to_be_bytes());
    }
    bytes
}

fn icmp(message: &Icmp, pseudo: Sum, inner: &[u8]) -> Vec<u8> {
    let [a, b, c, d] = message.rest;
    let mut bytes = vec![message.kind, message.code, 0, 0, a, b, c, d];
    let checksum = pseudo.add(&bytes).add(inner).finish();
    bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
    bytes
}
