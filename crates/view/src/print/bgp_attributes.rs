//! BGP updates: routes that go and come, and their attributes.

use std::net::Ipv4Addr;

use super::bgp::subsequent_family;
use super::bgp_routes::{Family, prefixes};
use super::line::{Data, Line, Printed, Stop, put};
use super::{dump, names};

pub(super) fn update(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let withdrawn = usize::from(data.u16(0)?);
    let routes = Data {
        bytes: data.slice(2, withdrawn)?,
        len: withdrawn,
    };
    if withdrawn > 1 {
        put!(line, "\n\t  Withdrawn routes:");
        prefixes::<4>(line, routes, "\n\t    ")?;
    }
    let rest = data.skip(2 + withdrawn);
    let len = usize::from(rest.u16(0)?);
    let after = rest.skip(2);
    // As tcpdump has it, also after routes that go.
    if withdrawn != 1 && len == 0 && after.len == 0 {
        put!(line, "\n\t  End-of-Rib Marker (empty NLRI)");
        return Ok(());
    }
    let list = Data {
        bytes: after.slice(0, len)?,
        len,
    };
    attributes(line, list, "  ")?;
    let routes = after.skip(len);
    if routes.len > 0 {
        put!(line, "\n\t  Updated routes:");
        prefixes::<4>(line, routes, "\n\t    ")?;
    }
    Ok(())
}

fn name(kind: u8) -> &'static str {
    match kind {
        1 => "Origin",
        2 => "AS Path",
        3 => "Next Hop",
        4 => "Multi Exit Discriminator",
        5 => "Local Preference",
        6 => "Atomic Aggregate",
        7 => "Aggregator",
        8 => "Community",
        9 => "Originator ID",
        10 => "Cluster List",
        11 => "DPA",
        12 => "Advertisers",
        13 => "RCID_PATH / CLUSTER_ID",
        14 => "Multi-Protocol Reach NLRI",
        15 => "Multi-Protocol Unreach NLRI",
        16 => "Extended Community",
        17 => "AS4 Path",
        18 => "AS4 Aggregator",
        22 => "PMSI Tunnel",
        23 => "Tunnel Encapsulation",
        25 => "IPv6 Extended Community",
        26 => "Accumulated IGP Metric",
        32 => "Large Community",
        33 => "BGPsec Path",
        35 => "Only to Customer (OTC)",
        128 => "Attribute Set",
        _ => "Unknown Attribute",
    }
}

/// `indent` is deeper for those that one attribute holds.
fn attributes(line: &mut Line<'_>, mut rest: Data<'_>, indent: &str) -> Printed {
    const EXTENDED: u8 = 0x10;
    const SET: u8 = 128;
    while rest.len > 0 {
        if rest.len < 2 {
            put!(line, "\n\t  [path attrs too short]");
            break;
        }
        let (flags, kind) = (rest.u8(0)?, rest.u8(1)?);
        let (len, header_len) = match flags & EXTENDED {
            0 => (usize::from(rest.u8(2)?), 3),
            _ => (usize::from(rest.u16(2)?), 4),
        };
        put!(line, "\n\t{indent}{} ({kind}), length: {len}", name(kind));
        if flags != 0 {
            let letters = [(0x80, "O"), (0x40, "T"), (0x20, "P"), (0x10, "E")];
            let set = letters.iter().filter(|(bit, _)| flags & bit != 0);
            put!(
                line,
                ", Flags [{}",
                set.map(|(_, letter)| *letter).collect::<String>()
            );
            if flags & 0xf != 0 {
                put!(line, "+{:x}", flags & 0xf);
            }
            put!(line, "]");
        }
        // As tcpdump has it: the colon is one of the flags' only outside of sets.
        if flags != 0 || indent.len() > 2 {
            put!(line, ": ");
        }
        let value = rest.skip(header_len);
        if value.len < len {
            put!(line, " [path attrs too short]");
            break;
        }
        let value = value.claimed(len);
        attribute(line, kind, value)?;
        // The attributes of a set have shown all of its bytes.
        if line.options.verbosity > 1 && len > 0 && kind != SET {
            dump::hex(line.out, "\n\t    ", value.bytes);
        }
        rest = rest.skip(header_len + len);
    }
    Ok(())
}

fn attribute(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> Printed {
    let is_right = match kind {
        1 => value.len == 1,
        2 | 17 => value.len.is_multiple_of(2),
        3..=5 | 9 | 35 => value.len == 4,
        6 => value.len == 0,
        7 => matches!(value.len, 6 | 8),
        8 | 10 => value.len.is_multiple_of(4),
        16 => value.len.is_multiple_of(8),
        18 => value.len == 8,
        32 => value.len > 0 && value.len.is_multiple_of(12),
        _ => true,
    };
    if !is_right {
        put!(line, "invalid len");
        return Ok(());
    }
    match kind {
        1 => {
            let origin = match value.u8(0)? {
                0 => "IGP",
                1 => "EGP",
                2 => "Incomplete",
                _ => "Unknown Origin Typecode",
            };
            put!(line, "{origin}");
        }
        2 | 17 => path(line, kind, value)?,
        3 | 9 => put!(line, "{}", Ipv4Addr::from(value.u32(0)?)),
        4 | 5 => put!(line, "{}", value.u32(0)?),
        35 => put!(line, " OTC {}", value.u32(0)?),
        6 => {}
        7 | 18 => {
            let (system, at) = match value.len {
                6 => (u32::from(value.u16(0)?), 2),
                _ => (value.u32(0)?, 4),
            };
            let origin = Ipv4Addr::from(value.u32(at)?);
            put!(line, " AS #{system}, origin {origin}");
        }
        8 => {
            for at in (0..value.len).step_by(4) {
                let comma = if at + 4 < value.len { ", " } else { "" };
                match value.u32(at)? {
                    0xffff_ff01 => put!(line, " NO_EXPORT"),
                    0xffff_ff02 => put!(line, " NO_ADVERTISE"),
                    0xffff_ff03 => put!(line, " NO_EXPORT_SUBCONFED"),
                    community => {
                        put!(line, "{}:{}{comma}", community >> 16, community & 0xffff);
                    }
                }
            }
        }
        10 => {
            for at in (0..value.len).step_by(4) {
                let comma = if at + 4 < value.len { ", " } else { "" };
                put!(line, "{}{comma}", Ipv4Addr::from(value.u32(at)?));
            }
        }
        14 => reached(line, value)?,
        15 => unreached(line, value)?,
        22 => tunnel(line, value)?,
        26 => accumulated(line, value)?,
        16 => communities(line, value)?,
        128 => {
            put!(line, "\n\t    Origin AS: {}", value.u32(0)?);
            line.nested(|line| attributes(line, value.skip(4), "      "))?;
        }
        32 => {
            put!(line, "\n\t    ");
            for at in (0..value.len).step_by(12) {
                put!(
                    line,
                    "{}:{}:{}{}",
                    value.u32(at)?,
                    value.u32(at + 4)?,
                    value.u32(at + 8)?,
                    if at + 12 < value.len { ", " } else { "" }
                );
            }
        }
        _ => {
            put!(line, "\n\t    no Attribute {kind} decoder");
            if line.options.verbosity <= 1 {
                dump::hex(line.out, "\n\t    ", value.bytes);
            }
        }
    }
    Ok(())
}

/// Numbers of autonomous systems take two bytes if the segments make sense so, and four otherwise.
fn path(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> Printed {
    const NEW: u8 = 17;
    if value.len == 0 {
        put!(line, "empty");
        return Ok(());
    }
    let makes_sense = || {
        let mut rest = value.bytes;
        while let [segment, count, after @ ..] = rest {
            match after.get(2 * usize::from(*count)..) {
                Some(after) if (1..=4).contains(segment) && *count > 0 => rest = after,
                _ => return false,
            }
        }
        rest.is_empty()
    };
    let size = if kind != NEW && makes_sense() { 2 } else { 4 };
    let mut rest = value;
    while rest.len > 0 {
        let (segment, count) = (rest.u8(0)?, usize::from(rest.u8(1)?));
        let (before, after) = match segment {
            1 => ("{", "}"),
            2 => ("", ""),
            3 => ("(", ")"),
            4 => ("({", "})"),
            _ => ("?", "?"),
        };
        put!(line, "{before}");
        for index in 0..count {
            let at = 2 + index * size;
            match size {
                2 => put!(line, "{} ", rest.u16(at)?),
                _ => put!(line, "{} ", rest.u32(at)?),
            }
        }
        put!(line, "{after}");
        rest = rest.skip(2 + count * size);
    }
    Ok(())
}

/// The family of the routes that follow; `None` if these are shown as bytes.
fn family(line: &mut Line<'_>, value: Data<'_>) -> Result<Option<Family>, Stop> {
    let (family, subsequent) = (value.u16(0)?, value.u8(2)?);
    let vendor = if subsequent > 128 {
        "vendor specific "
    } else {
        ""
    };
    put!(
        line,
        "\n\t    AFI: {} ({family}), {vendor}SAFI: {} ({subsequent})",
        or_unknown(names::address_family(family), "Unknown AFI"),
        or_unknown(subsequent_family(subsequent), "Unknown SAFI")
    );
    let known = Family::of(family, subsequent);
    if known.is_none() {
        put!(line, "\n\t    no AFI {family} / SAFI {subsequent} decoder");
        if line.options.verbosity <= 1 {
            dump::hex(line.out, "\n\t    ", value.bytes);
        }
    }
    Ok(known)
}

/// What has no name is called otherwise here than in capabilities.
fn or_unknown<'a>(name: &'a str, unknown: &'a str) -> &'a str {
    if name == "Unknown" { unknown } else { name }
}

fn reached(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let Some(family) = family(line, value)? else {
        return Ok(());
    };
    let len = usize::from(value.u8(3)?);
    if len > 0 {
        put!(line, "\n\t    nexthop: ");
        family.put_next_hops(line, value.slice(4, len)?)?;
    }
    put!(line, ", nh-length: {len}");
    let mut rest = value.skip(4 + len);
    let attachments = rest.u8(0)?;
    rest = rest.skip(1);
    if attachments == 0 {
        put!(line, ", no SNPA");
    } else {
        put!(line, "\n\t    {attachments} SNPA");
    }
    for _ in 0..attachments {
        let len = usize::from(rest.u8(0)?);
        put!(line, "\n\t      {len} bytes");
        rest.slice(1, len)?;
        rest = rest.skip(1 + len);
    }
    family.put_routes(line, rest)
}

fn unreached(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let Some(family) = family(line, value)? else {
        return Ok(());
    };
    if value.len == 3 {
        put!(line, "\n\t      End-of-Rib Marker (empty NLRI)");
        return Ok(());
    }
    family.put_routes(line, value.skip(3))
}

/// The tunnel of a multicast VPN's tree (RFC 6514).
fn tunnel(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let (flags, kind) = (value.u8(0)?, value.u8(1)?);
    let label = (u32::from(value.u8(2)?) << 16 | u32::from(value.u16(3)?)) >> 4;
    let name = match kind {
        0 => "None",
        1 => "RSVP-TE P2MP LSP",
        2 => "LDP P2MP LSP",
        3 => "PIM-SSM",
        4 => "PIM-SM",
        5 => "PIM-BIDIR",
        6 => "Ingress Replication",
        7 => "LDP MP2MP LSP",
        _ => "Unknown",
    };
    let leaf = match flags & 1 {
        0 => "none",
        _ => "Leaf Information required",
    };
    put!(
        line,
        "\n\t    Tunnel-type {name} ({kind}), Flags [{leaf}], MPLS Label {label}"
    );
    let rest = value.skip(5);
    let first = || rest.u32(0).map(Ipv4Addr::from);
    match kind {
        1 => put!(
            line,
            "\n\t      Extended-Tunnel-ID {}, P2MP-ID 0x{:08x}",
            first()?,
            rest.u32(4)?
        ),
        2 | 7 => put!(
            line,
            "\n\t      Root-Node {}, LSP-ID 0x{:08x}",
            first()?,
            rest.u32(4)?
        ),
        3..=5 => {
            let role = if kind == 3 { "Root-Node" } else { "Sender" };
            let group = Ipv4Addr::from(rest.u32(4)?);
            put!(line, "\n\t      {role} {}, P-Group {group}", first()?);
        }
        6 => put!(line, "\n\t      Tunnel-Endpoint {}", first()?),
        _ if line.options.verbosity <= 1 => dump::hex(line.out, "\n\t      ", rest.bytes),
        _ => {}
    }
    Ok(())
}

/// The accumulated cost of a route's way (RFC 7311).
fn accumulated(line: &mut Line<'_>, mut rest: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 3;
    while rest.len >= HEADER_LEN {
        let (kind, len) = (rest.u8(0)?, usize::from(rest.u16(1)?));
        let name = if kind == 1 { "AIGP" } else { "Unknown" };
        put!(line, "\n\t    {name} TLV ({kind}), length {len}");
        if len < HEADER_LEN {
            return Err(Stop::Cut);
        }
        let value = rest.slice(HEADER_LEN, len - HEADER_LEN)?;
        match kind {
            1 => {
                let metric = value.first_chunk().copied().ok_or(Stop::Cut)?;
                put!(line, ", metric {}", u64::from_be_bytes(metric));
            }
            _ if line.options.verbosity <= 1 => dump::hex(line.out, "\n\t      ", value),
            _ => {}
        }
        rest = rest.skip(len);
    }
    Ok(())
}

fn communities(line: &mut Line<'_>, value: Data<'_>) -> Result<(), Stop> {
    for at in (0..value.len).step_by(8) {
        let one = value.skip(at);
        let kind = one.u16(0)?;
        let name = match kind {
            0x0002 | 0x0102 | 0x0202 => "target",
            0x0003 | 0x0103 | 0x0203 => "origin",
            0x4004 => "link-BW",
            0x0005 | 0x0105 | 0x0205 | 0x8005 => "ospf-domain",
            0x0306 | 0x8000 => "ospf-route-type",
            0x030c => "encapsulation",
            0x0107 | 0x8001 => "ospf-router-id",
            0x800a => "layer2-info",
            0x8800 => "eigrp-general-route (flag, tag)",
            0x8801 => "eigrp-route-metric (AS, delay)",
            0x8802 => "eigrp-route-metric (reliability, nexthop, bandwidth)",
            0x8803 => "eigrp-route-metric (load, MTU)",
            0x8804 => "eigrp-external-route (remote-AS, remote-ID)",
            0x8805 => "eigrp-external-route (remote-proto, remote-metric)",
            0x0009 => "source-AS",
            0x010b => "vrf-route-import",
            0x000a | 0xf10a => "l2vpn-id",
            _ => "unknown extd community typecode",
        };
        put!(line, "\n\t    {name} (0x{kind:04x}), Flags [");
        match kind & 0xc000 {
            0x8000 => put!(line, "vendor-specific"),
            0x4000 => put!(line, "non-transitive"),
            0xc000 => put!(line, "vendor-specific, non-transitive"),
            _ => put!(line, "none"),
        }
        put!(line, "]");
        match kind {
            0x0002 | 0x0003 | 0x000a => put!(
                line,
                ": {}:{} (= {})",
                one.u16(2)?,
                one.u32(4)?,
                Ipv4Addr::from(one.u32(4)?)
            ),
            0x0005 | 0x0105 | 0x0205 | 0x8005 | 0x0107 | 0x8001 => {
                put!(line, ": {}", Ipv4Addr::from(one.u32(2)?));
            }
            0x0306 | 0x8000 => route_type(line, one)?,
            0x0009 => put!(line, ": AS {}", one.u16(2)?),
            0x030c => {
                let tunnel = encapsulation(one.u16(6)?);
                put!(line, ": Tunnel type: {tunnel}");
            }
            0x0102 | 0x0103 | 0xf10a | 0x010b => {
                put!(line, ": {}:{}", Ipv4Addr::from(one.u32(2)?), one.u16(6)?);
            }
            0x4004 => {
                let bytes_a_second = f32::from_bits(one.u32(4)?);
                put!(line, ": bandwidth: {:.3} Mbps", bytes_a_second * 8.0 / 1e6);
            }
            0x0202 | 0x0203 => put!(line, ": {}:{}", one.u32(2)?, one.u16(6)?),
            _ => put!(line, ": {:08x}{:04x}", one.u32(2)?, one.u16(6)?),
        }
    }
    Ok(())
}

/// Where in OSPF a route came from.
fn route_type(line: &mut Line<'_>, one: Data<'_>) -> Printed {
    let area = Ipv4Addr::from(one.u32(2)?);
    let (kind, options) = (one.u8(6)?, one.u8(7)?);
    put!(line, ": area:{area}, router-type:");
    match kind {
        1 => put!(line, "Router"),
        2 => put!(line, "Network"),
        3 => put!(line, "Summary"),
        5 => put!(line, "External"),
        7 => put!(line, "NSSA External"),
        129 => put!(line, "MPLS-VPN Sham"),
        _ => put!(line, "unknown (0x{kind:02x})"),
    }
    let second = if options & 1 != 0 { "E2" } else { "" };
    let external = if matches!(kind, 5 | 7) { "E1" } else { "" };
    put!(line, ", metric-type:{second}{external}");
    Ok(())
}

fn encapsulation(kind: u16) -> &'static str {
    match kind {
        1 => "L2TPv3 over IP",
        2 => "GRE",
        3 => "Transmit Tunnel",
        4 => "IPsec",
        5 => "IP in IP with IPsec",
        6 => "MPLS in IP with IPsec",
        7 => "IP in IP",
        8 => "VXLAN",
        9 => "NVGRE",
        10 => "MPLS",
        11 => "MPLS in GRE",
        12 => "VXLAN GPE",
        13 => "MPLS in UDP",
        14 => "IPv6",
        15 => "SR TE",
        16 => "Bare",
        17 => "SR",
        _ => "unknown encaps",
    }
}
