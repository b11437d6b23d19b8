//! Summaries of a run's new chunks: copies of their manifests, and of the parts of their index files that describe the
//! contents. A question reads one summary instead of several objects of each chunk that the catalogue does not have.

use std::io::{self, Read, Write};
use std::ops::Range;

use bytes::Bytes;
use parquet::bloom_filter::Sbbf;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::statistics::Statistics;
use serde::{Deserialize, Serialize};
use trawl_spool::key::{self, ChunkKey, Epoch, Object};
use trawl_spool::manifest::Manifest;

use super::LEVEL;
use crate::index::merge;
use crate::object::remote::Store;
use crate::search::footer::{END, fault};

/// Number of chunks in a summary: each chunk that is stored writes it again.
const MOST: u64 = 64;
/// Maximum size of a file's Bloom filters of addresses that are copied.
const BLOOMS: u64 = 16 << 10;
/// Maximum size of a summary's contents.
const BYTES: u64 = 8 << 20;
/// Columns whose Bloom filters are copied.
const ADDRESSES: [&str; 2] = ["src", "dst"];

/// Columns that conditions on packets whose headers were not read compare with null.
const OF_HEADERS: [&str; 1] = ["ethertype"];

/// Parts of a file.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Size of the file.
    pub bytes: u64,
    /// By their offset in the file.
    parts: Vec<(u64, Bytes)>,
    known: Known,
}

/// Knowledge about the parts, which saves the reader of a footer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Known {
    /// Column of each Bloom filter, if each row group has one for each address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    blooms: Vec<String>,
    /// Columns with a value in each row.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    complete: Vec<String>,
}

/// The addresses that a file may have.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// Bloom filters of row groups, by their columns.
    blooms: Vec<(String, Bytes)>,
    complete: Vec<String>,
}

impl Addresses {
    /// Returns true if a column may have a text.
    pub fn may_have(&self, column: &str, text: &str) -> bool {
        let mut of_column = self.blooms.iter().filter(|(name, _)| name == column).peekable();
        let may = |(_, bloom): &(String, Bytes)| Sbbf::from_bytes(bloom).map_or(true, |bloom| bloom.check(text));
        of_column.peek().is_none() || of_column.any(may)
    }

    /// Returns true if a column may be without a value in a row.
    pub fn may_be_null(&self, column: &str) -> bool {
        !self.complete.iter().any(|name| name == column)
    }

    /// Returns the memory of the Bloom filters.
    pub fn held(&self) -> u64 {
        self.blooms.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }
}

impl Parts {
    /// Returns the parts of an index file that describe its contents, the footer last.
    fn of(file: &Bytes) -> Option<Self> {
        let metadata = merge::metadata(file.clone())?;
        let end: [u8; 4] = *file.get(file.len().checked_sub(END as usize)?..)?.first_chunk()?;
        let footer = file.len().checked_sub(u32::from_le_bytes(end) as usize + END as usize)?;
        let mut blooms = blooms(&metadata);
        if blooms.iter().map(|(_, range)| range.end.saturating_sub(range.start)).sum::<u64>() > BLOOMS {
            blooms.clear();
        }
        let (columns, mut ranges): (Vec<String>, Vec<_>) = blooms.into_iter().unzip();
        let known = Known::of(&metadata, columns);
        ranges.push(footer as u64..file.len() as u64);
        let part = |range: Range<u64>| {
            let (from, to) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
            (from <= to && to <= file.len()).then(|| (range.start, file.slice(from..to)))
        };
        let parts: Option<_> = ranges.into_iter().map(part).collect();
        Some(Self { bytes: file.len() as u64, parts: parts?, known })
    }

    /// Returns the addresses that the file may have, in memory of their own.
    pub fn addresses(&self) -> Addresses {
        let blooms = self.known.blooms.iter().zip(&self.parts);
        let blooms = blooms.map(|(column, (_, bytes))| (column.clone(), Bytes::copy_from_slice(bytes)));
        Addresses { blooms: blooms.collect(), complete: self.known.complete.clone() }
    }

    /// Returns a range of the file, if it lies within a part.
    pub fn get(&self, range: &Range<u64>) -> Option<Bytes> {
        self.parts.iter().find_map(|(offset, bytes)| {
            let from = usize::try_from(range.start.checked_sub(*offset)?).ok()?;
            let to = usize::try_from(range.end.checked_sub(*offset)?).ok()?;
            (from <= to && to <= bytes.len()).then(|| bytes.slice(from..to))
        })
    }

    /// Returns the memory of the parts.
    pub fn held(&self) -> u64 {
        self.parts.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Returns the length of the file's footer.
    pub fn footer(&self) -> u64 {
        self.parts.last().map_or(0, |(_, footer)| footer.len() as u64)
    }

    /// Returns true if the footer is one: the reader of Parquet files does not survive others.
    fn is_possible(&self) -> bool {
        self.parts.last().is_some_and(|(offset, footer)| {
            let ends = offset.checked_add(footer.len() as u64) == Some(self.bytes);
            let end = footer.len().checked_sub(END as usize).and_then(|at| footer.get(at..));
            let has_blooms = [0, self.parts.len() - 1].contains(&self.known.blooms.len());
            ends && has_blooms && end.is_some_and(|end| fault(end, footer.len() as u64).is_none())
        })
    }
}

impl Known {
    /// Returns the knowledge about a file whose Bloom filters of these columns are copied.
    fn of(metadata: &ParquetMetaData, blooms: Vec<String>) -> Self {
        let groups = metadata.num_row_groups();
        let has_all = |column: &&str| blooms.iter().filter(|name| name == column).count() == groups;
        let blooms = if ADDRESSES.iter().all(has_all) { blooms } else { Vec::new() };
        let is_set = |column: &&&str| {
            metadata.row_groups().iter().all(|group| {
                let found = group.columns().iter().find(|found| found.column_path().string() == **column);
                let nulls = found.and_then(|found| found.statistics()).and_then(Statistics::null_count_opt);
                nulls == Some(0)
            })
        };
        let complete = OF_HEADERS.iter().filter(is_set).map(|column| (*column).to_owned()).collect();
        Self { blooms, complete }
    }
}

/// Returns the columns and the places of the Bloom filters of addresses.
fn blooms(metadata: &ParquetMetaData) -> Vec<(String, Range<u64>)> {
    let columns = metadata.row_groups().iter().flat_map(|group| group.columns());
    let of_addresses = columns.filter(|column| ADDRESSES.contains(&column.column_path().string().as_str()));
    let ranges = of_addresses.filter_map(|column| {
        let offset = u64::try_from(column.bloom_filter_offset()?).ok()?;
        let length = u64::try_from(column.bloom_filter_length()?).ok()?;
        Some((column.column_path().string(), offset..offset.checked_add(length)?))
    });
    ranges.collect()
}

/// Copies about a chunk.
#[derive(Clone, Debug)]
pub struct Entry {
    pub chunk: ChunkKey,
    pub manifest: Bytes,
    /// Parts of the index that its host made.
    pub index: Option<Parts>,
}

/// Line before the copies about a chunk, with their lengths.
#[derive(Serialize, Deserialize)]
struct Line {
    /// Key of the manifest.
    key: String,
    manifest: usize,
    index: Option<Lengths>,
}

#[derive(Serialize, Deserialize)]
struct Lengths {
    bytes: u64,
    /// Offset in the file, and length.
    parts: Vec<(u64, usize)>,
    #[serde(flatten)]
    known: Known,
}

impl Entry {
    pub fn new(manifest: &Manifest, text: Vec<u8>, index: Option<Vec<u8>>) -> Self {
        let index = index.and_then(|file| Parts::of(&file.into()));
        Self { chunk: manifest.key(), manifest: text.into(), index }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let parts = |index: &Parts| index.parts.iter().map(|(offset, bytes)| (*offset, bytes.len())).collect();
        let lengths = |index: &Parts| Lengths { bytes: index.bytes, parts: parts(index), known: index.known.clone() };
        let index = self.index.as_ref().map(lengths);
        let line = Line { key: self.chunk.manifest(), manifest: self.manifest.len(), index };
        // Texts and numbers always serialize to JSON.
        out.extend(serde_json::to_vec(&line).unwrap_or_default());
        out.push(b'\n');
        out.extend_from_slice(&self.manifest);
        for (_, bytes) in self.index.iter().flat_map(|index| &index.parts) {
            out.extend_from_slice(bytes);
        }
    }

    /// Reads an entry from the beginning of a text, and removes it there.
    fn read(rest: &mut Bytes) -> Option<Self> {
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let line: Line = serde_json::from_slice(&rest.split_to(end)).ok()?;
        *rest = rest.slice(1..);
        let mut take = |length: usize| (length <= rest.len()).then(|| rest.split_to(length));
        let manifest = take(line.manifest)?;
        let index = match line.index {
            Some(lengths) => {
                let parts: Option<_> =
                    lengths.parts.into_iter().map(|(offset, length)| Some((offset, take(length)?))).collect();
                Some(Parts { bytes: lengths.bytes, parts: parts?, known: lengths.known }).filter(Parts::is_possible)
            }
            None => None,
        };
        match Object::of(&line.key) {
            Object::Manifest(chunk) => Some(Self { chunk, manifest, index }),
            _ => None,
        }
    }
}

/// Reads a summary; an unreadable one has no entries, since the objects that it copies are in the store.
pub fn parse(packed: &[u8]) -> Vec<Entry> {
    let mut text = Vec::new();
    let read = zstd::Decoder::new(packed).and_then(|decoder| decoder.take(BYTES).read_to_end(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    let mut rest = Bytes::from(text);
    std::iter::from_fn(|| Entry::read(&mut rest)).collect()
}

/// The summary of a run's chunks that a process is storing.
#[derive(Debug, Default)]
pub struct Summary {
    /// Number of the first chunk.
    first: u64,
    entries: Vec<Entry>,
    is_stored: bool,
}

impl Summary {
    /// Adds a chunk. Stores the earlier ones before, if no other fits.
    pub fn add(&mut self, store: &Store, run: &Epoch, sequence: u64, entry: Entry) {
        if !has(self.first, sequence) || self.entries.is_empty() {
            self.store(store, run);
            *self = Self { first: sequence, ..Self::default() };
        }
        self.entries.push(entry);
        self.is_stored = false;
    }

    /// Stores the summary. Without it, questions read the objects that it copies.
    pub fn store(&mut self, store: &Store, run: &Epoch) {
        let mut text = Vec::new();
        self.entries.iter().for_each(|entry| entry.write(&mut text));
        if self.is_stored || text.is_empty() {
            return;
        }
        if let Ok(bytes) = packed(&text) {
            self.is_stored = store.overwrite(&key::summary(run, self.first), bytes).is_ok();
        }
    }
}

/// Compresses a text, with a checksum.
fn packed(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut packer = zstd::Encoder::new(Vec::new(), LEVEL)?;
    packer.include_checksum(true)?;
    packer.write_all(text)?;
    packer.finish()
}

/// Returns true if a chunk belongs to a summary that begins with the chunk `first`.
pub fn has(first: u64, sequence: u64) -> bool {
    (first..first.saturating_add(MOST)).contains(&sequence)
}
