//! DHCPv6: the message; with `-v` its options.

use std::net::Ipv6Addr;

use super::dns;
use super::line::{Data, Line, Printed, Stop, put};
use super::text::put_string;

const OPTION_HEADER_LEN: usize = 4;

const OPTIONS: [&str; 52] = [
    "",
    "client-ID",
    "server-ID",
    "IA_NA",
    "IA_TA",
    "IA_ADDR",
    "option-request",
    "preference",
    "elapsed-time",
    "relay-message",
    "",
    "authentication",
    "server-unicast",
    "status-code",
    "rapid-commit",
    "user-class",
    "vendor-class",
    "vendor-specific-info",
    "interface-ID",
    "reconfigure-message",
    "reconfigure-accept",
    "SIP-servers-domain",
    "SIP-servers-address",
    "DNS-server",
    "DNS-search-list",
    "IA_PD",
    "IA_PD-prefix",
    "NIS-server",
    "NIS+-server",
    "NIS-domain-name",
    "NIS+-domain-name",
    "SNTP-servers",
    "lifetime",
    "BCMCS-domain-name",
    "BCMCS-server",
    "",
    "Geoconf-Civic",
    "Remote-ID",
    "Subscriber-ID",
    "Client-FQDN",
    "PANA-agent",
    "POSIX-timezone",
    "POSIX-tz-database",
    "Echo-request-option",
    "Lease-query",
    "LQ-client-data",
    "Clt-time",
    "LQ-relay-data",
    "LQ-client-link",
    "",
    "",
    "",
];

fn put_option_name(line: &mut Line<'_>, code: u16) {
    let listed = OPTIONS
        .get(usize::from(code))
        .filter(|name| !name.is_empty());
    match (listed, code) {
        (Some(name), _) => put!(line, "{name}"),
        (None, 56) => put!(line, "NTP-server"),
        (None, 64) => put!(line, "AFTR-Name"),
        (None, 112) => put!(line, "MUD-URL"),
        (None, _) => put!(line, "opt_{code}"),
    }
}

pub(super) fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const NAMES: [&str; 16] = [
        "",
        "solicit",
        "advertise",
        "request",
        "confirm",
        "renew",
        "rebind",
        "reply",
        "release",
        "decline",
        "reconfigure",
        "inf-req",
        "relay-fwd",
        "relay-reply",
        "leasequery",
        "leasequery-reply",
    ];
    line.protocol = "dhcp6";
    put!(line, "dhcp6");
    data.need(4)?;
    let kind = data.u8(0)?;
    match NAMES.get(usize::from(kind)).filter(|name| !name.is_empty()) {
        Some(name) => put!(line, " {name}"),
        None => put!(line, " msgtype-{kind}"),
    }
    if !line.verbose() {
        return Ok(());
    }
    put!(line, " (");
    if matches!(kind, 12 | 13) {
        put!(line, "linkaddr={}", address(data, 2)?);
        put!(line, " peeraddr={}", address(data, 18)?);
        options(line, data.skip(34));
    } else {
        put!(line, "xid={:x}", data.u32(0)? & 0x00ff_ffff);
        options(line, data.skip(4));
    }
    put!(line, ")");
    Ok(())
}

fn address(data: Data<'_>, at: usize) -> Result<Ipv6Addr, Stop> {
    data.array::<16>(at).map(Ipv6Addr::from)
}

/// A list that is cut is marked as such, and what it stands in goes on.
fn options(line: &mut Line<'_>, data: Data<'_>) {
    // tcpdump takes the end of the captured bytes for the end of the options.
    let mut rest = data.claimed(data.bytes.len());
    while rest.len > 0 {
        let one = rest.u16(0).and_then(|code| Ok((code, rest.u16(2)?)));
        let value = one.and_then(|(code, len)| {
            let bytes = rest.slice(OPTION_HEADER_LEN, len.into())?;
            let len = bytes.len();
            Ok((code, Data { bytes, len }))
        });
        let shown = value.and_then(|(code, value)| {
            put!(line, " (");
            put_option_name(line, code);
            // Relayed messages and identity associations hold options of their own.
            line.nested(|line| option(line, code, value))?;
            Ok(value.len)
        });
        match shown {
            Ok(len) => rest = rest.skip(OPTION_HEADER_LEN + len),
            Err(_) => {
                put!(line, " [|dhcp6]");
                return;
            }
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
            put!(
                line,
                " IAID:{} T1:{} T2:{}",
                value.u32(0)?,
                value.u32(4)?,
                value.u32(8)?
            );
            options(line, value.skip(12));
        }
        4 => {
            put!(line, " IAID:{}", value.u32(0)?);
            options(line, value.skip(4));
        }
        5 => {
            put!(line, " {}", address(value, 0)?);
            lifetimes(line, value, 16)?;
            options(line, value.skip(24));
        }
        6 => {
            for code in value.bytes.chunks_exact(2) {
                put!(line, " ");
                put_option_name(line, u16::from_be_bytes([code[0], code[1]]));
            }
        }
        7 => put!(line, " {}", value.u8(0)?),
        8 => put!(line, " {}", value.u16(0)?),
        9 => {
            put!(line, " (");
            print(line, value)?;
            put!(line, ")");
            return Ok(());
        }
        11 => return authentication(line, value),
        12 | 22 | 23 | 27 | 28 | 31 | 34 | 40 | 48 => {
            for at in (0..value.len).step_by(16) {
                put!(line, " {}", address(value, at)?);
            }
        }
        13 => put!(line, " {}", status(value.u16(0)?)),
        18 | 38 => {
            put!(line, " ");
            shortened(line, value.bytes);
        }
        19 => match value.u8(0)? {
            5 => put!(line, " for renew"),
            11 => put!(line, " for inf-req"),
            other => put!(line, " for ???({other:02x})"),
        },
        21 | 24 => {
            let mut at = 0;
            while at < value.len {
                put!(line, " ");
                at = dns::put_name(line, value, at)?;
            }
        }
        26 => {
            put!(line, " {}/{}", address(value, 9)?, value.u8(8)?);
            lifetimes(line, value, 0)?;
            options(line, value.skip(25));
        }
        32 | 46 => put!(line, " {}", value.u32(0)?),
        37 => {
            put!(line, " {} ", value.u32(0)?);
            shortened(line, &value.bytes[4..]);
        }
        44 => {
            match value.u8(0)? {
                1 => put!(line, " by-address"),
                2 => put!(line, " by-clientID"),
                other => put!(line, " type_{other}"),
            }
            put!(line, " {}", address(value, 1)?);
            options(line, value.skip(17));
        }
        45 => options(line, value),
        47 => {
            put!(line, " {} ", address(value, 0)?);
            shortened(line, &value.bytes[16..]);
        }
        56 => time_servers(line, value)?,
        64 => tunnel_end(line, value)?,
        41 | 42 | 112 => {
            put!(line, " ");
            put_string(line, value.bytes);
        }
        _ => {}
    }
    put!(line, ")");
    Ok(())
}

fn lifetimes(line: &mut Line<'_>, value: Data<'_>, at: usize) -> Printed {
    put!(
        line,
        " pltime:{} vltime:{}",
        value.u32(at)?,
        value.u32(at + 4)?
    );
    Ok(())
}

fn put_hex(line: &mut Line<'_>, bytes: &[u8]) {
    for byte in bytes {
        put!(line, "{byte:02x}");
    }
}

/// Ten bytes at most.
fn shortened(line: &mut Line<'_>, bytes: &[u8]) {
    put_hex(line, &bytes[..bytes.len().min(10)]);
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
            put!(
                line,
                " hwaddr/time type {} time {} ",
                value.u16(2)?,
                value.u32(4)?
            );
            put_hex(line, &value.bytes[8..]);
        }
        2 => {
            put!(line, " vid ");
            put_hex(line, value.slice(2, value.len.min(10) - 2)?);
        }
        3 => {
            put!(line, " hwaddr type {} ", value.u16(2)?);
            put_hex(line, &value.bytes[4..]);
        }
        _ => put!(line, " type {kind}"),
    }
    put!(line, ")");
    Ok(())
}

fn authentication(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let (protocol, algorithm, method) = (value.u8(0)?, value.u8(1)?, value.u8(2)?);
    match protocol {
        2 => put!(line, " proto: delayed"),
        3 => put!(line, " proto: reconfigure"),
        _ => put!(line, " proto: {protocol}"),
    }
    match algorithm {
        1 => put!(line, ", alg: HMAC-MD5"),
        _ => put!(line, ", alg: {algorithm}"),
    }
    match method {
        0 => put!(line, ", RDM: mono"),
        _ => put!(line, ", RDM: {method}"),
    }
    put!(line, ", RD:");
    for at in (3..11).step_by(2) {
        put!(line, " {:04x}", value.u16(at)?);
    }
    let rest = value.skip(11);
    let words = |line: &mut Line<'_>, bytes: &[u8]| {
        for word in bytes.chunks_exact(4) {
            put!(line, " ");
            put_hex(line, word);
        }
    };
    match protocol {
        2 if rest.len < 20 => put!(line, " ??"),
        2 => {
            let realm = rest.len - 20;
            if realm > 0 {
                put!(line, ", realm: ");
                put_hex(line, rest.slice(0, realm)?);
            }
            put!(line, ", key ID: {:08x}, HMAC-MD5:", rest.u32(realm)?);
            words(line, rest.slice(realm + 4, 16)?);
        }
        3 if rest.len != 17 => put!(line, " ??"),
        3 => {
            match rest.u8(0)? {
                1 => put!(line, " reconfig-key"),
                2 => put!(line, " type: HMAC-MD5"),
                _ => put!(line, " type: ??"),
            }
            put!(line, " value:");
            words(line, rest.slice(1, 16)?);
        }
        _ if rest.len > 0 => put!(line, " ??"),
        _ => {}
    }
    put!(line, ")");
    Ok(())
}

fn status(code: u16) -> String {
    const NAMES: [&str; 11] = [
        "Success",
        "UnspecFail",
        "NoAddrsAvail",
        "NoBinding",
        "NotOnLink",
        "UseMulticast",
        "NoPrefixAvail",
        "UnknownQueryType",
        "MalformedQuery",
        "NotConfigured",
        "NotAllowed",
    ];
    match NAMES.get(usize::from(code)) {
        Some(name) => (*name).to_owned(),
        None if code > 255 => "INVALID code".to_owned(),
        None => format!("code{code}"),
    }
}

fn time_servers(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let mut at = 0;
    while at + OPTION_HEADER_LEN < value.len {
        let (kind, len) = (value.u16(at)?, usize::from(value.u16(at + 2)?));
        let bytes = value.slice(at + OPTION_HEADER_LEN, len)?;
        let server = Data { bytes, len };
        put!(line, " subopt:{kind}");
        match kind {
            1 | 2 if len == 16 => put!(line, " {}", address(server, 0)?),
            3 => {
                put!(line, " ");
                dns::put_name(line, server, 0)?;
            }
            _ => put!(line, " ?"),
        }
        at += OPTION_HEADER_LEN + len;
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
        put_string(line, rest.slice(1, len)?);
        rest = rest.skip(1 + len);
        if rest.u8(0)? != 0 {
            put!(line, ".");
        }
    }
    Ok(())
}
