//! An index: one Parquet file for each chunk, one row for each packet. `docs/internals/store.md` describes the columns.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::properties::{
    BloomFilterPosition, EnabledStatistics, WriterProperties, WriterVersion,
};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use serde::Serialize;
use trawl_packet::pcapng::block::{Block, ENHANCED_PACKET, INTERFACE_DESCRIPTION, blocks};
use trawl_packet::pcapng::options::PacketOptions;
use trawl_packet::pcapng::processes::Processes;
use trawl_packet::seekable;
use trawl_packet::verdict;
use trawl_packet::walk::{Headers, walk};
use trawl_sys::{Error, Result, clock};

use super::account::Inventory;
use super::remote::Store;
use trawl_spool::chunk::interface_name;
use trawl_spool::key::escaped;
use trawl_spool::manifest::{Manifest, State, sha256};

const SCHEMA: &str = "message trawl {
    required int64 time (TIMESTAMP(NANOS, true));
    required binary interface (STRING);
    optional binary verdict (STRING);
    optional binary reason (STRING);
    optional binary src (STRING);
    optional binary dst (STRING);
    optional int32 sport;
    optional int32 dport;
    optional int32 protocol;
    optional int32 tcp_flags;
    required int32 captured_length;
    required int32 length;
    optional int64 tcp_seq;
    required int32 hash (INTEGER(32, false));
    required binary chunk (STRING);
    required int32 frame;
    required int32 offset;
    optional int32 ethertype;
    optional int32 pid (INTEGER(32, false));
    optional binary comm (STRING);
    optional binary container (STRING);
}";

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_RARP: u16 = 0x8035;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PAGE_ROWS: usize = 20_000;
/// Ethertypes whose headers have addresses that filters search for.
const ADDRESSED: [u16; 4] = [
    ETHERTYPE_IPV4,
    ETHERTYPE_ARP,
    ETHERTYPE_RARP,
    ETHERTYPE_IPV6,
];
/// Columns with a Bloom filter.
const SEARCHED: [&str; 3] = ["src", "dst", "hash"];
/// False-positive rate that balances the size of a Bloom filter against files read in vain.
const MISTAKEN: f64 = 0.01;
/// The same for hashes, which are as many as packets.
const MISTAKEN_HASH: f64 = 0.1;

/// A value of a row.
enum Value {
    Int32(i32),
    Int64(i64),
    Text(ByteArray),
}

impl Value {
    fn number(value: impl Into<i32>) -> Self {
        Self::Int32(value.into())
    }
}

/// A column of the schema: its present values, and the rows that have one.
#[derive(Debug, Default)]
struct Column {
    int32: Vec<i32>,
    int64: Vec<i64>,
    text: Vec<ByteArray>,
    present: Vec<i16>,
}

impl Column {
    fn push(&mut self, value: Option<Value>) {
        self.present.push(i16::from(value.is_some()));
        match value {
            Some(Value::Int32(value)) => self.int32.push(value),
            Some(Value::Int64(value)) => self.int64.push(value),
            Some(Value::Text(value)) => self.text.push(value),
            None => {}
        }
    }

    fn write(&self, out: &mut ColumnWriter<'_>, is_optional: bool) -> Written<usize> {
        let levels = is_optional.then_some(&self.present[..]);
        match out {
            ColumnWriter::Int32ColumnWriter(out) => out.write_batch(&self.int32, levels, None),
            ColumnWriter::Int64ColumnWriter(out) => out.write_batch(&self.int64, levels, None),
            ColumnWriter::ByteArrayColumnWriter(out) => out.write_batch(&self.text, levels, None),
            _ => Err(ParquetError::General(
                "the schema has another type".to_owned(),
            )),
        }
    }
}

type Written<T> = std::result::Result<T, ParquetError>;

const COLUMNS: usize = 21;

/// The rows of a chunk as columns, in the order of the schema.
#[derive(Debug, Default)]
struct Rows {
    count: usize,
    columns: [Column; COLUMNS],
    texts: Texts,
}

/// Previous texts, so that a row need not allocate them again.
#[derive(Debug, Default)]
struct Texts {
    addresses: HashMap<IpAddr, ByteArray>,
    /// Verdicts, reasons, and names of processes and containers: few different ones.
    known: HashMap<String, ByteArray>,
}

impl Texts {
    fn address(&mut self, address: IpAddr) -> ByteArray {
        let text = || text(&address.to_string());
        self.addresses.entry(address).or_insert_with(text).clone()
    }

    fn shared(&mut self, value: &str) -> ByteArray {
        if let Some(known) = self.known.get(value) {
            return known.clone();
        }
        let new = text(value);
        self.known.insert(value.to_owned(), new.clone());
        new
    }
}

fn text(value: &str) -> ByteArray {
    ByteArray::from(value.as_bytes().to_vec())
}

/// Payload bytes included in the hash.
const HASHED_PAYLOAD: usize = 64;

/// Hashes the fields that routers do not change, so that a packet has the same hash at each host: addresses, ports, protocol,
/// TCP's numbers, and the first bytes of the payload. FNV-1a, folded to 32 bits.
fn invariant_hash(headers: &Headers<'_>, captured: &[u8]) -> u32 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    match headers.ip {
        Some(ip) => {
            for address in [ip.src, ip.dst] {
                match address {
                    IpAddr::V4(address) => add(&address.octets()),
                    IpAddr::V6(address) => add(&address.octets()),
                }
            }
            add(&[ip.protocol]);
            if let Some((from, to)) = headers.ports {
                add(&from.to_be_bytes());
                add(&to.to_be_bytes());
            }
            if let Some(tcp) = headers.tcp {
                add(&tcp.seq.to_be_bytes());
                add(&tcp.ack.to_be_bytes());
                add(&[tcp.flags]);
            }
            add(&(headers.payload_len as u64).to_be_bytes());
            add(&headers.payload[..headers.payload.len().min(HASHED_PAYLOAD)]);
        }
        // Link addresses differ at each hop.
        None => {
            let from = captured.len().min(12);
            add(&captured[from..captured.len().min(from + HASHED_PAYLOAD)]);
        }
    }
    (hash ^ (hash >> 32)) as u32
}

/// Returns source and destination: of the outermost IP header, or of ARP.
fn addresses(headers: &Headers<'_>) -> [Option<IpAddr>; 2] {
    if let Some(ip) = headers.ip {
        return [Some(ip.src), Some(ip.dst)];
    }
    let v4 = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    match headers.arp {
        Some(arp) => [v4(arp.sender_ip), v4(arp.target_ip)],
        None => [None, None],
    }
}

/// Returns the ethertype of the network header; `None` if it is unreadable, so that a search has to read the packet itself.
fn ethertype(headers: &Headers<'_>) -> Option<i32> {
    let ip = headers.ip.map(|ip| match ip.src {
        IpAddr::V4(_) => ETHERTYPE_IPV4,
        IpAddr::V6(_) => ETHERTYPE_IPV6,
    });
    let read = headers.arp.map(|_| ETHERTYPE_ARP).or(ip);
    let other = headers.ethertype.filter(|found| !ADDRESSED.contains(found));
    read.or(other).map(i32::from)
}

/// An interface block of a chunk.
struct Interface {
    link: u16,
    name: ByteArray,
}

/// Returns the index of a chunk.
fn parquet(chunk: &[u8], manifest: &Manifest) -> io::Result<Vec<u8>> {
    let damaged = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    let name = text(&manifest.key().packets());
    let mut out = Out::new(manifest.recorded).map_err(io::Error::other)?;
    let mut rows = Rows::default();
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut processes = Processes::default();
    for (number, frame) in seekable::frames(chunk)?.iter().enumerate() {
        let from = frame.offset as usize;
        let compressed = chunk
            .get(from..from + frame.compressed as usize)
            .ok_or_else(|| damaged("the seek table leads out of the chunk"))?;
        let bytes = seekable::decompress(frame, compressed)?;
        let mut offset = 0;
        for block in blocks(&bytes) {
            match block.kind {
                INTERFACE_DESCRIPTION => {
                    let link = block.body.first_chunk().map(|b| u16::from_le_bytes(*b));
                    interfaces.push(Interface {
                        link: link.ok_or_else(|| damaged("an interface block is too short"))?,
                        name: text(&interface_name(&block)),
                    });
                }
                ENHANCED_PACKET => {
                    let location = (name.clone(), number as i32, offset as i32);
                    rows.packet(&block, &interfaces, &processes, location)
                        .ok_or_else(|| damaged("a packet block is too short"))?;
                    if rows.count == GROUP_ROWS {
                        out.group(&rows).map_err(io::Error::other)?;
                        rows = Rows::default();
                    }
                }
                _ => processes.add_block(&block),
            }
            offset += block.bytes.len();
        }
        if offset != bytes.len() {
            return Err(damaged("a frame does not end with a whole block"));
        }
    }
    if rows.count > 0 {
        out.group(&rows).map_err(io::Error::other)?;
    }
    out.0.into_inner().map_err(io::Error::other)
}

impl Rows {
    /// Adds a packet's row. `location` is chunk, frame and offset.
    fn packet(
        &mut self,
        block: &Block<'_>,
        interfaces: &[Interface],
        processes: &Processes,
        location: (ByteArray, i32, i32),
    ) -> Option<()> {
        let packet = block.enhanced_packet()?;
        let interface = interfaces.get(packet.interface_id as usize)?;
        let options = PacketOptions::parse(packet.options());
        let headers = walk(interface.link, packet.captured);
        let reason = options
            .comments
            .iter()
            .find_map(|comment| comment.strip_prefix("drop=")?.split(' ').next());
        let process = processes.of_packet(&options, packet.timestamp);
        let texts = &mut self.texts;
        let verdict = options.verdict.map(verdict::text);
        let verdict = verdict.map(|name| texts.shared(&name));
        let reason = reason.map(|name| texts.shared(name));
        let [src, dst] = addresses(&headers).map(|one| one.map(|one| texts.address(one)));
        let hash = invariant_hash(&headers, packet.captured).cast_signed();
        let (chunk, frame, offset) = location;
        let row = [
            Some(Value::Int64(packet.timestamp as i64)),
            Some(Value::Text(interface.name.clone())),
            verdict.map(Value::Text),
            reason.map(Value::Text),
            src.map(Value::Text),
            dst.map(Value::Text),
            headers.ports.map(|(from, _)| Value::number(from)),
            headers.ports.map(|(_, to)| Value::number(to)),
            headers.ip.map(|ip| Value::number(ip.protocol)),
            headers.tcp.map(|tcp| Value::number(tcp.flags)),
            Some(Value::Int32(packet.captured_len() as i32)),
            Some(Value::Int32(packet.original_len as i32)),
            headers.tcp.map(|tcp| Value::Int64(tcp.seq.into())),
            Some(Value::Int32(hash)),
            Some(Value::Text(chunk)),
            Some(Value::Int32(frame)),
            Some(Value::Int32(offset)),
            ethertype(&headers).map(Value::Int32),
            process.map(|process| Value::Int32(process.id.cast_signed())),
            process
                .and_then(|process| process.name)
                .map(|name| Value::Text(texts.shared(name))),
            process
                .and_then(|process| process.described?.container())
                .map(|name| Value::Text(texts.shared(name))),
        ];
        self.count += 1;
        for (column, value) in self.columns.iter_mut().zip(row) {
            column.push(value);
        }
        Some(())
    }
}

/// Rows of a row group, which are in memory together.
const GROUP_ROWS: usize = 1 << 18;

/// A Parquet file being made: equal rows give equal bytes.
struct Out(SerializedFileWriter<Vec<u8>>);

impl Out {
    /// Begins a file for this many rows.
    fn new(count: u64) -> Written<Self> {
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let mut properties = WriterProperties::builder()
            .set_created_by("trawl".to_owned())
            .set_writer_version(WriterVersion::PARQUET_1_0)
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_bloom_filter_position(BloomFilterPosition::End);
        for name in ["time", "tcp_seq", "frame", "offset"] {
            let path = ColumnPath::from(name);
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
        properties = properties.set_column_dictionary_enabled(ColumnPath::from("hash"), false);
        for name in SEARCHED {
            let path = ColumnPath::from(name);
            let mistaken = if name == "hash" {
                MISTAKEN_HASH
            } else {
                MISTAKEN
            };
            properties = properties
                .set_column_bloom_filter_fpp(path.clone(), mistaken)
                .set_column_bloom_filter_max_ndv(path, count.clamp(1, GROUP_ROWS as u64));
        }
        // With several pages, the ones whose times or addresses cannot match are left out.
        let is_paged = count > PAGE_ROWS as u64;
        properties = properties
            .set_data_page_row_count_limit(PAGE_ROWS)
            .set_offset_index_disabled(!is_paged);
        for name in ["time", "src", "dst", "sport", "dport"]
            .iter()
            .filter(|_| is_paged)
        {
            properties = properties
                .set_column_statistics_enabled(ColumnPath::from(*name), EnabledStatistics::Page);
        }
        let properties = Arc::new(properties.build());
        let file = SerializedFileWriter::new(Vec::new(), schema, properties)?;
        Ok(Self(file))
    }

    fn group(&mut self, rows: &Rows) -> Written<()> {
        let schema = self.0.schema_descr().root_schema_ptr();
        let mut group = self.0.next_row_group()?;
        for (column, described) in rows.columns.iter().zip(schema.get_fields()) {
            if let Some(mut out) = group.next_column()? {
                column.write(out.untyped(), described.is_optional())?;
                out.close()?;
            }
        }
        group.close()?;
        Ok(())
    }
}

/// Returns the index of a chunk, if the chunk can be read.
pub(crate) fn file(chunk: &[u8], manifest: &Manifest) -> Option<Vec<u8>> {
    parquet(chunk, manifest).ok()
}

/// Returns the key of a chunk's index, with partitions as Hive names them.
pub(crate) fn key(manifest: &Manifest) -> String {
    let epoch = &manifest.epoch;
    let day = clock::date_of(manifest.time());
    format!(
        "index/capture={}/date={day}/host={}/{}_{}_{:010}.parquet",
        escaped(&epoch.capture),
        escaped(&epoch.host),
        escaped(&epoch.boot),
        escaped(&epoch.epoch),
        manifest.sequence
    )
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Indexed {
    /// Index files made now.
    pub files: u64,
    pub packets: u64,
    pub bytes: u64,
    /// Chunks that were already indexed.
    pub there: u64,
    /// Unreadable chunks; `store verify` shows more.
    pub unreadable: Vec<String>,
}

/// Most chunks indexed at once: each is in memory.
const AT_ONCE: usize = 8;

/// Indexes each chunk without an index, on all CPUs; with `again`, all chunks.
pub fn index(
    store: &Store,
    inventory: &Inventory,
    again: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Indexed> {
    let mut indexed = Indexed::default();
    let is_there = |manifest: &&Manifest| {
        manifest.state == State::Stored && !inventory.is_pruned(&manifest.key())
    };
    let stored: Vec<&Manifest> = inventory.manifests.values().filter(is_there).collect();
    let is_new = |manifest: &&&Manifest| again || !inventory.indexes.contains(&key(manifest));
    let wanted: Vec<&Manifest> = stored.iter().filter(is_new).copied().collect();
    indexed.there = (stored.len() - wanted.len()) as u64;
    let next = AtomicUsize::new(0);
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let (done, made) = mpsc::channel();
        for _ in 0..cpus.min(AT_ONCE).min(wanted.len()) {
            let (done, next, wanted) = (done.clone(), &next, &wanted);
            scope.spawn(move || {
                while let Some(manifest) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // After a failure the receiver is gone.
                    if done.send((*manifest, make(store, manifest))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        for (number, (manifest, bytes)) in made.into_iter().enumerate() {
            progress(number as u64, wanted.len() as u64);
            match bytes? {
                Some(bytes) => {
                    indexed.files += 1;
                    indexed.packets += manifest.recorded;
                    indexed.bytes += bytes;
                }
                None => indexed.unreadable.push(manifest.key().packets()),
            }
        }
        indexed.unreadable.sort();
        Ok(indexed)
    })
}

/// Stores the index of a chunk; returns its size, or `None` if the chunk cannot be read.
fn make(store: &Store, manifest: &Manifest) -> Result<Option<u64>> {
    let chunk = store.get(&manifest.key().packets()).ok();
    let chunk = chunk.filter(|bytes| sha256(bytes) == manifest.sha256);
    let Some(file) = chunk.and_then(|bytes| file(&bytes, manifest)) else {
        return Ok(None);
    };
    let bytes = file.len() as u64;
    let key = key(manifest);
    store
        .put_over(&key, file)
        .map_err(|e| Error::failed(format!("cannot store {key}"), e))?;
    Ok(Some(bytes))
}
