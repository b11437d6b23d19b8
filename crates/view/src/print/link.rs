//! Link layers by their number: Ethernet and others, Linux cooked, BSD loopback, bare IP; and printers by ethertype.

pub mod cdp;
pub mod ethernet;
pub mod frame_relay;
pub mod lacp;
pub mod llc;
pub mod lldp;
pub mod ppp;
pub mod stp;

use trawl_packet::net::ethertype;
use trawl_packet::pcapng::block;

use super::line::{Data, Line, Mac, Printed, Stop, put};
use super::{arp, default_print, ipv4, ipv6, names, ntp, tunnel};
use ethernet::VLAN_LEN;

const LINKTYPE_FRELAY: u16 = 107;
const LINKTYPE_LOOP: u16 = 108;

/// Shows a packet from its link header on. Returns the length of that header.
pub fn print(line: &mut Line<'_>, link_type: u16, data: Data<'_>) -> usize {
    let printed = match link_type {
        block::LINKTYPE_ETHERNET => ethernet::print(line, data),
        // Numbers that systems have used for raw IP, and the numbers for a single version.
        block::LINKTYPE_RAW | 12 | 14 | 228 | 229 => raw(line, data),
        block::LINKTYPE_LINUX_SLL => cooked(line, data),
        block::LINKTYPE_LINUX_SLL2 => cooked2(line, data),
        block::LINKTYPE_NULL | LINKTYPE_LOOP => null(line, data),
        block::LINKTYPE_PPP => ppp::serial(line, data),
        block::LINKTYPE_PPP_HDLC => ppp::in_hdlc(line, data),
        block::LINKTYPE_PPP_ETHER => ppp::over_ethernet(line, data),
        block::LINKTYPE_C_HDLC => ppp::cisco_hdlc(line, data),
        LINKTYPE_FRELAY => frame_relay::print(line, data),
        _ => {
            put!(line, "link type {link_type}, length {}: ", data.len);
            default_print(line, data);
            Ok(())
        }
    };
    match printed {
        Ok(()) => {}
        Err(Stop::Cut) => put!(line, " [|{}]", line.protocol),
        Err(Stop::Invalid) => put!(line, " (invalid)"),
    }
    line.link_header_len
}

/// Shows the payload of an ethertype. Returns false, and shows nothing, if it is not decoded.
pub fn ethertype(line: &mut Line<'_>, kind: u16, data: Data<'_>) -> Result<bool, Stop> {
    match kind {
        ethertype::IPV4 => ipv4::print(line, data)?,
        ethertype::IPV6 => ipv6::print(line, data)?,
        ethertype::ARP | ethertype::REVERSE_ARP => arp::print(line, data)?,
        ethertype::MPLS | ethertype::MPLS_MULTICAST => tunnel::mpls(line, data)?,
        ethertype::PPPOE_DISCOVERY | ethertype::PPPOE_SESSION => ppp::over_ethernet(line, data)?,
        ethertype::PPP => {
            put!(line, ": ");
            ppp::print(line, data)?;
        }
        ethertype::LLDP => lldp::print(line, data)?,
        ethertype::SLOW => lacp::print(line, data)?,
        ethertype::PTP => ntp::ptp(line, data)?,
        ethertype::MACSEC => return ethernet::macsec(line, data),
        ethertype::EAPOL => ethernet::eapol(line, data)?,
        ethertype::LOOPBACK => ethernet::loopback(line, data)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Shows a Linux cooked header, version 1.
fn cooked(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const LEN: usize = 16;
    line.protocol = "sll";
    data.need(LEN)?;
    let header = Cooked {
        packet_type: data.u16(0)?,
        address: (data.u16(4)? == 6).then_some(data.array(6)?),
        protocol: data.u16(14)?,
        packet_len: data.len,
    };
    line.link_header_len = LEN;
    if line.options.link_header {
        put!(line, "{:>3} ", header.direction());
    }
    header.payload(line, data.skip(LEN))
}

/// Shows a Linux cooked header, version 2, with the interface by its index.
fn cooked2(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const LEN: usize = 20;
    line.protocol = "sll2";
    data.need(LEN)?;
    let header = Cooked {
        packet_type: data.u8(10)?.into(),
        address: (data.u8(11)? == 6).then_some(data.array(12)?),
        protocol: data.u16(0)?,
        packet_len: data.len,
    };
    line.link_header_len = LEN;
    put!(line, "ifindex {} {:<3} ", data.u32(4)?, header.direction());
    header.payload(line, data.skip(LEN))
}

struct Cooked {
    packet_type: u16,
    address: Option<[u8; 6]>,
    protocol: u16,
    packet_len: usize,
}

impl Cooked {
    fn direction(&self) -> &'static str {
        names::of("cooked.direction", self.packet_type)
    }

    fn put(&self, line: &mut Line<'_>) {
        if let Some(address) = self.address {
            put!(line, "{} ", Mac(address));
        }
        if line.options.quick {
            return;
        }
        match self.protocol {
            1 => put!(line, "802.3"),
            4 => put!(line, "802.2"),
            protocol => {
                put!(line, "ethertype ");
                line.put_ethertype(protocol);
            }
        }
        put!(line, ", length {}: ", self.packet_len);
    }

    fn payload(&self, line: &mut Line<'_>, mut data: Data<'_>) -> Printed {
        const PROTOCOL_802_2: u16 = 4;
        if line.options.link_header {
            self.put(line);
        }
        let mut kind = self.protocol;
        while ethernet::is_vlan(kind) {
            line.protocol = "vlan";
            let tci = data.u16(0)?;
            kind = data.u16(2)?;
            ethernet::put_tag(line, tci, kind);
            line.link_header_len += VLAN_LEN;
            data = data.skip(VLAN_LEN);
        }
        if kind == PROTOCOL_802_2 {
            return llc::print(line, data);
        }
        if kind <= names::MAX_LENGTH || !ethertype(line, kind, data)? {
            if !line.options.link_header {
                put!(line, "{:>3} ", self.direction());
                self.put(line);
            }
            default_print(line, data);
        }
        Ok(())
    }
}

/// Shows a BSD loopback header: an address family in the byte order of the host that captured.
fn null(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const FAMILY_LEN: usize = 4;
    line.protocol = "null";
    let stored = data.u32(0)?;
    let family = if stored & 0xffff_0000 == 0 { stored } else { stored.swap_bytes() };
    // AF_INET6 is 24, 28 and 30 on the BSDs and macOS, 10 on Linux.
    let name = match family {
        2 => Some("IPv4"),
        10 | 24 | 28 | 30 => Some("IPv6"),
        _ => None,
    };
    line.link_header_len = FAMILY_LEN;
    if line.options.link_header || name.is_none() {
        match (line.options.quick, name) {
            (false, name) => put!(line, "AF {} ({family})", name.unwrap_or("Unknown")),
            (true, Some(name)) => put!(line, "{name}"),
            (true, None) => put!(line, "Unknown AF {family}"),
        }
        put!(line, ", length {}: ", data.len);
    }
    let payload = data.skip(FAMILY_LEN);
    match name {
        Some("IPv4") => ipv4::print(line, payload),
        Some(_) => ipv6::print(line, payload),
        None => {
            default_print(line, payload);
            Ok(())
        }
    }
}

fn raw(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "raw";
    if line.options.link_header {
        put!(line, "ip: ");
    }
    any_ip(line, data)
}

/// Shows an IP packet of the version in its first half byte.
pub fn any_ip(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    if data.len < 1 {
        put!(line, "truncated-ip {}", data.len);
        return Ok(());
    }
    match data.u8(0)? >> 4 {
        4 => ipv4::print(line, data),
        6 => ipv6::print(line, data),
        version => {
            put!(line, "unknown ip {version}");
            Ok(())
        }
    }
}
