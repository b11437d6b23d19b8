//! Removes the oldest chunks with their index. Their manifests stay, and a record names them with time and reason.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use trawl_sys::events::signal_is_pending;
use trawl_sys::{Error, Result, clock};

use crate::catalogue::lease::Lease;
use crate::catalogue::new_records::{Marks, Source};
use crate::catalogue::unpublished::Draft;
use crate::catalogue::update::rewrite_without;
use crate::catalogue::{Catalogue, Change, date_of};
use crate::object::remote::{Failure, Store};
use crate::runs::evidence::Evidence;
use crate::runs::{Fate, Packets};
use trawl_spool::key::{self, ChunkKey, HOUR_NS};
use trawl_spool::manifest::{self, FORMAT, Manifest, Sealed, State};

/// Limits of a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Maximum age of a chunk's last packet.
    pub keep: Option<Duration>,
    /// Maximum total size; the newest chunks stay.
    pub max_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Pruned {
    pub chunks: u64,
    pub packets: u64,
    pub bytes: u64,
    pub kept_chunks: u64,
    pub kept_bytes: u64,
}

const WHAT: &str = "cannot prune the store";
/// Bytes that a full store needs for a small object, at most.
const ROOM: u64 = 64 << 10;
/// Chunks removed together: a record names them all.
const AT_ONCE: usize = 10_000;

/// Prunes a store; with `dry`, only counts the chunks that would be removed. Ends early, without the older days, if a
/// signal to end the process waits.
pub fn prune(store: &Store, limits: Limits, dry: bool) -> Result<Pruned> {
    let mut lease = if dry { None } else { Lease::acquire_if_room(store)? };
    let now = clock::wall();
    // The earlier of both clocks counts: a clock that is ahead, this host's or the store's, removes nothing too early.
    let by_store = lease.as_ref().and_then(Lease::time);
    let earliest = by_store.map_or(now, |time| time.min(now));
    let marks = Marks::list(store)?;
    let catalogue = Catalogue::read(store)?;
    let known = catalogue.runs(store)?;
    let new = marks.read(store, &known, Source::Records)?;
    new.evidence.check_versions(WHAT)?;
    let mut all = known.clone();
    all.add(new.runs(|_| true).by_day());
    let mut selection = Selection::new(limits, earliest);
    let mut change = Change { runs: known, ..Change::default() };
    let mut time = now;
    let mut draft = Draft::new(store);
    let mut refused = Ok(());
    // The days are visited from the newest to the oldest, since the newest chunks stay.
    for (day, packets) in all.packets_of_days().into_iter().rev() {
        let has_some = packets.chunks > 0 || packets.on_host > 0;
        if !has_some || selection.keeps_all_of(&packets) {
            continue;
        }
        if signal_is_pending() {
            break;
        }
        let mut evidence = Evidence::below(store, Some(&key::day(day * HOUR_NS)))?;
        evidence.add_removals(store)?;
        refused = evidence.check_versions(WHAT);
        if refused.is_err() {
            break;
        }
        let gone = selection.choose(&evidence);
        if dry {
            continue;
        }
        for (reason, why) in [("age", Why::Age), ("size", Why::Size)] {
            let chunks: Vec<&Manifest> = gone.iter().filter(|one| one.1 == why).map(|one| &one.0).collect();
            for chunks in chunks.chunks(AT_ONCE) {
                record(store, chunks, reason, time)?;
                time += 1;
            }
        }
        let keys = || gone.iter().map(|(manifest, _)| manifest.key());
        remove(store, keys().map(|key| key.packets()).collect())?;
        let unknown = gone.iter().map(|(manifest, _)| manifest);
        let unknown = unknown.filter(|one| !change.runs.has(&one.epoch, one.sequence));
        for manifest in unknown {
            // Its index was the mark of a manifest that the catalogue does not have.
            let marked = store.overwrite(&key::mark(&manifest.key().manifest()), Vec::new());
            marked.map_err(|e| Error::failed("cannot mark the pruned chunks", e))?;
        }
        remove(store, keys().map(|key| key::new_index(&key)).collect())?;
        for key in keys() {
            evidence.packets.remove(&key);
            evidence.pruned.insert(key.to_string());
        }
        let manifests = &mut evidence.manifests;
        manifests.retain(|_, one| change.runs.has(&one.epoch, one.sequence));
        if evidence.manifests.keys().any(|key| evidence.is_pruned(key)) {
            // The facts of the whole day are replaced, because an earlier removal may have been interrupted.
            let facts = evidence.runs(|_| Fate::Indexed).of_day(day);
            let pruned = evidence.manifests.keys().filter(|key| evidence.is_pruned(key));
            let pruned: HashSet<String> = pruned.map(ChunkKey::packets).collect();
            let of_day = date_of(day);
            let files = catalogue.files().iter().filter(|file| file.date == of_day);
            let files: Vec<_> = files.collect();
            let mut step = || lease.iter_mut().for_each(Lease::renew);
            change.add.extend(rewrite_without(&mut draft, day, &files, &pruned, &mut step)?);
            change.remove.extend(files.iter().map(|file| file.key.clone()));
            change.runs.refine(day, facts.clone().by_day());
            change.hours.insert(day, facts);
        }
    }
    if !change.hours.is_empty() {
        catalogue.commit(draft, change)?;
    }
    refused.map(|()| selection.pruned)
}

/// Reason for a chunk's removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Age,
    Size,
    /// An earlier removal was interrupted.
    Again,
}

/// Decides which chunks are removed, from the newest day to the oldest.
struct Selection {
    /// Chunks whose last packet is older are removed.
    oldest: Option<u64>,
    max_bytes: Option<u64>,
    /// The newest stay: no older chunk fills the space left by a large one.
    is_full: bool,
    pruned: Pruned,
}

impl Selection {
    fn new(limits: Limits, now: u64) -> Self {
        let age = |keep: Duration| u64::try_from(keep.as_nanos()).unwrap_or(u64::MAX);
        Self {
            oldest: limits.keep.map(|keep| now.saturating_sub(age(keep))),
            max_bytes: limits.max_bytes,
            is_full: false,
            pruned: Pruned::default(),
        }
    }

    fn exceeds(&self, bytes: u64) -> bool {
        let most = self.max_bytes;
        self.is_full || most.is_some_and(|most| self.pruned.kept_bytes + bytes > most)
    }

    fn keep(&mut self, chunks: u64, bytes: u64) {
        self.pruned.kept_chunks += chunks;
        self.pruned.kept_bytes += bytes;
    }

    /// Returns true if all chunks of a day stay: the day need not be read then.
    fn keeps_all_of(&mut self, packets: &Packets) -> bool {
        let oldest = self.oldest.zip(packets.first_ns);
        let stay = oldest.is_none_or(|(oldest, first)| first >= oldest) && !self.exceeds(packets.bytes);
        if stay {
            self.keep(packets.chunks, packets.bytes);
        }
        stay
    }

    /// Returns the chunks of a day to be removed.
    fn choose(&mut self, day: &Evidence) -> Vec<(Manifest, Why)> {
        // For a chunk that stays on its host, the index is removed.
        let there = day.manifests.iter().filter(|(key, manifest)| {
            let is_elsewhere = manifest.state == State::OnHost && !day.is_pruned(key);
            is_elsewhere || day.packets.contains_key(*key)
        });
        let mut chunks: Vec<_> = there.collect();
        let end = |manifest: &Manifest| manifest.last_ns.unwrap_or(manifest.sealed_ns);
        chunks.sort_by_key(|(_, manifest)| std::cmp::Reverse(end(manifest)));
        let mut gone = Vec::new();
        for (key, manifest) in chunks {
            let (count, bytes) = if day.packets.contains_key(key) { (1, manifest.bytes) } else { (0, 0) };
            self.is_full = self.exceeds(bytes);
            let too_old = self.oldest.is_some_and(|oldest| end(manifest) < oldest);
            let why = match (day.is_pruned(key), too_old, self.is_full) {
                (true, ..) => Why::Again,
                (false, true, _) => Why::Age,
                (false, false, true) => Why::Size,
                (false, false, false) => {
                    self.keep(count, bytes);
                    continue;
                }
            };
            self.pruned.chunks += 1;
            self.pruned.packets += manifest.recorded;
            self.pruned.bytes += bytes;
            gone.push((manifest.clone(), why));
        }
        gone
    }
}

/// Records the removal of these chunks before it begins; if it is interrupted, the next one removes the rest.
fn record(store: &Store, chunks: &[&Manifest], reason: &str, now: u64) -> Result<()> {
    let record = manifest::Pruned {
        format: FORMAT,
        pruned_ns: now,
        reason: reason.to_owned(),
        chunks: chunks.iter().map(|one| one.key().to_string()).collect(),
        recorded: chunks.iter().map(|one| one.recorded).sum(),
        bytes: chunks.iter().map(|one| one.bytes).sum(),
        seal: String::new(),
    };
    let (key, bytes) = (key::pruned(now), record.to_bytes());
    let mut removed = Vec::new();
    let stored = put_with_room(store, &key, bytes, chunks, &mut removed);
    stored.map_err(|e| {
        for (key, chunk) in removed {
            let _ = store.put_new(&key, chunk.into());
        }
        Error::failed("cannot record which chunks are pruned", e)
    })
}

/// Stores a record. If the store is full, the oldest chunks make room for the record of their removal; `removed` gets
/// them.
fn put_with_room(
    store: &Store,
    key: &str,
    record: Vec<u8>,
    chunks: &[&Manifest],
    removed: &mut Vec<(String, Bytes)>,
) -> std::result::Result<(), Failure> {
    // A store that is still full after this much was freed does not make the space available at once.
    let enough = 2 * record.len() as u64 + ROOM;
    let mut freed = 0;
    let mut oldest = chunks.iter().rev().map(|chunk| chunk.key().packets());
    loop {
        let stored = store.put_new(key, record.clone());
        if freed >= enough || !matches!(stored, Err(Failure::Full(_))) {
            return stored;
        }
        let Some(chunk) = oldest.next() else {
            return stored;
        };
        let bytes = store.get(&chunk)?;
        store.delete_all(std::slice::from_ref(&chunk))?;
        freed += bytes.len() as u64;
        removed.push((chunk, bytes));
    }
}

fn remove(store: &Store, keys: Vec<String>) -> Result<()> {
    let removed = store.delete_all(&keys);
    removed.map_err(|e| Error::failed("cannot remove all pruned chunks", e))
}
