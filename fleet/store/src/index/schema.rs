//! The columns of the index, for its files, its queries and its table.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{
    BooleanBuilder, Int32Builder, Int64Builder, StringViewBuilder, TimestampMicrosecondBuilder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::ArrowError;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use parquet::arrow::PARQUET_FIELD_ID_META_KEY;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{BloomFilterPosition, EnabledStatistics, WriterProperties, WriterVersion};
use parquet::schema::types::ColumnPath;

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Time,
    Text,
    Int,
    Long,
    Bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
    pub optional: bool,
}

/// Expands to the builder type of a kind of column, to a new builder, or to true if a column may be empty.
macro_rules! of_column {
    (builder Time) => { TimestampMicrosecondBuilder };
    (builder Text) => { StringViewBuilder };
    (builder Int) => { Int32Builder };
    (builder Long) => { Int64Builder };
    (builder Bool) => { BooleanBuilder };
    (new Time) => { TimestampMicrosecondBuilder::new().with_timezone("UTC") };
    (new Text) => { StringViewBuilder::new().with_deduplicate_strings() };
    (new $kind:ident) => { <of_column!(builder $kind)>::new() };
    (optional) => { true };
    (required) => { false };
}

/// Defines the columns, and the builders of their values.
macro_rules! columns {
    ($($name:ident: $kind:ident, $presence:ident;)+) => {
        /// The columns; a column's number in the table is its position, counted from 1.
        pub const COLUMNS: &[Column] = &[
            $(Column { name: stringify!($name), kind: Kind::$kind, optional: of_column!($presence) }),+
        ];

        /// Rows that become a row group, column by column.
        pub struct Columns {
            $(pub $name: of_column!(builder $kind)),+
        }

        impl Columns {
            pub fn new() -> Self {
                Self { $($name: of_column!(new $kind)),+ }
            }

            /// Returns the rows.
            pub fn finish(mut self) -> Result<RecordBatch, ArrowError> {
                RecordBatch::try_new(schema(), vec![$(Arc::new(self.$name.finish()) as ArrayRef),+])
            }
        }
    };
}

// New columns follow at the end. Not all readers of the table know times in nanoseconds, or numbers without a sign.
columns! {
    time: Time, required;
    time_ns: Long, required;
    capture: Text, required;
    date: Text, required;
    host: Text, required;
    interface: Text, required;
    hook: Text, optional;
    direction: Text, optional;
    verdict: Text, optional;
    reason: Text, optional;
    vlan: Int, optional;
    vni: Int, optional;
    ethertype: Int, optional;
    src: Text, optional;
    dst: Text, optional;
    protocol: Int, optional;
    ttl: Int, optional;
    sport: Int, optional;
    dport: Int, optional;
    tcp_flags: Int, optional;
    tcp_seq: Long, optional;
    reset: Bool, optional;
    retransmission: Bool, optional;
    flow: Long, optional;
    dns_name: Text, optional;
    tls_server_name: Text, optional;
    ja4: Text, optional;
    http_host: Text, optional;
    captured_length: Int, required;
    length: Int, required;
    hash: Long, required;
    pid: Long, optional;
    comm: Text, optional;
    container: Text, optional;
    chunk: Text, required;
    frame: Int, required;
    offset: Int, required;
    pod: Text, optional;
    pod_labels: Text, optional;
    nat_src: Text, optional;
    nat_sport: Int, optional;
    nat_dst: Text, optional;
    nat_dport: Int, optional;
    segments: Int, optional;
    rtt_us: Int, optional;
    cause: Text, optional;
}

pub fn schema() -> SchemaRef {
    let field = |(number, column): (usize, &Column)| {
        let kind = match column.kind {
            Kind::Time => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Kind::Text => DataType::Utf8View,
            Kind::Int => DataType::Int32,
            Kind::Long => DataType::Int64,
            Kind::Bool => DataType::Boolean,
        };
        let id = (number + 1).to_string();
        let id = HashMap::from([(PARQUET_FIELD_ID_META_KEY.to_owned(), id)]);
        Field::new(column.name, kind, column.optional).with_metadata(id)
    };
    let fields: Vec<Field> = COLUMNS.iter().enumerate().map(field).collect();
    Arc::new(Schema::new(fields))
}

/// Rows of a row group, which are in memory together: about 400 bytes each.
pub const GROUP_ROWS: usize = 1 << 18;
/// Rows that are passed on together.
pub const BATCH_ROWS: usize = 1 << 14;
const PAGE_ROWS: usize = 20_000;
/// Columns with a Bloom filter, each with a false-positive rate that balances its size against files read in vain. The
/// filter of hashes is the largest, since nearly every packet has another one.
const SEARCHED: [(&str, f64); 3] = [("src", 0.01), ("dst", 0.01), ("hash", 0.1)];

/// Returns the properties of a file of this many rows: equal rows give equal bytes.
pub fn properties(rows: u64) -> WriterProperties {
    let level = ZstdLevel::try_new(3).unwrap_or_default();
    let mut properties = WriterProperties::builder()
        .set_created_by("trawl".to_owned())
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_bloom_filter_position(BloomFilterPosition::End);
    for name in ["time", "time_ns", "tcp_seq", "frame", "offset", "rtt_us"] {
        let path = ColumnPath::from(name);
        properties = properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
    }
    properties = properties.set_column_dictionary_enabled(ColumnPath::from("hash"), false);
    for (name, mistaken) in SEARCHED {
        let path = ColumnPath::from(name);
        properties = properties
            .set_column_bloom_filter_fpp(path.clone(), mistaken)
            .set_column_bloom_filter_max_ndv(path, rows.clamp(1, GROUP_ROWS as u64));
    }
    // In a file of several pages, readers skip pages whose times or addresses cannot match.
    let is_paged = rows > PAGE_ROWS as u64;
    properties = properties.set_offset_index_disabled(!is_paged);
    for name in ["time", "time_ns", "src", "dst", "sport", "dport"].iter().filter(|_| is_paged) {
        properties = properties.set_column_statistics_enabled(ColumnPath::from(*name), EnabledStatistics::Page);
    }
    properties.build()
}
