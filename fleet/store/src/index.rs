//! The index of a chunk: a Parquet file with a row for each packet. `docs/internals/store.md` describes the columns.

mod causes;
pub mod merge;
mod round_trips;
pub mod schema;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::Hasher as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use trawl_packet::net::ethertype;

use arrow_array::RecordBatch;
use arrow_array::builder::ArrayBuilder as _;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use trawl_packet::application;
use trawl_packet::build::flags::{FIN, RST, SYN};
use trawl_packet::fnv::Fnv;
use trawl_packet::pcapng::block::{Block, ENHANCED_PACKET, INTERFACE_DESCRIPTION, blocks};
use trawl_packet::pcapng::note::{DropNote, Note, SegmentsNote, TranslationNews};
use trawl_packet::pcapng::options::PacketOptions;
use trawl_packet::pcapng::processes::Processes;
use trawl_packet::pcapng::translations::Translations;
use trawl_packet::pcapng::{Direction, Interface};
use trawl_packet::seekable::{self, Frame};
use trawl_packet::verdict;
use trawl_packet::walk::{Headers, Tcp, walk};
use trawl_slow::packets::place_hook;
use trawl_spool::chunk::UNNAMED;
use trawl_spool::manifest::Manifest;
use trawl_sys::clock;

use round_trips::{RoundTrips, Segment};
use schema::{BATCH_ROWS, Columns, properties, schema};

/// Ethertypes whose headers have addresses that filters search for.
const ADDRESSED: [u16; 4] = [ethertype::IPV4, ethertype::ARP, ethertype::REVERSE_ARP, ethertype::IPV6];
/// Payload bytes included in the hash.
const HASHED_PAYLOAD: usize = 64;

fn hash_address(hash: &mut Fnv, address: IpAddr) {
    match address {
        IpAddr::V4(address) => hash.write(&address.octets()),
        IpAddr::V6(address) => hash.write(&address.octets()),
    }
}

/// Hashes the fields that routers do not change, so that a packet has the same hash at each host: addresses, ports,
/// protocol, TCP's numbers, and the first bytes of the payload.
fn invariant_hash(headers: &Headers<'_>, captured: &[u8]) -> u32 {
    let mut hash = Fnv::default();
    match headers.ip {
        Some(ip) => {
            hash_address(&mut hash, ip.src);
            hash_address(&mut hash, ip.dst);
            hash.write(&[ip.protocol]);
            if let Some((from, to)) = headers.ports {
                hash.write(&from.to_be_bytes());
                hash.write(&to.to_be_bytes());
            }
            if let Some(tcp) = headers.tcp {
                hash.write(&tcp.seq.to_be_bytes());
                hash.write(&tcp.ack.to_be_bytes());
                hash.write(&[tcp.flags]);
            }
            hash.write(&(headers.payload_len as u64).to_be_bytes());
            hash.write(&headers.payload[..headers.payload.len().min(HASHED_PAYLOAD)]);
        }
        // Link addresses differ at each hop.
        None => {
            let from = captured.len().min(12);
            hash.write(&captured[from..captured.len().min(from + HASHED_PAYLOAD)]);
        }
    }
    let hash = hash.finish();
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

/// Returns the ethertype of the network header; `None` if it is unreadable, so that a search has to read the packet
/// itself.
fn ethertype(headers: &Headers<'_>) -> Option<i32> {
    let ip = headers.ip.map(|ip| match ip.src {
        IpAddr::V4(_) => ethertype::IPV4,
        IpAddr::V6(_) => ethertype::IPV6,
    });
    let read = headers.arp.map(|_| ethertype::ARP).or(ip);
    let other = headers.ethertype.filter(|found| !ADDRESSED.contains(found));
    read.or(other).map(i32::from)
}

/// Returns the name of an interface, without the part that distinguishes its hooks.
fn plain_name(interface: &Interface) -> &str {
    let name = interface.name.as_deref().unwrap_or(UNNAMED);
    name.split(" (").next().unwrap_or_default()
}

/// Maximum number of TCP streams whose ends are known, in about 64 MiB.
const STREAMS: usize = 1_800_000;

/// The TCP streams of a chunk so far. A stream is a direction of a connection; the key is its hash.
#[derive(Default)]
struct Streams {
    /// The end of each stream as one interface block sees it, by which retransmitted bytes are recognised.
    ends: HashMap<u64, u32>,
    round_trips: RoundTrips,
}

/// Returns the hash of the stream that a segment belongs to, at an interface block or a place.
fn stream(interface: u32, from: SocketAddr, to: SocketAddr) -> u64 {
    let mut hash = Fnv::default();
    hash.write(&interface.to_be_bytes());
    for end in [from, to] {
        hash_address(&mut hash, end.ip());
        hash.write(&end.port().to_be_bytes());
    }
    hash.finish()
}

impl Streams {
    /// Adds a packet, seen at an interface block and a place. Returns whether all its bytes, its SYN and its FIN have been
    /// seen before, `None` if it has none, and the round trip in ns that it ends.
    fn add(
        &mut self,
        [interface, place]: [u32; 2],
        headers: &Headers<'_>,
        time_ns: u64,
    ) -> (Option<bool>, Option<u64>) {
        let (Some(ip), Some(tcp), Some(ports)) = (headers.ip, headers.tcp, headers.ports) else { return (None, None) };
        let (from, to) = (SocketAddr::new(ip.src, ports.0), SocketAddr::new(ip.dst, ports.1));
        let marks = u32::from(tcp.flags & SYN != 0) + u32::from(tcp.flags & FIN != 0);
        let length = headers.payload_len as u32 + marks;
        let was_seen = (length > 0).then(|| self.was_seen(stream(interface, from, to), &tcp, length));
        let segment = Segment { place, from, to, tcp, length, is_again: was_seen == Some(true), time_ns };
        (was_seen, self.round_trips.add(&segment))
    }

    fn was_seen(&mut self, stream: u64, tcp: &Tcp, length: u32) -> bool {
        let end = tcp.seq.wrapping_add(length);
        if self.ends.len() >= STREAMS && !self.ends.contains_key(&stream) {
            // Segments of these streams that come again later are not recognised.
            self.ends.clear();
        }
        let known = self.ends.entry(stream).or_insert(tcp.seq);
        // Sequence numbers wrap around. A new connection of the same ports begins far from the old one.
        let is_again = tcp.flags & SYN == 0 && end.wrapping_sub(*known).cast_signed() <= 0;
        let repeats_syn = tcp.flags & SYN != 0 && end == *known;
        if !is_again {
            *known = end;
        }
        is_again || repeats_syn
    }
}

/// Returns a number that both directions of a flow share: a hash of its addresses, ports and protocol.
pub fn flow_number(protocol: u8, [from, to]: [SocketAddr; 2]) -> i64 {
    let (mut one, mut other) = ((from.ip(), from.port()), (to.ip(), to.port()));
    if one > other {
        std::mem::swap(&mut one, &mut other);
    }
    let mut hash = Fnv::default();
    for (address, port) in [one, other] {
        hash_address(&mut hash, address);
        hash.write(&port.to_be_bytes());
    }
    hash.write(&[protocol]);
    hash.finish().cast_signed()
}

/// Returns the protocol of a packet, and its source and destination.
fn ends(headers: &Headers<'_>) -> Option<(u8, [SocketAddr; 2])> {
    let ip = headers.ip?;
    let (from, to) = headers.ports.unwrap_or_default();
    Some((ip.protocol, [SocketAddr::new(ip.src, from), SocketAddr::new(ip.dst, to)]))
}

/// Returns source and destination of a packet on the other side of its translation.
fn other_side(headers: &Headers<'_>, translations: &Translations, time_ns: u64) -> Option<[SocketAddr; 2]> {
    let (protocol, ends) = ends(headers).filter(|_| !translations.is_empty())?;
    translations.of(protocol, ends, time_ns)
}

/// Names in a packet, or in the packet inside its tunnel.
#[derive(Default)]
struct Names {
    vni: Option<u32>,
    dns: Option<String>,
    server: Option<String>,
    ja4: Option<String>,
    host: Option<String>,
}

impl Names {
    fn of(outer: &Headers<'_>) -> Self {
        let (_, headers) = outer.innermost();
        let hello = application::client_hello(&headers);
        let (server, ja4) = hello.map_or((None, None), |hello| (hello.server_name, hello.ja4));
        Self {
            vni: application::vni(outer),
            dns: application::dns_name(&headers),
            server,
            ja4,
            host: application::http_host(&headers).map(|host| host.into_owned()),
        }
    }
}

/// Rows that are passed on together.
struct Rows<'a> {
    manifest: &'a Manifest,
    columns: Columns,
    /// An address as text, to be copied.
    address: String,
}

impl<'a> Rows<'a> {
    fn new(manifest: &'a Manifest) -> Self {
        Self { manifest, columns: Columns::new(), address: String::new() }
    }

    fn len(&self) -> usize {
        self.columns.time_ns.len()
    }

    fn packet(&mut self, block: &Block<'_>, at: &Reading, context: &mut Context) -> Option<()> {
        let packet = block.enhanced_packet()?;
        let interface = at.interfaces.get(packet.interface_id as usize)?;
        let options = PacketOptions::parse(packet.options());
        let headers = walk(interface.link_type, packet.captured);
        let reason = options.comments.iter().find_map(|comment| DropNote::parse(comment)).map(|drop| drop.reason);
        let segments = options.comments.iter().find_map(|comment| SegmentsNote::parse(comment));
        let process = at.processes.of_packet(&options, packet.timestamp);
        let direction = options.direction().map(|direction| match direction {
            Direction::In => "in",
            Direction::Out => "out",
        });
        let hash = invariant_hash(&headers, packet.captured);
        let ip = headers.ip;
        let vlan = headers.vlan_numbers().first();
        let names = Names::of(&headers);
        let places = [packet.interface_id, *at.places.get(packet.interface_id as usize)?];
        let (retransmission, round_trip) = context.streams.add(places, &headers, packet.timestamp);
        let time_ns = packet.timestamp as i64;
        let columns = &mut self.columns;
        columns.time.append_value(time_ns.div_euclid(1000));
        columns.time_ns.append_value(time_ns);
        columns.interface.append_value(plain_name(interface));
        columns.hook.append_option(interface.hook());
        columns.direction.append_option(direction);
        columns.verdict.append_option(options.verdict.map(verdict::text));
        columns.reason.append_option(reason);
        columns.vlan.append_option(vlan.map(|number| i32::from(*number)));
        columns.vni.append_option(names.vni.map(u32::cast_signed));
        columns.ethertype.append_option(ethertype(&headers));
        let addresses = addresses(&headers);
        for (address, column) in addresses.into_iter().zip([&mut columns.src, &mut columns.dst]) {
            self.address.clear();
            match address.map(|address| write!(self.address, "{address}")) {
                Some(_) => column.append_value(&self.address),
                None => column.append_null(),
            }
        }
        columns.protocol.append_option(ip.map(|ip| ip.protocol.into()));
        columns.ttl.append_option(ip.map(|ip| ip.ttl.into()));
        columns.sport.append_option(headers.ports.map(|(from, _)| from.into()));
        columns.dport.append_option(headers.ports.map(|(_, to)| to.into()));
        columns.tcp_flags.append_option(headers.tcp.map(|tcp| tcp.flags.into()));
        columns.tcp_seq.append_option(headers.tcp.map(|tcp| tcp.seq.into()));
        columns.reset.append_option(headers.tcp.map(|tcp| tcp.flags & RST != 0));
        columns.retransmission.append_option(retransmission);
        let flow = ends(&headers).map(|(protocol, ends)| flow_number(protocol, ends));
        columns.flow.append_option(flow);
        columns.cause.append_option(flow.and_then(|flow| context.causes.remove(&flow)));
        columns.dns_name.append_option(names.dns);
        columns.tls_server_name.append_option(names.server);
        columns.ja4.append_option(names.ja4);
        columns.http_host.append_option(names.host);
        columns.captured_length.append_value(packet.captured_len() as i32);
        columns.length.append_value(packet.original_len as i32);
        columns.hash.append_value(hash.into());
        columns.segments.append_option(segments.map(|segments| segments.0.into()));
        columns.pid.append_option(process.map(|process| process.id.into()));
        columns.comm.append_option(process.and_then(|process| process.name));
        columns.container.append_option(process.and_then(|process| process.described?.container()));
        columns.frame.append_value(at.frame as i32);
        columns.offset.append_value(at.offset as i32);
        let pod = interface.pod();
        columns.pod.append_option(pod.map(|pod| pod.name));
        columns.pod_labels.append_option(pod.and_then(|pod| pod.labels));
        columns.rtt_us.append_option(round_trip.and_then(|ns| i32::try_from(ns / 1000).ok()));
        self.translation(other_side(&headers, &context.translations, packet.timestamp));
        Some(())
    }

    /// Appends source and destination on the other side of a translation.
    fn translation(&mut self, other: Option<[SocketAddr; 2]>) {
        let Columns { nat_src, nat_sport, nat_dst, nat_dport, .. } = &mut self.columns;
        for (number, (address, port)) in [(nat_src, nat_sport), (nat_dst, nat_dport)].into_iter().enumerate() {
            let end = other.map(|ends| ends[number]);
            address.append_option(end.map(|end| end.ip().to_string()));
            // ICMP has no ports.
            let number = end.map(|end| end.port()).filter(|port| *port > 0);
            port.append_option(number.map(i32::from));
        }
    }

    /// Fills the columns that are the same in all rows, and returns the rows.
    fn finish(mut self) -> Result<RecordBatch, ParquetError> {
        let Manifest { epoch, .. } = self.manifest;
        let (date, chunk) = (clock::date_of(self.manifest.time()), self.manifest.key().packets());
        for _ in 0..self.len() {
            self.columns.capture.append_value(&epoch.capture);
            self.columns.date.append_value(&date);
            self.columns.host.append_value(&epoch.host);
            self.columns.chunk.append_value(&chunk);
        }
        Ok(self.columns.finish()?)
    }
}

/// A Parquet file of the index being made.
pub struct Out(ArrowWriter<Vec<u8>>);

impl Out {
    /// Begins a file for this many rows.
    pub fn new(rows: u64) -> Result<Self, ParquetError> {
        let options = ArrowWriterOptions::new().with_properties(properties(rows)).with_skip_arrow_metadata(true);
        let writer = ArrowWriter::try_new_with_options(Vec::new(), schema(), options)?;
        Ok(Self(writer))
    }

    /// Adds rows to the row group that is being made.
    pub fn write(&mut self, rows: &RecordBatch) -> Result<(), ParquetError> {
        self.0.write(rows)
    }

    /// Ends the row group.
    pub fn end_group(&mut self) -> Result<(), ParquetError> {
        self.0.flush()
    }

    /// Returns the bytes written so far.
    pub fn len(&self) -> usize {
        self.0.bytes_written()
    }

    /// Returns the file, and its description.
    pub fn finish(mut self) -> Result<(Vec<u8>, ParquetMetaData), ParquetError> {
        let metadata = self.0.finish()?;
        Ok((std::mem::take(self.0.inner_mut()), metadata))
    }
}

/// Decompresses a frame of a chunk.
fn unpacked(chunk: &[u8], frame: &Frame) -> io::Result<Vec<u8>> {
    let from = frame.offset as usize;
    let compressed = chunk.get(from..from + frame.compressed as usize);
    let compressed = compressed.ok_or_else(|| damaged("the seek table leads out of the chunk"))?;
    seekable::decompress(frame, compressed)
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Number of decompressed bytes that a chunk of any size may hold.
const BYTES: u64 = 256 << 20;
/// Number of decompressed bytes that a chunk may hold for each of its own: a packet of 64 KiB of zeros needs about 20.
const RATIO: u64 = 4096;
/// Maximum number of decompressed bytes of any chunk. Decompressing them takes about a minute.
const MOST_BYTES: u64 = 64 << 30;
/// Number of packets that a chunk may hold beyond one for each of its bytes; no two packets have the same time.
const PACKETS: u64 = 4096;

/// Returns the frames of a chunk, unless their table claims more than a capture writes. Memory and time that a chunk
/// costs are in proportion to its own bytes.
fn frames(chunk: &[u8], manifest: &Manifest) -> io::Result<Vec<Frame>> {
    let frames = seekable::frames(chunk)?;
    let bytes = frames.last().map_or(0, |last| last.start + u64::from(last.decompressed));
    let size = chunk.len() as u64;
    let most = BYTES.saturating_add(size.saturating_mul(RATIO)).min(MOST_BYTES);
    if bytes > most {
        return Err(damaged("its frames hold more than a capture compresses into a chunk of this size"));
    }
    if manifest.recorded > size.saturating_add(PACKETS) {
        return Err(damaged("its manifest claims more packets than a chunk of this size holds"));
    }
    Ok(frames)
}

/// Reads the translations in a chunk: the first packets of a connection precede its translation.
fn translations(chunk: &[u8], manifest: &Manifest) -> io::Result<Translations> {
    let mut found = Translations::default();
    if manifest.translations > 0 {
        for frame in frames(chunk, manifest)? {
            let bytes = unpacked(chunk, &frame)?;
            let news = blocks(&bytes).filter_map(|block| TranslationNews::from_block(&block));
            news.for_each(|one| found.add(&one));
        }
    }
    Ok(found)
}

/// State of a chunk at a packet.
#[derive(Default)]
struct Reading {
    interfaces: Vec<Interface>,
    /// The number of the place of each interface block, and the numbers by interface and hook.
    places: Vec<u32>,
    numbers: HashMap<(String, Option<String>), u32>,
    processes: Processes,
    frame: usize,
    offset: usize,
}

impl Reading {
    fn describe(&mut self, interface: Interface) {
        let next = self.numbers.len() as u32;
        let hook = interface.hook().map(|hook| place_hook(hook).to_owned());
        self.places.push(*self.numbers.entry((plain_name(&interface).to_owned(), hook)).or_insert(next));
        self.interfaces.push(interface);
    }
}

/// Reads a chunk, and passes its packet blocks on. Fails if the chunk is damaged, or is not what its manifest says.
fn walk_packets(
    chunk: &[u8],
    manifest: &Manifest,
    mut packet: impl FnMut(&Block<'_>, &Reading) -> io::Result<()>,
) -> io::Result<()> {
    let mut at = Reading::default();
    let mut packets = 0;
    for (number, frame) in frames(chunk, manifest)?.iter().enumerate() {
        let bytes = unpacked(chunk, frame)?;
        (at.frame, at.offset) = (number, 0);
        for block in blocks(&bytes) {
            match block.kind {
                INTERFACE_DESCRIPTION => {
                    let interface = Interface::from_block(&block);
                    at.describe(interface.ok_or_else(|| damaged("an interface block is too short"))?);
                }
                ENHANCED_PACKET => {
                    packets += 1;
                    if packets > manifest.recorded {
                        return Err(damaged("it holds more packets than its manifest says"));
                    }
                    packet(&block, &at)?;
                }
                _ => at.processes.add_block(&block),
            }
            at.offset += block.bytes.len();
        }
        if at.offset != bytes.len() {
            return Err(damaged("a frame does not end with a whole block"));
        }
    }
    Ok(())
}

/// The facts about a packet that follow from other packets of its chunk.
struct Context {
    translations: Translations,
    streams: Streams,
    /// The causes that no packet has yet.
    causes: HashMap<i64, String>,
}

impl Context {
    fn of(chunk: &[u8], manifest: &Manifest) -> io::Result<Self> {
        let (translations, causes) = (translations(chunk, manifest)?, causes::of(chunk, manifest)?);
        Ok(Self { translations, streams: Streams::default(), causes })
    }
}

/// Checks that the rows of a chunk can be read.
pub fn check(chunk: &[u8], manifest: &Manifest) -> io::Result<()> {
    translations(chunk, manifest)?;
    walk_packets(chunk, manifest, |block, at| {
        let packet = block.enhanced_packet();
        let interface = packet.and_then(|packet| at.interfaces.get(packet.interface_id as usize));
        interface.map(|_| ()).ok_or_else(|| damaged("a packet block is too short"))
    })
}

/// Reads a chunk, and passes its rows on, some at a time.
pub fn read(
    chunk: &[u8],
    manifest: &Manifest,
    mut pass: impl FnMut(RecordBatch) -> Result<(), ParquetError>,
) -> io::Result<()> {
    let mut context = Context::of(chunk, manifest)?;
    let mut rows = Rows::new(manifest);
    walk_packets(chunk, manifest, |block, at| {
        let added = rows.packet(block, at, &mut context);
        added.ok_or_else(|| damaged("a packet block is too short"))?;
        if rows.len() == BATCH_ROWS {
            let full = std::mem::replace(&mut rows, Rows::new(manifest));
            full.finish().and_then(&mut pass).map_err(io::Error::other)?;
        }
        Ok(())
    })?;
    if rows.len() > 0 {
        rows.finish().and_then(pass).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Returns the index of a chunk, if the chunk can be read.
pub fn file(chunk: &[u8], manifest: &Manifest) -> Option<Vec<u8>> {
    let mut out = Out::new(manifest.recorded).ok()?;
    read(chunk, manifest, |rows| out.write(&rows)).ok()?;
    let (file, _) = out.finish().ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use trawl_packet::pcapng::write::{self, EnhancedPacket};
    use trawl_packet::seekable::Writer;
    use trawl_spool::chunk::SealedChunk;
    use trawl_spool::key::Epoch;
    use trawl_spool::manifest::Origin;

    use super::*;

    /// Returns a chunk of frames with a packet and a block of zeros each, and its manifest.
    fn chunk(frames: usize, zeros: usize, recorded: u64) -> (Vec<u8>, Manifest) {
        let mut writer = Writer::new(Vec::new(), 1);
        let mut first = Vec::new();
        write::interface_description(&mut first, &Interface::default());
        writer.push(&first).unwrap();
        for _ in 0..frames {
            let mut packet = Vec::new();
            let captured = &[0; 64];
            write::enhanced_packet(&mut packet, &EnhancedPacket { captured, ..Default::default() });
            writer.push(&packet).unwrap();
            let length = (zeros + 12) as u32;
            let mut block = vec![0; zeros + 12];
            block[..4].copy_from_slice(&0x0bad_u32.to_le_bytes());
            block[4..8].copy_from_slice(&length.to_le_bytes());
            block[zeros + 8..].copy_from_slice(&length.to_le_bytes());
            writer.push(&block).unwrap();
        }
        let (bytes, _) = writer.finish().unwrap();
        let sealed = SealedChunk {
            sha256: String::new(),
            bytes: bytes.len() as u64,
            uncompressed_bytes: 0,
            recorded,
            interfaces: BTreeMap::new(),
            first_ns: Some(1),
            last_ns: Some(1),
            translations: 0,
        };
        let epoch =
            Epoch { capture: "c".to_owned(), host: "h".to_owned(), boot: "b".to_owned(), epoch: "1".to_owned() };
        let origin = Origin { options: Vec::new(), trawl: String::new() };
        (bytes, sealed.manifest(epoch, 0, origin))
    }

    #[test]
    fn chunk_of_compressed_zeros_is_not_indexed() {
        let rows = |frames, zeros, recorded| {
            let (bytes, manifest) = chunk(frames, zeros, recorded);
            let mut rows = 0;
            let read = read(&bytes, &manifest, |batch| {
                rows += batch.num_rows();
                Ok(())
            });
            assert_eq!(read.is_ok(), check(&bytes, &manifest).is_ok());
            read.ok().map(|()| rows)
        };
        assert_eq!(rows(3, 1 << 10, 3), Some(3));
        // A block may be large.
        assert_eq!(rows(3, 2 << 20, 3), Some(3));
        // 400 MB in 60 kB.
        assert_eq!(rows(20, 20 << 20, 20), None);
        // More packets than the manifest says, and a count that no chunk of this size has.
        assert_eq!(rows(3, 1 << 10, 2), None);
        assert_eq!(rows(3, 1 << 10, 1 << 30), None);
    }
}
