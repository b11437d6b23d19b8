//! What switches of Cisco's tell their neighbours: CDP (version, time to live and name; with `-v` all it says), VTP and UDLD.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::dump;
use super::line::{Data, Line, Printed, Stop, flag_names, put};
use super::text::put_chars;

const HEADER_LEN: usize = 4;
const DEVICE_ID: u16 = 1;

const CAPABILITIES: [(u32, &str); 7] = [
    (0x01, "Router"),
    (0x02, "Transparent Bridge"),
    (0x04, "Source Route Bridge"),
    (0x08, "L2 Switch"),
    (0x10, "L3 capable"),
    (0x20, "IGMP snooping"),
    (0x40, "L1 capable"),
];

/// The name of a field, and how short and long it may be.
fn field(kind: u16) -> Option<(&'static str, usize, usize)> {
    const ANY: usize = usize::MAX;
    Some(match kind {
        DEVICE_ID => ("Device-ID", 0, ANY),
        0x02 => ("Address", 0, ANY),
        0x03 => ("Port-ID", 0, ANY),
        0x04 => ("Capability", 4, 4),
        0x05 => ("Version String", 0, ANY),
        0x06 => ("Platform", 0, ANY),
        0x07 => ("Prefixes", 0, ANY),
        0x08 => ("Protocol-Hello option", 0, ANY),
        0x09 => ("VTP Management Domain", 0, ANY),
        0x0a => ("Native VLAN ID", 2, 2),
        0x0b => ("Duplex", 1, 1),
        0x0e => ("ATA-186 VoIP VLAN assignment", 3, 3),
        0x0f => ("ATA-186 VoIP VLAN request", 2, 3),
        0x10 => ("power consumption", 1, 3),
        0x11 => ("MTU", 4, 4),
        0x12 => ("AVVID trust bitmap", 1, 1),
        0x13 => ("AVVID untrusted ports CoS", 1, 1),
        0x14 => ("System Name", 0, ANY),
        0x15 => ("System Object ID (not decoded)", 0, ANY),
        0x16 => ("Management Addresses", 4, ANY),
        0x17 => ("Physical Location", 1, ANY),
        _ => return None,
    })
}

pub(super) fn vtp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "vtp";
    let (version, kind) = (data.u8(0)?, data.u8(1)?);
    let name = match kind {
        1 => "Summary advertisement",
        2 => "Subset advertisement",
        3 => "Advertisement request",
        4 => "Join message",
        _ => "Unknown message type",
    };
    put!(
        line,
        "VTPv{version}, Message {name} (0x{kind:02x}), length {}",
        data.len
    );
    if line.verbose() {
        put!(line, "\n\tDomain name: ");
        let len = usize::from(data.u8(3)?.min(32));
        put_chars(line, data.slice(4, len)?);
    }
    Ok(())
}

pub(super) fn udld(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "udld";
    let (first, flags) = (data.u8(0)?, data.u8(1)?);
    let code = first & 0x1f;
    let name = match code {
        0 => "Reserved",
        1 => "Probe message",
        2 => "Echo message",
        3 => "Flush message",
        _ => "Reserved",
    };
    put!(
        line,
        "UDLDv{}, Code {name} ({code}), Flags [{}] (0x{flags:02x}), length {}",
        first >> 5,
        flag_names(flags.into(), &[(0x01, "RT"), (0x02, "RSY")], ", "),
        data.len
    );
    Ok(())
}

pub(super) fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "cdp";
    if data.len < HEADER_LEN {
        put!(line, " (packet length {} < 4)", data.len);
        return Err(Stop::Invalid);
    }
    put!(line, "CDPv{}, ttl: {}s", data.u8(0)?, data.u8(1)?);
    let checksum = data.u16(2)?;
    if line.verbose() {
        put!(
            line,
            ", checksum: 0x{checksum:04x} (unverified), length {}",
            data.len
        );
    }
    let mut rest = data.skip(HEADER_LEN);
    while rest.len > 0 {
        if rest.len < HEADER_LEN {
            put!(line, " (remaining packet length {} < 4)", rest.len);
            return Err(Stop::Invalid);
        }
        let (kind, len) = (rest.u16(0)?, usize::from(rest.u16(2)?));
        let known = field(kind);
        let name = known.map_or("unknown field type", |(name, ..)| name);
        if len < HEADER_LEN {
            let plural = if len == 1 { "" } else { "s" };
            if line.verbose() {
                put!(
                    line,
                    "\n\t{name} (0x{kind:02x}), TLV length: {len} byte{plural} (too short)"
                );
            } else {
                put!(line, ", {name} TLV length {len} too short");
            }
            return Err(Stop::Invalid);
        }
        if len > rest.len {
            put!(line, " (TLV length {len} > {})", rest.len);
            return Err(Stop::Invalid);
        }
        let value = rest.skip(HEADER_LEN).claimed(len - HEADER_LEN);
        one(line, kind, known, value)?;
        rest = rest.skip(len);
    }
    if !line.verbose() {
        put!(line, ", length {}", data.len);
    }
    Ok(())
}

fn one(
    line: &mut Line<'_>,
    kind: u16,
    known: Option<(&'static str, usize, usize)>,
    value: Data<'_>,
) -> Printed {
    let name = known.map_or("unknown field type", |(name, ..)| name);
    if !line.verbose() && kind == DEVICE_ID {
        put!(line, ", Device-ID ");
    } else if line.verbose() {
        let plural = if value.len == 1 { "" } else { "s" };
        put!(
            line,
            "\n\t{name} (0x{kind:02x}), value length: {} byte{plural}: ",
            value.len
        );
    }
    let fits = known.is_some_and(|(_, least, most)| (least..=most).contains(&value.len));
    if known.is_some() && !fits {
        put!(line, " (malformed TLV)");
    }
    if fits && (line.verbose() || kind == DEVICE_ID) {
        return content(line, kind, value);
    }
    // Bytes that are not decoded come with or without -v.
    value.need(value.len)?;
    dump::hex(line.out, "\n\t  ", value.bytes);
    Ok(())
}

fn content(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> Printed {
    match kind {
        DEVICE_ID | 0x03 | 0x06 | 0x09 | 0x14 => {
            put!(line, "'");
            put_chars(line, value.slice(0, value.len)?);
            put!(line, "'");
        }
        0x02 | 0x16 => addresses(line, value)?,
        0x04 => {
            let set = value.u32(0)?;
            let list = flag_names(set, &CAPABILITIES, ", ");
            put!(line, "(0x{set:08x}): {list}");
        }
        0x05 => {
            put!(line, "\n\t  ");
            for byte in value.slice(0, value.len)? {
                match byte {
                    b'\n' => put!(line, "\n\t  "),
                    _ => put_chars(line, &[*byte]),
                }
            }
        }
        0x07 => prefixes(line, value)?,
        0x0a => put!(line, "{}", value.u16(0)?),
        0x0b => put!(line, "{}", if value.u8(0)? == 0 { "half" } else { "full" }),
        0x0e | 0x0f if value.len == 2 => put!(line, "unknown 0x{:04x}", value.u16(0)?),
        0x0e | 0x0f => put!(line, "app {}, vlan {}", value.u8(0)?, value.u16(1)?),
        0x10 => {
            let bytes = value.slice(0, value.len)?;
            let milliwatts = bytes
                .iter()
                .fold(0u32, |sum, byte| sum << 8 | u32::from(*byte));
            put!(line, "{:.2}W", f64::from(milliwatts) / 1000.0);
        }
        0x11 => put!(line, "{} bytes", value.u32(0)?),
        0x12 | 0x13 => put!(line, "0x{:02x}", value.u8(0)?),
        0x17 => {
            put!(line, "0x{:02x}", value.u8(0)?);
            if value.len > 1 {
                put!(line, "/");
                put_chars(line, value.slice(1, value.len - 1)?);
            }
        }
        _ => value.need(value.len)?,
    }
    Ok(())
}

/// Fails as malformed where a list ends before what it says is there.
fn room(line: &mut Line<'_>, rest: Data<'_>, len: usize, what: &str) -> Printed {
    if rest.len >= len {
        return Ok(());
    }
    put!(line, " (not enough space for {what})");
    Err(Stop::Invalid)
}

fn addresses(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    const IPV6: [u8; 8] = [0xaa, 0xaa, 0x03, 0, 0, 0, 0x86, 0xdd];
    room(line, value, 4, "num")?;
    let mut count = value.u32(0)?;
    let mut rest = value.skip(4);
    while count > 0 {
        room(line, rest, 2, "PT+PL")?;
        let (kind, len) = (rest.u8(0)?, usize::from(rest.u8(1)?));
        rest = rest.skip(2);
        room(line, rest, len + 2, "P+AL")?;
        let protocol = rest.slice(0, len)?;
        let address_len = usize::from(rest.u16(len)?);
        let after = rest.skip(len + 2);
        match (kind, protocol, address_len) {
            (1, [0xcc], 4) => {
                room(line, after, 4, "A")?;
                put!(line, "IPv4 ({count}) {}", Ipv4Addr::from(after.u32(0)?));
            }
            (2, protocol, 16) if protocol == IPV6 => {
                room(line, after, 16, "A")?;
                let address = Ipv6Addr::from(after.array::<16>(0)?);
                put!(line, "IPv6 ({count}) {address}");
            }
            _ => {
                put!(line, "pt=0x{kind:02x}, pl={len}, pb=");
                for byte in protocol {
                    put!(line, " {byte:02x}");
                }
                put!(line, ", al={address_len}, a=");
                room(line, after, address_len, "A")?;
                for byte in after.slice(0, address_len)? {
                    put!(line, " {byte:02x}");
                }
            }
        }
        rest = after.skip(address_len);
        count -= 1;
        if count > 0 {
            put!(line, " ");
        }
    }
    match rest.len {
        0 => Ok(()),
        left => {
            put!(line, " ({left} bytes of stray data)");
            Err(Stop::Invalid)
        }
    }
}

fn prefixes(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    if !value.len.is_multiple_of(5) {
        put!(line, " [length {} is not a multiple of 5]", value.len);
        return Err(Stop::Invalid);
    }
    put!(line, "IPv4 Prefixes ({}):", value.len / 5);
    for entry in value.slice(0, value.len)?.chunks_exact(5) {
        put!(
            line,
            " {}.{}.{}.{}/{}",
            entry[0],
            entry[1],
            entry[2],
            entry[3],
            entry[4]
        );
    }
    Ok(())
}
