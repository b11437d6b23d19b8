//! SCTP: its chunks by name, with the numbers of the usual ones.

use crate::print::line::{Data, Line, Printed, put};
use crate::print::names;
use crate::print::network::Ip;

const HEADER_LEN: usize = 12;
const CHUNK_HEADER_LEN: usize = 4;

pub fn print(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
    line.protocol = "sctp";
    data.need(HEADER_LEN)?;
    let (src, dst) = (data.u16(0)?, data.u16(2)?);
    put!(line, "{}.{src} > {}.{dst}: sctp", ip.src, ip.dst);
    let lines = line.options.verbosity > 1;
    let mut separator = if lines { "\n\t" } else { " (" };
    let mut rest = data.skip(HEADER_LEN);
    let mut number = 1;
    while rest.len > 0 {
        if rest.len < CHUNK_HEADER_LEN {
            put!(line, "{separator}{number}) [chunk descriptor cut off at end of packet]");
            break;
        }
        let len = usize::from(rest.u16(2)?);
        if len < CHUNK_HEADER_LEN {
            put!(line, "{separator}{number}) [Bad chunk length {len}, < size of chunk descriptor]");
            break;
        }
        if len > rest.len {
            put!(line, "{separator}{number}) [Bad chunk length {len}, > remaining data in packet]");
            break;
        }
        rest.need(len)?;
        put!(line, "{separator}{number}) ");
        chunk(line, rest.claimed(len))?;
        rest = rest.skip(len.next_multiple_of(4));
        if !lines {
            separator = ", (";
        }
        number += 1;
    }
    Ok(())
}

fn chunk(line: &mut Line<'_>, chunk: Data<'_>) -> Printed {
    let (kind, flags) = (chunk.u8(0)?, chunk.u8(1)?);
    match names::find("sctp", kind) {
        Some(name) => put!(line, "[{name}] "),
        None => put!(line, "[Unknown chunk type: 0x{kind:x}] "),
    }
    let body = chunk.skip(CHUNK_HEADER_LEN);
    match kind {
        // User data.
        0 => {
            let marks = names::joined("sctp.data", flags, "");
            if !marks.is_empty() {
                put!(line, "{marks} ");
            }
            line.show(body, "[TSN: {u32 0}] [SID: {u16 4}] ")?;
            line.show(body, "[SSEQ {u16 6}] [PPID 0x{h32 8}] ")
        }
        // The start of an association, and its acknowledgement.
        1 | 2 => {
            line.show(body, "[init tag: {u32 0}] [rwnd: {u32 4}] ")?;
            line.show(body, "[OS: {u16 8}] [MIS: {u16 10}] ")?;
            line.show(body, "[init TSN: {u32 12}] ")
        }
        // A selective acknowledgement.
        3 => {
            line.show(body, "[cum ack {u32 0}] [a_rwnd {u32 4}] ")?;
            line.show(body, "[#gap acks {u16 8}] [#dup tsns {u16 10}] ")
        }
        _ => Ok(()),
    }
}
