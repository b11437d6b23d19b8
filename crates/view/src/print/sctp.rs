//! SCTP: its chunks by name, with the numbers of the usual ones.

use super::line::{Data, Line, Printed, put};
use super::protocol::Ip;

const HEADER_LEN: usize = 12;
const CHUNK_HEADER_LEN: usize = 4;

pub(super) fn print(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
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
            put!(
                line,
                "{separator}{number}) [chunk descriptor cut off at end of packet]"
            );
            break;
        }
        let len = usize::from(rest.u16(2)?);
        if len < CHUNK_HEADER_LEN {
            put!(
                line,
                "{separator}{number}) [Bad chunk length {len}, < size of chunk descriptor]"
            );
            break;
        }
        if len > rest.len {
            put!(
                line,
                "{separator}{number}) [Bad chunk length {len}, > remaining data in packet]"
            );
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

const DATA: u8 = 0;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const SACK: u8 = 3;

fn name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        DATA => "DATA",
        INIT => "INIT",
        INIT_ACK => "INIT ACK",
        SACK => "SACK",
        4 => "HB REQ",
        5 => "HB ACK",
        6 => "ABORT",
        7 => "SHUTDOWN",
        8 => "SHUTDOWN ACK",
        9 => "OP ERR",
        10 => "COOKIE ECHO",
        11 => "COOKIE ACK",
        12 => "ECN ECHO",
        13 => "CWR",
        14 => "SHUTDOWN COMPLETE",
        15 => "AUTH",
        64 => "I-DATA",
        128 => "ASCONF-ACK",
        130 => "RE-CONFIG",
        132 => "PAD",
        192 => "FORWARD-TSN",
        193 => "ASCONF",
        194 => "I-FORWARD-TSN",
        _ => return None,
    })
}

fn chunk(line: &mut Line<'_>, chunk: Data<'_>) -> Printed {
    let (kind, flags) = (chunk.u8(0)?, chunk.u8(1)?);
    match name(kind) {
        Some(name) => put!(line, "[{name}] "),
        None => put!(line, "[Unknown chunk type: 0x{kind:x}] "),
    }
    let body = chunk.skip(CHUNK_HEADER_LEN);
    match kind {
        DATA => {
            let marks = [(4, "(U)"), (2, "(B)"), (1, "(E)")];
            for (_, mark) in marks.iter().filter(|(bit, _)| flags & bit != 0) {
                put!(line, "{mark}");
            }
            if flags & 7 != 0 {
                put!(line, " ");
            }
            put!(line, "[TSN: {}] [SID: {}] ", body.u32(0)?, body.u16(4)?);
            put!(line, "[SSEQ {}] [PPID 0x{:x}] ", body.u16(6)?, body.u32(8)?);
        }
        INIT | INIT_ACK => {
            put!(
                line,
                "[init tag: {}] [rwnd: {}] ",
                body.u32(0)?,
                body.u32(4)?
            );
            put!(line, "[OS: {}] [MIS: {}] ", body.u16(8)?, body.u16(10)?);
            put!(line, "[init TSN: {}] ", body.u32(12)?);
        }
        SACK => {
            put!(
                line,
                "[cum ack {}] [a_rwnd {}] ",
                body.u32(0)?,
                body.u32(4)?
            );
            put!(
                line,
                "[#gap acks {}] [#dup tsns {}] ",
                body.u16(8)?,
                body.u16(10)?
            );
        }
        _ => {}
    }
    Ok(())
}
