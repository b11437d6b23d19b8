//! Leaves out files without a row of the answer, before the scan, by checking the statistics and Bloom filters of many
//! files at once. DataFusion checks a file only when it scans it, and no Bloom filters for `src = a OR dst = a`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{ScalarValue, project_schema};
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
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, TableProviderFilterPushDown, TableType};
use datafusion::object_store::ObjectStore;
use datafusion::parquet::bloom_filter::Sbbf;
use datafusion::parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, RowGroupMetaData};
use datafusion::parquet::file::statistics::Statistics;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::store::{File, schema};

/// Files being checked at once.
const FILES: usize = 64;
/// KiB of all Bloom filters in memory.
const ROOM: u32 = 128 << 10;
/// Length of a file's end that is read for its footer.
pub const TAIL: usize = 128 << 10;

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
        let condition = Condition::All(filters.iter().map(Condition::of).collect());
        let runtime = state.runtime_env();
        let objects = runtime.object_store(&self.root)?;
        let metadata = runtime.cache_manager.get_file_metadata_cache();
        let within = |file: &&File| condition.may_hold_between(file.first_ns, file.last_ns);
        let files = self.files.iter().filter(within);
        let mut files: Vec<PartitionedFile> = files.map(|file| PartitionedFile::new(&file.key, file.bytes)).collect();
        if condition.is_selective() {
            let look = Arc::new(Look {
                objects: Arc::clone(&self.footers),
                metadata: Arc::clone(&metadata),
                condition,
                room: Semaphore::new(ROOM as usize),
            });
            let looked_at = stream::iter(files)
                .map(|file| {
                    let look = Arc::clone(&look);
                    // Runs on all CPUs.
                    tokio::spawn(async move { look.at(file).await })
                })
                .buffered(FILES)
                .map_err(|e| DataFusionError::External(Box::new(e)));
            let left: Vec<Option<PartitionedFile>> = looked_at.try_collect().await?;
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

struct Look {
    objects: Arc<dyn ObjectStore>,
    metadata: Arc<FileMetadataCache>,
    condition: Condition,
    /// Memory for Bloom filters, in KiB.
    room: Semaphore,
}

impl Look {
    /// Returns a file that may hold rows of the answer, with the row groups that may. An unreadable file may: the scan
    /// reports its error.
    async fn at(&self, file: PartitionedFile) -> Option<PartitionedFile> {
        match self.groups(&file).await {
            Ok(groups) if groups.iter().all(|may| !may) => None,
            Ok(groups) => {
                let access = |may: bool| match may {
                    true => RowGroupAccess::Scan,
                    false => RowGroupAccess::Skip,
                };
                let plan = ParquetAccessPlan::new(groups.into_iter().map(access).collect());
                Some(file.with_extension(plan))
            }
            Err(_) => Some(file),
        }
    }

    /// Returns for each row group whether it may hold rows of the answer.
    async fn groups(&self, file: &PartitionedFile) -> Result<Vec<bool>> {
        let metadata = DFParquetMetadata::new(&*self.objects, &file.object_meta)
            .with_metadata_size_hint(Some(TAIL))
            .with_file_metadata_cache(Some(Arc::clone(&self.metadata)))
            .with_page_index_policy(Some(PageIndexPolicy::Skip))
            .fetch_metadata()
            .await?;
        let groups = metadata.row_groups().iter();
        let mut known: Vec<Option<Known<'_>>> =
            groups.map(|rows| Some(Known::of(rows)).filter(|known| self.condition.may_hold(known))).collect();
        let _room = self.read_blooms(file, &mut known).await?;
        let may = |known: &Option<Known<'_>>| known.as_ref().is_some_and(|known| self.condition.may_hold(known));
        Ok(known.iter().map(may).collect())
    }

    /// Reads the Bloom filters of these row groups: many with one call, as they lie next to each other. Returns the
    /// right to the memory that they need.
    async fn read_blooms(
        &self,
        file: &PartitionedFile,
        groups: &mut [Option<Known<'_>>],
    ) -> Result<Option<SemaphorePermit<'_>>> {
        let mut wanted = BTreeSet::new();
        self.condition.equal_columns(&mut wanted);
        let (mut places, mut ranges) = (Vec::new(), Vec::new());
        for (number, known) in groups.iter().enumerate() {
            for (name, column) in known.iter().flat_map(|known| &known.columns) {
                let range = column.bloom_filter_offset().zip(column.bloom_filter_length());
                let within = |(offset, length): (i64, i32)| {
                    let (offset, length) = (u64::try_from(offset).ok()?, u64::try_from(length).ok()?);
                    let end = offset.checked_add(length).filter(|end| *end <= file.object_meta.size)?;
                    Some(offset..end)
                };
                // A filter outside of its file is none.
                if let Some(range) = range.and_then(within).filter(|_| wanted.contains(name.as_str())) {
                    places.push((number, name.clone()));
                    ranges.push(range);
                }
            }
        }
        // Filters of other columns lie between them, and are read, too.
        let first = ranges.iter().map(|range| range.start).min();
        let last = ranges.iter().map(|range| range.end).max();
        let bytes = last.unwrap_or(0) - first.unwrap_or(0);
        let room = u32::try_from(bytes >> 10).unwrap_or(ROOM).min(ROOM);
        let room = self.room.acquire_many(room).await.ok();
        let location = &file.object_meta.location;
        let bytes = self.objects.get_ranges(location, &ranges).await?;
        for ((number, name), bytes) in places.into_iter().zip(bytes) {
            if let Some(known) = &mut groups[number] {
                known.blooms.insert(name, Sbbf::from_bytes(&bytes)?);
            }
        }
        Ok(room)
    }
}

/// Statistics and Bloom filters of some rows.
struct Known<'a> {
    columns: HashMap<String, &'a ColumnChunkMetaData>,
    blooms: HashMap<String, Sbbf>,
}

impl<'a> Known<'a> {
    fn of(rows: &'a RowGroupMetaData) -> Self {
        let columns = rows.columns().iter();
        let columns = columns.map(|column| (column.column_path().string(), column));
        Self { columns: columns.collect(), blooms: HashMap::new() }
    }

    fn may_equal(&self, column: &str, value: &ScalarValue) -> bool {
        let described = self.columns.get(column);
        let statistics = described.and_then(|column| column.statistics());
        let within = statistics.is_none_or(|known| may_compare(known, Operator::Eq, value));
        within
            && self.blooms.get(column).is_none_or(|bloom| match value {
                ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)) => bloom.check(&text.as_str()),
                ScalarValue::Int64(Some(number)) => bloom.check(number),
                _ => true,
            })
    }

    fn may_be_null(&self, column: &str) -> bool {
        let statistics = self.columns.get(column).map(|column| column.statistics());
        let nulls = statistics.map(|known| known.and_then(Statistics::null_count_opt));
        nulls != Some(Some(0))
    }
}

/// Returns whether a value between `least` and `most` may stand in this relation to `value`; it may if they are
/// unknown.
fn between<T: PartialOrd>(least: Option<T>, most: Option<T>, is: Operator, value: &T) -> bool {
    let (Some(least), Some(most)) = (least, most) else {
        return true;
    };
    match is {
        Operator::Eq => least <= *value && *value <= most,
        Operator::Lt => least < *value,
        Operator::LtEq => least <= *value,
        Operator::Gt => most > *value,
        Operator::GtEq => most >= *value,
        _ => true,
    }
}

/// Returns whether a value between the minimum and the maximum may stand in this relation to `value`.
fn may_compare(statistics: &Statistics, relation: Operator, value: &ScalarValue) -> bool {
    match (statistics, value) {
        (Statistics::Int32(known), ScalarValue::Int32(Some(value))) => {
            between(known.min_opt(), known.max_opt(), relation, &value)
        }
        (
            Statistics::Int64(known),
            ScalarValue::Int64(Some(value)) | ScalarValue::TimestampMicrosecond(Some(value), _),
        ) => between(known.min_opt(), known.max_opt(), relation, &value),
        (Statistics::ByteArray(known), ScalarValue::Utf8(Some(value)) | ScalarValue::Utf8View(Some(value))) => {
            between(known.min_bytes_opt(), known.max_bytes_opt(), relation, &value.as_bytes())
        }
        _ => true,
    }
}

/// The part of a query's condition that statistics and Bloom filters can decide.
#[derive(Debug)]
enum Condition {
    All(Vec<Condition>),
    One(Vec<Condition>),
    Compares(String, Operator, ScalarValue),
    IsNull(String),
    /// Always true: undecidable.
    Anything,
}

impl Condition {
    fn of(expression: &Expr) -> Self {
        match expression {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => match (&**left, op, &**right) {
                (_, Operator::And, _) => Self::All(vec![Self::of(left), Self::of(right)]),
                (_, Operator::Or, _) => Self::One(vec![Self::of(left), Self::of(right)]),
                (Expr::Column(column), op, Expr::Literal(value, _)) => {
                    Self::Compares(column.name.clone(), *op, value.clone())
                }
                (Expr::Literal(value, _), op, Expr::Column(column)) => match op.swap() {
                    Some(op) => Self::Compares(column.name.clone(), op, value.clone()),
                    None => Self::Anything,
                },
                _ => Self::Anything,
            },
            Expr::InList(list) if !list.negated => match &*list.expr {
                Expr::Column(column) => {
                    let equals = list.list.iter().map(|value| match value {
                        Expr::Literal(value, _) => Self::Compares(column.name.clone(), Operator::Eq, value.clone()),
                        _ => Self::Anything,
                    });
                    Self::One(equals.collect())
                }
                _ => Self::Anything,
            },
            Expr::IsNull(inner) => match &**inner {
                Expr::Column(column) => Self::IsNull(column.name.clone()),
                _ => Self::Anything,
            },
            _ => Self::Anything,
        }
    }

    fn is_selective(&self) -> bool {
        match self {
            Self::All(all) => all.iter().any(Self::is_selective),
            Self::One(all) => all.iter().all(Self::is_selective),
            Self::Compares(..) | Self::IsNull(_) => true,
            Self::Anything => false,
        }
    }

    fn may_hold(&self, known: &Known<'_>) -> bool {
        match self {
            Self::All(all) => all.iter().all(|one| one.may_hold(known)),
            Self::One(all) => all.iter().any(|one| one.may_hold(known)),
            Self::Compares(column, Operator::Eq, value) => known.may_equal(column, value),
            Self::Compares(column, relation, value) => {
                let column = known.columns.get(column);
                let statistics = column.and_then(|column| column.statistics());
                statistics.is_none_or(|statistics| may_compare(statistics, *relation, value))
            }
            Self::IsNull(column) => known.may_be_null(column),
            Self::Anything => true,
        }
    }

    /// Returns whether it may hold for rows of these times.
    fn may_hold_between(&self, first_ns: i64, last_ns: i64) -> bool {
        let within = |is, ns: i64| between(Some(first_ns), Some(last_ns), is, &ns);
        match self {
            Self::All(all) => all.iter().all(|one| one.may_hold_between(first_ns, last_ns)),
            Self::One(all) => all.iter().any(|one| one.may_hold_between(first_ns, last_ns)),
            Self::Compares(column, relation, value) => match (column.as_str(), value) {
                ("time_ns", ScalarValue::Int64(Some(ns))) => within(*relation, *ns),
                // The rows' times are cut to microseconds.
                ("time", ScalarValue::TimestampMicrosecond(Some(us), _)) => {
                    let us = *us;
                    match relation {
                        Operator::Eq | Operator::LtEq => {
                            within(Operator::LtEq, us.saturating_mul(1000).saturating_add(999))
                        }
                        relation => within(*relation, us.saturating_mul(1000)),
                    }
                }
                _ => true,
            },
            Self::IsNull(_) | Self::Anything => true,
        }
    }

    /// Collects the columns whose Bloom filters matter.
    fn equal_columns<'a>(&'a self, found: &mut BTreeSet<&'a str>) {
        match self {
            Self::All(all) | Self::One(all) => all.iter().for_each(|one| one.equal_columns(found)),
            Self::Compares(column, Operator::Eq, _) => {
                found.insert(column);
            }
            Self::Compares(..) | Self::IsNull(_) | Self::Anything => {}
        }
    }
}
