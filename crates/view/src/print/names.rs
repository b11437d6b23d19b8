//! Names of ethertypes and IP protocols, as tcpdump has them.

use super::line::Line;
use super::line::put;

pub(super) const IPV4: u16 = 0x0800;
pub(super) const ARP: u16 = 0x0806;
pub(super) const REVERSE_ARP: u16 = 0x8035;
pub(super) const BRIDGED_ETHERNET: u16 = 0x6558;
pub(super) const VLAN: u16 = 0x8100;
pub(super) const VLAN_9100: u16 = 0x9100;
pub(super) const VLAN_9200: u16 = 0x9200;
pub(super) const SERVICE_VLAN: u16 = 0x88a8;
pub(super) const IPV6: u16 = 0x86dd;
pub(super) const PPP: u16 = 0x880b;
pub(super) const MPLS: u16 = 0x8847;
pub(super) const MPLS_MULTICAST: u16 = 0x8848;
pub(super) const PPP_FRAME: u16 = 0x880b;
pub(super) const PPPOE_DISCOVERY: u16 = 0x8863;
pub(super) const PPPOE_SESSION: u16 = 0x8864;
pub(super) const EAPOL: u16 = 0x888e;
pub(super) const LLDP: u16 = 0x88cc;
pub(super) const MACSEC: u16 = 0x88e5;
pub(super) const PTP: u16 = 0x88f7;
pub(super) const SLOW: u16 = 0x8809;
pub(super) const LOOPBACK: u16 = 0x9000;

/// Values up to this are lengths of 802.3 frames, not ethertypes.
pub(super) const MAX_LENGTH: u16 = 1500;

pub(super) fn ethertype(value: u16) -> Option<&'static str> {
    Some(match value {
        IPV4 => "IPv4",
        MPLS => "MPLS unicast",
        MPLS_MULTICAST => "MPLS multicast",
        IPV6 => "IPv6",
        VLAN => "802.1Q",
        VLAN_9100 => "802.1Q-9100",
        SERVICE_VLAN => "802.1Q-QinQ",
        VLAN_9200 => "802.1Q-9200",
        ARP => "ARP",
        REVERSE_ARP => "Reverse ARP",
        BRIDGED_ETHERNET => "TEB",
        PPP => "PPP",
        0x6001 => "MOP DL",
        0x6002 => "MOP RC",
        0x6003 => "DN",
        0x6004 => "LAT",
        0x6007 => "SCA",
        0x809b => "Appletalk",
        0x80f3 => "Appletalk ARP",
        0x8137 => "IPX",
        0x8808 => "MPCP",
        SLOW => "Slow Protocols",
        PPPOE_DISCOVERY => "PPPoE D",
        PPPOE_SESSION => "PPPoE S",
        EAPOL => "EAPOL",
        0x8899 => "RRCP",
        0x886f => "MS NLB heartbeat",
        0x8870 => "Jumbo",
        0x894f => "NSH",
        LOOPBACK => "Loopback",
        0x8902 => "CFM",
        0x893a => "IEEE1905.1",
        LLDP => "LLDP",
        0x88ca => "TIPC",
        0x88a2 => "AoE",
        PTP => "PTP",
        MACSEC => "802.1AE MACsec",
        _ => return None,
    })
}

/// `IPv4 (0x0800)`, or `Unknown (0x88b5)`.
pub(super) fn put_ethertype(line: &mut Line<'_>, value: u16) {
    put!(
        line,
        "{} (0x{value:04x})",
        ethertype(value).unwrap_or("Unknown")
    );
}

/// Who has the first three bytes of an address or an extension.
pub(super) fn organization(oui: u32) -> &'static str {
    match oui {
        0x00_0000 => "Ethernet",
        0x00_000c => "Cisco",
        0x00_005e => "IANA",
        0x00_0081 => "Nortel Networks SONMP",
        0x00_00f8 => "Cisco bridged",
        0x00_80c2 => "Ethernet bridged",
        0x00_a03e => "ATM Forum",
        0x00_e02f => "DOCSIS Spanning Tree",
        0x08_0007 => "Appletalk",
        0x00_9069 => "Juniper",
        0x08_0009 => "Hewlett-Packard",
        0x00_120f => "IEEE 802.3 Private",
        0x00_12bb => "ANSI/TIA",
        0x00_1b21 => "DCBX",
        0x00_2320 => "Nicira Networks",
        0x5c_16c7 => "Big Switch Networks",
        0xb0_d2f5 => "Vello Systems",
        0x00_2481 => "HP",
        0x00_04ea => "HP-Labs",
        0x74_8771 => "Infoblox Inc",
        0xa4_2305 => "Open Networking Lab",
        0x00_049f => "Freescale",
        0x00_15ad => "Netronome",
        0x00_1018 => "Broadcom",
        0x00_e004 => "PMC-Sierra",
        0xd0_f0db => "Ericsson",
        _ => "Unknown",
    }
}

/// Address families by IANA's numbers.
pub(super) fn address_family(number: u16) -> &'static str {
    match number {
        0 => "Reserved",
        1 => "IPv4",
        2 => "IPv6",
        3 => "NSAP",
        4 => "HDLC",
        5 => "BBN 1822",
        6 => "802",
        7 => "E.163",
        8 => "E.164",
        9 => "F.69",
        10 => "X.121",
        11 => "Novell IPX",
        12 => "Appletalk",
        13 => "Decnet IV",
        14 => "Banyan Vines",
        15 => "E.164 with NSAP subaddress",
        25 => "VPLS",
        196 => "Layer-2 VPN",
        _ => "Unknown",
    }
}

pub(super) const HOP_BY_HOP: u8 = 0;
pub(super) const ICMP: u8 = 1;
pub(super) const IGMP: u8 = 2;
pub(super) const IP_IN_IP: u8 = 4;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const DCCP: u8 = 33;
pub(super) const IPV6_IN_IP: u8 = 41;
pub(super) const ROUTING: u8 = 43;
pub(super) const FRAGMENT: u8 = 44;
pub(super) const GRE: u8 = 47;
pub(super) const ESP: u8 = 50;
pub(super) const AH: u8 = 51;
pub(super) const ICMPV6: u8 = 58;
pub(super) const NO_NEXT_HEADER: u8 = 59;
pub(super) const DESTINATION_OPTIONS: u8 = 60;
pub(super) const ETHERNET_IN_IP: u8 = 143;
pub(super) const SCTP: u8 = 132;

pub(super) fn protocol(value: u8) -> Option<&'static str> {
    Some(match value {
        HOP_BY_HOP => "Options",
        ICMP => "ICMP",
        IGMP => "IGMP",
        IP_IN_IP => "IPIP",
        TCP => "TCP",
        8 => "EGP",
        9 => "IGRP",
        UDP => "UDP",
        DCCP => "DCCP",
        IPV6_IN_IP => "IPv6",
        ROUTING => "Routing",
        FRAGMENT => "Fragment",
        46 => "RSVP",
        GRE => "GRE",
        ESP => "ESP",
        AH => "AH",
        55 => "Mobile IP",
        ICMPV6 => "ICMPv6",
        88 => "EIGRP",
        89 => "OSPF",
        103 => "PIM",
        108 => "Compressed IP",
        112 => "VRRP",
        113 => "PGM",
        SCTP => "SCTP",
        135 => "Mobility",
        ETHERNET_IN_IP => "Ethernet",
        _ => return None,
    })
}
