//! TCP segments.

use super::flows::Base;
use super::line::{Data, Line, Printed, Stop, put};
use super::protocol::Ip;
use super::{app, names, tcp_options};
use trawl_packet::build::flags;

const HEADER_LEN: usize = 20;
pub(super) fn print(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
    line.protocol = "tcp";
    let (src, dst) = ip.put_ports(line, names::TCP, data)?;
    data.need(HEADER_LEN)?;
    let header_len = usize::from(data.u8(12)? >> 4) * 4;
    if header_len < HEADER_LEN {
        let rest = data.len as i64 - header_len as i64;
        put!(
            line,
            " tcp {rest} [bad hdr length {header_len} - too short, < {HEADER_LEN}]"
        );
        return Ok(());
    }
    if line.options.quick {
        put!(line, "tcp {}", data.len.saturating_sub(header_len));
        if header_len > data.len {
            put!(
                line,
                " [bad hdr length {header_len} - too long, > {}]",
                data.len
            );
        }
        return Ok(());
    }
    let (seq, ack) = (data.u32(4)?, data.u32(8)?);
    let set = data.u8(13)?;
    let has = |flag| set & flag != 0;
    put!(line, "Flags [{}]", flags::text(set));
    let base = if has(flags::ACK) && !line.options.absolute_sequence {
        line.flows
            .base((ip.src, src), (ip.dst, dst), seq, ack, has(flags::SYN))
    } else {
        Base::default()
    };
    if header_len > data.len {
        put!(
            line,
            " [bad hdr length {header_len} - too long, > {}]",
            data.len
        );
        return Ok(());
    }
    if line.verbose() && !line.options.trust_checksums && !ip.fragmented {
        checksum(line, ip, data)?;
    }
    let len = data.len - header_len;
    let moves_seq = has(flags::SYN | flags::FIN | flags::RST);
    if line.options.verbosity > 1 || len > 0 || moves_seq {
        let seq = seq.wrapping_sub(base.seq);
        put!(line, ", seq {seq}");
        if len > 0 {
            put!(line, ":{}", seq.wrapping_add(len as u32));
        }
    }
    if has(flags::ACK) {
        put!(line, ", ack {}", ack.wrapping_sub(base.ack));
    }
    put!(line, ", win {}", data.u16(14)?);
    if has(flags::URG) {
        put!(line, ", urg {}", data.u16(18)?);
    }
    if header_len > HEADER_LEN {
        let list = data.claimed(header_len).skip(HEADER_LEN);
        let kind = (has(flags::SYN), has(flags::ACK));
        tcp_options::print(line, list, kind, base.sack)?;
    }
    put!(line, ", length {len}");
    if len == 0 {
        return Ok(());
    }
    if data.bytes.len() < header_len {
        put!(
            line,
            " [remaining caplen({}) < header length({header_len})]",
            data.bytes.len()
        );
        return Err(Stop::Cut);
    }
    if has(flags::RST) && line.verbose() {
        put!(line, " [RST");
        put!(line, "+ ");
        super::text::put_chars(line, data.skip(header_len).slice(0, len)?);
        put!(line, "]");
        return Ok(());
    }
    app::tcp(line, ip, (src, dst), data.skip(header_len))
}

fn checksum(line: &mut Line<'_>, ip: &Ip, segment: Data<'_>) -> Printed {
    let stored = segment.u16(16)?;
    let (Some(addresses), true) = (ip.addresses(), segment.bytes.len() == segment.len) else {
        return Ok(());
    };
    let sum = addresses
        .pseudo_header(names::TCP, segment.len)
        .add(segment.bytes);
    put!(line, ", cksum 0x{stored:04x}");
    if sum.finish() == 0 {
        put!(line, " (correct)");
    } else {
        put!(line, " (incorrect -> 0x{:04x})", sum.should_be(stored));
    }
    Ok(())
}
