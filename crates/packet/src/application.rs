//! Names in the application layer of a single packet, for search indexes: the name that DNS asks for, the server that a
//! TLS client or an HTTP request names, a TLS client's fingerprint and a tunnel's network identifier. No state is kept
//! between packets, and nothing is allocated for packets without such a name.

mod dns;
mod tls;

use std::borrow::Cow;
use std::fmt::Write;

pub use dns::dns_name;
pub use tls::{ClientHello, client_hello};

use crate::net::protocol::UDP;
use crate::walk::{GENEVE_PORT, Headers, VXLAN_PORT, word};

/// Maximum length of a name, for DNS by its standard.
const MAX_NAME: usize = 255;
/// Maximum length of an HTTP method; the longest registered one has 17 letters.
const MAX_METHOD: usize = 20;

/// Returns the Host field of an HTTP/1 request at the start of a TCP segment, on any port: as sent, with its port if it
/// has one. Bytes other than printable ASCII become `\DDD`.
pub fn http_host<'a>(headers: &Headers<'a>) -> Option<Cow<'a, str>> {
    let payload = tcp_payload(headers)?;
    if !payload.first()?.is_ascii_uppercase() {
        return None;
    }
    let mut start = payload.iter().take(MAX_METHOD + 1);
    start.find(|byte| !byte.is_ascii_uppercase() && !b"-_".contains(*byte)).filter(|byte| **byte == b' ')?;
    let (request, mut rest) = line(payload)?;
    let (before, minor) = request.split_at_checked(request.len().checked_sub(1)?)?;
    if !before.ends_with(b" HTTP/1.") || !minor[0].is_ascii_digit() {
        return None;
    }
    loop {
        let (field, after) = line(rest)?;
        let colon = field.iter().position(|byte| *byte == b':');
        match colon.and_then(|at| field.split_at_checked(at)) {
            Some((name, value)) if name.eq_ignore_ascii_case(b"host") => {
                return host(value[1..].trim_ascii());
            }
            // The fields end at an empty line.
            None if field.is_empty() => return None,
            _ => rest = after,
        }
    }
}

/// Splits off the first line, without its end.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = bytes.split_at(end);
    Some((line.strip_suffix(b"\r").unwrap_or(line), &rest[1..]))
}

/// Returns the network identifier of a VXLAN or Geneve packet, the outermost one.
pub fn vni(headers: &Headers<'_>) -> Option<u32> {
    let (_, dst) = headers.ports.filter(|_| !headers.incomplete)?;
    let first = *headers.payload.first()?;
    let valid = match dst {
        // The flag I means that the header has an identifier.
        VXLAN_PORT => first & 0x08 != 0,
        // The version is 0.
        GENEVE_PORT => first & 0xc0 == 0,
        _ => false,
    };
    let identified = valid && headers.ip?.protocol == UDP;
    identified.then(|| word(headers.payload, 4))?.map(|word| word >> 8)
}

/// Returns the payload of a segment with a whole TCP header.
fn tcp_payload<'a>(headers: &Headers<'a>) -> Option<&'a [u8]> {
    let whole = headers.tcp.is_some() && !headers.incomplete;
    whole.then_some(headers.payload)
}

/// Returns the text of a host's name or address.
fn host(name: &[u8]) -> Option<Cow<'_, str>> {
    const SPECIAL: &[u8] = b"\\";
    if name.is_empty() || name.len() > MAX_NAME {
        return None;
    }
    let plain = |byte: &u8| byte.is_ascii_graphic() && !SPECIAL.contains(byte);
    if name.iter().all(plain) {
        return std::str::from_utf8(name).ok().map(Cow::Borrowed);
    }
    let mut text = String::new();
    put_escaped(&mut text, name, SPECIAL);
    Some(Cow::Owned(text))
}

/// Appends bytes as DNS master files write them: a backslash before each `special` one, and `\DDD` for those that are
/// not printable ASCII.
fn put_escaped(text: &mut String, bytes: &[u8], special: &[u8]) {
    for byte in bytes {
        if !byte.is_ascii_graphic() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\{byte:03}");
            continue;
        }
        if special.contains(byte) {
            text.push('\\');
        }
        text.push(char::from(*byte));
    }
}

#[cfg(test)]
mod tests;
