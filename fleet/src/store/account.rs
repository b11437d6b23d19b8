//! The inventory of a store from its manifests, and the packets that were recorded but are not in it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use serde::Serialize;
use trawl_sys::Result;

use super::remote::Store;
use super::waiting;
use trawl_spool::key::{ChunkKey, Epoch, Object};
use trawl_spool::manifest::{Begin, End, Manifest, Pruned, Sealed, State};

/// Packets, end to end: recorded = stored + spooled + evicted + unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    pub recorded: u64,
    pub stored: u64,
    pub spooled: u64,
    /// Removed before they were stored, or by `prune` afterwards.
    pub evicted: u64,
    /// Pruned packets, a part of `evicted`.
    pub pruned: u64,
    pub unknown: u64,
}

impl Account {
    fn add(&mut self, other: &Self) {
        self.recorded += other.recorded;
        self.stored += other.stored;
        self.spooled += other.spooled;
        self.evicted += other.evicted;
        self.pruned += other.pruned;
        self.unknown += other.unknown;
    }
}

/// Sequence numbers of a run without a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    pub from: u64,
    pub to: u64,
    /// Number of missing packets, if later chunks show it.
    pub packets: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct EpochAccount {
    #[serde(flatten)]
    pub epoch: Epoch,
    #[serde(flatten)]
    pub account: Account,
    pub chunks: u64,
    pub bytes: u64,
    pub first_ns: Option<u64>,
    pub last_ns: Option<u64>,
    /// Reason for the end; absent if the run goes on or was killed: then its last packets are unknown.
    pub ended: Option<String>,
    /// Start of the run; absent if its record is missing.
    pub began_ns: Option<u64>,
    pub interfaces: Vec<String>,
    pub lost: BTreeMap<String, u64>,
    pub gaps: Vec<Gap>,
    /// Largest error of the host's clock; absent: unknown.
    pub clock_error_bound_ns: Option<u64>,
}

/// A manifest, and whether it is still in the spool.
type Held<'a> = (&'a Manifest, bool);

/// All records of a store.
#[derive(Debug, Default)]
pub struct Inventory {
    pub begins: HashMap<String, Begin>,
    pub ends: HashMap<String, End>,
    pub manifests: BTreeMap<ChunkKey, Manifest>,
    /// Common parts of the keys of removed chunks.
    pub pruned: HashSet<String>,
    /// Size of each chunk in the store, in bytes.
    pub packets: HashMap<ChunkKey, u64>,
    /// Keys of the index.
    pub indexes: HashSet<String>,
    /// Keys of modified records.
    pub broken: Vec<String>,
    pub foreign: Vec<String>,
    /// Manifests in this host's spool.
    pub spooled: Vec<Manifest>,
}

impl Inventory {
    /// Reads a store, and a spool's contents for it if given.
    pub fn read(store: &Store, spool: Option<&Path>) -> Result<Self> {
        let mut all = Self::default();
        let mut records = Vec::new();
        for object in store.list(None)? {
            match Object::of(&object.key) {
                Object::Packets(chunk) => {
                    all.packets.insert(chunk, object.bytes);
                }
                Object::Index => {
                    all.indexes.insert(object.key);
                }
                Object::Foreign => all.foreign.push(object.key),
                Object::Begin(_) | Object::End(_) | Object::Manifest(_) | Object::Pruned => {
                    records.push(object.key);
                }
            }
        }
        for (key, bytes) in records.iter().zip(store.read_all(&records)?) {
            if !all.insert(key, &bytes) {
                all.broken.push(key.clone());
            }
        }
        if let Some(spool) = spool {
            let waiting = waiting::waiting_for(spool, store.url());
            let is_new = |manifest: &Manifest| !all.manifests.contains_key(&manifest.key());
            all.spooled = waiting.manifests.into_iter().filter(is_new).collect();
            for begin in waiting.begins {
                all.begins.entry(begin.epoch.prefix()).or_insert(begin);
            }
            for end in waiting.ends {
                all.ends.entry(end.epoch.prefix()).or_insert(end);
            }
        }
        Ok(all)
    }

    /// Adds a record; returns false if it was modified.
    fn insert(&mut self, key: &str, bytes: &[u8]) -> bool {
        fn insert<K: std::hash::Hash + Eq, R: Sealed>(
            into: &mut HashMap<K, R>,
            name: K,
            bytes: &[u8],
        ) -> bool {
            let record = R::from_bytes(bytes);
            let is_good = record.is_some();
            into.extend(record.map(|record| (name, record)));
            is_good
        }
        match Object::of(key) {
            Object::Begin(epoch) => insert(&mut self.begins, epoch, bytes),
            Object::End(epoch) => insert(&mut self.ends, epoch, bytes),
            Object::Pruned => {
                let record = Pruned::from_bytes(bytes);
                let is_good = record.is_some();
                let chunks = record.into_iter().flat_map(|record| record.chunks);
                self.pruned.extend(chunks);
                is_good
            }
            Object::Manifest(chunk) => match Manifest::from_bytes(bytes) {
                Some(manifest) if chunk.is_of(&manifest.epoch, manifest.sequence) => {
                    self.manifests.insert(chunk, manifest);
                    true
                }
                _ => false,
            },
            Object::Packets(_) | Object::Index | Object::Foreign => true,
        }
    }

    pub fn is_pruned(&self, chunk: &ChunkKey) -> bool {
        self.pruned.contains(&chunk.to_string())
    }

    /// Returns the account of each run of a capture, the oldest first.
    pub fn epochs(&self) -> Vec<EpochAccount> {
        let mut epochs: BTreeMap<String, (&Epoch, Vec<Held<'_>>)> = BTreeMap::new();
        let named = self.begins.values().map(|begin| &begin.epoch);
        for epoch in named.chain(self.ends.values().map(|end| &end.epoch)) {
            epochs.entry(epoch.prefix()).or_insert((epoch, Vec::new()));
        }
        let stored = self.manifests.values().map(|manifest| (manifest, false));
        let spooled = self.spooled.iter().map(|manifest| (manifest, true));
        for held in stored.chain(spooled) {
            let epoch = &held.0.epoch;
            let entry = epochs.entry(epoch.prefix());
            entry.or_insert((epoch, Vec::new())).1.push(held);
        }
        let mut accounts: Vec<EpochAccount> = epochs
            .into_iter()
            .map(|(prefix, (epoch, held))| self.epoch(&prefix, epoch, held))
            .collect();
        accounts.sort_by(|one, other| one.epoch.epoch.cmp(&other.epoch.epoch));
        accounts
    }

    pub fn total(&self) -> Account {
        let mut total = Account::default();
        self.epochs()
            .iter()
            .for_each(|epoch| total.add(&epoch.account));
        total
    }

    fn epoch(&self, prefix: &str, epoch: &Epoch, held: Vec<Held<'_>>) -> EpochAccount {
        let begin = self.begins.get(prefix);
        let end = self.ends.get(prefix);
        let mut row: Vec<&Manifest> = Vec::new();
        let mut names: BTreeSet<&String> = BTreeSet::new();
        let mut account = Account::default();
        let (mut bytes, mut chunks) = (0, 0);
        let (mut first_ns, mut last_ns): (Option<u64>, Option<u64>) = (None, None);
        let mut bound = Some(0);
        for (manifest, is_spooled) in held {
            row.push(manifest);
            names.extend(manifest.interfaces.keys());
            let key = manifest.key();
            let recorded = manifest.recorded;
            match manifest.state {
                State::Stored if is_spooled => account.spooled += recorded,
                State::Stored if self.is_pruned(&key) => {
                    account.evicted += recorded;
                    account.pruned += recorded;
                }
                // The manifest says that the chunk is stored.
                State::Stored if !self.packets.contains_key(&key) => account.unknown += recorded,
                State::Stored => {
                    account.stored += recorded;
                    bytes += manifest.bytes;
                    chunks += 1;
                }
                State::Idle => {}
                State::EvictedSpoolFull | State::EvictedSpoolFailed => {
                    account.evicted += recorded;
                }
            }
            first_ns = match (first_ns, manifest.first_ns) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
            last_ns = last_ns.max(manifest.last_ns);
            bound = bound
                .zip(manifest.clock.error_bound_ns)
                .map(|(a, b)| a.max(b));
        }
        names.extend(end.iter().flat_map(|end| end.interfaces.keys()));
        names.extend(begin.iter().flat_map(|begin| &begin.interfaces));
        row.sort_by_key(|manifest| manifest.sequence);
        let gaps = gaps_of(&row, end.map(|end| (end.chunks, end.account.recorded)));
        let lost = match (end, row.last()) {
            (Some(end), _) => end.account.lost.clone(),
            (None, Some(last)) => last.in_all.lost.clone(),
            (None, None) => BTreeMap::new(),
        };
        account.unknown += gaps.iter().filter_map(|gap| gap.packets).sum::<u64>();
        account.recorded = account.stored + account.spooled + account.evicted + account.unknown;
        EpochAccount {
            account,
            chunks,
            bytes,
            first_ns,
            last_ns,
            ended: end.map(|end| end.reason.clone()),
            began_ns: begin.map(|begin| begin.began_ns),
            interfaces: names.into_iter().cloned().collect(),
            lost,
            gaps,
            clock_error_bound_ns: bound.filter(|_| chunks > 0),
            epoch: epoch.clone(),
        }
    }
}

/// Returns the gaps between manifests. The manifests around a gap show the number of packets in it.
fn gaps_of(row: &[&Manifest], end: Option<(u64, u64)>) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let mut next = 0;
    let mut recorded = 0;
    let mut gap = |from: u64, to: u64, packets: Option<u64>| {
        gaps.push(Gap { from, to, packets });
    };
    for manifest in row {
        let before = manifest.in_all.recorded.saturating_sub(manifest.recorded);
        if manifest.sequence > next {
            gap(
                next,
                manifest.sequence - 1,
                Some(before.saturating_sub(recorded)),
            );
        }
        next = manifest.sequence + 1;
        recorded = manifest.in_all.recorded;
    }
    if let Some((chunks, in_all)) = end
        && (next < chunks || recorded < in_all)
    {
        gap(
            next,
            chunks.max(next + 1) - 1,
            Some(in_all.saturating_sub(recorded)),
        );
    }
    gaps
}
