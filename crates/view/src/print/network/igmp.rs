//! IGMP: queries and reports; of PIM version 1, which is a kind of IGMP, only the type of the message.

use std::net::IpAddr;

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::{names, time};
use trawl_packet::checksum::Sum;

const QUERY: u8 = 0x11;
const REPORT_V1: u8 = 0x12;
const PIM: u8 = 0x14;
const REPORT_V2: u8 = 0x16;
const LEAVE: u8 = 0x17;
const REPORT_V3: u8 = 0x22;

/// The usual response time, in tenths of a second, which is not shown.
const USUAL_TIME: u32 = 100;

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "igmp";
    match data.u8(0)? {
        QUERY => query(line, data)?,
        REPORT_V1 => line.show(data, "igmp v1 report {ip4 4}")?,
        REPORT_V2 => line.show(data, "igmp v2 report {ip4 4}")?,
        PIM => line.show(data, "igmp pimv1 {n8 1 pimv1}")?,
        LEAVE => line.show(data, "igmp leave {ip4 4}")?,
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

/// Decodes a number that is a small floating-point one if its highest bit is set, with `digits` bits of mantissa (RFC
/// 3376, 4.1.1, and RFC 3810, 5.1.3).
pub fn floating(code: u32, digits: u32) -> u32 {
    match code >> (digits + 3) {
        0 => code,
        _ => (code & ((1 << digits) - 1) | 1 << digits) << ((code >> digits & 7) + 3),
    }
}

fn query(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const V3_LEN: usize = 12;
    put!(line, "igmp query");
    let (code, group) = (u32::from(data.u8(1)?), data.ip4(4)?);
    let version = match data.len {
        V3_LEN.. => 3,
        _ if code == 0 => 1,
        _ => 2,
    };
    put!(line, " v{version}");
    match version {
        3 => match floating(code, 4) {
            USUAL_TIME => {}
            tenths @ 0..600 => put!(line, " [max resp time {:.1}s]", f64::from(tenths) / 10.0),
            tenths => put!(line, " [max resp time {}]", time::span(tenths / 10)),
        },
        2 if code != USUAL_TIME => put!(line, " [max resp time {code}]"),
        _ => {}
    }
    if !group.is_unspecified() {
        put!(line, " [gaddr {group}");
        if version == 3 && data.u16(10)? > 0 {
            line.show(data, ", {u16 10} source(s)")?;
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
    let mut record = data.skip(8);
    for _ in 0..if line.verbose() { count } else { 0 } {
        let len = group_record(line, record, 4)?;
        record = record.skip(len.unwrap_or_default());
    }
    Ok(())
}

/// Shows a record of a report, with addresses of the given size; MLD uses it too. Returns its length, unless that
/// exceeds the room.
pub fn group_record(line: &mut Line<'_>, record: Data<'_>, size: usize) -> Result<Option<usize>, Stop> {
    let address = |at| -> Result<IpAddr, _> {
        match size {
            4 => record.ip4(at).map(IpAddr::V4),
            _ => record.ip6(at).map(IpAddr::V6),
        }
    };
    let (kind, sources) = (record.u8(0)?, usize::from(record.u16(2)?));
    put!(line, " [gaddr {} {}", address(4)?, names::of("igmp.record", kind));
    // tcpdump checks the room of MLD's records alone.
    if size == 16 && record.len < 20 + sources * 16 {
        put!(line, " [invalid number of sources {sources}]");
        return Ok(None);
    }
    if line.options.verbosity == 1 {
        put!(line, ", {sources} source(s)");
    } else {
        put!(line, " {{");
        for index in 0..sources {
            put!(line, " {}", address(4 + size + index * size)?);
        }
        put!(line, " }}");
    }
    put!(line, "]");
    Ok(Some(4 + size + sources * size))
}
