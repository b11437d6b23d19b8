//! BGP messages in a segment: their types, with `-v`.

use super::line::{Data, Line, Printed, Stop, put};

const HEADER_LEN: usize = 19;
const MARKER: [u8; 16] = [0xff; 16];

pub(super) fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "bgp";
    put!(line, ": BGP");
    if !line.verbose() {
        return Ok(());
    }
    let mut rest = data;
    while let Some(at) = rest
        .bytes
        .windows(MARKER.len())
        .position(|bytes| bytes == MARKER)
    {
        if at > 0 {
            put!(line, " [|bgp]");
        }
        rest = rest.skip(at);
        rest.need(HEADER_LEN)?;
        let (len, kind) = (usize::from(rest.u16(16)?), rest.u8(18)?);
        if len < HEADER_LEN {
            put!(line, "\nmessage length {len} < {HEADER_LEN}");
            return Err(Stop::Invalid);
        }
        let name = match kind {
            1 => "Open",
            2 => "Update",
            3 => "Notification",
            4 => "Keepalive",
            5 => "Route Refresh",
            _ => "Unknown",
        };
        if rest.bytes.len() < len {
            put!(line, "\n[|BGP {name}]");
            break;
        }
        put!(line, "\n\t{name} Message ({kind}), length: {len}");
        rest = rest.skip(len);
    }
    Ok(())
}
