//! ICMPv6: errors, echo, neighbour discovery, multicast listeners.

use std::net::Ipv6Addr;

use super::line::{Data, Line, Printed, Stop, flag_names, put};
use super::protocol::Ip;
use super::{DumpForm, dump, icmpv6_options, names};

const HEADER_LEN: usize = 8;
const UNREACHABLE: u8 = 1;
/// The last code of these whose meaning is known.
const LAST_UNREACHABLE: u8 = 4;
const TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
const LISTENER_QUERY: u8 = 130;
const LISTENER_REPORT: u8 = 131;
const LISTENER_DONE: u8 = 132;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const RENUMBERING: u8 = 138;
const NODE_QUERY: u8 = 139;
const NODE_REPLY: u8 = 140;
const LISTENER_REPORT_V2: u8 = 143;
const AGENT_REQUEST: u8 = 144;
const AGENT_REPLY: u8 = 145;
const PREFIX_SOLICITATION: u8 = 146;
const PREFIX_ADVERTISEMENT: u8 = 147;
/// RFC 6550.
const ROUTING_ON_LOSSY: u8 = 155;

pub(super) fn print(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
    line.protocol = "icmp6";
    if data.len == 0 {
        put!(line, "ICMP6, length 0");
        return Err(Stop::Invalid);
    }
    let kind = data.u8(0)?;
    if line.verbose() && !ip.fragmented && data.bytes.len() == data.len {
        checksum(line, ip, data)?;
    }
    put!(line, "ICMP6, ");
    match name(kind) {
        Some(name) => put!(line, "{name}"),
        None => put!(line, "unknown icmp6 type ({kind})"),
    }
    let is_discovery = (ROUTER_SOLICITATION..=REDIRECT).contains(&kind)
        || matches!(kind, AGENT_REPLY | PREFIX_ADVERTISEMENT);
    if line.verbose() && is_discovery {
        put!(line, ", length {}", data.len);
    }
    message(line, kind, data)?;
    let is_opaque = name(kind).is_none() || matches!(kind, 200 | 201);
    if kind == UNREACHABLE && data.u8(1)? > LAST_UNREACHABLE {
        if line.options.verbosity < 2 {
            dump::print(line.out, DumpForm::Hex, data.bytes);
        }
        return Ok(());
    }
    if !line.verbose() || is_opaque {
        put!(line, ", length {}", data.len);
    }
    // As tcpdump has it: from the second `-v` on the length alone.
    if is_opaque && line.options.verbosity < 2 {
        dump::print(line.out, DumpForm::Hex, data.bytes);
    }
    Ok(())
}

fn name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        UNREACHABLE => "destination unreachable",
        TOO_BIG => "packet too big",
        TIME_EXCEEDED => "time exceeded in-transit",
        PARAMETER_PROBLEM => "parameter problem",
        ECHO_REQUEST => "echo request",
        ECHO_REPLY => "echo reply",
        LISTENER_QUERY => "multicast listener query",
        LISTENER_REPORT => "multicast listener report",
        LISTENER_DONE => "multicast listener done",
        ROUTER_SOLICITATION => "router solicitation",
        ROUTER_ADVERTISEMENT => "router advertisement",
        NEIGHBOR_SOLICITATION => "neighbor solicitation",
        NEIGHBOR_ADVERTISEMENT => "neighbor advertisement",
        REDIRECT => "redirect",
        RENUMBERING => "router renumbering",
        NODE_QUERY => "who-are-you request",
        NODE_REPLY => "who-are-you reply",
        141 => "inverse neighbor solicitation",
        142 => "inverse neighbor advertisement",
        LISTENER_REPORT_V2 => "multicast listener report v2",
        AGENT_REQUEST => "ha discovery request",
        AGENT_REPLY => "ha discovery reply",
        PREFIX_SOLICITATION => "mobile router solicitation",
        PREFIX_ADVERTISEMENT => "mobile router advertisement",
        ROUTING_ON_LOSSY => "RPL",
        200 => "mtrace response",
        201 => "mtrace message",
        _ => return None,
    })
}

fn checksum(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
    let stored = data.u16(2)?;
    if let Some(addresses) = ip.addresses() {
        let sum = addresses
            .pseudo_header(names::ICMPV6, data.len)
            .add(data.bytes);
        if sum.finish() == 0 {
            put!(line, "[icmp6 sum ok] ");
        } else {
            put!(
                line,
                "[bad icmp6 cksum 0x{stored:04x} -> 0x{:04x}!] ",
                sum.should_be(stored)
            );
        }
    }
    Ok(())
}

fn message(line: &mut Line<'_>, kind: u8, data: Data<'_>) -> Printed {
    let code = data.u8(1)?;
    let address = |at| data.array(at).map(Ipv6Addr::from);
    match kind {
        UNREACHABLE => unreachable(line, code, data)?,
        TOO_BIG => put!(line, ", mtu {}", data.u32(4)?),
        TIME_EXCEEDED => {
            let to = address(HEADER_LEN + 24)?;
            match code {
                0 => put!(line, " for {to}"),
                1 => put!(line, " (reassembly)"),
                _ => put!(line, ", unknown code ({code})"),
            }
        }
        PARAMETER_PROBLEM => {
            address(HEADER_LEN + 24)?;
            let octet = data.u32(4)?;
            match code {
                0 => put!(line, ", erroneous - octet {octet}"),
                1 => put!(line, ", next header - octet {octet}"),
                2 => put!(line, ", option - octet {octet}"),
                3 => put!(line, ", incomplete header chain - octet {octet}"),
                _ => put!(line, ", code-#{code}"),
            }
        }
        ECHO_REQUEST | ECHO_REPLY => put!(line, ", id {}, seq {}", data.u16(4)?, data.u16(6)?),
        LISTENER_QUERY if data.len >= 28 => {
            put!(line, " v2");
            listener_query(line, data)?;
        }
        LISTENER_QUERY | LISTENER_REPORT | LISTENER_DONE => {
            put!(
                line,
                "max resp delay: {} addr: {}",
                data.u16(4)?,
                address(8)?
            );
        }
        LISTENER_REPORT_V2 => listener_report(line, data)?,
        ROUTER_SOLICITATION if line.verbose() => icmpv6_options::print(line, data.skip(8))?,
        ROUTER_ADVERTISEMENT if line.verbose() => router_advertisement(line, data)?,
        NEIGHBOR_SOLICITATION => {
            put!(line, ", who has {}", address(8)?);
            if line.verbose() {
                icmpv6_options::print(line, data.skip(24))?;
            }
        }
        NEIGHBOR_ADVERTISEMENT => {
            put!(line, ", tgt is {}", address(8)?);
            if line.verbose() {
                const FLAGS: [(u32, &str); 3] = [
                    (1 << 31, "router"),
                    (1 << 30, "solicited"),
                    (1 << 29, "override"),
                ];
                put!(line, ", Flags [{}]", flag_names(data.u32(4)?, &FLAGS, ", "));
                icmpv6_options::print(line, data.skip(24))?;
            }
        }
        AGENT_REQUEST | PREFIX_SOLICITATION => put!(line, ", id 0x{:04x}", data.u16(4)?),
        AGENT_REPLY if line.verbose() => {
            put!(line, ", id 0x{:04x}", data.u16(4)?);
            for at in (HEADER_LEN..data.len).step_by(16) {
                put!(line, ", {}", address(at)?);
            }
        }
        PREFIX_ADVERTISEMENT if line.verbose() => {
            put!(line, ", id 0x{:04x}", data.u16(4)?);
            match data.u16(6)? >> 14 {
                0 => {}
                1 => put!(line, " O"),
                2 => put!(line, " M"),
                _ => put!(line, " MO"),
            }
            icmpv6_options::print(line, data.skip(HEADER_LEN))?;
        }
        ROUTING_ON_LOSSY => routing_on_lossy(line, code),
        REDIRECT => {
            put!(line, ", {} to {}", address(24)?, address(8)?);
            if line.verbose() {
                icmpv6_options::print(line, data.skip(40))?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The name of a message; the first bit of its code says that it is secured.
fn routing_on_lossy(line: &mut Line<'_>, code: u8) {
    let name = match code & 0x7f {
        0 => "DODAG Information Solicitation",
        1 => "DODAG Information Object",
        2 => "Destination Advertisement Object",
        3 => "Destination Advertisement Object Ack",
        0x0a => "Consistency Check",
        _ => return put!(line, ", unknown-RPL-code {code}"),
    };
    let secured = if code & 0x80 == 0 { "CLR" } else { "SEC" };
    put!(line, ", ({secured}){name}");
}

fn unreachable(line: &mut Line<'_>, code: u8, data: Data<'_>) -> Printed {
    const BEYOND_SCOPE: u8 = 2;
    const PORT: u8 = 4;
    let inner = data.skip(HEADER_LEN);
    let name = match code {
        0 => "unreachable route",
        1 => " unreachable prohibited",
        BEYOND_SCOPE => "beyond scope",
        3 => "unreachable address",
        PORT => "unreachable port",
        _ => {
            put!(line, ", unknown unreach code ({code})");
            return Ok(());
        }
    };
    put!(line, ", {name}");
    let to = Ipv6Addr::from(inner.array(24)?);
    match code {
        BEYOND_SCOPE => {
            put!(
                line,
                " {to}, source address {}",
                Ipv6Addr::from(inner.array(8)?)
            );
        }
        PORT => {
            let (number, transport) = upper_layer(inner)?;
            let port = transport.u16(2)?;
            match number {
                names::TCP => put!(line, ", {to} tcp port {port}"),
                names::UDP => put!(line, ", {to} udp port {port}"),
                _ => put!(line, ", {to} protocol {number} port {port} unreachable"),
            }
        }
        _ => put!(line, " {to}"),
    }
    Ok(())
}

/// The transport header of a packet, and its protocol.
fn upper_layer(packet: Data<'_>) -> Result<(u8, Data<'_>), Stop> {
    let mut number = packet.u8(6)?;
    let mut data = packet.skip(40);
    loop {
        let len = match number {
            names::HOP_BY_HOP | names::DESTINATION_OPTIONS | names::ROUTING => {
                (usize::from(data.u8(1)?) + 1) * 8
            }
            names::FRAGMENT => 8,
            names::AH => (usize::from(data.u8(1)?) + 2) * 4,
            _ => return Ok((number, data)),
        };
        number = data.u8(0)?;
        data = data.skip(len);
    }
}

fn router_advertisement(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const FLAGS: [(u32, &str); 3] = [
        (0x80, "managed"),
        (0x40, "other stateful"),
        (0x20, "home agent"),
    ];
    data.need(16)?;
    let flags = data.u8(5)?;
    put!(line, "\n\thop limit {}", data.u8(4)?);
    put!(line, ", Flags [{}]", flag_names(flags.into(), &FLAGS, ", "));
    put!(line, ", pref {}", icmpv6_options::preference(flags));
    put!(line, ", router lifetime {}s", data.u16(6)?);
    put!(
        line,
        ", reachable time {}ms, retrans timer {}ms",
        data.u32(8)?,
        data.u32(12)?
    );
    icmpv6_options::print(line, data.skip(16))
}

fn listener_query(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let code = u32::from(data.u16(4)?);
    if line.verbose() {
        // From 32768 on the code is a small floating-point number (RFC 3810, 5.1.3).
        let delay = if code < 32_768 {
            code
        } else {
            (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3)
        };
        put!(line, " [max resp delay={delay}]");
    }
    put!(line, " [gaddr {}", Ipv6Addr::from(data.array(8)?));
    if line.verbose() {
        let (flags, code) = (data.u8(24)?, u32::from(data.u8(25)?));
        if flags & 8 != 0 {
            put!(line, " sflag");
        }
        if flags & 7 != 0 {
            put!(line, " robustness={}", flags & 7);
        }
        let interval = if code < 128 {
            code
        } else {
            (code & 0xf | 0x10) << ((code >> 4 & 7) + 3)
        };
        put!(line, " qqi={interval}");
    }
    let sources = data.u16(26)?;
    if sources > 0 {
        put!(line, ", {sources} source(s)");
    }
    put!(line, "]");
    Ok(())
}

fn listener_report(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    /// Without its sources.
    const RECORD_LEN: usize = 20;
    let count = data.u16(6)?;
    put!(line, ", {count} group record(s)");
    if !line.verbose() {
        return Ok(());
    }
    let mut record = data.skip(HEADER_LEN);
    for _ in 0..count {
        if record.len < RECORD_LEN {
            put!(line, " [invalid number of groups]");
            return Ok(());
        }
        let (kind, sources) = (record.u8(0)?, record.u16(2)?);
        let name = match kind {
            1 => "is_in",
            2 => "is_ex",
            3 => "to_in",
            4 => "to_ex",
            5 => "allow",
            6 => "block",
            _ => "unknown",
        };
        put!(line, " [gaddr {} {name}", Ipv6Addr::from(record.array(4)?));
        if record.len < RECORD_LEN + usize::from(sources) * 16 {
            put!(line, " [invalid number of sources {sources}]");
            return Ok(());
        }
        if line.options.verbosity == 1 {
            put!(line, ", {sources} source(s)");
        } else {
            put!(line, " {{");
            for index in 0..usize::from(sources) {
                put!(line, " {}", Ipv6Addr::from(record.array(20 + index * 16)?));
            }
            put!(line, " }}");
        }
        put!(line, "]");
        record = record.skip(RECORD_LEN + usize::from(sources) * 16);
    }
    Ok(())
}
