//! A stream of JetStream as trawl uses it: the last messages of each subject, by numbers that only grow. Streams are in
//! memory, and can be kept in files.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::path::Path;

use async_nats::jetstream::stream::Config;
use data_encoding::BASE64;
use serde::{Deserialize, Serialize};
use trawl_sys::files::create;
use trawl_sys::{Error, Result, clock};

use super::protocol::{covers, literal};

/// Maximum number and bytes of a subject's messages in a stream that keeps more than the last one: a host can remove its
/// own messages by newer ones, but none of another.
const MESSAGES: usize = 1000;
const BYTES: usize = 1 << 20;

/// A message in a stream.
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
    /// Numbers of each subject's messages, oldest first.
    numbers: HashMap<String, VecDeque<u64>>,
}

/// Numbers of a stored message and of the messages that it replaced.
#[derive(Debug, PartialEq, Eq)]
pub struct Stored {
    pub number: u64,
    pub replaced: Vec<u64>,
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
        for (number, entry) in &stream.contents.entries {
            stream.numbers.entry(entry.subject.clone()).or_default().push_back(*number);
        }
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
        let numbers = self.numbers.entry(subject.to_owned()).or_default();
        let latest = numbers.back().copied().unwrap_or(0);
        if expected.is_some_and(|expected| expected != latest) {
            return Err(latest);
        }
        let entries = &mut self.contents.entries;
        let most = if self.config.max_messages_per_subject == 1 { 1 } else { MESSAGES };
        let length = |number: &u64| entries.get(number).map_or(0, |entry| entry.payload.len());
        let mut bytes = payload.len() + numbers.iter().map(length).sum::<usize>();
        let mut replaced = Vec::new();
        while numbers.len() >= most || bytes > BYTES {
            let Some(oldest) = numbers.pop_front() else { break };
            bytes -= entries.remove(&oldest).map_or(0, |entry| entry.payload.len());
            replaced.push(oldest);
        }
        self.contents.last += 1;
        let number = self.contents.last;
        let entry = Entry { subject: subject.to_owned(), time_ns: clock::wall(), payload: payload.to_vec() };
        entries.insert(number, entry);
        numbers.push_back(number);
        Ok(Stored { number, replaced })
    }

    pub fn last_of(&self, subject: &str) -> Option<(u64, &Entry)> {
        let number = *self.numbers.get(subject)?.back()?;
        Some((number, self.contents.entries.get(&number)?))
    }

    /// Returns the first message after this number.
    pub fn next(&self, number: u64) -> Option<(u64, &Entry)> {
        self.after(number).next().map(|(number, entry)| (*number, entry))
    }

    /// Returns the number after which the messages since a time follow.
    pub fn before(&self, time_ns: u64) -> u64 {
        let mut entries = self.contents.entries.iter();
        entries.find(|(_, entry)| entry.time_ns >= time_ns).map_or(self.last(), |(number, _)| number - 1)
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
    use crate::bus::{fleet::streams, log};

    #[test]
    fn last_message_of_each_subject_is_kept_and_saved() {
        let [desired, _] = streams(1);
        let mut stream = Stream::new(desired.clone());
        let first = stream.last();
        assert_eq!(stream.store("$KV.trawl.cmd.a", Some(0), b"1"), Ok(Stored { number: first + 1, replaced: vec![] }));
        assert_eq!(stream.store("$KV.trawl.cmd.a", Some(0), b"x"), Err(first + 1));
        assert!(stream.store("$KV.trawl.cmd.b", None, b"2").is_ok());
        let stored = stream.store("$KV.trawl.cmd.a", Some(first + 1), b"3");
        assert_eq!(stored, Ok(Stored { number: first + 3, replaced: vec![first + 1] }));
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

    #[test]
    fn messages_of_one_subject_replace_none_of_another() {
        let mut stream = Stream::new(log::stream(1));
        let first = stream.store("trawl.log.b", None, b"kept").expect("it is stored").number;
        for _ in 0..=MESSAGES {
            assert!(stream.store("trawl.log.a", None, b"x").is_ok());
        }
        assert_eq!(stream.count(0), MESSAGES as u64 + 1);
        assert!(stream.last_of("trawl.log.b").is_some_and(|(number, _)| number == first));
        let stored = stream.store("trawl.log.a", None, &vec![0; BYTES]).expect("it is stored");
        assert_eq!((stored.replaced.len(), stream.count(0)), (MESSAGES, 2));
        assert_eq!((stream.before(0), stream.before(u64::MAX)), (first - 1, stream.last()));
    }
}
