//! RADIUS: the head; with `-v` its attributes.

mod words;

use std::net::{Ipv4Addr, Ipv6Addr};

use super::dump;
use super::line::{Data, Line, Printed, Stop, put};
use words::{ATTRIBUTES, mobility, values};

const HEADER_LEN: usize = 20;

pub(super) fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "radius";
    data.need(HEADER_LEN)?;
    let (code, id, stored) = (data.u8(0)?, data.u8(1)?, usize::from(data.u16(2)?));
    if stored < HEADER_LEN {
        return Err(Stop::Cut);
    }
    let len = stored.min(data.len);
    let name = match code {
        1 => "Access-Request",
        2 => "Access-Accept",
        3 => "Access-Reject",
        4 => "Accounting-Request",
        5 => "Accounting-Response",
        11 => "Access-Challenge",
        12 => "Status-Server",
        13 => "Status-Client",
        40 => "Disconnect-Request",
        41 => "Disconnect-ACK",
        42 => "Disconnect-NAK",
        43 => "CoA-Request",
        44 => "CoA-ACK",
        45 => "CoA-NAK",
        255 => "Reserved",
        _ => "Unknown Command",
    };
    if !line.verbose() {
        put!(
            line,
            "RADIUS, {name} ({code}), id: 0x{id:02x} length: {len}"
        );
        return Ok(());
    }
    put!(
        line,
        "RADIUS, length: {len}\n\t{name} ({code}), id: 0x{id:02x}, Authenticator: "
    );
    put_hex(line, data.slice(4, 16)?);
    attributes(line, data.claimed(len).skip(HEADER_LEN))
}

fn put_hex(line: &mut Line<'_>, bytes: &[u8]) {
    for byte in bytes {
        put!(line, "{byte:02x}");
    }
}

fn attributes(line: &mut Line<'_>, mut rest: Data<'_>) -> Printed {
    while rest.len > 0 {
        let (kind, len) = (rest.u8(0)?, usize::from(rest.u8(1)?));
        let index = usize::from(kind).checked_sub(1);
        let name = index.and_then(|index| ATTRIBUTES.get(index));
        put!(
            line,
            "\n\t  {} Attribute ({kind}), length: {len}",
            name.unwrap_or(&"Unknown")
        );
        if len < 2 {
            put!(line, " (bogus, must be >= 2)");
            return Ok(());
        }
        if len > rest.len {
            put!(line, " (bogus, goes past end of packet)");
            return Ok(());
        }
        put!(line, ", Value: ");
        let value = rest.skip(2).claimed(len - 2);
        if value.len > 0 {
            attribute(line, kind, value)?;
        }
        if line.options.verbosity > 1 {
            dump::hex(line.out, "\n\t    ", value.bytes);
        }
        rest = rest.skip(len);
    }
    Ok(())
}

fn attribute(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> Printed {
    match kind {
        4 | 8 | 9 | 14 => address(line, kind, value),
        5
        | 6
        | 7
        | 10
        | 12
        | 13
        | 15
        | 16
        | 23
        | 27..=29
        | 37
        | 38
        | 40..=43
        | 45..=49
        | 51..=53
        | 56
        | 57
        | 61
        | 62
        | 64
        | 65
        | 72
        | 75
        | 76
        | 83
        | 85
        | 86 => number(line, kind, value),
        26 => vendor(line, value),
        55 => {
            if value.len != 4 {
                put!(line, "ERROR: length {} != 4", value.len);
                return Ok(());
            }
            let time = super::time::date_and_time(i64::from(value.u32(0)?));
            put!(line, "{}", time.replacen('T', " ", 1));
            Ok(())
        }
        79 => eap(line, value),
        95 | 98 => {
            match value.len {
                16 => put!(line, "{}", Ipv6Addr::from(value.array::<16>(0)?)),
                len => put!(line, "ERROR: length {len} != 16"),
            }
            Ok(())
        }
        97 | 123 => prefix(line, value),
        124 => {
            match value.len {
                8 => put!(line, "[{}]", mobility(u64::from_be_bytes(value.array(0)?))),
                len => put!(line, "ERROR: length {len} != 8"),
            }
            Ok(())
        }
        125 => home_link(line, value),
        126 => operator(line, value),
        101 => error_cause(line, value),
        2 | 3 | 17 | 21 | 54 | 59 | 70 | 71 | 84 | 93 | 94 | 96 => Ok(()),
        1..=100 | 103..=122 => text(line, kind, value),
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
    let name = match tag {
        0x31 => "Tagged",
        0x32 => "Untagged",
        _ => "Unknown tag",
    };
    put!(line, "{name} (0x{tag:02x}) ");
}

fn text(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> Printed {
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
    put_printable(line, rest);
    Ok(())
}

/// Up to a zero; what is not printable is a dot.
fn put_printable(line: &mut Line<'_>, bytes: &[u8]) {
    for byte in bytes.iter().take_while(|byte| **byte != 0) {
        let is_printable = byte.is_ascii_graphic() || *byte == b' ';
        line.out
            .push(if is_printable { char::from(*byte) } else { '.' });
    }
}

fn number(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> Printed {
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
    if let Some(names) = values(kind) {
        match names.get(number as usize).filter(|name| !name.is_empty()) {
            Some(name) => put!(line, "{name}"),
            None => put!(line, "#{number}"),
        }
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

fn address(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> Printed {
    if value.len != 4 {
        put!(line, "ERROR: length {} != 4", value.len);
        return Ok(());
    }
    match (kind, value.u32(0)?) {
        (8 | 14, 0xffff_ffff) => put!(line, "User Selected"),
        (8 | 14, 0xffff_fffe) => put!(line, "NAS Select"),
        (_, address) => put!(line, "{}", Ipv4Addr::from(address)),
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

/// The prefix of a mobile node's home, after its length.
fn home_link(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    if value.len != 17 {
        put!(line, "ERROR: length {} != 17", value.len);
        return Ok(());
    }
    match value.u8(0)? {
        bits @ 0..=128 => put!(line, "{}/{bits}", Ipv6Addr::from(value.array::<16>(1)?)),
        bits => put!(line, "ERROR: netmask {bits} not in range (0..128)"),
    }
    Ok(())
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
    match space {
        b'0' => put!(line, "[TADIG] "),
        b'1' => put!(line, "[REALM] "),
        b'2' => put!(line, "[E212] "),
        b'3' => put!(line, "[ICC] "),
        other => put!(line, "[unknown namespace {other}] "),
    }
    super::text::put_chars(line, name);
    Ok(())
}

fn vendor(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let id = value.u32(0)?;
    let name = match id {
        0 => "reserved",
        5 => "ACC",
        9 => "Cisco",
        42 => "Sun Microsystems",
        166 => "Shiva",
        307 => "Livingston",
        311 => "Microsoft",
        429 => "3Com",
        529 => "Ascend",
        1584 => "Bay",
        1991 => "Foundry",
        2352 => "Redback",
        2636 => "Juniper",
        4874 => "Unisphere",
        10415 => "3GPP",
        _ => "Unknown",
    };
    put!(line, "Vendor: {name} ({id})");
    let mut rest = value.skip(4);
    while rest.len >= 2 {
        let (kind, len) = (rest.u8(0)?, usize::from(rest.u8(1)?));
        let len = len.saturating_sub(2).min(rest.len - 2);
        let bytes = rest.slice(2, len)?;
        put!(
            line,
            "\n\t    Vendor Attribute: {kind}, Length: {len}, Value: "
        );
        for byte in bytes {
            let is_printable = byte.is_ascii_graphic() || *byte == b' ';
            line.out
                .push(if is_printable { char::from(*byte) } else { '.' });
        }
        rest = rest.skip(2 + len);
    }
    Ok(())
}

fn error_cause(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    if value.len != 4 {
        put!(line, "Error cause: invalid length");
        return Ok(());
    }
    let cause = value.u32(0)?;
    let name = match cause {
        201 => "Residual Session Context Removed",
        202 => "Invalid EAP Packet",
        401 => "Unsupported Attribute",
        402 => "Missing Attribute",
        403 => "NAS Identification Mismatch",
        404 => "Invalid Request",
        405 => "Unsupported Service",
        406 => "Unsupported Extension",
        501 => "Administratively Prohibited",
        502 => "Request Not Routable (Proxy)",
        503 => "Session Context Not Found",
        504 => "Session Context Not Removable",
        505 => "Other Proxy Processing Error",
        506 => "Resources Unavailable",
        507 => "Request Initiated",
        508 => "Multiple Session Selection Unsupported",
        _ => "",
    };
    match name {
        "" => put!(line, "Error cause {cause}: Error-Cause {cause} not known"),
        name => put!(line, "Error cause {cause}: {name}"),
    }
    Ok(())
}

fn eap(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    line.protocol = "eap";
    let (code, id, len) = (value.u8(0)?, value.u8(1)?, value.u16(2)?);
    let name = match code {
        1 => "Request",
        2 => "Response",
        3 => "Success",
        4 => "Failure",
        _ => "unknown",
    };
    put!(line, "{name} ({code}), id {id}, len {len}");
    if matches!(code, 1 | 2) && value.len > 4 {
        let kind = value.u8(4)?;
        let kind_name = match kind {
            1 => "Identity",
            2 => "Notification",
            3 => "Nak",
            4 => "MD5-challenge",
            5 => "OTP",
            6 => "GTC",
            13 => "TLS",
            18 => "SIM",
            21 => "TTLS",
            23 => "AKA",
            43 => "FAST",
            254 => "Expanded",
            255 => "Experimental",
            _ => "unknown",
        };
        put!(line, "\n\t\t Type {kind_name} ({kind})");
        if kind == 1 && len > 5 {
            put!(line, ", Identity: ");
            let text = value.skip(5);
            let text = text.slice(0, usize::from(len - 5).min(text.len))?;
            put_printable(line, text);
        }
    }
    line.protocol = "radius";
    Ok(())
}
