//! TLS: client and server hellos; and QUIC: the long header, which is not encrypted.

use crate::print::line::{Colons, Data, Line, Printed, put};
use crate::print::names;

/// A record of the handshake, and a client's first message in it.
const HANDSHAKE: u8 = 22;
const CHANGE_CIPHER: u8 = 20;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const SERVER_NAME: u16 = 0;
const SUPPORTED_VERSIONS: u16 = 43;
const PROTOCOLS: u16 = 16;

/// Shows a hello on any port: its first bytes cannot be mistaken for another protocol.
pub fn print(line: &mut Line<'_>, data: Data<'_>) {
    // A client changes its cipher before its second hello.
    let data = match data.bytes {
        [CHANGE_CIPHER, 3, _, 0, 1, 1, HANDSHAKE, ..] => data.skip(6),
        _ => data,
    };
    let is_hello = data.bytes.first() == Some(&HANDSHAKE)
        && data.bytes.get(1) == Some(&3)
        && matches!(data.bytes.get(5), Some(&CLIENT_HELLO | &SERVER_HELLO));
    if !is_hello {
        return;
    }
    let is_client = data.bytes.get(5) == Some(&CLIENT_HELLO);
    let end = if is_client { "client" } else { "server" };
    put!(line, ": TLS {end} hello");
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
        let pair = |at: usize| value.get(at..)?.first_chunk().map(|pair| u16::from_be_bytes(*pair));
        match kind {
            SERVER_NAME => {
                let name = pair(3).and_then(|len| value.get(5..5 + usize::from(len)));
                if let Some(name) = name {
                    put!(line, ", name ");
                    line.put_chars(name);
                }
            }
            SUPPORTED_VERSIONS if is_client => {
                let list = value.get(1..).unwrap_or_default().chunks_exact(2);
                versions = list.map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
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
    let named: Vec<&str> = versions.into_iter().filter_map(|version| names::find("tls.version", version)).collect();
    let plural = if named.len() == 1 { "" } else { "s" };
    put!(line, ", version{plural} {}", named.join(" "));
    if !protocols.is_empty() {
        put!(line, ", protocols");
        for name in protocols {
            put!(line, " ");
            line.put_chars(&name);
        }
    }
    Some(())
}

/// Shows the long header; packets with the short one show nothing.
pub fn quic(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    put!(line, "UDP, length {}", data.len);
    long_header(line, data);
    Ok(())
}

fn long_header(line: &mut Line<'_>, data: Data<'_>) {
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
        if number == 0 { 0 } else { usize::from(number) + 3 }
    };
    let ids = if is_old {
        data.u8(5).ok().and_then(|lengths| {
            let (dst, src) = (half(lengths >> 4), half(lengths & 15));
            Some((data.slice(6, dst).ok()?, data.slice(6 + dst, src).ok()?))
        })
    } else {
        connection(5).and_then(|(dst, at)| Some((dst, connection(at)?.0)))
    };
    put!(line, ": QUIC{version}, {name}");
    match ids {
        Some((dst, [])) => put!(line, ", dcid {}", Colons(dst)),
        Some((dst, src)) => put!(line, ", dcid {}, scid {}", Colons(dst), Colons(src)),
        None => put!(line, " [|quic]"),
    }
}
