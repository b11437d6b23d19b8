//! Keys of objects in a store: `chunks/date/hour/capture/host/boot/epoch/sequence`.

use std::fmt;

use serde::{Deserialize, Serialize};
use trawl_sys::clock;

/// A run of a capture on a host, which has one account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    pub capture: String,
    pub host: String,
    /// The kernel's boot identifier.
    pub boot: String,
    /// Start of the run, in nanoseconds since 1970.
    pub epoch: String,
}

impl Epoch {
    pub fn prefix(&self) -> String {
        let Self {
            capture,
            host,
            boot,
            epoch,
        } = self;
        let parts = [capture, host, boot, epoch].map(|part| escaped(part));
        parts.join("/")
    }

    pub fn begin(&self) -> String {
        format!("{}/{BEGIN}", self.prefix())
    }

    pub fn end(&self) -> String {
        format!("{}/{END}", self.prefix())
    }

    /// Returns the key of a chunk of this time, in nanoseconds since 1970.
    pub fn chunk(&self, ns: u64, sequence: u64) -> ChunkKey {
        let (date, hour) = (clock::date_of(ns), ns / HOUR_NS % 24);
        let run = self.prefix();
        ChunkKey(format!("{CHUNKS}/{date}/{hour:02}/{run}/{sequence:010}"))
    }
}

const HOUR_NS: u64 = 3_600_000_000_000;
const CHUNKS: &str = "chunks";
const BEGIN: &str = "begin.json";
const END: &str = "end.json";
const PACKETS: &str = ".pcapng.zst";
const MANIFEST: &str = ".json";
const PRUNED: &str = "pruned";
const INDEX: &str = ".parquet";

/// Common part of the keys of a chunk's objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkKey(String);

impl ChunkKey {
    /// Returns whether the key is the one of this run and sequence number, at any time.
    pub fn is_of(&self, run: &Epoch, sequence: u64) -> bool {
        self.0
            .ends_with(&format!("/{}/{sequence:010}", run.prefix()))
    }

    pub fn packets(&self) -> String {
        format!("{}{PACKETS}", self.0)
    }

    pub fn manifest(&self) -> String {
        format!("{}{MANIFEST}", self.0)
    }
}

/// Returns the key of the record of a removal that began at this time.
pub fn pruned(ns: u64) -> String {
    format!("{PRUNED}/{ns}.json")
}

impl fmt::Display for ChunkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Kind of an object, from its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    Begin(String),
    End(String),
    Packets(ChunkKey),
    Manifest(ChunkKey),
    Pruned,
    Index,
    Foreign,
}

impl Object {
    pub fn of(key: &str) -> Self {
        let parts: Vec<&str> = key.split('/').collect();
        let numbered = |end: &str| {
            let stem = key.strip_suffix(end)?;
            let number = stem.rsplit('/').next()?;
            let is_number = number.len() == 10 && number.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| ChunkKey(stem.to_owned()))
        };
        match parts.as_slice() {
            [prefix @ .., BEGIN] if prefix.len() == 4 => Self::Begin(prefix.join("/")),
            [prefix @ .., END] if prefix.len() == 4 => Self::End(prefix.join("/")),
            [CHUNKS, _, _, _, _, _, _, _] => numbered(PACKETS)
                .map(Self::Packets)
                .or_else(|| numbered(MANIFEST).map(Self::Manifest))
                .unwrap_or(Self::Foreign),
            [PRUNED, name] if name.ends_with(MANIFEST) => Self::Pruned,
            _ if key.ends_with(INDEX) => Self::Index,
            _ => Self::Foreign,
        }
    }
}

/// Escapes a name as a part of a key: bytes with a meaning to an object store or a file system become `=` and two hexadecimal
/// digits.
pub fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-@:+,".contains(&byte);
    let mut out = String::new();
    for (at, byte) in name.bytes().enumerate() {
        // A part '.' or '..' would lead to another directory.
        if plain(byte) || (byte == b'.' && at > 0) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("={byte:02x}"));
        }
    }
    if out.is_empty() {
        out.push('=');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinguished() {
        let epoch = Epoch {
            capture: "trawl".into(),
            host: "a.example".into(),
            boot: "0f".into(),
            epoch: "17".into(),
        };
        // 27 November 2026, 22:31:19.
        let chunk = epoch.chunk(1_795_818_679_000_000_000, 7);
        assert_eq!(
            chunk.packets(),
            "chunks/2026-11-27/22/trawl/a.example/0f/17/0000000007.pcapng.zst"
        );
        assert_eq!(Object::of(&chunk.packets()), Object::Packets(chunk.clone()));
        assert_eq!(
            Object::of(&chunk.manifest()),
            Object::Manifest(chunk.clone())
        );
        assert_eq!(Object::of(&pruned(17)), Object::Pruned);
        assert_eq!(Object::of(&epoch.begin()), Object::Begin(epoch.prefix()));
        assert_eq!(Object::of(&epoch.end()), Object::End(epoch.prefix()));
        assert_eq!(Object::of("trawl/readme"), Object::Foreign);
    }

    #[test]
    fn names_cannot_escape_their_directory() {
        assert_eq!(escaped(".."), "=2e.");
        assert_eq!(escaped("a/b"), "a=2fb");
        assert_eq!(escaped(""), "=");
    }
}
