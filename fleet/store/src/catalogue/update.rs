//! Brings the catalogue up to date: the index of new chunks is joined into large files, and the facts of new records to
//! the known ones. Chunks that hosts did not index are indexed here.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::num::NonZero;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use bytes::Bytes;
use parquet::errors::ParquetError;
use serde::Serialize;
use trawl_spool::key::ChunkKey;
use trawl_spool::manifest::{Manifest, State, sha256};
use trawl_sys::events::signal_is_pending;
use trawl_sys::{Error, Result};

use super::lease::Lease;
use super::new_records::{Marks, New, Source};
use super::table::DataFile;
use super::unpublished::Draft;
use super::{Catalogue, Change, date_of, day_of, intact, put_file};
use crate::index::merge::{self, LARGE, Merge, Merged};
use crate::index::{check, read};
use crate::object::remote::Store;
use crate::runs::Runs;
use crate::runs::evidence::{Evidence, newer};

/// Maximum number of chunks and files that are read at once.
const AT_ONCE: usize = 8;
/// Number of their bytes in memory from which no other one is read at the same time.
const BYTES_AT_ONCE: u64 = 64 << 20;
/// Number of batches of rows that wait for each of them.
const BATCHES_AHEAD: usize = 1;
/// Number of records that are read at once: each needs some KB.
const RECORDS: usize = 4096;
/// A file with more than this many times the added rows is not written again for them.
const TIMES: u64 = 4;
/// Time after which the chunks read so far are added to the catalogue, and stay if this process is killed.
const COMMIT_EVERY: Duration = Duration::from_secs(60);

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

/// A file whose rows are joined with others.
enum Input<'a> {
    /// A file of the table.
    Old(&'a DataFile),
    /// A new chunk, and the key of its index if it has one.
    Chunk(&'a ChunkKey, &'a Manifest, Option<&'a String>),
    /// The rows that a file of an earlier table has of these chunks.
    Part(&'a DataFile, &'a HashSet<String>),
}

impl<'a> Input<'a> {
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

    fn bytes(&self) -> u64 {
        match self {
            Self::Old(file) | Self::Part(file, _) => file.bytes,
            Self::Chunk(_, manifest, _) => manifest.bytes,
        }
    }

    /// Passes the rows on. Returns false, without any row, if a chunk cannot be read.
    fn read(&self, store: &Store, rows: &SyncSender<RecordBatch>) -> Result<bool> {
        let pass = |batch| rows.send(batch).map_err(|e| ParquetError::General(e.to_string()));
        let read = match self {
            Self::Old(file) => merge::read(intact(store, &file.key)?, pass),
            Self::Chunk(_, manifest, Some(key)) if let Some(file) = chunk_index(store, key, manifest)? => {
                merge::read(file, pass)
            }
            Self::Chunk(key, manifest, _) => {
                let chunk = store.get(&key.packets()).ok();
                let chunk = chunk.filter(|bytes| sha256(bytes) == manifest.sha256);
                let Some(chunk) = chunk.filter(|bytes| check(bytes, manifest).is_ok()) else {
                    return Ok(false);
                };
                read(&chunk, manifest, pass).map_err(|e| ParquetError::External(Box::new(e)))
            }
            Self::Part(file, chunks) => {
                merge::read(store.read(&file.key)?, |batch| pass(merge::of_chunks(&batch, chunks)?))
            }
        };
        read.map(|()| true).map_err(|e| damaged(self.key(), e))
    }

    fn chunk(&self) -> Option<(&'a ChunkKey, &'a Manifest, Option<&'a String>)> {
        match *self {
            Self::Chunk(key, manifest, index) => Some((key, manifest, index)),
            Self::Old(_) | Self::Part(..) => None,
        }
    }

    /// Returns the key of the object with the rows.
    fn key(&self) -> String {
        match self {
            Self::Old(file) | Self::Part(file, _) => file.key.clone(),
            Self::Chunk(_, _, Some(index)) => (*index).clone(),
            Self::Chunk(key, _, None) => key.packets(),
        }
    }
}

fn damaged(key: impl std::fmt::Display, why: impl std::fmt::Display) -> Error {
    Error::failed("cannot join files of the index", format!("{key}: {why}"))
        .fix("rebuild the catalogue with trawl store index --rebuild URL")
}

/// Reads the index of a chunk; `None` if it does not belong to the chunk, which is then indexed again.
fn chunk_index(store: &Store, key: &str, manifest: &Manifest) -> Result<Option<Bytes>> {
    let file = store.get(key).ok();
    let metadata = file.as_ref().and_then(|file| merge::metadata(file.clone()));
    let (Some(file), Some(metadata)) = (file, metadata) else {
        return Ok(None);
    };
    if merge::has_other_columns(&metadata) {
        return Err(newer("cannot join files of the index", key));
    }
    let rows = metadata.file_metadata().num_rows();
    Ok((u64::try_from(rows) == Ok(manifest.recorded)).then_some(file))
}

/// The files of a day that are made from others.
#[derive(Default)]
struct Joined {
    files: Vec<DataFile>,
    unreadable: Vec<ChunkKey>,
    /// Chunks that were not read, because the time was over.
    left: Vec<ChunkKey>,
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

/// An input that a thread reads.
struct Reading<'scope, 'a> {
    input: &'scope Input<'a>,
    rows: Receiver<RecordBatch>,
    reader: ScopedJoinHandle<'scope, Result<bool>>,
}

impl<'scope, 'a> Reading<'scope, 'a> {
    fn start(scope: &'scope Scope<'scope, '_>, store: &'scope Store, input: &'scope Input<'a>) -> Self {
        let (sender, rows) = sync_channel(BATCHES_AHEAD);
        let reader = scope.spawn(move || input.read(store, &sender));
        Self { input, rows, reader }
    }

    fn end(self) -> Result<bool> {
        // If rows are left, the reader must not wait until they are taken.
        drop(self.rows);
        let panicked = |_| Err(Error::failed(format!("cannot index {}", self.input.key()), "its thread panicked"));
        self.reader.join().unwrap_or_else(panicked)
    }
}

/// Joins files of a day, without the rows of some chunks. Leaves out chunks that it has not read at a time `until`.
fn join(
    draft: &mut Draft<'_>,
    day: u64,
    mut inputs: Vec<Input<'_>>,
    without: &HashSet<String>,
    until: Option<Instant>,
    step: &mut dyn FnMut(),
) -> Result<Joined> {
    inputs.sort_by_key(Input::first_ns);
    let mut merge = Merge::new(without, inputs.iter().map(Input::rows).sum());
    let mut joined = Joined::default();
    let store = draft.store;
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let failed = |e| Error::failed("cannot join files of the index", e);
    let is_over = || until.is_some_and(|until| Instant::now() >= until || signal_is_pending());
    thread::scope(|scope| -> Result<()> {
        let mut inputs = inputs.iter().peekable();
        let mut running: VecDeque<Reading<'_, '_>> = VecDeque::new();
        loop {
            while let Some(input) = inputs.peek() {
                let bytes: u64 = running.iter().map(|one| one.input.bytes()).sum();
                let has_room = running.len() < cpus.min(AT_ONCE) && bytes + input.bytes() <= BYTES_AT_ONCE;
                if !has_room && !running.is_empty() {
                    break;
                }
                match inputs.next() {
                    Some(Input::Chunk(key, ..)) if is_over() => joined.left.push((*key).clone()),
                    Some(input) => running.push_back(Reading::start(scope, store, input)),
                    None => {}
                }
            }
            let Some(first) = running.pop_front() else { return Ok(()) };
            for rows in &first.rows {
                merge.add(&rows).map_err(failed)?;
                joined.put(draft, day, merge.take_finished())?;
            }
            let input = first.input;
            if let (false, Input::Chunk(key, ..)) = (first.end()?, input) {
                joined.unreadable.push((*key).clone());
            }
            step();
        }
    })?;
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
    Ok(join(draft, day, inputs, gone, None, step)?.files)
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

/// An indexing, and how far it is.
struct Work<'a> {
    store: &'a Store,
    lease: Lease<'a>,
    show: &'a mut dyn FnMut(u64, u64),
    done: u64,
    all: u64,
    indexed: Indexed,
}

impl Work<'_> {
    fn step(&mut self) {
        self.done += 1;
        (self.show)(self.done.min(self.all), self.all);
        self.lease.renew();
    }
}

/// Adds all new records and their chunks to the catalogue, some at a time; with `again`, or if the catalogue is lost,
/// rebuilds it from all records at once. Ends early, without the rest, if a signal to end the process waits.
pub fn index(store: &Store, again: bool, show: &mut dyn FnMut(u64, u64)) -> Result<Indexed> {
    index_as(Lease::acquire(store)?, store, again, show)
}

/// Adds new records as [`index`] does; returns `None` if another process is changing the catalogue.
pub fn index_if_free(store: &Store, show: &mut dyn FnMut(u64, u64)) -> Result<Option<Indexed>> {
    let lease = Lease::acquire_if_free(store)?;
    lease.map(|lease| index_as(lease, store, false, show)).transpose()
}

fn index_as<'a>(lease: Lease<'a>, store: &'a Store, again: bool, show: &mut dyn FnMut(u64, u64)) -> Result<Indexed> {
    let marks = Marks::list(store)?;
    let all = marks.clone();
    let mut work = Work { store, lease, show, done: 0, all: marks.chunks(), indexed: Indexed::default() };
    // For chunks that stay on their hosts, only the index has the rows.
    let earlier = if again { Catalogue::read(store).unwrap_or_default() } else { Catalogue::read(store)? };
    if again || (earlier.is_absent() && !marks.are_complete(store)?) {
        let catalogue = Catalogue::start_over(store)?;
        let new = read_everything(store, &marks)?;
        new.evidence.check_versions("cannot rebuild the catalogue")?;
        work.all = new.evidence.manifests.len() as u64;
        add(&mut work, catalogue, Some(&earlier), marks, new, None)?;
        return end(work, &all);
    }
    work.indexed.there = earlier.runs(store)?.0.values().map(|run| run.total().chunks).sum();
    let mut parts: VecDeque<Marks> = marks.into_parts(RECORDS).into();
    while let Some(marks) = parts.pop_front().filter(|_| !signal_is_pending()) {
        let catalogue = Catalogue::read(store)?;
        let new = marks.read(store, &catalogue.runs(store)?, Source::Records)?;
        let until = Some(Instant::now() + COMMIT_EVERY);
        let left = add(&mut work, catalogue, None, marks, new, until)?;
        if !left.is_empty() {
            parts.push_front(left);
        }
    }
    end(work, &all)
}

/// Removes the summaries of chunks that the catalogue has, and returns what was indexed.
fn end(work: Work<'_>, marks: &Marks) -> Result<Indexed> {
    if !marks.has_summaries() {
        return Ok(work.indexed);
    }
    let store = work.store;
    let known = Catalogue::read(store)?.runs(store)?;
    let removed = store.delete_all(&marks.outdated_summaries(&known));
    removed.map_err(|e| Error::failed("cannot remove the summaries of indexed chunks", e))?;
    Ok(work.indexed)
}

/// Adds records and their chunks to a catalogue. `earlier` is the catalogue that it replaces. Returns the marks of the
/// chunks that it had not read at the time `until`.
fn add(
    work: &mut Work<'_>,
    catalogue: Catalogue,
    earlier: Option<&Catalogue>,
    mut marks: Marks,
    mut new: New,
    until: Option<Instant>,
) -> Result<Marks> {
    let store = work.store;
    let known = catalogue.runs(store)?;
    marks.keep(&new.unread);
    // Indexes that a recent commit has replaced are kept, because running queries may still read them.
    new.known.retain(|key| !catalogue.is_garbage(key));
    work.indexed.unreadable.extend(new.evidence.broken.iter().cloned());
    work.indexed.newer.extend(new.evidence.newer.iter().cloned());
    let mut days: BTreeMap<u64, Vec<Input<'_>>> = BTreeMap::new();
    let mut elsewhere: BTreeMap<u64, HashSet<String>> = BTreeMap::new();
    for (key, manifest) in &new.evidence.manifests {
        let index = new.indexes.get(key).map(|index| &index.key);
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
    }
    let mut without_rows: HashSet<&String> = HashSet::new();
    for (day, chunks) in &elsewhere {
        let files = earlier.iter().flat_map(|earlier| earlier.files());
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
    let mut unreadable: HashSet<ChunkKey> = HashSet::new();
    let mut left: HashSet<ChunkKey> = HashSet::new();
    for (day, mut inputs) in days {
        for file in small_files(&catalogue, day, inputs.iter().map(Input::rows).sum()) {
            change.remove.insert(file.key.clone());
            inputs.push(Input::Old(file));
        }
        let chunks: Vec<_> = inputs.iter().filter_map(Input::chunk).collect();
        let joined = join(&mut draft, day, inputs, &HashSet::new(), until, &mut || work.step())?;
        unreadable.extend(joined.unreadable);
        left.extend(joined.left);
        change.add.extend(joined.files);
        for (key, manifest, index) in chunks {
            match index {
                _ if unreadable.contains(key) || left.contains(key) => {}
                Some(_) => work.indexed.there += 1,
                None => {
                    work.indexed.chunks += 1;
                    work.indexed.packets += manifest.recorded;
                }
            }
        }
    }
    work.indexed.files += change.add.len() as u64;
    work.indexed.bytes += change.add.iter().map(|file| file.bytes).sum::<u64>();
    work.indexed.unreadable.extend(unreadable.iter().map(ChunkKey::packets));
    // The store may return the right bytes the next time: such chunks stay marked as new.
    let manifests = &mut new.evidence.manifests;
    manifests.retain(|key, _| !unreadable.contains(key) && !left.contains(key));
    marks.keep(&unreadable.iter().map(ChunkKey::manifest).collect());
    let left = marks.split_off(&left.iter().map(ChunkKey::manifest).collect());
    if !new.is_empty() || earlier.is_some() {
        let facts = new.runs(|chunk| !without_rows.contains(&chunk.packets()));
        change.hours = hours(store, &catalogue, &facts)?;
        change.runs = known;
        change.runs.add(facts.by_day());
        // The index of a chunk whose manifest is not stored yet stays.
        let indexes = new.indexes.iter();
        let indexes = indexes.filter(|(chunk, _)| new.evidence.manifests.contains_key(*chunk));
        change.unused = indexes.map(|(_, index)| index.key.clone()).collect();
        catalogue.commit(draft, change)?;
    }
    let removed = store.delete_all(&[marks.empty, new.known].concat());
    removed.map_err(|e| Error::failed("cannot remove the marks of indexed records", e))?;
    Ok(left)
}

/// Returns the files of a day that are joined with this many new rows: each has at most some times the rows that are
/// written anyway. A row is thus written again a few times only, however often rows are added.
fn small_files(catalogue: &Catalogue, day: u64, mut rows: u64) -> Vec<&DataFile> {
    let date = date_of(day);
    let mut files: Vec<&DataFile> =
        catalogue.files().iter().filter(|file| file.date == date && file.bytes < LARGE).collect();
    files.sort_by_key(|file| file.rows);
    let mut is_joined = |file: &&DataFile| {
        let joins = file.rows <= rows.saturating_mul(TIMES);
        rows += file.rows;
        joins
    };
    files.into_iter().take_while(|file| is_joined(file)).collect()
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
