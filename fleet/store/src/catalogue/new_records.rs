//! Records that the catalogue does not have yet. Hosts mark each record that they store with an object below `new/`; a
//! chunk's index marks its manifest.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread;

use bytes::Bytes;
use trawl_spool::key::{self, ChunkKey, Object};
use trawl_spool::manifest::{Manifest, State};
use trawl_sys::Result;

use super::contents::Copied;
use super::summary::{self, Parts};
use crate::object::remote::{Listed, Store};
use crate::runs::evidence::{self, Evidence};
use crate::runs::{Fate, Run, Runs};

/// Source of the manifests of new chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The manifests themselves: only these are evidence.
    Records,
    /// Summaries, and the manifests that none of them has.
    Summaries,
}

/// Memory for the addresses of new files; with more files, the others are opened.
const ADDRESSES: u64 = 64 << 20;

/// The marks in a store.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// Keys of the marked records, with the time of the mark by the store's clock.
    records: BTreeMap<String, u64>,
    /// Object with each new chunk's index.
    pub indexes: HashMap<ChunkKey, Listed>,
    /// Keys of the marks without contents.
    pub empty: Vec<String>,
    /// By the run and the first sequence number of their chunks.
    summaries: BTreeMap<(String, u64), Listed>,
}

impl Marks {
    /// Lists the marks. The catalogue is read afterwards: a record that becomes a part of it meanwhile is in both.
    pub fn list(store: &Store) -> Result<Self> {
        let mut marks = Self::default();
        for object in store.list_marks()? {
            if let Some((run, first)) = key::summarised(&object.key) {
                marks.summaries.insert((run.to_owned(), first), object);
                continue;
            }
            let Some((record, is_index)) = key::marked(&object.key) else {
                continue;
            };
            let changed_ns = object.changed_ns;
            match (Object::of(&record), is_index) {
                (Object::Manifest(chunk), true) => {
                    marks.indexes.insert(chunk, object);
                }
                _ => marks.empty.push(object.key),
            }
            marks.records.insert(record, changed_ns);
        }
        Ok(marks)
    }

    /// Returns the number of marked chunks.
    pub fn chunks(&self) -> u64 {
        let is_chunk = |record: &&String| matches!(Object::of(record), Object::Manifest(_));
        self.records.keys().filter(is_chunk).count() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns true if all records of the store are marked, as in a store that has never been indexed.
    pub fn are_complete(&self, store: &Store) -> Result<bool> {
        let is_known = |object: &Listed| match Object::of(&object.key) {
            Object::Begin(_) | Object::End(_) | Object::Manifest(_) => self.records.contains_key(&object.key),
            Object::Packets(_) | Object::Incident | Object::Pruned | Object::Catalogue | Object::Foreign => true,
        };
        Ok(store.list(None)?.iter().all(is_known))
    }

    /// Divides the marks into parts of at most this many records.
    pub fn into_parts(mut self, records: usize) -> Vec<Self> {
        let all: Vec<String> = self.records.keys().cloned().collect();
        all.chunks(records).map(|part| self.split_off(&part.iter().cloned().collect())).collect()
    }

    /// Removes the marks of these records, and returns them.
    pub fn split_off(&mut self, records: &HashSet<String>) -> Self {
        let is_part = |record: &String| records.contains(record);
        let is_mark = |mark: &mut String| key::marked(mark).is_some_and(|(record, _)| is_part(&record));
        Self {
            records: self.records.extract_if(.., |record, _| is_part(record)).collect(),
            indexes: self.indexes.extract_if(|chunk, _| is_part(&chunk.manifest())).collect(),
            empty: self.empty.extract_if(.., is_mark).collect(),
            summaries: self.summaries.clone(),
        }
    }

    /// Keeps the marks of these records, which are not in the catalogue yet.
    pub fn keep(&mut self, unread: &HashSet<String>) {
        let is_unread = |mark: &String| key::marked(mark).is_some_and(|(record, _)| unread.contains(&record));
        self.empty.retain(|mark| !is_unread(mark));
    }

    /// Reads the marked records that are not among the known facts.
    pub fn read(&self, store: &Store, known: &Runs, source: Source) -> Result<New> {
        let runs = by_prefix(known);
        let is_known = |chunk: &ChunkKey| is_among(&runs, chunk);
        // A known manifest without an index is still marked, or its chunk has arrived from its host.
        let is_wanted = |record: &&String| match Object::of(record) {
            Object::Manifest(chunk) => !is_known(&chunk) || self.has_empty(record),
            _ => true,
        };
        let records: BTreeSet<String> = self.records.keys().filter(is_wanted).cloned().collect();
        let (mut evidence, copies) = self.read_summaries(store, &records, source)?;
        let is_read = |record: &String| match Object::of(record) {
            Object::Manifest(chunk) => evidence.manifests.contains_key(&chunk),
            _ => false,
        };
        let rest: Vec<String> = records.into_iter().filter(|record| !is_read(record)).collect();
        let unread = evidence.add_records(store, &rest)?;
        add_removals(&mut evidence, store)?;
        let again = evidence.manifests.extract_if(.., |chunk, _| is_known(chunk));
        let again: Vec<(ChunkKey, Manifest)> = again.collect();
        let arrived = again.into_iter().filter(|(chunk, manifest)| {
            let run = runs.get(chunk.run());
            let is_counted = run.is_some_and(|run| run.arrived.contains(&chunk.sequence()));
            evidence.has_arrived(chunk, manifest) && !is_counted
        });
        let arrived = arrived.map(|(_, manifest)| manifest).collect();
        let mut indexes = self.indexes.clone();
        let known = indexes.extract_if(|chunk, _| is_known(chunk));
        let known: Vec<String> = known.map(|(_, index)| index.key).collect();
        Ok(New { evidence, arrived, indexes, copies, unread, known })
    }

    fn has_empty(&self, record: &str) -> bool {
        self.empty.binary_search(&key::mark(record)).is_ok()
    }

    /// Returns the summary that may have a chunk.
    fn summary_of(&self, chunk: &ChunkKey) -> Option<&Listed> {
        let run = chunk.run();
        let before = self.summaries.range(..=(run.to_owned(), chunk.sequence()));
        let ((its_run, first), summary) = before.last()?;
        (its_run == run && summary::has(*first, chunk.sequence())).then_some(summary)
    }

    pub fn has_summaries(&self) -> bool {
        !self.summaries.is_empty()
    }

    /// Returns the marked chunks that are not among the known facts, with the times of their marks.
    pub fn waiting(&self, known: &Runs) -> Vec<(ChunkKey, u64)> {
        let chunks = self.records.iter().filter_map(|(record, marked_ns)| match Object::of(record) {
            Object::Manifest(chunk) => Some((chunk, *marked_ns)),
            _ => None,
        });
        let runs = by_prefix(known);
        chunks.filter(|(chunk, _)| !is_among(&runs, chunk)).collect()
    }

    /// Returns the keys of the summaries of which no chunk is new: the catalogue has all that are marked.
    pub fn outdated_summaries(&self, known: &Runs) -> Vec<String> {
        let waiting = self.waiting(known).into_iter();
        let used: HashSet<String> =
            waiting.filter_map(|(chunk, _)| Some(self.summary_of(&chunk)?.key.clone())).collect();
        let all = self.summaries.values().map(|summary| &summary.key);
        all.filter(|key| !used.contains(*key)).cloned().collect()
    }

    /// Finds the chunks of these records in the store, and reads their manifests from summaries, unless the store has
    /// newer ones.
    fn read_summaries(
        &self,
        store: &Store,
        records: &BTreeSet<String>,
        source: Source,
    ) -> Result<(Evidence, HashMap<ChunkKey, Copied>)> {
        let chunks = records.iter().filter_map(|record| match Object::of(record) {
            Object::Manifest(chunk) => Some(chunk),
            _ => None,
        });
        let chunks: BTreeSet<ChunkKey> = chunks.collect();
        let summaries: BTreeMap<&String, u64> = chunks
            .iter()
            .filter(|_| source == Source::Summaries)
            .filter_map(|chunk| self.summary_of(chunk))
            .map(|summary| (&summary.key, summary.changed_ns))
            .collect();
        let keys: Vec<String> = summaries.keys().map(|key| (*key).clone()).collect();
        let (contents, listed) = store.read_and_list(&keys, &chunks)?;
        let (mut evidence, changed) = found(listed);
        let mut copies = HashMap::new();
        let mut held = 0;
        let stored: Vec<u64> = summaries.values().copied().collect();
        let is_current = |chunk: &ChunkKey, stored_ns: u64| {
            chunks.contains(chunk) && changed.get(chunk).is_some_and(|changed_ns| *changed_ns <= stored_ns)
        };
        let is_copy =
            |index: &Listed, parts: &Parts, stored_ns: u64| index.bytes == parts.bytes && index.changed_ns <= stored_ns;
        for (summary, copy) in entries(&stored, &contents, is_current).into_iter().enumerate() {
            for (chunk, manifest, index) in copy {
                let listed = self.indexes.get(&chunk);
                let parts = index.filter(|parts| listed.is_some_and(|listed| is_copy(listed, parts, stored[summary])));
                if let Some(parts) = parts {
                    let addresses = Some(parts.addresses()).filter(|_| held < ADDRESSES).unwrap_or_default();
                    held += addresses.held();
                    let copied = Copied { summary: keys[summary].clone(), footer: parts.footer(), addresses };
                    copies.insert(chunk.clone(), copied);
                }
                evidence.manifests.insert(chunk, manifest);
            }
        }
        Ok((evidence, copies))
    }
}

/// A chunk of a summary, its manifest, and the copied parts of its index.
type Copy = (ChunkKey, Manifest, Option<Parts>);

/// Reads summaries, on all CPUs. Returns, of each, the chunks that `is_current` accepts at the time of the summary and
/// whose manifests are intact.
fn entries(
    stored: &[u64],
    contents: &[Option<Bytes>],
    is_current: impl Fn(&ChunkKey, u64) -> bool + Sync,
) -> Vec<Vec<Copy>> {
    let read = |(stored_ns, contents): (&u64, &Option<Bytes>)| -> Vec<Copy> {
        let entries = contents.iter().flat_map(|contents| summary::parse(contents));
        let current = entries.filter(|entry| is_current(&entry.chunk, *stored_ns));
        let intact = current.filter_map(|entry| {
            let manifest = evidence::manifest(&entry.chunk, &entry.manifest).ok()?;
            Some((entry.chunk, manifest, entry.index))
        });
        intact.collect()
    };
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let share = contents.len().div_ceil(cpus).max(1);
    let read = &read;
    thread::scope(|scope| {
        let shares = stored.chunks(share).zip(contents.chunks(share));
        let start = |(stored, contents): (&'_ [u64], &'_ [Option<Bytes>])| -> Vec<Vec<Copy>> {
            stored.iter().zip(contents).map(read).collect()
        };
        let threads: Vec<_> = shares.map(|share| scope.spawn(move || start(share))).collect();
        let read = threads.into_iter().flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        read.collect()
    })
}

/// Returns the runs by the common part of their keys.
fn by_prefix(runs: &Runs) -> HashMap<String, &Run> {
    runs.0.iter().map(|(epoch, run)| (epoch.prefix(), run)).collect()
}

/// Returns true if a chunk's manifest is among the facts of these runs.
fn is_among(runs: &HashMap<String, &Run>, chunk: &ChunkKey) -> bool {
    runs.get(chunk.run()).is_some_and(|run| run.has(chunk.sequence()))
}

/// Returns the chunks in a listing, and the time of each manifest in it.
fn found(listed: Vec<Listed>) -> (Evidence, HashMap<ChunkKey, u64>) {
    let mut evidence = Evidence::default();
    let mut changed = HashMap::new();
    for object in listed {
        match Object::of(&object.key) {
            Object::Packets(chunk) => {
                evidence.packets.insert(chunk, object.bytes);
            }
            Object::Manifest(chunk) => {
                changed.insert(chunk, object.changed_ns);
            }
            _ => {}
        }
    }
    (evidence, changed)
}

/// Adds the removals of chunks, if the store lacks some of these manifests' chunks.
fn add_removals(evidence: &mut Evidence, store: &Store) -> Result<()> {
    let may_be_pruned = |(chunk, manifest): (&ChunkKey, &Manifest)| match manifest.state {
        State::Stored => !evidence.packets.contains_key(chunk),
        State::OnHost => true,
        State::Idle | State::EvictedSpoolFull | State::EvictedSpoolFailed => false,
    };
    if evidence.manifests.iter().any(may_be_pruned) {
        evidence.add_removals(store)?;
    }
    Ok(())
}

/// New records, and the index of new chunks.
#[derive(Debug, Default)]
pub struct New {
    pub evidence: Evidence,
    /// Manifests that the catalogue has, whose chunks have since arrived from their hosts.
    pub arrived: Vec<Manifest>,
    /// Object with each chunk's index.
    pub indexes: HashMap<ChunkKey, Listed>,
    /// Copies of parts of them.
    pub copies: HashMap<ChunkKey, Copied>,
    /// Keys of the marked records that could not be read: their marks stay.
    pub unread: HashSet<String>,
    /// Keys of the indexes of chunks that the catalogue has already.
    pub known: Vec<String>,
}

impl New {
    /// Returns the facts of the records; `indexed` returns true if a stored chunk has an index.
    pub fn runs(&self, indexed: impl Fn(&ChunkKey) -> bool) -> Runs {
        let mut runs = self.evidence.runs(|chunk| if indexed(chunk) { Fate::Indexed } else { Fate::NotIndexed });
        let arrived = self.arrived.iter();
        arrived.for_each(|manifest| runs.add_arrival(manifest));
        runs
    }

    pub fn is_empty(&self) -> bool {
        let evidence = &self.evidence;
        let none_arrived = self.arrived.is_empty();
        none_arrived && evidence.manifests.is_empty() && evidence.begins.is_empty() && evidence.ends.is_empty()
    }
}
