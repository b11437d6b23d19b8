//! Records that the catalogue does not have yet. Hosts mark each record that they store with an object below `new/`; a chunk's
//! index marks its manifest.

use std::collections::{BTreeSet, HashMap};

use trawl_spool::key::{self, ChunkKey, Object};
use trawl_spool::manifest::State;
use trawl_sys::Result;

use super::evidence::Evidence;
use super::remote::Store;
use super::runs::{Fate, Run, Runs};

/// The marks in a store.
#[derive(Debug, Default)]
pub struct Marks {
    /// Keys of the marked records.
    records: BTreeSet<String>,
    /// Key and size of each new chunk's index.
    indexes: HashMap<ChunkKey, (String, u64)>,
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

    /// Reads the marked records that are not among the known facts.
    pub fn read(&self, store: &Store, known: &Runs) -> Result<New> {
        let runs = known.0.iter();
        let runs: HashMap<String, &Run> = runs.map(|(epoch, run)| (epoch.prefix(), run)).collect();
        let is_known = |chunk: &ChunkKey| {
            let run = runs.get(chunk.run());
            run.is_some_and(|run| run.has(chunk.sequence()))
        };
        let is_new = |record: &&String| match Object::of(record) {
            Object::Manifest(chunk) => !is_known(&chunk),
            _ => true,
        };
        let records: Vec<String> = self.records.iter().filter(is_new).cloned().collect();
        let mut evidence = Evidence::default();
        evidence.add_records(store, &records)?;
        look_for_chunks(&mut evidence, store)?;
        let mut indexes = self.indexes.clone();
        let known = indexes.extract_if(|chunk, _| is_known(chunk));
        let known: Vec<String> = known.map(|(_, (key, _))| key).collect();
        Ok(New {
            evidence,
            indexes,
            known,
        })
    }
}

/// Adds the chunks of these manifests that the store has, and the removals if it lacks some.
fn look_for_chunks(evidence: &mut Evidence, store: &Store) -> Result<()> {
    let stored = evidence.manifests.iter();
    let stored = stored.filter(|(_, manifest)| manifest.state == State::Stored);
    let chunks: Vec<ChunkKey> = stored.map(|(chunk, _)| chunk.clone()).collect();
    let hours: BTreeSet<String> = chunks.iter().map(ChunkKey::hour).collect();
    for hour in hours {
        for object in store.list(Some(&hour))? {
            if let Object::Packets(chunk) = Object::of(&object.key) {
                evidence.packets.insert(chunk, object.bytes);
            }
        }
    }
    let is_missing = |chunk: &ChunkKey| !evidence.packets.contains_key(chunk);
    if chunks.iter().any(is_missing) {
        evidence.add_removals(store)?;
    }
    Ok(())
}

/// New records, and the index of new chunks.
#[derive(Debug, Default)]
pub struct New {
    pub evidence: Evidence,
    /// Key and size of each chunk's index.
    pub indexes: HashMap<ChunkKey, (String, u64)>,
    /// Keys of the indexes of chunks that the catalogue has already.
    pub known: Vec<String>,
}

impl New {
    /// Returns the facts of the records; `indexed` returns whether a stored chunk has an index.
    pub fn runs(&self, indexed: impl Fn(&ChunkKey) -> bool) -> Runs {
        self.evidence.runs(|chunk| match indexed(chunk) {
            true => Fate::Indexed,
            false => Fate::NotIndexed,
        })
    }

    pub fn is_empty(&self) -> bool {
        let evidence = &self.evidence;
        evidence.manifests.is_empty() && evidence.begins.is_empty() && evidence.ends.is_empty()
    }
}
