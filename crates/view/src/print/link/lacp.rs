//! Slow protocols: link aggregation (LACP), its marker protocol, and the head of Ethernet OAM.

use crate::print::line::{Data, Layout, Line, Printed, Stop, Tlvs, put};
use crate::print::names;

const LACP: u8 = 1;
const MARKER: u8 = 2;
const OAM: u8 = 3;
const HEADER_LEN: usize = 2;

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "slow";
    let subtype = data.u8(0)?;
    let name = names::text("slow", subtype);
    if !matches!(subtype, LACP | MARKER) {
        put!(line, "{name}, length {}", data.len);
        match subtype {
            OAM if line.verbose() => {
                let head = "\n\tCode {n8 3 slow.oam} OAM PDU, Flags [{f16 1 slow.oam_flags}]";
                line.show(data, head)?;
            }
            OAM => {}
            _ => line.dump("\n\t", data.bytes),
        }
        return Ok(());
    }
    match data.u8(1)? {
        1 => put!(line, "{name}v1, length {}", data.len),
        version => {
            put!(line, "{name} version {version} packet not supported");
            return Ok(());
        }
    }
    if line.verbose() { parts(line, subtype, data.skip(2)) } else { Ok(()) }
}

fn parts(line: &mut Line<'_>, subtype: u8, data: Data<'_>) -> Printed {
    let table = if subtype == LACP { "lacp" } else { "marker" };
    let mut list = Tlvs::new(data, Layout::BYTES);
    while list.rest.len > 0 {
        if list.rest.len < HEADER_LEN {
            put!(line, "\n\t\t packet is too short");
            break;
        }
        let part = list.take()?;
        let name = names::of(table, part.kind);
        put!(line, "\n\t{name} TLV (0x{:02x}), length {}", part.kind, part.len);
        if part.kind == 0 {
            break;
        }
        if !part.is_long_enough {
            put!(line, "\n\t    ERROR: illegal length - should be >= 2");
            break;
        }
        if !part.fits {
            put!(line, "\n\t\t packet is too short");
            break;
        }
        let bytes = part.bytes()?;
        let is_known = value(line, subtype, part.kind, part.value)?;
        if line.options.verbosity > 1 || !is_known {
            line.dump("\n\t  ", bytes);
        }
    }
    Ok(())
}

fn value(line: &mut Line<'_>, subtype: u8, kind: u16, value: Data<'_>) -> Result<bool, Stop> {
    let (should, template) = match (subtype, kind) {
        (LACP, 1 | 2) => (
            18,
            "\n\t  System {mac 2}, System Priority {u16 0}, Key {u16 8}, Port {u16 12}, Port Priority {u16 10}\
            \n\t  State Flags [{f8 14 lacp.state}]",
        ),
        (LACP, 3) => (14, "\n\t  Max Delay {u16 0}"),
        (MARKER, 1) => (14, "\n\t  Request System {mac 2}, Request Port {u16 0}, Request Transaction ID 0x{x32 8}"),
        _ => return Ok(false),
    };
    if value.len == should {
        line.show(value, template)?;
    } else {
        let should = should + HEADER_LEN;
        put!(line, "\n\t    ERROR: illegal length - should be {should}");
    }
    Ok(true)
}
