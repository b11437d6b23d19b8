//! The records in a store, read one by one: the evidence that the catalogue is made from, and checked with.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use trawl_spool::key::{self, ChunkKey, Object};
use trawl_spool::manifest::{Begin, End, Incident, Manifest, Pruned, Sealed, State, Unreadable};
use trawl_sys::{Error, Result};

use super::spooled;
use super::{Fate, Runs};
use crate::object::remote::Store;

/// Records of a store, or of a part of it.
#[derive(Debug, Default)]
pub struct Evidence {
    pub begins: Vec<Begin>,
    pub ends: Vec<End>,
    pub manifests: BTreeMap<ChunkKey, Manifest>,
    /// Common parts of the keys of removed chunks.
    pub pruned: HashSet<String>,
    /// Size of each chunk in the store, in bytes.
    pub packets: HashMap<ChunkKey, u64>,
    /// Keys of modified records.
    pub broken: Vec<String>,
    /// Keys of records of a newer trawl.
    pub newer: Vec<String>,
    pub foreign: Vec<String>,
}

impl Evidence {
    /// Reads all records of a store.
    pub fn read(store: &Store) -> Result<Self> {
        Self::below(store, None)
    }

    /// Reads the records whose keys begin with this directory.
    pub fn below(store: &Store, prefix: Option<&str>) -> Result<Self> {
        let mut all = Self::default();
        let mut records = Vec::new();
        for object in store.list(prefix)? {
            match Object::of(&object.key) {
                Object::Packets(chunk) => {
                    all.packets.insert(chunk, object.bytes);
                }
                Object::Catalogue => {}
                Object::Foreign => all.foreign.push(object.key),
                Object::Begin(_) | Object::End(_) | Object::Manifest(_) | Object::Incident | Object::Pruned => {
                    records.push(object.key)
                }
            }
        }
        all.add_records(store, &records)?;
        Ok(all)
    }

    /// Adds records, and returns the keys of the ones that could not be read.
    pub fn add_records(&mut self, store: &Store, keys: &[String]) -> Result<HashSet<String>> {
        let mut unread = HashSet::new();
        for (key, bytes) in keys.iter().zip(store.read_all(keys)?) {
            match bytes.map(|bytes| self.insert(key, &bytes)) {
                Some(Ok(())) => continue,
                Some(Err(Unreadable::Changed)) => self.broken.push(key.clone()),
                Some(Err(Unreadable::Newer)) => self.newer.push(key.clone()),
                None => {}
            }
            unread.insert(key.clone());
        }
        Ok(unread)
    }

    /// Adds the records of removals.
    pub fn add_removals(&mut self, store: &Store) -> Result<()> {
        let listed = store.list(Some(key::removals()))?;
        let keys: Vec<String> = listed.into_iter().map(|object| object.key).collect();
        self.add_records(store, &keys).map(drop)
    }

    /// Adds a record; refuses one that belongs to another key.
    pub fn insert(&mut self, key: &str, bytes: &[u8]) -> std::result::Result<(), Unreadable> {
        match Object::of(key) {
            Object::Begin(epoch) => match Begin::from_bytes(bytes)? {
                begin if begin.epoch.prefix() == epoch => self.begins.push(begin),
                _ => return Err(Unreadable::Changed),
            },
            Object::End(epoch) => match End::from_bytes(bytes)? {
                end if end.epoch.prefix() == epoch => self.ends.push(end),
                _ => return Err(Unreadable::Changed),
            },
            Object::Pruned => match Pruned::from_bytes(bytes)? {
                record if key::pruned(record.pruned_ns) == key => self.pruned.extend(record.chunks),
                _ => return Err(Unreadable::Changed),
            },
            Object::Incident => {
                Incident::from_bytes(bytes)?;
            }
            Object::Manifest(chunk) => {
                let manifest = manifest(&chunk, bytes)?;
                self.manifests.insert(chunk, manifest);
            }
            Object::Packets(_) | Object::Catalogue | Object::Foreign => {}
        }
        Ok(())
    }

    /// Refuses a change that would lose a newer trawl's records.
    pub fn check_versions(&self, what: &str) -> Result<()> {
        match self.newer.as_slice() {
            [] => Ok(()),
            [key, ..] => Err(newer(what, key)),
        }
    }

    pub fn is_pruned(&self, chunk: &ChunkKey) -> bool {
        self.pruned.contains(&chunk.to_string())
    }

    /// Returns the fate of a chunk according to these records, which is `there` for a chunk that is where it should be.
    pub fn fate(&self, chunk: &ChunkKey, manifest: &Manifest, there: Fate) -> Fate {
        if self.is_pruned(chunk) {
            Fate::Pruned
        } else if manifest.state == State::OnHost || self.packets.contains_key(chunk) {
            there
        } else {
            Fate::Missing
        }
    }

    /// Returns true if a chunk that was to stay on its host is in the store.
    pub fn has_arrived(&self, chunk: &ChunkKey, manifest: &Manifest) -> bool {
        let is_there = self.packets.contains_key(chunk) && !self.is_pruned(chunk);
        manifest.state == State::OnHost && is_there
    }

    /// Returns the facts that the records hold; `there` is the fate of the chunks in the store.
    pub fn runs(&self, there: impl Fn(&ChunkKey) -> Fate) -> Runs {
        let mut runs = Runs::default();
        self.begins.iter().for_each(|begin| runs.add_begin(begin));
        self.ends.iter().for_each(|end| runs.add_end(end));
        for (key, manifest) in &self.manifests {
            runs.add_manifest(manifest, self.fate(key, manifest, there(key)));
            if self.has_arrived(key, manifest) {
                runs.add_arrival(manifest);
            }
        }
        runs
    }
}

/// Reads the manifest of a chunk; refuses another chunk's.
pub fn manifest(chunk: &ChunkKey, bytes: &[u8]) -> std::result::Result<Manifest, Unreadable> {
    match Manifest::from_bytes(bytes)? {
        manifest if chunk.is_of(&manifest.epoch, manifest.sequence) => Ok(manifest),
        _ => Err(Unreadable::Changed),
    }
}

/// Returns the error for an object of a newer trawl.
pub fn newer(what: &str, key: &str) -> Error {
    Error::failed(what, format!("a newer trawl wrote {key}")).fix("update this trawl")
}

/// Adds the chunks and records that wait in a spool of this host for a store.
pub fn add_spooled(runs: &mut Runs, store: &Store, spool: &Path) {
    let waiting = spooled::waiting_for(spool, store.url());
    for manifest in &waiting.manifests {
        if !runs.has(&manifest.epoch, manifest.sequence) {
            runs.add_manifest(manifest, Fate::Spooled);
        }
    }
    for begin in &waiting.begins {
        runs.add_begin(begin);
    }
    for end in &waiting.ends {
        runs.add_end(end);
    }
}
