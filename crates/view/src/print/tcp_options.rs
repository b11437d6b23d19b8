//! TCP options.

use super::line::{Data, Line, Printed, Stop, put};
use super::mptcp;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
const SIGNATURE: u8 = 19;
const USER_TIMEOUT: u8 = 28;
const AUTHENTICATION: u8 = 29;
const MULTIPATH: u8 = 30;
const FAST_OPEN: u8 = 34;

/// Shows the list in brackets, of a segment with SYN or with an acknowledgement. `sack_base` is what selective acknowledgements are relative to.
pub(super) fn print(
    line: &mut Line<'_>,
    mut list: Data<'_>,
    (is_syn, has_ack): (bool, bool),
    sack_base: u32,
) -> Printed {
    put!(line, ", options [");
    let mut separator = "";
    while list.len > 0 {
        put!(line, "{separator}");
        separator = ",";
        let kind = list.u8(0)?;
        let len = match kind {
            END | NOP => 1,
            _ if list.len < 2 => 0,
            _ => usize::from(list.u8(1)?),
        };
        put_name(line, kind);
        if kind == END {
            break;
        }
        if kind == NOP {
            list = list.skip(1);
            continue;
        }
        if len < 2 || len > list.len {
            put!(line, "[bad opt]");
            break;
        }
        let value = list.claimed(len).skip(2);
        value.need(value.len)?;
        if kind == MULTIPATH {
            match mptcp::print(line, (is_syn, has_ack), list.claimed(len)) {
                Err(Stop::Invalid) => put!(line, "[bad opt]"),
                shown => shown?,
            }
            list = list.skip(len);
            continue;
        }
        print_value(line, kind, value, has_ack, sack_base)?;
        list = list.skip(len);
    }
    put!(line, "]");
    Ok(())
}

fn put_name(line: &mut Line<'_>, kind: u8) {
    let name = match kind {
        END => "eol",
        NOP => "nop",
        MSS => "mss",
        WINDOW_SCALE => "wscale",
        SACK_PERMITTED => "sackOK",
        SACK => "sack",
        6 => "echo",
        7 => "echoreply",
        TIMESTAMPS => "TS",
        11 => "cc",
        12 => "ccnew",
        13 => "ccecho",
        SIGNATURE => "md5",
        20 => "scps",
        USER_TIMEOUT => "uto",
        AUTHENTICATION => "tcp-ao",
        MULTIPATH => "mptcp",
        FAST_OPEN => "tfo",
        253 | 254 => "exp",
        _ => return put!(line, "unknown-{kind}"),
    };
    put!(line, "{name}");
}

fn print_value(
    line: &mut Line<'_>,
    kind: u8,
    value: Data<'_>,
    has_ack: bool,
    sack_base: u32,
) -> Printed {
    match (kind, value.len) {
        (MSS, 2) => put!(line, " {}", value.u16(0)?),
        (WINDOW_SCALE, 1) => put!(line, " {}", value.u8(0)?),
        (SACK_PERMITTED, 0) => {}
        (TIMESTAMPS, 8) => put!(line, " val {} ecr {}", value.u32(0)?, value.u32(4)?),
        (6 | 7 | 11..=13, 4) => put!(line, " {}", value.u32(0)?),
        (SACK, len) if !len.is_multiple_of(8) || !has_ack => {
            put!(line, "malformed sack [len {len}] ");
        }
        (SACK, len) => {
            put!(line, " {} ", len / 8);
            for at in (0..len).step_by(8) {
                let edge = |at| value.u32(at).map(|edge| edge.wrapping_sub(sack_base));
                put!(line, "{{{}:{}}}", edge(at)?, edge(at + 4)?);
            }
        }
        (USER_TIMEOUT, 2) => {
            let timeout = value.u16(0)?;
            let unit = if timeout & 0x8000 != 0 { 60 } else { 1 };
            put!(
                line,
                " 0x{timeout:x} (~{} s)",
                u32::from(timeout & 0x7fff) * unit
            );
        }
        (FAST_OPEN, 0) => put!(line, "  cookiereq"),
        (FAST_OPEN, len) if len.is_multiple_of(2) && (4..=16).contains(&len) => {
            put!(line, "  cookie ");
            put_hex(line, value.bytes);
        }
        (SIGNATURE, 16) => {
            put!(line, " shared secret not supplied with -M, can't check - ");
            put_hex(line, value.bytes);
        }
        (253 | 254, 2..) => match (value.u16(0)?, value.len) {
            (0xf989, 2) => put!(line, "-tfo cookiereq"),
            (0xf989, len) if len.is_multiple_of(2) && (6..=18).contains(&len) => {
                put!(line, "-tfo cookie ");
                put_hex(line, &value.bytes[2..]);
            }
            (magic, _) => put!(line, "-{magic:04x}"),
        },
        (MSS | WINDOW_SCALE | SACK_PERMITTED | TIMESTAMPS, len) => put!(line, "[len {}]", len + 2),
        (_, 0) => {}
        _ => {
            put!(line, " 0x");
            put_hex(line, value.bytes);
        }
    }
    Ok(())
}

fn put_hex(line: &mut Line<'_>, bytes: &[u8]) {
    for byte in bytes {
        put!(line, "{byte:02x}");
    }
}
