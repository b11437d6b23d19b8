//! The places of the packets that meet a condition, in the order of their times. Files and row groups without such a
//! packet are left out by their statistics and Bloom filters. Only rows that overlap in time are in memory together.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::thread;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_cast::cast;
use arrow_schema::DataType;
use bytes::{Buf, Bytes};
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, stream};
use object_store::path::Path as Key;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowPredicateFn, ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowFilter,
};
use parquet::bloom_filter::Sbbf;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
};
use parquet::file::reader::{ChunkReader, Length};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use trawl_sys::{Error, Result};

use super::Readers;
use super::condition::Condition;
use super::groups::Group;
use super::limits::WHAT;
use crate::catalogue::contents::File;
use crate::chunks::fetch::PacketLocation;
use crate::index::schema::COLUMNS;
use crate::object::remote::Store;

/// Number of files that are checked at once.
const FILES: usize = 64;
/// Memory for all Bloom filters, in KiB.
const ROOM: u32 = 128 << 10;
/// Number of row groups that are read at once if each read is a network call.
const REMOTE_GROUPS: usize = 16;
/// Columns that locate a packet.
const LOCATION: [&str; 4] = ["time_ns", "chunk", "frame", "offset"];

/// Position of a packet, in the order of the answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    time_ns: i64,
    chunk: Arc<str>,
    frame: i64,
    offset: i64,
}

impl Place {
    fn location(self) -> io::Result<PacketLocation> {
        let number = |number: i64| usize::try_from(number).map_err(io::Error::other);
        Ok(PacketLocation {
            chunk: self.chunk.to_string(),
            frame: number(self.frame)?,
            offset: number(self.offset)?,
            time_ns: self.time_ns.cast_unsigned(),
        })
    }
}

/// A row group that may have packets of the answer.
struct Candidate {
    file: Arc<Checked>,
    number: usize,
    /// Time before which no packet of the row groups after this one lies.
    next_ns: i64,
}

/// A file whose footer has been read.
struct Checked {
    key: Key,
    bytes: u64,
    metadata: ArrowReaderMetadata,
}

/// Packets of a row group, and the time before which all packets are known then.
type Found = io::Result<(Vec<Place>, i64)>;

pub struct Locations {
    runtime: Runtime,
    groups: BoxStream<'static, Found>,
    waiting: BinaryHeap<Reverse<Place>>,
    known_until_ns: i64,
    is_over: bool,
}

impl Locations {
    /// Starts to search these files of a store.
    pub fn find(store: &str, mut files: Vec<File>, condition: Option<Condition>) -> Result<Self> {
        // Connections belong to the runtime that made them, so the store's own cannot be shared.
        let store = Store::open(store, false)?;
        let runtime = Builder::new_multi_thread().enable_all().build().map_err(|e| Error::os(WHAT, e))?;
        let readers = Readers::of(&store, &files);
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        let at_once = if readers.is_remote { REMOTE_GROUPS } else { cpus };
        if let Some(condition) = &condition {
            files.retain(|file| condition.may_hold(file));
        }
        files.sort_by_key(|file| file.first_ns);
        let next: Vec<i64> = files.iter().skip(1).map(|file| file.first_ns).chain([i64::MAX]).collect();
        let search = Arc::new(Search::new(readers, condition));
        let reader = Arc::clone(&search);
        let groups = stream::iter(files.into_iter().zip(next))
            .map(move |(file, next_ns)| {
                let (search, key) = (Arc::clone(&search), file.key.clone());
                // Runs on all CPUs.
                let checked = tokio::spawn(async move { search.check(&file, next_ns).await });
                checked.map(move |checked| checked.unwrap_or_else(|why| Err(unreadable(&key, why))))
            })
            .buffered(FILES)
            .flat_map(|groups| match groups {
                Ok(groups) => stream::iter(groups).map(Ok).boxed(),
                Err(error) => stream::iter([Err(error)]).boxed(),
            })
            .map(move |group| {
                let search = Arc::clone(&reader);
                async move {
                    let Candidate { file, number, next_ns } = group?;
                    let key = file.key.clone();
                    let read = tokio::spawn(async move { search.read(&file, number).await });
                    let places = read.await.unwrap_or_else(|why| Err(unreadable(&key, why)))?;
                    Ok((places, next_ns))
                }
            })
            .buffered(at_once)
            .boxed();
        Ok(Self { runtime, groups, waiting: BinaryHeap::new(), known_until_ns: i64::MIN, is_over: false })
    }
}

impl Iterator for Locations {
    type Item = io::Result<PacketLocation>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let is_next = |Reverse(first): &Reverse<Place>| self.is_over || first.time_ns < self.known_until_ns;
            if self.waiting.peek().is_some_and(is_next) {
                return self.waiting.pop().map(|Reverse(place)| place.location());
            }
            if self.is_over {
                return None;
            }
            match self.runtime.block_on(self.groups.next()) {
                Some(Ok((places, known_until_ns))) => {
                    self.waiting.extend(places.into_iter().map(Reverse));
                    self.known_until_ns = known_until_ns;
                }
                Some(Err(error)) => {
                    self.waiting.clear();
                    self.is_over = true;
                    return Some(Err(error));
                }
                None => self.is_over = true,
            }
        }
    }
}

impl std::fmt::Debug for Locations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locations").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

fn unreadable(key: impl std::fmt::Display, why: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{key}: {why}"))
}

/// A search, and the store that it reads.
struct Search {
    readers: Readers,
    condition: Option<Condition>,
    /// The parts of footers that are decoded.
    described: ParquetMetaDataOptions,
    /// Memory for Bloom filters, in KiB.
    room: Semaphore,
}

/// Returns the parts of footers that decide about row groups. They include the statistics of few columns.
fn described(condition: Option<&Condition>) -> ParquetMetaDataOptions {
    let mut names = BTreeSet::from(["time_ns"]);
    condition.into_iter().for_each(|condition| condition.columns(&mut names));
    let number = |name: &&str| COLUMNS.iter().position(|column| column.name == *name);
    let numbers: Vec<usize> = names.iter().filter_map(number).collect();
    ParquetMetaDataOptions::default()
        .with_column_stats_policy(ParquetStatisticsPolicy::skip_except(&numbers))
        .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll)
}

impl Search {
    fn new(readers: Readers, condition: Option<Condition>) -> Self {
        let described = described(condition.as_ref());
        Self { readers, condition, described, room: Semaphore::new(ROOM as usize) }
    }

    /// Returns the row groups of a file that may have packets of the answer, in the order of their times. No other file
    /// after it has packets before `next_ns`.
    async fn check(&self, file: &File, next_ns: i64) -> io::Result<Vec<Candidate>> {
        let key = Key::from(file.key.as_str());
        let metadata = self.footer(file).await.map_err(|why| unreadable(&key, why))?;
        let groups = self.groups(&key, file.bytes, &metadata).await.map_err(|why| unreadable(&key, why))?;
        let first_ns = |number: &usize| {
            let group = Group { metadata: metadata.row_group(*number), blooms: HashMap::new() };
            group.first_ns().unwrap_or(file.first_ns)
        };
        let mut groups: Vec<(i64, usize)> = groups.into_iter().map(|number| (first_ns(&number), number)).collect();
        groups.sort_unstable();
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let metadata = ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new());
        let metadata = metadata.map_err(|why| unreadable(&key, why))?;
        let file = Arc::new(Checked { key, bytes: file.bytes, metadata });
        let after = groups.iter().skip(1).map(|(first_ns, _)| *first_ns).chain([i64::MAX]);
        let candidates = groups.iter().zip(after).map(|((_, number), after)| Candidate {
            file: Arc::clone(&file),
            number: *number,
            next_ns: after.min(next_ns),
        });
        Ok(candidates.collect())
    }

    async fn footer(&self, file: &File) -> parquet::errors::Result<ParquetMetaData> {
        let (key, bytes) = (Key::from(file.key.as_str()), file.bytes);
        let mut from = bytes.saturating_sub(file.tail() as u64);
        let mut reader = ParquetMetaDataReader::new().with_metadata_options(Some(self.described.clone()));
        loop {
            let end = self.footers(&key, slice::from_ref(&(from..bytes))).await?;
            match reader.try_parse_sized(&end[0], bytes) {
                Err(ParquetError::NeedMoreData(needed)) if (needed as u64) > bytes - from => {
                    from = bytes.saturating_sub(needed as u64);
                }
                parsed => {
                    parsed?;
                    return reader.finish();
                }
            }
        }
    }

    async fn footers(&self, key: &Key, ranges: &[Range<u64>]) -> parquet::errors::Result<Vec<Bytes>> {
        let parts = self.readers.footers.get_ranges(key, ranges).await;
        parts.map_err(|e| ParquetError::External(Box::new(e)))
    }

    /// Returns the numbers of the row groups that may have packets of the answer.
    async fn groups(&self, key: &Key, bytes: u64, metadata: &ParquetMetaData) -> parquet::errors::Result<Vec<usize>> {
        let Some(condition) = &self.condition else {
            return Ok((0..metadata.num_row_groups()).collect());
        };
        let group = |number: usize, blooms| Group { metadata: metadata.row_group(number), blooms };
        let numbers = 0..metadata.num_row_groups();
        let likely: Vec<usize> = numbers.filter(|number| condition.may_hold(&group(*number, HashMap::new()))).collect();
        let mut columns = BTreeSet::new();
        condition.text_columns(&mut columns);
        let (mut places, mut ranges) = (Vec::new(), Vec::new());
        for number in &likely {
            for column in metadata.row_group(*number).columns() {
                let range = column.bloom_filter_offset().zip(column.bloom_filter_length());
                let within = |(offset, length): (i64, i32)| {
                    let (offset, length) = (u64::try_from(offset).ok()?, u64::try_from(length).ok()?);
                    let end = offset.checked_add(length).filter(|end| *end <= bytes)?;
                    Some(offset..end)
                };
                let name = column.column_path().string();
                // A filter whose range lies outside of the file is ignored.
                if let Some(range) = range.and_then(within).filter(|_| columns.contains(name.as_str())) {
                    places.push((*number, name));
                    ranges.push(range);
                }
            }
        }
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let room = u32::try_from(bytes >> 10).unwrap_or(ROOM).min(ROOM);
        let _room = self.room.acquire_many(room).await.ok();
        let mut blooms: BTreeMap<usize, HashMap<String, Sbbf>> = BTreeMap::new();
        for ((number, name), bytes) in places.into_iter().zip(self.footers(key, &ranges).await?) {
            blooms.entry(number).or_default().insert(name, Sbbf::from_bytes(&bytes)?);
        }
        let mut may = likely;
        may.retain(|number| condition.may_hold(&group(*number, blooms.remove(number).unwrap_or_default())));
        Ok(may)
    }

    /// Reads the places of the packets in a row group.
    async fn read(&self, file: &Checked, number: usize) -> io::Result<Vec<Place>> {
        let places = self.places(file, number).await;
        places.map_err(|why| unreadable(&file.key, why))
    }

    async fn places(&self, file: &Checked, number: usize) -> parquet::errors::Result<Vec<Place>> {
        let metadata = file.metadata.metadata();
        let mut columns = BTreeSet::from(LOCATION);
        let mut deciding = BTreeSet::new();
        if let Some(condition) = &self.condition {
            condition.columns(&mut deciding);
            columns.extend(&deciding);
        }
        let chunks = metadata.row_group(number).columns().iter();
        let chunks = chunks.filter(|chunk| columns.contains(chunk.column_path().string().as_str()));
        let ranges: Vec<Range<u64>> = chunks
            .map(|chunk| {
                let (offset, length) = chunk.byte_range();
                offset..offset.saturating_add(length).min(file.bytes)
            })
            .collect();
        let parts = self.readers.objects.get_ranges(&file.key, &ranges).await;
        let parts = parts.map_err(|e| ParquetError::External(Box::new(e)))?;
        let parts = ranges.into_iter().map(|range| range.start).zip(parts).collect();
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(
            Parts { bytes: file.bytes, parts },
            file.metadata.clone(),
        );
        let schema = metadata.file_metadata().schema_descr();
        let mut reader =
            reader.with_row_groups(vec![number]).with_projection(ProjectionMask::columns(schema, LOCATION));
        if let Some(condition) = self.condition.clone() {
            let mask = ProjectionMask::columns(schema, deciding.iter().copied());
            let decide = ArrowPredicateFn::new(mask, move |rows| condition.holds(&rows));
            reader = reader.with_row_filter(RowFilter::new(vec![Box::new(decide)]));
        }
        let mut places = Vec::new();
        for rows in reader.build()? {
            add(&mut places, &rows?)?;
        }
        Ok(places)
    }
}

/// Adds the places that rows have.
fn add(places: &mut Vec<Place>, rows: &RecordBatch) -> parquet::errors::Result<()> {
    let column = |name: &str, kind: DataType| {
        let column = rows.column_by_name(name);
        let column = column.ok_or_else(|| ParquetError::General(format!("it has no column {name}")))?;
        Ok::<_, ParquetError>(cast(column, &kind)?)
    };
    let chunks = column("chunk", DataType::Utf8View)?;
    let numbers =
        [column("time_ns", DataType::Int64)?, column("frame", DataType::Int64)?, column("offset", DataType::Int64)?];
    let [times, frames, offsets] = numbers.each_ref().map(|numbers| numbers.as_primitive::<Int64Type>().values());
    let mut known: HashMap<&str, Arc<str>> = HashMap::new();
    for (at, chunk) in chunks.as_string_view().iter().enumerate() {
        let chunk = chunk.unwrap_or_default();
        let chunk = known.entry(chunk).or_insert_with(|| Arc::from(chunk));
        places.push(Place { time_ns: times[at], chunk: Arc::clone(chunk), frame: frames[at], offset: offsets[at] });
    }
    Ok(())
}

/// Parts of a file that have been read.
struct Parts {
    bytes: u64,
    /// By their offset in the file.
    parts: BTreeMap<u64, Bytes>,
}

impl Parts {
    fn from(&self, start: u64) -> parquet::errors::Result<Bytes> {
        let part = self.parts.range(..=start).next_back();
        let part = part.and_then(|(offset, bytes)| {
            let skipped = usize::try_from(start - offset).ok().filter(|skipped| *skipped <= bytes.len())?;
            Some(bytes.slice(skipped..))
        });
        part.ok_or_else(|| ParquetError::EOF("a page lies outside of its column".to_owned()))
    }
}

impl Length for Parts {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for Parts {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let bytes = self.from(start)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF("a page is longer than its column".to_owned()));
        }
        Ok(bytes.slice(..length))
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int32Array, Int64Array, StringViewArray, new_null_array};

    use super::*;
    use crate::index::Out;
    use crate::index::schema::schema;
    use crate::search::condition::Value;

    /// Returns rows of packets from one address at these times.
    fn rows(chunk: &str, src: &str, times: &[i64]) -> RecordBatch {
        let schema = schema();
        let count = times.len();
        let columns = schema.fields().iter().map(|field| -> ArrayRef {
            let text = match field.name().as_str() {
                "src" => src,
                "chunk" => chunk,
                _ => "x",
            };
            match field.data_type() {
                _ if field.is_nullable() && field.name() != "src" => new_null_array(field.data_type(), count),
                DataType::Utf8View => Arc::new(StringViewArray::from(vec![text; count])),
                DataType::Int32 => Arc::new(Int32Array::from(vec![1; count])),
                kind => {
                    let times: Int64Array = times.to_vec().into();
                    cast(&times, kind).expect("numbers")
                }
            }
        });
        RecordBatch::try_new(Arc::clone(&schema), columns.collect()).expect("rows")
    }

    /// A store of index files, whose groups of rows have one address each.
    struct Files(std::path::PathBuf, Vec<File>);

    impl Files {
        fn new(name: &str, files: &[&[RecordBatch]]) -> Self {
            let directory = std::env::temp_dir().join(format!("trawl-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&directory).expect("a directory");
            let mut made = Vec::new();
            for (number, groups) in files.iter().enumerate() {
                let mut out = Out::new(groups.iter().map(|rows| rows.num_rows() as u64).sum()).expect("a writer");
                for rows in *groups {
                    out.write(rows).and_then(|()| out.end_group()).expect("a row group");
                }
                let (bytes, _) = out.finish().expect("a file");
                let times: Vec<i64> = groups
                    .iter()
                    .flat_map(|rows| rows["time_ns"].as_primitive::<Int64Type>().values().to_vec())
                    .collect();
                let key = format!("{number}.parquet");
                std::fs::write(directory.join(&key), &bytes).expect("a file");
                let (first, last) = (times.iter().min(), times.iter().max());
                let [first_ns, last_ns] = [first, last].map(|time| *time.expect("rows"));
                made.push(File { key, bytes: bytes.len() as u64, first_ns, last_ns, copied: None });
            }
            Self(directory, made)
        }

        fn url(&self) -> String {
            format!("file://{}", self.0.display())
        }

        fn find(&self, condition: Option<Condition>) -> io::Result<Vec<(u64, String)>> {
            let found = Locations::find(&self.url(), self.1.clone(), condition).expect("a store");
            found.map(|place| place.map(|place| (place.time_ns, place.chunk))).collect()
        }

        /// Returns the number of row groups that are read for a condition.
        fn read(&self, condition: Condition) -> usize {
            let readers = Readers::of(&Store::open(&self.url(), false).expect("a store"), &[]);
            let runtime = Builder::new_current_thread().build().expect("a runtime");
            let search = Search::new(readers, Some(condition));
            let checked = self.1.iter().map(|file| runtime.block_on(search.check(file, 0)).expect("a file").len());
            checked.sum()
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn equal(column: &'static str, text: &str) -> Condition {
        Condition::OneOf(column.into(), vec![Value::Text(text.to_owned())])
    }

    #[test]
    fn packets_of_overlapping_files_are_in_order_of_time() {
        let files = Files::new(
            "overlapping",
            &[
                &[rows("b", "10.0.0.1", &[5, 1, 9]), rows("a", "10.0.0.2", &[6, 9])],
                &[rows("c", "10.0.0.1", &[20])],
                &[rows("d", "10.0.0.1", &[2, 8, 30])],
            ],
        );
        let found = |condition| {
            let found = files.find(condition).expect("readable files");
            found.into_iter().map(|(time, chunk)| format!("{chunk}{time}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(found(None), "b1 d2 b5 a6 d8 a9 b9 c20 d30");
        assert_eq!(found(Some(equal("src", "10.0.0.2"))), "a6 a9");
        let from_the_first = Condition::Not(Box::new(equal("src", "10.0.0.2")));
        let early = Condition::Within("time_ns".into(), 2, 9);
        assert_eq!(found(Some(Condition::All(vec![from_the_first, early]))), "d2 b5 d8 b9");
        assert_eq!(found(Some(Condition::Null("nat_src".into()))), found(None));
        assert_eq!(found(Some(Condition::NotNull("nat_src".into()))), "");
    }

    #[test]
    fn row_groups_that_cannot_match_are_not_read() {
        let files = Files::new(
            "pruned",
            &[&[rows("a", "10.0.0.1", &[1, 2]), rows("a", "10.0.0.3", &[3, 4])], &[rows("b", "10.0.0.2", &[9])]],
        );
        let host = |address: &str| Condition::Any(vec![equal("src", address), equal("dst", address)]);
        assert_eq!(files.read(host("10.0.0.2")), 1);
        assert_eq!(files.read(host("10.0.0.4")), 0);
        assert_eq!(files.read(Condition::Within("time_ns".into(), 3, 8)), 1);
        let net = |prefix: &str| Condition::Net("src".into(), prefix.parse().expect("a prefix"));
        for (prefix, groups) in [("10.0.0.0/8", 3), ("10.0.0.2/31", 2), ("10.0.1.0/24", 0), ("fe80::/10", 0)] {
            assert_eq!(files.read(net(prefix)), groups, "{prefix}");
        }
        assert_eq!(files.read(Condition::NotNull("sport".into())), 0);
        assert_eq!(files.read(Condition::Null("sport".into())), 3);
    }

    #[test]
    fn damaged_file_is_named() {
        let files = Files::new("damaged", &[&[rows("a", "10.0.0.1", &[1])], &[rows("b", "10.0.0.1", &[2])]]);
        let damaged = files.0.join("1.parquet");
        let mut bytes = std::fs::read(&damaged).expect("a file");
        let length = bytes.len();
        bytes[length - 40..length - 8].fill(0xff);
        std::fs::write(&damaged, &bytes).expect("a file");
        let error = files.find(None).expect_err("a damaged file").to_string();
        assert!(error.contains("1.parquet"), "{error}");
        bytes.truncate(length / 2);
        std::fs::write(&damaged, &bytes).expect("a file");
        let error = files.find(None).expect_err("a truncated file").to_string();
        assert!(error.contains("1.parquet"), "{error}");
    }
}
