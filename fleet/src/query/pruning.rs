//! Leaves out files without a row of the answer, before the scan, by checking the statistics and Bloom filters of many files at
//! once. DataFusion checks a file only when it scans it, and no Bloom filters for `src = a OR dst = a`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::ScalarValue;
use datafusion::datasource::listing::{ListingTable, PartitionedFile};
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfigBuilder, ParquetSource, parquet::metadata::DFParquetMetadata,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use datafusion::logical_expr::{
    BinaryExpr, Expr, Operator, TableProviderFilterPushDown, TableType,
};
use datafusion::object_store::ObjectStore;
use datafusion::parquet::bloom_filter::Sbbf;
use datafusion::parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, RowGroupMetaData};
use datafusion::parquet::file::statistics::Statistics;
use datafusion::physical_plan::ExecutionPlan;
use futures_util::{StreamExt, TryStreamExt, stream};

/// Files being checked at once.
const FILES: usize = 64;
/// Length of a file's end that is read for its footer.
pub const TAIL: usize = 32 << 10;

/// The table of the index.
#[derive(Debug)]
pub struct Packets(pub ListingTable);

#[async_trait]
impl TableProvider for Packets {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }

    fn table_type(&self) -> TableType {
        self.0.table_type()
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        self.0.supports_filters_pushdown(filters)
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = self.0.scan(state, projection, filters, limit).await?;
        let condition = Condition::All(filters.iter().map(Condition::of).collect());
        let scan = plan.downcast_ref::<DataSourceExec>();
        let scan = scan.and_then(|exec| exec.downcast_to_file_source::<ParquetSource>());
        let Some((config, _)) = scan.filter(|_| condition.says_something()) else {
            return Ok(plan);
        };
        let runtime = state.runtime_env();
        let look = Arc::new(Look {
            objects: runtime.object_store(&config.object_store_url)?,
            metadata: runtime.cache_manager.get_file_metadata_cache(),
            condition,
        });
        let mut groups = Vec::new();
        for group in &config.file_groups {
            let looked_at = stream::iter(group.files().to_vec())
                .map(|file| {
                    let look = Arc::clone(&look);
                    // Runs on all CPUs.
                    tokio::spawn(async move { look.at(&file).await.then_some(file) })
                })
                .buffered(FILES)
                .map_err(|e| DataFusionError::External(Box::new(e)));
            let left: Vec<Option<PartitionedFile>> = looked_at.try_collect().await?;
            groups.push(FileGroup::new(left.into_iter().flatten().collect()));
        }
        let pruned = FileScanConfigBuilder::from(config.clone()).with_file_groups(groups);
        Ok(DataSourceExec::from_data_source(pruned.build()))
    }
}

struct Look {
    objects: Arc<dyn ObjectStore>,
    metadata: Arc<FileMetadataCache>,
    condition: Condition,
}

impl Look {
    /// Returns whether a file may hold rows of the answer. An unreadable file may: the scan reports its error.
    async fn at(&self, file: &PartitionedFile) -> bool {
        self.try_at(file).await.unwrap_or(true)
    }

    async fn try_at(&self, file: &PartitionedFile) -> Result<bool> {
        let metadata = DFParquetMetadata::new(&*self.objects, &file.object_meta)
            .with_metadata_size_hint(Some(TAIL))
            .with_file_metadata_cache(Some(Arc::clone(&self.metadata)))
            .with_page_index_policy(Some(PageIndexPolicy::Skip))
            .fetch_metadata()
            .await?;
        for rows in metadata.row_groups() {
            let columns = rows.columns().iter();
            let columns = columns.map(|column| (column.column_path().string(), column));
            let mut known = Known {
                columns: columns.collect(),
                blooms: HashMap::new(),
            };
            if self.condition.may_hold(&known) {
                known.blooms = self.blooms(file, rows).await?;
                if self.condition.may_hold(&known) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    async fn blooms(
        &self,
        file: &PartitionedFile,
        rows: &RowGroupMetaData,
    ) -> Result<HashMap<String, Sbbf>> {
        let mut wanted = BTreeSet::new();
        self.condition.equal_columns(&mut wanted);
        let (mut names, mut ranges) = (Vec::new(), Vec::new());
        for column in rows.columns() {
            let name = column.column_path().string();
            let range = column
                .bloom_filter_offset()
                .zip(column.bloom_filter_length());
            if let Some((offset, length)) = range.filter(|_| wanted.contains(name.as_str())) {
                names.push(name);
                ranges.push(offset as u64..offset as u64 + length as u64);
            }
        }
        let location = &file.object_meta.location;
        let bytes = self.objects.get_ranges(location, &ranges).await?;
        let filter = |(name, bytes): (String, bytes::Bytes)| Ok((name, Sbbf::from_bytes(&bytes)?));
        names.into_iter().zip(bytes).map(filter).collect()
    }
}

/// Statistics and Bloom filters of some rows.
struct Known<'a> {
    columns: HashMap<String, &'a ColumnChunkMetaData>,
    blooms: HashMap<String, Sbbf>,
}

impl Known<'_> {
    fn may_equal(&self, column: &str, value: &ScalarValue) -> bool {
        let described = self.columns.get(column);
        let statistics = described.and_then(|column| column.statistics());
        let within = statistics.is_none_or(|known| may_compare(known, Operator::Eq, value));
        within
            && self.blooms.get(column).is_none_or(|bloom| match value {
                ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)) => {
                    bloom.check(&text.as_str())
                }
                ScalarValue::UInt32(Some(number)) => bloom.check(number),
                _ => true,
            })
    }

    fn may_be_null(&self, column: &str) -> bool {
        let statistics = self.columns.get(column).map(|column| column.statistics());
        let nulls = statistics.map(|known| known.and_then(Statistics::null_count_opt));
        nulls != Some(Some(0))
    }
}

/// Returns whether a value between the minimum and the maximum may stand in this relation to `value`.
fn may_compare(statistics: &Statistics, relation: Operator, value: &ScalarValue) -> bool {
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
    match (statistics, value) {
        (Statistics::Int32(known), ScalarValue::Int32(Some(value))) => {
            between(known.min_opt(), known.max_opt(), relation, &value)
        }
        (
            Statistics::Int64(known),
            ScalarValue::Int64(Some(value)) | ScalarValue::TimestampNanosecond(Some(value), _),
        ) => between(known.min_opt(), known.max_opt(), relation, &value),
        (
            Statistics::ByteArray(known),
            ScalarValue::Utf8(Some(value)) | ScalarValue::Utf8View(Some(value)),
        ) => between(
            known.min_bytes_opt(),
            known.max_bytes_opt(),
            relation,
            &value.as_bytes(),
        ),
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
                        Expr::Literal(value, _) => {
                            Self::Compares(column.name.clone(), Operator::Eq, value.clone())
                        }
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

    fn says_something(&self) -> bool {
        match self {
            Self::All(all) => all.iter().any(Self::says_something),
            Self::One(all) => all.iter().all(Self::says_something),
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
