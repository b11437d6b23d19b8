//! RADIUS: the head; with `-v` its attributes.

use crate::print::line::{Data, Layout, Line, Printed, Stop, Tlvs, put};
use crate::print::names;

const HEADER_LEN: usize = 20;

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "radius";
    data.need(HEADER_LEN)?;
    let (code, id, stored) = (data.u8(0)?, data.u8(1)?, usize::from(data.u16(2)?));
    if stored < HEADER_LEN {
        return Err(Stop::Cut);
    }
    let len = stored.min(data.len);
    let name = names::of("radius.code", code);
    if !line.verbose() {
        put!(line, "RADIUS, {name} ({code}), id: 0x{id:02x} length: {len}");
        return Ok(());
    }
    put!(line, "RADIUS, length: {len}\n\t{name} ({code}), id: 0x{id:02x}");
    line.show(data, ", Authenticator: {x64 4}{x64 12}")?;
    attributes(line, data.claimed(len).skip(HEADER_LEN))
}

fn attributes(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let mut list = Tlvs::new(data, Layout::BYTES);
    while let Some(tlv) = list.next()? {
        let (kind, len, value) = (tlv.kind, tlv.len, tlv.value);
        let name = names::of("radius.attribute", kind);
        put!(line, "\n\t  {name} Attribute ({kind}), length: {len}");
        if !tlv.is_long_enough {
            put!(line, " (bogus, must be >= 2)");
            return Ok(());
        }
        if !tlv.fits {
            put!(line, " (bogus, goes past end of packet)");
            return Ok(());
        }
        put!(line, ", Value: ");
        if value.len > 0 {
            attribute(line, kind, value)?;
        }
        if line.options.verbosity > 1 {
            line.dump("\n\t    ", value.bytes);
        }
    }
    Ok(())
}

/// Shows a value that must have this length.
fn of_length(line: &mut Line<'_>, value: Data<'_>, len: usize, template: &str) -> Printed {
    if value.len == len {
        line.show(value, template)
    } else {
        put!(line, "ERROR: length {} != {len}", value.len);
        Ok(())
    }
}

/// Shows addresses, numbers and texts; the contents of the other attributes are left to `-vv`.
fn attribute(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> Printed {
    match (names::of("radius.form", kind), kind) {
        ("address", 8 | 14) => of_length(
            line,
            value,
            4,
            match value.u32(0) {
                Ok(u32::MAX) => "User Selected",
                Ok(0xffff_fffe) => "NAS Select",
                _ => "{ip4 0}",
            },
        ),
        ("address", _) => of_length(line, value, 4, "{ip4 0}"),
        ("address6", _) => of_length(line, value, 16, "{ip6 0}"),
        ("number", _) => number(line, kind, value),
        ("text", _) => {
            text(line, value.slice(0, value.len)?);
            Ok(())
        }
        (_, 26) => line.show(value, "Vendor: {n32 0 radius.vendor} ({u32 0})"),
        (_, 79) => line.show(value, "{n8 0 eap} ({u8 0}), id {u8 1}, len {u16 2}"),
        (_, 101) => line.show(value, "Error cause {u32 0}: {n32 0 radius.cause}"),
        _ => Ok(()),
    }
}

/// Shows text up to a zero byte, without the number of the tunnel that some begin with.
fn text(line: &mut Line<'_>, bytes: &[u8]) {
    let bytes = match bytes {
        [0..=0x1f, rest @ ..] => rest,
        _ => bytes,
    };
    for byte in bytes.iter().take_while(|byte| **byte != 0) {
        let is_printable = byte.is_ascii_graphic() || *byte == b' ';
        line.out.push(if is_printable { char::from(*byte) } else { '.' });
    }
}

fn number(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> Printed {
    if value.len != 4 {
        return of_length(line, value, 4, "");
    }
    // The first byte of some is the number of a tunnel.
    let number = match kind {
        56 | 64 | 65 | 83 => value.u32(0)? & 0x00ff_ffff,
        _ => value.u32(0)?,
    };
    // An attribute with names for some values has names for all.
    let table = format!("radius.value.{kind}");
    if names::is_table(&table) {
        put!(line, "{}", names::text(&table, number));
        return Ok(());
    }
    match (kind, number) {
        (23, 0xffff_fffe) => put!(line, "NAS Select"),
        (37, 0) => put!(line, "Unnumbered"),
        (38, 0) => put!(line, "NAS assigned"),
        (27 | 28 | 41 | 46 | 85, seconds) => {
            let (hours, minutes, rest) = (seconds / 3600, seconds % 3600 / 60, seconds % 60);
            match seconds {
                0..60 => put!(line, "{seconds:02} secs"),
                60..3600 => put!(line, "{minutes:02}:{rest:02} min"),
                _ => put!(line, "{hours:02}:{minutes:02}:{rest:02} hours"),
            }
        }
        _ => put!(line, "{number}"),
    }
    Ok(())
}
