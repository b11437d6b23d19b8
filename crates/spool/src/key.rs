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
        let Self { capture, host, boot, epoch } = self;
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

/// Nanoseconds of an hour, by which chunks are filed.
pub const HOUR_NS: u64 = 3_600_000_000_000;
const CHUNKS: &str = "chunks";
const BEGIN: &str = "begin.json";
const END: &str = "end.json";
const PACKETS: &str = ".pcapng.zst";
const MANIFEST: &str = ".json";
const ROWS: &str = ".parquet";
const PRUNED: &str = "pruned";
const INCIDENTS: &str = "incidents";
const INDEX: &str = "index";
const NEW: &str = "new";
const SUMMARIES: &str = "new/summaries";

/// Common part of the keys of a chunk's objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkKey(String);

impl ChunkKey {
    /// Returns true if the key has this run and sequence number, at any time.
    pub fn is_of(&self, run: &Epoch, sequence: u64) -> bool {
        self.0.ends_with(&format!("/{}/{sequence:010}", run.prefix()))
    }

    /// Returns the directory of the chunk's hour.
    pub fn hour(&self) -> String {
        let parts: Vec<&str> = self.0.splitn(4, '/').take(3).collect();
        parts.join("/")
    }

    /// Returns the common part of the keys of the chunk's run.
    pub fn run(&self) -> &str {
        let mut slashes = self.0.match_indices('/').map(|(at, _)| at + 1);
        let from = slashes.nth(2).unwrap_or(0);
        let to = self.0.rfind('/').unwrap_or(0);
        self.0.get(from..to).unwrap_or_default()
    }

    /// Returns a text that follows the keys of the chunk's objects in a listing, and no other chunk's.
    pub fn after(&self) -> String {
        format!("{}/", self.0)
    }

    pub fn sequence(&self) -> u64 {
        let number = self.0.rsplit('/').next();
        number.and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// Returns the host whose packets are in the chunk.
    pub fn host(&self) -> String {
        unescaped(self.0.split('/').nth(4).unwrap_or_default())
    }

    pub fn packets(&self) -> String {
        format!("{}{PACKETS}", self.0)
    }

    pub fn manifest(&self) -> String {
        format!("{}{MANIFEST}", self.0)
    }
}

/// Returns the key of the empty object that marks a record as new: the catalogue does not have it yet.
pub fn mark(record: &str) -> String {
    format!("{NEW}/{record}")
}

/// Returns the key of a new chunk's index.
pub fn new_index(chunk: &ChunkKey) -> String {
    format!("{NEW}/{chunk}{ROWS}")
}

/// Returns the key of a run's part of an incident.
pub fn incident(id: &str, run: &Epoch) -> String {
    format!("{}/{}.json", incidents(id), run.prefix())
}

/// Returns the directory of an incident.
pub fn incidents(id: &str) -> String {
    format!("{INCIDENTS}/{}", escaped(id))
}

/// Returns the directory of all incidents.
pub fn all_incidents() -> &'static str {
    INCIDENTS
}

/// Returns the incident and the host of a record's key.
pub fn incident_of(record: &str) -> Option<(String, String)> {
    let parts: Vec<&str> = record.split('/').collect();
    match parts.as_slice() {
        [INCIDENTS, id, _, host, ..] => Some((unescaped(id), unescaped(host))),
        _ => None,
    }
}

/// Returns the directory of a day's chunks.
pub fn day(ns: u64) -> String {
    format!("{CHUNKS}/{}", clock::date_of(ns))
}

/// Returns the directory of the records of removals.
pub fn removals() -> &'static str {
    PRUNED
}

/// Returns the key of the summary of a run's chunks from this sequence number on.
pub fn summary(run: &Epoch, first: u64) -> String {
    format!("{SUMMARIES}/{}/{first:010}", run.prefix())
}

/// Returns the run and the first sequence number of the chunks in a summary.
pub fn summarised(key: &str) -> Option<(&str, u64)> {
    let (run, first) = key.strip_prefix(SUMMARIES)?.strip_prefix('/')?.rsplit_once('/')?;
    Some((run, first.parse().ok()?))
}

/// Returns the directory of the summaries.
pub fn summaries() -> &'static str {
    SUMMARIES
}

/// Returns the directory of the marks of chunks.
pub fn marked_chunks() -> String {
    mark(CHUNKS)
}

/// Returns the directory of the marks.
pub fn marks() -> &'static str {
    NEW
}

/// Returns the record that a key marks as new, and true if the key belongs to an index.
pub fn marked(key: &str) -> Option<(String, bool)> {
    let record = key.strip_prefix(NEW)?.strip_prefix('/')?;
    Some(match record.strip_suffix(ROWS) {
        Some(chunk) => (format!("{chunk}{MANIFEST}"), true),
        None => (record.to_owned(), false),
    })
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
    /// A run's part of an incident.
    Incident,
    /// A part of the index and its catalogue, or the mark of a record that is not in them yet.
    Catalogue,
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
            [INCIDENTS, _, _, _, _, name] if name.ends_with(MANIFEST) => Self::Incident,
            [PRUNED, name] if name.ends_with(MANIFEST) => Self::Pruned,
            [INDEX | NEW, _, ..] => Self::Catalogue,
            _ => Self::Foreign,
        }
    }
}

/// Escapes a name as a part of a key: bytes with a meaning to an object store or a file system become `=` and two
/// hexadecimal digits.
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

/// Returns the name of an escaped part of a key.
fn unescaped(part: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = match part {
        "=" => &[],
        part => part.as_bytes(),
    };
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte.filter(|_| *first == b'=') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinguished() {
        let epoch = Epoch { capture: "trawl".into(), host: "a.example".into(), boot: "0f".into(), epoch: "17".into() };
        // 27 November 2026, 22:31:19.
        let chunk = epoch.chunk(1_795_818_679_000_000_000, 7);
        assert_eq!(chunk.packets(), "chunks/2026-11-27/22/trawl/a.example/0f/17/0000000007.pcapng.zst");
        assert_eq!(Object::of(&chunk.packets()), Object::Packets(chunk.clone()));
        assert_eq!(Object::of(&chunk.manifest()), Object::Manifest(chunk.clone()));
        assert_eq!((chunk.run(), chunk.sequence()), (&*epoch.prefix(), 7));
        assert_eq!((chunk.host(), chunk.hour()), ("a.example".into(), "chunks/2026-11-27/22".into()));
        assert_eq!(Object::of(&new_index(&chunk)), Object::Catalogue);
        assert_eq!(marked(&new_index(&chunk)), Some((chunk.manifest(), true)));
        assert_eq!(marked(&mark(&epoch.end())), Some((epoch.end(), false)));
        assert_eq!(summarised(&summary(&epoch, 64)), Some((&*epoch.prefix(), 64)));
        assert_eq!(summarised(&mark(&epoch.end())), None);
        assert_eq!(Object::of(&pruned(17)), Object::Pruned);
        let record = incident("i", &epoch);
        assert_eq!(Object::of(&record), Object::Incident);
        assert_eq!(incident_of(&record), Some(("i".into(), "a.example".into())));
        assert_eq!(Object::of(&epoch.begin()), Object::Begin(epoch.prefix()));
        assert_eq!(Object::of(&epoch.end()), Object::End(epoch.prefix()));
        assert_eq!(Object::of("trawl/readme"), Object::Foreign);
    }

    #[test]
    fn names_cannot_escape_their_directory() {
        for name in ["..", "a/b", "", "=", "web=1", "é"] {
            assert_eq!(unescaped(&escaped(name)), name);
        }
        assert_eq!(escaped(".."), "=2e.");
        assert_eq!(escaped("a/b"), "a=2fb");
        assert_eq!(escaped(""), "=");
    }
}
