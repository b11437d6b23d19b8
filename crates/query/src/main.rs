//! `trawl-query STORE FORM QUERY`: answers a query over the index of a store by DataFusion. `trawl query` runs it and does
//! everything that needs packets. It is a separate program because DataFusion takes longer to build than all of trawl.

mod prune;

use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::context::SQLOptions;
use datafusion::object_store::ObjectStore;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures_util::StreamExt;
use prune::{Packets, TAIL};
use url::Url;

/// Exit code for an invalid query, as opposed to a failed one.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, form, query] = arguments.as_slice() else {
        eprintln!("usage: trawl-query STORE table|csv|json|jsonl QUERY");
        return ExitCode::from(WRONG_USAGE);
    };
    let (objects, is_remote) = match trawl_store::Store::open(store, false) {
        Ok(store) => (store.objects(), !store.url().starts_with("file:")),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let answered = match runtime {
        Ok(runtime) => runtime.block_on(answer(objects, is_remote, form, query)),
        Err(error) => Err(error.into()),
    };
    match answered {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe.
        Err(DataFusionError::IoError(error)) if error.kind() == ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}", error.strip_backtrace());
            match error.find_root() {
                DataFusionError::Plan(_)
                | DataFusionError::SQL(..)
                | DataFusionError::SchemaError(..)
                | DataFusionError::NotImplemented(_) => ExitCode::from(WRONG_USAGE),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Returns the columns of the index (see `docs/internals/store.md`), without the partitions of its path.
fn columns() -> Schema {
    let text = |name, optional| Field::new(name, DataType::Utf8View, optional);
    let number = |name, optional| Field::new(name, DataType::Int32, optional);
    let utc = DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
    Schema::new(vec![
        Field::new("time", utc, false),
        text("interface", false),
        text("verdict", true),
        text("reason", true),
        text("src", true),
        text("dst", true),
        number("sport", true),
        number("dport", true),
        number("protocol", true),
        number("tcp_flags", true),
        number("captured_length", false),
        number("length", false),
        Field::new("tcp_seq", DataType::Int64, true),
        Field::new("hash", DataType::UInt32, false),
        text("chunk", false),
        number("frame", false),
        number("offset", false),
        number("ethertype", true),
    ])
}

/// Files read at once if each read is a network call.
const REMOTE_FILES: usize = 16;

async fn answer(
    objects: Arc<dyn ObjectStore>,
    is_remote: bool,
    form: &str,
    query: &str,
) -> Result<()> {
    let mut config = SessionConfig::new()
        .set_bool("datafusion.execution.parquet.pushdown_filters", true)
        .set_bool("datafusion.execution.parquet.reorder_filters", true)
        .set_usize("datafusion.execution.parquet.metadata_size_hint", TAIL)
        .set_bool("datafusion.execution.collect_statistics", false);
    if is_remote {
        config = config.with_target_partitions(REMOTE_FILES);
    }
    let context = SessionContext::new_with_config(config);
    let root = Url::parse("trawl://store").map_err(|e| DataFusionError::External(Box::new(e)))?;
    context.register_object_store(&root, objects);
    let partitions = ["capture", "date", "host"];
    let options = ListingOptions::new(Arc::new(ParquetFormat::default()))
        .with_file_extension(".parquet")
        .with_table_partition_cols(
            partitions
                .map(|name| (name.to_owned(), DataType::Utf8))
                .to_vec(),
        );
    let table = ListingTableConfig::new(ListingTableUrl::parse("trawl://store/index/")?)
        .with_listing_options(options)
        .with_schema(Arc::new(columns()));
    let packets = Packets(ListingTable::try_new(table)?);
    context.register_table("packets", Arc::new(packets))?;
    // A query may not read files of this machine.
    let only_ask = SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false);
    let answer = context.sql_with_options(query, only_ask).await?;
    let schema = Arc::new(answer.schema().as_arrow().clone());
    let rows = answer.execute_stream().await?;
    let mut out = BufWriter::new(io::stdout().lock());
    write(&mut out, form, schema, rows).await?;
    out.flush()?;
    Ok(())
}

async fn write(
    out: &mut impl Write,
    form: &str,
    schema: Arc<Schema>,
    mut rows: SendableRecordBatchStream,
) -> Result<()> {
    match form {
        "csv" => {
            let mut csv = arrow::csv::Writer::new(out);
            // The heading is printed even without a row.
            csv.write(&RecordBatch::new_empty(schema))?;
            while let Some(batch) = rows.next().await {
                csv.write(&batch?)?;
            }
        }
        "json" => {
            let mut json = arrow::json::ArrayWriter::new(out);
            while let Some(batch) = rows.next().await {
                json.write(&batch?)?;
            }
            json.finish()?;
        }
        "jsonl" => {
            let mut json = arrow::json::LineDelimitedWriter::new(out);
            while let Some(batch) = rows.next().await {
                json.write(&batch?)?;
            }
            json.finish()?;
        }
        _ => {
            // Columns are as wide as the widest value, so all rows are needed first.
            let mut batches = vec![RecordBatch::new_empty(schema)];
            while let Some(batch) = rows.next().await {
                batches.push(batch?);
            }
            writeln!(out, "{}", pretty_format_batches(&batches)?)?;
        }
    }
    Ok(())
}
