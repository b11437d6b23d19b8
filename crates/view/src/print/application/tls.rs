//! TLS: client and server hellos.

use crate::print::line::{Data, Line, put};
use crate::print::names;

/// A record of the handshake, and a client's first message in it.
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const SERVER_NAME: u16 = 0;
const SUPPORTED_VERSIONS: u16 = 43;
const PROTOCOLS: u16 = 16;

/// A hello, whatever its port: its first bytes are like nothing else.
pub fn print(line: &mut Line<'_>, data: Data<'_>) {
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
                    line.put_chars(name);
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
    let named: Vec<&str> = versions
        .into_iter()
        .filter_map(|version| names::find("tls.version", version))
        .collect();
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
