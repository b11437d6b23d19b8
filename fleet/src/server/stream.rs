//! A stream of JetStream as trawl uses it: the last message of each subject, by numbers that only grow. Streams are in
//! memory, and can be kept in files.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::path::Path;

use async_nats::jetstream::stream::Config;
use data_encoding::BASE64;
use serde::{Deserialize, Serialize};
use trawl_sys::files::create;
use trawl_sys::{Error, Result, clock};

use super::protocol::{covers, literal};

/// The last message of a subject.
#[derive(Debug, Deserialize, Serialize)]
pub struct Entry {
    pub subject: String,
    pub time_ns: u64,
    #[serde(with = "base64")]
    pub payload: Vec<u8>,
}

mod base64 {
    use super::BASE64;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64.decode(text.as_bytes()).map_err(de::Error::custom)
    }
}

/// A stream's contents, as the file has them.
#[derive(Debug, Deserialize, Serialize)]
struct Contents {
    last: u64,
    entries: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
pub struct Stream {
    pub config: Config,
    pub created_ns: u64,
    contents: Contents,
    numbers: HashMap<String, u64>,
}

/// Numbers of a stored message and of the message that it replaced.
#[derive(Debug, PartialEq, Eq)]
pub struct Stored {
    pub number: u64,
    pub replaced: Option<u64>,
}

impl Stream {
    /// Creates an empty stream. Its numbers begin with the time, so that readers who continue after a restart miss none.
    pub fn new(config: Config) -> Self {
        let created_ns = clock::wall();
        let contents = Contents { last: created_ns / 1000, entries: BTreeMap::new() };
        Self { config, created_ns, contents, numbers: HashMap::new() }
    }

    /// Reads a stream from its file; without the file, it is empty.
    pub fn load(config: Config, path: &Path) -> Result<Self> {
        let mut stream = Self::new(config);
        let what = || format!("cannot read {}", path.display());
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(stream),
            Err(error) => return Err(Error::os(what(), error)),
        };
        let saved: Contents = serde_json::from_slice(&text).map_err(|e| Error::failed(what(), e))?;
        // The bus may have ended after it gave out higher numbers than the file has.
        stream.contents = Contents { last: saved.last.max(stream.contents.last), ..saved };
        let entries = stream.contents.entries.iter();
        stream.numbers = entries.map(|(number, entry)| (entry.subject.clone(), *number)).collect();
        Ok(stream)
    }

    /// Replaces the stream's file.
    pub fn save(&self, path: &Path) -> Result<()> {
        let what = || format!("cannot write {}", path.display());
        let text = serde_json::to_vec(&self.contents).map_err(|e| Error::failed(what(), e))?;
        create::replace(path, &text).map_err(|e| Error::os(what(), e))
    }

    /// Returns true if a subject belongs to the stream, which none with wildcards does.
    pub fn has(&self, subject: &str) -> bool {
        literal(subject).is_ok() && self.config.subjects.iter().any(|pattern| covers(pattern, subject))
    }

    /// Stores a message; if another number than the expected one is the subject's last, returns that as the error.
    pub fn store(&mut self, subject: &str, expected: Option<u64>, payload: &[u8]) -> std::result::Result<Stored, u64> {
        let replaced = self.numbers.get(subject).copied();
        let latest = replaced.unwrap_or(0);
        if expected.is_some_and(|expected| expected != latest) {
            return Err(latest);
        }
        let entries = &mut self.contents.entries;
        replaced.map(|number| entries.remove(&number));
        self.contents.last += 1;
        let number = self.contents.last;
        let entry = Entry { subject: subject.to_owned(), time_ns: clock::wall(), payload: payload.to_vec() };
        entries.insert(number, entry);
        self.numbers.insert(subject.to_owned(), number);
        Ok(Stored { number, replaced })
    }

    pub fn last_of(&self, subject: &str) -> Option<(u64, &Entry)> {
        let number = *self.numbers.get(subject)?;
        Some((number, self.contents.entries.get(&number)?))
    }

    /// Returns the first message after this number.
    pub fn next(&self, number: u64) -> Option<(u64, &Entry)> {
        self.after(number).next().map(|(number, entry)| (*number, entry))
    }

    /// Returns the number of messages after this number.
    pub fn count(&self, number: u64) -> u64 {
        self.after(number).count() as u64
    }

    fn after(&self, number: u64) -> impl Iterator<Item = (&u64, &Entry)> {
        self.contents.entries.range((Bound::Excluded(number), Bound::Unbounded))
    }

    pub fn last(&self) -> u64 {
        self.contents.last
    }

    /// Returns the number of the oldest message, or of the next one if the stream is empty.
    pub fn first(&self) -> u64 {
        self.contents.entries.keys().next().map_or(self.contents.last + 1, |number| *number)
    }

    /// Returns the bytes of all messages.
    pub fn bytes(&self) -> usize {
        self.contents.entries.values().map(|entry| entry.payload.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::fleet::streams;

    #[test]
    fn last_message_of_each_subject_is_kept_and_saved() {
        let [desired, _] = streams(1);
        let mut stream = Stream::new(desired.clone());
        let first = stream.last();
        assert_eq!(stream.store("$KV.trawl.cmd.a", Some(0), b"1"), Ok(Stored { number: first + 1, replaced: None }));
        assert_eq!(stream.store("$KV.trawl.cmd.a", Some(0), b"x"), Err(first + 1));
        assert!(stream.store("$KV.trawl.cmd.b", None, b"2").is_ok());
        let stored = stream.store("$KV.trawl.cmd.a", Some(first + 1), b"3");
        assert_eq!(stored, Ok(Stored { number: first + 3, replaced: Some(first + 1) }));
        assert_eq!((stream.count(0), stream.count(first + 2), stream.count(first + 3)), (2, 1, 0));
        assert!(stream.has("$KV.trawl.cmd.c") && !stream.has("$KV.trawl.state.c") && !stream.has("$KV.trawl.cmd.*"));
        let path = std::env::temp_dir().join(format!("trawl-stream-{}", std::process::id()));
        stream.save(&path).expect("it is written");
        let read = Stream::load(desired.clone(), &path).expect("it is read");
        std::fs::remove_file(&path).expect("a file");
        let (number, entry) = read.last_of("$KV.trawl.cmd.a").expect("a message");
        assert_eq!((number, entry.payload.as_slice()), (first + 3, &b"3"[..]));
        assert!(read.last() >= first + 3);
        assert_eq!(Stream::load(desired, &path).expect("an empty one").count(0), 0);
    }
}
