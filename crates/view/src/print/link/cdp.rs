//! Announcements of Cisco switches to their neighbours: CDP (version, time to live and name; with `-v` all of it), VTP
//! and UDLD.

use crate::print::line::{Data, Layout, Line, Printed, Stop, Tlvs, number, put};
use crate::print::names;

const HEADER_LEN: usize = 4;
const DEVICE_ID: u16 = 1;

pub fn vtp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "vtp";
    line.show(data, "VTPv{u8 0}, Message {n8 1 vtp} (0x{x8 1})")?;
    put!(line, ", length {}", data.len);
    if line.verbose() {
        put!(line, "\n\tDomain name: ");
        let len = usize::from(data.u8(3)?.min(32));
        line.put_chars(data.slice(4, len)?);
    }
    Ok(())
}

pub fn udld(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "udld";
    line.show(data, "UDLDv{u8 0>>5}, Code {n8 0&1f udld} ({u8 0&1f}), Flags [{f8 1 udld.flags}] (0x{x8 1})")?;
    put!(line, ", length {}", data.len);
    Ok(())
}

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "cdp";
    if data.len < HEADER_LEN {
        put!(line, " (packet length {} < 4)", data.len);
        return Err(Stop::Invalid);
    }
    line.show(data, "CDPv{u8 0}, ttl: {u8 1}s")?;
    data.need(HEADER_LEN)?;
    if line.verbose() {
        line.show(data, ", checksum: 0x{x16 2} (unverified)")?;
        put!(line, ", length {}", data.len);
    }
    let mut list = Tlvs::new(data.skip(HEADER_LEN), Layout::WORDS.of_whole());
    while list.rest.len > 0 {
        if list.rest.len < HEADER_LEN {
            put!(line, " (remaining packet length {} < 4)", list.rest.len);
            return Err(Stop::Invalid);
        }
        let tlv = list.take()?;
        let (kind, len) = (tlv.kind, tlv.len);
        if !tlv.is_long_enough {
            let (name, plural) = (names::of("cdp", kind), plural(len));
            if line.verbose() {
                put!(line, "\n\t{name} (0x{kind:02x}), TLV length: {len} byte{plural} (too short)")
            } else {
                put!(line, ", {name} TLV length {len} too short")
            }
            return Err(Stop::Invalid);
        }
        if !tlv.fits {
            put!(line, " (TLV length {len} > {})", tlv.room);
            return Err(Stop::Invalid);
        }
        one(line, kind, tlv.value)?;
    }
    if !line.verbose() {
        put!(line, ", length {}", data.len);
    }
    Ok(())
}

fn plural(len: usize) -> &'static str {
    if len == 1 { "" } else { "s" }
}

fn one(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> Printed {
    let (least, most) = match kind {
        0x04 | 0x11 => (4, 4),
        0x0a => (2, 2),
        0x0b | 0x12 | 0x13 => (1, 1),
        0x0e => (3, 3),
        0x0f => (2, 3),
        0x10 => (1, 3),
        0x16 => (4, usize::MAX),
        0x17 => (1, usize::MAX),
        _ => (0, usize::MAX),
    };
    if !line.verbose() && kind == DEVICE_ID {
        put!(line, ", Device-ID ");
    } else if line.verbose() {
        let (name, len) = (names::of("cdp", kind), value.len);
        put!(line, "\n\t{name} (0x{kind:02x}), value length: {len} byte{}: ", plural(len));
    }
    let is_known = names::find("cdp", kind).is_some();
    let fits = (least..=most).contains(&value.len);
    if is_known && !fits {
        put!(line, " (malformed TLV)");
    }
    if is_known && fits && (line.verbose() || kind == DEVICE_ID) {
        return content(line, kind, value);
    }
    // Bytes that are not decoded must be captured, with or without -v.
    value.need(value.len)?;
    line.dump("\n\t  ", value.bytes);
    Ok(())
}

fn content(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> Printed {
    match kind {
        DEVICE_ID | 0x03 | 0x06 | 0x09 | 0x14 => {
            put!(line, "'");
            line.put_chars(value.slice(0, value.len)?);
            put!(line, "'");
        }
        0x02 | 0x16 => addresses(line, value)?,
        0x04 => line.show(value, "(0x{x32 0}): {f32 0 cdp.capabilities}")?,
        0x05 => {
            put!(line, "\n\t  ");
            let texts = value.slice(0, value.len)?.split(|byte| *byte == b'\n');
            for (index, text) in texts.enumerate() {
                put!(line, "{}", if index > 0 { "\n\t  " } else { "" });
                line.put_chars(text);
            }
        }
        0x07 => prefixes(line, value)?,
        0x0a => line.show(value, "{u16 0}")?,
        0x0b => put!(line, "{}", if value.u8(0)? == 0 { "half" } else { "full" }),
        0x0e | 0x0f if value.len == 2 => line.show(value, "unknown 0x{x16 0}")?,
        0x0e | 0x0f => line.show(value, "app {u8 0}, vlan {u16 1}")?,
        0x10 => {
            let milliwatts = number(value.slice(0, value.len)?);
            put!(line, "{:.2}W", milliwatts as f64 / 1000.0);
        }
        0x11 => line.show(value, "{u32 0} bytes")?,
        0x12 | 0x13 => line.show(value, "0x{x8 0}")?,
        0x17 => {
            line.show(value, "0x{x8 0}")?;
            if value.len > 1 {
                put!(line, "/");
                line.put_chars(value.slice(1, value.len - 1)?);
            }
        }
        _ => value.need(value.len)?,
    }
    Ok(())
}

/// Fails as malformed if a list ends before `part`.
fn room(line: &mut Line<'_>, rest: Data<'_>, len: usize, part: &str) -> Printed {
    if rest.len >= len {
        return Ok(());
    }
    put!(line, " (not enough space for {part})");
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
                put!(line, "IPv4 ({count}) {}", after.ip4(0)?);
            }
            (2, protocol, 16) if protocol == IPV6 => {
                room(line, after, 16, "A")?;
                put!(line, "IPv6 ({count}) {}", after.ip6(0)?);
            }
            _ => {
                put!(line, "pt=0x{kind:02x}, pl={len}, pb=");
                put_bytes(line, protocol);
                put!(line, ", al={address_len}, a=");
                room(line, after, address_len, "A")?;
                put_bytes(line, after.slice(0, address_len)?);
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

fn put_bytes(line: &mut Line<'_>, bytes: &[u8]) {
    for byte in bytes {
        put!(line, " {byte:02x}");
    }
}

fn prefixes(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    if !value.len.is_multiple_of(5) {
        put!(line, " [length {} is not a multiple of 5]", value.len);
        return Err(Stop::Invalid);
    }
    put!(line, "IPv4 Prefixes ({}):", value.len / 5);
    value.need(value.len)?;
    for at in (0..value.len).step_by(5) {
        line.show(value.skip(at), " {ip4 0}/{u8 4}")?;
    }
    Ok(())
}
