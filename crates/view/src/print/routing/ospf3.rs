//! OSPF version 3, with `-v`: the message; with `-vv` its advertisements too.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::names;
use crate::print::ospf::{put_addresses, put_area, put_designated};

const HEADER_LEN: usize = 16;
const LSA_HEADER_LEN: usize = 20;
const LINK_LOCAL_SIGNALING: u32 = 0x0200;
const TRAILER_HEADER_LEN: usize = 16;

/// Shows the part after the first line of a message of this kind.
pub fn print(line: &mut Line<'_>, kind: u8, data: Data<'_>) -> Printed {
    let stored = usize::from(data.u16(2)?);
    if stored > data.len {
        put!(line, " [len {stored}]");
        return Ok(());
    }
    line.show(data, "\n\tRouter-ID {ip4 4}")?;
    put_area(line, data)?;
    match data.u8(14)? {
        0 => {}
        instance => put!(line, ", Instance {instance}"),
    }
    if data.u8(0)? != 3 {
        return Ok(());
    }
    let message = data.claimed(stored).skip(HEADER_LEN);
    let set = match kind {
        1 => hello(line, message)?,
        2 => description(line, message)?,
        _ if line.options.verbosity < 2 => 0,
        3 => requests(line, message)?,
        4 => updates(line, message)?,
        _ => headers(line, message)?,
    };
    let mut trailer = data.skip(stored);
    if set & LINK_LOCAL_SIGNALING != 0 && trailer.len > 0 {
        let len = link_local(line, trailer)?;
        trailer = trailer.skip(len);
    }
    if trailer.len > 0 {
        authentication(line, trailer)?;
    }
    Ok(())
}

/// Shows and returns options.
fn options(line: &mut Line<'_>, before: &str, set: u32) -> u32 {
    put!(line, "{before}Options [{}]", names::flags("ospf3.options", set));
    set
}

fn hello(line: &mut Line<'_>, data: Data<'_>) -> Result<u32, Stop> {
    let set = options(line, "\n\t", data.u32(4)?);
    line.show(data, "\n\t  Hello Timer {u16 8}s, Dead Timer {u16 10}s, Interface-ID {ip4 0}, Priority {u8 4}")?;
    put_designated(line, data)?;
    if line.options.verbosity > 1 {
        put!(line, "\n\t  Neighbor List:");
        put_addresses(line, "\n\t    ", data.skip(20))?;
    }
    Ok(set)
}

fn description(line: &mut Line<'_>, data: Data<'_>) -> Result<u32, Stop> {
    let set = options(line, "\n\t", data.u32(0)?);
    line.show(data, ", DD Flags [{f8 7 ospf3.description}], MTU {u16 4}, DD-Sequence 0x{x32 8}")?;
    if line.options.verbosity > 1 {
        headers(line, data.skip(12))?;
    }
    Ok(set)
}

fn headers(line: &mut Line<'_>, mut rest: Data<'_>) -> Result<u32, Stop> {
    while rest.len > 0 {
        header(line, rest)?;
        rest = rest.skip(LSA_HEADER_LEN);
    }
    Ok(0)
}

fn header(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    data.at_least(LSA_HEADER_LEN)?;
    let content = usize::from(data.u16(18)?).wrapping_sub(LSA_HEADER_LEN);
    line.show(data, "\n\t  Advertising Router {ip4 8}, seq 0x{x32 12}, age {u16 0}s")?;
    put!(line, ", length {content}");
    kind_and_id(line, data.u16(2)?, data.ip4(4)?);
    Ok(())
}

fn kind_and_id(line: &mut Line<'_>, kind: u16, id: Ipv4Addr) {
    let number = kind & 0x1fff;
    let name = names::of("ospf3.advertisement", number);
    let scope = names::of("ospf3.scope", kind & 0x6000);
    let transitive = if kind & 0x8000 == 0 { "" } else { ", transitive" };
    put!(line, "\n\t    {name} LSA ({number}), {scope} Scope{transitive}, LSA-ID {id}");
}

fn requests(line: &mut Line<'_>, mut rest: Data<'_>) -> Result<u32, Stop> {
    while rest.len > 0 {
        rest.need(12)?;
        line.show(rest, "\n\t  Advertising Router {ip4 8}")?;
        kind_and_id(line, rest.u16(2)?, rest.ip4(4)?);
        rest = rest.skip(12);
    }
    Ok(0)
}

fn updates(line: &mut Line<'_>, data: Data<'_>) -> Result<u32, Stop> {
    let mut rest = data.skip(4);
    for _ in 0..data.u32(0)? {
        if rest.len == 0 {
            break;
        }
        header(line, rest)?;
        let len = usize::from(rest.u16(18)?);
        if len < LSA_HEADER_LEN || len > rest.len {
            return Err(Stop::Cut);
        }
        let content = rest.claimed(len).skip(LSA_HEADER_LEN);
        advertisement(line, rest.u16(2)?, content)?;
        rest = rest.skip(len);
    }
    Ok(0)
}

fn advertisement(line: &mut Line<'_>, kind: u16, data: Data<'_>) -> Printed {
    match kind {
        0x2001 => router(line, data),
        0x2002 => {
            options(line, "\n\t      ", data.u32(0)?);
            put!(line, "\n\t      Connected Routers:");
            put_addresses(line, "\n\t\t", data.skip(4))
        }
        0x2003 => {
            line.show(data, ", metric {u32 0&ffffff}")?;
            let mut rest = data.skip(4);
            while rest.len > 0 {
                rest = prefix(line, rest)?;
            }
            Ok(())
        }
        0x4005 => external(line, data),
        0x0008 => link(line, data),
        0x2009 => {
            data.at_least(12)?;
            kind_and_id(line, data.u16(2)?, data.ip4(4)?);
            let count = data.u16(0)?;
            put!(line, "\n\t      Prefixes {count}:");
            prefixes(line, data.skip(12), count.into())
        }
        _ => {
            line.dump("\n\t      ", data.bytes);
            data.need(data.len)
        }
    }
}

fn router(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    data.at_least(4)?;
    options(line, "\n\t      ", data.u32(0)?);
    line.show(data, ", RLA-Flags [{f8 0 ospf3.router}]")?;
    let mut rest = data.skip(4);
    while rest.len > 0 {
        rest.at_least(16)?;
        let kind = rest.u8(0)?;
        let Some(neighbour) = names::find("ospf3.link", kind) else {
            put!(line, "\n\t      Unknown Router Links Type 0x{kind:02x}");
            return Ok(());
        };
        put!(line, "\n\t      {neighbour} ");
        line.show(rest, "{ip4 12}\n\t      Neighbor Interface-ID {ip4 8}, Interface {ip4 4}, metric {u16 2}")?;
        rest = rest.skip(16);
    }
    Ok(())
}

fn external(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    data.at_least(8)?;
    let word = data.u32(0)?;
    line.show(data, "\n\t     Flags [{f32 0 ospf3.external}] metric {u24 1}")?;
    let referenced = data.u8(6)? != 0;
    let mut rest = prefix(line, data.skip(4))?;
    if word & 0x0200_0000 != 0 {
        rest.at_least(16)?;
        line.show(rest, " forward {ip6 0}")?;
        rest = rest.skip(16);
    }
    for (present, name) in [(word & 0x0100_0000 != 0, "tag"), (referenced, "RefLSID:")] {
        if present {
            rest.at_least(4)?;
            put!(line, " {name} {}", rest.ip4(0)?);
            rest = rest.skip(4);
        }
    }
    Ok(())
}

fn link(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    options(line, "\n\t      ", data.u32(0)?);
    data.at_least(24)?;
    let count = data.u32(20)?;
    line.show(data, "\n\t      Priority {u8 0}, Link-local address {ip6 4}, Prefixes {u32 20}:")?;
    prefixes(line, data.skip(24), count)
}

fn prefixes(line: &mut Line<'_>, mut rest: Data<'_>, count: u32) -> Printed {
    for _ in 0..count {
        rest = prefix(line, rest)?;
    }
    Ok(())
}

/// Shows a prefix. Returns the data after it.
fn prefix<'a>(line: &mut Line<'_>, data: Data<'a>) -> Result<Data<'a>, Stop> {
    data.at_least(4)?;
    let (len, set, metric) = (data.u8(0)?, data.u8(1)?, data.u16(2)?);
    let stored = usize::from(len).div_ceil(32) * 4;
    let mut address = [0; 16];
    let Some(room) = address.get_mut(..stored) else {
        put!(line, " bogus prefixlen /{len}");
        return Err(Stop::Cut);
    };
    data.at_least(4 + stored)?;
    room.copy_from_slice(data.slice(4, stored)?);
    put!(line, "\n\t\t{}/{len}", Ipv6Addr::from(address));
    if set != 0 {
        put!(line, ", Options [{}]", names::flags("ospf3.prefix", set));
    }
    put!(line, ", metric {metric}");
    Ok(data.skip(4 + stored))
}

/// Shows link-local data (RFC 5613). Returns its length.
fn link_local(line: &mut Line<'_>, data: Data<'_>) -> Result<usize, Stop> {
    data.at_least(4)?;
    let len = usize::from(data.u16(2)?);
    line.show(data, "\n\tLLS Checksum 0x{x16 0}, Data Length {u16 2}")?;
    if len < 4 { Err(Stop::Cut) } else { data.at_least(len).map(|()| len) }
}

/// Shows the authentication trailer (RFC 7166).
fn authentication(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    data.at_least(TRAILER_HEADER_LEN)?;
    match data.u16(0)? {
        1 => put!(line, "\n\tAuthentication Type HMAC"),
        kind => put!(line, "\n\tAuthentication Type unknown (0x{kind:04x})"),
    }
    let len = usize::from(data.u16(2)?);
    put!(line, ", Length {len}");
    if len < TRAILER_HEADER_LEN || len > data.len {
        return Err(Stop::Cut);
    }
    line.show(data, ", SAID {u16 6}, CSN 0x{x32 8}:{x32 12}")?;
    data.need(len)?;
    if line.options.verbosity > 1 {
        let digest = data.slice(TRAILER_HEADER_LEN, len - TRAILER_HEADER_LEN)?;
        line.dump("\n\tAuthentication Data ", digest);
    }
    Ok(())
}
