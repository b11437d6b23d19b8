//! ICMP.

use std::net::Ipv4Addr;

use super::line::{Data, Line, Printed, Stop, put};
use super::protocol::Ip;
use super::{icmp_extensions, ipv4, names};
use trawl_packet::checksum::Sum;

const HEADER_LEN: usize = 8;
const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const REDIRECT: u8 = 5;
const ECHO: u8 = 8;
const ROUTER_ADVERTISEMENT: u8 = 9;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;
const TIMESTAMP: u8 = 13;
const TIMESTAMP_REPLY: u8 = 14;
const MASK_REPLY: u8 = 18;

pub(super) fn print(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
    line.protocol = "icmp";
    let kind = data.u8(0)?;
    let text = message(data)?;
    put!(line, "ICMP {text}, length {}", data.len);
    if !line.verbose() {
        return Ok(());
    }
    if !ip.fragmented && data.bytes.len() == data.len {
        let sum = Sum::default().add(data.bytes);
        let stored = data.u16(2)?;
        if sum.finish() != 0 {
            put!(
                line,
                " (wrong icmp cksum {stored:x} (->{:x})!)",
                sum.should_be(stored)
            );
        }
    }
    if matches!(
        kind,
        UNREACHABLE | 4 | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM
    ) {
        let inner = data.skip(HEADER_LEN);
        // The packet is cut on purpose: by its own length nothing is missing.
        let claimed = inner.u16(2).map_or(inner.len, usize::from);
        put!(line, "\n\t");
        let whole = Data {
            bytes: inner.bytes,
            len: inner.len.max(claimed),
        };
        ipv4::print(line, whole)?;
        if matches!(kind, UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM) {
            icmp_extensions::print(line, data)?;
        }
    }
    Ok(())
}

/// What the message says, without the length.
fn message(data: Data<'_>) -> Result<String, Stop> {
    let (kind, code) = (data.u8(0)?, data.u8(1)?);
    Ok(match kind {
        ECHO | ECHO_REPLY => {
            let name = if kind == ECHO { "request" } else { "reply" };
            format!("echo {name}, id {}, seq {}", data.u16(4)?, data.u16(6)?)
        }
        UNREACHABLE => unreachable(data, code)?,
        4 => "source quench".into(),
        REDIRECT => {
            let (destination, gateway) = (inner_destination(data)?, Ipv4Addr::from(data.array(4)?));
            match code {
                0 => format!("redirect {destination} to net {gateway}"),
                1 => format!("redirect {destination} to host {gateway}"),
                2 => format!("redirect-tos {destination} to net {gateway}"),
                3 => format!("redirect-tos {destination} to host {gateway}"),
                _ => format!("redirect-#{code} {destination} to net {gateway}"),
            }
        }
        ROUTER_ADVERTISEMENT => router_advertisement(data)?,
        10 => "router solicitation".into(),
        TIME_EXCEEDED => {
            inner_destination(data)?;
            match code {
                0 => "time exceeded in-transit".into(),
                1 => "ip reassembly time exceeded".into(),
                _ => format!("time exceeded-#{code}"),
            }
        }
        PARAMETER_PROBLEM if code != 0 => format!("parameter problem - code {code}"),
        PARAMETER_PROBLEM => format!("parameter problem - octet {}", data.u8(4)?),
        TIMESTAMP => format!("time stamp query id {} seq {}", data.u16(4)?, data.u16(6)?),
        TIMESTAMP_REPLY => {
            let time = |at| data.u32(at).map(time_of_day);
            let (id, seq) = (data.u16(4)?, data.u16(6)?);
            let (sent, received, answered) = (time(8)?, time(12)?, time(16)?);
            format!(
                "time stamp reply id {id} seq {seq}: org {sent}, recv {received}, xmit {answered}"
            )
        }
        15 => "information request".into(),
        16 => "information reply".into(),
        17 => "address mask request".into(),
        MASK_REPLY => format!("address mask is 0x{:08x}", data.u32(8)?),
        _ => format!("type-#{kind}"),
    })
}

/// Where the packet inside the message was going.
fn inner_destination(data: Data<'_>) -> Result<Ipv4Addr, Stop> {
    data.array(HEADER_LEN + 16).map(Ipv4Addr::from)
}

fn unreachable(data: Data<'_>, code: u8) -> Result<String, Stop> {
    const PROTOCOL: u8 = 2;
    const PORT: u8 = 3;
    const TOO_BIG: u8 = 4;
    let to = inner_destination(data)?;
    let inner = data.skip(HEADER_LEN);
    let number = inner.u8(9)?;
    Ok(match code {
        0 => format!("net {to} unreachable"),
        1 => format!("host {to} unreachable"),
        PROTOCOL => format!("{to} protocol {number} unreachable"),
        PORT => {
            let header_len = usize::from(inner.u8(0)? & 0xf) * 4;
            let port = inner.u16(header_len + 2)?;
            match number {
                names::TCP => format!("{to} tcp port {port} unreachable"),
                names::UDP => format!("{to} udp port {port} unreachable"),
                _ => format!("{to} protocol {number} port {port} unreachable"),
            }
        }
        TOO_BIG => match data.u16(6)? {
            0 => format!("{to} unreachable - need to frag"),
            mtu => format!("{to} unreachable - need to frag (mtu {mtu})"),
        },
        5 => format!("{to} unreachable - source route failed"),
        6 => format!("net {to} unreachable - unknown"),
        7 => format!("host {to} unreachable - unknown"),
        8 => format!("{to} unreachable - source host isolated"),
        9 => format!("net {to} unreachable - admin prohibited"),
        10 => format!("host {to} unreachable - admin prohibited"),
        11 => format!("net {to} unreachable - tos prohibited"),
        12 => format!("host {to} unreachable - tos prohibited"),
        13 => format!("host {to} unreachable - admin prohibited filter"),
        14 => format!("host {to} unreachable - host precedence violation"),
        15 => format!("host {to} unreachable - precedence cutoff"),
        _ => format!("{to} unreachable - #{code}"),
    })
}

fn router_advertisement(data: Data<'_>) -> Result<String, Stop> {
    let (count, entry_words, lifetime) = (data.u8(4)?, data.u8(5)?, data.u16(6)?);
    let (hours, minutes, seconds) = (lifetime / 3600, lifetime / 60 % 60, lifetime % 60);
    let lifetime = match (hours, minutes) {
        (0, 0) => format!("{seconds}"),
        (0, _) => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    };
    let mut text = format!("router advertisement lifetime {lifetime} {count}:");
    if entry_words != 2 {
        text.push_str(&format!(" [size {entry_words}]"));
        return Ok(text);
    }
    for index in 0..usize::from(count) {
        let at = HEADER_LEN + index * 8;
        let router = Ipv4Addr::from(data.array(at)?);
        text.push_str(&format!(" {{{router} {}}}", data.u32(at + 4)?));
    }
    Ok(text)
}

/// Milliseconds since midnight.
fn time_of_day(milliseconds: u32) -> String {
    let seconds = milliseconds / 1000;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!(
        "{hours:02}:{minutes:02}:{:02}.{:03}",
        seconds % 60,
        milliseconds % 1000
    )
}
