//! What OSPF's opaque advertisements hold: traffic engineering (RFC 3630, RFC 4203), graceful restart (RFC 3623) and the
//! router's information (RFC 7770).

use std::net::Ipv4Addr;

use super::dump;
use super::line::{Data, Line, Stop, flag_names, put};

const HEADER_LEN: usize = 4;
const TRAFFIC: u8 = 1;
const GRACE: u8 = 3;
const ROUTER_INFORMATION: u8 = 4;

/// What ends an advertisement before its length does: said already, and no reason to leave out the next one.
enum End {
    Told,
    Invalid,
    Cut,
}

impl From<Stop> for End {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Cut => Self::Cut,
            Stop::Invalid => Self::Invalid,
        }
    }
}

pub(super) fn print(line: &mut Line<'_>, kind: u8, data: Data<'_>) -> Result<(), Stop> {
    let shown = match kind {
        TRAFFIC => traffic(line, data),
        GRACE => grace(line, data),
        ROUTER_INFORMATION => router_information(line, data),
        _ => {
            if line.options.verbosity <= 1 {
                dump::hex(line.out, "\n\t    ", data.bytes);
            }
            Ok(())
        }
    };
    match shown {
        Ok(()) => {
            if line.options.verbosity > 1 {
                dump::hex(line.out, "\n\t    ", data.bytes);
            }
        }
        Err(End::Told) => {}
        Err(End::Invalid) => put!(line, " (invalid)"),
        Err(End::Cut) => return Err(Stop::Cut),
    }
    Ok(())
}

fn told<T>(line: &mut Line<'_>, words: std::fmt::Arguments<'_>) -> Result<T, End> {
    put!(line, "\n\t    {words}");
    Err(End::Told)
}

/// Type and length of what comes next; its value may be longer than what is left.
fn head(line: &mut Line<'_>, data: Data<'_>) -> Result<(u16, usize), End> {
    let (kind, len) = (data.u16(0)?, data.u16(2)?);
    if data.len < HEADER_LEN {
        return told(line, format_args!("Remaining LS length {} < 4", data.len));
    }
    Ok((kind, len.into()))
}

fn unknown(line: &mut Line<'_>, before: &str, value: &[u8]) {
    if line.options.verbosity <= 1 {
        dump::hex(line.out, before, value);
    }
}

fn router_information(line: &mut Line<'_>, mut rest: Data<'_>) -> Result<(), End> {
    const CAPABILITIES: [(u32, &str); 10] = [
        (1, "Reserved"),
        (2, "Reserved"),
        (4, "Reserved"),
        (8, "Reserved"),
        (16, "graceful restart capable"),
        (32, "graceful restart helper"),
        (64, "Stub router support"),
        (128, "Traffic engineering"),
        (256, "p2p over LAN"),
        (512, "path computation server"),
    ];
    while rest.len > 0 {
        let (kind, len) = head(line, rest)?;
        let name = if kind == 1 {
            "Router Capabilities"
        } else {
            "unknown"
        };
        put!(line, "\n\t    {name} TLV ({kind}), length: {len}, value: ");
        rest = rest.skip(HEADER_LEN);
        if len > rest.len {
            let left = rest.len;
            return told(
                line,
                format_args!("Bogus length {len} > remaining LS length {left}"),
            );
        }
        let value = rest.slice(0, len)?;
        match kind {
            1 if len != 4 => return told(line, format_args!("Bogus length {len} != 4")),
            1 => {
                let set = match rest.u32(0)? {
                    flags if flags & 0x3ff == 0 => "Unknown".to_owned(),
                    flags => flag_names(flags, &CAPABILITIES, ", "),
                };
                put!(line, "Capabilities: {set}");
            }
            _ => unknown(line, "\n\t      ", value),
        }
        rest = rest.skip(len);
    }
    Ok(())
}

fn grace(line: &mut Line<'_>, mut rest: Data<'_>) -> Result<(), End> {
    while rest.len > 0 {
        let (kind, len) = head(line, rest)?;
        let name = match kind {
            1 => "Grace Period",
            2 => "Graceful restart Reason",
            3 => "IPv4 interface address",
            _ => "unknown",
        };
        put!(line, "\n\t    {name} TLV ({kind}), length {len}, value: ");
        rest = rest.skip(HEADER_LEN);
        if len > rest.len {
            let left = rest.len;
            return told(line, format_args!("Bogus length {len} > {left}"));
        }
        if kind == 0 || len == 0 {
            return Err(End::Told);
        }
        let value = rest.slice(0, len)?;
        let right = if kind == 2 { 1 } else { 4 };
        if (1..=3).contains(&kind) && len != right {
            return told(line, format_args!("Bogus length {len} != {right}"));
        }
        match kind {
            1 => put!(line, "{}s", rest.u32(0)?),
            2 => {
                let reason = rest.u8(0)?;
                let name = match reason {
                    1 => "Software Restart",
                    2 => "Software Reload/Upgrade",
                    3 => "Control Processor Switch",
                    _ => "Unknown",
                };
                put!(line, "{name} ({reason})");
            }
            3 => put!(line, "{}", Ipv4Addr::from(rest.u32(0)?)),
            _ => unknown(line, "\n\t      ", value),
        }
        rest = rest.skip(len.next_multiple_of(4));
    }
    Ok(())
}

fn traffic(line: &mut Line<'_>, mut rest: Data<'_>) -> Result<(), End> {
    while rest.len > 0 {
        let (kind, len) = head(line, rest)?;
        let name = match kind {
            1 => "Router Address",
            2 => "Link",
            _ => "unknown",
        };
        put!(line, "\n\t    {name} TLV ({kind}), length: {len}");
        rest = rest.skip(HEADER_LEN);
        if len > rest.len {
            let left = rest.len;
            return told(line, format_args!("Bogus length {len} > {left}"));
        }
        if kind == 0 || len == 0 {
            return Err(End::Told);
        }
        match kind {
            1 if len < 4 => return told(line, format_args!("TLV length {len} < 4")),
            1 => put!(line, ", {}", Ipv4Addr::from(rest.u32(0)?)),
            2 => link(line, rest.claimed(len))?,
            _ => unknown(line, "\n\t      ", rest.slice(0, len)?),
        }
        let padded = len.next_multiple_of(4);
        if padded > rest.len {
            let left = rest.len;
            return told(line, format_args!("Bogus padded length {padded} > {left}"));
        }
        rest = rest.skip(padded);
    }
    Ok(())
}

fn link(line: &mut Line<'_>, mut rest: Data<'_>) -> Result<(), End> {
    while rest.len > 0 {
        if rest.len < HEADER_LEN {
            return told(line, format_args!("Remaining TLV length {} < 4", rest.len));
        }
        let (kind, len) = (rest.u16(0)?, usize::from(rest.u16(2)?));
        if kind == 0 || len == 0 {
            return Err(End::Invalid);
        }
        let name = match kind {
            1 => "Link Type",
            2 => "Link ID",
            3 => "Local Interface IP address",
            4 => "Remote Interface IP address",
            5 => "Traffic Engineering Metric",
            6 => "Maximum Bandwidth",
            7 => "Maximum Reservable Bandwidth",
            8 => "Unreserved Bandwidth",
            9 => "Administrative Group",
            11 => "Link Local/Remote Identifier",
            14 => "Link Protection Type",
            15 => "Interface Switching Capability",
            16 => "Shared Risk Link Group",
            17 => "Bandwidth Constraints",
            _ => "unknown",
        };
        put!(line, "\n\t      {name} subTLV ({kind}), length: {len}");
        let padded = len.next_multiple_of(4);
        let short = |len| format!("Remaining TLV length {} < {}", rest.len, len + HEADER_LEN);
        if rest.len < HEADER_LEN + len {
            return told(line, format_args!("{}", short(len)));
        }
        let value = rest.skip(HEADER_LEN);
        value.need(len)?;
        link_value(line, kind, value.claimed(len))?;
        if rest.len < HEADER_LEN + padded {
            return told(line, format_args!("{}", short(padded)));
        }
        rest = rest.skip(HEADER_LEN + padded);
    }
    Ok(())
}

/// A rate that is stored as bytes a second.
fn megabits(value: Data<'_>, at: usize) -> Result<f64, Stop> {
    Ok(f64::from(f32::from_bits(value.u32(at)?) * 8.0 / 1e6))
}

fn link_value(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> Result<(), End> {
    let wrong = match (kind, value.len) {
        (1, 1) | (3..=7 | 9 | 14, 4) | (2 | 11, 4 | 8) | (8, 32) => None,
        (1, _) => Some("!= 1"),
        (3..=7 | 9 | 14, _) => Some("!= 4"),
        (2 | 11, _) => Some("!= 4 && != 8"),
        (8, _) => Some("!= 32"),
        (15, 0..=35) => Some("< 36"),
        (16, len) if len % 4 != 0 => Some("!= N x 4"),
        (17, 0..=3) => Some("< 4"),
        _ => None,
    };
    if let Some(wrong) = wrong {
        put!(line, " {wrong}");
        return Err(End::Invalid);
    }
    match kind {
        1 => {
            let number = value.u8(0)?;
            let name = match number {
                1 => "Point-to-point",
                2 => "Multi-Access",
                _ => "unknown",
            };
            put!(line, ", {name} ({number})");
        }
        2 | 11 => {
            for at in (0..value.len).step_by(4) {
                let number = value.u32(at)?;
                put!(line, ", {} (0x{number:08x})", Ipv4Addr::from(number));
            }
        }
        3 | 4 => put!(line, ", {}", Ipv4Addr::from(value.u32(0)?)),
        5 => put!(line, ", Metric {}", value.u32(0)?),
        6 | 7 => put!(line, ", {:.3} Mbps", megabits(value, 0)?),
        8 => {
            for class in 0..8 {
                let rate = megabits(value, class * 4)?;
                put!(line, "\n\t\tTE-Class {class}: {rate:.3} Mbps");
            }
        }
        9 => put!(line, ", 0x{:08x}", value.u32(0)?),
        14 => put!(line, ", {}", protection(value.u8(0)?)),
        15 => switching(line, value)?,
        16 => {
            let groups = (0..value.len).step_by(4).map(|at| value.u32(at));
            let groups: Result<Vec<String>, Stop> =
                groups.map(|group| Ok(group?.to_string())).collect();
            put!(line, "\n\t\t  Shared risk group: {}", groups?.join(", "));
        }
        17 => constraints(line, value)?,
        _ => unknown(line, "\n\t\t", value.bytes),
    }
    Ok(())
}

fn protection(flags: u8) -> String {
    const KINDS: [(u32, &str); 8] = [
        (0x01, "Extra Traffic"),
        (0x02, "Unprotected"),
        (0x04, "Shared"),
        (0x08, "Dedicated 1:1"),
        (0x10, "Dedicated 1+1"),
        (0x20, "Enhanced"),
        (0x40, "Reserved"),
        (0x80, "Reserved"),
    ];
    flag_names(flags.into(), &KINDS, ", ")
}

fn switching(line: &mut Line<'_>, value: Data<'_>) -> Result<(), Stop> {
    let capability = match value.u8(0)? {
        1 => "Packet-Switch Capable-1",
        2 => "Packet-Switch Capable-2",
        3 => "Packet-Switch Capable-3",
        4 => "Packet-Switch Capable-4",
        51 => "Layer-2 Switch Capable",
        100 => "Time-Division-Multiplex",
        150 => "Lambda-Switch Capable",
        200 => "Fiber-Switch Capable",
        _ => "Unknown",
    };
    let encoding = match value.u8(1)? {
        1 => "Packet",
        2 => "Ethernet V2/DIX",
        3 => "ANSI/ETSI PDH",
        4 | 6 | 10 => "Reserved",
        5 => "SDH ITU-T G.707/SONET ANSI T1.105",
        7 => "Digital Wrapper",
        8 => "Lambda (photonic)",
        9 => "Fiber",
        11 => "FiberChannel",
        _ => "Unknown",
    };
    put!(
        line,
        "\n\t\tInterface Switching Capability: {capability}\n\t\tLSP Encoding: {encoding}\n\t\tMax LSP Bandwidth:"
    );
    for level in 0..8 {
        let rate = megabits(value, 4 + level * 4)?;
        put!(line, "\n\t\t  priority level {level}: {rate:.3} Mbps");
    }
    Ok(())
}

fn constraints(line: &mut Line<'_>, value: Data<'_>) -> Result<(), End> {
    let model = value.u8(0)?;
    let name = match model {
        0 => "Russian dolls",
        1 => "Maximum allocation",
        2 => "Maximum allocation with E-LSP support",
        _ => "unknown",
    };
    put!(
        line,
        "\n\t\tBandwidth Constraints Model ID: {name} ({model})"
    );
    let len = value.len;
    if !len.is_multiple_of(4) {
        put!(line, "\n\t\tlength {len} != N x 4");
        return Err(End::Invalid);
    }
    if len > 36 {
        put!(line, "\n\t\tlength {len} > 36");
        return Err(End::Invalid);
    }
    for class in 0..(len - 4) / 4 {
        let rate = megabits(value, 4 + class * 4)?;
        put!(
            line,
            "\n\t\t  Bandwidth constraint CT{class}: {rate:.3} Mbps"
        );
    }
    Ok(())
}
