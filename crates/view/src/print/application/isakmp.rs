//! ISAKMP: the header of a key exchange, and ESP in UDP.

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::{names, network};

/// The header of a key exchange: which one, between whom, and whether the rest is encrypted.
pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 28;
    line.protocol = "isakmp";
    data.need(HEADER_LEN)?;
    let (version, kind, flags, message) =
        (data.u8(17)? >> 4, data.u8(18)?, data.u8(19)?, data.u32(20)?);
    put!(line, "isakmp:");
    let is_first = message == 0;
    match version {
        1 => {
            let phase = if is_first { "1" } else { "2/others" };
            // Who has no cookie of the other side yet is the one who began.
            let begins = data.array::<8>(8)? == [0; 8];
            put!(line, " phase {phase}{}", if begins { " I" } else { "" });
        }
        2 if is_first => put!(line, " parent_sa"),
        2 => put!(line, " child_sa "),
        _ => put!(line, " version {version}"),
    }
    put!(line, " {}", names::text("isakmp", kind));
    let table = if version == 1 {
        "isakmp.flags"
    } else {
        "isakmp2.flags"
    };
    let letters = names::joined(table, flags, "");
    if !letters.is_empty() {
        put!(line, "[{letters}]");
    }
    Ok(())
}

/// ESP behind a translator of addresses, its signs of life, and key exchange.
pub fn encapsulated_esp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "isakmp_rfc3948";
    if data.len == 1 && data.u8(0)? == 0xff {
        put!(line, "isakmp-nat-keep-alive");
        return Ok(());
    }
    if data.len < 4 {
        return Err(Stop::Cut);
    }
    if data.u32(0)? == 0 {
        put!(line, "NONESP-encap: ");
        return print(line, data.skip(4));
    }
    put!(line, "UDP-encap: ");
    network::esp(line, data)
}
