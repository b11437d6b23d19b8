//! The TCP option of Multipath TCP (RFC 6824 and RFC 8684).

use std::net::IpAddr;

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::names;

/// Shows the whole option, its kind and length included; fails if it is malformed.
pub fn print(line: &mut Line<'_>, (is_syn, is_ack): (bool, bool), option: Data<'_>) -> Printed {
    if option.len < 3 {
        return Err(Stop::Invalid);
    }
    let first = option.u8(2)?;
    let (subtype, low) = (usize::from(first >> 4), first & 0xf);
    let name = names::of("mptcp.subtype", first >> 4);
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
            let backup = if low & 1 == 0 { "non-backup" } else { "backup" };
            put!(line, " {backup}");
            if option.len == 4 {
                line.show(option, " id {u8 3}")?;
            }
            Ok(())
        }
        6 if option.len == 12 => line.show(option, " seq {u64 4}"),
        7 if option.len == 12 => line.show(option, " key 0x{h64 4}"),
        8 if option.len == 4 => reset(line, low, option.u8(3)?),
        9.. => Ok(()),
        _ => Err(Stop::Invalid),
    }
}

fn capable(line: &mut Line<'_>, is_syn: bool, is_ack: bool, version: u8, option: Data<'_>) -> Printed {
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
        put!(line, " {{0x{:x}", option.number(4, 8)?);
        if option.len >= 20 {
            line.show(option, ",0x{h64 12}")?;
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
        line.show(option, " id {u8 3}")?;
    }
    match option.len {
        12 => line.show(option, " token 0x{h32 4} nonce 0x{h32 8}"),
        16 => line.show(option, " hmac 0x{h64 4} nonce 0x{h32 12}"),
        _ => {
            put!(line, " hmac 0x");
            line.put_hex(option.slice(4, 20)?);
            Ok(())
        }
    }
}

/// Shows the position of the data in the connection's own numbering.
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
        let value = rest.number(0, len)?;
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
        // The use of checksums was agreed on before.
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
    let version = names::of("mptcp.address", low);
    let address: IpAddr = if is_v4 { option.ip4(4)?.into() } else { option.ip6(4)?.into() };
    put!(line, " {version} id {} {address}", option.u8(3)?);
    let mut at = if is_v4 { 8 } else { 20 };
    if matches!(more, PORT | 10) {
        put!(line, ":{}", option.u16(at)?);
        at += PORT;
    }
    if more >= HMAC {
        put!(line, " hmac 0x{:x}", option.number(at, 8)?);
    }
    Ok(())
}

fn reset(line: &mut Line<'_>, flags: u8, reason: u8) -> Printed {
    let set = match names::joined("mptcp.reset", flags, "") {
        letters if letters.is_empty() => "none".to_owned(),
        letters => letters,
    };
    put!(line, " flags [{set}] reason {}", names::text("mptcp.reason", reason));
    Ok(())
}
