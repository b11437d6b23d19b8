//! PTP, in one line: what a message is, whose, and the time that it tells.

use crate::print::line::{Data, Line, Printed, put};

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
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
    line.show(
        data,
        ", {n8 0&f ptp} msg, domain {u8 4}, clock 0x{x64 20}, port {u16 28}, seq {u16 30}",
    )?;
    if kind == ANNOUNCE {
        line.show(
            data,
            ", grandmaster 0x{x64 53} priority {u8 47} class {u8 48}, steps removed {u16 61}",
        )?;
    } else if kind < ANNOUNCE {
        put!(line, ", time {}.{:09}", data.number(34, 6)?, data.u32(40)?);
    }
    line.show(data, ", length {u16 2}")
}
