//! ICMPv6: errors, echo, neighbour discovery with its options, multicast listeners.

use std::net::Ipv6Addr;
use trawl_packet::net::protocol;

use crate::print::igmp::{floating, group_record};
use crate::print::line::{Colons, Data, Line, Printed, Stop, put};
use crate::print::names;
use crate::print::network::Ip;

const HEADER_LEN: usize = 8;
const UNREACHABLE: u8 = 1;
/// Last known code of unreachable messages.
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
const LISTENER_REPORT_V2: u8 = 143;
const AGENT_REQUEST: u8 = 144;
const AGENT_REPLY: u8 = 145;
const PREFIX_SOLICITATION: u8 = 146;
const PREFIX_ADVERTISEMENT: u8 = 147;
/// RFC 6550.
const ROUTING_ON_LOSSY: u8 = 155;

pub fn print(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
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
    let is_discovery =
        (ROUTER_SOLICITATION..=REDIRECT).contains(&kind) || matches!(kind, AGENT_REPLY | PREFIX_ADVERTISEMENT);
    if line.verbose() && is_discovery {
        put!(line, ", length {}", data.len);
    }
    message(line, kind, data)?;
    let is_opaque = name(kind).is_none() || matches!(kind, 200 | 201);
    if kind == UNREACHABLE && data.u8(1)? > LAST_UNREACHABLE {
        if line.options.verbosity < 2 {
            line.dump("\n\t", data.bytes);
        }
        return Ok(());
    }
    if !line.verbose() || is_opaque {
        put!(line, ", length {}", data.len);
    }
    // From the second `-v` on the length alone, as in tcpdump.
    if is_opaque && line.options.verbosity < 2 {
        line.dump("\n\t", data.bytes);
    }
    Ok(())
}

fn name(kind: u8) -> Option<&'static str> {
    names::find("icmpv6.name", kind)
}

fn checksum(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
    let stored = data.u16(2)?;
    if let Some(addresses) = ip.addresses() {
        let sum = addresses.pseudo_header(protocol::ICMPV6, data.len).add(data.bytes);
        if sum.finish() == 0 {
            put!(line, "[icmp6 sum ok] ");
        } else {
            let right = sum.should_be(stored);
            put!(line, "[bad icmp6 cksum 0x{stored:04x} -> 0x{right:04x}!] ");
        }
    }
    Ok(())
}

fn message(line: &mut Line<'_>, kind: u8, data: Data<'_>) -> Printed {
    let code = data.u8(1)?;
    let address = |at| data.ip6(at);
    match kind {
        UNREACHABLE => unreachable(line, code, data)?,
        TOO_BIG => line.show(data, ", mtu {u32 4}")?,
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
        ECHO_REQUEST | ECHO_REPLY => line.show(data, ", id {u16 4}, seq {u16 6}")?,
        LISTENER_QUERY if data.len >= 28 => {
            put!(line, " v2");
            listener_query(line, data)?;
        }
        LISTENER_QUERY | LISTENER_REPORT | LISTENER_DONE => {
            line.show(data, "max resp delay: {u16 4} addr: {ip6 8}")?;
        }
        LISTENER_REPORT_V2 => listener_report(line, data)?,
        ROUTER_SOLICITATION if line.verbose() => options(line, data.skip(8))?,
        ROUTER_ADVERTISEMENT if line.verbose() => router_advertisement(line, data)?,
        NEIGHBOR_SOLICITATION => {
            put!(line, ", who has {}", address(8)?);
            if line.verbose() {
                options(line, data.skip(24))?;
            }
        }
        NEIGHBOR_ADVERTISEMENT => {
            put!(line, ", tgt is {}", address(8)?);
            if line.verbose() {
                line.show(data, ", Flags [{f32 4 icmpv6.advertisement}]")?;
                options(line, data.skip(24))?;
            }
        }
        AGENT_REQUEST | PREFIX_SOLICITATION => line.show(data, ", id 0x{x16 4}")?,
        AGENT_REPLY if line.verbose() => {
            line.show(data, ", id 0x{x16 4}")?;
            for at in (HEADER_LEN..data.len).step_by(16) {
                put!(line, ", {}", address(at)?);
            }
        }
        PREFIX_ADVERTISEMENT if line.verbose() => {
            line.show(data, ", id 0x{x16 4}")?;
            match data.u16(6)? >> 14 {
                0 => {}
                1 => put!(line, " O"),
                2 => put!(line, " M"),
                _ => put!(line, " MO"),
            }
            options(line, data.skip(HEADER_LEN))?;
        }
        ROUTING_ON_LOSSY => routing_on_lossy(line, code),
        REDIRECT => {
            put!(line, ", {} to {}", address(24)?, address(8)?);
            if line.verbose() {
                options(line, data.skip(40))?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Shows the name of a message; the first bit of its code marks it as secured.
fn routing_on_lossy(line: &mut Line<'_>, code: u8) {
    let secured = if code & 0x80 == 0 { "CLR" } else { "SEC" };
    match names::find("rpl", code & 0x7f) {
        Some(name) => put!(line, ", ({secured}){name}"),
        None => put!(line, ", unknown-RPL-code {code}"),
    }
}

fn unreachable(line: &mut Line<'_>, code: u8, data: Data<'_>) -> Printed {
    const BEYOND_SCOPE: u8 = 2;
    const PORT: u8 = 4;
    let inner = data.skip(HEADER_LEN);
    // With two spaces, as in tcpdump.
    let space = if code == 1 { " " } else { "" };
    put!(line, ", {space}{}", names::text("icmpv6.unreachable", code));
    if code > PORT {
        return Ok(());
    }
    let to = inner.ip6(24)?;
    match code {
        BEYOND_SCOPE => {
            put!(line, " {to}, source address {}", inner.ip6(8)?);
        }
        PORT => {
            let (number, transport) = upper_layer(inner)?;
            let port = transport.u16(2)?;
            match number {
                protocol::TCP => put!(line, ", {to} tcp port {port}"),
                protocol::UDP => put!(line, ", {to} udp port {port}"),
                _ => put!(line, ", {to} protocol {number} port {port} unreachable"),
            }
        }
        _ => put!(line, " {to}"),
    }
    Ok(())
}

/// Returns the transport header of a packet, and its protocol.
fn upper_layer(packet: Data<'_>) -> Result<(u8, Data<'_>), Stop> {
    let mut number = packet.u8(6)?;
    let mut data = packet.skip(40);
    loop {
        let len = match number {
            protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS | protocol::ROUTING => {
                (usize::from(data.u8(1)?) + 1) * 8
            }
            protocol::FRAGMENT => 8,
            protocol::AUTHENTICATION => (usize::from(data.u8(1)?) + 2) * 4,
            _ => return Ok((number, data)),
        };
        number = data.u8(0)?;
        data = data.skip(len);
    }
}

fn router_advertisement(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    data.need(16)?;
    line.show(data, "\n\thop limit {u8 4}, Flags [{f8 5 icmpv6.router}], pref {n8 5>>3&3 icmpv6.preference}")?;
    line.show(data, ", router lifetime {u16 6}s, reachable time {u32 8}ms, retrans timer {u32 12}ms")?;
    options(line, data.skip(16))
}

fn listener_query(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let delay = floating(data.u16(4)?.into(), 12);
    if line.verbose() {
        put!(line, " [max resp delay={delay}]");
    }
    line.show(data, " [gaddr {ip6 8}")?;
    if line.verbose() {
        let (flags, interval) = (data.u8(24)?, floating(data.u8(25)?.into(), 4));
        if flags & 8 != 0 {
            put!(line, " sflag");
        }
        if flags & 7 != 0 {
            put!(line, " robustness={}", flags & 7);
        }
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
    /// Length of a record without its sources.
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
        let Some(len) = group_record(line, record, 16)? else {
            return Ok(());
        };
        record = record.skip(len);
    }
    Ok(())
}

/// Shows the options of neighbour discovery, whose lengths count units of eight bytes.
fn options(line: &mut Line<'_>, mut list: Data<'_>) -> Printed {
    while list.len > 0 {
        let (kind, words) = (list.u8(0)?, list.u8(1)?);
        let len = usize::from(words) * 8;
        if len == 0 || len > list.len {
            put!(line, " (invalid option length {len})");
            return Ok(());
        }
        let option = list.claimed(len);
        option.need(len)?;
        let name = names::of("icmpv6.option", kind);
        put!(line, "\n\t  {name} option ({kind}), length {len} ({words}): ");
        option_value(line, kind, option)?;
        list = list.skip(len);
    }
    Ok(())
}

fn option_value(line: &mut Line<'_>, kind: u8, option: Data<'_>) -> Printed {
    match kind {
        1 | 2 => put!(line, "{}", Colons(option.skip(2).bytes)),
        3 if option.len == 32 => {
            line.show(option, "{ip6 16}/{u8 2}, Flags [{f8 3 icmpv6.prefix}], valid time ")?;
            let (valid, preferred) = (lifetime(option.u32(4)?), lifetime(option.u32(8)?));
            put!(line, "{valid}, pref. time {preferred}");
        }
        5 => line.show(option, " {u32 4}")?,
        24 => {
            let mut prefix = [0; 16];
            let stored = option.skip(8).claimed(prefix.len()).bytes;
            prefix[..stored.len()].copy_from_slice(stored);
            put!(line, " {}", Ipv6Addr::from(prefix));
            line.show(option, "/{u8 2}, pref={n8 3>>3&3 icmpv6.preference}, lifetime=")?;
            put!(line, "{}", lifetime(option.u32(4)?));
        }
        25 => {
            line.show(option, " lifetime {u32 4}s,")?;
            for at in (8..option.len.saturating_sub(15)).step_by(16) {
                put!(line, " addr: {}", option.ip6(at)?);
            }
        }
        _ => line.dump("\n\t", option.skip(2).bytes),
    }
    Ok(())
}

fn lifetime(seconds: u32) -> String {
    match seconds {
        u32::MAX => "infinity".to_owned(),
        _ => format!("{seconds}s"),
    }
}
