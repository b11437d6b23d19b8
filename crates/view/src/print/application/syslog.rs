//! Syslog: facility and severity; with `-v` the message.

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::names;

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "syslog";
    if data.u8(0)? != b'<' {
        return Err(Stop::Invalid);
    }
    let (mut at, mut priority) = (1, 0u32);
    while at <= 3 && data.u8(at)?.is_ascii_digit() {
        priority = priority * 10 + u32::from(data.u8(at)? - b'0');
        at += 1;
    }
    if data.u8(at)? != b'>' {
        return Err(Stop::Invalid);
    }
    let (facility, severity) = ((priority & 0x3f8) >> 3, priority & 7);
    let (name, level) = (names::text("syslog.facility", facility), names::of("syslog.severity", severity));
    if !line.verbose() {
        put!(line, "SYSLOG {name}.{level}, length: {}", data.len);
        return Ok(());
    }
    put!(line, "SYSLOG, length: {}\n\tFacility {name} ({facility})", data.len);
    put!(line, ", Severity {level} ({severity})\n\tMsg: ");
    let message = data.skip(at + 1);
    line.put_chars(message.slice(0, message.len)?);
    Ok(())
}
