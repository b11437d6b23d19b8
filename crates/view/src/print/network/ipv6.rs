//! IPv6 and its extension headers.

use std::net::IpAddr;
use trawl_packet::net::protocol;

use trawl_packet::checksum::Ends;

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::{names, network};

const HEADER_LEN: usize = 40;
const FRAGMENT_LEN: usize = 8;
/// The option with a length of more than 16 bits, and the smallest such length.
const JUMBO: u8 = 0xc2;
const JUMBO_LEAST: u32 = 0x1_0000;

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.nested(|line| packet(line, data))
}

fn packet(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "ip6";
    let version = data.u8(0)? >> 4;
    if version != 6 {
        match version {
            4 => put!(line, "IP, wrong link-layer encapsulation"),
            _ => put!(line, "IP{version}, wrong link-layer encapsulation"),
        }
        return Err(Stop::Invalid);
    }
    data.need(HEADER_LEN)?;
    if !line.options.link_header {
        put!(line, "IP6 ");
    }
    if data.len < HEADER_LEN {
        put!(line, "truncated-ip6 {}", data.len);
        return Ok(());
    }
    let payload_len = data.u16(4)?;
    let first = data.u8(6)?;
    let total_len = match (payload_len, first) {
        // A jumbo option has the length, or the card fills it in.
        (0, protocol::HOP_BY_HOP | protocol::TCP | protocol::UDP) => data.len,
        (len, _) => usize::from(len) + HEADER_LEN,
    };
    if data.len < total_len {
        put!(line, "truncated-ip6 - {} bytes missing!", total_len - data.len);
    }
    if line.verbose() {
        let flow = data.u32(0)?;
        put!(line, "(");
        if flow & 0x0ff0_0000 != 0 {
            put!(line, "class 0x{:02x}, ", flow >> 20 & 0xff);
        }
        if flow & 0xf_ffff != 0 {
            put!(line, "flowlabel 0x{:05x}, ", flow & 0xf_ffff);
        }
        let name = names::protocol(first).unwrap_or("unknown");
        put!(line, "hlim {}, next-header {name} ({first}) payload length: {payload_len}) ", data.u8(7)?);
    }
    let (src, dst) = (data.ip6(8)?, data.ip6(24)?);
    if !matches!(first, protocol::TCP | protocol::UDP | protocol::SCTP | protocol::DCCP) {
        put!(line, "{src} > {dst}: ");
    }
    let ends = Ends::of(data.bytes, 0, data.bytes.len());
    let final_src = ends.and_then(|ends| data.ip6(ends.source.start).ok());
    let ip = network::Ip {
        src: IpAddr::V6(src),
        dst: IpAddr::V6(dst),
        final_src: IpAddr::V6(final_src.unwrap_or(src)),
        final_dst: IpAddr::V6(dst),
        protocol: first,
        ttl: data.u8(7)?,
        fragmented: false,
    };
    let payload = data.claimed(total_len).skip(HEADER_LEN);
    extensions(line, ip, payload, payload_len == 0)
}

/// Returns the length from the hop-by-hop options of a packet whose header has none.
fn jumbo(line: &mut Line<'_>, data: Data<'_>) -> Result<usize, Stop> {
    let Some(len) = jumbo_len(data) else {
        put!(line, "[No valid Jumbo Payload Hop-by-Hop option found]");
        return Err(Stop::Invalid);
    };
    if data.len < len {
        put!(line, "truncated-ip6 - {} bytes missing!", len - data.len);
    }
    Ok(len)
}

/// Returns the payload length in a jumbo option (RFC 2675).
fn jumbo_len(data: Data<'_>) -> Option<usize> {
    const PAD1: u8 = 0;
    let len = (usize::from(*data.bytes.get(1)?) + 1) * 8;
    let mut list = data.bytes.get(2..len)?;
    loop {
        match list {
            [JUMBO, 4, a, b, c, d, ..] => {
                let len = u32::from_be_bytes([*a, *b, *c, *d]);
                return (len >= JUMBO_LEAST).then_some(len as usize);
            }
            [PAD1, rest @ ..] => list = rest,
            [_, len, rest @ ..] => list = rest.get(usize::from(*len)..)?,
            _ => return None,
        }
    }
}

/// Shows the extension headers, then the payload.
fn extensions(line: &mut Line<'_>, mut ip: network::Ip, mut data: Data<'_>, is_jumbo: bool) -> Printed {
    let mut next = ip.protocol;
    loop {
        let len = match next {
            protocol::HOP_BY_HOP => {
                let len = options(line, "hbhopt", "HBH", data)?;
                if is_jumbo {
                    data.len = jumbo(line, data)?;
                }
                len
            }
            protocol::DESTINATION_OPTIONS => options(line, "dstopt", "DSTOPT", data)?,
            protocol::ROUTING => routing(line, &mut ip, data)?,
            protocol::FRAGMENT => {
                if !first_fragment(line, data)? {
                    return Ok(());
                }
                ip.fragmented = true;
                FRAGMENT_LEN
            }
            _ => return network::print(line, &ip, next, data),
        };
        next = data.u8(0)?;
        data = data.skip(len);
    }
}

/// Shows a fragment header. Returns true if the start of the packet follows.
fn first_fragment(line: &mut Line<'_>, data: Data<'_>) -> Result<bool, Stop> {
    line.protocol = "frag6";
    data.need(FRAGMENT_LEN)?;
    let (offset, id) = (data.u16(2)? & !7, data.u32(4)?);
    let len = data.len.saturating_sub(FRAGMENT_LEN);
    if line.verbose() {
        put!(line, "frag (0x{id:08x}:{offset}|{len})");
    } else {
        put!(line, "frag ({offset}|{len})");
    }
    if offset == 0 {
        put!(line, " ");
    }
    Ok(offset == 0)
}

/// Shows a hop-by-hop or destination options header. Returns its length.
fn options(line: &mut Line<'_>, protocol: &'static str, name: &str, data: Data<'_>) -> Result<usize, Stop> {
    line.protocol = protocol;
    let len = (usize::from(data.u8(1)?) + 1) * 8;
    data.need(len)?;
    put!(line, "{name} ");
    if line.verbose() {
        option_list(line, data.claimed(len).skip(2))?;
    }
    Ok(len)
}

fn option_list(line: &mut Line<'_>, mut list: Data<'_>) -> Printed {
    const PAD1: u8 = 0;
    const PADN: u8 = 1;
    const ROUTER_ALERT: u8 = 5;
    const HOME_ADDRESS: u8 = 201;
    while list.len > 0 {
        let kind = list.u8(0)?;
        if kind == PAD1 {
            put!(line, "(pad1)");
            list = list.skip(1);
            continue;
        }
        if list.len < 2 || list.len < 2 + usize::from(list.u8(1)?) {
            put!(line, "[trunc] ");
            return Ok(());
        }
        let len = list.u8(1)?;
        match (kind, len) {
            (PADN, _) => put!(line, "(padn)"),
            (ROUTER_ALERT, 2) => line.show(list, "(rtalert: 0x{x16 2}) ")?,
            (JUMBO, 4) => {
                let len = list.u32(2)?;
                let least = if len < JUMBO_LEAST { " - < 65536" } else { "" };
                put!(line, "(jumbo: {len}{least}) ");
            }
            (HOME_ADDRESS, 16) => line.show(list, "(homeaddr: {ip6 2})")?,
            _ => put!(line, "(opt_type 0x{kind:02x}: len={len})"),
        }
        list = list.skip(2 + usize::from(len));
    }
    put!(line, " ");
    Ok(())
}

/// Shows a routing header and notes the packet's final destination. Returns its length.
fn routing(line: &mut Line<'_>, ip: &mut network::Ip, data: Data<'_>) -> Result<usize, Stop> {
    const SOURCE_ROUTE: u8 = 0;
    const MOBILE: u8 = 2;
    const SEGMENTS: u8 = 4;
    const ADDRESSES: usize = 8;
    line.protocol = "rt6";
    let (stored_len, kind, left) = (data.u8(1)?, data.u8(2)?, data.u8(3)?);
    let len = (usize::from(stored_len) + 1) * 8;
    put!(line, "RT6 (len={stored_len}, type={kind}");
    if kind == SOURCE_ROUTE {
        put!(line, " [Deprecated]");
    }
    put!(line, ", segleft={left}");
    data.need(len)?;
    match kind {
        SOURCE_ROUTE | MOBILE => {
            let reserved = data.u32(4)?;
            if reserved != 0 || line.verbose() {
                put!(line, ", rsv=0x{reserved:x}");
            }
        }
        SEGMENTS => {
            let (last, flags, tag) = (data.u8(4)?, data.u8(5)?, data.u16(6)?);
            put!(line, ", last-entry={last}");
            if flags != 0 || line.verbose() {
                put!(line, ", flags=0x{flags:x}");
            }
            put!(line, ", tag={tag:x}");
        }
        _ => {
            put!(line, ", unknown type) ");
            return Ok(len);
        }
    }
    // Segment routing lists its segments in reverse.
    let count = match kind {
        SEGMENTS => (usize::from(data.u8(4)?) + 1).min((len - ADDRESSES) / 16),
        _ => (len - ADDRESSES) / 16,
    };
    for index in 0..count {
        let address = data.ip6(ADDRESSES + index * 16)?;
        put!(line, ", [{index}]{address}");
        let is_last_hop = index == if kind == SEGMENTS { 0 } else { count - 1 };
        if left > 0 && is_last_hop {
            ip.final_dst = IpAddr::V6(address);
        }
    }
    put!(line, ") ");
    Ok(len)
}
