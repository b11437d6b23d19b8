//! DHCPv6: the message; with `-v` its options.

use crate::print::line::{Data, Layout, Line, Printed, Tlvs, put};
use crate::print::{dns, names};

const OPTION_HEADER_LEN: usize = 4;

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "dhcp6";
    put!(line, "dhcp6");
    data.need(4)?;
    let kind = data.u8(0)?;
    put!(line, " {}", names::text("dhcp6.message", kind));
    if !line.verbose() {
        return Ok(());
    }
    put!(line, " (");
    if matches!(kind, 12 | 13) {
        line.show(data, "linkaddr={ip6 2}")?;
        line.show(data, " peeraddr={ip6 18}")?;
        options(line, data.skip(34));
    } else {
        line.show(data, "xid={h24 1}")?;
        options(line, data.skip(4));
    }
    put!(line, ")");
    Ok(())
}

/// Shows options. A list that is cut is marked as such, and the enclosing option goes on.
fn options(line: &mut Line<'_>, data: Data<'_>) {
    // tcpdump treats the end of the captured bytes as the end of the options.
    let mut list = Tlvs::new(data.claimed(data.bytes.len()), Layout::WORDS);
    while list.rest.len > 0 {
        let shown = list.next().and_then(|tlv| {
            let Some(tlv) = tlv else { return Ok(()) };
            let value = Data::from(tlv.bytes()?);
            put!(line, " ({}", names::text("dhcp6.option", tlv.kind));
            // Relayed messages and identity associations hold options of their own.
            line.nested(|line| option(line, tlv.kind, value))
        });
        if shown.is_err() {
            put!(line, " [|dhcp6]");
            return;
        }
    }
}

fn option(line: &mut Line<'_>, code: u16, value: Data<'_>) -> Printed {
    let least = match code {
        1 | 2 | 13 => 2,
        3 | 25 => 12,
        4 | 37 | 56 => 4,
        5 => 24,
        11 => 11,
        47 => 16,
        26 => 25,
        41 | 42 | 112 => 5,
        44 => 17,
        64 => 3,
        _ => 0,
    };
    let fits = match code {
        6 => value.len.is_multiple_of(2),
        22 | 23 | 27 | 28 | 31 | 34 | 40 | 48 => value.len.is_multiple_of(16),
        7 | 19 => value.len == 1,
        8 => value.len == 2,
        12 => value.len == 16,
        32 | 46 => value.len == 4,
        _ => true,
    };
    if value.len < least || !fits {
        put!(line, " ?)");
        return Ok(());
    }
    match code {
        1 | 2 => return duid(line, value),
        3 | 25 => {
            line.show(value, " IAID:{u32 0} T1:{u32 4} T2:{u32 8}")?;
            options(line, value.skip(12));
        }
        4 => {
            line.show(value, " IAID:{u32 0}")?;
            options(line, value.skip(4));
        }
        5 => {
            line.show(value, " {ip6 0}")?;
            lifetimes(line, value, 16)?;
            options(line, value.skip(24));
        }
        6 => {
            for code in value.bytes.chunks_exact(2) {
                let code = u16::from_be_bytes([code[0], code[1]]);
                put!(line, " {}", names::text("dhcp6.option", code));
            }
        }
        7 => line.show(value, " {u8 0}")?,
        8 => line.show(value, " {u16 0}")?,
        9 => {
            put!(line, " (");
            print(line, value)?;
            put!(line, ")");
            return Ok(());
        }
        11 => return authentication(line, value),
        12 | 22 | 23 | 27 | 28 | 31 | 34 | 40 | 48 => {
            for at in (0..value.len).step_by(16) {
                put!(line, " {}", value.ip6(at)?);
            }
        }
        13 => line.show(value, " {n16 0 dhcp6.status}")?,
        18 | 38 => {
            put!(line, " ");
            shortened(line, value.bytes);
        }
        19 => line.show(value, " for {n8 0 dhcp6.reconfigure}")?,
        21 | 24 => {
            let mut at = 0;
            while at < value.len {
                put!(line, " ");
                at = dns::put_name(line, value, at)?;
            }
        }
        26 => {
            line.show(value, " {ip6 9}/{u8 8}")?;
            lifetimes(line, value, 0)?;
            options(line, value.skip(25));
        }
        32 | 46 => line.show(value, " {u32 0}")?,
        37 => {
            line.show(value, " {u32 0} ")?;
            shortened(line, &value.bytes[4..]);
        }
        44 => {
            line.show(value, " {n8 0 dhcp6.query}")?;
            line.show(value, " {ip6 1}")?;
            options(line, value.skip(17));
        }
        45 => options(line, value),
        47 => {
            line.show(value, " {ip6 0} ")?;
            shortened(line, &value.bytes[16..]);
        }
        56 => time_servers(line, value)?,
        64 => tunnel_end(line, value)?,
        41 | 42 | 112 => {
            put!(line, " ");
            line.put_string(value.bytes);
        }
        _ => {}
    }
    put!(line, ")");
    Ok(())
}

fn lifetimes(line: &mut Line<'_>, value: Data<'_>, at: usize) -> Printed {
    line.show(value.skip(at), " pltime:{u32 0} vltime:{u32 4}")
}

/// Shows ten bytes at most.
fn shortened(line: &mut Line<'_>, bytes: &[u8]) {
    line.put_hex(&bytes[..bytes.len().min(10)]);
    put!(line, "...");
}

fn duid(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let kind = value.u16(0)?;
    let least = match kind {
        1 => 8,
        2 => 6,
        3 => 4,
        _ => 0,
    };
    if value.len < least {
        put!(line, " ?)");
        return Ok(());
    }
    match kind {
        1 => {
            line.show(value, " hwaddr/time type {u16 2} time {u32 4} ")?;
            line.put_hex(&value.bytes[8..]);
        }
        2 => {
            put!(line, " vid ");
            line.put_hex(value.slice(2, value.len.min(10) - 2)?);
        }
        3 => {
            line.show(value, " hwaddr type {u16 2} ")?;
            line.put_hex(&value.bytes[4..]);
        }
        _ => put!(line, " type {kind}"),
    }
    put!(line, ")");
    Ok(())
}

fn authentication(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let (protocol, algorithm, method) = (value.u8(0)?, value.u8(1)?, value.u8(2)?);
    put!(line, " proto: {}", names::text("dhcp6.protocol", protocol));
    put!(line, ", alg: {}", names::text("dhcp6.algorithm", algorithm));
    put!(line, ", RDM: {}", names::text("dhcp6.method", method));
    line.show(value, ", RD: {x16 3} {x16 5} {x16 7} {x16 9}")?;
    let rest = value.skip(11);
    let words = |line: &mut Line<'_>, bytes: &[u8]| {
        for word in bytes.chunks_exact(4) {
            put!(line, " ");
            line.put_hex(word);
        }
    };
    match protocol {
        2 if rest.len < 20 => put!(line, " ??"),
        2 => {
            let realm = rest.len - 20;
            if realm > 0 {
                put!(line, ", realm: ");
                line.put_hex(rest.slice(0, realm)?);
            }
            put!(line, ", key ID: {:08x}, HMAC-MD5:", rest.u32(realm)?);
            words(line, rest.slice(realm + 4, 16)?);
        }
        3 if rest.len != 17 => put!(line, " ??"),
        3 => {
            line.show(rest, " {n8 0 dhcp6.key}")?;
            put!(line, " value:");
            words(line, rest.slice(1, 16)?);
        }
        _ if rest.len > 0 => put!(line, " ??"),
        _ => {}
    }
    put!(line, ")");
    Ok(())
}

fn time_servers(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let mut list = Tlvs::new(value, Layout::WORDS);
    while list.rest.len > OPTION_HEADER_LEN {
        let tlv = list.take()?;
        let server = Data::from(tlv.bytes()?);
        put!(line, " subopt:{}", tlv.kind);
        match tlv.kind {
            1 | 2 if tlv.len == 16 => line.show(server, " {ip6 0}")?,
            3 => {
                put!(line, " ");
                dns::put_name(line, server, 0)?;
            }
            _ => put!(line, " ?"),
        }
    }
    Ok(())
}

fn tunnel_end(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    put!(line, " ");
    let mut rest = value;
    while rest.len > 0 && rest.u8(0)? != 0 {
        let len = usize::from(rest.u8(0)?);
        if len >= rest.len - 1 {
            put!(line, " ?");
            break;
        }
        line.put_string(rest.slice(1, len)?);
        rest = rest.skip(1 + len);
        if rest.u8(0)? != 0 {
            put!(line, ".");
        }
    }
    Ok(())
}
