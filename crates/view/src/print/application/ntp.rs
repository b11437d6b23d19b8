//! NTP: version and mode; with `-v` the times, or the head of a control message. PTP: one line with the type of a
//! message, its sender and its time.

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::{names, time};

pub fn ntp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "ntp";
    let first = data.u8(0)?;
    line.show(data, "NTPv{u8 0>>3&7}, {n8 0&7 ntp.mode}")?;
    put!(line, ", length {}", data.len);
    if !line.verbose() {
        return Ok(());
    }
    let leap = first & 0xc0;
    put!(line, "\n\tLeap indicator: {} ({leap})", names::of("ntp.leap", leap));
    match first & 7 {
        0..6 => times(line, data),
        6 => control(line, data),
        _ => Ok(()),
    }
}

/// Shows the head of a control message (RFC 9327).
fn control(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 12;
    if data.len < HEADER_LEN {
        return Err(Stop::Invalid);
    }
    line.show(data, ", {n8 1&80 ntp.response}, {n8 1&40 ntp.error}, {n8 1&20 ntp.more}, OpCode={u8 1&1f}")?;
    line.show(data, "\n\tSequence={u16 2}")?;
    match data.u16(4)? {
        0 => put!(line, ", Status=0"),
        status => put!(line, ", Status={status:#x}"),
    }
    line.show(data, ", Assoc.={u16 6}, Offset={u16 8}, Count={u16 10}")?;
    let count = usize::from(data.u16(10)?);
    if HEADER_LEN + count > data.len {
        return Err(Stop::Invalid);
    }
    if count > 0 {
        data.need(HEADER_LEN + count)?;
        put!(line, "\n\tTO-BE-DONE: data not interpreted");
    }
    Ok(())
}

fn times(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const LEN: usize = 48;
    if data.len < LEN {
        return Err(Stop::Invalid);
    }
    let stratum = data.u8(1)?;
    line.show(data, ", Stratum {u8 1} ({n8 1 ntp.stratum})")?;
    let (poll, precision) = (data.u8(2)? as i8, data.u8(3)? as i8);
    put!(line, ", poll {poll}");
    match poll {
        0..=31 => put!(line, " ({}s)", 1u32 << poll),
        -31..=-1 => put!(line, " (1/{}s)", 1u32 << -poll),
        _ => {}
    }
    put!(line, ", precision {precision}");
    for (name, at) in [("\n\tRoot Delay: ", 4), (", Root dispersion: ", 8)] {
        let fixed = data.u32(at)?;
        let millionths = (f64::from(fixed & 0xffff) / 65_536.0 * 1e6) as u32;
        put!(line, "{name}{}.{millionths:06}", fixed >> 16);
    }
    put!(line, ", Reference-ID: ");
    match stratum {
        0 => put!(line, "(unspec)"),
        1 => line.put_chars(data.slice(12, 4)?),
        _ => line.show(data, "0x{x32 12}")?,
    }
    for (name, at) in [
        ("\n\t  Reference Timestamp:  ", 16),
        ("\n\t  Originator Timestamp: ", 24),
        ("\n\t  Receive Timestamp:    ", 32),
        ("\n\t  Transmit Timestamp:   ", 40),
    ] {
        put!(line, "{name}");
        put_time(line, data.u32(at)?, data.u32(at + 4)?);
    }
    for (name, at) in
        [("\n\t    Originator - Receive Timestamp:  ", 32), ("\n\t    Originator - Transmit Timestamp: ", 40)]
    {
        put!(line, "{name}");
        let time = |at: usize| Ok((data.u32(at)?, data.u32(at + 4)?));
        let (before, after) = (time(24)?, time(at)?);
        if before == (0, 0) {
            put_time(line, after.0, after.1);
            continue;
        }
        let whole = |(seconds, fraction): (u32, u32)| i128::from(seconds) << 32 | i128::from(fraction);
        let apart = whole(after) - whole(before);
        let sign = if apart > 0 { '+' } else { '-' };
        let apart = apart.unsigned_abs();
        let billionths = billionths(apart as u32);
        put!(line, "{sign}{}.{billionths:09}", (apart >> 32) as u32);
    }
    match data.len - LEN {
        0 => {}
        4 => line.show(data, "\n\tKey id: {u32 48}")?,
        len @ (20 | 24) => {
            line.show(data, "\n\tKey id: {u32 48}\n\tAuthentication: ")?;
            line.put_hex(data.slice(52, len - 4)?);
        }
        more => put!(line, "\n\t({more} more bytes after the header)"),
    }
    Ok(())
}

fn billionths(fraction: u32) -> u32 {
    (f64::from(fraction) / 4_294_967_296.0 * 1e9) as u32
}

fn put_time(line: &mut Line<'_>, seconds: u32, fraction: u32) {
    const SINCE_1900: i64 = 2_208_988_800;
    put!(line, "{seconds}.{:09}", billionths(fraction));
    if seconds == 0 {
        return;
    }
    // The time is of the era that ends in 2036, as in tcpdump.
    let unix = i64::from(seconds) - SINCE_1900;
    put!(line, " ({}Z)", time::date_and_time(unix));
}

pub fn ptp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const ANNOUNCE: u8 = 11;
    line.protocol = "ptp";
    let version = data.u8(1)?;
    put!(line, "PTPv{}", version & 15);
    if version >> 4 != 0 {
        put!(line, ".{}", version >> 4);
    }
    if version & 15 != 2 {
        put!(line, ", length {}", data.len);
        return Ok(());
    }
    let kind = data.u8(0)? & 15;
    line.show(data, ", {n8 0&f ptp} msg, domain {u8 4}, clock 0x{x64 20}, port {u16 28}, seq {u16 30}")?;
    if kind == ANNOUNCE {
        line.show(data, ", grandmaster 0x{x64 53} priority {u8 47} class {u8 48}, steps removed {u16 61}")?;
    } else if kind < ANNOUNCE {
        put!(line, ", time {}.{:09}", data.number(34, 6)?, data.u32(40)?);
    }
    line.show(data, ", length {u16 2}")
}
