//! Leaves out files without a row of the answer, before the scan, by checking the statistics and Bloom filters of many
//! files at once with DataFusion's `PruningPredicate`. DataFusion itself checks a file only when it scans it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, BooleanArray, UInt64Array};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::pruning::{PrunableStatistics, PruningStatistics};
use datafusion::common::stats::Precision;
use datafusion::common::{Column, ColumnStatistics, DFSchema, ScalarValue, Statistics, project_schema};
use datafusion::config::TableParquetOptions;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::datasource::physical_plan::parquet::{
    CachedParquetFileReaderFactory, ParquetAccessPlan, RowGroupAccess,
};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::logical_expr::utils::split_binary;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, TableProviderFilterPushDown, TableType};
use datafusion::object_store::ObjectStore;
use datafusion::parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use datafusion::parquet::bloom_filter::Sbbf;
use datafusion::parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use datafusion::physical_expr::utils::Guarantee;
use datafusion::physical_optimizer::pruning::{PruningPredicate, PruningPredicateBuilder};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::{Semaphore, SemaphorePermit};

use trawl_store::search::TAIL;
use trawl_store::{File, schema};

use crate::net::{is_in_net, text_condition};

/// Number of files that are checked at once.
const FILES: usize = 64;
/// Memory for all Bloom filters, in KiB.
const ROOM: u32 = 128 << 10;

/// The table of the index.
#[derive(Debug)]
pub struct Packets {
    pub root: ObjectStoreUrl,
    pub files: Vec<File>,
    /// The same store, for footers and Bloom filters.
    pub footers: Arc<dyn ObjectStore>,
}

#[async_trait]
impl TableProvider for Packets {
    fn schema(&self) -> SchemaRef {
        schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let runtime = state.runtime_env();
        let objects = runtime.object_store(&self.root)?;
        let metadata = runtime.cache_manager.get_file_metadata_cache();
        let pruning = Pruning::all(filters, state);
        let times = times(&self.files)?;
        let within = pruning.as_ref().map(|pruning| pruning.may_hold(&times));
        let files = self.files.iter().enumerate().filter(|(at, _)| within.as_ref().is_none_or(|within| within[*at]));
        let named = files.map(|(_, file)| (PartitionedFile::new(&file.key, file.bytes), file.tail()));
        let (mut files, tails): (Vec<_>, Vec<_>) = named.unzip();
        if let Some(pruning) = pruning {
            let pruner = Arc::new(FilePruner {
                objects: Arc::clone(&self.footers),
                metadata: Arc::clone(&metadata),
                pruning,
                room: Semaphore::new(ROOM as usize),
            });
            let checked = stream::iter(files.into_iter().zip(tails))
                .map(|(file, tail)| {
                    let pruner = Arc::clone(&pruner);
                    // Runs on all CPUs.
                    tokio::spawn(async move { pruner.check(file, tail).await })
                })
                .buffered(FILES)
                .map_err(|e| DataFusionError::External(Box::new(e)));
            let left: Vec<Option<PartitionedFile>> = checked.try_collect().await?;
            files = left.into_iter().flatten().collect();
        }
        if files.is_empty() {
            let schema = project_schema(&self.schema(), projection)?;
            return Ok(Arc::new(EmptyExec::new(schema)));
        }
        let groups = FileGroup::new(files).split_files(state.config().target_partitions());
        let reader = CachedParquetFileReaderFactory::new(objects, metadata);
        let options = TableParquetOptions {
            global: state.config_options().execution.parquet.clone(),
            ..TableParquetOptions::default()
        };
        let source = ParquetSource::new(schema())
            .with_table_parquet_options(options)
            .with_metadata_size_hint(TAIL)
            .with_parquet_file_reader_factory(Arc::new(reader));
        let scan = FileScanConfigBuilder::new(self.root.clone(), Arc::new(source))
            .with_file_groups(groups)
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .build();
        Ok(DataSourceExec::from_data_source(scan))
    }
}

/// Checks files and their row groups.
struct FilePruner {
    objects: Arc<dyn ObjectStore>,
    metadata: Arc<FileMetadataCache>,
    pruning: Pruning,
    /// Memory for Bloom filters, in KiB.
    room: Semaphore,
}

impl FilePruner {
    /// Returns a file that may hold rows of the answer, with the row groups that may. An unreadable file may: the scan
    /// reports its error.
    async fn check(&self, file: PartitionedFile, tail: usize) -> Option<PartitionedFile> {
        match self.groups(&file, tail).await {
            Ok(groups) if groups.iter().all(|may| !may) => None,
            Ok(groups) => {
                let access = |may: bool| if may { RowGroupAccess::Scan } else { RowGroupAccess::Skip };
                let plan = ParquetAccessPlan::new(groups.into_iter().map(access).collect());
                Some(file.with_extension(plan))
            }
            Err(_) => Some(file),
        }
    }

    /// Returns true for each row group that may hold rows of the answer. `tail` is the length of the file's end that is
    /// read for its footer.
    async fn groups(&self, file: &PartitionedFile, tail: usize) -> Result<Vec<bool>> {
        let metadata = DFParquetMetadata::new(&*self.objects, &file.object_meta)
            .with_metadata_size_hint(Some(tail))
            .with_file_metadata_cache(Some(Arc::clone(&self.metadata)))
            .with_page_index_policy(Some(PageIndexPolicy::Skip))
            .fetch_metadata()
            .await?;
        let blooms = metadata.row_groups().iter().map(|_| HashMap::new()).collect();
        let mut groups = Groups { metadata: &metadata, schema: schema(), blooms };
        let may = self.pruning.may_hold(&groups);
        let _room = self.read_blooms(file, &mut groups, &may).await?;
        Ok(both(may, self.pruning.may_hold(&groups)))
    }

    /// Reads the Bloom filters of these row groups, many with one call, as they lie next to each other. Returns a
    /// permit for the memory that they need.
    async fn read_blooms(
        &self,
        file: &PartitionedFile,
        groups: &mut Groups<'_>,
        wanted: &[bool],
    ) -> Result<Option<SemaphorePermit<'_>>> {
        let mut columns = BTreeSet::new();
        self.pruning.equal_columns(&mut columns);
        let (mut places, mut ranges) = (Vec::new(), Vec::new());
        let rows = groups.metadata.row_groups().iter().enumerate().filter(|(number, _)| wanted[*number]);
        for (number, column) in
            rows.flat_map(|(number, rows)| rows.columns().iter().map(move |column| (number, column)))
        {
            let range = column.bloom_filter_offset().zip(column.bloom_filter_length());
            let within = |(offset, length): (i64, i32)| {
                let (offset, length) = (u64::try_from(offset).ok()?, u64::try_from(length).ok()?);
                let end = offset.checked_add(length).filter(|end| *end <= file.object_meta.size)?;
                Some(offset..end)
            };
            let name = column.column_path().string();
            // A filter whose range lies outside of the file is ignored.
            if let Some(range) = range.and_then(within).filter(|_| columns.contains(name.as_str())) {
                places.push((number, name));
                ranges.push(range);
            }
        }
        // Filters of other columns that lie between them are read, too.
        let first = ranges.iter().map(|range| range.start).min();
        let last = ranges.iter().map(|range| range.end).max();
        let bytes = last.unwrap_or(0) - first.unwrap_or(0);
        let room = u32::try_from(bytes >> 10).unwrap_or(ROOM).min(ROOM);
        let room = self.room.acquire_many(room).await.ok();
        let location = &file.object_meta.location;
        let bytes = self.objects.get_ranges(location, &ranges).await?;
        for ((number, name), bytes) in places.into_iter().zip(bytes) {
            groups.blooms[number].insert(name, Sbbf::from_bytes(&bytes)?);
        }
        Ok(room)
    }
}

/// Statistics and Bloom filters of a file's row groups.
struct Groups<'a> {
    metadata: &'a ParquetMetaData,
    schema: SchemaRef,
    blooms: Vec<HashMap<String, Sbbf>>,
}

impl Groups<'_> {
    /// Returns the statistics of a column; `None` if the file lacks it, as an older one may.
    fn column(&self, column: &Column) -> Option<StatisticsConverter<'_>> {
        let parquet = self.metadata.file_metadata().schema_descr();
        let at = parquet.columns().iter().position(|found| found.name() == column.name())?;
        let field = self.schema.field_with_name(column.name()).ok()?;
        let converter = StatisticsConverter::from_column_index(at, field, parquet).ok()?;
        Some(converter.with_missing_null_counts_as_zero(false))
    }
}

impl PruningStatistics for Groups<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.column(column)?.row_group_mins(self.metadata.row_groups()).ok()
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.column(column)?.row_group_maxes(self.metadata.row_groups()).ok()
    }

    fn num_containers(&self) -> usize {
        self.metadata.num_row_groups()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        let counts = self.column(column)?.row_group_null_counts(self.metadata.row_groups()).ok()?;
        Some(Arc::new(counts))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let counts = self.metadata.row_groups().iter().map(|rows| u64::try_from(rows.num_rows()).ok());
        Some(Arc::new(counts.collect::<UInt64Array>()))
    }

    fn contained(&self, column: &Column, values: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        let known = self.blooms.iter().map(|blooms| {
            let bloom = blooms.get(column.name())?;
            let may_contain = |value: &ScalarValue| match value {
                ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)) => bloom.check(&text.as_str()),
                ScalarValue::Int64(Some(number)) => bloom.check(number),
                _ => true,
            };
            (!values.iter().any(may_contain)).then_some(false)
        });
        Some(known.collect())
    }
}

/// Returns the times of the rows in files, which the catalogue has.
fn times(files: &[File]) -> Result<PrunableStatistics> {
    let between = |first: ScalarValue, last: ScalarValue| {
        ColumnStatistics::new_unknown().with_min_value(Precision::Exact(first)).with_max_value(Precision::Exact(last))
    };
    // The rows' times are cut to microseconds.
    let us = |ns: i64| ScalarValue::TimestampMicrosecond(Some(ns.div_euclid(1000)), Some("UTC".into()));
    let of_file = |file: &File| {
        let columns =
            [between(file.first_ns.into(), file.last_ns.into()), between(us(file.first_ns), us(file.last_ns))];
        Arc::new(columns.into_iter().fold(Statistics::default(), Statistics::add_column_statistics))
    };
    let all = schema();
    let columns = all.project(&[all.index_of("time_ns")?, all.index_of("time")?])?;
    Ok(PrunableStatistics::new(files.iter().map(of_file).collect(), Arc::new(columns)))
}

/// A condition whose parts are checked one by one: for `src = a OR dst = a` as a whole, DataFusion asks for no Bloom
/// filters.
#[derive(Debug)]
enum Pruning {
    All(Vec<Pruning>),
    Any(Vec<Pruning>),
    Part(Arc<PruningPredicate>),
}

impl Pruning {
    /// Returns the parts of a condition that statistics or Bloom filters can refute; `None` if they refute none.
    fn of(condition: &Expr, state: &dyn Session) -> Option<Self> {
        match condition {
            Expr::BinaryExpr(BinaryExpr { op: op @ Operator::And, .. }) => {
                Self::all(split_binary(condition, *op), state)
            }
            Expr::BinaryExpr(BinaryExpr { op: op @ Operator::Or, .. }) => {
                let parts = split_binary(condition, *op).into_iter().map(|part| Self::of(part, state));
                Some(Self::Any(parts.collect::<Option<_>>()?))
            }
            // DataFusion knows nothing about the values for which a function of trawl holds.
            Expr::ScalarFunction(call) if is_in_net(call) => Self::of(&text_condition(call)?, state),
            _ => {
                let columns = DFSchema::try_from(schema()).ok()?;
                let part = state.create_physical_expr(condition.clone(), &columns).ok()?;
                PruningPredicateBuilder::new().with_file_schema(schema()).build(part).map(Self::Part)
            }
        }
    }

    fn all<'a>(conditions: impl IntoIterator<Item = &'a Expr>, state: &dyn Session) -> Option<Self> {
        let parts: Vec<Self> = conditions.into_iter().filter_map(|part| Self::of(part, state)).collect();
        (!parts.is_empty()).then_some(Self::All(parts))
    }

    /// Returns true for each container of rows if the condition may hold for one of its rows.
    fn may_hold(&self, rows: &impl PruningStatistics) -> Vec<bool> {
        let count = rows.num_containers();
        match self {
            Self::All(parts) => parts.iter().fold(vec![true; count], |may, part| both(may, part.may_hold(rows))),
            Self::Any(parts) => parts.iter().fold(vec![false; count], |may, part| {
                may.into_iter().zip(part.may_hold(rows)).map(|(one, other)| one || other).collect()
            }),
            Self::Part(predicate) => predicate.prune(rows).unwrap_or_else(|_| vec![true; count]),
        }
    }

    /// Collects the columns whose Bloom filters matter.
    fn equal_columns<'a>(&'a self, found: &mut BTreeSet<&'a str>) {
        match self {
            Self::All(parts) | Self::Any(parts) => parts.iter().for_each(|part| part.equal_columns(found)),
            Self::Part(predicate) => {
                let equal = predicate.literal_guarantees().iter().filter(|known| known.guarantee == Guarantee::In);
                found.extend(equal.map(|known| known.column.name()));
            }
        }
    }
}

fn both(one: Vec<bool>, other: Vec<bool>) -> Vec<bool> {
    one.into_iter().zip(other).map(|(one, other)| one && other).collect()
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{
        AsArray, Int32Array, Int64Array, RecordBatch, StringViewArray, TimestampMicrosecondArray,
    };
    use datafusion::arrow::datatypes::{DataType, Field};
    use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
    use datafusion::datasource::MemTable;
    use datafusion::logical_expr::expr_rewriter::unnormalize_cols;
    use datafusion::logical_expr::{LogicalPlan, in_list};
    use datafusion::object_store::memory::InMemory;
    use datafusion::object_store::{ObjectStoreExt, path::Path as Key};
    use datafusion::parquet::arrow::ArrowWriter;
    use datafusion::prelude::{DataFrame, SessionContext, col, lit};
    use tokio::runtime::{Builder, Runtime};
    use url::Url;

    use super::*;
    use crate::net::in_net;
    use trawl_packet::net::prefix::Prefix;
    use trawl_store::properties;

    const FILES: usize = 3;
    const GROUPS: usize = 5;
    const ROWS: usize = 30;

    /// A random number generator (SplitMix64).
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> i64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) % limit as u64) as i64
        }
    }

    /// Returns an address; higher numbers give later ones in the alphabet.
    fn word(number: i64) -> String {
        format!("10.{}.0.1", 100 + number)
    }

    /// Returns a network that holds the address of a word.
    fn network(r: &mut Random) -> String {
        let address = word(r.below(50)).parse().expect("an address");
        Prefix::new(address, r.below(33) as u8).expect("a prefix").to_string()
    }

    /// Returns rows whose values are near each other in each column, with gaps between them.
    fn rows(r: &mut Random) -> RecordBatch {
        let first_ns = r.below(40) * 1000;
        let times: Vec<i64> = (0..ROWS).map(|_| first_ns + r.below(5000)).collect();
        let array = |field: &Arc<Field>| -> ArrayRef {
            let nulls = if field.is_nullable() { r.below(4) } else { 0 };
            let (first, step) = (r.below(30), 1 + r.below(3));
            let numbers: Vec<Option<i64>> = (0..ROWS)
                .map(|_| match nulls {
                    // A column may be null in all rows.
                    3 => None,
                    nulls => (r.below(4) >= nulls).then(|| first + step * r.below(5)),
                })
                .collect();
            match field.data_type() {
                DataType::Timestamp(..) => {
                    let times: TimestampMicrosecondArray = times.iter().map(|ns| Some(ns / 1000)).collect();
                    Arc::new(times.with_timezone("UTC"))
                }
                DataType::Int64 if field.name() == "time_ns" => Arc::new(Int64Array::from(times.clone())),
                DataType::Int64 => Arc::new(Int64Array::from(numbers)),
                DataType::Int32 => {
                    Arc::new(numbers.iter().map(|number| number.map(|number| number as i32)).collect::<Int32Array>())
                }
                DataType::Boolean => {
                    Arc::new(numbers.iter().map(|number| number.map(|number| number > 15)).collect::<BooleanArray>())
                }
                _ => Arc::new(numbers.iter().map(|number| number.map(word)).collect::<StringViewArray>()),
            }
        };
        let arrays = schema().fields().iter().map(array).collect();
        RecordBatch::try_new(schema(), arrays).expect("rows of the index")
    }

    /// Returns a comparison, more often of the columns that queries ask for.
    fn comparison(r: &mut Random) -> Expr {
        let schema = schema();
        let asked = ["src", "dst", "hash", "sport", "time_ns", "time", "ethertype", "reset"];
        let field = match r.below(3) {
            0 => schema.field(r.below(schema.fields().len()) as usize),
            _ => schema.field_with_name(asked[r.below(asked.len()) as usize]).expect("a column"),
        };
        let value = |r: &mut Random| match field.data_type() {
            DataType::Timestamp(..) => {
                let us = Some(r.below(50));
                lit(ScalarValue::TimestampMicrosecond(us, Some("UTC".into())))
            }
            DataType::Int64 if field.name() == "time_ns" => lit(r.below(50_000)),
            DataType::Int64 => lit(r.below(50)),
            DataType::Int32 => lit(r.below(50) as i32),
            DataType::Boolean => lit(r.below(2) == 0),
            _ => lit(word(r.below(50))),
        };
        let column = col(field.name());
        let one = value(r);
        match r.below(14) {
            12.. if *field.data_type() == DataType::Utf8View => in_net(column, lit(network(r))),
            0..=3 => column.eq(one),
            4 => one.lt(column),
            5 => column.lt_eq(one),
            6 => column.gt_eq(one),
            7 => column.not_eq(one),
            8 => column.is_null(),
            9 => column.is_not_null(),
            negated => in_list(column, vec![one, value(r), value(r)], negated == 11 && r.below(2) == 0),
        }
    }

    fn condition(r: &mut Random, depth: usize) -> Expr {
        match r.below(if depth == 0 { 1 } else { 6 }) {
            0 => comparison(r),
            1 | 2 => condition(r, depth - 1).and(condition(r, depth - 1)),
            3 | 4 => condition(r, depth - 1).or(condition(r, depth - 1)),
            _ if r.below(2) == 0 => condition(r, depth - 1).is_not_true(),
            _ => !condition(r, depth - 1),
        }
    }

    /// Files of the index, and the rows of their row groups.
    struct Index {
        runtime: Runtime,
        context: SessionContext,
        objects: Arc<dyn ObjectStore>,
        files: Vec<File>,
        rows: Vec<Vec<RecordBatch>>,
    }

    impl Index {
        fn new(r: &mut Random) -> Self {
            let runtime = Builder::new_current_thread().build().expect("a runtime");
            let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
            let (mut files, mut all) = (Vec::new(), Vec::new());
            for number in 0..FILES {
                let groups: Vec<RecordBatch> = (0..GROUPS).map(|_| rows(r)).collect();
                let properties = properties((GROUPS * ROWS) as u64);
                let mut writer = ArrowWriter::try_new(Vec::new(), schema(), Some(properties)).expect("a writer");
                for rows in &groups {
                    writer.write(rows).and_then(|()| writer.flush()).expect("a row group");
                }
                let bytes = writer.into_inner().expect("a file");
                let times = groups.iter().flat_map(|rows| {
                    let times = rows.column_by_name("time_ns").expect("times");
                    times.as_primitive::<datafusion::arrow::datatypes::Int64Type>().values().to_vec()
                });
                let (first_ns, last_ns) = (times.clone().min().unwrap_or(0), times.max().unwrap_or(0));
                let key = format!("{number}.parquet");
                files.push(File { key: key.clone(), bytes: bytes.len() as u64, first_ns, last_ns, copied: None });
                runtime.block_on(objects.put(&Key::from(key), bytes.into())).expect("a stored file");
                all.push(groups);
            }
            Self { runtime, context: SessionContext::new(), objects, files, rows: all }
        }

        fn packets(&self) -> Arc<dyn TableProvider> {
            let url = Url::parse("trawl://store").expect("a URL");
            self.context.register_object_store(&url, Arc::clone(&self.objects));
            let root = ObjectStoreUrl::parse(url.as_str()).expect("a URL");
            Arc::new(Packets { root, files: self.files.clone(), footers: Arc::clone(&self.objects) })
        }

        fn rows_of(&self, table: Arc<dyn TableProvider>, condition: &Expr) -> DataFrame {
            self.context.read_table(table).and_then(|rows| rows.filter(condition.clone())).expect("a query")
        }

        /// Returns the parts of a condition that DataFusion passes to a scan.
        fn filters(&self, condition: &Expr) -> Vec<Expr> {
            let plan = self.rows_of(self.packets(), condition).into_optimized_plan().expect("a plan");
            let mut filters = Vec::new();
            plan.apply(|node| {
                if let LogicalPlan::TableScan(scan) = node {
                    filters = unnormalize_cols(scan.filters.clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })
            .expect("a walk");
            filters
        }

        /// Returns for each row group whether a scan reads it.
        fn read(&self, condition: &Expr) -> Vec<bool> {
            let state = self.context.state();
            let Some(pruning) = Pruning::all(&self.filters(condition), &state) else {
                return vec![true; GROUPS * FILES];
            };
            let within = pruning.may_hold(&times(&self.files).expect("times"));
            let metadata = state.runtime_env().cache_manager.get_file_metadata_cache();
            let objects = Arc::clone(&self.objects);
            let pruner = FilePruner { objects, metadata, pruning, room: Semaphore::new(ROOM as usize) };
            let files = self.files.iter().zip(within).flat_map(|(file, within)| {
                let file = PartitionedFile::new(&file.key, file.bytes);
                let groups = self.runtime.block_on(pruner.groups(&file, TAIL)).expect("a readable file");
                groups.into_iter().map(move |may| may && within)
            });
            files.collect()
        }

        /// Returns for each row group whether the condition holds for one of its rows.
        fn matches(&self, condition: &Expr) -> Vec<bool> {
            let columns = DFSchema::try_from(schema()).expect("columns");
            let condition = self.context.create_physical_expr(condition.clone(), &columns).expect("a condition");
            let matches = self.rows.iter().flatten().map(|rows| {
                let holds = condition.evaluate(rows).and_then(|holds| holds.into_array(ROWS)).expect("an answer");
                holds.as_boolean().iter().any(|holds| holds == Some(true))
            });
            matches.collect()
        }
    }

    #[test]
    fn row_groups_with_a_matching_row_are_read() {
        let r = &mut Random(48);
        let index = Index::new(r);
        let (mut matching, mut left_out) = (0, 0);
        for _ in 0..120 {
            let condition = condition(r, 3);
            for (has_match, read) in index.matches(&condition).into_iter().zip(index.read(&condition)) {
                assert!(read || !has_match, "{condition}");
                matching += usize::from(has_match);
                left_out += usize::from(!read);
            }
        }
        assert!(matching > 300 && left_out > 300, "{matching} match, {left_out} left out");
    }

    #[test]
    fn row_groups_without_addresses_of_a_network_are_left_out() {
        let r = &mut Random(9);
        let index = Index::new(r);
        let (mut matching, mut left_out) = (0, 0);
        for _ in 0..40 {
            let condition = in_net(col("src"), lit(network(r)));
            for (has_match, read) in index.matches(&condition).into_iter().zip(index.read(&condition)) {
                assert!(read || !has_match, "{condition}");
                matching += usize::from(has_match);
                left_out += usize::from(!read);
            }
        }
        assert!(matching > 100 && left_out > 100, "{matching} match, {left_out} left out");
        let negated = !in_net(col("src"), lit("10.0.0.0/8"));
        assert!(index.read(&negated).iter().all(|read| *read));
    }

    #[test]
    fn bloom_filters_answer_for_either_address() {
        let index = Index::new(&mut Random(48));
        let (mut within, mut read) = (0, 0);
        for address in (0..20).map(|number| word(2 * number)) {
            let has = |rows: &RecordBatch, column: &str| {
                let values = rows.column_by_name(column).expect("a column").as_string_view();
                let has = |is: fn(&str, &str) -> bool| values.iter().flatten().any(|value| is(value, &address));
                has(|value, address| value <= address) && has(|value, address| value >= address)
            };
            let condition = col("src").eq(lit(&address)).or(col("dst").eq(lit(&address)));
            within += index.rows.iter().flatten().filter(|rows| has(rows, "src") || has(rows, "dst")).count();
            read += index.read(&condition).into_iter().filter(|read| *read).count();
        }
        assert!(read * 4 < within * 3, "{read} row groups read, {within} by minimum and maximum");
    }

    #[test]
    fn answers_are_those_without_pruning() {
        let r = &mut Random(7);
        let index = Index::new(r);
        let plain = MemTable::try_new(schema(), index.rows.clone()).expect("a table");
        let tables: [Arc<dyn TableProvider>; 2] = [index.packets(), Arc::new(plain)];
        let mut counts = 0;
        for _ in 0..10 {
            let condition = condition(r, 2);
            let [pruned, whole] = tables.clone().map(|table| {
                let rows = index.rows_of(table, &condition);
                index.runtime.block_on(rows.count()).expect("an answer")
            });
            assert_eq!(pruned, whole, "{condition}");
            counts += whole;
        }
        assert!(counts > 0);
    }
}
