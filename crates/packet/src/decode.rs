//! The key fields of a packet as plain values, as in the output of `--json`.

use std::net::IpAddr;

use serde::Serialize;

use crate::pcapng::block;
use crate::walk::{self, Headers, walk};

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

/// A frame inside the packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tunnel {
    pub kind: &'static str,
    pub vni: u32,
    pub inner: Box<Summary>,
}

/// Maximum depth of frames inside frames.
const MAX_DEPTH: u8 = 8;
const VXLAN_PORT: u16 = 4789;
const VXLAN_LEN: usize = 8;
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_SCTP: u8 = 132;

/// Decodes the captured bytes of a packet; `link_type` is a LINKTYPE_ value.
pub fn summary(link_type: u16, captured: &[u8]) -> Summary {
    described(&walk(link_type, captured), 0)
}

fn described(headers: &Headers<'_>, depth: u8) -> Summary {
    let transport = transport(headers);
    let is_vxlan = matches!(
        transport,
        Some(Transport::Udp {
            dst_port: VXLAN_PORT,
            ..
        })
    );
    Summary {
        ethernet: headers
            .macs
            .zip(headers.ethertype)
            .map(|((dst, src), ethertype)| Ethernet {
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
        tunnel: (is_vxlan && depth < MAX_DEPTH)
            .then(|| vxlan(headers.payload, depth))
            .flatten(),
        transport,
        incomplete: headers.incomplete,
    }
}

fn transport(headers: &Headers<'_>) -> Option<Transport> {
    let protocol = headers.ip.filter(|_| !headers.incomplete)?.protocol;
    if let Some((kind, code)) = headers.icmp {
        return Some(match protocol {
            PROTOCOL_ICMP => Transport::Icmp { kind, code },
            _ => Transport::Icmpv6 { kind, code },
        });
    }
    let (src_port, dst_port) = headers.ports?;
    let payload_len = headers.payload.len();
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
        (walk::UDP, _) => Some(Transport::Udp {
            src_port,
            dst_port,
            payload_len,
        }),
        (PROTOCOL_SCTP, _) => Some(Transport::Sctp { src_port, dst_port }),
        _ => None,
    }
}

fn vxlan(bytes: &[u8], depth: u8) -> Option<Tunnel> {
    let (header, frame) = bytes.split_at_checked(VXLAN_LEN)?;
    let [.., a, b, c, _] = *header else {
        return None;
    };
    let inner = Box::new(described(&walk(block::LINKTYPE_ETHERNET, frame), depth + 1));
    Some(Tunnel {
        kind: "vxlan",
        vni: u32::from_be_bytes([0, a, b, c]),
        inner,
    })
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
            .tcp(Tcp {
                src: 1,
                dst: 2,
                seq: 3,
                ack: 4,
                flags: flags::SYN | flags::ACK,
                ..Tcp::default()
            })
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
        assert_eq!((tunnel.kind, tunnel.vni), ("vxlan", 99));
        let arp = tunnel.inner.arp.unwrap();
        assert_eq!((arp.operation, &arp.target_ip[..]), (1, "10.0.0.2"));
    }

    #[test]
    fn cut_packet_is_incomplete() {
        let frame = Template::new()
            .ethernet(A, B)
            .ipv4([1; 4], [2; 4])
            .udp(1, 2)
            .build();
        let cut = summary(1, &frame[..frame.len() - 4]);
        assert!(cut.incomplete && cut.ip.is_some() && cut.transport.is_none());
        assert!(summary(1, &frame[..9]).incomplete);
        assert!(summary(113, &[]).incomplete);
    }
}
