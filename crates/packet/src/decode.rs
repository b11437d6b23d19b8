//! The key fields of a packet as plain values, for machines: what `--json` shows.

use std::net::IpAddr;

use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, LinkSlice, TransportSlice};
use serde::Serialize;

use crate::pcapng::block;

/// What was found in a packet, as deep as it goes. Absent layers are left out.
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
    /// The one inside VLAN tags, if there are any.
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
    /// What follows the IP header and its extensions.
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
        /// As tcpdump writes them: `S.` is SYN and ACK.
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

/// Frames inside frames, at most.
const MAX_DEPTH: u8 = 8;
const VXLAN_PORT: u16 = 4789;
const VXLAN_LEN: usize = 8;
const PROTOCOL_SCTP: u8 = 132;

/// Decodes the captured bytes of a packet; `link_type` is a LINKTYPE_ value.
pub fn summary(link_type: u16, captured: &[u8]) -> Summary {
    let after = |len: usize| captured.get(len..).unwrap_or_default();
    let word = |at: usize| {
        let bytes = captured.get(at..).and_then(|rest| rest.first_chunk::<2>());
        bytes.map(|bytes| EtherType(u16::from_be_bytes(*bytes)))
    };
    let typed = |kind: Option<EtherType>, len| match kind {
        Some(kind) => slices(&LaxSlicedPacket::from_ether_type(kind, after(len)), 0),
        None => incomplete(),
    };
    match link_type {
        block::LINKTYPE_ETHERNET => ethernet(captured, 0),
        block::LINKTYPE_LINUX_SLL => typed(word(14), 16),
        block::LINKTYPE_LINUX_SLL2 => typed(word(0), 20),
        block::LINKTYPE_RAW => ip(captured),
        block::LINKTYPE_NULL => ip(after(4)),
        _ => Summary::default(),
    }
}

fn incomplete() -> Summary {
    Summary {
        incomplete: true,
        ..Summary::default()
    }
}

fn ip(bytes: &[u8]) -> Summary {
    LaxSlicedPacket::from_ip(bytes).map_or_else(|_| incomplete(), |packet| slices(&packet, 0))
}

fn ethernet(bytes: &[u8], depth: u8) -> Summary {
    let parsed = LaxSlicedPacket::from_ethernet(bytes);
    parsed.map_or_else(|_| incomplete(), |packet| slices(&packet, depth))
}

fn slices(packet: &LaxSlicedPacket<'_>, depth: u8) -> Summary {
    let mut summary = Summary {
        vlans: packet.vlan_ids().iter().map(|id| id.value()).collect(),
        incomplete: packet.stop_err.is_some(),
        ..Summary::default()
    };
    if let Some(LinkSlice::Ethernet2(header)) = &packet.link {
        let kind = packet
            .ether_payload()
            .map_or(header.ether_type(), |inner| inner.ether_type);
        summary.ethernet = Some(Ethernet {
            src: mac(&header.source()),
            dst: mac(&header.destination()),
            ethertype: kind.0,
        });
    }
    match &packet.net {
        Some(LaxNetSlice::Arp(arp)) => {
            summary.arp = Some(Arp {
                operation: arp.operation().0,
                sender_mac: mac(arp.sender_hw_addr()),
                sender_ip: address(arp.sender_protocol_addr()),
                target_mac: mac(arp.target_hw_addr()),
                target_ip: address(arp.target_protocol_addr()),
            });
        }
        Some(LaxNetSlice::Ipv4(slice)) => {
            let header = slice.header();
            summary.ip = Some(Ip {
                version: 4,
                src: header.source_addr().into(),
                dst: header.destination_addr().into(),
                protocol: slice.payload_ip_number().0,
                ttl: header.ttl(),
                fragment: slice.is_payload_fragmented(),
            });
        }
        Some(LaxNetSlice::Ipv6(slice)) => {
            let header = slice.header();
            summary.ip = Some(Ip {
                version: 6,
                src: header.source_addr().into(),
                dst: header.destination_addr().into(),
                protocol: slice.payload().ip_number.0,
                ttl: header.hop_limit(),
                fragment: slice.is_payload_fragmented(),
            });
        }
        None => {}
    }
    summary.transport = transport(packet);
    if let Some(TransportSlice::Udp(udp)) = &packet.transport {
        let is_vxlan = udp.destination_port() == VXLAN_PORT && depth < MAX_DEPTH;
        summary.tunnel = is_vxlan.then(|| vxlan(udp.payload(), depth)).flatten();
    }
    summary
}

fn transport(packet: &LaxSlicedPacket<'_>) -> Option<Transport> {
    match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => Some(Transport::Tcp {
            src_port: tcp.source_port(),
            dst_port: tcp.destination_port(),
            seq: tcp.sequence_number(),
            ack: tcp.acknowledgment_number(),
            flags: crate::build::flags::text(tcp.slice().get(13).copied().unwrap_or(0)),
            window: tcp.window_size(),
            payload_len: tcp.payload().len(),
        }),
        Some(TransportSlice::Udp(udp)) => Some(Transport::Udp {
            src_port: udp.source_port(),
            dst_port: udp.destination_port(),
            payload_len: udp.payload().len(),
        }),
        Some(TransportSlice::Icmpv4(icmp)) => Some(Transport::Icmp {
            kind: icmp.type_u8(),
            code: icmp.code_u8(),
        }),
        Some(TransportSlice::Icmpv6(icmp)) => Some(Transport::Icmpv6 {
            kind: icmp.type_u8(),
            code: icmp.code_u8(),
        }),
        _ => {
            let payload = packet.ip_payload()?;
            let [a, b, c, d] = *payload.payload.first_chunk()?;
            let is_start = payload.ip_number.0 == PROTOCOL_SCTP && !payload.fragmented;
            is_start.then(|| Transport::Sctp {
                src_port: u16::from_be_bytes([a, b]),
                dst_port: u16::from_be_bytes([c, d]),
            })
        }
    }
}

fn vxlan(bytes: &[u8], depth: u8) -> Option<Tunnel> {
    let (header, frame) = bytes.split_at_checked(VXLAN_LEN)?;
    let [.., a, b, c, _] = *header else {
        return None;
    };
    let inner = Box::new(ethernet(frame, depth + 1));
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
    fn tcp_behind_a_vlan_as_json() {
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
    fn a_cut_packet_says_so() {
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
