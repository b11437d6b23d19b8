//! Brings the catalogue up to date: the index of new chunks is joined into large files, and the facts of new records to
//! the known ones. Chunks that hosts did not index are indexed here.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::num::NonZero;
use std::thread;

use arrow::array::RecordBatch;
use serde::Serialize;
use trawl_spool::key::ChunkKey;
use trawl_spool::manifest::{Manifest, State, sha256};
use trawl_sys::{Error, Result};

use super::lease::Lease;
use super::new_records::{Marks, New};
use super::table::DataFile;
use super::unpublished::Draft;
use super::{Catalogue, Change, date_of, day_of, intact, put_file};
use crate::index::merge::{self, LARGE, Merge, Merged};
use crate::index::rows_of;
use crate::object::remote::Store;
use crate::runs::Runs;
use crate::runs::evidence::{Evidence, newer};

/// Maximum number of files in memory at once.
const AT_ONCE: usize = 8;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Indexed {
    /// Chunks indexed now, and their packets.
    pub chunks: u64,
    pub packets: u64,
    /// Chunks that had an index before.
    pub there: u64,
    /// Files of the table that were written.
    pub files: u64,
    pub bytes: u64,
    /// Unreadable chunks and records; `store verify` shows more.
    pub unreadable: Vec<String>,
    /// Records of a newer trawl, which stay marked as new.
    pub newer: Vec<String>,
}

/// Rows to be joined with others.
enum Rows {
    File(Vec<u8>),
    Batches(Vec<RecordBatch>),
}

/// A file whose rows are joined with others.
enum Input<'a> {
    /// A file of the table.
    Old(&'a DataFile),
    /// A new chunk, and the key of its index if it has one.
    Chunk(&'a ChunkKey, &'a Manifest, Option<&'a String>),
    /// The rows that a file of an earlier table has of these chunks.
    Part(&'a DataFile, &'a HashSet<String>),
}

impl Input<'_> {
    fn first_ns(&self) -> i64 {
        match self {
            Self::Old(file) | Self::Part(file, _) => file.first_ns,
            Self::Chunk(_, manifest, _) => manifest.time() as i64,
        }
    }

    fn rows(&self) -> u64 {
        match self {
            Self::Old(file) | Self::Part(file, _) => file.rows,
            Self::Chunk(_, manifest, _) => manifest.recorded,
        }
    }

    /// Returns the rows; `None` if a chunk cannot be read.
    fn read(&self, store: &Store) -> Result<Option<Rows>> {
        match self {
            Self::Old(file) => Ok(Some(Rows::File(intact(store, &file.key)?.into()))),
            Self::Chunk(_, manifest, Some(index)) if let Some(file) = chunk_index(store, index, manifest)? => {
                Ok(Some(Rows::File(file)))
            }
            Self::Chunk(key, manifest, _) => {
                let chunk = store.get(&key.packets()).ok();
                let chunk = chunk.filter(|bytes| sha256(bytes) == manifest.sha256);
                let rows = chunk.and_then(|bytes| rows_of(&bytes, manifest));
                Ok(rows.map(Rows::Batches))
            }
            Self::Part(file, chunks) => {
                let rows = merge::rows_of(store.read(&file.key)?.into(), chunks);
                let rows = rows.map_err(|e| Error::failed(format!("cannot read {}", file.key), e))?;
                Ok(Some(Rows::Batches(rows)))
            }
        }
    }
}

/// Reads the index of a chunk; `None` if it does not belong to the chunk, which is then indexed again.
fn chunk_index(store: &Store, key: &str, manifest: &Manifest) -> Result<Option<Vec<u8>>> {
    let file = store.get(key).ok();
    let metadata = file.as_ref().and_then(|file| merge::metadata(file.clone()));
    let (Some(file), Some(metadata)) = (file, metadata) else {
        return Ok(None);
    };
    if merge::has_other_columns(&metadata) {
        return Err(newer("cannot join files of the index", key));
    }
    let rows = metadata.file_metadata().num_rows();
    Ok((u64::try_from(rows) == Ok(manifest.recorded)).then(|| file.into()))
}

/// The files of a day that are made from others.
#[derive(Default)]
struct Joined {
    files: Vec<DataFile>,
    unreadable: Vec<ChunkKey>,
}

impl Joined {
    fn put(&mut self, draft: &mut Draft<'_>, day: u64, files: Vec<Merged>) -> Result<()> {
        for file in files {
            let number = self.files.len();
            let stored = put_file(draft, day, number, file.bytes, &file.metadata)?;
            self.files.push(stored);
        }
        Ok(())
    }
}

/// Joins files of a day, without the rows of some chunks.
fn join(
    draft: &mut Draft<'_>,
    day: u64,
    mut inputs: Vec<Input<'_>>,
    without: &HashSet<String>,
    step: &mut dyn FnMut(),
) -> Result<Joined> {
    inputs.sort_by_key(Input::first_ns);
    let mut merge = Merge::new(without, inputs.iter().map(Input::rows).sum());
    let mut joined = Joined::default();
    let store = draft.store;
    let failed = |e| {
        Error::failed("cannot join files of the index", e)
            .fix("rebuild the catalogue with trawl store index --rebuild URL")
    };
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    for inputs in inputs.chunks(cpus.min(AT_ONCE)) {
        let read: Vec<Result<Option<Rows>>> = thread::scope(|scope| {
            let readers = inputs.iter().map(|input| scope.spawn(|| input.read(store)));
            let readers: Vec<_> = readers.collect();
            let results = readers.into_iter().map(|reader| reader.join());
            let broken = |_| Err(Error::failed("cannot index a chunk", "one of its threads panicked"));
            results.map(|result| result.unwrap_or_else(broken)).collect()
        });
        for (input, rows) in inputs.iter().zip(read) {
            match (rows?, input) {
                (Some(Rows::File(file)), _) => merge.add(file).map_err(failed)?,
                (Some(Rows::Batches(all)), _) => {
                    let mut all = all.iter();
                    all.try_for_each(|rows| merge.add_rows(rows)).map_err(failed)?;
                }
                (None, Input::Chunk(key, ..)) => joined.unreadable.push((*key).clone()),
                (None, Input::Old(_) | Input::Part(..)) => {}
            }
            joined.put(draft, day, merge.take_finished())?;
            step();
        }
    }
    joined.put(draft, day, merge.finish().map_err(failed)?)?;
    Ok(joined)
}

/// Writes the files of a day again, without the rows of some chunks.
pub fn rewrite_without(
    draft: &mut Draft<'_>,
    day: u64,
    files: &[&DataFile],
    gone: &HashSet<String>,
    step: &mut dyn FnMut(),
) -> Result<Vec<DataFile>> {
    let inputs = files.iter().map(|file| Input::Old(file)).collect();
    Ok(join(draft, day, inputs, gone, step)?.files)
}

/// Reads all records of a store as new ones.
fn read_everything(store: &Store, marks: &Marks) -> Result<New> {
    let evidence = Evidence::read(store)?;
    let mut indexes = marks.indexes.clone();
    indexes.retain(|chunk, _| {
        let manifest = evidence.manifests.get(chunk);
        manifest.is_some_and(|manifest| manifest.state == State::OnHost)
    });
    Ok(New { evidence, indexes, ..New::default() })
}

/// Adds all new records and their chunks to the catalogue; with `again`, rebuilds it from all records.
pub fn index(store: &Store, again: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Indexed> {
    let mut lease = Lease::acquire(store)?;
    let mut marks = Marks::list(store)?;
    // For chunks that stay on their hosts, only the index has the rows.
    let earlier = again.then(|| Catalogue::read(store).unwrap_or_default());
    let catalogue = if again { Catalogue::start_over(store)? } else { Catalogue::read(store)? };
    let known = catalogue.runs(store)?;
    let mut new = if again { read_everything(store, &marks)? } else { marks.read(store, &known)? };
    if again {
        new.evidence.check_versions("cannot rebuild the catalogue")?;
    }
    marks.keep(&new.unread);
    // Indexes that a recent commit has replaced are kept, because running queries may still read them.
    new.known.retain(|key| !catalogue.is_garbage(key));
    let mut indexed = Indexed {
        there: known.0.values().map(|run| run.total().chunks).sum(),
        unreadable: new.evidence.broken.clone(),
        newer: new.evidence.newer.clone(),
        ..Indexed::default()
    };
    let mut days: BTreeMap<u64, Vec<Input<'_>>> = BTreeMap::new();
    let mut elsewhere: BTreeMap<u64, HashSet<String>> = BTreeMap::new();
    let mut chunks = 0;
    for (key, manifest) in &new.evidence.manifests {
        let index = new.indexes.get(key).map(|(key, _)| key);
        let has_packets = new.evidence.packets.contains_key(key);
        let is_here = match manifest.state {
            State::Stored => has_packets,
            State::OnHost => has_packets || index.is_some(),
            State::Idle | State::EvictedSpoolFull | State::EvictedSpoolFailed => false,
        };
        if new.evidence.is_pruned(key) {
            continue;
        }
        if !is_here {
            if manifest.state == State::OnHost {
                let day = elsewhere.entry(day_of(manifest.time())).or_default();
                day.insert(key.packets());
            }
            continue;
        }
        let day = days.entry(day_of(manifest.time())).or_default();
        day.push(Input::Chunk(key, manifest, index));
        chunks += 1;
        match index {
            Some(_) => indexed.there += 1,
            None => {
                indexed.chunks += 1;
                indexed.packets += manifest.recorded;
            }
        }
    }
    let mut without_rows: HashSet<&String> = HashSet::new();
    for (day, chunks) in &elsewhere {
        let files = earlier.iter().flat_map(Catalogue::files);
        let files: Vec<_> = files.filter(|file| file.date == date_of(*day)).collect();
        if files.is_empty() {
            without_rows.extend(chunks);
            continue;
        }
        let files = files.into_iter().map(|file| Input::Part(file, chunks));
        days.entry(*day).or_default().extend(files);
    }
    let mut change = Change::default();
    let mut draft = Draft::new(store);
    let mut unreadable: BTreeSet<ChunkKey> = BTreeSet::new();
    let mut done = 0;
    for (day, mut inputs) in days {
        for file in catalogue.files() {
            if file.date == date_of(day) && file.bytes < LARGE {
                change.remove.insert(file.key.clone());
                inputs.push(Input::Old(file));
            }
        }
        let joined = join(&mut draft, day, inputs, &HashSet::new(), &mut || {
            progress(done, chunks);
            lease.renew();
            done += 1;
        })?;
        unreadable.extend(joined.unreadable);
        change.add.extend(joined.files);
    }
    indexed.files = change.add.len() as u64;
    indexed.bytes = change.add.iter().map(|file| file.bytes).sum();
    indexed.chunks -= unreadable.len() as u64;
    for key in &unreadable {
        let manifest = new.evidence.manifests.get(key);
        indexed.packets -= manifest.map_or(0, |manifest| manifest.recorded);
        indexed.unreadable.push(key.packets());
    }
    // The store may return the right bytes the next time: such chunks stay marked as new.
    let manifests = &mut new.evidence.manifests;
    manifests.retain(|key, _| !unreadable.contains(key));
    marks.keep(&unreadable.iter().map(ChunkKey::manifest).collect());
    if !new.is_empty() || again {
        let facts = new.runs(|chunk| !without_rows.contains(&chunk.packets()));
        change.hours = hours(store, &catalogue, &facts)?;
        change.runs = known;
        change.runs.add(facts.by_day());
        // The index of a chunk whose manifest is not stored yet stays.
        let indexes = new.indexes.iter();
        let indexes = indexes.filter(|(chunk, _)| new.evidence.manifests.contains_key(*chunk));
        change.unused = indexes.map(|(_, (key, _))| key.clone()).collect();
        catalogue.commit(draft, change)?;
    }
    let removed = store.delete_all(&[marks.empty, new.known].concat());
    removed.map_err(|e| Error::failed("cannot remove the marks of indexed records", e))?;
    Ok(indexed)
}

/// Adds facts to the known packets of each hour, for the days that they are about.
fn hours(store: &Store, catalogue: &Catalogue, facts: &Runs) -> Result<BTreeMap<u64, Runs>> {
    let mut days = BTreeMap::new();
    for day in facts.days() {
        let mut hours = catalogue.hours(store, day)?;
        hours.add(facts.of_day(day));
        days.insert(day, hours);
    }
    Ok(days)
}
