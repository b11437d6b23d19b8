//! The query engine: DataFusion over the index files of a store's catalogue, and of newer chunks.

use std::io;
use std::sync::Arc;

use arrow::csv::WriterBuilder;
use arrow::json::{ArrayWriter, LineDelimitedWriter};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::TableProvider;
use datafusion::common::{SchemaError, TableReference};
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::object_store::ObjectStore;
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext, col};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;
use trawl_sys::{Error, Result};
use url::Url;

use super::cache::Cached;
use super::condition::Conditions;
use super::footer::Checked;
use super::limits::{self, WHAT};
use super::pruning::{Packets, TAIL};
use super::read_only::ReadOnly;
use trawl_store::{File, Store};

/// Number of files read at once if each read is a network call.
const REMOTE_FILES: usize = 16;

/// The flows of the packets, with a row for each interface and hook that saw one. The source of a flow is the source of
/// its first packet.
const FLOWS: &str = "\
    SELECT min(time) AS first, max(time) AS last, host, interface, hook, first_value(src ORDER BY time_ns) AS src, \
    first_value(sport ORDER BY time_ns) AS sport, first_value(dst ORDER BY time_ns) AS dst, \
    first_value(dport ORDER BY time_ns) AS dport, protocol, count(*) AS packets, sum(length) AS bytes, \
    count(*) FILTER (WHERE retransmission) AS retransmissions, bool_or(reset) AS reset, max(dns_name) AS dns_name, \
    max(tls_server_name) AS tls_server_name, max(ja4) AS ja4, max(http_host) AS http_host, max(comm) AS comm, \
    max(container) AS container, capture, flow \
    FROM packets WHERE flow IS NOT NULL \
    GROUP BY capture, host, interface, hook, flow, protocol ORDER BY first";

/// A query, and the form of its answer.
#[derive(Clone, Copy, Debug)]
pub enum Query<'a> {
    /// The rows that this SQL selects.
    Rows(&'a str),
    /// The places in chunks of the packets that this SQL selects, in the order of their times.
    Locations(&'a str),
}

/// Columns that locate a packet.
const LOCATION: [&str; 4] = ["chunk", "frame", "offset", "time_ns"];

/// Returns a context with the tables of the index: the rows of these files that meet the conditions.
async fn tables(
    store: &Store,
    files: Vec<File>,
    conditions: &Conditions,
    environment: Arc<RuntimeEnv>,
) -> std::result::Result<SessionContext, DataFusionError> {
    let mut config = SessionConfig::new()
        .set_bool("datafusion.execution.parquet.pushdown_filters", true)
        .set_bool("datafusion.execution.parquet.reorder_filters", true)
        .set_usize("datafusion.execution.parquet.metadata_size_hint", TAIL)
        .set_bool("datafusion.execution.collect_statistics", false);
    let objects: Arc<dyn ObjectStore> = Arc::new(ReadOnly(Checked(store.objects())));
    let mut footers = Arc::clone(&objects);
    if !store.url().starts_with("file:") {
        config = config.with_target_partitions(REMOTE_FILES);
        footers = Cached::around(footers, store.identity());
    }
    let context = SessionContext::new_with_config_rt(config, environment);
    let root = Url::parse("trawl://store").map_err(|e| DataFusionError::External(Box::new(e)))?;
    context.register_object_store(&root, objects);
    let mut packets: Arc<dyn TableProvider> =
        Arc::new(Packets { root: ObjectStoreUrl::parse(root.as_str())?, files, footers });
    if let Some(condition) = conditions.joined() {
        packets = context.read_table(packets)?.filter(condition)?.into_view();
    }
    context.register_table("packets", packets)?;
    let flows = context.sql(FLOWS).await?.into_view();
    context.register_table("flows", flows)?;
    Ok(context)
}

/// Plans a query; fails if it is invalid.
async fn plan(context: &SessionContext, query: Query<'_>) -> Result<DataFrame> {
    let (Query::Rows(sql) | Query::Locations(sql)) = query;
    let state = context.state();
    let dialect = state.config().options().sql_parser.dialect;
    let statement = state.sql_to_statement(sql, &dialect).map_err(query_error)?;
    let tables = state.resolve_table_references(&statement).map_err(query_error)?;
    let is_known = |table: &TableReference| {
        state.table_functions().contains_key(table.table()) || context.table_exist(table.clone()).unwrap_or(false)
    };
    let plan = state.statement_to_plan(statement).await.map_err(|error| {
        if tables.iter().all(is_known) {
            query_error(error)
        } else {
            query_error(error).fix("the tables are packets and flows: \"SELECT * FROM packets LIMIT 10\"")
        }
    })?;
    // A query may not read files of this machine.
    let only_queries = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    only_queries.verify_plan(&plan).map_err(query_error)?;
    let rows = context.execute_logical_plan(plan).await.map_err(query_error)?;
    match query {
        Query::Rows(_) => Ok(rows),
        Query::Locations(_) => {
            let located = rows.select_columns(&LOCATION).map_err(|error| {
                if is_field_missing(&error) {
                    query_error(error).fix("let the SQL select chunk, frame, \"offset\" and time_ns, as SELECT * does")
                } else {
                    query_error(error)
                }
            })?;
            located.sort_by(["time_ns", "chunk", "frame", "offset"].map(col).to_vec()).map_err(query_error)
        }
    }
}

fn is_field_missing(error: &DataFusionError) -> bool {
    let DataFusionError::SchemaError(error, _) = error.find_root() else { return false };
    matches!(**error, SchemaError::FieldNotFound { .. })
}

fn query_error(error: DataFusionError) -> Error {
    let why = error.strip_backtrace();
    match error.find_root() {
        DataFusionError::Plan(_)
        | DataFusionError::SQL(..)
        | DataFusionError::SchemaError(..)
        | DataFusionError::NotImplemented(_) => Error::usage(WHAT, why.trim()),
        _ => Error::failed(WHAT, why.trim()),
    }
}

fn write_error(error: impl std::fmt::Display) -> Error {
    Error::failed("cannot write the answer", error)
}

/// A running query.
pub struct Answer {
    runtime: Runtime,
    rows: SendableRecordBatchStream,
    /// The first rows, read before the answer begins, so that a failing query fails there.
    first: Option<RecordBatch>,
    /// Temporary files, removed after the rows, which may be in them.
    _spill: Option<limits::Spill>,
}

impl Answer {
    /// Starts a query of the packets that meet the conditions. Returns once the first row has been found, or the query
    /// has failed.
    pub fn to(url: &str, files: Vec<File>, conditions: &Conditions, query: Query<'_>) -> Result<Self> {
        // Connections belong to the runtime that made them, so the store's own cannot be shared.
        let store = Store::open(url, false)?;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| Error::os(WHAT, e))?;
        let (environment, spill) = limits::environment().map_err(query_error)?;
        let started = runtime.block_on(async {
            let context = tables(&store, files, conditions, environment).await.map_err(query_error)?;
            let mut rows = plan(&context, query).await?.execute_stream().await.map_err(query_error)?;
            let first = rows.next().await.transpose().map_err(query_error)?;
            Ok::<_, Error>((rows, first))
        });
        let (rows, first) = started?;
        Ok(Self { runtime, rows, first, _spill: spill })
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => {
                let next = self.runtime.block_on(self.rows.next());
                next.transpose().map_err(query_error)
            }
        }
    }

    /// Returns all rows and an empty one, for the names of the columns.
    fn batches(mut self) -> Result<Vec<RecordBatch>> {
        let mut batches = vec![RecordBatch::new_empty(self.rows.schema())];
        while let Some(batch) = self.next()? {
            batches.push(batch);
        }
        Ok(batches)
    }

    /// Returns the rows as a table for people.
    pub fn table(self) -> Result<String> {
        let table = pretty_format_batches(&self.batches()?).map_err(write_error)?;
        Ok(format!("{table}\n"))
    }

    /// Returns the rows as a JSON array.
    pub fn json(self) -> Result<Vec<u8>> {
        let mut json = ArrayWriter::new(Vec::new());
        let batches = self.batches()?;
        let batches: Vec<&RecordBatch> = batches.iter().collect();
        json.write_batches(&batches).map_err(write_error)?;
        json.finish().map_err(write_error)?;
        Ok(json.into_inner())
    }

    /// Writes the rows as CSV as they are found; `write` returns false once the reader is gone.
    pub fn csv(mut self, mut write: impl FnMut(&str) -> Result<bool>) -> Result<()> {
        let mut batch = Some(RecordBatch::new_empty(self.rows.schema()));
        let mut is_first = true;
        while let Some(rows) = batch {
            let mut text = Vec::new();
            let mut csv = WriterBuilder::new().with_header(is_first).build(&mut text);
            csv.write(&rows).map_err(write_error)?;
            drop(csv);
            if !write(&String::from_utf8_lossy(&text))? {
                break;
            }
            is_first = false;
            batch = self.next()?;
        }
        Ok(())
    }

    /// Returns each row as a value, followed by the error if the query fails.
    pub fn rows<T: DeserializeOwned>(mut self) -> impl Iterator<Item = io::Result<T>> {
        let mut found = Vec::new().into_iter();
        let mut is_over = false;
        std::iter::from_fn(move || {
            while !is_over {
                if let Some(row) = found.next() {
                    return Some(row);
                }
                let batch = self.next().map_err(|e| io::Error::other(e.to_string()));
                match batch.and_then(|batch| batch.as_ref().map(values).transpose()) {
                    Ok(Some(values)) => found = values.into_iter(),
                    Ok(None) => is_over = true,
                    Err(error) => {
                        is_over = true;
                        return Some(Err(error));
                    }
                }
            }
            None
        })
    }
}

fn values<T: DeserializeOwned>(batch: &RecordBatch) -> io::Result<Vec<io::Result<T>>> {
    let mut json = LineDelimitedWriter::new(Vec::new());
    json.write(batch).map_err(io::Error::other)?;
    let lines = json.into_inner();
    let values = serde_json::Deserializer::from_slice(&lines).into_iter();
    Ok(values.map(|value| value.map_err(io::Error::from)).collect())
}
