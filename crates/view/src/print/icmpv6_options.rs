//! Options of neighbour discovery, which `-v` shows.

use std::net::Ipv6Addr;

use super::line::{Colons, Data, Line, Printed, flag_names, put};
use super::{DumpForm, dump};

const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
const PREFIX: u8 = 3;
const REDIRECTED: u8 = 4;
const MTU: u8 = 5;
const ROUTE: u8 = 24;
const DNS_SERVERS: u8 = 25;

pub(super) fn print(line: &mut Line<'_>, mut list: Data<'_>) -> Printed {
    while list.len > 0 {
        let (kind, words) = (list.u8(0)?, list.u8(1)?);
        let len = usize::from(words) * 8;
        if len == 0 || len > list.len {
            put!(line, " (invalid option length {len})");
            return Ok(());
        }
        let option = list.claimed(len);
        option.need(len)?;
        let name = match kind {
            SOURCE_ADDRESS => "source link-address",
            TARGET_ADDRESS => "destination link-address",
            PREFIX => "prefix info",
            REDIRECTED => "redirected header",
            MTU => "mtu",
            7 => "advertisement interval",
            8 => "homeagent information",
            ROUTE => "route info",
            DNS_SERVERS => "rdnss",
            31 => "dnssl",
            _ => "unknown",
        };
        put!(
            line,
            "\n\t  {name} option ({kind}), length {len} ({words}): "
        );
        value(line, kind, option)?;
        list = list.skip(len);
    }
    Ok(())
}

fn value(line: &mut Line<'_>, kind: u8, option: Data<'_>) -> Printed {
    const PREFIX_FLAGS: [(u32, &str); 3] = [(0x80, "onlink"), (0x40, "auto"), (0x20, "router")];
    match kind {
        SOURCE_ADDRESS | TARGET_ADDRESS => put!(line, "{}", Colons(option.skip(2).bytes)),
        PREFIX if option.len == 32 => {
            let flags = flag_names(option.u8(3)?.into(), &PREFIX_FLAGS, ", ");
            put!(
                line,
                "{}/{}, ",
                Ipv6Addr::from(option.array(16)?),
                option.u8(2)?
            );
            put!(
                line,
                "Flags [{flags}], valid time {}",
                lifetime(option.u32(4)?)
            );
            put!(line, ", pref. time {}", lifetime(option.u32(8)?));
        }
        MTU => put!(line, " {}", option.u32(4)?),
        ROUTE => {
            let mut prefix = [0; 16];
            let stored = option.bytes.get(8..).unwrap_or_default();
            let len = stored.len().min(prefix.len());
            prefix[..len].copy_from_slice(&stored[..len]);
            put!(line, " {}/{}", Ipv6Addr::from(prefix), option.u8(2)?);
            put!(line, ", pref={}", preference(option.u8(3)?));
            put!(line, ", lifetime={}", lifetime(option.u32(4)?));
        }
        DNS_SERVERS => {
            put!(line, " lifetime {}s,", option.u32(4)?);
            for at in (8..option.len.saturating_sub(15)).step_by(16) {
                put!(line, " addr: {}", Ipv6Addr::from(option.array(at)?));
            }
        }
        _ => dump::print(line.out, DumpForm::Hex, option.skip(2).bytes),
    }
    Ok(())
}

/// A router's or a route's preference, from the flags octet.
pub(super) fn preference(flags: u8) -> &'static str {
    ["medium", "high", "rsv", "low"][usize::from(flags >> 3 & 3)]
}

fn lifetime(seconds: u32) -> String {
    if seconds == u32::MAX {
        "infinity".to_string()
    } else {
        format!("{seconds}s")
    }
}
