//! Tunnels: VXLAN, Geneve, GRE.

use super::line::{Data, Line, Printed, flag_names, put};
use super::{carrier, ipv4, ipv6, link, names};

/// What stands between a tunnel's header and what is inside.
fn separator(line: &Line<'_>) -> &'static str {
    if line.verbose() { "\n\t" } else { ": " }
}

pub(super) fn vxlan(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 8;
    const HAS_VNI: u8 = 0x08;
    line.protocol = "vxlan";
    put!(line, "VXLAN");
    let flags = data.u8(0)?;
    let mark = if flags & HAS_VNI != 0 { 'I' } else { '.' };
    put!(line, ", flags [{mark}] (0x{flags:02x}), ");
    let [a, b, c] = data.array(4)?;
    put!(line, "vni {}: ", u32::from_be_bytes([0, a, b, c]));
    data.need(HEADER_LEN)?;
    link::ethernet(line, data.skip(HEADER_LEN))
}

const GENEVE_FLAGS: [(u32, &str); 8] = [
    (0x80, "O"),
    (0x40, "C"),
    (0x20, "R1"),
    (0x10, "R2"),
    (0x08, "R3"),
    (0x04, "R4"),
    (0x02, "R5"),
    (0x01, "R6"),
];

pub(super) fn geneve(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 8;
    line.protocol = "geneve";
    put!(line, "Geneve");
    let first = data.u8(0)?;
    if first >> 6 != 0 {
        put!(line, " ERROR: unknown-version {}", first >> 6);
        return Ok(());
    }
    data.need(HEADER_LEN)?;
    let (flags, kind) = (data.u8(1)?, data.u16(2)?);
    let (vni, reserved) = (data.u32(4)? >> 8, data.u8(7)?);
    put!(
        line,
        ", Flags [{}]",
        flag_names(flags.into(), &GENEVE_FLAGS, "")
    );
    put!(line, ", vni 0x{vni:x}");
    if reserved != 0 {
        put!(line, ", rsvd 0x{reserved:x}");
    }
    if line.options.link_header {
        put!(
            line,
            ", proto {} (0x{kind:04x})",
            names::ethertype(kind).unwrap_or("unknown")
        );
    }
    let rest = data.skip(HEADER_LEN);
    let options_len = usize::from(first & 0x3f) * 4;
    if rest.len < options_len {
        put!(
            line,
            " truncated-geneve - {} bytes missing",
            options_len - rest.len
        );
        return Ok(());
    }
    rest.need(options_len)?;
    if options_len > 0 {
        put!(line, ", options [");
        match line.verbose() {
            true => geneve_options(line, rest.claimed(options_len))?,
            false => put!(line, "{options_len} bytes"),
        }
        put!(line, "]");
    }
    put!(line, "{}", separator(line));
    let inner = rest.skip(options_len);
    if kind == names::BRIDGED_ETHERNET {
        link::ethernet(line, inner)
    } else {
        if !link::ethertype(line, kind, inner)? {
            put!(line, "geneve-proto-0x{kind:x}");
        }
        Ok(())
    }
}

const GRE_FLAGS: [(u32, &str); 6] = [
    (0x8000, "checksum present"),
    (0x4000, "routing present"),
    (0x2000, "key present"),
    (0x1000, "sequence# present"),
    (0x0800, "source routing present"),
    (0x0080, "ack present"),
];

pub(super) fn gre(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "gre";
    let version = data.u16(0)? & 7;
    put!(line, "GREv{version}");
    match version {
        0 => gre_0(line, data),
        1 => gre_1(line, data),
        _ => {
            put!(line, " ERROR: unknown-version");
            Ok(())
        }
    }
}

fn gre_0(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const CHECKSUM: u16 = 0x8000;
    const ROUTING: u16 = 0x4000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    let (flags, kind) = (data.u16(0)?, data.u16(2)?);
    if line.verbose() {
        put!(
            line,
            ", Flags [{}]",
            flag_names(flags.into(), &GRE_FLAGS, ", ")
        );
    }
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
    if line.options.link_header {
        put!(
            line,
            ", proto {} (0x{kind:04x})",
            names::ethertype(kind).unwrap_or("unknown")
        );
    }
    put!(line, ", length {}", data.len);
    if flags & ROUTING != 0 {
        put!(line, ", routed");
        return Ok(());
    }
    put!(line, "{}", separator(line));
    let inner = data.skip(at);
    match kind {
        names::BRIDGED_ETHERNET => link::ethernet(line, inner),
        names::IPV4 => ipv4::print(line, inner),
        names::IPV6 => ipv6::print(line, inner),
        names::MPLS | names::MPLS_MULTICAST => carrier::mpls(line, inner),
        _ => {
            put!(line, "gre-proto-0x{kind:x}");
            Ok(())
        }
    }
}

/// Enhanced GRE, as PPTP has it.
fn gre_1(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    const ACK: u16 = 0x0080;
    let (flags, kind) = (data.u16(0)?, data.u16(2)?);
    if line.verbose() {
        put!(
            line,
            ", Flags [{}]",
            flag_names(flags.into(), &GRE_FLAGS, ", ")
        );
    }
    let mut at = 4;
    if flags & KEY != 0 {
        put!(line, ", call {}", data.u16(at + 2)?);
        at += 4;
    }
    if flags & SEQUENCE != 0 {
        put!(line, ", seq {}", data.u32(at)?);
        at += 4;
    }
    if flags & ACK != 0 {
        put!(line, ", ack {}", data.u32(at)?);
        at += 4;
    }
    if flags & SEQUENCE == 0 {
        put!(line, ", no-payload, length {}", data.len);
        return Ok(());
    }
    if line.options.link_header {
        put!(
            line,
            ", proto {} (0x{kind:04x})",
            names::ethertype(kind).unwrap_or("unknown")
        );
    }
    put!(line, ", length {}{}", data.len, separator(line));
    match kind {
        names::PPP => carrier::ppp(line, data.skip(at)),
        _ => {
            put!(line, "gre-proto-0x{kind:x}");
            Ok(())
        }
    }
}

fn geneve_options(line: &mut Line<'_>, mut rest: Data<'_>) -> Printed {
    let mut joint = "";
    while rest.len > 0 {
        let (class, kind) = (rest.u16(0)?, rest.u8(2)?);
        let len = 4 + usize::from(rest.u8(3)? & 0x1f) * 4;
        let name = match class {
            0..=0xff => "Standard",
            0x0100 => "Linux",
            0x0101 => "Open vSwitch",
            0x0102 => "Open Virtual Networking (OVN)",
            0x0103 => "In-band Network Telemetry (INT)",
            0x0104 => "VMware",
            0xfff0.. => "Experimental",
            _ => "Unknown",
        };
        let critical = if kind & 0x80 != 0 { "(C)" } else { "" };
        put!(
            line,
            "{joint}class {name} (0x{class:x}) type 0x{kind:x}{critical} len {len}"
        );
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
