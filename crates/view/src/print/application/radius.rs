//! RADIUS: the head; with `-v` its attributes.

use std::net::Ipv6Addr;

use crate::print::line::{Data, Layout, Line, Printed, Stop, Tlvs, put};
use crate::print::{names, time};

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
        put!(
            line,
            "RADIUS, {name} ({code}), id: 0x{id:02x} length: {len}"
        );
        return Ok(());
    }
    put!(
        line,
        "RADIUS, length: {len}\n\t{name} ({code}), id: 0x{id:02x}"
    );
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
    match value.len == len {
        true => line.show(value, template),
        false => {
            put!(line, "ERROR: length {} != {len}", value.len);
            Ok(())
        }
    }
}

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
        ("mobility", _) => of_length(line, value, 8, "[{f64 0 radius.mobility}]"),
        ("number", _) => number(line, kind, value),
        ("text", _) => text(line, kind, value),
        (_, 26) => vendor(line, value),
        (_, 55) if value.len == 4 => {
            let time = time::date_and_time(i64::from(value.u32(0)?));
            put!(line, "{}", time.replacen('T', " ", 1));
            Ok(())
        }
        (_, 55) => of_length(line, value, 4, ""),
        (_, 79) => eap(line, value),
        (_, 97 | 123) => prefix(line, value),
        (_, 125) => home_link(line, value),
        (_, 126) => operator(line, value),
        (_, 101) if value.len != 4 => {
            put!(line, "Error cause: invalid length");
            Ok(())
        }
        (_, 101) => line.show(value, "Error cause {u32 0}: {n32 0 radius.cause}"),
        _ => Ok(()),
    }
}

fn put_tag(line: &mut Line<'_>, tag: u8) {
    match tag {
        0 => put!(line, "Tag[Unused] "),
        tag => put!(line, "Tag[{tag}] "),
    }
}

fn put_tagged(line: &mut Line<'_>, tag: u8) {
    put!(line, "{} (0x{tag:02x}) ", names::of("radius.tagged", tag));
}

fn text(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> Printed {
    let bytes = value.slice(0, value.len)?;
    let rest = match kind {
        69 => {
            let (tag, salt) = (value.u8(0)?, value.u16(1)?);
            put_tag(line, if tag <= 0x1f { tag } else { 0 });
            put!(line, "Salt {salt} ");
            &bytes[3..]
        }
        66 | 67 | 81 | 82 | 90 | 91 if bytes[0] <= 0x1f => {
            put_tag(line, bytes[0]);
            &bytes[1..]
        }
        58 => {
            put_tagged(line, bytes[0]);
            &bytes[1..]
        }
        _ => bytes,
    };
    put_text(line, rest);
    Ok(())
}

/// Shows text up to a zero byte.
fn put_text(line: &mut Line<'_>, bytes: &[u8]) {
    let text = bytes.iter().take_while(|byte| **byte != 0);
    text.for_each(|byte| put_printable(line, *byte));
}

/// Shows a byte, or a dot if it is not printable.
fn put_printable(line: &mut Line<'_>, byte: u8) {
    let is_printable = byte.is_ascii_graphic() || byte == b' ';
    line.out
        .push(if is_printable { char::from(byte) } else { '.' });
}

fn number(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> Printed {
    if value.len != 4 {
        put!(line, "ERROR: length {} != 4", value.len);
        return Ok(());
    }
    let mut number = value.u32(0)?;
    let first = value.u8(0)?;
    match kind {
        64 | 65 | 83 => {
            put_tag(line, first);
            number &= 0x00ff_ffff;
        }
        56 => {
            put_tagged(line, first);
            number &= 0x00ff_ffff;
        }
        _ => {}
    }
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

fn prefix(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    if !(2..=18).contains(&value.len) {
        put!(line, "ERROR: length {} not in range (2..18)", value.len);
        return Ok(());
    }
    let bits = value.u8(1)?;
    if bits > 128 {
        put!(line, "ERROR: netmask {bits} not in range (0..128)");
        return Ok(());
    }
    let mut address = [0; 16];
    address[..value.len - 2].copy_from_slice(value.slice(2, value.len - 2)?);
    put!(line, "{}/{bits}", Ipv6Addr::from(address));
    if usize::from(bits) > 8 * (value.len - 2) {
        put!(line, " (inconsistent prefix length)");
    }
    Ok(())
}

/// Shows the prefix of a mobile node's home, after its length.
fn home_link(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    match value.u8(0)? {
        129.. if value.len == 17 => line.show(value, "ERROR: netmask {u8 0} not in range (0..128)"),
        _ => of_length(line, value, 17, "{ip6 1}/{u8 0}"),
    }
}

fn operator(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let text = value.slice(0, value.len)?;
    let [space, name @ ..] = text else {
        return Ok(());
    };
    if name.is_empty() {
        put!(line, "ERROR: length 1 < 2");
        return Ok(());
    }
    put!(line, "[{}] ", names::text("radius.operator", *space));
    line.put_chars(name);
    Ok(())
}

fn vendor(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    line.show(value, "Vendor: {n32 0 radius.vendor} ({u32 0})")?;
    let mut list = Tlvs::new(value.skip(4), Layout::BYTES);
    while list.rest.len >= 2 {
        let start = list.rest;
        let tlv = list.take()?;
        let len = tlv.value.len.min(start.len - 2);
        let bytes = start.slice(2, len)?;
        put!(
            line,
            "\n\t    Vendor Attribute: {}, Length: {len}, Value: ",
            tlv.kind
        );
        bytes.iter().for_each(|byte| put_printable(line, *byte));
    }
    Ok(())
}

fn eap(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    line.protocol = "eap";
    line.show(value, "{n8 0 eap} ({u8 0}), id {u8 1}, len {u16 2}")?;
    let (code, len) = (value.u8(0)?, value.u16(2)?);
    if matches!(code, 1 | 2) && value.len > 4 {
        line.show(value, "\n\t\t Type {n8 4 eap.type} ({u8 4})")?;
        if value.u8(4)? == 1 && len > 5 {
            put!(line, ", Identity: ");
            let text = value.skip(5);
            let text = text.slice(0, usize::from(len - 5).min(text.len))?;
            put_text(line, text);
        }
    }
    line.protocol = "radius";
    Ok(())
}
