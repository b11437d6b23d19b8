//! Joins small index files to large ones, sorted for searches: the row groups by time, the rows of each by address.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::builder::StringViewBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, StringViewArray, new_null_array};
use arrow_cast::cast;
use arrow_ord::sort::{SortColumn, lexsort_to_indices};
use arrow_select::concat::{concat, concat_batches};
use arrow_select::filter::filter_record_batch;
use arrow_select::interleave::interleave_record_batch;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use super::Out;
use super::schema::{BATCH_ROWS, GROUP_ROWS, schema};

type Result<T> = std::result::Result<T, ParquetError>;

/// Size at which a file is finished. It is in memory until then.
const FILE_BYTES: usize = 128 << 20;
/// Size from which a file is not joined with others.
pub const LARGE: u64 = 64 << 20;
/// Number of small batches that are copied into one: each has an overhead of some 100 KB.
const SMALL: usize = 128;

/// A finished file.
#[derive(Debug)]
pub struct Merged {
    pub bytes: Vec<u8>,
    pub metadata: ParquetMetaData,
}

/// Returns the rows of some chunks.
fn selected(batch: &RecordBatch, keep: impl Fn(&str) -> bool) -> Result<RecordBatch> {
    let chunks = batch.column_by_name("chunk").and_then(|column| column.as_any().downcast_ref::<StringViewArray>());
    match chunks {
        Some(chunks) => {
            let keep: BooleanArray = chunks.iter().map(|chunk| chunk.map(&keep)).collect();
            Ok(filter_record_batch(batch, &keep)?)
        }
        None => Ok(batch.clone()),
    }
}

/// Reads an index file, and passes its rows on, some at a time. Columns that an older file lacks are null.
pub fn read(file: Bytes, mut pass: impl FnMut(RecordBatch) -> Result<()>) -> Result<()> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file)?.with_batch_size(BATCH_ROWS).build()?;
    reader.into_iter().try_for_each(|batch| pass(conformed(&batch?)?))
}

/// Returns the rows of these chunks.
pub fn of_chunks(batch: &RecordBatch, chunks: &HashSet<String>) -> Result<RecordBatch> {
    selected(batch, |chunk| chunks.contains(chunk))
}

/// Joins rows, added in the order of their times, into files.
pub struct Merge<'a> {
    /// Chunks whose rows are left out.
    without: &'a HashSet<String>,
    /// Rows that have not been copied together.
    small: Vec<RecordBatch>,
    small_rows: usize,
    waiting: Vec<RecordBatch>,
    rows: usize,
    /// Rows still to come, for the size of the Bloom filters.
    expected: u64,
    out: Option<Out>,
    files: Vec<Merged>,
}

impl<'a> Merge<'a> {
    pub fn new(without: &'a HashSet<String>, expected: u64) -> Self {
        Self {
            without,
            small: Vec::new(),
            small_rows: 0,
            waiting: Vec::new(),
            rows: 0,
            expected,
            out: None,
            files: Vec::new(),
        }
    }

    pub fn add(&mut self, rows: &RecordBatch) -> Result<()> {
        let rows = self.selected(rows)?;
        let room = GROUP_ROWS - self.rows - self.small_rows;
        if rows.num_rows() <= room {
            return self.push(rows);
        }
        self.push(rows.slice(0, room))?;
        self.push(rows.slice(room, rows.num_rows() - room))
    }

    /// Adds rows that do not exceed the row group.
    fn push(&mut self, rows: RecordBatch) -> Result<()> {
        self.small_rows += rows.num_rows();
        self.small.push(rows);
        if self.small_rows >= BATCH_ROWS || self.small.len() >= SMALL {
            self.pack()?;
        }
        if self.rows + self.small_rows == GROUP_ROWS {
            self.group()?;
        }
        Ok(())
    }

    fn selected(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        if self.without.is_empty() { Ok(batch.clone()) } else { selected(batch, |chunk| !self.without.contains(chunk)) }
    }

    /// Copies small batches into one, without the memory that they share with other rows.
    fn pack(&mut self) -> Result<()> {
        if self.small.is_empty() {
            return Ok(());
        }
        let small = std::mem::take(&mut self.small);
        self.rows += std::mem::take(&mut self.small_rows);
        self.waiting.push(compact(&concat_batches(&schema(), &small)?)?);
        Ok(())
    }

    /// Writes the waiting rows as a row group.
    fn group(&mut self) -> Result<()> {
        self.pack()?;
        let waiting = std::mem::take(&mut self.waiting);
        let rows = std::mem::take(&mut self.rows);
        let out = match &mut self.out {
            Some(out) => out,
            out => out.insert(Out::new(self.expected)?),
        };
        let batches: Vec<&RecordBatch> = waiting.iter().collect();
        for places in sorted(&waiting)?.chunks(BATCH_ROWS) {
            out.write(&interleave_record_batch(&batches, places)?)?;
        }
        out.end_group()?;
        self.expected = self.expected.saturating_sub(rows as u64);
        if out.len() >= FILE_BYTES {
            self.end_file()?;
        }
        Ok(())
    }

    fn end_file(&mut self) -> Result<()> {
        if let Some(out) = self.out.take() {
            let (bytes, metadata) = out.finish()?;
            self.files.push(Merged { bytes, metadata });
        }
        Ok(())
    }

    /// Returns the files that have been finished since the last call.
    pub fn take_finished(&mut self) -> Vec<Merged> {
        std::mem::take(&mut self.files)
    }

    /// Writes the rest, and returns the last files.
    pub fn finish(mut self) -> Result<Vec<Merged>> {
        if self.rows + self.small_rows > 0 {
            self.group()?;
        }
        self.end_file()?;
        Ok(self.files)
    }
}

/// Copies the texts of a batch, each different one once.
fn compact(batch: &RecordBatch) -> Result<RecordBatch> {
    let columns = batch.columns().iter().map(|column| -> ArrayRef {
        let Some(texts) = column.as_string_view_opt() else { return Arc::clone(column) };
        if texts.null_count() == texts.len() {
            return new_null_array(texts.data_type(), texts.len());
        }
        let mut copy = StringViewBuilder::with_capacity(texts.len()).with_deduplicate_strings();
        texts.iter().for_each(|text| copy.append_option(text));
        Arc::new(copy.finish())
    });
    Ok(RecordBatch::try_new(batch.schema(), columns.collect())?)
}

/// Returns the description of an index file; `None` if it cannot be read.
pub fn metadata(file: Bytes) -> Option<ParquetMetaData> {
    let mut reader = ParquetMetaDataReader::new();
    reader.try_parse(&file).ok()?;
    reader.finish().ok()
}

/// Returns true if a file has columns that joining would lose.
pub fn has_other_columns(metadata: &ParquetMetaData) -> bool {
    let (columns, schema) = (metadata.file_metadata().schema_descr(), schema());
    let mut names = columns.columns().iter().map(|column| column.name());
    names.any(|name| schema.column_with_name(name).is_none())
}

/// Gives a batch the columns of the schema, in its order and types.
fn conformed(batch: &RecordBatch) -> Result<RecordBatch> {
    let schema = schema();
    let columns = schema.fields().iter().map(|field| -> Result<ArrayRef> {
        Ok(match batch.column_by_name(field.name()) {
            Some(column) if column.data_type() == field.data_type() => Arc::clone(column),
            Some(column) => cast(column, field.data_type())?,
            None => new_null_array(field.data_type(), batch.num_rows()),
        })
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    Ok(RecordBatch::try_new(Arc::clone(&schema), columns)?)
}

/// Returns the places of rows, as the batch and the number in it, in the order of the rows' addresses.
fn sorted(batches: &[RecordBatch]) -> Result<Vec<(usize, usize)>> {
    let all = |name: &str| {
        let columns: Vec<&dyn Array> =
            batches.iter().filter_map(|batch| Some(&**batch.column_by_name(name)?)).collect();
        concat(&columns).map(|values| SortColumn { values, options: None })
    };
    let by = ["src", "dst", "time_ns"].map(all).into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
    let order = lexsort_to_indices(&by, None)?;
    let places = batches.iter().enumerate().flat_map(|(batch, rows)| (0..rows.num_rows()).map(move |row| (batch, row)));
    let places: Vec<(usize, usize)> = places.collect();
    Ok(order.values().iter().map(|at| places[*at as usize]).collect())
}

#[cfg(test)]
mod tests {
    use trawl_packet::pcapng::write;

    use super::*;
    use arrow_array::types::Int64Type;

    /// Returns the index of a chunk whose packets have these times and sources.
    fn index(name: &str, packets: &[(u64, u8)]) -> Vec<u8> {
        use trawl_packet::build::{Ipv4, Layer, Template};
        use trawl_packet::pcapng::Interface;
        let directory = std::env::temp_dir();
        let path = directory.join(format!("trawl-merge-{}-{name}", std::process::id()));
        let mut chunk = trawl_spool::chunk::OpenChunk::create(&path).expect("a file");
        let mut bytes = Vec::new();
        write::interface_description(&mut bytes, &Interface::default());
        for (time, host) in packets {
            let link = Template::new().ethernet([2; 6], [4; 6]);
            let ip = Ipv4::new([10, 0, 0, *host].into(), [10, 0, 1, 1].into());
            let frame = link.layer(Layer::Ipv4(ip)).build();
            let packet = write::EnhancedPacket {
                timestamp_ns: *time,
                captured: &frame,
                original_len: frame.len() as u32,
                ..write::EnhancedPacket::default()
            };
            write::enhanced_packet(&mut bytes, &packet);
        }
        let known = trawl_spool::processes::Descriptions::default();
        for block in trawl_packet::pcapng::block::blocks(&bytes) {
            match block.enhanced_packet() {
                Some(packet) => chunk.add_packet(block.bytes, &packet, &known),
                None => chunk.add_other(&block),
            }
            .expect("a disk");
        }
        let sealed = chunk.seal(&path).expect("a disk");
        let file = std::fs::read(&path).expect("a file");
        std::fs::remove_file(&path).expect("a file");
        let epoch =
            trawl_spool::key::Epoch { capture: "c".into(), host: "h".into(), boot: "b".into(), epoch: name.into() };
        let origin = trawl_spool::manifest::Origin { options: Vec::new(), trawl: String::new() };
        let manifest = sealed.manifest(epoch, 0, origin);
        crate::index::file(&file, &manifest).expect("a whole chunk")
    }

    #[test]
    fn columns_of_a_newer_trawl_are_noticed() {
        let own = metadata(Bytes::from(index("own", &[(1, 9)]))).expect("a file");
        assert!(!has_other_columns(&own));
        let numbers: ArrayRef = Arc::new(arrow_array::Int64Array::from(vec![1]));
        let batch = RecordBatch::try_from_iter([("time_ns", Arc::clone(&numbers)), ("mood", numbers)]);
        let batch = batch.expect("a batch");
        let mut file = Vec::new();
        let writer = parquet::arrow::ArrowWriter::try_new(&mut file, batch.schema(), None);
        let mut writer = writer.expect("a file");
        writer.write(&batch).expect("a row");
        writer.close().expect("a file");
        let newer = metadata(Bytes::from(file)).expect("a file");
        assert!(has_other_columns(&newer));
        assert!(metadata(Bytes::from("no file")).is_none());
    }

    #[test]
    fn columns_that_an_older_trawl_did_not_know_are_null() {
        let mut rows = Vec::new();
        let collect = |file: Vec<u8>, rows: &mut Vec<RecordBatch>| {
            read(file.into(), |batch| {
                rows.push(batch);
                Ok(())
            })
        };
        collect(index("new", &[(1, 9)]), &mut rows).expect("an index");
        let known: Vec<usize> = (0..schema().fields().len() - 2).collect();
        let old = rows[0].project(&known).expect("columns");
        let mut file = Vec::new();
        let writer = parquet::arrow::ArrowWriter::try_new(&mut file, old.schema(), None);
        let mut writer = writer.expect("a file");
        writer.write(&old).expect("a row");
        writer.close().expect("a file");
        collect(file, &mut rows).expect("an index");
        let nulls = |name: &str| rows[1].column_by_name(name).map(|column| column.null_count());
        assert_eq!(["time_ns", "rtt_us", "cause"].map(nulls), [Some(0), Some(1), Some(1)]);
    }

    #[test]
    fn rows_are_joined_by_address_without_the_pruned_ones() {
        let without = HashSet::from(["chunks/1970-01-01/00/c/h/b/2/0000000000.pcapng.zst".into()]);
        let mut merge = Merge::new(&without, 5);
        for file in [index("1", &[(1, 9), (2, 3)]), index("2", &[(3, 1)]), index("3", &[(4, 9), (5, 1)])] {
            read(file.into(), |rows| merge.add(&rows)).expect("an index");
        }
        let files = merge.finish().expect("files");
        assert_eq!(files.len(), 1);
        let bytes = Bytes::from(files[0].bytes.clone());
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).expect("a file");
        let batch = reader.build().expect("rows").next().expect("a batch").expect("rows");
        let batch = conformed(&batch).expect("the columns");
        let times = batch.column(1).as_primitive::<Int64Type>();
        assert_eq!(times.values().to_vec(), [5, 2, 1, 4]);
    }
}
