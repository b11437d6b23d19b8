//! The catalogue of a store: the data files of the index, and the facts about each run. Every change of it is a new
//! version of the table's metadata, which only one writer can create. All other objects are written before, under names
//! of their own.

pub mod avro;
pub mod backlog;
pub mod contents;
pub mod lease;
pub mod new_records;
pub mod summary;
pub mod table;
pub mod unpublished;
pub mod update;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bytes::Bytes;
use parquet::file::metadata::ParquetMetaData;
use serde::{Deserialize, Serialize};
use trawl_spool::key::HOUR_NS;
use trawl_sys::{Error, Result, clock};

use super::object::hashed_name;
use super::object::remote::{Failure, Listed, Store};
use super::runs::evidence::newer;
use super::runs::{Runs, day};
use table::{DataFile, Table};
use unpublished::Draft;

/// Format of the catalogue. It increases with each change that an older trawl would undo: more columns, more facts.
const FORMAT: u32 = 1;
const LEVEL: i32 = 3;
/// Ending of the compressed objects.
const ENDING: &str = ".json.zst";
/// Time after which a replaced file is deleted: no query that began before the replacement takes longer.
const GARBAGE_NS: u64 = HOUR_NS;
/// Time after which a file that was never used is deleted: the process that made it did not commit.
const ORPHAN_NS: u64 = 24 * HOUR_NS;

/// The part of the catalogue's contents that all formats have.
#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    format: u32,
}

/// The catalogue's contents, apart from the table.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    #[serde(default)]
    format: u32,
    files: Vec<DataFile>,
    /// Key of the runs, with the packets of each day.
    runs: Option<String>,
    /// Key of the packets of each hour, by the first hour of the day.
    hours: BTreeMap<u64, String>,
    /// Keys of replaced objects, with the time of the replacement by the store's clock.
    garbage: BTreeMap<String, u64>,
}

/// A version of the catalogue.
#[derive(Debug, Default)]
pub struct Catalogue {
    table: Option<Table>,
    state: State,
}

/// Files and facts that change together.
#[derive(Debug, Default)]
pub struct Change {
    pub add: Vec<DataFile>,
    /// Keys of data files.
    pub remove: HashSet<String>,
    /// Keys of other objects that the change replaces.
    pub unused: Vec<String>,
    /// All runs, with the packets of each day.
    pub runs: Runs,
    /// The packets of each hour, for days that change.
    pub hours: BTreeMap<u64, Runs>,
}

fn damaged(key: &str) -> Error {
    Error::failed(format!("cannot read {key}"), "it is damaged")
        .fix("rebuild the catalogue with trawl store index --rebuild URL")
}

fn packed(bytes: &[u8]) -> Result<Vec<u8>> {
    zstd::encode_all(bytes, LEVEL).map_err(|e| Error::os("cannot compress the catalogue", e))
}

/// Reads a compressed object of the catalogue.
fn unpacked(store: &Store, key: &str) -> Result<Vec<u8>> {
    zstd::decode_all(&*intact(store, key)?).map_err(|_| damaged(key))
}

/// Reads an object, and compares it with the hash in its key.
pub fn intact(store: &Store, key: &str) -> Result<Bytes> {
    let bytes = store.read(key)?;
    if hashed_name::may_be(key, &bytes) { Ok(bytes) } else { Err(damaged(key)) }
}

fn read_state(store: &Store, key: &str) -> Result<State> {
    let text = unpacked(store, key)?;
    let header: Header = serde_json::from_slice(&text).map_err(|_| damaged(key))?;
    if header.format > FORMAT {
        return Err(newer("cannot use the catalogue", key));
    }
    serde_json::from_slice(&text).map_err(|_| damaged(key))
}

fn read_runs(store: &Store, key: &str) -> Result<Runs> {
    Runs::from_json(&unpacked(store, key)?).ok_or_else(|| damaged(key))
}

impl Catalogue {
    /// Reads the newest version; an empty catalogue if the store has none.
    pub fn read(store: &Store) -> Result<Self> {
        let Some(table) = Table::newest(store)? else {
            return Ok(Self::default());
        };
        Ok(Self { state: read_state(store, &table.state())?, table: Some(table) })
    }

    /// Returns true if the store has no catalogue: it was never indexed, or its index is lost.
    pub fn is_absent(&self) -> bool {
        self.table.is_none()
    }

    /// Returns true if a newer trawl made the newest version.
    pub fn is_newer(store: &Store) -> bool {
        let newest = Table::newest(store).ok().flatten();
        let state = newest.and_then(|table| unpacked(store, &table.state()).ok());
        let header = state.and_then(|text| serde_json::from_slice::<Header>(&text).ok());
        header.is_some_and(|header| header.format > FORMAT)
    }

    /// Returns the keys of the objects that this version consists of.
    pub fn objects(&self) -> impl Iterator<Item = &String> {
        let files = self.state.files.iter().map(|file| &file.key);
        files.chain(&self.state.runs).chain(self.state.hours.values())
    }

    /// Starts an empty catalogue after the newest version, which need not be readable. Refuses to replace one that a
    /// newer trawl made.
    pub fn start_over(store: &Store) -> Result<Self> {
        if Self::is_newer(store) {
            return Err(newer("cannot rebuild the catalogue", table::ROOT));
        }
        Ok(Self { table: Table::start_over(store)?, state: State::default() })
    }

    pub fn files(&self) -> &[DataFile] {
        &self.state.files
    }

    /// Returns true if a recent version used the object.
    pub fn is_garbage(&self, key: &str) -> bool {
        self.state.garbage.contains_key(key)
    }

    /// Returns the runs, with the packets of each day.
    pub fn runs(&self, store: &Store) -> Result<Runs> {
        let key = self.state.runs.as_ref();
        key.map_or(Ok(Runs::default()), |key| read_runs(store, key))
    }

    /// Returns the packets of each hour of a day, by the day's first hour.
    pub fn hours(&self, store: &Store, day: u64) -> Result<Runs> {
        let key = self.state.hours.get(&day);
        key.map_or(Ok(Runs::default()), |key| read_runs(store, key))
    }

    /// Returns the runs, with the packets of each hour for the days that these times divide.
    pub fn runs_divided(&self, store: &Store, times: [Option<u64>; 2]) -> Result<Runs> {
        let mut runs = self.runs(store)?;
        let days = times.into_iter().flatten().map(day_of);
        for day in days.collect::<BTreeSet<_>>() {
            if self.state.hours.contains_key(&day) {
                runs.refine(day, self.hours(store, day)?);
            }
        }
        Ok(runs)
    }

    /// Publishes a change as the next version. Fails if another process has published that version.
    pub fn commit(mut self, mut draft: Draft<'_>, change: Change) -> Result<()> {
        let store = draft.store;
        let name = clock::wall();
        let state = &mut self.state;
        let mut unused = change.unused;
        let runs = packed(&change.runs.to_json())?;
        let runs = draft.put(&format!("{}/runs/all-{name}", table::ROOT), runs, ENDING)?;
        // Ages are measured by the store's clock, since this host's may be wrong or have been set.
        let now = store.time(&runs);
        let now = now.map_err(|e| Error::failed(format!("cannot read the time of {runs}"), e))?;
        unused.extend(state.runs.replace(runs));
        for (day, hours) in &change.hours {
            let date = date_of(*day);
            let stem = format!("{}/runs/{date}-{name}", table::ROOT);
            let key = draft.put(&stem, packed(&hours.to_json())?, ENDING)?;
            unused.extend(state.hours.insert(*day, key));
        }
        unused.extend(change.remove.iter().cloned());
        state.files.retain(|file| !change.remove.contains(&file.key));
        state.format = FORMAT;
        for key in unused {
            state.garbage.entry(key).or_insert(now);
        }
        let mut next = Table::next(self.table.as_ref(), &mut draft, &mut self.state.files, &change.add)?;
        let due = |since: &u64| since.saturating_add(GARBAGE_NS) <= now;
        let garbage = self.state.garbage.iter();
        let gone = garbage.filter(|(_, since)| due(since));
        let mut gone: Vec<String> = gone.map(|(key, _)| key.clone()).collect();
        gone.extend(next.table.outdated());
        self.state.garbage.retain(|_, since| !due(since));
        self.state.garbage.extend(next.replaced.iter().map(|key| (key.clone(), now)));
        let state = serde_json::to_vec(&self.state).map_err(|e| Error::failed("cannot write JSON", e))?;
        let stem = format!("{}/state/{name}", table::ROOT);
        next.table.set_state(&draft.put(&stem, packed(&state)?, ENDING)?);
        let what = "cannot change the catalogue";
        match next.table.publish(store) {
            Ok(()) => draft.keep(),
            Err(Failure::AlreadyExists) => {
                let why = "another process has changed it meanwhile";
                return Err(Error::failed(what, why).fix("try again"));
            }
            Err(failure @ Failure::Full(_)) => return Err(Error::failed(what, failure)),
            Err(failure) => {
                // The server may have published it, and only the answer was lost.
                draft.keep();
                return Err(Error::failed(what, failure));
            }
        }
        let pointed = next.table.point_to(store);
        pointed.map_err(|e| Error::failed(what, e))?;
        gone.extend(self.orphans(store, &next.table, now)?);
        let removed = store.delete_all(&gone);
        removed.map_err(|e| Error::failed("cannot remove old parts of the catalogue", e))
    }

    /// Returns the keys of old files that no version refers to.
    fn orphans(&self, store: &Store, table: &Table, now: u64) -> Result<Vec<String>> {
        let state = &self.state;
        let mut used: HashSet<String> = table.objects().into_iter().collect();
        used.extend(self.objects().cloned());
        used.extend(state.garbage.keys().cloned());
        let is_orphan = |object: &Listed| {
            let is_old = object.changed_ns.saturating_add(ORPHAN_NS) <= now;
            is_old && !used.contains(&object.key) && !table::is_version(&object.key)
        };
        let listed = store.list(Some(table::ROOT))?;
        let orphans = listed.into_iter().filter(is_orphan);
        Ok(orphans.map(|object| object.key).collect())
    }
}

/// Returns the first hour of the day of a time.
pub fn day_of(ns: u64) -> u64 {
    day(ns / HOUR_NS)
}

/// Returns the date of the day that begins with this hour.
pub fn date_of(day: u64) -> String {
    clock::date_of(day * HOUR_NS)
}

/// Stores a data file of a day.
pub fn put_file(
    draft: &mut Draft<'_>,
    day: u64,
    number: usize,
    bytes: Vec<u8>,
    metadata: &ParquetMetaData,
) -> Result<DataFile> {
    let date = date_of(day);
    let time = clock::wall();
    let stem = format!("{}/data/date={date}/{time}-{number:04}", table::ROOT);
    let length = bytes.len() as u64;
    let key = draft.put(&stem, bytes, ".parquet")?;
    Ok(DataFile::describe(key, date, length, metadata))
}
