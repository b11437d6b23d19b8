//! The layers a packet can be built of.

use std::net::{Ipv4Addr, Ipv6Addr};

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

    const LETTERS: [(u8, char); 8] = [
        (FIN, 'F'),
        (SYN, 'S'),
        (RST, 'R'),
        (PSH, 'P'),
        (ACK, '.'),
        (URG, 'U'),
        (ECE, 'E'),
        (CWR, 'W'),
    ];

    /// The flags as tcpdump writes them: `S.` is SYN and ACK; `none` without any.
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
    /// `ethertype` stands for the layer inside where that says none.
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
    /// A header built by hand. The layer outside names it by the numbers given here.
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
    /// Stands for the layer inside where that says none.
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
        Self {
            operation: 1,
            sender_mac,
            sender_ip,
            target_mac: [0; 6],
            target_ip,
        }
    }

    pub fn reply(sender_mac: Mac, sender_ip: Ipv4Addr, to_mac: Mac, to_ip: Ipv4Addr) -> Self {
        Self {
            operation: 2,
            sender_mac,
            sender_ip,
            target_mac: to_mac,
            target_ip: to_ip,
        }
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
    /// In bytes, a multiple of 8.
    pub fragment_offset: u16,
    pub ttl: u8,
    /// Stands for the layer inside where that says none.
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
    /// Stands for the layer inside where that says none.
    pub next_header: Option<u8>,
}

impl Ipv6 {
    pub fn new(src: Ipv6Addr, dst: Ipv6Addr) -> Self {
        Self {
            src,
            dst,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            next_header: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Udp {
    pub src: u16,
    pub dst: u16,
    /// Without it the field is zero, which IPv4 takes as unchecked.
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

/// ICMP or ICMPv6: the four bytes after the checksum are `rest`, what follows is the payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Icmp {
    pub kind: u8,
    pub code: u8,
    pub rest: [u8; 4],
}

impl Icmp {
    fn echo(kind: u8, id: u16, seq: u16) -> Self {
        let ([a, b], [c, d]) = (id.to_be_bytes(), seq.to_be_bytes());
        Self {
            kind,
            code: 0,
            rest: [a, b, c, d],
        }
    }

    pub fn echo_request(id: u16, seq: u16) -> Self {
        Self::echo(8, id, seq)
    }

    pub fn echo_reply(id: u16, seq: u16) -> Self {
        Self::echo(0, id, seq)
    }

    /// For [`Layer::Icmpv6`].
    pub fn echo_request_v6(id: u16, seq: u16) -> Self {
        Self::echo(128, id, seq)
    }

    /// For [`Layer::Icmpv6`].
    pub fn echo_reply_v6(id: u16, seq: u16) -> Self {
        Self::echo(129, id, seq)
    }
}
