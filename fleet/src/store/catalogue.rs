//! The catalogue of a store: the data files of the index, and what is known of each run. Every change of it is a new version of
//! the table's metadata, which only one writer can create; everything else is written before, under names of its own.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use parquet::file::metadata::ParquetMetaData;
use serde::{Deserialize, Serialize};
use trawl_spool::key::HOUR_NS;
use trawl_sys::{Error, Result, clock};

use super::remote::{Failure, Listed, Store};
use super::runs::{Runs, day};
use super::table::{self, DataFile, Table};

const LEVEL: i32 = 3;
/// Time after which a file that is not used any more is deleted: no query that began before takes longer.
const GARBAGE_NS: u64 = HOUR_NS;
/// Time after which a file that was never used is deleted: the process that made it did not commit.
const ORPHAN_NS: u64 = 24 * HOUR_NS;

/// The catalogue's contents, apart from the table.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    files: Vec<DataFile>,
    /// Key of the runs, with the packets of each day.
    runs: Option<String>,
    /// Key of the packets of each hour, by the first hour of the day.
    hours: BTreeMap<u64, String>,
    /// Keys that are not used any more, and since when.
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
    /// Keys of other objects that are not used any more.
    pub unused: Vec<String>,
    /// All runs, with the packets of each day.
    pub runs: Runs,
    /// The packets of each hour, for days that change.
    pub hours: BTreeMap<u64, Runs>,
}

fn damaged(key: &str) -> Error {
    Error::failed(format!("cannot read {key}"), "it is damaged")
        .fix("make the catalogue again with trawl store index --rebuild")
}

fn packed(bytes: &[u8]) -> Result<Vec<u8>> {
    zstd::encode_all(bytes, LEVEL).map_err(|e| Error::os("cannot compress the catalogue", e))
}

/// Reads a compressed object of the catalogue.
fn unpacked(store: &Store, key: &str) -> Result<Vec<u8>> {
    zstd::decode_all(&*store.read(key)?).map_err(|_| damaged(key))
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
        let key = table.state();
        let state = serde_json::from_slice(&unpacked(store, &key)?).map_err(|_| damaged(&key))?;
        Ok(Self {
            table: Some(table),
            state,
        })
    }

    /// Begins anew after the newest version, which need not be readable.
    pub fn anew(store: &Store) -> Result<Self> {
        Ok(Self {
            table: Table::anew(store)?,
            state: State::default(),
        })
    }

    pub fn files(&self) -> &[DataFile] {
        &self.state.files
    }

    /// Returns whether an object was in use not long ago.
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

    /// Makes a change the next version. Fails if another one has become it.
    pub fn commit(mut self, store: &Store, change: Change) -> Result<()> {
        let now = clock::wall();
        let name = now.to_string();
        let state = &mut self.state;
        let mut unused = change.unused;
        let runs = format!("{}/runs/all-{name}.json.zst", table::ROOT);
        store.write(&runs, packed(&change.runs.to_json())?)?;
        unused.extend(state.runs.replace(runs));
        for (day, hours) in &change.hours {
            let date = date_of(*day);
            let key = format!("{}/runs/{date}-{name}.json.zst", table::ROOT);
            store.write(&key, packed(&hours.to_json())?)?;
            unused.extend(state.hours.insert(*day, key));
        }
        unused.extend(change.remove.iter().cloned());
        state
            .files
            .retain(|file| !change.remove.contains(&file.key));
        for key in unused {
            state.garbage.entry(key).or_insert(now);
        }
        let next = Table::next(
            self.table.as_ref(),
            store,
            &mut self.state.files,
            &change.add,
        )?;
        let due = |since: &u64| since.saturating_add(GARBAGE_NS) <= now;
        let garbage = self.state.garbage.iter();
        let gone = garbage.filter(|(_, since)| due(since));
        let mut gone: Vec<String> = gone.map(|(key, _)| key.clone()).collect();
        gone.extend(next.table.outdated());
        self.state.garbage.retain(|_, since| !due(since));
        self.state
            .garbage
            .extend(next.replaced.iter().map(|key| (key.clone(), now)));
        let state = serde_json::to_vec(&self.state);
        let state = state.map_err(|e| Error::failed("cannot write JSON", e))?;
        store.write(&next.table.state(), packed(&state)?)?;
        match next.table.publish(store) {
            Ok(()) => {}
            Err(Failure::AlreadyExists) => {
                return Err(Error::failed(
                    "cannot change the catalogue",
                    "another process has changed it meanwhile",
                )
                .fix("try again"));
            }
            Err(failure) => return Err(Error::failed("cannot change the catalogue", failure)),
        }
        gone.extend(self.orphans(store, &next.table, now)?);
        let removed = store.delete_all(&gone);
        removed.map_err(|e| Error::failed("cannot remove old parts of the catalogue", e))
    }

    /// Returns the keys of old files that no version refers to.
    fn orphans(&self, store: &Store, table: &Table, now: u64) -> Result<Vec<String>> {
        let state = &self.state;
        let mut used: HashSet<String> = table.objects().into_iter().collect();
        used.extend(state.files.iter().map(|file| file.key.clone()));
        used.extend(state.runs.iter().chain(state.hours.values()).cloned());
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
    store: &Store,
    day: u64,
    number: usize,
    bytes: Vec<u8>,
    metadata: &ParquetMetaData,
) -> Result<DataFile> {
    let date = date_of(day);
    let key = format!(
        "{}/data/date={date}/{}-{number:04}.parquet",
        table::ROOT,
        clock::wall()
    );
    let file = DataFile::describe(key, date, bytes.len() as u64, metadata);
    store.write(&file.key, bytes)?;
    Ok(file)
}
