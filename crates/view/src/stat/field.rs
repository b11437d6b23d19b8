//! Fields that packets can be grouped by.

use std::fmt;
use std::str::FromStr;
use trawl_packet::net::protocol::TCP;

use trawl_packet::pcapng::Direction;
use trawl_packet::walk::Headers;
use trawl_packet::{link_type, verdict};

use crate::record::PacketView;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Src,
    Dst,
    SrcPort,
    DstPort,
    SrcMac,
    DstMac,
    Protocol,
    Ethertype,
    Vlan,
    Ttl,
    Dscp,
    Flags,
    Length,
    Interface,
    Direction,
    Hook,
    Verdict,
    Queue,
    Reason,
    Family,
    Ecn,
    Mpls,
    IcmpType,
    IcmpCode,
    Window,
    LinkType,
    Minute,
    Second,
    Process,
    Container,
}

const NAMES: [(&str, Field); 30] = [
    ("src", Field::Src),
    ("dst", Field::Dst),
    ("sport", Field::SrcPort),
    ("dport", Field::DstPort),
    ("smac", Field::SrcMac),
    ("dmac", Field::DstMac),
    ("protocol", Field::Protocol),
    ("ethertype", Field::Ethertype),
    ("vlan", Field::Vlan),
    ("ttl", Field::Ttl),
    ("dscp", Field::Dscp),
    ("flags", Field::Flags),
    ("length", Field::Length),
    ("interface", Field::Interface),
    ("direction", Field::Direction),
    ("hook", Field::Hook),
    ("verdict", Field::Verdict),
    ("queue", Field::Queue),
    ("reason", Field::Reason),
    ("family", Field::Family),
    ("ecn", Field::Ecn),
    ("mpls", Field::Mpls),
    ("icmptype", Field::IcmpType),
    ("icmpcode", Field::IcmpCode),
    ("window", Field::Window),
    ("linktype", Field::LinkType),
    ("minute", Field::Minute),
    ("second", Field::Second),
    ("process", Field::Process),
    ("container", Field::Container),
];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a field; fields are {}", NAMES.map(|(name, _)| name).join(", "))]
pub struct UnknownField {
    text: String,
}

impl FromStr for Field {
    type Err = UnknownField;

    fn from_str(text: &str) -> Result<Self, UnknownField> {
        let found = NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, field)| *field).ok_or_else(|| UnknownField { text: text.to_owned() })
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = NAMES.iter().find(|(_, field)| field == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

impl Field {
    /// Returns all names, as they are typed.
    pub fn names() -> [&'static str; NAMES.len()] {
        NAMES.map(|(name, _)| name)
    }

    /// Returns true if a capture has to find the processes of packets.
    pub fn is_about_processes(self) -> bool {
        matches!(self, Self::Process | Self::Container)
    }

    /// Returns the packet's value; `-` if it has none.
    pub fn of(self, packet: &PacketView<'_>, headers: &Headers<'_>) -> String {
        let ip = headers.ip;
        let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        let value = match self {
            Self::Src => ip.map(|ip| ip.src.to_string()),
            Self::Dst => ip.map(|ip| ip.dst.to_string()),
            Self::SrcPort => headers.ports.map(|(src, _)| src.to_string()),
            Self::DstPort => headers.ports.map(|(_, dst)| dst.to_string()),
            Self::SrcMac => headers.macs.map(|(_, src)| mac(src)),
            Self::DstMac => headers.macs.map(|(dst, _)| mac(dst)),
            Self::Protocol => protocols(headers).last().map(|name| (*name).to_owned()),
            Self::Ethertype => headers.ethertype.map(|kind| format!("0x{kind:04x}")),
            Self::Vlan => headers.vlan_numbers().first().map(u16::to_string),
            Self::Ttl => ip.map(|ip| ip.ttl.to_string()),
            Self::Dscp => ip.map(|ip| (ip.tos >> 2).to_string()),
            Self::Flags => headers.tcp.map(|tcp| trawl_packet::build::flags::text(tcp.flags)),
            Self::Length => Some(packet.original_len.to_string()),
            Self::Interface => packet.interface.map(str::to_owned),
            Self::Direction => packet.direction.map(|direction| {
                match direction {
                    Direction::In => "in",
                    Direction::Out => "out",
                }
                .to_owned()
            }),
            Self::Hook => packet.hook.map(str::to_owned),
            Self::Verdict => packet.verdict.map(verdict::text),
            Self::Queue => packet.queue.map(|queue| queue.to_string()),
            Self::Reason => packet.drop().map(|drop| drop.reason.to_owned()),
            Self::Family => ip.map(|ip| if ip.src.is_ipv4() { "ipv4" } else { "ipv6" }.to_owned()),
            Self::Ecn => ip.map(|ip| (ip.tos & 3).to_string()),
            Self::Mpls => headers.mpls_label.map(|label| label.to_string()),
            Self::IcmpType => headers.icmp.map(|(kind, _)| kind.to_string()),
            Self::IcmpCode => headers.icmp.map(|(_, code)| code.to_string()),
            Self::Window => headers.tcp.map(|tcp| tcp.window.to_string()),
            Self::LinkType => Some(link_type::described(packet.link_type)),
            Self::Minute => Some(begin_of(packet.timestamp_ns, 60)),
            Self::Second => Some(begin_of(packet.timestamp_ns, 1)),
            Self::Process => packet.process.map(|process| {
                let name = process.name.unwrap_or_default();
                match packet.uncertain_owner() {
                    Some(owner) => format!("{name}[{}] ({owner})", process.id),
                    None => format!("{name}[{}]", process.id),
                }
            }),
            Self::Container => packet.process.and_then(|process| process.described?.container()).map(str::to_owned),
        };
        value.unwrap_or_else(|| "-".to_owned())
    }
}

/// Returns the start of the time's span of `seconds`, in seconds since 1970.
fn begin_of(time_ns: u64, seconds: u64) -> String {
    (time_ns / 1_000_000_000 / seconds * seconds).to_string()
}

/// Returns the names of a packet's protocols from the outside in, the application's by its well-known port.
pub fn protocols(headers: &Headers<'_>) -> Vec<&'static str> {
    let mut names = Vec::with_capacity(4);
    names.extend((headers.vlans > 0).then_some("vlan"));
    names.extend(headers.mpls_label.map(|_| "mpls"));
    let Some(ip) = headers.ip else {
        names.extend(headers.ethertype.map(|kind| match kind {
            0..=1500 => "llc",
            0x0806 => "arp",
            0x8809 => "slow",
            0x88cc => "lldp",
            0x8863 | 0x8864 => "pppoe",
            0x888e => "eapol",
            0x88f7 => "ptp",
            _ => "other_ethertype",
        }));
        return names;
    };
    names.push(if ip.src.is_ipv4() { "ipv4" } else { "ipv6" });
    names.push(match ip.protocol {
        1 => "icmp",
        2 => "igmp",
        4 | 41 => "ip_in_ip",
        6 => "tcp",
        17 => "udp",
        47 => "gre",
        50 => "esp",
        51 => "ah",
        58 => "icmpv6",
        88 => "eigrp",
        89 => "ospf",
        103 => "pim",
        112 => "vrrp",
        132 => "sctp",
        _ => "other_ip",
    });
    if let Some((src, dst)) = headers.ports {
        let of = |port| application(ip.protocol, port);
        names.extend(of(dst).or_else(|| of(src)));
    }
    names
}

fn application(protocol: u8, port: u16) -> Option<&'static str> {
    Some(match (protocol, port) {
        (_, 53) => "dns",
        (_, 5353) => "mdns",
        (TCP, 22) => "ssh",
        (TCP, 25 | 587) => "smtp",
        (TCP, 80 | 8080) => "http",
        (TCP, 179) => "bgp",
        (TCP, 443 | 8443) => "tls",
        (17, 443) => "quic",
        (17, 67 | 68) => "dhcp",
        (17, 546 | 547) => "dhcpv6",
        (17, 123) => "ntp",
        (17, 161 | 162) => "snmp",
        (17, 514) => "syslog",
        (17, 1812 | 1813) => "radius",
        (17, 2152) => "gtp_u",
        (17, 3784 | 4784) => "bfd",
        (17, 4789) => "vxlan",
        (17, 6081) => "geneve",
        (17, 51820) => "wireguard",
        (_, 2049) => "nfs",
        _ => return None,
    })
}
