//! VPNs: the header of ISAKMP's key exchange, ESP in UDP, and WireGuard's messages.

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::{names, network};

/// Shows the header of a key exchange: its kind, its cookies, and if the rest is encrypted.
pub fn isakmp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 28;
    line.protocol = "isakmp";
    data.need(HEADER_LEN)?;
    let (version, kind, flags, message) = (data.u8(17)? >> 4, data.u8(18)?, data.u8(19)?, data.u32(20)?);
    put!(line, "isakmp:");
    let is_first = message == 0;
    match version {
        1 => {
            let phase = if is_first { "1" } else { "2/others" };
            // The initiator has no cookie of the other side yet.
            let begins = data.array::<8>(8)? == [0; 8];
            put!(line, " phase {phase}{}", if begins { " I" } else { "" });
        }
        2 if is_first => put!(line, " parent_sa"),
        2 => put!(line, " child_sa "),
        _ => put!(line, " version {version}"),
    }
    put!(line, " {}", names::text("isakmp", kind));
    let table = if version == 1 { "isakmp.flags" } else { "isakmp2.flags" };
    let letters = names::joined(table, flags, "");
    if !letters.is_empty() {
        put!(line, "[{letters}]");
    }
    Ok(())
}

/// Shows ESP across NAT, its keepalives, and key exchange.
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
        return isakmp(line, data.skip(4));
    }
    put!(line, "UDP-encap: ");
    network::esp(line, data)
}

pub fn wireguard(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    put!(line, "UDP, length {}", data.len);
    message(line, data);
    Ok(())
}

fn message(line: &mut Line<'_>, data: Data<'_>) {
    let little = |at: usize| data.array::<4>(at).map(u32::from_le_bytes);
    let Ok(kind) = little(0) else { return };
    let shown = match (kind, data.len) {
        (1, 148) => little(4).map(|sender| format!("handshake initiation, sender 0x{sender:08x}")),
        (2, 92) => little(4).and_then(|sender| {
            let receiver = little(8)?;
            Ok(format!("handshake response, sender 0x{sender:08x}, receiver 0x{receiver:08x}"))
        }),
        (3, 64) => little(4).map(|receiver| format!("cookie reply, receiver 0x{receiver:08x}")),
        (4, 32..) => little(4).and_then(|receiver| {
            let counter = data.array::<8>(8).map(u64::from_le_bytes)?;
            let name = if data.len == 32 { "keepalive" } else { "data" };
            Ok(format!("{name}, receiver 0x{receiver:08x}, counter {counter}"))
        }),
        _ => return,
    };
    match shown {
        Ok(text) => put!(line, ": WireGuard, {text}"),
        Err(_) => put!(line, ": WireGuard [|wireguard]"),
    }
}
