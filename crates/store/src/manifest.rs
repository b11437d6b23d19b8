//! What is known of a chunk, and of a run of a capture. Manifests are the only truth: a chunk without one is not there.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use trawl_sys::clock::ClockState;

use crate::key::{ChunkKey, Epoch};

pub const FORMAT: u32 = 1;

/// Which way packets went that an interface saw.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fates {
    pub seen: u64,
    pub filtered_out: u64,
    pub recorded: u64,
    pub lost: BTreeMap<String, u64>,
}

impl Fates {
    /// What came since `before`.
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

    pub fn add(&mut self, other: &trawl_pipeline::account::Account) {
        self.seen += other.seen;
        self.filtered_out += other.filtered_out;
        self.recorded += other.recorded;
        for (reason, count) in &other.lost {
            *self.lost.entry(reason.to_string()).or_default() += count;
        }
    }
}

/// How far the host's clock could be trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    pub source: String,
    pub synchronised: bool,
    /// `null`: unknown.
    pub error_bound_ns: Option<u64>,
    pub tai_offset_s: Option<i32>,
}

impl Clock {
    pub fn now() -> Self {
        let ClockState {
            source,
            synchronised,
            error_bound_ns,
            tai_offset_s,
        } = ClockState::read();
        Self {
            source,
            synchronised,
            error_bound_ns,
            tai_offset_s,
        }
    }
}

/// What the capture was asked for, and by what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The command's arguments.
    pub options: Vec<String>,
    pub trawl: String,
}

/// Where the packets of a chunk went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Stored,
    /// Removed from a full spool before they were stored.
    EvictedSpoolFull,
    /// The spool's disk took them no more.
    EvictedSpoolFailed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    #[serde(flatten)]
    pub epoch: Epoch,
    pub interface: String,
    pub sequence: u64,
    pub state: State,
    /// Of the compressed chunk.
    pub sha256: String,
    pub bytes: u64,
    pub uncompressed_bytes: u64,
    /// Of the first and the last packet, in nanoseconds since 1970.
    pub first_ns: Option<u64>,
    pub last_ns: Option<u64>,
    pub sealed_ns: u64,
    /// Packets in the chunk.
    pub recorded: u64,
    pub since_last: Fates,
    pub in_all: Fates,
    pub clock: Clock,
    #[serde(flatten)]
    pub origin: Origin,
    /// Made from what a capture that was killed left behind.
    pub recovered: bool,
    pub seal: String,
}

impl Manifest {
    pub fn key(&self) -> ChunkKey {
        self.epoch.chunk(&self.interface, self.sequence)
    }
}

/// Says that a capture began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    pub format: u32,
    #[serde(flatten)]
    pub epoch: Epoch,
    pub began_ns: u64,
    pub interfaces: Vec<String>,
    pub clock: Clock,
    #[serde(flatten)]
    pub origin: Origin,
    pub seal: String,
}

/// What an interface had in all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceEnd {
    pub interface: String,
    pub chunks: u64,
    pub recorded: u64,
}

/// Says that a capture ended, and with which account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub format: u32,
    #[serde(flatten)]
    pub epoch: Epoch,
    pub ended_ns: u64,
    pub reason: String,
    pub account: Fates,
    pub interfaces: Vec<InterfaceEnd>,
    pub clock: Clock,
    pub seal: String,
}

/// Why a chunk is not there any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    pub format: u32,
    pub pruned_ns: u64,
    /// `age` or `size`.
    pub reason: String,
    pub recorded: u64,
    pub bytes: u64,
    pub seal: String,
}

/// A record that carries the SHA-256 of itself, so that a changed one is noticed.
pub trait Sealed: Serialize + DeserializeOwned + Clone {
    fn seal(&mut self) -> &mut String;

    /// As it is stored.
    fn to_bytes(&self) -> Vec<u8> {
        let mut sealed = self.clone();
        sealed.seal().clear();
        *sealed.seal() = sha256(&json(&sealed));
        json(&sealed)
    }

    /// `None` if it is not one, or was changed.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(bytes).ok()?;
        (record.to_bytes() == bytes).then_some(record)
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
sealed!(Manifest, Begin, End, Tombstone);

fn json(record: &impl Serialize) -> Vec<u8> {
    // Strings, numbers and maps with strings for keys: nothing that JSON cannot say.
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

    #[test]
    fn a_changed_record_is_noticed() {
        let tombstone = Tombstone {
            format: FORMAT,
            pruned_ns: 1,
            reason: "age".into(),
            recorded: 20,
            bytes: 300,
            seal: String::new(),
        };
        let bytes = tombstone.to_bytes();
        let read = Tombstone::from_bytes(&bytes).expect("as it was written");
        assert_eq!(read.recorded, 20);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(Tombstone::from_bytes(&changed), None, "byte {at}");
        }
    }
}
