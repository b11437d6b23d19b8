//! Records that the catalogue does not have yet. Hosts mark each record that they store with an object below `new/`; a
//! chunk's index marks its manifest.

use std::collections::{BTreeSet, HashMap, HashSet};

use trawl_spool::key::{self, ChunkKey, Object};
use trawl_spool::manifest::{Manifest, State};
use trawl_sys::Result;

use crate::object::remote::{Listed, Store};
use crate::runs::evidence::Evidence;
use crate::runs::{Fate, Run, Runs};

/// The marks in a store.
#[derive(Debug, Default)]
pub struct Marks {
    /// Keys of the marked records.
    records: BTreeSet<String>,
    /// Key and size of each new chunk's index.
    pub indexes: HashMap<ChunkKey, (String, u64)>,
    /// Keys of the marks without contents.
    pub empty: Vec<String>,
}

impl Marks {
    /// Lists the marks. The catalogue is read afterwards: a record that becomes a part of it meanwhile is in both.
    pub fn list(store: &Store) -> Result<Self> {
        let mut marks = Self::default();
        for object in store.list(Some(key::marks()))? {
            let Some((record, is_index)) = key::marked(&object.key) else {
                continue;
            };
            match (Object::of(&record), is_index) {
                (Object::Manifest(chunk), true) => {
                    marks.indexes.insert(chunk, (object.key, object.bytes));
                }
                _ => marks.empty.push(object.key),
            }
            marks.records.insert(record);
        }
        Ok(marks)
    }

    /// Returns the number of marked chunks.
    pub fn chunks(&self) -> u64 {
        let is_chunk = |record: &&String| matches!(Object::of(record), Object::Manifest(_));
        self.records.iter().filter(is_chunk).count() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns true if all records of the store are marked, as in a store that has never been indexed.
    pub fn are_complete(&self, store: &Store) -> Result<bool> {
        let is_known = |object: &Listed| match Object::of(&object.key) {
            Object::Begin(_) | Object::End(_) | Object::Manifest(_) => self.records.contains(&object.key),
            Object::Packets(_) | Object::Incident | Object::Pruned | Object::Catalogue | Object::Foreign => true,
        };
        Ok(store.list(None)?.iter().all(is_known))
    }

    /// Divides the marks into parts of at most this many records.
    pub fn into_parts(mut self, records: usize) -> Vec<Self> {
        let all: Vec<String> = self.records.iter().cloned().collect();
        all.chunks(records).map(|part| self.split_off(&part.iter().cloned().collect())).collect()
    }

    /// Removes the marks of these records, and returns them.
    pub fn split_off(&mut self, records: &HashSet<String>) -> Self {
        let is_part = |record: &String| records.contains(record);
        let is_mark = |mark: &mut String| key::marked(mark).is_some_and(|(record, _)| is_part(&record));
        Self {
            records: self.records.extract_if(.., is_part).collect(),
            indexes: self.indexes.extract_if(|chunk, _| is_part(&chunk.manifest())).collect(),
            empty: self.empty.extract_if(.., is_mark).collect(),
        }
    }

    /// Keeps the marks of these records, which are not in the catalogue yet.
    pub fn keep(&mut self, unread: &HashSet<String>) {
        let is_unread = |mark: &String| key::marked(mark).is_some_and(|(record, _)| unread.contains(&record));
        self.empty.retain(|mark| !is_unread(mark));
    }

    /// Reads the marked records that are not among the known facts.
    pub fn read(&self, store: &Store, known: &Runs) -> Result<New> {
        let runs = known.0.iter();
        let runs: HashMap<String, &Run> = runs.map(|(epoch, run)| (epoch.prefix(), run)).collect();
        let is_known = |chunk: &ChunkKey| {
            let run = runs.get(chunk.run());
            run.is_some_and(|run| run.has(chunk.sequence()))
        };
        let mut evidence = Evidence::default();
        let records: Vec<String> = self.records.iter().cloned().collect();
        // A known manifest without an index is still marked, or its chunk has arrived from its host.
        let unread = evidence.add_records(store, &records)?;
        find_chunks(&mut evidence, store)?;
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
        let known: Vec<String> = known.map(|(_, (key, _))| key).collect();
        Ok(New { evidence, arrived, indexes, unread, known })
    }
}

/// Adds the chunks of these manifests that the store has, and the removals if it lacks some.
fn find_chunks(evidence: &mut Evidence, store: &Store) -> Result<()> {
    let stored = evidence.manifests.iter();
    let stored = stored.filter(|(_, one)| matches!(one.state, State::Stored | State::OnHost));
    let chunks: Vec<(ChunkKey, State)> = stored.map(|(chunk, manifest)| (chunk.clone(), manifest.state)).collect();
    let hours: BTreeSet<String> = chunks.iter().map(|(chunk, _)| chunk.hour()).collect();
    for hour in hours {
        for object in store.list(Some(&hour))? {
            if let Object::Packets(chunk) = Object::of(&object.key) {
                evidence.packets.insert(chunk, object.bytes);
            }
        }
    }
    let may_be_pruned =
        |(chunk, state): &(ChunkKey, State)| *state == State::OnHost || !evidence.packets.contains_key(chunk);
    if chunks.iter().any(may_be_pruned) {
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
    /// Key and size of each chunk's index.
    pub indexes: HashMap<ChunkKey, (String, u64)>,
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
