//! The columns of the index, for its files, its queries and its table.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
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

const fn column(name: &'static str, kind: Kind, optional: bool) -> Column {
    Column { name, kind, optional }
}

/// The columns; the number of one in the table is its place, from 1. New ones follow at the end. Not all readers of the
/// table know times in nanoseconds, or numbers without a sign.
pub const COLUMNS: [Column; 43] = [
    column("time", Kind::Time, false),
    column("time_ns", Kind::Long, false),
    column("capture", Kind::Text, false),
    column("date", Kind::Text, false),
    column("host", Kind::Text, false),
    column("interface", Kind::Text, false),
    column("hook", Kind::Text, true),
    column("direction", Kind::Text, true),
    column("verdict", Kind::Text, true),
    column("reason", Kind::Text, true),
    column("vlan", Kind::Int, true),
    column("vni", Kind::Int, true),
    column("ethertype", Kind::Int, true),
    column("src", Kind::Text, true),
    column("dst", Kind::Text, true),
    column("protocol", Kind::Int, true),
    column("ttl", Kind::Int, true),
    column("sport", Kind::Int, true),
    column("dport", Kind::Int, true),
    column("tcp_flags", Kind::Int, true),
    column("tcp_seq", Kind::Long, true),
    column("reset", Kind::Bool, true),
    column("retransmission", Kind::Bool, true),
    column("flow", Kind::Long, true),
    column("dns_name", Kind::Text, true),
    column("tls_server_name", Kind::Text, true),
    column("ja4", Kind::Text, true),
    column("http_host", Kind::Text, true),
    column("captured_length", Kind::Int, false),
    column("length", Kind::Int, false),
    column("hash", Kind::Long, false),
    column("pid", Kind::Long, true),
    column("comm", Kind::Text, true),
    column("container", Kind::Text, true),
    column("chunk", Kind::Text, false),
    column("frame", Kind::Int, false),
    column("offset", Kind::Int, false),
    column("pod", Kind::Text, true),
    column("pod_labels", Kind::Text, true),
    column("nat_src", Kind::Text, true),
    column("nat_sport", Kind::Int, true),
    column("nat_dst", Kind::Text, true),
    column("nat_dport", Kind::Int, true),
];

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

/// Rows of a row group, which are in memory together.
pub const GROUP_ROWS: usize = 1 << 19;
const PAGE_ROWS: usize = 20_000;
/// Columns with a Bloom filter, each with a false-positive rate that balances its size against files read in vain.
/// There are as many hashes as packets.
const SEARCHED: [(&str, f64); 3] = [("src", 0.01), ("dst", 0.01), ("hash", 0.1)];

/// Returns how a file of this many rows is written: equal rows give equal bytes.
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
    for name in ["time", "time_ns", "tcp_seq", "frame", "offset"] {
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
    // With several pages, the ones whose times or addresses cannot match are left out.
    let is_paged = rows > PAGE_ROWS as u64;
    properties = properties.set_offset_index_disabled(!is_paged);
    for name in ["time", "time_ns", "src", "dst", "sport", "dport"].iter().filter(|_| is_paged) {
        properties = properties.set_column_statistics_enabled(ColumnPath::from(*name), EnabledStatistics::Page);
    }
    properties.build()
}
