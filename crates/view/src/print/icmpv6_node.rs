//! ICMPv6: what nodes tell of themselves (RFC 4620), and new prefixes for routers (RFC 2894).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::line::{Data, Line, Printed, Stop, put};
use super::text::put_chars;

const HEADER_LEN: usize = 16;
const NOOP: u16 = 0;
const SUPPORTED: u16 = 1;
const NAME: u16 = 2;
const ADDRESSES: u16 = 3;
/// A time to live and an address.
const ENTRY_LEN: usize = 20;

pub(super) fn query(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const OLD_LEN: usize = 12;
    if data.bytes.len() == OLD_LEN {
        put!(line, " who-are-you request");
        return Ok(());
    }
    put!(line, " node information query");
    data.need(HEADER_LEN)?;
    let (code, kind, flags) = (data.u8(1)?, data.u16(4)?, data.u16(6)?);
    put!(line, " (");
    put_kind(line, kind);
    match kind {
        SUPPORTED if flags != 0 => put_compressed(line, flags),
        // That some are left out is said in replies.
        ADDRESSES if flags != 0 => put!(line, " [{}]", address_flags(flags & !1)),
        _ => {}
    }
    let subject = data.skip(HEADER_LEN);
    match (kind, code) {
        (NOOP | SUPPORTED, _) if line.verbose() && !subject.bytes.is_empty() => {
            put!(line, ", invalid len");
        }
        (NOOP | SUPPORTED, _) => {}
        _ if subject.bytes.is_empty() => put!(line, ", 03 draft"),
        (_, 0) => match <[u8; 16]>::try_from(subject.bytes) {
            Ok(address) => put!(line, ", subject={}", Ipv6Addr::from(address)),
            Err(_) => put_wrong_subject(line, subject, 16),
        },
        (_, 1) => {
            put!(line, ", subject=DNS name");
            put_name(line, subject.bytes);
        }
        (_, 2) => match <[u8; 4]>::try_from(subject.bytes) {
            Ok(address) => put!(line, ", subject={}", Ipv4Addr::from(address)),
            Err(_) => put_wrong_subject(line, subject, 4),
        },
        _ => put!(line, ", unknown subject"),
    }
    put!(line, ")");
    Ok(())
}

fn put_wrong_subject(line: &mut Line<'_>, subject: Data<'_>, len: usize) {
    if line.verbose() && subject.bytes.len() > len {
        put!(line, ", invalid subject len");
    }
}

fn put_kind(line: &mut Line<'_>, kind: u16) {
    let name = match kind {
        NOOP => "noop",
        SUPPORTED => "supported qtypes",
        NAME => "DNS name",
        ADDRESSES => "node addresses",
        _ => "unknown",
    };
    put!(line, "{name}");
}

fn put_compressed(line: &mut Line<'_>, flags: u16) {
    put!(line, " [{}]", if flags & 1 == 0 { "" } else { "C" });
}

fn address_flags(flags: u16) -> String {
    const NAMES: [(u16, char); 7] = [
        (0x40, 'a'),
        (0x20, 'G'),
        (0x10, 'S'),
        (0x08, 'L'),
        (0x04, 'C'),
        (0x02, 'A'),
        (0x01, 'T'),
    ];
    let set = NAMES.iter().filter(|(bit, _)| flags & bit != 0);
    set.map(|(_, letter)| letter).collect()
}

pub(super) fn reply(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    if data.bytes.len() < data.len {
        return Err(Stop::Cut);
    }
    data.need(HEADER_LEN)?;
    let (code, kind, flags) = (data.u8(1)?, data.u16(4)?, data.u16(6)?);
    put!(line, " node information reply (");
    let answer = data.skip(HEADER_LEN);
    let invalid = match line.verbose() && !answer.bytes.is_empty() {
        true => ", invalid length",
        false => "",
    };
    match code {
        0 => {
            put!(line, "{}", if line.verbose() { "success, " } else { "" });
            put_kind(line, kind);
        }
        1 => put!(line, "refused{invalid}"),
        2 => put!(line, "unknown{invalid}"),
        _ => {}
    }
    match (code, kind) {
        (0, NOOP) => put!(line, "{invalid}"),
        (0, SUPPORTED) if flags != 0 => put_compressed(line, flags),
        (0, NAME) => {
            let time_to_live = answer.u32(0)?;
            put_name(line, &answer.bytes[4..]);
            if flags & 1 != 0 {
                put!(line, " [TTL={time_to_live}]");
            }
        }
        (0, ADDRESSES) => {
            for index in 0..answer.bytes.len() / ENTRY_LEN {
                let entry = answer.skip(index * ENTRY_LEN);
                let address = Ipv6Addr::from(entry.array(4)?);
                put!(line, " {address}({})", entry.u32(0)?);
            }
            if flags != 0 {
                put!(line, " [{}]", address_flags(flags));
            }
        }
        _ => {}
    }
    put!(line, ")");
    Ok(())
}

/// A name in labels, or, as a draft had it, one text with its length before it.
fn put_name(line: &mut Line<'_>, bytes: &[u8]) {
    if let Some((len, text)) = bytes.split_first()
        && usize::from(*len) == text.len()
    {
        put!(line, "{}", if line.verbose() { ", 03 draft" } else { "" });
        put!(line, ", \"");
        put_chars(line, text);
        return put!(line, "\"");
    }
    put!(line, ", \"");
    let mut rest = bytes;
    while let Some((len, after)) = rest.split_first() {
        if *len == 0 {
            put!(
                line,
                "{}",
                match after {
                    // The end, or one of a name that is only begun.
                    [] => ".",
                    [0] => "",
                    _ => "???",
                }
            );
            break;
        }
        let Some((label, after)) = after.split_at_checked((*len).into()) else {
            put!(line, "???");
            break;
        };
        put_chars(line, label);
        if after.len() > 1 && after[0] != 0 {
            put!(line, ".");
        }
        rest = after;
    }
    put!(line, "\"");
}

pub(super) fn renumbering(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const FLAGS: [(u8, char); 5] = [
        (0x80, 'T'),
        (0x40, 'R'),
        (0x20, 'A'),
        (0x10, 'S'),
        (0x08, 'P'),
    ];
    const COMMAND: u8 = 0;
    const MATCH_LEN: usize = 24;
    const USE_LEN: usize = 32;
    let (code, reserved) = (data.u8(1)?, data.u32(12)?);
    match code {
        COMMAND => put!(line, ", command"),
        1 => put!(line, ", result"),
        255 => put!(line, ", sequence number reset"),
        _ => put!(line, ", code-#{code}"),
    }
    put!(line, ", seq={}", data.u32(4)?);
    if line.verbose() {
        let flags = data.u8(9)?;
        let set = FLAGS.iter().filter(|(bit, _)| flags & bit != 0);
        let set: String = set.map(|(_, letter)| letter).collect();
        let comma = if flags == 0 { "" } else { "," };
        put!(
            line,
            "[{set}{comma}seg={},maxdelay={}",
            data.u8(8)?,
            data.u16(10)?
        );
        if reserved != 0 {
            put!(line, "rsvd=0x{reserved:x}");
        }
        put!(line, "]");
    }
    if code != COMMAND {
        return Ok(());
    }
    let separator = match line.options.verbosity {
        0 | 1 => " ",
        _ => "\n\t",
    };
    let matched = data.skip(HEADER_LEN);
    let prefix = Ipv6Addr::from(matched.array(8)?);
    put!(line, "{separator}match(");
    match matched.u8(0)? {
        1 => put!(line, "add"),
        2 => put!(line, "change"),
        3 => put!(line, "setglobal"),
        other => put!(line, "#{other}"),
    }
    if line.verbose() {
        put!(
            line,
            ",ord={},min={},max={}",
            matched.u8(2)?,
            matched.u8(4)?,
            matched.u8(5)?
        );
    }
    put!(line, ",{prefix}/{})", matched.u8(3)?);
    let words = usize::from(matched.u8(1)?).saturating_sub(3);
    if !words.is_multiple_of(4) {
        return Err(Stop::Cut);
    }
    for index in 0..words / 4 {
        let used = matched.skip(MATCH_LEN + index * USE_LEN);
        let prefix = Ipv6Addr::from(used.array(16)?);
        put!(line, "{separator}use(");
        let flags = used.u32(12)?.to_be_bytes()[0];
        if flags != 0 {
            let lifetime = if flags & 0x80 != 0 { "V" } else { "" };
            let preferred = if flags & 0x40 != 0 { "P" } else { "" };
            put!(line, "{lifetime}{preferred},");
        }
        if line.verbose() {
            put!(
                line,
                "mask=0x{:x},raflags=0x{:x},",
                used.u8(2)?,
                used.u8(3)?
            );
            for (name, at) in [("vltime", 4), ("pltime", 8)] {
                match used.u32(at)? {
                    u32::MAX => put!(line, "{name}=infty,"),
                    time => put!(line, "{name}={time},"),
                }
            }
        }
        put!(line, "{prefix}/{}/{})", used.u8(0)?, used.u8(1)?);
    }
    Ok(())
}
