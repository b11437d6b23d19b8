//! The TCP option of Multipath TCP (RFC 6824 and RFC 8684).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::line::{Data, Line, Printed, Stop, put};

/// Shows the whole option, its kind and length included; an error says that it is not what it should be.
pub(super) fn print(
    line: &mut Line<'_>,
    (is_syn, is_ack): (bool, bool),
    option: Data<'_>,
) -> Printed {
    const SUBTYPES: [&str; 9] = [
        "capable",
        "join",
        "dss",
        "add-addr",
        "rem-addr",
        "prio",
        "fail",
        "fast-close",
        "tcprst",
    ];
    if option.len < 3 {
        return Err(Stop::Invalid);
    }
    let first = option.u8(2)?;
    let (subtype, low) = (usize::from(first >> 4), first & 0xf);
    let name = SUBTYPES.get(subtype).unwrap_or(&"unknown");
    put!(line, " {} {name}", option.len);
    match subtype {
        0 => capable(line, is_syn, is_ack, low, option),
        1 => join(line, is_syn, is_ack, low, option),
        2 => sequence(line, is_syn, option),
        3 => address(line, low, option),
        4 if option.len >= 4 => {
            put!(line, " id");
            for id in option.slice(3, option.len - 3)? {
                put!(line, " {id}");
            }
            Ok(())
        }
        5 if matches!(option.len, 3 | 4) => {
            put!(
                line,
                " {}",
                if low & 1 == 0 { "non-backup" } else { "backup" }
            );
            if option.len == 4 {
                put!(line, " id {}", option.u8(3)?);
            }
            Ok(())
        }
        6 if option.len == 12 => {
            put!(line, " seq {}", long(option, 4)?);
            Ok(())
        }
        7 if option.len == 12 => {
            put!(line, " key 0x{:x}", long(option, 4)?);
            Ok(())
        }
        8 if option.len == 4 => reset(line, low, option.u8(3)?),
        9.. => Ok(()),
        _ => Err(Stop::Invalid),
    }
}

fn long(option: Data<'_>, at: usize) -> Result<u64, Stop> {
    option.array(at).map(u64::from_be_bytes)
}

fn capable(
    line: &mut Line<'_>,
    is_syn: bool,
    is_ack: bool,
    version: u8,
    option: Data<'_>,
) -> Printed {
    const CHECKSUMS: u8 = 0x80;
    match option.len {
        4 | 12 if is_syn => {}
        20 | 22 | 24 if is_ack && !is_syn => {}
        _ => return Err(Stop::Invalid),
    }
    if version > 1 {
        put!(line, " Unknown Version ({version})");
        return Ok(());
    }
    put!(line, " v{version}");
    if option.u8(3)? & CHECKSUMS != 0 {
        put!(line, " csum");
    }
    if option.len >= 12 {
        put!(line, " {{0x{:x}", long(option, 4)?);
        if option.len >= 20 {
            put!(line, ",0x{:x}", long(option, 12)?);
        }
        put!(line, "}}");
    }
    Ok(())
}

fn join(line: &mut Line<'_>, is_syn: bool, is_ack: bool, low: u8, option: Data<'_>) -> Printed {
    const ACK_LEN: usize = 24;
    match option.len {
        12 if is_syn => {}
        16 if is_syn && is_ack => {}
        ACK_LEN if is_ack => {}
        _ => return Err(Stop::Invalid),
    }
    if option.len != ACK_LEN {
        put!(line, "{}", if low & 1 == 0 { "" } else { " backup" });
        put!(line, " id {}", option.u8(3)?);
    }
    match option.len {
        12 => put!(
            line,
            " token 0x{:x} nonce 0x{:x}",
            option.u32(4)?,
            option.u32(8)?
        ),
        16 => put!(
            line,
            " hmac 0x{:x} nonce 0x{:x}",
            long(option, 4)?,
            option.u32(12)?
        ),
        _ => {
            put!(line, " hmac 0x");
            for byte in option.slice(4, 20)? {
                put!(line, "{byte:02x}");
            }
        }
    }
    Ok(())
}

/// Where the data is in the connection's own numbering.
fn sequence(line: &mut Line<'_>, is_syn: bool, option: Data<'_>) -> Printed {
    if option.len < 4 || is_syn {
        return Err(Stop::Invalid);
    }
    let flags = option.u8(3)?;
    let has = |bit: u8| flags & bit != 0;
    if has(0x10) {
        put!(line, " fin");
    }
    let mut rest = option.skip(4);
    let mut number = |len: usize| {
        if rest.len < len {
            return Err(Stop::Invalid);
        }
        let value = rest
            .slice(0, len)?
            .iter()
            .fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        rest = rest.skip(len);
        Ok(value)
    };
    let width = |is_long| if is_long { 8 } else { 4 };
    if has(0x01) {
        put!(line, " ack ");
        put!(line, "{}", number(width(has(0x02)))?);
    }
    if has(0x04) {
        put!(line, " seq ");
        put!(line, "{}", number(width(has(0x08)))?);
        put!(line, " subseq {}", number(4)?);
        put!(line, " len {}", number(2)?);
        // Whether there are checksums was agreed on before.
        if let Ok(checksum) = number(2) {
            put!(line, " csum 0x{checksum:x}");
        }
    }
    match rest.len {
        0 => Ok(()),
        _ => Err(Stop::Invalid),
    }
}

fn address(line: &mut Line<'_>, low: u8, option: Data<'_>) -> Printed {
    const PORT: usize = 2;
    const HMAC: usize = 8;
    let room = option.len.checked_sub(4).ok_or(Stop::Invalid)?;
    let (is_v4, more) = match room {
        4 | 6 | 12 | 14 => (true, room - 4),
        16 | 18 | 24 | 26 => (false, room - 16),
        _ => return Err(Stop::Invalid),
    };
    let version = match low {
        6 => "v0-ip6",
        4 => "v0-ip4",
        1 => "v1-echo",
        0 => "v1",
        _ => "[bad version/echo]",
    };
    put!(line, " {version} id {}", option.u8(3)?);
    let mut at = match is_v4 {
        true => {
            put!(line, " {}", Ipv4Addr::from(option.array(4)?));
            8
        }
        false => {
            put!(line, " {}", Ipv6Addr::from(option.array(4)?));
            20
        }
    };
    if matches!(more, PORT | 10) {
        put!(line, ":{}", option.u16(at)?);
        at += PORT;
    }
    if more >= HMAC {
        put!(line, " hmac 0x{:x}", long(option, at)?);
    }
    Ok(())
}

fn reset(line: &mut Line<'_>, flags: u8, reason: u8) -> Printed {
    const REASONS: [&str; 7] = [
        "Unspecified error",
        "MPTCP-specific error",
        "Lack of resources",
        "Administratively prohibited",
        "Too much outstanding data",
        "Unacceptable performance",
        "Middlebox interference",
    ];
    let set: String = [(8, 'U'), (4, 'V'), (2, 'W'), (1, 'T')]
        .iter()
        .filter(|(bit, _)| flags & bit != 0)
        .map(|(_, letter)| letter)
        .collect();
    put!(
        line,
        " flags [{}]",
        if set.is_empty() { "none" } else { &set }
    );
    match REASONS.get(usize::from(reason)) {
        Some(text) => put!(line, " reason {text}"),
        None => put!(line, " reason unknown (0x{reason:02x})"),
    }
    Ok(())
}
