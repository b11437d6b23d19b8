//! IGMP: queries and reports.

use std::net::Ipv4Addr;

use super::line::{Data, Line, Printed, put};
use trawl_packet::checksum::Sum;

const QUERY: u8 = 0x11;
const PIM: u8 = 0x14;
const REPORT_V1: u8 = 0x12;
const REPORT_V2: u8 = 0x16;
const LEAVE: u8 = 0x17;
const REPORT_V3: u8 = 0x22;

/// A response time, in tenths of a second, that is usual and not shown.
const USUAL_TIME: u8 = 100;

pub(super) fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "igmp";
    let group = |at| data.array(at).map(Ipv4Addr::from);
    match data.u8(0)? {
        QUERY => query(line, data)?,
        REPORT_V1 => put!(line, "igmp v1 report {}", group(4)?),
        REPORT_V2 => put!(line, "igmp v2 report {}", group(4)?),
        PIM => {
            const KINDS: [&str; 8] = [
                "Query",
                "Register",
                "Register-Stop",
                "Join/Prune",
                "RP-reachable",
                "Assert",
                "Graft",
                "Graft-ACK",
            ];
            let kind = data.u8(1)?;
            match KINDS.get(usize::from(kind)) {
                Some(name) => put!(line, "igmp pimv1 {name}"),
                None => put!(line, "igmp pimv1 [type {kind}]"),
            }
        }
        LEAVE => put!(line, "igmp leave {}", group(4)?),
        REPORT_V3 => report_v3(line, data)?,
        kind => put!(line, "igmp-{kind}"),
    }
    if line.verbose() && data.bytes.len() == data.len {
        let stored = data.u16(2)?;
        if Sum::default().add(data.bytes).finish() != 0 {
            put!(line, " bad igmp cksum {stored:x}!");
        }
    }
    Ok(())
}

fn query(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const V3_LEN: usize = 12;
    put!(line, "igmp query");
    let (code, group) = (data.u8(1)?, Ipv4Addr::from(data.array(4)?));
    let version = match data.len {
        V3_LEN.. => 3,
        _ if code == 0 => 1,
        _ => 2,
    };
    put!(line, " v{version}");
    match version {
        3 => {
            // From 128 on it is a floating-point number.
            let tenths = match code {
                128.. => (u32::from(code & 0xf) | 0x10) << ((code >> 4 & 7) + 3),
                _ => u32::from(code),
            };
            match tenths {
                100 => {}
                0..600 => put!(line, " [max resp time {:.1}s]", f64::from(tenths) / 10.0),
                _ => put!(line, " [max resp time {}]", super::time::span(tenths / 10)),
            }
        }
        2 if code != USUAL_TIME => put!(line, " [max resp time {code}]"),
        _ => {}
    }
    if !group.is_unspecified() {
        put!(line, " [gaddr {group}");
        if version == 3 && data.u16(10)? > 0 {
            put!(line, ", {} source(s)", data.u16(10)?);
        }
        put!(line, "]");
    }
    Ok(())
}

fn report_v3(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const MIN_LEN: usize = 16;
    put!(line, "igmp v3 report");
    if data.len < MIN_LEN {
        put!(line, " [invalid len {}]", data.len);
        return Ok(());
    }
    let count = data.u16(6)?;
    put!(line, ", {count} group record(s)");
    if !line.verbose() {
        return Ok(());
    }
    let mut record = data.skip(8);
    for _ in 0..count {
        let (kind, sources) = (record.u8(0)?, record.u16(2)?);
        let name = match kind {
            1 => "is_in",
            2 => "is_ex",
            3 => "to_in",
            4 => "to_ex",
            5 => "allow",
            6 => "block",
            _ => "unknown",
        };
        put!(line, " [gaddr {} {name}", Ipv4Addr::from(record.array(4)?));
        if line.options.verbosity == 1 {
            put!(line, ", {sources} source(s)");
        } else {
            put!(line, " {{");
            for index in 0..usize::from(sources) {
                put!(line, " {}", Ipv4Addr::from(record.array(8 + index * 4)?));
            }
            put!(line, " }}");
        }
        put!(line, "]");
        record = record.skip(8 + usize::from(sources) * 4);
    }
    Ok(())
}
