//! MPLS: a stack of labels, and the IP packet under it where its first half byte looks like one.

use crate::print::line::{Data, Line, Printed, put};
use crate::print::{default_print, ipv4, ipv6, names};

pub fn print(line: &mut Line<'_>, mut data: Data<'_>) -> Printed {
    const BOTTOM: u32 = 0x100;
    const EXPLICIT_NULL_V4: u32 = 0;
    const EXPLICIT_NULL_V6: u32 = 2;
    const IMPLICIT_NULL: u32 = 3;
    line.protocol = "mpls";
    put!(line, "MPLS");
    let mut separator = " ";
    let label = loop {
        let entry = data.u32(0)?;
        data = data.skip(4);
        let label = entry >> 12;
        put!(line, "{separator}(label {label}");
        separator = if line.verbose() { "\n\t" } else { " " };
        let name = names::find("mpls.label", label);
        if let Some(name) = name.filter(|_| line.verbose()) {
            put!(line, " ({name})");
        }
        let end = if entry & BOTTOM != 0 { ", [S]" } else { "" };
        put!(line, ", tc {}{end}, ttl {})", entry >> 9 & 7, entry & 0xff);
        if entry & BOTTOM != 0 {
            break label;
        }
    };
    if data.len == 0 {
        return Ok(());
    }
    let version = match label {
        EXPLICIT_NULL_V4 | IMPLICIT_NULL => 4,
        EXPLICIT_NULL_V6 => 6,
        _ => data.u8(0)? >> 4,
    };
    if matches!(version, 4 | 6) {
        put!(line, "{separator}");
    }
    match version {
        4 => ipv4::print(line, data),
        6 => ipv6::print(line, data),
        _ => {
            default_print(line, data);
            data.need(data.len)
        }
    }
}
