//! ICMP, with the extensions after the packet that errors quote (RFC 4884, and the MPLS label stacks of RFC 4950).

use std::net::Ipv4Addr;
use trawl_packet::net::protocol;

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::network::Ip;
use crate::print::{ipv4, names};
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

pub fn print(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
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
            let right = sum.should_be(stored);
            put!(line, " (wrong icmp cksum {stored:x} (->{right:x})!)");
        }
    }
    if matches!(kind, UNREACHABLE | 4 | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM) {
        let inner = data.skip(HEADER_LEN);
        // The quoted packet is cut on purpose, so its own length counts.
        let claimed = inner.u16(2).map_or(inner.len, usize::from);
        put!(line, "\n\t");
        let whole = Data { bytes: inner.bytes, len: inner.len.max(claimed) };
        ipv4::print(line, whole)?;
        if matches!(kind, UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM) {
            extensions(line, data)?;
        }
    }
    Ok(())
}

/// Returns the text of the message, without the length.
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
            let (destination, gateway) = (inner_destination(data)?, data.ip4(4)?);
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
            format!("time stamp reply id {id} seq {seq}: org {sent}, recv {received}, xmit {answered}")
        }
        15 => "information request".into(),
        16 => "information reply".into(),
        17 => "address mask request".into(),
        MASK_REPLY => format!("address mask is 0x{:08x}", data.u32(8)?),
        _ => format!("type-#{kind}"),
    })
}

/// Returns the destination of the packet inside the message.
fn inner_destination(data: Data<'_>) -> Result<Ipv4Addr, Stop> {
    data.ip4(HEADER_LEN + 16)
}

fn unreachable(data: Data<'_>, code: u8) -> Result<String, Stop> {
    const PROTOCOL: u8 = 2;
    const PORT: u8 = 3;
    const TOO_BIG: u8 = 4;
    let to = inner_destination(data)?;
    let inner = data.skip(HEADER_LEN);
    let number = inner.u8(9)?;
    Ok(match code {
        PROTOCOL => format!("{to} protocol {number} unreachable"),
        PORT => {
            let header_len = usize::from(inner.u8(0)? & 0xf) * 4;
            let port = inner.u16(header_len + 2)?;
            match number {
                protocol::TCP => format!("{to} tcp port {port} unreachable"),
                protocol::UDP => format!("{to} udp port {port} unreachable"),
                _ => format!("{to} protocol {number} port {port} unreachable"),
            }
        }
        TOO_BIG => match data.u16(6)? {
            0 => format!("{to} unreachable - need to frag"),
            mtu => format!("{to} unreachable - need to frag (mtu {mtu})"),
        },
        _ => {
            let scope = match code {
                0 | 6 | 9 | 11 => "net ",
                1 | 7 | 10 | 12..=15 => "host ",
                _ => "",
            };
            match (code, names::find("icmp.unreachable", code)) {
                (0 | 1, _) => format!("{scope}{to} unreachable"),
                (_, Some(why)) => format!("{scope}{to} unreachable - {why}"),
                (_, None) => format!("{to} unreachable - #{code}"),
            }
        }
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
        let router = data.ip4(at)?;
        text.push_str(&format!(" {{{router} {}}}", data.u32(at + 4)?));
    }
    Ok(text)
}

/// Formats milliseconds since midnight.
fn time_of_day(milliseconds: u32) -> String {
    let seconds = milliseconds / 1000;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{:03}", seconds % 60, milliseconds % 1000)
}

/// Shows the objects after the packet that a message quotes, if present.
fn extensions(line: &mut Line<'_>, message: Data<'_>) -> Printed {
    /// Start of extensions: after 128 bytes of the packet that is quoted.
    const AT: usize = 136;
    const HEADER_LEN: usize = 4;
    const VERSION: u8 = 2;
    line.protocol = "icmp";
    if message.len <= AT {
        return Ok(());
    }
    message.need(AT + HEADER_LEN + 1)?;
    let data = message.skip(AT);
    let is_whole = data.bytes.len() >= data.len;
    let is_correct = || Sum::default().add(&data.bytes[..data.len]).finish() == 0;
    // Many routers leave the length of the quoted packet empty.
    let says_length = message.u8(5)? != 0;
    if !says_length && is_whole && !is_correct() {
        return Ok(());
    }
    let version = data.u8(0)? >> 4;
    put!(line, "\n\tICMP Multi-Part extension v{version}");
    if version != VERSION {
        put!(line, " packet not supported");
        return Ok(());
    }
    if is_whole {
        let (checksum, len) = (data.u16(2)?, data.len);
        let not = if is_correct() { "" } else { "in" };
        put!(line, ", checksum 0x{checksum:04x} ({not}correct), length {len}");
    }
    let mut objects = data.skip(HEADER_LEN);
    while objects.len > HEADER_LEN {
        objects.need(HEADER_LEN)?;
        let (len, class, kind) = (usize::from(objects.u16(0)?), objects.u8(2)?, objects.u8(3)?);
        let name = names::of("icmp.object", class);
        put!(line, "\n\t  {name} Object ({class}), Class-Type: {kind}, length {len}");
        let Some(value_len) = len.checked_sub(HEADER_LEN).filter(|_| class != 0) else {
            return Ok(());
        };
        let value = objects.skip(HEADER_LEN);
        if (class, kind) == (1, 1) {
            // The first entry is always shown, as in tcpdump.
            for at in (0..value_len.max(4)).step_by(4) {
                let entry = value.u32(at)?;
                let bottom = if entry & 0x100 != 0 { ", [S]" } else { "" };
                put!(line, "\n\t    label {}, tc {}{bottom}", entry >> 12, entry >> 9 & 7);
                put!(line, ", ttl {}", entry & 0xff);
            }
        } else {
            line.dump("\n\t    ", value.claimed(value_len).bytes);
        }
        if value.len < value_len {
            break;
        }
        objects = value.skip(value_len);
    }
    Ok(())
}
