//! DHCP and BOOTP.

use std::net::Ipv4Addr;

use crate::print::line::{Colons, Data, Line, Printed, number, put};
use crate::print::names;

const MAGIC: u32 = 0x6382_5363;

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const REQUEST: u8 = 1;
    line.protocol = "bootp";
    let operation = data.u8(0)?;
    put!(line, "BOOTP/DHCP, {}", names::text("dhcp.operation", operation));
    let (kind, len) = (data.u8(1)?, data.u8(2)?);
    let is_ethernet = kind == 1 && len == 6;
    if is_ethernet && operation == REQUEST {
        line.show(data, " from {mac 28}")?;
    }
    put!(line, ", length {}", data.len);
    if !line.verbose() {
        return Ok(());
    }
    data.slice(8, 2)?;
    if kind != 1 {
        put!(line, ", htype {kind}");
    }
    if !is_ethernet {
        put!(line, ", hlen {len}");
    }
    let (hops, id, seconds) = (data.u8(3)?, data.u32(4)?, data.u16(8)?);
    if hops != 0 {
        put!(line, ", hops {hops}");
    }
    if id != 0 {
        put!(line, ", xid 0x{id:x}");
    }
    if seconds != 0 {
        put!(line, ", secs {seconds}");
    }
    let flags = data.u16(10)?;
    put!(line, ", Flags [{}]", names::flags("dhcp.flags", flags));
    if line.options.verbosity > 1 {
        put!(line, " (0x{flags:04x})");
    }
    for (name, at) in [("Client-IP", 12), ("Your-IP", 16), ("Server-IP", 20), ("Gateway-IP", 24)] {
        let address = data.u32(at)?;
        if address != 0 {
            put!(line, "\n\t  {name} {}", Ipv4Addr::from(address));
        }
    }
    if is_ethernet {
        line.show(data, "\n\t  Client-Ethernet-Address {mac 28}")?;
    }
    for (name, at, len) in [("sname", 44, 64), ("file", 108, 128)] {
        if data.u8(at)? != 0 {
            let text = data.slice(at, len)?;
            put!(line, "\n\t  {name} \"");
            line.put_string(text);
            put!(line, "\"");
        }
    }
    match data.u32(236)? {
        MAGIC => options(line, data.skip(240)),
        0 => Ok(()),
        other => {
            put!(line, "\n\t  Vendor-#0x{other:x}");
            Ok(())
        }
    }
}

fn options(line: &mut Line<'_>, mut data: Data<'_>) -> Printed {
    put!(line, "\n\t  Vendor-rfc1048 Extensions\n\t    Magic Cookie 0x{MAGIC:08x}");
    while let Ok(tag) = data.u8(0) {
        match tag {
            0 => {
                data = data.skip(1);
                continue;
            }
            255 => break,
            _ => {}
        }
        let len = usize::from(data.u8(1)?);
        let colon = if len > 0 { ": " } else { "" };
        let name = names::of("dhcp.option", tag);
        put!(line, "\n\t    {name} ({tag}), length {len}{colon}");
        put_value(line, tag, data.slice(2, len)?);
        data = data.skip(2 + len);
    }
    Ok(())
}

fn quoted(line: &mut Line<'_>, bytes: &[u8]) {
    put!(line, "\"");
    line.put_chars(bytes);
    put!(line, "\"");
}

/// Shows parts of `size` bytes, with a separator between them.
fn parts(line: &mut Line<'_>, value: &[u8], size: usize, joint: &str, show: fn(&[u8]) -> String) {
    let parts: Vec<String> = value.chunks_exact(size).map(show).collect();
    put!(line, "{}", parts.join(joint));
}

fn address(bytes: &[u8]) -> String {
    Ipv4Addr::from(number(bytes) as u32).to_string()
}

fn decimal(bytes: &[u8]) -> String {
    number(bytes).to_string()
}

fn put_value(line: &mut Line<'_>, tag: u8, value: &[u8]) {
    let form = names::find("dhcp.form", tag).unwrap_or(match value.len() {
        len if len & 1 != 0 => "dots",
        len if len & 2 != 0 => "shorts",
        _ => "words",
    });
    match form {
        "text" => quoted(line, value),
        "addresses" => parts(line, value, 4, ",", address),
        "words" => parts(line, value, 4, ",", decimal),
        "shorts" => parts(line, value, 2, ",", decimal),
        "dots" => parts(line, value, 1, ".", decimal),
        "pairs" => parts(line, value, 8, ",", |pair| format!("({}:{})", address(&pair[..4]), address(&pair[4..]))),
        "flag" => parts(line, value, 1, ",", |flag| names::text("dhcp.flag", flag[0]).into()),
        "message" => put!(line, "{}", names::text("dhcp.message", number(value) & 0xffff_ffff)),
        "list" => {
            for (index, tag) in value.iter().enumerate() {
                put!(line, "{}", if index % 4 == 0 { "\n\t      " } else { ", " });
                put!(line, "{} ({tag})", names::of("dhcp.option", *tag));
            }
        }
        "client" => match value {
            [1, mac @ ..] => put!(line, "ether {}", Colons(mac)),
            [0, name @ ..] => quoted(line, name),
            [kind, rest @ ..] => put!(line, "hardware-type {kind}, {}", Colons(rest)),
            [] => {}
        },
        "node" => one_byte(line, "dhcp.node", value),
        "overload" => one_byte(line, "dhcp.overload", value),
        "classes" => classes(line, value),
        "routes" => routes(line, value),
        "domain" => domain(line, value),
        _ => agent(line, value),
    }
}

fn one_byte(line: &mut Line<'_>, table: &str, value: &[u8]) {
    let Some((first, rest)) = value.split_first() else {
        put!(line, "[ERROR: length < 1 bytes]");
        return;
    };
    put!(line, "{}", names::text(table, *first));
    if !rest.is_empty() {
        put!(line, "\n\t  trailing data length {}", rest.len());
    }
}

fn classes(line: &mut Line<'_>, mut rest: &[u8]) {
    if rest.len() < 2 {
        put!(line, "[ERROR: length < 2 bytes]");
        return;
    }
    let mut number = 1;
    while let Some((len, after)) = rest.split_first() {
        put!(line, "\n\t      instance#{number}: ");
        let len = usize::from(*len);
        if len == 0 {
            put!(line, "[ERROR: suboption length must be non-zero]");
            return;
        }
        let Some((class, after)) = after.split_at_checked(len) else {
            put!(line, "[ERROR: invalid option]");
            return;
        };
        quoted(line, class);
        put!(line, ", length {len}");
        rest = after;
        number += 1;
    }
}

/// Shows networks, of which only the bytes under their masks are stored, and routers.
fn routes(line: &mut Line<'_>, mut rest: &[u8]) {
    if rest.len() < 5 {
        put!(line, "[ERROR: length < 5 bytes]");
        return;
    }
    let mut joint = "";
    while let Some((width, after)) = rest.split_first() {
        put!(line, "{joint}");
        joint = ",";
        if *width > 32 {
            put!(line, "[ERROR: Mask width ({width}) > 32]");
            return;
        }
        let octets = usize::from(*width).div_ceil(8);
        let Some((route, after)) = after.split_at_checked(octets + 4) else {
            let (left, needed) = (after.len(), octets + 4);
            put!(line, "[ERROR: Remaining length ({left}) < {needed} bytes]");
            return;
        };
        let (network, router) = route.split_at(octets);
        match width {
            0 => put!(line, "(default"),
            _ => {
                let mut address = [0; 4];
                address[..octets].copy_from_slice(network);
                put!(line, "({}/{width}", Ipv4Addr::from(address));
            }
        }
        let router = router.first_chunk::<4>().copied().unwrap_or_default();
        put!(line, ":{})", Ipv4Addr::from(router));
        rest = after;
    }
}

fn domain(line: &mut Line<'_>, value: &[u8]) {
    let [flags, first, second, name @ ..] = value else {
        put!(line, "[ERROR: length < 3 bytes]");
        return;
    };
    if flags & 0xf0 != 0 {
        put!(line, "[ERROR: MBZ nibble 0x{:x} != 0] ", flags >> 4);
    }
    if flags & 0x0f != 0 {
        put!(line, "[{}] ", names::joined("dhcp.fqdn", *flags, ""));
    }
    if (*first, *second) != (0, 0) {
        put!(line, "{first}/{second} ");
    }
    quoted(line, name);
}

fn agent(line: &mut Line<'_>, mut rest: &[u8]) {
    while let [kind, len, after @ ..] = rest {
        let name = names::of("dhcp.agent", *kind);
        put!(line, "\n\t      {name} SubOption {kind}, length {len}: ");
        let Some((value, after)) = after.split_at_checked(usize::from(*len)) else {
            put!(line, "length goes past end of option");
            return;
        };
        match kind {
            1 | 2 | 6 => line.put_chars(value),
            _ => line.dump("\n\t\t", value),
        }
        rest = after;
    }
    if !rest.is_empty() {
        put!(line, "\n\t  trailing data length {}", rest.len());
    }
}
