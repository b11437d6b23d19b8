//! Records of chunks and of runs of a capture. Manifests alone are authoritative: a chunk without one does not count as
//! stored.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use trawl_sys::clock::ClockState;

use crate::key::{ChunkKey, Epoch};

/// Version of the records' format, raised with each change of their fields.
pub const FORMAT: u32 = 3;

/// Packets of a capture by their fate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fates {
    pub seen: u64,
    pub filtered_out: u64,
    pub recorded: u64,
    pub lost: BTreeMap<String, u64>,
}

impl Fates {
    /// Returns the counts since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let lost = self.lost.iter().map(|(reason, count)| {
            let earlier = before.lost.get(reason).copied().unwrap_or(0);
            (reason.clone(), count.saturating_sub(earlier))
        });
        Self {
            seen: self.seen.saturating_sub(before.seen),
            filtered_out: self.filtered_out.saturating_sub(before.filtered_out),
            recorded: self.recorded.saturating_sub(before.recorded),
            lost: lost.collect(),
        }
    }

    pub fn add(&mut self, other: &trawl_pipeline::account::PacketAccount) {
        self.seen += other.seen;
        self.filtered_out += other.filtered_out;
        self.recorded += other.recorded;
        for (reason, count) in &other.lost {
            *self.lost.entry(reason.to_string()).or_default() += count;
        }
    }
}

/// Accuracy of the host's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    pub source: String,
    pub synchronised: bool,
    /// Bound of the clock's error; `null`: unknown.
    pub error_bound_ns: Option<u64>,
    pub tai_offset_s: Option<i32>,
}

impl Clock {
    pub fn now() -> Self {
        let ClockState { source, synchronised, error_bound_ns, tai_offset_s } = ClockState::read();
        Self { source, synchronised, error_bound_ns, tai_offset_s }
    }
}

/// Command and program of the capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The command's arguments.
    pub options: Vec<String>,
    pub trawl: String,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// State of a chunk's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Stored,
    /// Indexed in the store; the packets stay on the host, and may come later or not at all.
    OnHost,
    /// No packets since the last chunk: the manifest only shows that the capture is alive.
    Idle,
    /// Removed from a full spool before they were stored.
    EvictedSpoolFull,
    /// Refused by the spool's disk.
    EvictedSpoolFailed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    #[serde(flatten)]
    pub epoch: Epoch,
    pub sequence: u64,
    pub state: State,
    /// Hash of the compressed chunk.
    pub sha256: String,
    pub bytes: u64,
    pub uncompressed_bytes: u64,
    /// Time of the first packet, in nanoseconds since 1970.
    pub first_ns: Option<u64>,
    pub last_ns: Option<u64>,
    pub sealed_ns: u64,
    /// The same as time since the host's start; absent before format 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_boot_ns: Option<u64>,
    /// Packets in the chunk, in all and by interface.
    pub recorded: u64,
    pub interfaces: BTreeMap<String, u64>,
    /// Number of translated connections that the chunk describes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub translations: u64,
    pub since_last: Fates,
    pub in_all: Fates,
    pub clock: Clock,
    #[serde(flatten)]
    pub origin: Origin,
    /// True if the chunk was recovered from a killed capture.
    pub recovered: bool,
    pub seal: String,
}

impl Manifest {
    pub fn key(&self) -> ChunkKey {
        self.epoch.chunk(self.time(), self.sequence)
    }

    /// Returns the time by which the chunk is filed, in nanoseconds since 1970.
    pub fn time(&self) -> u64 {
        self.first_ns.unwrap_or(self.sealed_ns)
    }
}

/// Record of a capture's start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    pub format: u32,
    #[serde(flatten)]
    pub epoch: Epoch,
    pub began_ns: u64,
    /// The same as time since the host's start; absent before format 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_boot_ns: Option<u64>,
    pub interfaces: Vec<String>,
    /// True if an earlier run ended although the capture should have gone on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
    pub clock: Clock,
    #[serde(flatten)]
    pub origin: Origin,
    pub seal: String,
}

/// Record of a capture's end, with its account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub format: u32,
    #[serde(flatten)]
    pub epoch: Epoch,
    pub ended_ns: u64,
    /// The same as time since the host's start; absent before format 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_boot_ns: Option<u64>,
    pub reason: String,
    /// True if it ended because its agent was gone, and should have gone on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub orphaned: bool,
    pub account: Fates,
    /// Number of manifests of the run.
    pub chunks: u64,
    /// Recorded packets of each interface.
    pub interfaces: BTreeMap<String, u64>,
    pub clock: Clock,
    pub seal: String,
}

/// A run's packets of an incident, which its host stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    pub format: u32,
    #[serde(flatten)]
    pub epoch: Epoch,
    pub incident: String,
    /// Description of the event.
    pub why: String,
    /// The window of time, by the clock of the requester.
    pub from_ns: u64,
    pub to_ns: u64,
    /// All hosts that were asked; empty if the records of other hosts have them.
    pub hosts: Vec<String>,
    /// Time at which the host had protected its packets from removal.
    pub frozen_ns: u64,
    /// Time since which the host still had all packets of the run.
    pub since_ns: u64,
    /// Time until which it had them, if the run ended before the window, or did not seal its last chunk in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ns: Option<u64>,
    /// Chunks that have packets of the window, and packets in them.
    pub chunks: u64,
    pub bytes: u64,
    pub recorded: u64,
    /// Packets lost before they were recorded, while these chunks were made, by reason.
    pub lost: BTreeMap<String, u64>,
    pub clock: Clock,
    pub seal: String,
}

/// Chunks that have been removed together, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pruned {
    pub format: u32,
    pub pruned_ns: u64,
    /// `age` or `size`.
    pub reason: String,
    /// Common part of the keys of each chunk's objects.
    pub chunks: Vec<String>,
    pub recorded: u64,
    pub bytes: u64,
    pub seal: String,
}

/// The reason why a record cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    Changed,
    /// Its seal is right, but it has another format or unknown fields.
    Newer,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Changed => "it was changed",
            Self::Newer => "a newer trawl wrote it: update this one",
        })
    }
}

/// The fields that the records of all formats have.
#[derive(Deserialize)]
struct Header {
    format: u32,
    seal: String,
}

impl Header {
    /// Returns true if the seal in a record's text is the hash of the text without it.
    fn seals(&self, text: &str) -> bool {
        let seal = format!("\"seal\": \"{}\"", self.seal);
        let unsealed = text.replacen(&seal, "\"seal\": \"\"", 1);
        sha256(unsealed.as_bytes()) == self.seal
    }
}

/// A record that contains its own SHA-256, so that modifications are detected.
pub trait Sealed: Serialize + DeserializeOwned + Clone {
    fn seal(&mut self) -> &mut String;

    /// Serializes the record for the store.
    fn to_bytes(&self) -> Vec<u8> {
        let mut sealed = self.clone();
        sealed.seal().clear();
        *sealed.seal() = sha256(&json(&sealed));
        json(&sealed)
    }

    /// Parses a record.
    fn from_bytes(bytes: &[u8]) -> Result<Self, Unreadable> {
        let text = std::str::from_utf8(bytes).map_err(|_| Unreadable::Changed)?;
        let header: Header = serde_json::from_str(text).map_err(|_| Unreadable::Changed)?;
        match serde_json::from_str::<Self>(text) {
            Ok(record) if header.format <= FORMAT && record.to_bytes() == bytes => Ok(record),
            _ if header.format >= FORMAT && header.seals(text) => Err(Unreadable::Newer),
            _ => Err(Unreadable::Changed),
        }
    }
}

macro_rules! sealed {
    ($($record:ty),*) => {$(
        impl Sealed for $record {
            fn seal(&mut self) -> &mut String {
                &mut self.seal
            }
        }
    )*};
}
sealed!(Manifest, Begin, End, Incident, Pruned);

fn json(record: &impl Serialize) -> Vec<u8> {
    // Strings, numbers and maps with string keys always serialize to JSON.
    let mut text = serde_json::to_vec_pretty(record).unwrap_or_default();
    text.push(b'\n');
    text
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pruned(format: u32) -> Pruned {
        Pruned {
            format,
            pruned_ns: 1,
            reason: "age".into(),
            chunks: vec!["a".into()],
            recorded: 20,
            bytes: 300,
            seal: String::new(),
        }
    }

    #[test]
    fn modified_record_is_detected() {
        let bytes = pruned(FORMAT).to_bytes();
        let read = Pruned::from_bytes(&bytes).expect("as it was written");
        assert_eq!(read.recorded, 20);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let read = Pruned::from_bytes(&changed);
            assert_eq!(read, Err(Unreadable::Changed), "byte {at}");
        }
    }

    #[test]
    fn record_of_a_newer_trawl_does_not_count_as_modified() {
        let newer = pruned(FORMAT + 1).to_bytes();
        assert_eq!(Pruned::from_bytes(&newer), Err(Unreadable::Newer));
        // A field that this trawl does not know, a value that it does not know, and a field that no longer exists.
        let text = String::from_utf8(pruned(FORMAT).to_bytes()).expect("text");
        for (from, to) in [
            ("\"reason\"", "\"operator\": 7,\n  \"reason\""),
            ("\"reason\": \"age\"", "\"reason\": [\"age\"]"),
            ("  \"recorded\": 20,\n", ""),
        ] {
            let header: Header = serde_json::from_str(&text).expect("a record");
            let unsealed = text.replace(&header.seal, "").replace(from, to);
            let seal = format!("\"seal\": \"{}\"", sha256(unsealed.as_bytes()));
            let newer = unsealed.replace("\"seal\": \"\"", &seal);
            assert_ne!(newer, text);
            let read = Pruned::from_bytes(newer.as_bytes());
            assert_eq!(read, Err(Unreadable::Newer), "{newer}");
            let changed = newer.replace("300", "301");
            let read = Pruned::from_bytes(changed.as_bytes());
            assert_eq!(read, Err(Unreadable::Changed), "{newer}");
        }
    }
}
