//! OSPF: the message; with `-v` what version 2 says.

use std::net::Ipv4Addr;

use super::line::{Data, Line, Printed, Stop, flag_names, put};
use super::ospf3;
use super::protocol::Ip;
use super::text::put_string;

const HEADER_LEN: usize = 24;
const LSA_HEADER_LEN: usize = 20;
const DIGEST: u16 = 2;
const DIGEST_LEN: usize = 16;
/// Data about the link itself follow the message.
const LINK_LOCAL: u8 = 0x10;

const OPTIONS: [(u32, &str); 8] = [
    (0x01, "MultiTopology"),
    (0x02, "External"),
    (0x04, "Multicast"),
    (0x08, "NSSA"),
    (0x10, "LLS"),
    (0x20, "Demand Circuit"),
    (0x40, "Opaque"),
    (0x80, "Up/Down"),
];

pub(super) fn print(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
    line.protocol = if ip.is_v4() { "ospf2" } else { "ospf3" };
    let kind = data.u8(1)?;
    let name = match kind {
        1 => "Hello",
        2 => "Database Description",
        3 => "LS-Request",
        4 => "LS-Update",
        5 => "LS-Ack",
        _ => "",
    };
    let data = match ip.is_v4() && data.u16(14)? == DIGEST {
        true => {
            let len = data.len.saturating_sub(DIGEST_LEN);
            // tcpdump takes the digest off the captured bytes too, whatever was captured.
            let captured = data.bytes.len().saturating_sub(DIGEST_LEN).min(len);
            Data {
                bytes: &data.bytes[..captured],
                len,
            }
        }
        false => data,
    };
    let version = data.u8(0)?;
    match name {
        "" => put!(
            line,
            "OSPFv{version}, unknown LS-type {kind}, length {}",
            data.len
        ),
        name => put!(line, "OSPFv{version}, {name}, length {}", data.len),
    }
    if name.is_empty() || !line.verbose() {
        return Ok(());
    }
    if !ip.is_v4() {
        return ospf3::print(line, kind, data);
    }
    let stored = usize::from(data.u16(2)?);
    if stored != data.len {
        put!(line, " [len {stored}]");
    }
    put!(line, "\n\tRouter-ID {}", address(data, 4)?);
    match data.u32(8)? {
        0 => put!(line, ", Backbone Area"),
        area => put!(line, ", Area {}", Ipv4Addr::from(area)),
    }
    data.need(HEADER_LEN)?;
    let authentication = data.u16(14)?;
    let known = match authentication {
        0 => "none",
        1 => "simple",
        DIGEST => "MD5",
        _ => "unknown",
    };
    put!(line, ", Authentication Type: {known} ({authentication})");
    match authentication {
        0 => {}
        1 => {
            put!(line, "\n\tSimple text password: ");
            put_string(line, data.slice(16, 8)?);
        }
        DIGEST => put!(
            line,
            "\n\tKey-ID: {}, Auth-Length: {}, Crypto Sequence Number: 0x{:08x}",
            data.u8(18)?,
            data.u8(19)?,
            data.u32(20)?
        ),
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
        _ => acknowledgements(line, message)?,
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

fn address(data: Data<'_>, at: usize) -> Result<Ipv4Addr, Stop> {
    data.u32(at).map(Ipv4Addr::from)
}

fn options(set: u8) -> String {
    flag_names(set.into(), &OPTIONS, ", ")
}

fn hello(line: &mut Line<'_>, data: Data<'_>) -> Result<bool, Stop> {
    let set = data.u8(6)?;
    put!(line, "\n\tOptions [{}]", options(set));
    put!(
        line,
        "\n\t  Hello Timer {}s, Dead Timer {}s, Mask {}, Priority {}",
        data.u16(4)?,
        data.u32(8)?,
        address(data, 0)?,
        data.u8(7)?
    );
    if data.u32(12)? != 0 {
        put!(line, "\n\t  Designated Router {}", address(data, 12)?);
    }
    if data.u32(16)? != 0 {
        put!(line, ", Backup Designated Router {}", address(data, 16)?);
    }
    let neighbours = data.skip(20);
    if neighbours.len > 0 {
        put!(line, "\n\t  Neighbor List:");
    }
    for at in (0..neighbours.len).step_by(4) {
        put!(line, "\n\t    {}", address(neighbours, at)?);
    }
    Ok(set & LINK_LOCAL != 0)
}

fn description(line: &mut Line<'_>, data: Data<'_>) -> Result<bool, Stop> {
    const FLAGS: [(u32, &str); 4] = [
        (0x04, "Init"),
        (0x02, "More"),
        (0x01, "Master"),
        (0x08, "OOBResync"),
    ];
    let set = data.u8(2)?;
    put!(line, "\n\tOptions [{}]", options(set));
    let flags = flag_names(data.u8(3)?.into(), &FLAGS, ", ");
    put!(line, ", DD Flags [{flags}]");
    if data.u16(0)? != 0 {
        put!(line, ", MTU: {}", data.u16(0)?);
    }
    put!(line, ", Sequence: 0x{:08x}", data.u32(4)?);
    headers(line, data.skip(8))?;
    Ok(set & LINK_LOCAL != 0)
}

fn acknowledgements(line: &mut Line<'_>, data: Data<'_>) -> Result<bool, Stop> {
    headers(line, data)?;
    // tcpdump reads on until the bytes end, and marks that.
    Err(Stop::Cut)
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

fn kind_name(kind: u32) -> &'static str {
    match kind {
        1 => "Router",
        2 => "Network",
        3 => "Summary",
        4 => "ASBR Summary",
        5 => "External",
        6 => "Multicast Group",
        7 => "NSSA",
        9 => "Link Local Opaque",
        10 => "Area Local Opaque",
        11 => "Domain Wide Opaque",
        _ => "unknown",
    }
}

fn opaque_name(kind: u8) -> &'static str {
    match kind {
        1 => "Traffic Engineering",
        3 => "Graceful restart",
        4 => "Router Information",
        _ => "unknown",
    }
}

/// The head of an advertisement; its length with the head, none where that is impossible.
fn header(line: &mut Line<'_>, data: Data<'_>) -> Result<Option<usize>, Stop> {
    data.need(LSA_HEADER_LEN)?;
    let (age, kind, len) = (data.u16(0)?, data.u8(3)?, usize::from(data.u16(18)?));
    let Some(content) = len.checked_sub(LSA_HEADER_LEN) else {
        put!(line, "\n\t    Bogus length {len} < header (20)");
        return Ok(None);
    };
    put!(
        line,
        "\n\t  Advertising Router {}, seq 0x{:08x}, age {age}s, length {content}",
        address(data, 8)?,
        data.u32(12)?
    );
    let name = kind_name(kind.into());
    match kind {
        9..=11 => put!(
            line,
            "\n\t    {name} LSA ({kind}), Opaque-Type {} LSA ({}), Opaque-ID {}",
            opaque_name(data.u8(4)?),
            data.u8(4)?,
            data.u32(4)? & 0x00ff_ffff
        ),
        _ => put!(
            line,
            "\n\t    {name} LSA ({kind}), LSA-ID: {}",
            address(data, 4)?
        ),
    }
    put!(line, "\n\t    Options: [{}]", options(data.u8(2)?));
    Ok(Some(len))
}

fn requests(line: &mut Line<'_>, data: Data<'_>) -> Result<bool, Stop> {
    for at in (0..data.len).step_by(12) {
        let one = data.skip(at);
        one.need(12)?;
        let kind = one.u32(0)?;
        put!(
            line,
            "\n\t  Advertising Router: {}, {} LSA ({kind})",
            address(one, 8)?,
            kind_name(kind)
        );
        match kind {
            9..=11 => put!(
                line,
                ", Opaque-Type: {} LSA ({}), Opaque-ID: {}",
                opaque_name(one.u8(4)?),
                one.u8(4)?,
                one.u32(4)? & 0x00ff_ffff
            ),
            _ => put!(line, ", LSA-ID: {}", address(one, 4)?),
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

fn topology(number: u8) -> &'static str {
    match number {
        0 => "default",
        1 => "multicast",
        2 => "management",
        _ => "Unknown",
    }
}

fn advertisement(line: &mut Line<'_>, kind: u8, data: Data<'_>) -> Printed {
    match kind {
        1 => router(line, data),
        2 => {
            put!(
                line,
                "\n\t    Mask {}\n\t    Connected Routers:",
                address(data, 0)?
            );
            for at in (4..data.len).step_by(4) {
                put!(line, "\n\t      {}", address(data, at)?);
            }
            Ok(())
        }
        3 | 4 => {
            let mask = data.u32(0)?;
            if kind == 3 {
                put!(line, "\n\t    Mask {}", Ipv4Addr::from(mask));
            }
            for at in (4..data.len).step_by(4) {
                let word = data.u32(at)?;
                let number = (word >> 24 & 0x7f) as u8;
                put!(
                    line,
                    "\n\t\ttopology {} ({number}) metric {}",
                    topology(number),
                    word & 0x00ff_ffff
                );
            }
            Ok(())
        }
        5 | 7 => external(line, data),
        9..=11 => data.need(data.len),
        _ => Ok(()),
    }
}

fn router(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const FLAGS: [(u32, &str); 6] = [
        (0x01, "ABR"),
        (0x02, "ASBR"),
        (0x04, "Virtual"),
        (0x08, "Wildcard"),
        (0x10, "Nt"),
        (0x80, "Host"),
    ];
    let flags = flag_names(data.u8(0)?.into(), &FLAGS, ", ");
    put!(line, "\n\t    Router LSA Options: [{flags}]");
    let mut rest = data.skip(4);
    for _ in 0..data.u16(2)? {
        rest.need(12)?;
        let (id, value) = (address(rest, 0)?, address(rest, 4)?);
        let (kind, count) = (rest.u8(8)?, usize::from(rest.u8(9)?));
        match kind {
            1 => put!(
                line,
                "\n\t      Neighbor Router-ID: {id}, Interface Address: {value}"
            ),
            2 => put!(
                line,
                "\n\t      Neighbor Network-ID: {id}, Interface Address: {value}"
            ),
            3 => put!(line, "\n\t      Stub Network: {id}, Mask: {value}"),
            4 => put!(
                line,
                "\n\t      Virtual Link: Neighbor Router-ID: {id}, Interface Address: {value}"
            ),
            _ => {
                put!(line, "\n\t      Unknown Router Link Type ({kind})");
                return Ok(());
            }
        }
        for metric in 0..=count {
            let at = 8 + 4 * metric;
            // The first one is the default's: its first byte is the link's type.
            let number = if metric == 0 { 0 } else { rest.u8(at)? };
            put!(
                line,
                "\n\t\ttopology {} ({number}), metric {}",
                topology(number),
                rest.u16(at + 2)?
            );
        }
        rest = rest.skip(12 + 4 * count);
    }
    Ok(())
}

fn external(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    put!(line, "\n\t    Mask {}", address(data, 0)?);
    for at in (4..data.len).step_by(12) {
        let word = data.u32(at)?;
        let number = (word >> 24 & 0x7f) as u8;
        put!(
            line,
            "\n\t\ttopology {} ({number}), type {}, metric",
            topology(number),
            if word >> 31 == 1 { 2 } else { 1 }
        );
        match word & 0x00ff_ffff {
            0x00ff_ffff => put!(line, " infinite"),
            metric => put!(line, " {metric}"),
        }
        if data.u32(at + 4)? != 0 {
            put!(line, ", forward {}", address(data, at + 4)?);
        }
        if data.u32(at + 8)? != 0 {
            put!(line, ", tag {}", address(data, at + 8)?);
        }
    }
    Ok(())
}

/// What follows a message (RFC 5613).
fn link_local(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let data = data.claimed(data.len);
    if data.bytes.len() < 4 {
        put!(line, "\n\t[LLS truncated]");
        return Ok(());
    }
    put!(line, "\n\t  LLS: checksum: 0x{:04x}", data.u16(0)?);
    let len = usize::from(data.u16(2)?);
    put!(line, ", length: {len}");
    let mut rest = data.skip(4);
    while !rest.bytes.is_empty() {
        let (kind, len) = (rest.u16(0)?, usize::from(rest.u16(2)?));
        let name = match kind {
            1 => "Extended Options",
            2 => "MD5 Authentication",
            _ => "Unknown TLV",
        };
        put!(line, "\n\t    {name} ({kind}), length: {len}");
        match kind {
            1 => {
                const EXTENDED: [(u32, &str); 2] = [(1, "LSDB resync"), (2, "Restart")];
                let set = rest.u32(4)?;
                let named = flag_names(set, &EXTENDED, ", ");
                let named = if named == "none" { "?" } else { &named };
                put!(line, "\n\t      Options: 0x{set:08x} [{named}]");
            }
            2 => put!(line, "\n\t      Sequence number: 0x{:08x}", rest.u32(4)?),
            _ => {}
        }
        rest = rest.skip(4 + len.next_multiple_of(4));
    }
    Ok(())
}
