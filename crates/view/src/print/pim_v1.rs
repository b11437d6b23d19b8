//! PIM version 1, which is a kind of IGMP.

use std::net::Ipv4Addr;

use super::line::{Data, Line, Printed, Stop, put};
use super::time::span;

/// A message of version 1, of which IGMP has said so much.
pub(super) fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "pimv1";
    let kind = data.u8(1)?;
    match kind {
        0 => put!(line, " Query"),
        1 => put!(line, " Register"),
        2 => put!(line, " Register-Stop"),
        3 => put!(line, " Join/Prune"),
        4 => put!(line, " RP-reachable"),
        5 => put!(line, " Assert"),
        6 => put!(line, " Graft"),
        7 => put!(line, " Graft-ACK"),
        _ => put!(line, " [type {kind}]"),
    }
    let address = |at| data.array(at).map(Ipv4Addr::from);
    let mask = |at| mask(data, at);
    match kind {
        0 => {
            if let Ok(mode) = data.u8(8) {
                match mode >> 4 {
                    0 => put!(line, " Dense-mode"),
                    1 => put!(line, " Sparse-mode"),
                    2 => put!(line, " Sparse-Dense-mode"),
                    mode => put!(line, " mode-{mode}"),
                }
            }
            if line.verbose() {
                put!(line, " (Hold-time {})", span(data.u16(10)?.into()));
            }
        }
        1 => put!(line, " for {} > {}", address(20)?, address(24)?),
        2 => put!(line, " for {} > {}", address(8)?, address(12)?),
        4 if line.verbose() => {
            put!(line, " group {}{}", address(8)?, mask(12)?);
            put!(
                line,
                " RP {} hold {}",
                address(16)?,
                span(data.u16(22)?.into())
            );
        }
        5 => {
            put!(line, " for {} > {}{}", address(16)?, address(8)?, mask(12)?);
            let preference = data.u32(20)?;
            let tree = if preference >> 31 != 0 {
                "RP-tree"
            } else {
                "SPT"
            };
            put!(
                line,
                " {tree} pref {} metric {}",
                preference & 0x7fff_ffff,
                data.u32(24)?
            );
        }
        3 | 6 | 7 if line.verbose() => join_and_prune_1(line, data.skip(8))?,
        _ => {}
    }
    match data.u8(4)? >> 4 {
        1 => {}
        version => put!(line, " [v{version}]"),
    }
    Ok(())
}

fn join_and_prune_1(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const USUAL_HOLD: u16 = 180;
    const SOURCE_LEN: usize = 6;
    let address = |at| data.array(at).map(Ipv4Addr::from);
    let mask = |at| mask(data, at);
    let is_sparse = |at| Ok(data.u8(at)? & 1 != 0);
    let hold = data.u16(6)?;
    let is_single = data.bytes.len() >= 30 && data.u8(11)? == 1;
    if is_single && u32::from(data.u16(20)?) + u32::from(data.u16(22)?) == 1 {
        put!(line, " RPF {} ", address(0)?);
        if hold != USUAL_HOLD {
            put!(line, "Hold {}", span(hold.into()));
        }
        let flags = data.u8(25)?;
        put!(
            line,
            "{} ({}/{}, {}{}) {}{} {}",
            if data.u16(20)? != 0 { "Join" } else { "Prune" },
            address(26)?,
            flags & 0x3f,
            address(12)?,
            mask(16)?,
            if is_sparse(24)? { "Sparse" } else { "Dense" },
            if flags & 0x80 != 0 { " WC" } else { "" },
            if flags & 0x40 != 0 { "RP" } else { "SPT" }
        );
        return Ok(());
    }
    let separator = if line.options.verbosity > 1 { "\n" } else { "" };
    put!(line, "{separator} Upstream Nbr: {}", address(0)?);
    put!(line, "{separator} Hold time: {}", span(hold.into()));
    if line.options.verbosity < 2 {
        return Ok(());
    }
    let mut at = 12;
    for _ in 0..data.u8(11)? {
        put!(line, "\n\tGroup: {}{}", address(at)?, mask(at + 4)?);
        let (joined, pruned) = (data.u16(at + 8)?, data.u16(at + 10)?);
        put!(line, " joined: {joined} pruned: {pruned}");
        at += 12;
        for (kind, count) in [("Join ", joined), ("Prune", pruned)] {
            for _ in 0..count {
                let flags = data.u8(at + 1)?;
                put!(
                    line,
                    "\n\t{kind} {} {}{} {}/{}",
                    if is_sparse(at)? { "Sparse" } else { "Dense" },
                    if flags & 0x80 != 0 { "WC " } else { "" },
                    if flags & 0x40 != 0 { "RP" } else { "SPT" },
                    address(at + 2)?,
                    flags & 0x3f
                );
                at += SOURCE_LEN;
            }
        }
    }
    Ok(())
}

/// What is left of a mask that is not that of one address.
fn mask(data: Data<'_>, at: usize) -> Result<String, Stop> {
    Ok(match data.u32(at)? {
        u32::MAX => String::new(),
        mask => format!("/{}", Ipv4Addr::from(mask)),
    })
}
