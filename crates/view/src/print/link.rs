//! Link layers: Ethernet with VLAN tags, Linux cooked, BSD loopback, bare IP.

use super::line::{Data, Line, Mac, Printed, Stop, put};
use super::{
    DumpForm, arp, carrier, control, dump, frame_relay, ipv4, ipv6, llc, lldp, names, serial, slow,
};
use trawl_packet::pcapng::block;

const LINKTYPE_FRELAY: u16 = 107;
const LINKTYPE_LOOP: u16 = 108;
const ETHERNET_LEN: usize = 14;
const VLAN_LEN: usize = 4;
const SLL_LEN: usize = 16;
const SLL2_LEN: usize = 20;

/// Shows a packet from its link header on. Returns how long that header was.
pub(super) fn print(line: &mut Line<'_>, link_type: u16, data: Data<'_>) -> usize {
    let printed = match link_type {
        block::LINKTYPE_ETHERNET => ethernet(line, data),
        // Numbers that systems have had for it, and those of one version alone.
        block::LINKTYPE_RAW | 12 | 14 | 228 | 229 => raw(line, data),
        block::LINKTYPE_LINUX_SLL => cooked(line, data),
        block::LINKTYPE_LINUX_SLL2 => cooked2(line, data),
        block::LINKTYPE_NULL | LINKTYPE_LOOP => null(line, data),
        block::LINKTYPE_PPP => serial::ppp(line, data),
        block::LINKTYPE_PPP_HDLC => serial::ppp_in_hdlc(line, data),
        block::LINKTYPE_PPP_ETHER => carrier::pppoe(line, data),
        block::LINKTYPE_C_HDLC => serial::cisco_hdlc(line, data),
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

/// The bytes of what is not decoded, unless a hexadecimal dump of the packet follows anyway.
pub(super) fn default_print(line: &mut Line<'_>, data: Data<'_>) {
    let form = line.options.dump.map(|dump| dump.form);
    if form.is_none_or(|form| form == DumpForm::Ascii) {
        dump::hex_ascii(line.out, data.bytes);
    }
}

/// An Ethernet frame, outermost or inside a tunnel.
pub(super) fn ethernet(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.nested(|line| ethernet_frame(line, data))
}

fn ethernet_frame(line: &mut Line<'_>, frame: Data<'_>) -> Printed {
    line.protocol = "ether";
    if frame.bytes.len() < ETHERNET_LEN || frame.len < ETHERNET_LEN {
        return Err(Stop::Cut);
    }
    if line.options.link_header {
        ethernet_header(line, frame, frame.u16(12)?)?;
    }
    let mut kind = frame.u16(12)?;
    let mut header_len = ETHERNET_LEN;
    while is_vlan(kind) {
        let tag = frame.skip(header_len);
        if tag.bytes.len() < VLAN_LEN || tag.len < VLAN_LEN {
            line.protocol = "vlan";
            return Err(Stop::Cut);
        }
        let tci = tag.u16(0)?;
        kind = tag.u16(2)?;
        header_len += VLAN_LEN;
        if line.options.link_header {
            put_tag(line, tci);
            put_inner_ethertype(line, kind);
        }
    }
    if !line.is_nested() {
        line.link_header_len = header_len;
    }
    let payload = frame.skip(header_len);
    if kind <= names::MAX_LENGTH {
        return llc::print(line, payload.claimed(payload.len.min(kind.into())));
    }
    if !ethertype(line, kind, payload)? {
        if !line.options.link_header {
            ethernet_header(line, frame, kind)?;
        }
        default_print(line, payload);
    }
    Ok(())
}

fn is_vlan(kind: u16) -> bool {
    matches!(
        kind,
        names::VLAN | names::VLAN_9100 | names::VLAN_9200 | names::SERVICE_VLAN
    )
}

fn put_tag(line: &mut Line<'_>, tci: u16) {
    put!(
        line,
        "vlan {}, p {}{}, ",
        tci & 0xfff,
        tci >> 13,
        if tci & 0x1000 != 0 { ", DEI" } else { "" }
    );
}

fn put_inner_ethertype(line: &mut Line<'_>, kind: u16) {
    if kind > names::MAX_LENGTH {
        put_type(line, kind);
        put!(line, ", ");
    } else {
        put!(line, "802.3");
    }
}

/// `-q` shows the name alone.
fn put_type(line: &mut Line<'_>, kind: u16) {
    if !line.options.quick {
        put!(line, "ethertype ");
        names::put_ethertype(line, kind);
        return;
    }
    match names::ethertype(kind) {
        Some(name) => put!(line, "{name}"),
        None => put!(line, "Unknown Ethertype (0x{kind:04x})"),
    }
}

/// `kind` is the frame's ethertype, or the one inside its VLAN tags.
fn ethernet_header(line: &mut Line<'_>, frame: Data<'_>, kind: u16) -> Printed {
    let (dst, src) = (Mac(frame.array(0)?), Mac(frame.array(6)?));
    put!(line, "{src} > {dst}, ");
    if kind <= names::MAX_LENGTH {
        put!(line, "802.3, length {kind}: ");
    } else {
        put_type(line, kind);
        put!(line, ", length {}: ", frame.len);
    }
    Ok(())
}

/// Shows what an ethertype names. False, and nothing shown, if it is not decoded.
pub(super) fn ethertype(line: &mut Line<'_>, kind: u16, data: Data<'_>) -> Result<bool, Stop> {
    match kind {
        names::IPV4 => ipv4::print(line, data)?,
        names::IPV6 => ipv6::print(line, data)?,
        names::ARP | names::REVERSE_ARP => arp::print(line, data)?,
        names::MPLS | names::MPLS_MULTICAST => carrier::mpls(line, data)?,
        names::PPPOE_DISCOVERY | names::PPPOE_SESSION => carrier::pppoe(line, data)?,
        names::PPP_FRAME => {
            put!(line, ": ");
            carrier::ppp(line, data)?;
        }
        names::LLDP => lldp::print(line, data)?,
        names::SLOW => slow::print(line, data)?,
        names::PTP => control::ptp(line, data)?,
        names::MACSEC => return carrier::macsec(line, data),
        names::EAPOL => carrier::eapol(line, data)?,
        names::LOOPBACK => carrier::loopback(line, data)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Linux cooked capture, version 1.
fn cooked(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "sll";
    data.need(SLL_LEN)?;
    let header = Cooked {
        packet_type: data.u16(0)?,
        address: (data.u16(4)? == 6).then_some(data.array(6)?),
        protocol: data.u16(14)?,
        packet_len: data.len,
    };
    line.link_header_len = SLL_LEN;
    if line.options.link_header {
        put!(line, "{:>3} ", header.direction());
    }
    cooked_payload(line, &header, data.skip(SLL_LEN))
}

/// Linux cooked capture, version 2: names the interface by its index.
fn cooked2(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "sll2";
    data.need(SLL2_LEN)?;
    let header = Cooked {
        packet_type: data.u8(10)?.into(),
        address: (data.u8(11)? == 6).then_some(data.array(12)?),
        protocol: data.u16(0)?,
        packet_len: data.len,
    };
    line.link_header_len = SLL2_LEN;
    put!(line, "ifindex {} {:<3} ", data.u32(4)?, header.direction());
    cooked_payload(line, &header, data.skip(SLL2_LEN))
}

struct Cooked {
    packet_type: u16,
    address: Option<[u8; 6]>,
    protocol: u16,
    packet_len: usize,
}

impl Cooked {
    fn direction(&self) -> &'static str {
        match self.packet_type {
            0 => "In",
            1 => "B",
            2 => "M",
            3 => "P",
            4 => "Out",
            _ => "?",
        }
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
                names::put_ethertype(line, protocol);
            }
        }
        put!(line, ", length {}: ", self.packet_len);
    }
}

fn cooked_payload(line: &mut Line<'_>, header: &Cooked, mut data: Data<'_>) -> Printed {
    const PROTOCOL_802_2: u16 = 4;
    if line.options.link_header {
        header.put(line);
    }
    let mut kind = header.protocol;
    while is_vlan(kind) {
        line.protocol = "vlan";
        let tci = data.u16(0)?;
        kind = data.u16(2)?;
        if line.options.link_header {
            put_tag(line, tci);
            put_inner_ethertype(line, kind);
        }
        line.link_header_len += VLAN_LEN;
        data = data.skip(VLAN_LEN);
    }
    if kind == PROTOCOL_802_2 {
        return llc::print(line, data);
    }
    if kind <= names::MAX_LENGTH || !ethertype(line, kind, data)? {
        if !line.options.link_header {
            put!(line, "{:>3} ", header.direction());
            header.put(line);
        }
        default_print(line, data);
    }
    Ok(())
}

/// BSD loopback: an address family in the byte order of the host that captured.
fn null(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const FAMILY_LEN: usize = 4;
    line.protocol = "null";
    let stored = data.u32(0)?;
    let family = if stored & 0xffff_0000 == 0 {
        stored
    } else {
        stored.swap_bytes()
    };
    // 24, 28 and 30 are AF_INET6 of the BSDs and macOS, 10 of Linux.
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

/// An IP packet of the version that its first half byte says.
pub(super) fn any_ip(line: &mut Line<'_>, data: Data<'_>) -> Printed {
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
