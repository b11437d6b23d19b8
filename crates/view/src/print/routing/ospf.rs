//! OSPF: the message; with `-v` the contents of version 2.

use crate::print::line::{Data, Layout, Line, Printed, Stop, Tlvs, put};
use crate::print::network::Ip;
use crate::print::{names, ospf3};

const HEADER_LEN: usize = 24;
const LSA_HEADER_LEN: usize = 20;
const DIGEST: u16 = 2;
const DIGEST_LEN: usize = 16;
/// Data about the link itself follows the message.
const LINK_LOCAL: u8 = 0x10;

pub fn print(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
    line.protocol = if ip.is_v4() { "ospf2" } else { "ospf3" };
    let kind = data.u8(1)?;
    let data = if ip.is_v4() && data.u16(14)? == DIGEST {
        let len = data.len.saturating_sub(DIGEST_LEN);
        // tcpdump subtracts the digest from the captured bytes too, whatever was captured.
        let captured = data.bytes.len().saturating_sub(DIGEST_LEN).min(len);
        Data { bytes: &data.bytes[..captured], len }
    } else {
        data
    };
    let version = data.u8(0)?;
    let name = names::text("ospf.message", kind);
    put!(line, "OSPFv{version}, {name}, length {}", data.len);
    if !(1..=5).contains(&kind) || !line.verbose() {
        return Ok(());
    }
    if !ip.is_v4() {
        return ospf3::print(line, kind, data);
    }
    let stored = usize::from(data.u16(2)?);
    if stored != data.len {
        put!(line, " [len {stored}]");
    }
    line.show(data, "\n\tRouter-ID {ip4 4}")?;
    put_area(line, data)?;
    data.need(HEADER_LEN)?;
    let authentication = data.u16(14)?;
    line.show(data, ", Authentication Type: {n16 14 ospf.authentication} ({u16 14})")?;
    match authentication {
        0 => {}
        1 => {
            put!(line, "\n\tSimple text password: ");
            line.put_string(data.slice(16, 8)?);
        }
        DIGEST => line.show(data, "\n\tKey-ID: {u8 18}, Auth-Length: {u8 19}, Crypto Sequence Number: 0x{x32 20}")?,
        _ => return Ok(()),
    }
    if version != 2 {
        put!(line, " ospf [version {version}]");
        return Ok(());
    }
    let message = data.claimed(stored.min(data.len)).skip(HEADER_LEN);
    let has_more = match kind {
        1 => hello(line, message)?,
        2 => description(line, message)?,
        3 => requests(line, message)?,
        4 => updates(line, message)?,
        _ => {
            headers(line, message)?;
            // tcpdump reads on until the bytes end, and marks that end.
            return Err(Stop::Cut);
        }
    };
    if has_more && data.len > stored {
        let digest = match authentication {
            DIGEST => usize::from(data.u8(19)?),
            _ => 0,
        };
        link_local(line, data.skip(stored + digest))?;
    }
    Ok(())
}

/// Shows the area, of either version.
pub fn put_area(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    match data.u32(8)? {
        0 => line.show(data, ", Backbone Area"),
        _ => line.show(data, ", Area {ip4 8}"),
    }
}

/// Shows the routers of a hello, of either version.
pub fn put_designated(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    if data.u32(12)? != 0 {
        line.show(data, "\n\t  Designated Router {ip4 12}")?;
    }
    if data.u32(16)? != 0 {
        line.show(data, ", Backup Designated Router {ip4 16}")?;
    }
    Ok(())
}

/// Shows the addresses of a list.
pub fn put_addresses(line: &mut Line<'_>, before: &str, data: Data<'_>) -> Printed {
    for at in (0..data.len).step_by(4) {
        put!(line, "{before}{}", data.ip4(at)?);
    }
    Ok(())
}

fn hello(line: &mut Line<'_>, data: Data<'_>) -> Result<bool, Stop> {
    line.show(data, "\n\tOptions [{f8 6 ospf.options}]")?;
    line.show(data, "\n\t  Hello Timer {u16 4}s, Dead Timer {u32 8}s, Mask {ip4 0}, Priority {u8 7}")?;
    put_designated(line, data)?;
    let neighbours = data.skip(20);
    if neighbours.len > 0 {
        put!(line, "\n\t  Neighbor List:");
    }
    put_addresses(line, "\n\t    ", neighbours)?;
    Ok(data.u8(6)? & LINK_LOCAL != 0)
}

fn description(line: &mut Line<'_>, data: Data<'_>) -> Result<bool, Stop> {
    line.show(data, "\n\tOptions [{f8 2 ospf.options}]")?;
    line.show(data, ", DD Flags [{f8 3 ospf.description}]")?;
    if data.u16(0)? != 0 {
        line.show(data, ", MTU: {u16 0}")?;
    }
    line.show(data, ", Sequence: 0x{x32 4}")?;
    headers(line, data.skip(8))?;
    Ok(data.u8(2)? & LINK_LOCAL != 0)
}

fn headers(line: &mut Line<'_>, mut rest: Data<'_>) -> Printed {
    while rest.len >= LSA_HEADER_LEN && !rest.bytes.is_empty() {
        if header(line, rest)?.is_none() {
            break;
        }
        rest = rest.skip(LSA_HEADER_LEN);
    }
    Ok(())
}

/// Shows the head of an advertisement. Returns its length with the head, `None` if it is impossible.
fn header(line: &mut Line<'_>, data: Data<'_>) -> Result<Option<usize>, Stop> {
    data.need(LSA_HEADER_LEN)?;
    let (kind, len) = (data.u8(3)?, usize::from(data.u16(18)?));
    let Some(content) = len.checked_sub(LSA_HEADER_LEN) else {
        put!(line, "\n\t    Bogus length {len} < header (20)");
        return Ok(None);
    };
    line.show(data, "\n\t  Advertising Router {ip4 8}, seq 0x{x32 12}, age {u16 0}s")?;
    put!(line, ", length {content}");
    line.show(data, "\n\t    {n8 3 ospf.advertisement} LSA ({u8 3})")?;
    match kind {
        9..=11 => line.show(data, ", Opaque-Type {n8 4 ospf.opaque} LSA ({u8 4}), Opaque-ID {u24 5}")?,
        _ => line.show(data, ", LSA-ID: {ip4 4}")?,
    }
    line.show(data, "\n\t    Options: [{f8 2 ospf.options}]")?;
    Ok(Some(len))
}

fn requests(line: &mut Line<'_>, data: Data<'_>) -> Result<bool, Stop> {
    for at in (0..data.len).step_by(12) {
        let one = data.skip(at);
        one.need(12)?;
        line.show(one, "\n\t  Advertising Router: {ip4 8}, {n32 0 ospf.advertisement} LSA ({u32 0})")?;
        match one.u32(0)? {
            9..=11 => line.show(one, ", Opaque-Type: {n8 4 ospf.opaque} LSA ({u8 4}), Opaque-ID: {u24 5}")?,
            _ => line.show(one, ", LSA-ID: {ip4 4}")?,
        }
    }
    Ok(false)
}

fn updates(line: &mut Line<'_>, data: Data<'_>) -> Result<bool, Stop> {
    let count = data.u32(0)?;
    put!(line, ", {count} LSA{}", if count == 1 { "" } else { "s" });
    let mut rest = data.skip(4);
    for number in 1..=count {
        put!(line, "\n\t  LSA #{number}");
        let Some(len) = header(line, rest)? else {
            return Err(Stop::Cut);
        };
        let content = rest.claimed(len).skip(LSA_HEADER_LEN);
        advertisement(line, rest.u8(3)?, content)?;
        rest = rest.skip(len);
    }
    Ok(false)
}

fn advertisement(line: &mut Line<'_>, kind: u8, data: Data<'_>) -> Printed {
    match kind {
        1 => router(line, data),
        2 => {
            line.show(data, "\n\t    Mask {ip4 0}\n\t    Connected Routers:")?;
            put_addresses(line, "\n\t      ", data.skip(4))
        }
        3 | 4 => {
            data.need(4)?;
            if kind == 3 {
                line.show(data, "\n\t    Mask {ip4 0}")?;
            }
            for at in (4..data.len).step_by(4) {
                let metric = "\n\t\ttopology {n8 0&7f ospf.topology} ({u8 0&7f}) metric {u24 1}";
                line.show(data.skip(at), metric)?;
            }
            Ok(())
        }
        5 | 7 => external(line, data),
        9..=11 => data.need(data.len),
        _ => Ok(()),
    }
}

fn router(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.show(data, "\n\t    Router LSA Options: [{f8 0 ospf.router}]")?;
    let mut rest = data.skip(4);
    for _ in 0..data.u16(2)? {
        rest.need(12)?;
        let count = usize::from(rest.u8(9)?);
        let template = match rest.u8(8)? {
            1 => "\n\t      Neighbor Router-ID: {ip4 0}, Interface Address: {ip4 4}",
            2 => "\n\t      Neighbor Network-ID: {ip4 0}, Interface Address: {ip4 4}",
            3 => "\n\t      Stub Network: {ip4 0}, Mask: {ip4 4}",
            4 => "\n\t      Virtual Link: Neighbor Router-ID: {ip4 0}, Interface Address: {ip4 4}",
            _ => return line.show(rest, "\n\t      Unknown Router Link Type ({u8 8})"),
        };
        line.show(rest, template)?;
        // The first topology is the default: its first byte is the link's type.
        line.show(rest, "\n\t\ttopology default (0), metric {u16 10}")?;
        for metric in 1..=count {
            let one = "\n\t\ttopology {n8 0 ospf.topology} ({u8 0}), metric {u16 2}";
            line.show(rest.skip(8 + 4 * metric), one)?;
        }
        rest = rest.skip(12 + 4 * count);
    }
    Ok(())
}

fn external(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.show(data, "\n\t    Mask {ip4 0}")?;
    for at in (4..data.len).step_by(12) {
        let one = data.skip(at);
        let kind = if one.u32(0)? >> 31 == 1 { 2 } else { 1 };
        line.show(one, "\n\t\ttopology {n8 0&7f ospf.topology} ({u8 0&7f})")?;
        put!(line, ", type {kind}, metric");
        match one.u32(0)? & 0x00ff_ffff {
            0x00ff_ffff => put!(line, " infinite"),
            metric => put!(line, " {metric}"),
        }
        if one.u32(4)? != 0 {
            line.show(one, ", forward {ip4 4}")?;
        }
        if one.u32(8)? != 0 {
            line.show(one, ", tag {ip4 8}")?;
        }
    }
    Ok(())
}

/// Shows the data after a message (RFC 5613).
fn link_local(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let data = data.claimed(data.len);
    if data.bytes.len() < 4 {
        put!(line, "\n\t[LLS truncated]");
        return Ok(());
    }
    line.show(data, "\n\t  LLS: checksum: 0x{x16 0}, length: {u16 2}")?;
    let mut list = Tlvs::new(data.skip(4), Layout::WORDS.aligned(4));
    while !list.rest.bytes.is_empty() {
        // The kind sets the length of the value, whatever the length field says.
        let value = list.rest.skip(4);
        let tlv = list.take()?;
        let name = names::of("ospf.lls", tlv.kind);
        put!(line, "\n\t    {name} ({}), length: {}", tlv.kind, tlv.len);
        match tlv.kind {
            1 => {
                let set = value.u32(0)?;
                let named = names::joined("ospf.extended", set, ", ");
                let named = if named.is_empty() { "?" } else { &named };
                put!(line, "\n\t      Options: 0x{set:08x} [{named}]");
            }
            2 => line.show(value, "\n\t      Sequence number: 0x{x32 0}")?,
            _ => {}
        }
    }
    Ok(())
}
