//! OSPF version 3, with `-v`: the message; with `-vv` its advertisements too.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::dump;
use super::line::{Data, Line, Printed, Stop, flag_names, put};

const HEADER_LEN: usize = 16;
const LSA_HEADER_LEN: usize = 20;
const LINK_LOCAL_SIGNALING: u32 = 0x0200;
const TRAILER_HEADER_LEN: usize = 16;

const OPTIONS: [(u32, &str); 9] = [
    (0x0001, "V6"),
    (0x0002, "External"),
    (0x0004, "Deprecated"),
    (0x0008, "NSSA"),
    (0x0010, "Router"),
    (0x0020, "Demand Circuit"),
    (0x0100, "AFs Support"),
    (LINK_LOCAL_SIGNALING, "LLS"),
    (0x0400, "Authentication Trailer"),
];

/// What follows the first line of a message of this kind.
pub(super) fn print(line: &mut Line<'_>, kind: u8, data: Data<'_>) -> Printed {
    let stored = usize::from(data.u16(2)?);
    if stored > data.len {
        put!(line, " [len {stored}]");
        return Ok(());
    }
    put!(line, "\n\tRouter-ID {}", id(data, 4)?);
    match data.u32(8)? {
        0 => put!(line, ", Backbone Area"),
        area => put!(line, ", Area {}", Ipv4Addr::from(area)),
    }
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

fn id(data: Data<'_>, at: usize) -> Result<Ipv4Addr, Stop> {
    data.u32(at).map(Ipv4Addr::from)
}

/// Fails as a cut packet does unless the message has `len` bytes more.
fn at_least(data: Data<'_>, len: usize) -> Printed {
    match data.len < len {
        true => Err(Stop::Cut),
        false => data.need(len),
    }
}

/// Shows options and gives them.
fn options(line: &mut Line<'_>, before: &str, set: u32) -> u32 {
    put!(
        line,
        "{before}Options [{}]",
        flag_names(set, &OPTIONS, ", ")
    );
    set
}

fn hello(line: &mut Line<'_>, data: Data<'_>) -> Result<u32, Stop> {
    let set = options(line, "\n\t", data.u32(4)?);
    put!(
        line,
        "\n\t  Hello Timer {}s, Dead Timer {}s, Interface-ID {}, Priority {}",
        data.u16(8)?,
        data.u16(10)?,
        id(data, 0)?,
        data.u8(4)?
    );
    if data.u32(12)? != 0 {
        put!(line, "\n\t  Designated Router {}", id(data, 12)?);
    }
    if data.u32(16)? != 0 {
        put!(line, ", Backup Designated Router {}", id(data, 16)?);
    }
    if line.options.verbosity > 1 {
        put!(line, "\n\t  Neighbor List:");
        let neighbours = data.skip(20);
        for at in (0..neighbours.len).step_by(4) {
            put!(line, "\n\t    {}", id(neighbours, at)?);
        }
    }
    Ok(set)
}

fn description(line: &mut Line<'_>, data: Data<'_>) -> Result<u32, Stop> {
    const FLAGS: [(u32, &str); 4] = [
        (0x04, "Init"),
        (0x02, "More"),
        (0x01, "Master"),
        (0x10, "IPv6 MTU"),
    ];
    let set = options(line, "\n\t", data.u32(0)?);
    let flags = flag_names(data.u8(7)?.into(), &FLAGS, ", ");
    put!(
        line,
        ", DD Flags [{flags}], MTU {}, DD-Sequence 0x{:08x}",
        data.u16(4)?,
        data.u32(8)?
    );
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
    at_least(data, LSA_HEADER_LEN)?;
    let content = usize::from(data.u16(18)?).wrapping_sub(LSA_HEADER_LEN);
    put!(
        line,
        "\n\t  Advertising Router {}, seq 0x{:08x}, age {}s, length {content}",
        id(data, 8)?,
        data.u32(12)?,
        data.u16(0)?
    );
    kind_and_id(line, data.u16(2)?, id(data, 4)?);
    Ok(())
}

fn kind_and_id(line: &mut Line<'_>, kind: u16, id: Ipv4Addr) {
    let number = kind & 0x1fff;
    let name = match number {
        1 => "Router",
        2 => "Network",
        3 => "Inter-Area Prefix",
        4 => "Inter-Area Router",
        5 => "External",
        6 => "Deprecated",
        7 => "NSSA",
        8 => "Link",
        9 => "Intra-Area Prefix",
        10 => "Intra-Area TE",
        11 => "Grace",
        12 => "Router Information",
        13 => "Inter-AS-TE",
        14 => "Layer 1 VPN",
        _ => "Unknown",
    };
    let scope = match kind & 0x6000 {
        0 => "Link Local",
        0x2000 => "Area Local",
        0x4000 => "Domain Wide",
        _ => "Unknown",
    };
    let transitive = match kind & 0x8000 {
        0 => "",
        _ => ", transitive",
    };
    put!(
        line,
        "\n\t    {name} LSA ({number}), {scope} Scope{transitive}, LSA-ID {id}"
    );
}

fn requests(line: &mut Line<'_>, mut rest: Data<'_>) -> Result<u32, Stop> {
    while rest.len > 0 {
        rest.need(12)?;
        put!(line, "\n\t  Advertising Router {}", id(rest, 8)?);
        kind_and_id(line, rest.u16(2)?, id(rest, 4)?);
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
            let mut rest = data.skip(4);
            while rest.len > 0 {
                at_least(rest, 4)?;
                put!(line, "\n\t\t{}", id(rest, 0)?);
                rest = rest.skip(4);
            }
            Ok(())
        }
        0x2003 => {
            put!(line, ", metric {}", data.u32(0)? & 0x00ff_ffff);
            let mut rest = data.skip(4);
            while rest.len > 0 {
                rest = prefix(line, rest)?;
            }
            Ok(())
        }
        0x4005 => external(line, data),
        0x0008 => link(line, data),
        0x2009 => {
            at_least(data, 12)?;
            kind_and_id(line, data.u16(2)?, id(data, 4)?);
            let count = data.u16(0)?;
            put!(line, "\n\t      Prefixes {count}:");
            prefixes(line, data.skip(12), count.into())
        }
        _ => {
            dump::hex(line.out, "\n\t      ", data.bytes);
            data.need(data.len)
        }
    }
}

fn router(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const FLAGS: [(u32, &str); 5] = [
        (0x01, "ABR"),
        (0x02, "External"),
        (0x04, "Virtual-Link Endpoint"),
        (0x08, "Deprecated"),
        (0x10, "NSSA Translator"),
    ];
    at_least(data, 4)?;
    options(line, "\n\t      ", data.u32(0)?);
    let flags = flag_names(data.u8(0)?.into(), &FLAGS, ", ");
    put!(line, ", RLA-Flags [{flags}]");
    let mut rest = data.skip(4);
    while rest.len > 0 {
        at_least(rest, 16)?;
        let neighbour = match rest.u8(0)? {
            1 => "Neighbor Router-ID",
            2 => "Neighbor Network-ID",
            4 => "Virtual Link: Neighbor Router-ID",
            kind => {
                put!(line, "\n\t      Unknown Router Links Type 0x{kind:02x}");
                return Ok(());
            }
        };
        put!(
            line,
            "\n\t      {neighbour} {}\n\t      Neighbor Interface-ID {}, Interface {}, metric {}",
            id(rest, 12)?,
            id(rest, 8)?,
            id(rest, 4)?,
            rest.u16(2)?
        );
        rest = rest.skip(16);
    }
    Ok(())
}

fn external(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const FLAGS: [(u32, &str); 3] = [
        (0x0400_0000, "External Type 2"),
        (0x0200_0000, "Forwarding"),
        (0x0100_0000, "Tag"),
    ];
    at_least(data, 8)?;
    let word = data.u32(0)?;
    put!(
        line,
        "\n\t     Flags [{}] metric {}",
        flag_names(word, &FLAGS, ", "),
        word & 0x00ff_ffff
    );
    let referenced = data.u8(6)? != 0;
    let mut rest = prefix(line, data.skip(4))?;
    if word & 0x0200_0000 != 0 {
        at_least(rest, 16)?;
        put!(line, " forward {}", Ipv6Addr::from(rest.array::<16>(0)?));
        rest = rest.skip(16);
    }
    for (present, name) in [(word & 0x0100_0000 != 0, "tag"), (referenced, "RefLSID:")] {
        if present {
            at_least(rest, 4)?;
            put!(line, " {name} {}", id(rest, 0)?);
            rest = rest.skip(4);
        }
    }
    Ok(())
}

fn link(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    options(line, "\n\t      ", data.u32(0)?);
    at_least(data, 24)?;
    let count = data.u32(20)?;
    put!(
        line,
        "\n\t      Priority {}, Link-local address {}, Prefixes {count}:",
        data.u8(0)?,
        Ipv6Addr::from(data.array::<16>(4)?)
    );
    prefixes(line, data.skip(24), count)
}

fn prefixes(line: &mut Line<'_>, mut rest: Data<'_>, count: u32) -> Printed {
    for _ in 0..count {
        rest = prefix(line, rest)?;
    }
    Ok(())
}

/// Gives what follows the prefix.
fn prefix<'a>(line: &mut Line<'_>, data: Data<'a>) -> Result<Data<'a>, Stop> {
    const FLAGS: [(u32, &str); 6] = [
        (0x01, "No Unicast"),
        (0x02, "Local address"),
        (0x04, "Deprecated"),
        (0x08, "Propagate"),
        (0x10, "Down"),
        (0x20, "N-bit"),
    ];
    at_least(data, 4)?;
    let (len, set, metric) = (data.u8(0)?, data.u8(1)?, data.u16(2)?);
    let stored = usize::from(len).div_ceil(32) * 4;
    let mut address = [0; 16];
    let Some(room) = address.get_mut(..stored) else {
        put!(line, " bogus prefixlen /{len}");
        return Err(Stop::Cut);
    };
    at_least(data, 4 + stored)?;
    room.copy_from_slice(data.slice(4, stored)?);
    put!(line, "\n\t\t{}/{len}", Ipv6Addr::from(address));
    if set != 0 {
        put!(line, ", Options [{}]", flag_names(set.into(), &FLAGS, ", "));
    }
    put!(line, ", metric {metric}");
    Ok(data.skip(4 + stored))
}

/// Gives the length of what it shows (RFC 5613).
fn link_local(line: &mut Line<'_>, data: Data<'_>) -> Result<usize, Stop> {
    at_least(data, 4)?;
    let len = usize::from(data.u16(2)?);
    put!(
        line,
        "\n\tLLS Checksum 0x{:04x}, Data Length {len}",
        data.u16(0)?
    );
    match len < 4 {
        true => Err(Stop::Cut),
        false => at_least(data, len).map(|()| len),
    }
}

/// The authentication trailer (RFC 7166).
fn authentication(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    at_least(data, TRAILER_HEADER_LEN)?;
    match data.u16(0)? {
        1 => put!(line, "\n\tAuthentication Type HMAC"),
        kind => put!(line, "\n\tAuthentication Type unknown (0x{kind:04x})"),
    }
    let len = usize::from(data.u16(2)?);
    put!(line, ", Length {len}");
    if len < TRAILER_HEADER_LEN || len > data.len {
        return Err(Stop::Cut);
    }
    put!(
        line,
        ", SAID {}, CSN 0x{:08x}:{:08x}",
        data.u16(6)?,
        data.u32(8)?,
        data.u32(12)?
    );
    data.need(len)?;
    if line.options.verbosity > 1 {
        let digest = data.slice(TRAILER_HEADER_LEN, len - TRAILER_HEADER_LEN)?;
        dump::hex(line.out, "\n\tAuthentication Data ", digest);
    }
    Ok(())
}
