//! IPv4: header, options, fragments.

use std::net::IpAddr;
use trawl_packet::net::protocol;

use crate::print::line::{Data, Layout, Line, Printed, Stop, Tlvs, put};
use crate::print::{names, network};
use trawl_packet::checksum::{Ends, Sum};

const HEADER_LEN: usize = 20;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.nested(|line| packet(line, data))
}

fn packet(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "ip";
    let first = data.u8(0)?;
    if first >> 4 != 4 {
        match first >> 4 {
            6 => put!(line, "IP6, wrong link-layer encapsulation"),
            version => put!(line, "IP{version}"),
        }
        return Err(Stop::Invalid);
    }
    if !line.options.link_header {
        put!(line, "IP ");
    }
    data.need(HEADER_LEN)?;
    if data.len < HEADER_LEN {
        put!(line, "truncated-ip {}", data.len);
        return Ok(());
    }
    let header_len = usize::from(first & 0xf) * 4;
    if header_len < HEADER_LEN {
        put!(line, "bad-hlen {header_len}");
        return Ok(());
    }
    let total_len = match usize::from(data.u16(2)?) {
        // A segment that the card will cut up has no length yet.
        0 => data.len,
        len => len,
    };
    if data.len < total_len {
        put!(line, "truncated-ip - {} bytes missing! ", total_len - data.len);
    }
    if total_len < header_len {
        put!(line, "bad-len {total_len}");
        return Ok(());
    }
    let datagram = data.claimed(total_len);
    let fragment = datagram.u16(6)?;
    let number = datagram.u8(9)?;
    let (src, dst) = (datagram.ip4(12)?, datagram.ip4(16)?);
    if line.verbose() {
        details(line, datagram, header_len, data.u16(2)?)?;
    }
    if fragment & OFFSET_MASK != 0 {
        put!(line, "{src} > {dst}: ip-proto-{number}");
        return Ok(());
    }
    if !matches!(number, protocol::TCP | protocol::UDP | protocol::SCTP | protocol::DCCP) {
        put!(line, "{src} > {dst}: ");
    }
    if datagram.bytes.len() < header_len {
        put!(line, " [remaining caplen({}) < header length({header_len})]", datagram.bytes.len());
        return Err(Stop::Cut);
    }
    let ends = Ends::of(datagram.bytes, 0, header_len);
    let final_dst = ends.and_then(|ends| datagram.ip4(ends.destination.start).ok());
    let ip = network::Ip {
        src: IpAddr::V4(src),
        dst: IpAddr::V4(dst),
        final_src: IpAddr::V4(src),
        final_dst: IpAddr::V4(final_dst.unwrap_or(dst)),
        protocol: number,
        ttl: data.u8(8)?,
        fragmented: fragment & MORE_FRAGMENTS != 0,
    };
    network::print(line, &ip, number, datagram.skip(header_len))
}

/// Shows the parenthesis that `-v` puts in front.
fn details(line: &mut Line<'_>, datagram: Data<'_>, header_len: usize, stored_len: u16) -> Printed {
    let (tos, ttl) = (datagram.u8(1)?, datagram.u8(8)?);
    let (id, fragment, number) = (datagram.u16(4)?, datagram.u16(6)?, datagram.u8(9)?);
    let congestion = ["", ",ECT(1)", ",ECT(0)", ",CE"][usize::from(tos & 3)];
    put!(line, "(tos 0x{tos:x}{congestion}");
    if ttl >= 1 {
        put!(line, ", ttl {ttl}");
    }
    let flags = names::flags("ipv4.flags", fragment);
    let name = names::protocol(number).unwrap_or("unknown");
    let offset = u32::from(fragment & OFFSET_MASK) * 8;
    put!(line, ", id {id}, offset {offset}, flags [{flags}]");
    put!(line, ", proto {name} ({number}), length {stored_len}");
    let mut cut = false;
    if header_len > HEADER_LEN {
        let end = header_len.min(datagram.bytes.len());
        let list = datagram.bytes.get(HEADER_LEN..end).unwrap_or_default();
        put!(line, ", options (");
        let len = header_len - HEADER_LEN;
        cut = options(line, Data { bytes: list, len }).is_err();
        put!(line, "{})", if cut { " [truncated-option]" } else { "" });
    }
    if let Some(header) = datagram.bytes.get(..header_len) {
        let sum = Sum::default().add(header);
        let stored = datagram.u16(10)?;
        if sum.finish() != 0 {
            put!(line, ", bad cksum {stored:x} (->{:x})!", sum.should_be(stored));
        }
    }
    put!(line, ")\n    ");
    if cut {
        line.show(datagram, "{ip4 12} > {ip4 16}: ")?;
        return Err(Stop::Cut);
    }
    Ok(())
}

fn options(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const END: u16 = 0;
    const NOP: u16 = 1;
    const ROUTER_ALERT: u16 = 148;
    let mut separator = "";
    let mut list = Tlvs::new(data, Layout::BYTES);
    while list.rest.len > 0 {
        let code = u16::from(list.rest.u8(0)?);
        put!(line, "{separator}{}", names::text("ipv4.option", code));
        separator = ",";
        if code == END {
            break;
        }
        if code == NOP {
            list.rest = list.rest.skip(1);
            continue;
        }
        let start = list.rest;
        let tlv = list.take()?;
        let len = tlv.len;
        if !tlv.fits || !tlv.is_long_enough {
            put!(line, " [bad length {len}]");
            break;
        }
        let option = Data::from(start.slice(0, len)?);
        match code {
            7 | 131 | 137 => route(line, option)?,
            68 => timestamps(line, option)?,
            ROUTER_ALERT if len < 4 => put!(line, " [bad length {len}]"),
            ROUTER_ALERT => match option.u16(2)? {
                0 => {}
                value => put!(line, " value {value}"),
            },
            _ => {}
        }
    }
    Ok(())
}

/// Shows the times that routers recorded, in tcpdump's form.
fn timestamps(line: &mut Line<'_>, option: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 4;
    if option.len < HEADER_LEN {
        put!(line, "[bad length {}]", option.len);
        return Ok(());
    }
    let (stored, flags) = (option.u8(2)?, option.u8(3)?);
    let entry_len = if flags & 0xf == 0 { 4 } else { 8 };
    put!(line, " TS{{");
    if !(option.len - HEADER_LEN).is_multiple_of(entry_len) {
        put!(line, "[bad length {}]", option.len);
    }
    let pointer = usize::from(stored).wrapping_sub(1);
    if pointer < HEADER_LEN || !(pointer - HEADER_LEN).is_multiple_of(entry_len) || pointer > option.len + 1 {
        put!(line, "[bad ptr {stored}]");
    }
    let kind = match flags & 0xf {
        0 => "TSONLY",
        1 => "TS+ADDR",
        3 => "PRESPEC",
        other => {
            put!(line, "[bad ts type {other}]}}");
            return Ok(());
        }
    };
    put!(line, "{kind}");
    let mut at = HEADER_LEN;
    while at < option.len {
        let mark = if at == pointer { "^ " } else { "" };
        if at + entry_len > option.len {
            put!(line, " [truncated-option]");
            break;
        }
        put!(line, " {mark}{}@", option.u32(at + entry_len - 4)?);
        if entry_len == 8 {
            put!(line, "{}", option.ip4(at)?);
        }
        at += entry_len;
    }
    if at == pointer {
        put!(line, " ^ ");
    }
    match flags >> 4 {
        0 => put!(line, "}}"),
        missed => put!(line, " [{missed} hops not recorded]}} "),
    }
    Ok(())
}

/// Shows the addresses of a recorded or demanded route.
fn route(line: &mut Line<'_>, option: Data<'_>) -> Printed {
    if option.len < 3 {
        put!(line, " [bad length {}]", option.len);
        return Ok(());
    }
    if !(option.len + 1).is_multiple_of(4) {
        put!(line, " [bad length {}]", option.len);
    }
    let stored = option.u8(2)?;
    let pointer = usize::from(stored).wrapping_sub(1);
    if pointer < 3 || !pointer.wrapping_add(1).is_multiple_of(4) || pointer > option.len + 1 {
        put!(line, " [bad ptr {stored}]");
    }
    for at in (3..option.len).step_by(4) {
        put!(line, " {}", option.ip4(at)?);
        if pointer > at {
            put!(line, ",");
        }
    }
    Ok(())
}
