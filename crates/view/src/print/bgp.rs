//! BGP messages in a segment; with `-v` what they say.

use super::line::{Data, Line, Printed, Stop, put};
use super::text::put_chars;
use super::{bgp_attributes, dump, names};

const HEADER_LEN: usize = 19;
const MARKER: [u8; 16] = [0xff; 16];

pub(super) fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "bgp";
    put!(line, ": BGP");
    if !line.verbose() {
        return Ok(());
    }
    let mut rest = data;
    while let Some(at) = rest
        .bytes
        .windows(MARKER.len())
        .position(|bytes| bytes == MARKER)
    {
        if at > 0 {
            put!(line, " [|bgp]");
        }
        rest = rest.skip(at);
        rest.need(HEADER_LEN)?;
        let (len, kind) = (usize::from(rest.u16(16)?), rest.u8(18)?);
        if len < HEADER_LEN {
            put!(line, "\nmessage length {len} < {HEADER_LEN}");
            return Err(Stop::Invalid);
        }
        let name = match kind {
            1 => "Open",
            2 => "Update",
            3 => "Notification",
            4 => "Keepalive",
            5 => "Route Refresh",
            _ => "Unknown",
        };
        if rest.bytes.len() < len {
            put!(line, "\n[|BGP {name}]");
            break;
        }
        put!(line, "\n\t{name} Message ({kind}), length: {len}");
        let message = rest.claimed(len).skip(HEADER_LEN);
        let printed = match kind {
            1 => open(line, message),
            2 => bgp_attributes::update(line, message),
            3 => notification(line, message),
            4 => Ok(()),
            5 => refresh(line, message),
            _ => {
                put!(line, "\n\t  no Message {kind} decoder");
                dump::hex(line.out, "\n\t  ", message.bytes);
                Ok(())
            }
        };
        // What is cut in one message says nothing of the next one.
        if printed.is_err() {
            put!(line, " [|bgp]");
        }
        rest = rest.skip(len);
    }
    Ok(())
}

pub(super) fn subsequent_family(number: u8) -> &'static str {
    match number {
        1 => "Unicast",
        2 => "Multicast",
        3 => "Unicast+Multicast",
        4 => "labeled Unicast",
        5 => "Multicast VPN",
        64 => "Tunnel",
        65 => "VPLS",
        66 => "MDT",
        70 => "EVPN",
        128 => "labeled VPN Unicast",
        129 => "labeled VPN Multicast",
        130 => "labeled VPN Unicast+Multicast",
        132 => "Route Target Routing Information",
        _ => "Unknown",
    }
}

/// `AFI IPv4 (1), SAFI Unicast (1)`
pub(super) fn put_families(line: &mut Line<'_>, family: u16, subsequent: u8) {
    put!(
        line,
        "AFI {} ({family}), SAFI {} ({subsequent})",
        names::address_family(family),
        subsequent_family(subsequent)
    );
}

fn open(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const OPEN_LEN: usize = 10;
    data.need(OPEN_LEN)?;
    put!(
        line,
        "\n\t  Version {}, my AS {}, Holdtime {}s, ID {}",
        data.u8(0)?,
        data.u16(1)?,
        data.u16(3)?,
        std::net::Ipv4Addr::from(data.u32(5)?)
    );
    let len = usize::from(data.u8(9)?);
    put!(line, "\n\t  Optional parameters, length: {len}");
    let mut rest = data.skip(OPEN_LEN);
    let mut left = len;
    while left > 0 {
        let (kind, len) = (rest.u8(0)?, usize::from(rest.u8(1)?));
        if len + 2 > left {
            put!(
                line,
                "\n\t     Option {kind}, length: {len}, goes past the end of the options"
            );
            break;
        }
        let name = match kind {
            1 => "Authentication Information",
            2 => "Capabilities Advertisement",
            _ => "Unknown",
        };
        put!(line, "\n\t    Option {name} ({kind}), length: {len}");
        match kind {
            2 => capabilities(line, rest.skip(2).claimed(len))?,
            _ => put!(line, "\n\t      no decoder for option {kind}"),
        }
        rest = rest.skip(2 + len);
        left -= 2 + len;
    }
    Ok(())
}

fn capabilities(line: &mut Line<'_>, mut rest: Data<'_>) -> Printed {
    while rest.len > 0 {
        let (kind, len) = (rest.u8(0)?, usize::from(rest.u8(1)?));
        let name = match kind {
            1 => "Multiprotocol Extensions",
            2 => "Route Refresh",
            3 => "Cooperative Route Filtering",
            5 => "Extended Next Hop Encoding",
            7 => "BGPsec",
            8 => "Multiple Labels",
            9 => "BGP Role",
            64 => "Graceful Restart",
            65 => "32-Bit AS Number",
            67 => "Dynamic Capability",
            68 => "Multi BGP Session",
            69 => "Multiple Paths",
            70 => "Enhanced Route Refresh",
            71 => "Long-lived Graceful Restart",
            128 => "Route Refresh (Cisco)",
            _ => "Unknown",
        };
        put!(line, "\n\t      {name} ({kind}), length: {len}");
        let value = Data {
            bytes: rest.slice(2, len)?,
            len,
        };
        let least = match kind {
            1 | 65 => 4,
            64 => 2,
            _ => 0,
        };
        if len < least {
            put!(line, " (too short, < {least})");
            return Ok(());
        }
        let shown = capability(line, kind, value)?;
        if line.options.verbosity > 1 && len > 0 || !shown {
            dump::hex(line.out, "\n\t\t", value.bytes);
        }
        rest = rest.skip(2 + len);
    }
    Ok(())
}

/// False if the bytes are to be shown.
fn capability(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> Result<bool, Stop> {
    match kind {
        1 => {
            put!(line, "\n\t\t");
            put_families(line, value.u16(0)?, value.u8(3)?);
        }
        64 => {
            let flags = value.u16(0)?;
            let restarted = if flags & 0x8000 != 0 { "R" } else { "none" };
            put!(
                line,
                "\n\t\tRestart Flags: [{restarted}], Restart Time {}s",
                flags & 0xfff
            );
            for entry in value.bytes[2..].chunks_exact(4) {
                put!(line, "\n\t\t  ");
                put_families(line, u16::from_be_bytes([entry[0], entry[1]]), entry[2]);
                let kept = if entry[3] & 0x80 != 0 { "yes" } else { "no" };
                put!(line, ", Forwarding state preserved: {kept}");
            }
        }
        2 | 71 | 128 => {}
        65 => put!(line, "\n\t\t 4 Byte AS {}", value.u32(0)?),
        69 if value.len == 0 => put!(line, " (bogus)"),
        69 | 8 => {
            let entries = value.bytes.chunks(4);
            for entry in entries {
                let [high, low, subsequent, last] = entry else {
                    if kind == 69 {
                        put!(line, " (invalid)");
                    }
                    break;
                };
                put!(line, "\n\t\t");
                put_families(line, u16::from_be_bytes([*high, *low]), *subsequent);
                match (kind, last) {
                    (8, count) => put!(line, ", Count: {count}"),
                    (_, 1) => put!(line, ", Send/Receive: Receive"),
                    (_, 2) => put!(line, ", Send/Receive: Send"),
                    (_, 3) => put!(line, ", Send/Receive: Both"),
                    (_, other) => put!(line, ", Send/Receive: Bogus (0x{other:02x})"),
                }
            }
        }
        _ => {
            put!(line, "\n\t\tno decoder for Capability {kind}");
            return Ok(false);
        }
    }
    Ok(true)
}

fn notification(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const SHUTDOWN: u8 = 2;
    const RESET: u8 = 4;
    let (major, minor) = (data.u8(0)?, data.u8(1)?);
    let name = match major {
        1 => "Message Header Error",
        2 => "OPEN Message Error",
        3 => "UPDATE Message Error",
        4 => "Hold timer expired",
        5 => "Finite State Machine Error",
        6 => "Cease",
        7 => "Capability Message Error",
        _ => "Unknown Error",
    };
    put!(line, ", {name} ({major})");
    let known: &[&str] = match major {
        1 => &[
            "",
            "Connection Not Synchronized",
            "Bad Message Length",
            "Bad Message Type",
        ],
        2 => &[
            "",
            "Unsupported Version Number",
            "Bad Peer AS",
            "Bad BGP Identifier",
            "Unsupported Optional Parameter",
            "Authentication Failure",
            "Unacceptable Hold Time",
            "Capability Message Error",
        ],
        3 => &[
            "",
            "Malformed Attribute List",
            "Unrecognized Well-known Attribute",
            "Missing Well-known Attribute",
            "Attribute Flags Error",
            "Attribute Length Error",
            "Invalid ORIGIN Attribute",
            "AS Routing Loop",
            "Invalid NEXT_HOP Attribute",
            "Optional Attribute Error",
            "Invalid Network Field",
            "Malformed AS_PATH",
        ],
        5 => &[
            "Unspecified Error",
            "In OpenSent State",
            "In OpenConfirm State",
            "In Established State",
        ],
        6 => &[
            "",
            "Maximum Number of Prefixes Reached",
            "Administrative Shutdown",
            "Peer Unconfigured",
            "Administrative Reset",
            "Connection Rejected",
            "Other Configuration Change",
            "Connection Collision Resolution",
        ],
        7 => &[
            "",
            "Invalid Action Value",
            "Invalid Capability Length",
            "Malformed Capability Value",
            "Unsupported Capability Code",
        ],
        _ => return Ok(()),
    };
    let subcode = known
        .get(usize::from(minor))
        .filter(|name| !name.is_empty())
        .unwrap_or(&"Unknown");
    let comma = if matches!(major, 5 | 7) { "" } else { "," };
    put!(line, "{comma} subcode {subcode} ({minor})");
    let rest = data.skip(2);
    if major != 6 {
        return Ok(());
    }
    if minor == 1 && rest.len >= 7 {
        put!(line, ", ");
        put_families(line, rest.u16(0)?, rest.u8(2)?);
        put!(line, ", Max Prefixes: {}", rest.u32(3)?);
    }
    if matches!(minor, SHUTDOWN | RESET) && rest.len >= 1 {
        let len = usize::from(rest.u8(0)?);
        let mut at = 0;
        if len > rest.len - 1 {
            put!(line, ", invalid Shutdown Communication length");
        } else if len == 0 {
            put!(line, ", empty Shutdown Communication");
            at = 1;
        } else {
            put!(line, ", Shutdown Communication (length: {len}): \"");
            put_chars(line, rest.slice(1, len)?);
            put!(line, "\"");
            at = 1 + len;
        }
        let left = rest.skip(at);
        if left.len > 0 {
            put!(line, ", Data: (length: {})", left.len);
            dump::hex(line.out, "\n\t\t", left.bytes);
        }
    }
    Ok(())
}

fn refresh(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    data.need(4)?;
    put!(line, "\n\t  ");
    put_families(line, data.u16(0)?, data.u8(3)?);
    if line.options.verbosity > 1 {
        dump::hex(line.out, "\n\t  ", data.bytes);
    }
    Ok(())
}
