//! BGP updates: routes that go and come, and their attributes.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::bgp::subsequent_family;
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
    attributes(line, list)?;
    let routes = after.skip(len);
    if routes.len > 0 {
        put!(line, "\n\t  Updated routes:");
        prefixes::<4>(line, routes, "\n\t    ")?;
    }
    Ok(())
}

/// Whether numbers of paths stand before the prefixes: it is not said, only that they make sense with them and none
/// without.
fn has_path_numbers(data: Data<'_>, most: usize) -> bool {
    let makes_sense = |with: bool| {
        let mut rest = data.bytes;
        while !rest.is_empty() {
            if with {
                let Some(after) = rest.get(4..).filter(|after| !after.is_empty()) else {
                    return false;
                };
                rest = after;
            }
            let bits = usize::from(rest[0]);
            let is_default = bits == 0 && rest.len() > 1;
            match rest.get(1 + bits.div_ceil(8)..) {
                Some(after) if bits <= most && !is_default => rest = after,
                _ => return false,
            }
        }
        true
    };
    !makes_sense(false) && makes_sense(true)
}

/// Prefixes of addresses of `N` bytes.
fn prefixes<const N: usize>(line: &mut Line<'_>, data: Data<'_>, before: &str) -> Printed {
    let with_path = has_path_numbers(data, N * 8);
    let mut rest = data;
    while rest.len > 0 {
        let mut path = None;
        if with_path {
            path = Some(rest.u32(0)?);
            rest = rest.skip(4);
        }
        let bits = usize::from(rest.u8(0)?);
        if bits > N * 8 {
            put!(line, "\n\t    (illegal prefix length)");
            return Ok(());
        }
        let octets = bits.div_ceil(8);
        let mut address = [0u8; N];
        address[..octets].copy_from_slice(rest.slice(1, octets)?);
        if let Some(last) = address[..octets].last_mut()
            && bits % 8 != 0
        {
            *last &= (0xff00u16 >> (bits % 8)) as u8;
        }
        put!(line, "{before}{}/{bits}", text(&address));
        if let Some(path) = path {
            put!(line, "   Path Id: {path}");
        }
        rest = rest.skip(1 + octets);
    }
    Ok(())
}

/// An address of four or sixteen bytes.
fn text(bytes: &[u8]) -> String {
    match (bytes.first_chunk::<16>(), bytes.first_chunk::<4>()) {
        (Some(long), _) => Ipv6Addr::from(*long).to_string(),
        (None, Some(short)) => Ipv4Addr::from(*short).to_string(),
        (None, None) => String::new(),
    }
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

fn attributes(line: &mut Line<'_>, mut rest: Data<'_>) -> Printed {
    const EXTENDED: u8 = 0x10;
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
        put!(line, "\n\t  {} ({kind}), length: {len}", name(kind));
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
            put!(line, "]: ");
        }
        let value = rest.skip(header_len);
        if value.len < len {
            put!(line, " [path attrs too short]");
            break;
        }
        let value = value.claimed(len);
        attribute(line, kind, value)?;
        if line.options.verbosity > 1 && len > 0 {
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
        16 => communities(line, value)?,
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

/// Families whose prefixes are plain addresses; the others are shown as bytes.
fn put_routes(line: &mut Line<'_>, family: u16, subsequent: u8, routes: Data<'_>) -> Printed {
    match (family, subsequent) {
        (1, 1..=3) => prefixes::<4>(line, routes, "\n\t      "),
        (2, 1..=3) => prefixes::<16>(line, routes, "\n\t      "),
        _ => {
            put!(line, "\n\t    no AFI {family} / SAFI {subsequent} decoder");
            if line.options.verbosity <= 1 {
                dump::hex(line.out, "\n\t    ", routes.bytes);
            }
            Ok(())
        }
    }
}

fn reached(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let (family, subsequent) = (value.u16(0)?, value.u8(2)?);
    put!(
        line,
        "\n\t    AFI: {} ({family}), SAFI: {} ({subsequent})",
        names::address_family(family),
        subsequent_family(subsequent)
    );
    let is_plain = matches!((family, subsequent), (1 | 2, 1..=3));
    if !is_plain {
        return put_routes(line, family, subsequent, value.skip(3));
    }
    let len = usize::from(value.u8(3)?);
    let hops = value.slice(4, len)?;
    put!(line, "\n\t    nexthop: ");
    let size = if family == 1 { 4 } else { 16 };
    for (index, hop) in hops.chunks(size).enumerate() {
        if index > 0 {
            put!(line, ", ");
        }
        match hop.len() == size {
            true => put!(line, "{}", text(hop)),
            false => put!(line, "invalid len"),
        }
    }
    put!(line, ", nh-length: {len}");
    let rest = value.skip(4 + len);
    let reserved = rest.u8(0)?;
    if reserved > 0 {
        put!(line, "\n\t    {reserved} SNPA");
    } else {
        put!(line, ", no SNPA");
    }
    put_routes(line, family, subsequent, rest.skip(1))
}

fn unreached(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let (family, subsequent) = (value.u16(0)?, value.u8(2)?);
    put!(
        line,
        "\n\t    AFI: {} ({family}), SAFI: {} ({subsequent})",
        names::address_family(family),
        subsequent_family(subsequent)
    );
    if value.len == 3 {
        put!(line, "\n\t      End-of-Rib Marker (empty NLRI)");
        return Ok(());
    }
    put_routes(line, family, subsequent, value.skip(3))
}

fn communities(line: &mut Line<'_>, value: Data<'_>) -> Result<(), Stop> {
    for at in (0..value.len).step_by(8) {
        let one = value.skip(at);
        let kind = one.u16(0)?;
        let name = match kind {
            0x0002 | 0x0102 | 0x0202 => "target",
            0x0003 | 0x0103 | 0x0203 => "origin",
            0x0005 | 0x0105 => "ospf-domain",
            0x0306 => "ospf-route-type",
            0x0107 => "ospf-router-id",
            0x4004 => "link-BW",
            0x8001 => "vrf-target",
            0x030c => "encapsulation",
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
            0x0002 | 0x0003 => put!(
                line,
                ": {}:{} (= {})",
                one.u16(2)?,
                one.u32(4)?,
                Ipv4Addr::from(one.u32(4)?)
            ),
            0x0102 | 0x0103 | 0x0105 | 0x0107 => {
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
