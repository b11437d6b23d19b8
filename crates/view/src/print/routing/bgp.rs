//! BGP messages in a segment; with `-v` their contents: updates with their attributes, and the routes of each family.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::print::line::{Colons, Data, Layout, Line, Printed, Stop, Tlvs, number, put};
use crate::print::names;

const HEADER_LEN: usize = 19;
const MARKER: [u8; 16] = [0xff; 16];

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "bgp";
    put!(line, ": BGP");
    if !line.verbose() {
        return Ok(());
    }
    let mut rest = data;
    while let Some(at) = rest.bytes.windows(MARKER.len()).position(|bytes| bytes == MARKER) {
        if at > 0 {
            put!(line, " [|bgp]");
        }
        rest = rest.skip(at);
        rest.need(HEADER_LEN)?;
        let (len, kind) = (usize::from(rest.u16(16)?), rest.u8(18)?);
        if len < HEADER_LEN {
            put!(line, "\nmessage length {len} < {HEADER_LEN}");
            return Err(Stop::Invalid);
        }
        let name = names::of("bgp.message", kind);
        if rest.bytes.len() < len {
            put!(line, "\n[|BGP {name}]");
            break;
        }
        put!(line, "\n\t{name} Message ({kind}), length: {len}");
        let message = rest.claimed(len).skip(HEADER_LEN);
        let printed = match kind {
            1 => open(line, message),
            2 => update(line, message),
            3 => notification(line, message),
            4 => Ok(()),
            5 => refresh(line, message),
            _ => {
                put!(line, "\n\t  no Message {kind} decoder");
                line.dump("\n\t  ", message.bytes);
                Ok(())
            }
        };
        // A cut in one message does not affect the next one.
        if printed.is_err() {
            put!(line, " [|bgp]");
        }
        rest = rest.skip(len);
    }
    Ok(())
}

/// Shows `AFI IPv4 (1), SAFI Unicast (1)`.
fn put_families(line: &mut Line<'_>, family: u16, subsequent: u8) {
    let name = names::address_family(family);
    put!(line, "AFI {name} ({family}), SAFI ");
    let name = names::of("bgp.safi", subsequent);
    put!(line, "{name} ({subsequent})");
}

fn open(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const OPEN_LEN: usize = 10;
    data.need(OPEN_LEN)?;
    line.show(data, "\n\t  Version {u8 0}, my AS {u16 1}, Holdtime {u16 3}s, ID {ip4 5}")?;
    let len = usize::from(data.u8(9)?);
    put!(line, "\n\t  Optional parameters, length: {len}");
    let mut list = Tlvs::new(data.skip(OPEN_LEN).list(len), Layout::BYTES.of_value());
    while let Some(option) = list.next()? {
        let (kind, len) = (option.kind, option.len);
        put!(line, "\n\t    ");
        if !option.fits {
            put!(line, " Option {kind}, length: {len}, goes past the end of the options");
            break;
        }
        let name = names::of("bgp.option", kind);
        put!(line, "Option {name} ({kind}), length: {len}");
        match kind {
            2 => capabilities(line, option.value)?,
            _ => put!(line, "\n\t      no decoder for option {kind}"),
        }
    }
    Ok(())
}

fn capabilities(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let mut list = Tlvs::new(data, Layout::BYTES.of_value());
    while let Some(tlv) = list.next()? {
        let (kind, len) = (tlv.kind, tlv.len);
        let name = names::of("bgp.capability", kind);
        put!(line, "\n\t      {name} ({kind}), length: {len}");
        let value = Data::from(tlv.bytes()?);
        let least = match kind {
            1 | 65 => 4,
            64 => 2,
            _ => 0,
        };
        if len < least {
            put!(line, " (too short, < {least})");
            return Ok(());
        }
        let shown = capability(line, kind, value)?;
        if line.options.verbosity > 1 && len > 0 || !shown {
            line.dump("\n\t\t", value.bytes);
        }
    }
    Ok(())
}

/// Shows a capability; returns false if its bytes are to be shown instead.
fn capability(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> Result<bool, Stop> {
    match kind {
        1 => {
            put!(line, "\n\t\t");
            put_families(line, value.u16(0)?, value.u8(3)?);
        }
        64 => {
            let flags = value.u16(0)?;
            let restarted = if flags & 0x8000 != 0 { "R" } else { "none" };
            put!(line, "\n\t\tRestart Flags: [{restarted}]");
            put!(line, ", Restart Time {}s", flags & 0xfff);
            for entry in value.bytes[2..].chunks_exact(4) {
                put!(line, "\n\t\t  ");
                put_families(line, u16::from_be_bytes([entry[0], entry[1]]), entry[2]);
                let kept = if entry[3] & 0x80 != 0 { "yes" } else { "no" };
                put!(line, ", Forwarding state preserved: {kept}");
            }
        }
        2 | 71 | 128 => {}
        65 => line.show(value, "\n\t\t 4 Byte AS {u32 0}")?,
        69 if value.len == 0 => put!(line, " (bogus)"),
        69 | 8 => {
            let entries = value.bytes.chunks(4);
            for entry in entries {
                let [high, low, subsequent, last] = entry else {
                    if kind == 69 {
                        put!(line, " (invalid)");
                    }
                    break;
                };
                put!(line, "\n\t\t");
                put_families(line, u16::from_be_bytes([*high, *low]), *subsequent);
                match kind {
                    8 => put!(line, ", Count: {last}"),
                    _ => put!(line, ", Send/Receive: {}", names::text("bgp.paths", *last)),
                }
            }
        }
        _ => {
            put!(line, "\n\t\tno decoder for Capability {kind}");
            return Ok(false);
        }
    }
    Ok(true)
}

fn notification(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const SHUTDOWN: u8 = 2;
    const RESET: u8 = 4;
    let (major, minor) = (data.u8(0)?, data.u8(1)?);
    put!(line, ", {} ({major})", names::of("bgp.error", major));
    let table = match major {
        1 => "bgp.error.header",
        2 => "bgp.error.open",
        3 => "bgp.error.update",
        5 => "bgp.error.state",
        6 => "bgp.error.cease",
        7 => "bgp.error.capability",
        _ => return Ok(()),
    };
    let subcode = names::of(table, minor);
    let comma = if matches!(major, 5 | 7) { "" } else { "," };
    put!(line, "{comma} subcode {subcode} ({minor})");
    let rest = data.skip(2);
    if major != 6 {
        return Ok(());
    }
    if minor == 1 && rest.len >= 7 {
        put!(line, ", ");
        put_families(line, rest.u16(0)?, rest.u8(2)?);
        line.show(rest, ", Max Prefixes: {u32 3}")?;
    }
    if matches!(minor, SHUTDOWN | RESET) && rest.len >= 1 {
        let len = usize::from(rest.u8(0)?);
        let mut at = 0;
        if len > rest.len - 1 {
            put!(line, ", invalid Shutdown Communication length");
        } else if len == 0 {
            put!(line, ", empty Shutdown Communication");
            at = 1;
        } else {
            put!(line, ", Shutdown Communication (length: {len}): \"");
            line.put_chars(rest.slice(1, len)?);
            put!(line, "\"");
            at = 1 + len;
        }
        let left = rest.skip(at);
        if left.len > 0 {
            put!(line, ", Data: (length: {})", left.len);
            line.dump("\n\t\t", left.bytes);
        }
    }
    Ok(())
}

fn refresh(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    data.need(4)?;
    put!(line, "\n\t  ");
    put_families(line, data.u16(0)?, data.u8(3)?);
    if line.options.verbosity > 1 {
        line.dump("\n\t  ", data.bytes);
    }
    Ok(())
}

fn update(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let withdrawn = usize::from(data.u16(0)?);
    let routes = Data::from(data.slice(2, withdrawn)?);
    if withdrawn > 1 {
        put!(line, "\n\t  Withdrawn routes:");
        prefixes::<4>(line, routes, "\n\t    ")?;
    }
    let rest = data.skip(2 + withdrawn);
    let len = usize::from(rest.u16(0)?);
    let after = rest.skip(2);
    // Also after withdrawn routes, as in tcpdump.
    if withdrawn != 1 && len == 0 && after.len == 0 {
        put!(line, "\n\t  End-of-Rib Marker (empty NLRI)");
        return Ok(());
    }
    let list = Data::from(after.slice(0, len)?);
    attributes(line, list, "  ")?;
    let routes = after.skip(len);
    if routes.len > 0 {
        put!(line, "\n\t  Updated routes:");
        prefixes::<4>(line, routes, "\n\t    ")?;
    }
    Ok(())
}

/// Shows attributes; `indent` is deeper inside another attribute.
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
        let name = names::of("bgp.attribute", kind);
        put!(line, "\n\t{indent}{name} ({kind}), length: {len}");
        if flags != 0 {
            put!(line, ", Flags [{}", names::joined("bgp.flags", flags, ""));
            if flags & 0xf != 0 {
                put!(line, "+{:x}", flags & 0xf);
            }
            put!(line, "]");
        }
        // Inside a set the colon does not depend on flags, as in tcpdump.
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
        // The attributes of a set already cover all of its bytes.
        if line.options.verbosity > 1 && len > 0 && kind != SET {
            line.dump("\n\t    ", value.bytes);
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
        1 => line.show(value, "{n8 0 bgp.origin}")?,
        2 | 17 => path(line, kind, value)?,
        3 | 9 => line.show(value, "{ip4 0}")?,
        4 | 5 => line.show(value, "{u32 0}")?,
        35 => line.show(value, " OTC {u32 0}")?,
        6 => {}
        7 | 18 if value.len == 6 => line.show(value, " AS #{u16 0}, origin {ip4 2}")?,
        7 | 18 => line.show(value, " AS #{u32 0}, origin {ip4 4}")?,
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
                put!(line, "{}{comma}", value.ip4(at)?);
            }
        }
        14 => reached(line, value)?,
        15 => unreached(line, value)?,
        22 => tunnel(line, value)?,
        26 => accumulated(line, value)?,
        16 => communities(line, value)?,
        128 => {
            line.show(value, "\n\t    Origin AS: {u32 0}")?;
            line.nested(|line| attributes(line, value.skip(4), "      "))?;
        }
        32 => {
            put!(line, "\n\t    ");
            for at in (0..value.len).step_by(12) {
                let comma = if at + 12 < value.len { ", " } else { "" };
                line.show(value.skip(at), "{u32 0}:{u32 4}:{u32 8}")?;
                put!(line, "{comma}");
            }
        }
        _ => {
            put!(line, "\n\t    no Attribute {kind} decoder");
            if line.options.verbosity <= 1 {
                line.dump("\n\t    ", value.bytes);
            }
        }
    }
    Ok(())
}

/// Shows a path. Numbers of autonomous systems have two bytes if the segments parse that way, and four otherwise.
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

/// Shows the family of the routes that follow; `None` if these are shown as bytes.
fn family(line: &mut Line<'_>, value: Data<'_>) -> Result<Option<Family>, Stop> {
    let (family, subsequent) = (value.u16(0)?, value.u8(2)?);
    // An unknown family has another name here than in capabilities.
    let named = |name: &'static str, unknown: &'static str| match name {
        "Unknown" => unknown,
        name => name,
    };
    let vendor = if subsequent > 128 { "vendor specific " } else { "" };
    let name = named(names::address_family(family), "Unknown AFI");
    put!(line, "\n\t    AFI: {name} ({family}), {vendor}SAFI: ");
    let name = named(names::of("bgp.safi", subsequent), "Unknown SAFI");
    put!(line, "{name} ({subsequent})");
    let known = Family::of(family, subsequent);
    if known.is_none() {
        put!(line, "\n\t    no AFI {family} / SAFI {subsequent} decoder");
        if line.options.verbosity <= 1 {
            line.dump("\n\t    ", value.bytes);
        }
    }
    Ok(known)
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

/// Shows the tunnel of a multicast VPN's tree (RFC 6514).
fn tunnel(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let (flags, kind, label) = (value.u8(0)?, value.u8(1)?, value.number(2, 3)? >> 4);
    let name = names::of("bgp.tunnel", kind);
    let leaf = if flags & 1 == 0 { "none" } else { "Leaf Information required" };
    put!(line, "\n\t    Tunnel-type {name} ({kind}), Flags [{leaf}], MPLS Label {label}");
    let rest = value.skip(5);
    match kind {
        1 => line.show(rest, "\n\t      Extended-Tunnel-ID {ip4 0}, P2MP-ID 0x{x32 4}")?,
        2 | 7 => line.show(rest, "\n\t      Root-Node {ip4 0}, LSP-ID 0x{x32 4}")?,
        3 => line.show(rest, "\n\t      Root-Node {ip4 0}, P-Group {ip4 4}")?,
        4 | 5 => line.show(rest, "\n\t      Sender {ip4 0}, P-Group {ip4 4}")?,
        6 => line.show(rest, "\n\t      Tunnel-Endpoint {ip4 0}")?,
        _ if line.options.verbosity <= 1 => line.dump("\n\t      ", rest.bytes),
        _ => {}
    }
    Ok(())
}

/// Shows the accumulated cost of a route's path (RFC 7311).
fn accumulated(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    const LAYOUT: Layout = Layout { kind: 1, len: 2, whole: true, align: 1 };
    let mut list = Tlvs::new(value, LAYOUT);
    while list.rest.len >= LAYOUT.kind + LAYOUT.len {
        let tlv = list.take()?;
        let name = if tlv.kind == 1 { "AIGP" } else { "Unknown" };
        put!(line, "\n\t    {name} TLV ({}), length {}", tlv.kind, tlv.len);
        if !tlv.is_long_enough {
            return Err(Stop::Cut);
        }
        let value = Data::from(tlv.bytes()?);
        match tlv.kind {
            1 => line.show(value, ", metric {u64 0}")?,
            _ if line.options.verbosity <= 1 => line.dump("\n\t      ", value.bytes),
            _ => {}
        }
    }
    Ok(())
}

fn communities(line: &mut Line<'_>, value: Data<'_>) -> Result<(), Stop> {
    for at in (0..value.len).step_by(8) {
        let one = value.skip(at);
        let kind = one.u16(0)?;
        let name = names::of("bgp.community", kind);
        put!(line, "\n\t    {name} (0x{kind:04x}), Flags [");
        let flags = names::flags("bgp.community.flags", kind & 0xc000);
        put!(line, "{flags}]");
        let template = match kind {
            0x0002 | 0x0003 | 0x000a => ": {u16 2}:{u32 4} (= {ip4 4})",
            0x0005 | 0x0105 | 0x0205 | 0x8005 | 0x0107 | 0x8001 => ": {ip4 2}",
            0x0306 | 0x8000 => {
                route_type(line, one)?;
                continue;
            }
            0x0009 => ": AS {u16 2}",
            0x030c => ": Tunnel type: {n16 6 bgp.encapsulation}",
            0x0102 | 0x0103 | 0xf10a | 0x010b => ": {ip4 2}:{u16 6}",
            0x4004 => {
                let bytes_a_second = f32::from_bits(one.u32(4)?);
                put!(line, ": bandwidth: {:.3} Mbps", bytes_a_second * 8.0 / 1e6);
                continue;
            }
            0x0202 | 0x0203 => ": {u32 2}:{u16 6}",
            _ => ": {x32 2}{x16 6}",
        };
        line.show(one, template)?;
    }
    Ok(())
}

/// Shows the origin of a route in OSPF.
fn route_type(line: &mut Line<'_>, one: Data<'_>) -> Printed {
    let (kind, options) = (one.u8(6)?, one.u8(7)?);
    line.show(one, ": area:{ip4 2}, router-type:{n8 6 bgp.router}")?;
    let second = if options & 1 != 0 { "E2" } else { "" };
    let external = if matches!(kind, 5 | 7) { "E1" } else { "" };
    put!(line, ", metric-type:{second}{external}");
    Ok(())
}

const DISTINGUISHER_LEN: usize = 8;
const LABEL_LEN: usize = 3;

/// Layout of the routes of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// Addresses of this number of bytes.
    Plain(usize),
    Labelled(usize),
    Vpn(usize),
    RouteTarget,
    /// The default tree of a multicast VPN.
    Tree,
    Evpn,
}

impl Family {
    /// Returns the layout; `None` for families that are shown as bytes.
    fn of(family: u16, subsequent: u8) -> Option<Self> {
        let size = match family {
            1 => 4,
            2 => 16,
            _ => 0,
        };
        Some(match (family, subsequent) {
            (1 | 2, 1..=3) => Self::Plain(size),
            (1 | 2, 4) => Self::Labelled(size),
            (1 | 2, 128..=130) => Self::Vpn(size),
            (1, 132) => Self::RouteTarget,
            (1, 66) => Self::Tree,
            (25, 70) => Self::Evpn,
            _ => return None,
        })
    }

    /// Returns the length of one next hop; EVPN's is an address of either version.
    fn hop_len(self, len: usize) -> usize {
        match self {
            Self::Plain(size) | Self::Labelled(size) => size,
            Self::Vpn(size) => DISTINGUISHER_LEN + size,
            Self::RouteTarget | Self::Tree => 4,
            Self::Evpn => len,
        }
    }

    fn put_next_hops(self, line: &mut Line<'_>, hops: &[u8]) -> Printed {
        for (index, hop) in hops.chunks(self.hop_len(hops.len()).max(1)).enumerate() {
            if index > 0 {
                put!(line, ", ");
            }
            if hop.len() != self.hop_len(hops.len()) {
                put!(line, "invalid len");
                continue;
            }
            match self {
                Self::Vpn(_) => {
                    let (distinguisher, address) = hop.split_at(DISTINGUISHER_LEN);
                    put_distinguisher(line, distinguisher)?;
                    put!(line, ", {}", text(address));
                }
                _ => put!(line, "{}", text(hop)),
            }
        }
        Ok(())
    }

    fn put_routes(self, line: &mut Line<'_>, routes: Data<'_>) -> Printed {
        match self {
            Self::Plain(4) => prefixes::<4>(line, routes, "\n\t      "),
            Self::Plain(_) => prefixes::<16>(line, routes, "\n\t      "),
            _ => {
                let mut rest = routes;
                while rest.len > 0 {
                    let one = match self {
                        Self::RouteTarget => route_target(line, rest)?,
                        Self::Tree => tree(line, rest)?,
                        Self::Evpn => evpn(line, rest)?,
                        Self::Labelled(size) => labelled(line, rest, size, 0)?,
                        Self::Plain(size) | Self::Vpn(size) => labelled(line, rest, size, DISTINGUISHER_LEN)?,
                    };
                    let Some(len) = one else { return Ok(()) };
                    rest = rest.skip(len);
                }
                Ok(())
            }
        }
    }
}

/// Formats an address of four or sixteen bytes.
fn text(bytes: &[u8]) -> String {
    match (bytes.first_chunk::<16>(), bytes.first_chunk::<4>()) {
        (Some(long), _) => Ipv6Addr::from(*long).to_string(),
        (None, Some(short)) => Ipv4Addr::from(*short).to_string(),
        (None, None) => String::new(),
    }
}

/// Returns true if path numbers precede the prefixes. The message does not say so; it parses with them and not without
/// them.
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

/// Shows prefixes of addresses of `N` bytes.
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
        put!(line, "{before}{}/{bits}", address(rest, 1, bits, N)?);
        if let Some(path) = path {
            put!(line, "   Path Id: {path}");
        }
        rest = rest.skip(1 + bits.div_ceil(8));
    }
    Ok(())
}

/// Returns the first `bits` of an address of `size` bytes, as far as a prefix stores them.
fn address(data: Data<'_>, at: usize, bits: usize, size: usize) -> Result<String, Stop> {
    let octets = bits.div_ceil(8);
    let mut whole = [0u8; 16];
    whole[..octets].copy_from_slice(data.slice(at, octets)?);
    if !bits.is_multiple_of(8) {
        whole[octets - 1] &= (0xff00u16 >> (bits % 8)) as u8;
    }
    Ok(text(&whole[..size]))
}

fn illegal(line: &mut Line<'_>) -> Result<Option<usize>, Stop> {
    put!(line, "\n\t    (illegal prefix length)");
    Ok(None)
}

/// Shows a prefix with a label and, after that, `between` bytes of a distinguisher. Returns its length.
fn labelled(line: &mut Line<'_>, data: Data<'_>, size: usize, between: usize) -> Result<Option<usize>, Stop> {
    let before = 1 + LABEL_LEN + between;
    let bits = usize::from(data.u8(0)?).checked_sub((LABEL_LEN + between) * 8);
    let Some(bits) = bits.filter(|bits| *bits <= size * 8) else {
        return illegal(line);
    };
    let shown = address(data, before, bits, size)?;
    let distinguisher = data.slice(1 + LABEL_LEN, between)?;
    put!(line, "\n\t      ");
    if between > 0 {
        put_distinguisher(line, distinguisher)?;
        put!(line, ", ");
    }
    let entry = data.u32(0)? & 0xff_ffff;
    let bottom = match entry & 1 {
        0 => "(BOGUS: Bottom of Stack NOT set!)",
        _ => "(bottom)",
    };
    put!(line, "{shown}/{bits}, label:{} {bottom}", entry >> 4);
    Ok(Some(before + bits.div_ceil(8)))
}

/// Shows `RD: 65000:1 (= 0.0.0.1)`.
fn put_distinguisher(line: &mut Line<'_>, bytes: &[u8]) -> Printed {
    let data = Data::from(bytes);
    let template = match data.u16(0)? {
        0 => "RD: {u16 2}:{u32 4} (= {ip4 4})",
        1 => "RD: {ip4 2}:{u16 6}",
        2 => "RD: {u32 2}:{u16 6} ({ip4 2}:{u16 6})",
        _ => "RD: unknown RD format",
    };
    line.show(data, template)
}

fn route_target(line: &mut Line<'_>, data: Data<'_>) -> Result<Option<usize>, Stop> {
    const ORIGIN_BITS: usize = 32;
    let bits = usize::from(data.u8(0)?);
    if bits == 0 {
        put!(line, "\n\t      default route target");
        return Ok(Some(1));
    }
    let Some(bits) = bits.checked_sub(ORIGIN_BITS).filter(|bits| *bits <= 64) else {
        put!(line, "\n\t      (illegal prefix length)");
        return Ok(None);
    };
    let octets = bits.div_ceil(8);
    let origin = data.u32(1)?;
    let mut target = [0u8; 8];
    target[..octets].copy_from_slice(data.slice(5, octets)?);
    if bits % 8 != 0 {
        target[octets - 1] &= (0xff00u16 >> (bits % 8)) as u8;
    }
    put!(line, "\n\t      origin AS: {origin}, ");
    let hex: Vec<String> =
        target[..octets].chunks(2).map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    let hex = hex.join(" ");
    let target = Data::from(&target[..]);
    let template = match target.u16(0)? {
        _ if bits == 0 => {
            put!(line, "route-target: 0:0/0");
            return Ok(Some(5));
        }
        _ if bits < 16 => {
            put!(line, "route-target: partial-type: ({hex}/{bits})");
            return Ok(Some(5 + octets));
        }
        0x0002 => "route-target: {u16 2}:{u32 4}",
        0x0102 => "route-target: {ip4 2}:{u16 6}",
        0x0202 => "route-target: {u32 2}:{u16 6}",
        kind => {
            put!(line, "route target: unknown-type({kind:04x}) ({hex}/{bits})");
            return Ok(Some(5 + octets));
        }
    };
    line.show(target, template)?;
    put!(line, "/{bits} ({hex})");
    Ok(Some(5 + octets))
}

fn tree(line: &mut Line<'_>, data: Data<'_>) -> Result<Option<usize>, Stop> {
    const LEN: usize = 16;
    if usize::from(data.u8(0)?) != LEN * 8 {
        return illegal(line);
    }
    data.need(1 + LEN)?;
    put!(line, "\n\t      ");
    put_distinguisher(line, data.slice(1, DISTINGUISHER_LEN)?)?;
    line.show(data, ", VPN IP Address: {ip4 9}, MC Group Address: {ip4 13}")?;
    Ok(Some(1 + LEN))
}

/// Shows routes of RFC 7432 and RFC 9136; tcpdump shows them as bytes.
fn evpn(line: &mut Line<'_>, data: Data<'_>) -> Result<Option<usize>, Stop> {
    const HEADER_LEN: usize = 2;
    const SEGMENT_LEN: usize = 10;
    let (kind, len) = (data.u8(0)?, usize::from(data.u8(1)?));
    let name = names::of("bgp.evpn", kind);
    put!(line, "\n\t      {name} ({kind}), length: {len}");
    let mut rest = Data::from(data.slice(HEADER_LEN, len)?);
    let mut take = |size: usize| {
        let part = rest.slice(0, size)?;
        rest = rest.skip(size);
        Ok::<_, Stop>(part)
    };
    if !(1..=5).contains(&kind) {
        return Ok(Some(HEADER_LEN + len));
    }
    put!(line, ", ");
    put_distinguisher(line, take(DISTINGUISHER_LEN)?)?;
    if matches!(kind, 1 | 2 | 4 | 5) {
        put!(line, ", ESI {}", Colons(take(SEGMENT_LEN)?));
    }
    if kind != 4 {
        put!(line, ", tag {}", number(take(4)?));
    }
    match kind {
        2 => {
            let mac = number(take(1)?) as usize / 8;
            put!(line, ", MAC {}", Colons(take(mac)?));
            let bits = number(take(1)?) as usize;
            if bits > 0 {
                put!(line, ", {}", text(take(bits / 8)?));
            }
        }
        3 | 4 => {
            let bits = number(take(1)?) as usize;
            put!(line, ", {}", text(take(bits / 8)?));
        }
        5 => {
            let bits = number(take(1)?) as usize;
            // One label at the end; before it an address and a gateway of the same version.
            let size = len.saturating_sub(DISTINGUISHER_LEN + SEGMENT_LEN + 5 + LABEL_LEN) / 2;
            let prefix = text(take(size)?);
            let gateway = text(take(size)?);
            put!(line, ", {prefix}/{bits}, gateway {gateway}");
        }
        _ => {}
    }
    if matches!(kind, 1 | 2 | 5) {
        let number = number(take(LABEL_LEN)?);
        put!(line, ", label:{} (VNI {number})", number >> 4);
    }
    Ok(Some(HEADER_LEN + len))
}
