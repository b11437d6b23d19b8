//! The first message of a TLS client: the server's name, and the fingerprint JA4 of FoxIO's specification
//! (<https://github.com/FoxIO-LLC/ja4/blob/main/technical_details/JA4.md>).

use std::borrow::Cow;
use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::{host, tcp_payload};
use crate::walk::{Headers, half};

const CHANGE_CIPHER_RECORD: u8 = 20;
const HANDSHAKE_RECORD: u8 = 22;
const CLIENT_HELLO: u8 = 1;
/// Length of the type and the length of a handshake message.
const MESSAGE_HEADER_LEN: usize = 4;
const RANDOM_LEN: usize = 32;

const SERVER_NAME: u16 = 0;
const SIGNATURE_ALGORITHMS: u16 = 13;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;

/// The first message of a TLS client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientHello {
    /// Name of the server that the client asks for, in lower case. Bytes other than printable ASCII become `\DDD`.
    pub server_name: Option<String>,
    /// JA4 fingerprint, if the packet holds the whole message.
    pub ja4: Option<String>,
}

/// Reads a TLS ClientHello at the start of a TCP segment, on any port, as far as the packet holds it.
pub fn client_hello(headers: &Headers<'_>) -> Option<ClientHello> {
    let message = message(tcp_payload(headers)?)?;
    let len = message_len(&message);
    let body = message.get(MESSAGE_HEADER_LEN..)?;
    let whole = message.get(MESSAGE_HEADER_LEN..len);
    let hello = Hello::read(whole.unwrap_or(body))?;
    Some(ClientHello { server_name: hello.server_name(), ja4: whole.and_then(|_| hello.ja4()) })
}

/// Returns a ClientHello message, which can be split among records.
fn message(payload: &[u8]) -> Option<Cow<'_, [u8]>> {
    let (first, mut rest) = record(after_change(payload))?;
    if *first.first()? != CLIENT_HELLO {
        return None;
    }
    let mut message = Cow::Borrowed(first);
    while message.len() < message_len(&message)
        && let Some((part, after)) = record(rest)
    {
        message.to_mut().extend_from_slice(part);
        rest = after;
    }
    Some(message)
}

/// Skips the message with which a client changes its cipher before its second hello (RFC 8446, appendix D.4).
fn after_change(payload: &[u8]) -> &[u8] {
    match payload {
        [CHANGE_CIPHER_RECORD, 3, _, 0, 1, 1, rest @ ..] => rest,
        _ => payload,
    }
}

/// Splits off the content of a handshake record, as far as it was captured.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let [HANDSHAKE_RECORD, 3, _, len @ ..] = *bytes.first_chunk::<5>()? else {
        return None;
    };
    let rest = &bytes[5..];
    let len = usize::from(u16::from_be_bytes(len));
    Some(rest.split_at_checked(len).unwrap_or((rest, &[])))
}

/// Returns the length of a message from its header.
fn message_len(message: &[u8]) -> usize {
    MESSAGE_HEADER_LEN
        + match *message {
            [_, high, middle, low, ..] => u32::from_be_bytes([0, high, middle, low]) as usize,
            _ => 0,
        }
}

/// Splits bytes into parts.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(part)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn half(&mut self) -> Option<u16> {
        half(self.take(2)?, 0)
    }

    /// Returns a part that follows its length of one byte.
    fn short(&mut self) -> Option<&'a [u8]> {
        let len = self.byte()?;
        self.take(len.into())
    }

    /// Returns a part that follows its length of two bytes.
    fn long(&mut self) -> Option<&'a [u8]> {
        let len = self.half()?;
        self.take(len.into())
    }
}

struct Hello<'a> {
    version: u16,
    ciphers: &'a [u8],
    /// Types and contents, as far as they are whole.
    extensions: Vec<(u16, &'a [u8])>,
    /// False if extensions are cut, or contradict their length.
    is_complete: bool,
}

impl<'a> Hello<'a> {
    fn read(body: &'a [u8]) -> Option<Self> {
        let mut parts = Parts(body);
        let version = parts.half()?;
        parts.take(RANDOM_LEN)?;
        let _session = parts.short()?;
        let ciphers = parts.long()?;
        let _compression = parts.short()?;
        // Messages of the oldest clients end here.
        let len = parts.half().unwrap_or_default();
        let listed = parts.take(len.into());
        let mut rest = Parts(listed.unwrap_or(parts.0));
        let mut extensions = Vec::new();
        let mut is_complete = listed.is_some();
        while !rest.0.is_empty() {
            let Some(extension) = rest.half().zip(rest.long()) else {
                is_complete = false;
                break;
            };
            extensions.push(extension);
        }
        Some(Self { version, ciphers, extensions, is_complete })
    }

    fn extension(&self, kind: u16) -> Option<Parts<'a>> {
        let mut known = self.extensions.iter();
        known.find(|extension| extension.0 == kind).map(|extension| Parts(extension.1))
    }

    fn server_name(&self) -> Option<String> {
        const HOST_NAME: u8 = 0;
        let mut names = Parts(self.extension(SERVER_NAME)?.long()?);
        let kind = names.byte()?;
        let name = names.long().filter(|_| kind == HOST_NAME)?;
        host(name).map(|name| name.to_ascii_lowercase())
    }

    fn ja4(&self) -> Option<String> {
        if !self.is_complete {
            return None;
        }
        let mut ciphers: Vec<u16> = meaningful(self.ciphers).collect();
        ciphers.sort_unstable();
        let kinds = self.extensions.iter().map(|extension| extension.0);
        let mut kinds: Vec<u16> = kinds.filter(|kind| !is_grease(*kind)).collect();
        kinds.sort_unstable();
        let named = if kinds.contains(&SERVER_NAME) { 'd' } else { 'i' };
        let mut text = format!(
            "t{}{named}{:02}{:02}{}_{}_",
            self.version_text(),
            ciphers.len().min(99),
            kinds.len().min(99),
            self.alpn_text(),
            hashed(&list(ciphers)),
        );
        kinds.retain(|kind| ![SERVER_NAME, ALPN].contains(kind));
        let mut hashed_part = list(kinds);
        let algorithms = self.extension(SIGNATURE_ALGORITHMS).and_then(|mut parts| parts.long());
        let algorithms = list(meaningful(algorithms.unwrap_or_default()));
        if !algorithms.is_empty() {
            hashed_part.push('_');
            hashed_part.push_str(&algorithms);
        }
        text.push_str(&hashed(&hashed_part));
        Some(text)
    }

    fn version_text(&self) -> &'static str {
        let supported = self.extension(SUPPORTED_VERSIONS).and_then(|mut parts| parts.short());
        let highest = meaningful(supported.unwrap_or_default()).max();
        match highest.unwrap_or(self.version) {
            0x0304 => "13",
            0x0303 => "12",
            0x0302 => "11",
            0x0301 => "10",
            0x0300 => "s3",
            0x0002 => "s2",
            _ => "00",
        }
    }

    /// Returns the first and last character of the first protocol, or its first and last hex digit.
    fn alpn_text(&self) -> String {
        let protocols = self.extension(ALPN).and_then(|mut parts| parts.long());
        let first = protocols.and_then(|protocols| Parts(protocols).short()).unwrap_or_default();
        let (Some(first), Some(last)) = (first.first(), first.last()) else {
            return "00".to_owned();
        };
        if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
            [first, last].map(|byte| char::from(*byte)).iter().collect()
        } else {
            format!("{:x}{:x}", first >> 4, last & 0xf)
        }
    }
}

/// Returns the numbers of a list, except the reserved ones of RFC 8701, which clients add at random.
fn meaningful(bytes: &[u8]) -> impl Iterator<Item = u16> {
    let (pairs, _) = bytes.as_chunks();
    let numbers = pairs.iter().map(|pair| u16::from_be_bytes(*pair));
    numbers.filter(|number| !is_grease(*number))
}

fn is_grease(number: u16) -> bool {
    let [high, low] = number.to_be_bytes();
    high == low && low & 0xf == 0xa
}

/// Returns numbers in hex with commas between.
fn list(numbers: impl IntoIterator<Item = u16>) -> String {
    let mut text = String::new();
    for number in numbers {
        if !text.is_empty() {
            text.push(',');
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{number:04x}");
    }
    text
}

/// Returns the first twelve hex digits of a list's hash; zeros for an empty list.
fn hashed(list: &str) -> String {
    if list.is_empty() {
        return "0".repeat(12);
    }
    let digest = Sha256::digest(list);
    digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}
