//! Builds packets from layers, with lengths and checksums filled in: for test senders and generators.
//!
//! ```
//! use trawl_packet::build::Template;
//! let frame = Template::new()
//!     .ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
//!     .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
//!     .udp(1234, 5678)
//!     .payload(b"hello")
//!     .frame_len(60)
//!     .build();
//! assert_eq!(frame.len(), 60);
//! ```

use crate::net::{ethertype, protocol};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::checksum::{Addresses, Sum};

/// Layers, the outermost first, and the payload of the innermost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Template {
    layers: Vec<Layer>,
    payload: Vec<u8>,
    frame_len: usize,
}

impl Template {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds any layer inside the previous ones; the other methods are shorthands for common layers.
    pub fn layer(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }

    pub fn ethernet(self, src: Mac, dst: Mac) -> Self {
        self.layer(Layer::Ethernet { src, dst, ethertype: None })
    }

    /// Adds an 802.1Q tag.
    pub fn vlan(self, id: u16) -> Self {
        self.layer(Layer::Vlan(Vlan { id, ..Vlan::default() }))
    }

    pub fn ipv4(self, src: impl Into<Ipv4Addr>, dst: impl Into<Ipv4Addr>) -> Self {
        self.layer(Layer::Ipv4(Ipv4::new(src.into(), dst.into())))
    }

    pub fn ipv6(self, src: impl Into<Ipv6Addr>, dst: impl Into<Ipv6Addr>) -> Self {
        self.layer(Layer::Ipv6(Ipv6::new(src.into(), dst.into())))
    }

    pub fn udp(self, src: u16, dst: u16) -> Self {
        self.layer(Layer::Udp(Udp { src, dst, checksum: true }))
    }

    pub fn tcp(self, tcp: Tcp) -> Self {
        self.layer(Layer::Tcp(tcp))
    }

    pub fn icmp(self, icmp: Icmp) -> Self {
        self.layer(Layer::Icmp(icmp))
    }

    pub fn icmpv6(self, icmp: Icmp) -> Self {
        self.layer(Layer::Icmpv6(icmp))
    }

    pub fn arp(self, arp: Arp) -> Self {
        self.layer(Layer::Arp(arp))
    }

    /// Adds a VXLAN header; the layers that follow are the frame inside.
    pub fn vxlan(self, vni: u32) -> Self {
        self.layer(Layer::Vxlan { vni })
    }

    pub fn payload(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.payload = bytes.into();
        self
    }

    /// Pads the payload with zeroes until the frame has `len` bytes, without the frame check sequence: 60 makes a
    /// so-called 64-byte frame. A longer frame is unchanged.
    pub fn frame_len(mut self, len: usize) -> Self {
        self.frame_len = len;
        self
    }

    /// Returns the finished bytes. Lengths that a header's field cannot hold are stored modulo the field.
    pub fn build(&self) -> Vec<u8> {
        let headers: usize = self.layers.iter().map(Layer::header_len).sum();
        let mut payload = self.payload.clone();
        payload.resize(payload.len().max(self.frame_len.saturating_sub(headers)), 0);
        emit(&self.layers, None, payload)
    }
}

pub type Mac = [u8; 6];

/// TCP flags.
pub mod flags {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const URG: u8 = 0x20;
    pub const ECE: u8 = 0x40;
    pub const CWR: u8 = 0x80;

    const LETTERS: [(u8, char); 8] =
        [(FIN, 'F'), (SYN, 'S'), (RST, 'R'), (PSH, 'P'), (ACK, '.'), (URG, 'U'), (ECE, 'E'), (CWR, 'W')];

    /// Returns the flags in tcpdump's notation: `S.` is SYN and ACK; `none` without any.
    pub fn text(set: u8) -> String {
        if set == 0 {
            return "none".to_owned();
        }
        let named = LETTERS.iter().filter(|(bit, _)| set & bit != 0);
        named.map(|(_, letter)| letter).collect()
    }
}

/// One layer of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layer {
    /// `ethertype` is used if the layer inside implies none.
    Ethernet {
        src: Mac,
        dst: Mac,
        ethertype: Option<u16>,
    },
    Vlan(Vlan),
    Arp(Arp),
    Ipv4(Ipv4),
    Ipv6(Ipv6),
    Udp(Udp),
    Tcp(Tcp),
    Icmp(Icmp),
    Icmpv6(Icmp),
    Vxlan {
        vni: u32,
    },
    /// A header built by hand. The layer outside identifies it by the given numbers.
    Raw {
        bytes: Vec<u8>,
        ethertype: Option<u16>,
        protocol: Option<u8>,
    },
}

impl Layer {
    pub(crate) fn header_len(&self) -> usize {
        match self {
            Self::Ethernet { .. } => 14,
            Self::Vlan(_) => 4,
            Self::Arp(_) => 28,
            Self::Ipv4(ip) => 20 + ip.options.len().next_multiple_of(4),
            Self::Ipv6(_) => 40,
            Self::Udp(_) | Self::Icmp(_) | Self::Icmpv6(_) | Self::Vxlan { .. } => 8,
            Self::Tcp(tcp) => 20 + tcp.options.len().next_multiple_of(4),
            Self::Raw { bytes, .. } => bytes.len(),
        }
    }
}

/// A VLAN tag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Vlan {
    pub id: u16,
    pub priority: u8,
    pub drop_eligible: bool,
    /// An 802.1ad service tag (ethertype 0x88a8) rather than an 802.1Q one.
    pub service: bool,
    /// Used if the layer inside implies none.
    pub ethertype: Option<u16>,
}

/// ARP for IPv4 over Ethernet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arp {
    pub operation: u16,
    pub sender_mac: Mac,
    pub sender_ip: Ipv4Addr,
    pub target_mac: Mac,
    pub target_ip: Ipv4Addr,
}

impl Arp {
    pub fn request(sender_mac: Mac, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> Self {
        Self { operation: 1, sender_mac, sender_ip, target_mac: [0; 6], target_ip }
    }

    pub fn reply(sender_mac: Mac, sender_ip: Ipv4Addr, to_mac: Mac, to_ip: Ipv4Addr) -> Self {
        Self { operation: 2, sender_mac, sender_ip, target_mac: to_mac, target_ip: to_ip }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipv4 {
    pub src: Ipv4Addr,
    pub dst: Ipv4Addr,
    pub tos: u8,
    pub id: u16,
    pub dont_fragment: bool,
    pub more_fragments: bool,
    /// Offset in bytes, a multiple of 8.
    pub fragment_offset: u16,
    pub ttl: u8,
    /// Used if the layer inside implies none.
    pub protocol: Option<u8>,
    pub options: Vec<u8>,
}

impl Ipv4 {
    pub fn new(src: Ipv4Addr, dst: Ipv4Addr) -> Self {
        Self {
            src,
            dst,
            tos: 0,
            id: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: None,
            options: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6 {
    pub src: Ipv6Addr,
    pub dst: Ipv6Addr,
    pub traffic_class: u8,
    pub flow_label: u32,
    pub hop_limit: u8,
    /// Used if the layer inside implies none.
    pub next_header: Option<u8>,
}

impl Ipv6 {
    pub fn new(src: Ipv6Addr, dst: Ipv6Addr) -> Self {
        Self { src, dst, traffic_class: 0, flow_label: 0, hop_limit: 64, next_header: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Udp {
    pub src: u16,
    pub dst: u16,
    /// If false, the field is zero, which means unchecked in IPv4.
    pub checksum: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tcp {
    pub src: u16,
    pub dst: u16,
    pub seq: u32,
    pub ack: u32,
    /// See [`flags`].
    pub flags: u8,
    pub window: u16,
    pub urgent: u16,
    pub options: Vec<u8>,
}

/// ICMP or ICMPv6: the four bytes after the checksum are `rest`, the payload follows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Icmp {
    pub kind: u8,
    pub code: u8,
    pub rest: [u8; 4],
}

impl Icmp {
    fn echo(kind: u8, id: u16, seq: u16) -> Self {
        let ([a, b], [c, d]) = (id.to_be_bytes(), seq.to_be_bytes());
        Self { kind, code: 0, rest: [a, b, c, d] }
    }

    pub fn echo_request(id: u16, seq: u16) -> Self {
        Self::echo(8, id, seq)
    }

    pub fn echo_reply(id: u16, seq: u16) -> Self {
        Self::echo(0, id, seq)
    }

    /// Returns an echo request for [`Layer::Icmpv6`].
    pub fn echo_request_v6(id: u16, seq: u16) -> Self {
        Self::echo(128, id, seq)
    }

    /// Returns an echo reply for [`Layer::Icmpv6`].
    pub fn echo_reply_v6(id: u16, seq: u16) -> Self {
        Self::echo(129, id, seq)
    }
}

/// Numbers for contents without one: RFC 3692's and IEEE's experimental numbers.
const PROTOCOL_EXPERIMENT: u8 = 253;
const ETHERTYPE_EXPERIMENT: u16 = 0x88b5;
const ARP_LEN: usize = 28;

/// Emits the layers. `enclosing` are the addresses of the innermost IP layer outside of `layers`.
fn emit(layers: &[Layer], enclosing: Option<Addresses>, payload: Vec<u8>) -> Vec<u8> {
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
        Layer::Ethernet { src, dst, ethertype } => {
            let kind = ethertype_of(next).or(*ethertype).unwrap_or(ETHERTYPE_EXPERIMENT);
            [&dst[..], src, &kind.to_be_bytes()].concat()
        }
        Layer::Vlan(vlan) => {
            let kind = ethertype_of(next).or(vlan.ethertype).unwrap_or(ETHERTYPE_EXPERIMENT);
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
            let pseudo = addresses.map(|ip| ip.pseudo_header(protocol::ICMPV6, len));
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
        Layer::Vlan(vlan) => Some(if vlan.service { ethertype::SERVICE_VLAN } else { ethertype::VLAN }),
        Layer::Arp(_) => Some(ethertype::ARP),
        Layer::Ipv4(_) => Some(ethertype::IPV4),
        Layer::Ipv6(_) => Some(ethertype::IPV6),
        Layer::Raw { ethertype, .. } => *ethertype,
        _ => None,
    }
}

fn protocol_of(layer: Option<&Layer>) -> Option<u8> {
    match layer? {
        Layer::Ipv4(_) => Some(4),
        Layer::Ipv6(_) => Some(41),
        Layer::Udp(_) => Some(protocol::UDP),
        Layer::Tcp(_) => Some(protocol::TCP),
        Layer::Icmp(_) => Some(protocol::ICMP),
        Layer::Icmpv6(_) => Some(protocol::ICMPV6),
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
    let fragment = u16::from(ip.dont_fragment) << 14 | u16::from(ip.more_fragments) << 13 | (ip.fragment_offset / 8);
    let mut bytes = vec![0x40 | (header_len / 4) as u8, ip.tos];
    bytes.extend(((header_len + content_len) as u16).to_be_bytes());
    bytes.extend(ip.id.to_be_bytes());
    bytes.extend(fragment.to_be_bytes());
    bytes.extend([ip.ttl, protocol.or(ip.protocol).unwrap_or(PROTOCOL_EXPERIMENT), 0, 0]);
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
    bytes.push(next_header.or(ip.next_header).unwrap_or(PROTOCOL_EXPERIMENT));
    bytes.push(ip.hop_limit);
    bytes.extend(ip.src.octets());
    bytes.extend(ip.dst.octets());
    bytes
}

fn udp_bytes(udp: &Udp, addresses: Option<Addresses>, inner: &[u8]) -> Vec<u8> {
    let len = inner.len() + 8;
    let mut bytes = [udp.src, udp.dst, len as u16, 0].map(u16::to_be_bytes).concat();
    if let Some(ip) = addresses.filter(|_| udp.checksum) {
        // A sum of zero is sent as all ones, since zero means unchecked.
        let sum = match ip.pseudo_header(protocol::UDP, len).add(&bytes).add(inner).finish() {
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
        let pseudo = ip.pseudo_header(protocol::TCP, header_len + inner.len());
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
