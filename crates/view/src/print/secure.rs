//! What can be read of encrypted protocols: TLS client hellos, QUIC's long headers, WireGuard's messages.

use super::line::{Colons, Data, Line, Printed, put};
use super::text::put_chars;

/// A record of the handshake, and a client's first message in it.
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const SERVER_NAME: u16 = 0;
const SUPPORTED_VERSIONS: u16 = 43;
const PROTOCOLS: u16 = 16;

/// Names of versions by their low byte.
fn version(number: u16) -> Option<&'static str> {
    Some(match number {
        0x0300 => "SSL 3.0",
        0x0301 => "1.0",
        0x0302 => "1.1",
        0x0303 => "1.2",
        0x0304 => "1.3",
        _ => return None,
    })
}

/// A hello, whatever its port: its first bytes are like nothing else.
pub(super) fn tls(line: &mut Line<'_>, data: Data<'_>) {
    let is_hello = data.bytes.first() == Some(&HANDSHAKE)
        && data.bytes.get(1) == Some(&3)
        && matches!(data.bytes.get(5), Some(&CLIENT_HELLO | &SERVER_HELLO));
    if !is_hello {
        return;
    }
    let is_client = data.bytes.get(5) == Some(&CLIENT_HELLO);
    put!(
        line,
        ": TLS {} hello",
        if is_client { "client" } else { "server" }
    );
    if hello(line, data.skip(5), is_client).is_none() {
        put!(line, " [|tls]");
    }
}

fn hello(line: &mut Line<'_>, data: Data<'_>, is_client: bool) -> Option<()> {
    let oldest = data.u16(4).ok()?;
    let mut at = 4 + 2 + 32;
    at += 1 + usize::from(data.u8(at).ok()?);
    if is_client {
        at += 2 + usize::from(data.u16(at).ok()?);
        at += 1 + usize::from(data.u8(at).ok()?);
    } else {
        at += 3;
    }
    let mut versions = vec![oldest];
    let mut protocols = Vec::new();
    // A hello without extensions ends here.
    let len = data.u16(at).map_or(0, usize::from);
    let end = at + 2 + len;
    at += 2;
    while at + 4 <= end {
        let (kind, size) = (data.u16(at).ok()?, usize::from(data.u16(at + 2).ok()?));
        let value = data.slice(at + 4, size).ok()?;
        let pair = |at: usize| {
            value
                .get(at..)?
                .first_chunk()
                .map(|pair| u16::from_be_bytes(*pair))
        };
        match kind {
            SERVER_NAME => {
                let name = pair(3).and_then(|len| value.get(5..5 + usize::from(len)));
                if let Some(name) = name {
                    put!(line, ", name ");
                    put_chars(line, name);
                }
            }
            SUPPORTED_VERSIONS if is_client => {
                let list = value.get(1..).unwrap_or_default().chunks_exact(2);
                versions = list
                    .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
                    .collect();
            }
            SUPPORTED_VERSIONS => versions = pair(0).into_iter().collect(),
            PROTOCOLS => {
                let mut rest = value.get(2..).unwrap_or_default();
                while let Some((len, names)) = rest.split_first() {
                    let (name, after) = names.split_at_checked(usize::from(*len))?;
                    protocols.push(name.to_vec());
                    rest = after;
                }
            }
            _ => {}
        }
        at += 4 + size;
    }
    let named: Vec<&str> = versions.into_iter().filter_map(version).collect();
    let plural = if named.len() == 1 { "" } else { "s" };
    put!(line, ", version{plural} {}", named.join(" "));
    if !protocols.is_empty() {
        put!(line, ", protocols");
        for name in protocols {
            put!(line, " ");
            put_chars(line, &name);
        }
    }
    Some(())
}

/// The long header, which is not encrypted; packets with the short one show nothing.
pub(super) fn quic(line: &mut Line<'_>, data: Data<'_>) {
    let Ok(first) = data.u8(0) else { return };
    let Ok(number) = data.u32(1) else { return };
    if first & 0x80 == 0 {
        return;
    }
    let version_2 = number == 0x6b33_43cf;
    let kinds = ["initial", "0-RTT", "handshake", "retry"];
    let kind = usize::from(first >> 4 & 3);
    let name = match number {
        0 => "version negotiation",
        _ if first & 0x40 == 0 => return,
        _ if version_2 => kinds[(kind + 3) % 4],
        _ => kinds[kind],
    };
    // Google's versions before 50: Q and three digits, and both lengths in one byte.
    let [letter, digits @ ..] = number.to_be_bytes();
    let is_old = letter == b'Q' && (*b"043"..*b"050").contains(&digits);
    let version = match number {
        0 => String::new(),
        _ if letter == b'Q' && digits.iter().all(u8::is_ascii_digit) => {
            format!(" Q{}", digits.map(char::from).iter().collect::<String>())
        }
        1 => " v1".to_owned(),
        _ if version_2 => " v2".to_owned(),
        0xff00_0000..=0xff00_00ff => format!(" draft-{}", number & 0xff),
        _ => format!(" version 0x{number:08x}"),
    };
    let connection = |at: usize| {
        let len = usize::from(data.u8(at).ok()?);
        Some((data.slice(at + 1, len).ok()?, at + 1 + len))
    };
    let half = |number: u8| {
        if number == 0 {
            0
        } else {
            usize::from(number) + 3
        }
    };
    let ids = match is_old {
        false => connection(5).and_then(|(dst, at)| Some((dst, connection(at)?.0))),
        true => data.u8(5).ok().and_then(|lengths| {
            let (dst, src) = (half(lengths >> 4), half(lengths & 15));
            Some((data.slice(6, dst).ok()?, data.slice(6 + dst, src).ok()?))
        }),
    };
    put!(line, ": QUIC{version}, {name}");
    match ids {
        Some((dst, [])) => put!(line, ", dcid {}", Colons(dst)),
        Some((dst, src)) => put!(line, ", dcid {}, scid {}", Colons(dst), Colons(src)),
        None => put!(line, " [|quic]"),
    }
}

/// The header of a key exchange: which one, between whom, and whether the rest is encrypted.
pub(super) fn isakmp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 28;
    const PHASE_1: [&str; 6] = ["none", "base", "ident", "auth", "agg", "inf"];
    line.protocol = "isakmp";
    data.need(HEADER_LEN)?;
    let (version, kind, flags, message) =
        (data.u8(17)? >> 4, data.u8(18)?, data.u8(19)?, data.u32(20)?);
    put!(line, "isakmp:");
    let name = match kind {
        0..6 => PHASE_1[usize::from(kind)],
        32 => "oakley-quick",
        33 => "oakley-newgroup",
        34 => "ikev2_init",
        35 => "ikev2_auth",
        36 => "child_sa",
        37 => "inf2",
        _ => "",
    };
    let is_first = message == 0;
    match version {
        1 => {
            let phase = if is_first { "1" } else { "2/others" };
            // Who has no cookie of the other side yet is the one who began.
            let begins = data.array::<8>(8)? == [0; 8];
            put!(line, " phase {phase}{}", if begins { " I" } else { "" });
        }
        2 => put!(
            line,
            "{}",
            if is_first { " parent_sa" } else { " child_sa " }
        ),
        _ => put!(line, " version {version}"),
    }
    match name {
        "" => put!(line, " #{kind}"),
        name => put!(line, " {name}"),
    }
    let letters = match version {
        1 => &[(0x01, "E"), (0x02, "C")][..],
        _ => &[(0x08, "I"), (0x10, "V"), (0x20, "R")],
    };
    let shown: String = letters
        .iter()
        .filter(|(bit, _)| flags & bit != 0)
        .map(|(_, letter)| *letter)
        .collect();
    if !shown.is_empty() {
        put!(line, "[{shown}]");
    }
    Ok(())
}

pub(super) fn wireguard(line: &mut Line<'_>, data: Data<'_>) {
    let little = |at: usize| data.array::<4>(at).map(u32::from_le_bytes);
    let Ok(kind) = little(0) else { return };
    let shown = match (kind, data.len) {
        (1, 148) => little(4).map(|sender| format!("handshake initiation, sender 0x{sender:08x}")),
        (2, 92) => little(4).and_then(|sender| {
            let receiver = little(8)?;
            Ok(format!(
                "handshake response, sender 0x{sender:08x}, receiver 0x{receiver:08x}"
            ))
        }),
        (3, 64) => little(4).map(|receiver| format!("cookie reply, receiver 0x{receiver:08x}")),
        (4, 32..) => little(4).and_then(|receiver| {
            let counter = data.array::<8>(8).map(u64::from_le_bytes)?;
            let name = if data.len == 32 { "keepalive" } else { "data" };
            Ok(format!(
                "{name}, receiver 0x{receiver:08x}, counter {counter}"
            ))
        }),
        _ => return,
    };
    match shown {
        Ok(text) => put!(line, ": WireGuard, {text}"),
        Err(_) => put!(line, ": WireGuard [|wireguard]"),
    }
}
