//! Extensions after the quoted packet of ICMP errors: RFC 4884, with the MPLS label stacks of RFC 4950.

use super::dump;
use super::line::{Data, Line, Printed, put};
use trawl_packet::checksum::Sum;

/// Where extensions begin: after 128 bytes of the packet that is quoted.
const AT: usize = 136;
const HEADER_LEN: usize = 4;
const OBJECT_HEADER_LEN: usize = 4;
const VERSION: u8 = 2;

/// `message` is the whole ICMP message.
pub(super) fn print(line: &mut Line<'_>, message: Data<'_>) -> Printed {
    line.protocol = "icmp";
    if message.len <= AT {
        return Ok(());
    }
    message.need(AT + HEADER_LEN + 1)?;
    let data = message.skip(AT);
    let is_whole = data.bytes.len() >= data.len;
    let is_correct = || Sum::default().add(&data.bytes[..data.len]).finish() == 0;
    // Many routers leave the field empty that says where the packet ends.
    let says_length = message.u8(5)? != 0;
    if !says_length && is_whole && !is_correct() {
        return Ok(());
    }
    let version = data.u8(0)? >> 4;
    put!(line, "\n\tICMP Multi-Part extension v{version}");
    if version != VERSION {
        put!(line, " packet not supported");
        return Ok(());
    }
    if is_whole {
        let checksum = data.u16(2)?;
        let not = if is_correct() { "" } else { "in" };
        let len = data.len;
        put!(
            line,
            ", checksum 0x{checksum:04x} ({not}correct), length {len}"
        );
    }
    let mut objects = data.skip(HEADER_LEN);
    while objects.len > OBJECT_HEADER_LEN {
        objects.need(OBJECT_HEADER_LEN)?;
        let len = usize::from(objects.u16(0)?);
        let (class, kind) = (objects.u8(2)?, objects.u8(3)?);
        let name = match class {
            1 => "MPLS Stack Entry",
            2 => "Interface Identification",
            _ => "unknown",
        };
        put!(
            line,
            "\n\t  {name} Object ({class}), Class-Type: {kind}, length {len}"
        );
        if class == 0 || len < OBJECT_HEADER_LEN {
            return Ok(());
        }
        let value = objects.skip(OBJECT_HEADER_LEN);
        let value_len = len - OBJECT_HEADER_LEN;
        if (class, kind) == (1, 1) {
            // At least one, as tcpdump has it, and those under it.
            for at in (0..value_len.max(4)).step_by(4) {
                let entry = value.u32(at)?;
                let bottom = if entry & 0x100 != 0 { ", [S]" } else { "" };
                put!(
                    line,
                    "\n\t    label {}, tc {}{bottom}, ttl {}",
                    entry >> 12,
                    entry >> 9 & 7,
                    entry & 0xff
                );
            }
        } else {
            let end = value_len.min(value.bytes.len());
            dump::hex(line.out, "\n\t    ", &value.bytes[..end]);
        }
        if value.len < value_len {
            break;
        }
        objects = value.skip(value_len);
    }
    Ok(())
}
