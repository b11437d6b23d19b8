//! The query engine: DataFusion over the index files of a store's catalogue, and of newer chunks.

use std::io;
use std::sync::Arc;

use arrow::csv::WriterBuilder;
use arrow::json::{ArrayWriter, LineDelimitedWriter};
use datafusion::arrow::array::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::common::{SchemaError, TableReference};
use datafusion::config::Dialect;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{FunctionRegistry, SendableRecordBatchStream};
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext, col};
use futures_util::StreamExt;
use tokio::runtime::Runtime;
use trawl_store::Store;
use trawl_store::search::limits::WHAT;
use trawl_store::search::question::{Form, Question};
use trawl_store::search::{Readers, TAIL};
use trawl_sys::{Error, Result};
use url::Url;

use crate::condition::expression;
use crate::pruning::Packets;
use crate::table::Table;
use crate::{flows, limits, net};

/// Number of files read at once if each read is a network call.
const REMOTE_FILES: usize = 16;

/// Columns that locate a packet.
const LOCATION: [&str; 4] = ["chunk", "frame", "offset", "time_ns"];

/// Returns a context with the tables of the index: the rows of the question's files that meet its condition.
async fn tables(
    store: &Store,
    question: &Question,
    environment: Arc<RuntimeEnv>,
) -> std::result::Result<SessionContext, DataFusionError> {
    let mut config = SessionConfig::new()
        .set_bool("datafusion.execution.parquet.pushdown_filters", true)
        .set_bool("datafusion.execution.parquet.reorder_filters", true)
        .set_usize("datafusion.execution.parquet.metadata_size_hint", TAIL)
        // A merge of several sorts needs memory that the sorts do not leave, since only they can write rows to files.
        .set_bool("datafusion.optimizer.repartition_sorts", false)
        .set_bool("datafusion.execution.collect_statistics", false);
    let Readers { objects, footers, is_remote } = Readers::of(store, &question.files);
    if is_remote {
        config = config.with_target_partitions(REMOTE_FILES);
    }
    let mut context = SessionContext::new_with_config_rt(config, environment);
    context.register_udf(net::function());
    context.register_expr_planner(Arc::new(net::Operators))?;
    let root = Url::parse("trawl://store").map_err(|e| DataFusionError::External(Box::new(e)))?;
    context.register_object_store(&root, objects);
    let mut packets: Arc<dyn TableProvider> =
        Arc::new(Packets { root: ObjectStoreUrl::parse(root.as_str())?, files: question.files.clone(), footers });
    if let Some(condition) = &question.condition {
        packets = context.read_table(packets)?.filter(expression(condition))?.into_view();
    }
    context.register_table("packets", packets)?;
    flows::register(&context).await?;
    Ok(context)
}

/// Plans a query; fails if it is invalid.
async fn plan(context: &SessionContext, Question { sql, form, .. }: &Question) -> Result<DataFrame> {
    let state = context.state();
    // Only PostgreSQL's dialect has the operator.
    let dialect = if sql.contains(net::WITHIN) { Dialect::PostgreSQL } else { Dialect::Generic };
    let statement = state.sql_to_statement(sql, &dialect).map_err(query_error)?;
    let tables = state.resolve_table_references(&statement).map_err(query_error)?;
    let is_known = |table: &TableReference| {
        state.table_functions().contains_key(table.table()) || context.table_exist(table.clone()).unwrap_or(false)
    };
    let plan = state.statement_to_plan(statement).await.map_err(|error| {
        if tables.iter().all(is_known) {
            query_error(error)
        } else {
            query_error(error).fix("the tables are packets, flows and sightings: \"SELECT * FROM packets LIMIT 10\"")
        }
    })?;
    // A query may not read files of this machine.
    let only_queries = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    only_queries.verify_plan(&plan).map_err(query_error)?;
    let rows = context.execute_logical_plan(plan).await.map_err(query_error)?;
    match form {
        Form::Table | Form::Csv | Form::Json | Form::Lines => Ok(rows),
        Form::Locations => {
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

/// Passes on a text as it is written, so that it is not in memory as a whole.
struct Pieces<F>(F);

impl<F: FnMut(Vec<u8>) -> Result<()>> io::Write for Pieces<F> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        (self.0)(text.to_vec()).map_err(io::Error::other)?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
    /// Starts a query. Returns once the first row has been found, or the query has failed.
    pub fn to(question: &Question) -> Result<Self> {
        // Connections belong to the runtime that made them, so the store's own cannot be shared.
        let store = Store::open(&question.store, false)?;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| Error::os(WHAT, e))?;
        let (environment, spill) = limits::environment(question.memory).map_err(query_error)?;
        let started = runtime.block_on(async {
            let context = tables(&store, question, environment).await.map_err(query_error)?;
            let mut rows = plan(&context, question).await?.execute_stream().await.map_err(query_error)?;
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

    /// Writes the answer, part by part.
    pub fn write(self, form: Form, write: impl FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
        match form {
            Form::Table => self.table(write),
            Form::Csv => self.csv(write),
            Form::Json => self.json(write),
            Form::Lines | Form::Locations => self.lines(write),
        }
    }

    fn table(mut self, mut write: impl FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
        let mut table = Table::new(&self.rows.schema());
        while let Some(rows) = self.next()? {
            let text = table.add(&rows).map_err(write_error)?;
            if !text.is_empty() {
                write(text.into_bytes())?;
            }
        }
        write(table.end().into_bytes())
    }

    fn json(mut self, write: impl FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
        let mut json = ArrayWriter::new(Pieces(write));
        while let Some(rows) = self.next()? {
            json.write(&rows).map_err(write_error)?;
        }
        json.finish().map_err(write_error)
    }

    fn csv(mut self, mut write: impl FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
        let mut batch = Some(RecordBatch::new_empty(self.rows.schema()));
        let mut is_first = true;
        while let Some(rows) = batch {
            let mut text = Vec::new();
            let mut csv = WriterBuilder::new().with_header(is_first).build(&mut text);
            csv.write(&rows).map_err(write_error)?;
            drop(csv);
            write(text)?;
            is_first = false;
            batch = self.next()?;
        }
        Ok(())
    }

    fn lines(mut self, mut write: impl FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
        while let Some(rows) = self.next()? {
            let mut json = LineDelimitedWriter::new(Vec::new());
            json.write(&rows).map_err(write_error)?;
            write(json.into_inner())?;
        }
        Ok(())
    }
}
