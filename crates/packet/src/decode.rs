//! The key fields of a packet as plain values, as in the output of `--json`.

use crate::net::{ethertype, protocol};
use std::net::IpAddr;

use serde::Serialize;

use crate::pcapng::block;
use crate::walk::{self, Headers, half, walk, word};

/// Key fields of a packet's layers. Absent layers are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethernet: Option<Ethernet>,
    /// VLAN numbers from the outermost in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vlans: Vec<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arp: Option<Arp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<Ip>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<Tunnel>,
    /// The captured bytes end inside a header, or a header contradicts itself.
    pub incomplete: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ethernet {
    pub src: String,
    pub dst: String,
    /// Ethertype inside of VLAN tags, if any.
    pub ethertype: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Arp {
    pub operation: u16,
    pub sender_mac: String,
    pub sender_ip: String,
    pub target_mac: String,
    pub target_ip: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ip {
    pub version: u8,
    pub src: IpAddr,
    pub dst: IpAddr,
    /// Protocol after the IP header and its extensions.
    pub protocol: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    pub fragment: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "protocol", rename_all = "lowercase")]
pub enum Transport {
    Tcp {
        src_port: u16,
        dst_port: u16,
        seq: u32,
        ack: u32,
        /// Flags in tcpdump's notation: `S.` is SYN and ACK.
        flags: String,
        window: u16,
        payload_len: usize,
    },
    Udp {
        src_port: u16,
        dst_port: u16,
        payload_len: usize,
    },
    Icmp {
        kind: u8,
        code: u8,
    },
    Icmpv6 {
        kind: u8,
        code: u8,
    },
    Sctp {
        src_port: u16,
        dst_port: u16,
    },
}

/// A packet inside the packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tunnel {
    /// `vxlan`, `geneve`, `gre`, `gtp-u` or `ip`.
    pub kind: &'static str,
    /// Network identifier of VXLAN or Geneve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// Key of GRE. In version 1, it consists of a payload length and a call ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<u32>,
    /// Tunnel endpoint identifier of GTP-U.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teid: Option<u32>,
    pub inner: Box<Summary>,
}

/// Maximum depth of frames inside frames.
const MAX_DEPTH: u8 = 8;
const GTP_U_PORT: u16 = 2152;

/// Decodes the captured bytes of a packet; `link_type` is a LINKTYPE_ value.
pub fn summary(link_type: u16, captured: &[u8]) -> Summary {
    frame(link_type, captured, 0)
}

/// Decodes a frame. Link headers that the walk does not follow, LLC and PPP, are skipped here.
fn frame(link_type: u16, bytes: &[u8], depth: u8) -> Summary {
    let headers = walk(link_type, bytes);
    let outer = described(&headers, depth);
    let inside = match link_type {
        block::LINKTYPE_PPP | block::LINKTYPE_PPP_HDLC => ppp(bytes),
        block::LINKTYPE_PPP_ETHER => bytes.get(6..).and_then(ppp),
        block::LINKTYPE_C_HDLC => half(bytes, 2).zip(bytes.get(4..)),
        // The field holds the frame's length, or the number by which Linux marks frames with a length.
        _ if headers.ethertype.is_some_and(|kind| kind <= MAX_LENGTH) => llc(headers.payload),
        _ => None,
    };
    match inside {
        Some((kind, rest)) => Summary { ethernet: outer.ethernet, vlans: outer.vlans, ..typed(kind, rest, depth) },
        None => outer,
    }
}

/// Greatest value of an ethertype field that is the frame's length.
const MAX_LENGTH: u16 = 1500;

/// Returns the ethertype after an LLC header, and the packet, which may end with padding: the frame's length is ignored.
fn llc(bytes: &[u8]) -> Option<(u16, &[u8])> {
    const UNNUMBERED: u8 = 3;
    const IP: u8 = 6;
    const SNAP: u8 = 0xaa;
    match *bytes.first_chunk::<6>()? {
        [SNAP, SNAP, UNNUMBERED, 0, 0, 0 | 0xf8] => Some((half(bytes, 6)?, bytes.get(8..)?)),
        [IP, IP, UNNUMBERED, ..] => Some((ethertype::IPV4, bytes.get(3..)?)),
        _ => None,
    }
}

/// Returns the ethertype of a packet of PPP, and the packet.
fn ppp(bytes: &[u8]) -> Option<(u16, &[u8])> {
    // The address and control bytes may be left out. In Cisco's HDLC, an ethertype follows them.
    let rest = match bytes {
        [0x0f | 0x8f, _, rest @ ..] => return Some((half(rest, 0)?, rest.get(2..)?)),
        [0xff, 3, rest @ ..] => rest,
        rest => rest,
    };
    // The first byte of a protocol of one byte is odd.
    let (protocol, rest) = match rest.first()? & 1 {
        1 => (u16::from(*rest.first()?), rest.get(1..)?),
        _ => (half(rest, 0)?, rest.get(2..)?),
    };
    let ethertype = match protocol {
        0x21 => ethertype::IPV4,
        0x57 => ethertype::IPV6,
        0x281 => 0x8847,
        0x283 => 0x8848,
        _ => return None,
    };
    Some((ethertype, rest))
}

/// Decodes a packet of an ethertype without a frame around it.
fn typed(kind: u16, bytes: &[u8], depth: u8) -> Summary {
    match kind {
        ethertype::IPV4 | ethertype::IPV6 => described(&walk(block::LINKTYPE_RAW, bytes), depth),
        // The walk reads other ethertypes in frames only.
        _ => {
            let frame = [&[0; 12][..], &kind.to_be_bytes(), bytes].concat();
            Summary { ethernet: None, ..described(&walk(block::LINKTYPE_ETHERNET, &frame), depth) }
        }
    }
}

fn described(headers: &Headers<'_>, depth: u8) -> Summary {
    Summary {
        ethernet: headers.macs.zip(headers.ethertype).map(|((dst, src), ethertype)| Ethernet {
            src: mac(&src),
            dst: mac(&dst),
            ethertype,
        }),
        vlans: headers.vlan_numbers().to_vec(),
        arp: headers.arp.map(|arp| Arp {
            operation: arp.operation,
            sender_mac: mac(arp.sender_mac),
            sender_ip: address(arp.sender_ip),
            target_mac: mac(arp.target_mac),
            target_ip: address(arp.target_ip),
        }),
        ip: headers.ip.map(|ip| Ip {
            version: if ip.src.is_ipv4() { 4 } else { 6 },
            src: ip.src,
            dst: ip.dst,
            protocol: ip.protocol,
            ttl: ip.ttl,
            fragment: ip.fragment,
        }),
        tunnel: tunnel(headers, depth + 1).filter(|_| depth < MAX_DEPTH),
        transport: transport(headers),
        incomplete: headers.incomplete,
    }
}

fn transport(headers: &Headers<'_>) -> Option<Transport> {
    let protocol = headers.ip.filter(|_| !headers.incomplete)?.protocol;
    if let Some((kind, code)) = headers.icmp {
        return Some(match protocol {
            protocol::ICMP => Transport::Icmp { kind, code },
            _ => Transport::Icmpv6 { kind, code },
        });
    }
    let (src_port, dst_port) = headers.ports?;
    let payload_len = headers.payload_len;
    match (protocol, headers.tcp) {
        (_, Some(tcp)) => Some(Transport::Tcp {
            src_port,
            dst_port,
            seq: tcp.seq,
            ack: tcp.ack,
            flags: crate::build::flags::text(tcp.flags),
            window: tcp.window,
            payload_len,
        }),
        (protocol::UDP, _) => Some(Transport::Udp { src_port, dst_port, payload_len }),
        (protocol::SCTP, _) => Some(Transport::Sctp { src_port, dst_port }),
        _ => None,
    }
}

/// Decodes the packet inside a tunnel.
fn tunnel(headers: &Headers<'_>, depth: u8) -> Option<Tunnel> {
    // Only the first fragment has the tunnel's header.
    headers.transport_at?;
    let bytes = headers.payload;
    let of = |kind, inner| Tunnel { kind, vni: None, key: None, teid: None, inner: Box::new(inner) };
    match (headers.ip?.protocol, headers.ports) {
        _ if depth > MAX_DEPTH => None,
        (protocol::UDP, Some((_, walk::VXLAN_PORT))) => {
            let inner = frame(block::LINKTYPE_ETHERNET, bytes.get(8..)?, depth);
            Some(Tunnel { vni: Some(word(bytes, 4)? >> 8), ..of("vxlan", inner) })
        }
        (protocol::UDP, Some((_, walk::GENEVE_PORT))) => {
            let options = usize::from(bytes.first()? & 0x3f) * 4;
            let inner = bridged(half(bytes, 2)?, bytes.get(8 + options..)?, depth);
            Some(Tunnel { vni: Some(word(bytes, 4)? >> 8), ..of("geneve", inner) })
        }
        (protocol::UDP, Some((src, dst))) if [src, dst].contains(&GTP_U_PORT) => {
            let packet = gtp_u(bytes)?;
            let inner = described(&walk(block::LINKTYPE_RAW, packet), depth);
            Some(Tunnel { teid: word(bytes, 4), ..of("gtp-u", inner) })
        }
        (4 | 41, _) => Some(of("ip", described(&walk(block::LINKTYPE_RAW, bytes), depth))),
        (protocol::GRE, _) => {
            let (key, kind, rest) = gre(bytes)?;
            let (kind, rest) = match kind {
                ethertype::PPP => ppp(rest)?,
                kind => (kind, rest),
            };
            Some(Tunnel { key, ..of("gre", bridged(kind, rest, depth)) })
        }
        _ => None,
    }
}

/// Decodes a packet of an ethertype, which may be a whole frame.
fn bridged(kind: u16, bytes: &[u8], depth: u8) -> Summary {
    match kind {
        ethertype::BRIDGED_ETHERNET => frame(block::LINKTYPE_ETHERNET, bytes, depth),
        kind => typed(kind, bytes, depth),
    }
}

/// Returns the key of a GRE header, the ethertype after it, and the packet.
fn gre(bytes: &[u8]) -> Option<(Option<u32>, u16, &[u8])> {
    const CHECKSUM_OR_ROUTING: u16 = 0xc000;
    const ROUTING: u16 = 0x4000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    const ACKNOWLEDGMENT: u16 = 0x0080;
    const VERSION: u16 = 7;
    let flags = half(bytes, 0)?;
    if flags & VERSION > 1 || flags & ROUTING != 0 {
        return None;
    }
    let has = |flag: u16| usize::from(flags & flag != 0) * 4;
    let key_at = 4 + has(CHECKSUM_OR_ROUTING);
    let key = word(bytes, key_at).filter(|_| flags & KEY != 0);
    let version_1 = flags & VERSION == 1;
    let acknowledgment = if version_1 { has(ACKNOWLEDGMENT) } else { 0 };
    let end = key_at + has(KEY) + has(SEQUENCE) + acknowledgment;
    Some((key, half(bytes, 2)?, bytes.get(end..)?))
}

/// Returns the packet that a message of GTP-U carries.
fn gtp_u(bytes: &[u8]) -> Option<&[u8]> {
    const VERSION_1_GTP: u8 = 0x30;
    const PACKET: u8 = 255;
    let [flags, kind, ..] = *bytes else {
        return None;
    };
    if flags & 0xf0 != VERSION_1_GTP || kind != PACKET {
        return None;
    }
    // Sequence number, N-PDU number and the next extension's type are present if any of them is used.
    let mut at = if flags & 7 == 0 { 8 } else { 12 };
    let mut next = if flags & 4 == 0 { 0 } else { *bytes.get(11)? };
    while next != 0 {
        let length = usize::from(*bytes.get(at)?) * 4;
        at += Some(length).filter(|length| *length > 0)?;
        next = *bytes.get(at - 1)?;
    }
    bytes.get(at..)
}

fn mac(bytes: &[u8]) -> String {
    let pairs: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    pairs.join(":")
}

fn address(bytes: &[u8]) -> String {
    <[u8; 4]>::try_from(bytes).map_or_else(|_| mac(bytes), |v4| IpAddr::from(v4).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{Arp as BuildArp, Tcp, Template, flags};

    const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 2];

    #[test]
    fn tcp_after_a_vlan_as_json() {
        let frame = Template::new()
            .ethernet(A, B)
            .vlan(7)
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
            .tcp(Tcp { src: 1, dst: 2, seq: 3, ack: 4, flags: flags::SYN | flags::ACK, ..Tcp::default() })
            .payload(b"hello")
            .build();
        let json = serde_json::to_value(summary(1, &frame)).unwrap();
        let expected = serde_json::json!({
            "ethernet": {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02", "ethertype": 0x0800},
            "vlans": [7],
            "ip": {"version": 4, "src": "10.0.0.1", "dst": "10.0.0.2", "protocol": 6, "ttl": 64,
                "fragment": false},
            "transport": {"protocol": "tcp", "src_port": 1, "dst_port": 2, "seq": 3, "ack": 4,
                "flags": "S.", "window": 0, "payload_len": 5},
            "incomplete": false,
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn arp_and_a_frame_in_vxlan() {
        let request = BuildArp::request(A, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let frame = Template::new()
            .ethernet(A, B)
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
            .udp(5, 4789)
            .vxlan(99)
            .ethernet(B, A)
            .arp(request)
            .build();
        let tunnel = summary(1, &frame).tunnel.unwrap();
        assert_eq!((tunnel.kind, tunnel.vni), ("vxlan", Some(99)));
        let arp = tunnel.inner.arp.unwrap();
        assert_eq!((arp.operation, &arp.target_ip[..]), (1, "10.0.0.2"));
    }

    #[test]
    fn payload_length_of_a_cut_packet_is_that_of_its_headers() {
        let frame = Template::new().ethernet(A, B).ipv4([1; 4], [2; 4]);
        let frame = frame.udp(1, 2).payload([7; 900]).build();
        let Some(Transport::Udp { payload_len, .. }) = summary(1, &frame[..60]).transport else {
            panic!("no UDP");
        };
        assert_eq!(payload_len, 900);
    }

    /// Each packet is UDP from port 7 to port 8, inside a tunnel or after another link header.
    #[test]
    fn packets_inside_tunnels_and_other_link_headers() {
        let inner = Template::new().ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(7, 8).build();
        let inner_frame = [&[2; 12][..], &[8, 0], &inner].concat();
        let over = |protocol: u8, header: &[u8], inner: &[u8]| {
            let bytes = [header, inner].concat();
            let layer = crate::build::Layer::Raw { bytes, ethertype: None, protocol: Some(protocol) };
            Template::new().ethernet(A, B).ipv4([1; 4], [2; 4]).layer(layer).build()
        };
        let over_udp = |port: u16, header: &[u8], inner: &[u8]| {
            let payload = [header, inner].concat();
            let frame = Template::new().ethernet(A, B).ipv4([1; 4], [2; 4]);
            frame.udp(5, port).payload(payload).build()
        };
        let geneve = [1, 0, 0x65, 0x58, 0, 1, 2, 0, 0, 1, 0, 0];
        let geneve_ip = [0, 0, 8, 0, 0, 1, 2, 0];
        let gtp = [0x34, 255, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0x85, 1, 0, 0, 0];
        let pptp = [0x30, 0x81, 0x88, 0x0b, 0, 4, 0, 6, 0, 0, 0, 1, 0, 0, 0, 2, 0xff, 3, 0, 0x21];
        let tunnels = [
            ("geneve", Some(0x102), over_udp(6081, &geneve, &inner_frame)),
            ("geneve", Some(0x102), over_udp(6081, &geneve_ip, &inner)),
            ("gre", Some(5), over(protocol::GRE, &[0x20, 0, 8, 0, 0, 0, 0, 5], &inner)),
            ("gre", None, over(protocol::GRE, &[0, 0, 0x65, 0x58], &inner_frame)),
            ("gre", Some(0x0004_0006), over(protocol::GRE, &pptp, &inner)),
            ("gtp-u", Some(9), over_udp(2152, &gtp, &inner)),
            ("ip", None, over(4, &[], &inner)),
        ];
        let is_inner =
            |summary: &Summary| matches!(summary.transport, Some(Transport::Udp { src_port: 7, dst_port: 8, .. }));
        for (kind, number, bytes) in tunnels {
            let tunnel = summary(1, &bytes).tunnel.unwrap_or_else(|| panic!("{kind}"));
            let numbers = tunnel.vni.or(tunnel.key).or(tunnel.teid);
            assert_eq!((tunnel.kind, numbers), (kind, number));
            assert!(is_inner(&tunnel.inner), "{kind}: {tunnel:?}");
        }
        let snap = [&[2; 12][..], &[0, 46, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0], &inner].concat();
        let links: [(u16, &[u8]); 5] = [
            (block::LINKTYPE_PPP, &[0xff, 3, 0, 0x21]),
            (block::LINKTYPE_PPP, &[0x21]),
            (block::LINKTYPE_PPP_HDLC, &[0x0f, 0, 8, 0]),
            (block::LINKTYPE_PPP_ETHER, &[0x11, 0, 0, 1, 0, 30, 0, 0x21]),
            (block::LINKTYPE_C_HDLC, &[0x0f, 0, 8, 0]),
        ];
        let links = links.map(|(link_type, header)| (link_type, [header, &inner].concat()));
        for (link_type, bytes) in links.into_iter().chain([(block::LINKTYPE_ETHERNET, snap)]) {
            let summary = summary(link_type, &bytes);
            assert!(is_inner(&summary), "{link_type}: {summary:?}");
        }
    }

    #[test]
    fn cut_packet_is_incomplete() {
        let frame = Template::new().ethernet(A, B).ipv4([1; 4], [2; 4]).udp(1, 2).build();
        let cut = summary(1, &frame[..frame.len() - 4]);
        assert!(cut.incomplete && cut.ip.is_some() && cut.transport.is_none());
        assert!(summary(1, &frame[..9]).incomplete);
        assert!(summary(113, &[]).incomplete);
    }
}
