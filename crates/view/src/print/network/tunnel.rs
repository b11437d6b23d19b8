//! Tunnels: GRE, and over UDP VXLAN, Geneve and GTP-U; and MPLS.

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::{default_print, ethernet, ipv4, ipv6, link, names, ppp};
use trawl_packet::net::ethertype;

/// Returns the text between a tunnel's header and the inner packet.
fn separator(line: &Line<'_>) -> &'static str {
    if line.verbose() { "\n\t" } else { ": " }
}

/// Shows the ethertype of the inner packet, with the link header.
fn put_kind(line: &mut Line<'_>, kind: u16) {
    if line.options.link_header {
        let name = names::ethertype(kind).unwrap_or("unknown");
        put!(line, ", proto {name} (0x{kind:04x})");
    }
}

pub fn vxlan(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 8;
    const HAS_VNI: u8 = 0x08;
    line.protocol = "vxlan";
    put!(line, "VXLAN");
    let flags = data.u8(0)?;
    let mark = if flags & HAS_VNI != 0 { 'I' } else { '.' };
    put!(line, ", flags [{mark}] (0x{flags:02x}), ");
    line.show(data, "vni {u24 4}: ")?;
    data.need(HEADER_LEN)?;
    ethernet::print(line, data.skip(HEADER_LEN))
}

pub fn geneve(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 8;
    line.protocol = "geneve";
    put!(line, "Geneve");
    let first = data.u8(0)?;
    if first >> 6 != 0 {
        put!(line, " ERROR: unknown-version {}", first >> 6);
        return Ok(());
    }
    data.need(HEADER_LEN)?;
    let (flags, kind, reserved) = (data.u8(1)?, data.u16(2)?, data.u8(7)?);
    let flags = match names::joined("geneve.flags", flags, "") {
        letters if letters.is_empty() => "none".to_owned(),
        letters => letters,
    };
    put!(line, ", Flags [{flags}], vni 0x{:x}", data.number(4, 3)?);
    if reserved != 0 {
        put!(line, ", rsvd 0x{reserved:x}");
    }
    put_kind(line, kind);
    let rest = data.skip(HEADER_LEN);
    let len = usize::from(first & 0x3f) * 4;
    if rest.len < len {
        put!(line, " truncated-geneve - {} bytes missing", len - rest.len);
        return Ok(());
    }
    rest.need(len)?;
    if len > 0 {
        put!(line, ", options [");
        if line.verbose() {
            geneve_options(line, rest.claimed(len))?
        } else {
            put!(line, "{len} bytes")
        }
        put!(line, "]");
    }
    put!(line, "{}", separator(line));
    let inner = rest.skip(len);
    if kind == ethertype::BRIDGED_ETHERNET {
        return ethernet::print(line, inner);
    }
    if !link::ethertype(line, kind, inner)? {
        put!(line, "geneve-proto-0x{kind:x}");
    }
    Ok(())
}

fn geneve_options(line: &mut Line<'_>, mut rest: Data<'_>) -> Printed {
    let mut joint = "";
    while rest.len > 0 {
        let (class, kind) = (rest.u16(0)?, rest.u8(2)?);
        let len = 4 + usize::from(rest.u8(3)? & 0x1f) * 4;
        let name = names::of("geneve.class", class);
        let critical = if kind & 0x80 != 0 { "(C)" } else { "" };
        put!(line, "{joint}class {name} (0x{class:x}) type 0x{kind:x}{critical} len {len}");
        joint = ", ";
        if len > rest.len {
            put!(line, " [bad length]");
            break;
        }
        if line.options.verbosity > 1 && len > 4 {
            put!(line, " data");
            for at in (4..len).step_by(4) {
                put!(line, " {:08x}", rest.u32(at)?);
            }
        }
        rest = rest.skip(len);
    }
    Ok(())
}

pub fn gre(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "gre";
    let version = data.u16(0)? & 7;
    put!(line, "GREv{version}");
    if version > 1 {
        put!(line, " ERROR: unknown-version");
        return Ok(());
    }
    let (flags, kind) = (data.u16(0)?, data.u16(2)?);
    if line.verbose() {
        put!(line, ", Flags [{}]", names::flags("gre.flags", flags));
    }
    match version {
        0 => gre_0(line, flags, kind, data),
        _ => gre_1(line, flags, kind, data),
    }
}

const CHECKSUM: u16 = 0x8000;
const ROUTING: u16 = 0x4000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;
const ACK: u16 = 0x0080;

fn gre_0(line: &mut Line<'_>, flags: u16, kind: u16, data: Data<'_>) -> Printed {
    let mut at = 4;
    if flags & (CHECKSUM | ROUTING) != 0 {
        if line.verbose() {
            put!(line, ", sum 0x{:x}", data.u16(at)?);
        }
        put!(line, ", off 0x{:x}", data.u16(at + 2)?);
        at += 4;
    }
    if flags & KEY != 0 {
        put!(line, ", key=0x{:x}", data.u32(at)?);
        at += 4;
    }
    if flags & SEQUENCE != 0 {
        put!(line, ", seq {}", data.u32(at)?);
        at += 4;
    }
    put_kind(line, kind);
    put!(line, ", length {}", data.len);
    if flags & ROUTING != 0 {
        put!(line, ", routed");
        return Ok(());
    }
    put!(line, "{}", separator(line));
    let inner = data.skip(at);
    match kind {
        ethertype::BRIDGED_ETHERNET => return ethernet::print(line, inner),
        ethertype::IPV4 => return ipv4::print(line, inner),
        ethertype::IPV6 => return ipv6::print(line, inner),
        ethertype::MPLS | ethertype::MPLS_MULTICAST => return mpls(line, inner),
        _ => put!(line, "gre-proto-0x{kind:x}"),
    }
    Ok(())
}

/// Shows enhanced GRE, as used by PPTP.
fn gre_1(line: &mut Line<'_>, flags: u16, kind: u16, data: Data<'_>) -> Printed {
    let mut at = 4;
    if flags & KEY != 0 {
        put!(line, ", call {}", data.u16(at + 2)?);
        at += 4;
    }
    for (bit, name) in [(SEQUENCE, "seq"), (ACK, "ack")] {
        if flags & bit != 0 {
            put!(line, ", {name} {}", data.u32(at)?);
            at += 4;
        }
    }
    if flags & SEQUENCE == 0 {
        put!(line, ", no-payload, length {}", data.len);
        return Ok(());
    }
    put_kind(line, kind);
    put!(line, ", length {}{}", data.len, separator(line));
    if kind == ethertype::PPP {
        return ppp::print(line, data.skip(at));
    }
    put!(line, "gre-proto-0x{kind:x}");
    Ok(())
}

/// Shows GTP-U, the user plane of GTP: the header of the tunnel, and the packet inside.
pub fn gtp_u(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const G_PDU: u8 = 255;
    line.protocol = "gtp-u";
    let flags = data.u8(0)?;
    let (version, is_gtp) = (flags >> 5, flags & 0x10 != 0);
    put!(line, "UDP, length {}", data.len);
    if version != 1 || !is_gtp {
        return Ok(());
    }
    line.show(data, ": GTP-U, {n8 1 gtp-u} ({u8 1}), TEID 0x{x32 4}")?;
    let mut at = 8;
    // Sequence number, N-PDU number and the next extension's type are present if any of them is used.
    if flags & 7 != 0 {
        let mut next = if flags & 4 != 0 { data.u8(11)? } else { 0 };
        at = 12;
        while next != 0 {
            let len = usize::from(data.u8(at)?) * 4;
            if len == 0 {
                return Err(Stop::Invalid);
            }
            next = data.u8(at + len - 1)?;
            at += len;
        }
    }
    if data.u8(1)? != G_PDU {
        return Ok(());
    }
    let inner = data.skip(at);
    put!(line, ": ");
    line.nested(|line| match inner.u8(0)? >> 4 {
        4 => ipv4::print(line, inner),
        6 => ipv6::print(line, inner),
        version => {
            put!(line, "unknown version {version}");
            Ok(())
        }
    })
}

/// Shows a stack of labels, and the IP packet under it if its first half byte looks like one.
pub fn mpls(line: &mut Line<'_>, mut data: Data<'_>) -> Printed {
    const BOTTOM: u32 = 0x100;
    const EXPLICIT_NULL_V4: u32 = 0;
    const EXPLICIT_NULL_V6: u32 = 2;
    const IMPLICIT_NULL: u32 = 3;
    line.protocol = "mpls";
    put!(line, "MPLS");
    let mut separator = " ";
    let label = loop {
        let entry = data.u32(0)?;
        data = data.skip(4);
        let label = entry >> 12;
        put!(line, "{separator}(label {label}");
        separator = if line.verbose() { "\n\t" } else { " " };
        let name = names::find("mpls.label", label);
        if let Some(name) = name.filter(|_| line.verbose()) {
            put!(line, " ({name})");
        }
        let end = if entry & BOTTOM != 0 { ", [S]" } else { "" };
        put!(line, ", tc {}{end}, ttl {})", entry >> 9 & 7, entry & 0xff);
        if entry & BOTTOM != 0 {
            break label;
        }
    };
    if data.len == 0 {
        return Ok(());
    }
    let version = match label {
        EXPLICIT_NULL_V4 | IMPLICIT_NULL => 4,
        EXPLICIT_NULL_V6 => 6,
        _ => data.u8(0)? >> 4,
    };
    if matches!(version, 4 | 6) {
        put!(line, "{separator}");
    }
    match version {
        4 => ipv4::print(line, data),
        6 => ipv6::print(line, data),
        _ => {
            default_print(line, data);
            data.need(data.len)
        }
    }
}
