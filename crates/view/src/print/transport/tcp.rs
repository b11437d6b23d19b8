//! TCP segments and their options.

use crate::print::flows::Base;
use crate::print::line::{Data, Layout, Line, Printed, Stop, Tlvs, put};
use crate::print::network::Ip;
use crate::print::{mptcp, names, transport};
use trawl_packet::build::flags;
use trawl_packet::net::protocol;

const HEADER_LEN: usize = 20;
pub fn print(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
    line.protocol = "tcp";
    let (src, dst) = ip.put_ports(line, protocol::TCP, data)?;
    data.need(HEADER_LEN)?;
    let header_len = usize::from(data.u8(12)? >> 4) * 4;
    if header_len < HEADER_LEN {
        let rest = data.len as i64 - header_len as i64;
        put!(line, " tcp {rest} [bad hdr length {header_len} - too short, < {HEADER_LEN}]");
        return Ok(());
    }
    if line.options.quick {
        put!(line, "tcp {}", data.len.saturating_sub(header_len));
        if header_len > data.len {
            put!(line, " [bad hdr length {header_len} - too long, > {}]", data.len);
        }
        return Ok(());
    }
    let (seq, ack) = (data.u32(4)?, data.u32(8)?);
    let set = data.u8(13)?;
    let has = |flag| set & flag != 0;
    line.out.push_str("Flags [");
    line.out.push_str(&flags::text(set));
    line.out.push(']');
    let base = if has(flags::ACK) && !line.options.absolute_sequence {
        line.flows.base((ip.src, src), (ip.dst, dst), seq, ack, has(flags::SYN))
    } else {
        Base::default()
    };
    if header_len > data.len {
        put!(line, " [bad hdr length {header_len} - too long, > {}]", data.len);
        return Ok(());
    }
    if line.verbose() && !line.options.trust_checksums && !ip.fragmented {
        checksum(line, ip, data)?;
    }
    let len = data.len - header_len;
    let moves_seq = has(flags::SYN | flags::FIN | flags::RST);
    if line.options.verbosity > 1 || len > 0 || moves_seq {
        let seq = seq.wrapping_sub(base.seq);
        line.put_number(", seq ", seq);
        if len > 0 {
            line.put_number(":", seq.wrapping_add(len as u32));
        }
    }
    if has(flags::ACK) {
        line.put_number(", ack ", ack.wrapping_sub(base.ack));
    }
    line.show(data, ", win {u16 14}")?;
    if has(flags::URG) {
        line.show(data, ", urg {u16 18}")?;
    }
    if header_len > HEADER_LEN {
        let list = data.claimed(header_len).skip(HEADER_LEN);
        let kind = (has(flags::SYN), has(flags::ACK));
        options(line, list, kind, base.sack)?;
    }
    line.put_number(", length ", len as u64);
    if len == 0 {
        return Ok(());
    }
    if data.bytes.len() < header_len {
        let captured = data.bytes.len();
        put!(line, " [remaining caplen({captured}) < header length({header_len})]");
        return Err(Stop::Cut);
    }
    if has(flags::RST) && line.verbose() {
        put!(line, " [RST");
        put!(line, "+ ");
        line.put_chars(data.skip(header_len).slice(0, len)?);
        put!(line, "]");
        return Ok(());
    }
    transport::segment(line, ip, (src, dst), data.skip(header_len))
}

fn checksum(line: &mut Line<'_>, ip: &Ip, segment: Data<'_>) -> Printed {
    let stored = segment.u16(16)?;
    let (Some(addresses), true) = (ip.addresses(), segment.bytes.len() == segment.len) else {
        return Ok(());
    };
    let sum = addresses.pseudo_header(protocol::TCP, segment.len).add(segment.bytes);
    put!(line, ", cksum 0x{stored:04x}");
    if sum.finish() == 0 {
        put!(line, " (correct)");
    } else {
        put!(line, " (incorrect -> 0x{:04x})", sum.should_be(stored));
    }
    Ok(())
}

static OPTIONS: names::Names = names::Names::new(|| names::table("tcp.option"));

const MSS: u16 = 2;
const WINDOW_SCALE: u16 = 3;
const SACK_PERMITTED: u16 = 4;
const SACK: u16 = 5;
const TIMESTAMPS: u16 = 8;
const SIGNATURE: u16 = 19;
const USER_TIMEOUT: u16 = 28;
const MULTIPATH: u16 = 30;
const FAST_OPEN: u16 = 34;

/// Shows the options in brackets, of a segment with SYN or with an acknowledgement. Selective acknowledgements are
/// relative to `sack_base`.
fn options(line: &mut Line<'_>, data: Data<'_>, (is_syn, has_ack): (bool, bool), sack_base: u32) -> Printed {
    const END: u16 = 0;
    const NOP: u16 = 1;
    put!(line, ", options [");
    let mut separator = "";
    let mut list = Tlvs::new(data, Layout::BYTES);
    while list.rest.len > 0 {
        put!(line, "{separator}");
        separator = ",";
        let start = list.rest;
        let kind = u16::from(start.u8(0)?);
        let name = OPTIONS.text(kind);
        if kind == END {
            put!(line, "{name}");
            break;
        }
        if kind == NOP {
            put!(line, "{name}");
            list.rest = start.skip(1);
            continue;
        }
        if start.len < 2 {
            put!(line, "{name}[bad opt]");
            break;
        }
        let tlv = list.take()?;
        let (len, value) = (tlv.len, tlv.value);
        put!(line, "{name}");
        if !tlv.is_long_enough || !tlv.fits {
            put!(line, "[bad opt]");
            break;
        }
        value.need(value.len)?;
        if kind != MULTIPATH {
            option(line, kind, value, sack_base)?;
            continue;
        }
        match mptcp::print(line, (is_syn, has_ack), start.claimed(len)) {
            Err(Stop::Invalid) => put!(line, "[bad opt]"),
            shown => shown?,
        }
    }
    put!(line, "]");
    Ok(())
}

fn option(line: &mut Line<'_>, kind: u16, value: Data<'_>, sack_base: u32) -> Printed {
    match (kind, value.len) {
        (MSS, 2) => line.show(value, " {u16 0}")?,
        (WINDOW_SCALE, 1) => line.show(value, " {u8 0}")?,
        (SACK_PERMITTED, 0) => {}
        (TIMESTAMPS, 8) => line.show(value, " val {u32 0} ecr {u32 4}")?,
        (6 | 7 | 11..=13, 4) => line.show(value, " {u32 0}")?,
        (SACK, len) if !len.is_multiple_of(8) => {
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
            let seconds = u32::from(timeout & 0x7fff) * unit;
            put!(line, " 0x{timeout:x} (~{seconds} s)");
        }
        (FAST_OPEN, 0) => put!(line, "  cookiereq"),
        (FAST_OPEN, len) if len.is_multiple_of(2) && (4..=16).contains(&len) => {
            put!(line, "  cookie ");
            line.put_hex(value.bytes);
        }
        (SIGNATURE, 16) => {
            put!(line, " shared secret not supplied with -M, can't check - ");
            line.put_hex(value.bytes);
        }
        (253 | 254, 2..) => match (value.u16(0)?, value.len) {
            (0xf989, 2) => put!(line, "-tfo cookiereq"),
            (0xf989, len) if len.is_multiple_of(2) && (6..=18).contains(&len) => {
                put!(line, "-tfo cookie ");
                line.put_hex(&value.bytes[2..]);
            }
            (magic, _) => put!(line, "-{magic:04x}"),
        },
        (MSS | WINDOW_SCALE | SACK_PERMITTED | TIMESTAMPS, len) => put!(line, "[len {}]", len + 2),
        (_, 0) => {}
        _ => {
            put!(line, " 0x");
            line.put_hex(value.bytes);
        }
    }
    Ok(())
}
