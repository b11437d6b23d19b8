//! Reads packets of a store by their positions in the index, as one pcapng stream. Only the compressed frames with
//! wanted packets are read, neighbouring ones in one call.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::io::{self, ErrorKind, Read};
use std::rc::Rc;

use object_store::GetRange;
use serde::Deserialize;
use trawl_packet::pcapng::block::{HEADER_LEN, blocks};
use trawl_packet::pcapng::options::PacketOptions;
use trawl_packet::pcapng::processes::Processes;
use trawl_packet::pcapng::write::{self, SectionHeader};
use trawl_packet::pcapng::{Interface, NamedProcess, Process};
use trawl_packet::seekable::{self, FRAME_LEN, Frame};
use trawl_spool::key::Object;
use trawl_spool::manifest::{Manifest, Sealed, State};

use super::on_hosts::{self, Hosts};
use crate::object::remote::{Failure, Store};

/// Position of a packet, as in the index.
#[derive(Clone, Debug, Deserialize)]
pub struct PacketLocation {
    pub chunk: String,
    pub frame: usize,
    pub offset: usize,
    /// Time of the packet, which shows that it is the one of the index.
    pub time_ns: u64,
}

/// Positions that are read ahead, so that neighbouring packets are fetched together.
const AHEAD: usize = 1 << 16;
/// Bytes of decompressed frames kept in memory: at least a frame for each interface of each host.
const HELD: usize = 256 << 20;
/// Compressed bytes read by one call.
const CALL_BYTES: u64 = 8 << 20;
/// Largest gap of unwanted bytes between two frames that costs less than another call.
const GAP_BYTES: u64 = 256 << 10;
/// Bytes at the end of a chunk that contain its seek table: 8,000 frames of 1 MiB.
const TABLE_BYTES: u64 = 64 << 10;
/// Longest seek table: 2 million frames.
const LONGEST_TABLE: usize = 16 << 20;
/// Maximum number of compressed bytes of a frame: no block is longer, and incompressible data grows by less than 1 %.
const LARGEST_FRAME: u32 = 65 << 20;

/// A chunk that packets are fetched from.
struct Chunk {
    key: String,
    host: String,
    /// True if it is fetched from its host.
    is_near: bool,
    frames: Vec<Frame>,
    /// Number in the stream of each interface block met so far.
    interfaces: Vec<u32>,
    /// First frame whose interface blocks have not been read.
    next: usize,
}

/// A decompressed frame, and the processes of its packets.
struct Content {
    bytes: Vec<u8>,
    processes: Processes,
}

/// The host of a process in the stream, and the process's descriptions so far.
struct Described {
    host: String,
    processes: Vec<Process>,
}

/// A pcapng stream of the packets at `locations`, in that order.
pub struct Packets<I> {
    store: Store,
    locations: I,
    ahead: VecDeque<(usize, PacketLocation)>,
    numbers: HashMap<String, usize>,
    chunks: Vec<Result<Chunk, Absent>>,
    /// Connections to the hosts that keep chunks.
    hosts: Option<Box<dyn Hosts>>,
    /// Hosts that did not answer, and are not asked again.
    silent: HashMap<String, String>,
    held: HashMap<(usize, usize), Rc<Content>>,
    held_bytes: usize,
    /// Keys of `held`, the oldest first.
    order: VecDeque<(usize, usize)>,
    interfaces: Vec<Interface>,
    /// The blocks of names so far.
    names: HashSet<Vec<u8>>,
    /// By the process's number.
    described: HashMap<u32, Described>,
    out: Vec<u8>,
    read: usize,
    counts: Rc<std::cell::RefCell<Fetched>>,
}

/// Reason why a chunk's packets are not fetched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Absent {
    /// The store no longer has the chunk.
    Gone,
    /// It stays on this host, which was not asked.
    OnHost(String),
    /// This host has removed it to make room.
    Removed(String),
    /// This host did not answer, for this reason.
    Silent(String, String),
}

/// Progress of a [`Packets`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    pub packets: u64,
    /// Packets in the index that are not fetched.
    pub absent: BTreeMap<Absent, u64>,
    /// Compressed bytes read.
    pub bytes: u64,
    pub calls: u64,
}

impl<I> std::fmt::Debug for Packets<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packets").field("counts", &self.counts).finish_non_exhaustive()
    }
}

fn damaged(chunk: &str, why: impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{chunk}: {why}"))
}

fn unreadable(key: &str, failure: &Failure) -> io::Error {
    io::Error::other(format!("{key}: {failure}"))
}

impl<I: Iterator<Item = io::Result<PacketLocation>>> Packets<I> {
    pub fn new(store: Store, hosts: Option<Box<dyn Hosts>>, locations: I) -> Self {
        let mut out = Vec::new();
        let section = SectionHeader { userappl: Some("trawl store query"), ..SectionHeader::default() };
        write::section_header(&mut out, &section);
        Self {
            store,
            locations,
            ahead: VecDeque::new(),
            numbers: HashMap::new(),
            chunks: Vec::new(),
            hosts,
            silent: HashMap::new(),
            held: HashMap::new(),
            held_bytes: 0,
            order: VecDeque::new(),
            interfaces: Vec::new(),
            names: HashSet::new(),
            described: HashMap::new(),
            out,
            read: 0,
            counts: Rc::default(),
        }
    }

    /// Returns the progress, also for a stream that has been moved.
    pub fn counts(&self) -> Rc<std::cell::RefCell<Fetched>> {
        Rc::clone(&self.counts)
    }

    /// Reads a part of a chunk: from the store, or from this host.
    fn get(&mut self, key: &str, host: Option<&str>, range: GetRange) -> Result<Vec<u8>, Failure> {
        let bytes = match (host, &mut self.hosts) {
            (Some(host), Some(hosts)) => on_hosts::get_range(&mut **hosts, host, key, &range)?,
            _ => self.store.get_range(key, range)?.to_vec(),
        };
        let mut counts = self.counts.borrow_mut();
        counts.bytes += bytes.len() as u64;
        counts.calls += 1;
        Ok(bytes)
    }

    /// Opens a chunk in the store, or on its host if it stays there.
    fn open(&mut self, key: &str) -> io::Result<Result<Chunk, Absent>> {
        let Object::Packets(chunk) = Object::of(key) else {
            return Ok(Err(Absent::Gone));
        };
        let host = chunk.host();
        match self.read_table(key, None) {
            Ok(end) => return self.new_chunk(key, host, false, &end).map(Ok),
            Err(Failure::NotFound) => {}
            Err(failure) => return Err(unreadable(key, &failure)),
        }
        let manifest = self.store.get(&chunk.manifest()).ok();
        let manifest = manifest.and_then(|bytes| Manifest::from_bytes(&bytes).ok());
        if manifest.is_none_or(|manifest| manifest.state != State::OnHost) {
            return Ok(Err(Absent::Gone));
        }
        if self.hosts.is_none() {
            return Ok(Err(Absent::OnHost(host)));
        }
        if let Some(why) = self.silent.get(&host) {
            return Ok(Err(Absent::Silent(host, why.clone())));
        }
        match self.read_table(key, Some(&host)) {
            Ok(end) => self.new_chunk(key, host, true, &end).map(Ok),
            Err(Failure::NotFound) => Ok(Err(Absent::Removed(host))),
            Err(failure) => {
                let why = failure.to_string();
                self.silent.insert(host.clone(), why.clone());
                Ok(Err(Absent::Silent(host, why)))
            }
        }
    }

    /// Reads the end of a chunk, which has its seek table.
    fn read_table(&mut self, key: &str, host: Option<&str>) -> Result<Vec<u8>, Failure> {
        let end = self.get(key, host, GetRange::Suffix(TABLE_BYTES))?;
        match seekable::table_len(&end) {
            Ok(length) if length > LONGEST_TABLE => {
                let why = "its seek table claims more than 2 million frames";
                Err(Failure::Other(why.to_owned()))
            }
            Ok(length) if length > end.len() => self.get(key, host, GetRange::Suffix(length as u64)),
            _ => Ok(end),
        }
    }

    fn new_chunk(&self, key: &str, host: String, is_near: bool, end: &[u8]) -> io::Result<Chunk> {
        Ok(Chunk {
            key: key.to_owned(),
            host,
            is_near,
            frames: seekable::frames(end).map_err(|e| damaged(key, e))?,
            interfaces: Vec::new(),
            next: 0,
        })
    }

    fn chunk_number(&mut self, key: &str) -> io::Result<usize> {
        if let Some(number) = self.numbers.get(key) {
            return Ok(*number);
        }
        let chunk = self.open(key)?;
        let number = self.chunks.len();
        self.chunks.push(chunk);
        self.numbers.insert(key.to_owned(), number);
        Ok(number)
    }

    fn prefetch(&mut self) -> io::Result<()> {
        while self.ahead.len() < AHEAD {
            let Some(location) = self.locations.next() else {
                break;
            };
            let location = location?;
            let number = self.chunk_number(&location.chunk)?;
            self.ahead.push_back((number, location));
        }
        Ok(())
    }

    /// Decompresses a frame, and the frames close after it that will be wanted soon.
    fn decompress_frame(&mut self, number: usize, frame: usize) -> io::Result<Rc<Content>> {
        if let Some(held) = self.held.get(&(number, frame)) {
            return Ok(Rc::clone(held));
        }
        let Ok(chunk) = &self.chunks[number] else {
            return Err(io::Error::other("a chunk is missing"));
        };
        let at = |frame: usize| chunk.frames.get(frame).copied();
        let first = at(frame).ok_or_else(|| damaged(&chunk.key, "has no such frame"))?;
        if first.compressed > LARGEST_FRAME {
            return Err(damaged(&chunk.key, "has a frame of more than 65 MiB"));
        }
        let soon = self.ahead.iter().filter(|(of, _)| *of == number);
        let soon: BTreeSet<usize> = soon.map(|(_, location)| location.frame).collect();
        let mut wanted = vec![(frame, first)];
        let mut end = first.offset + u64::from(first.compressed);
        let mut bytes_held = first.decompressed as usize;
        for next in soon.range(frame + 1..) {
            let Some(next_frame) = at(*next) else { break };
            let next_end = next_frame.offset + u64::from(next_frame.compressed);
            let is_close = next_frame.offset - end <= GAP_BYTES;
            // The bytes are limited, so that the frames do not displace each other.
            bytes_held = bytes_held.saturating_add(next_frame.decompressed as usize);
            if !is_close || next_end - first.offset > CALL_BYTES || bytes_held > HELD / 4 {
                break;
            }
            wanted.push((*next, next_frame));
            end = next_end;
        }
        let key = chunk.key.clone();
        let host = chunk.is_near.then(|| chunk.host.clone());
        let bytes = self.get(&key, host.as_deref(), GetRange::Bounded(first.offset..end));
        let bytes = bytes.map_err(|failure| unreadable(&key, &failure))?;
        for (which, one) in wanted {
            let from = (one.offset - first.offset) as usize;
            let compressed = bytes
                .get(from..from + one.compressed as usize)
                .ok_or_else(|| damaged(&key, "is shorter than its seek table says"))?;
            let bytes = seekable::decompress(&one, compressed).map_err(|e| damaged(&key, e))?;
            let mut processes = Processes::default();
            blocks(&bytes).for_each(|block| processes.add_block(&block));
            self.held_bytes += bytes.len();
            let content = Rc::new(Content { bytes, processes });
            match self.held.insert((number, which), content) {
                Some(before) => self.held_bytes -= before.bytes.len(),
                None => self.order.push_back((number, which)),
            }
            // The wanted frame stays, because it is needed now.
            while self.held_bytes > HELD
                && let Some(at) = self.order.iter().position(|one| *one != (number, frame))
                && let Some(oldest) = self.order.remove(at)
                && let Some(gone) = self.held.remove(&oldest)
            {
                self.held_bytes -= gone.bytes.len();
            }
        }
        let held = self.held.get(&(number, frame));
        held.cloned().ok_or_else(|| damaged(&key, "is not held"))
    }

    /// Returns the number in the stream of a chunk's interface, writing its block before its first packet.
    fn write_interface(&mut self, number: usize, id: usize) -> io::Result<u32> {
        loop {
            let Ok(chunk) = &self.chunks[number] else {
                return Err(io::Error::other("a chunk is missing"));
            };
            if let Some(id) = chunk.interfaces.get(id) {
                return Ok(*id);
            }
            let (next, host) = (chunk.next, chunk.host.clone());
            let content = self.decompress_frame(number, next)?;
            for block in blocks(&content.bytes) {
                if block.names_addresses() && self.names.insert(block.bytes.to_vec()) {
                    self.out.extend_from_slice(block.bytes);
                }
                let Some(mut interface) = Interface::from_block(&block) else {
                    continue;
                };
                let name = interface.name.unwrap_or_default();
                interface.name = Some(format!("{host}:{name}"));
                let found = self.interfaces.iter().position(|known| *known == interface);
                let id = found.unwrap_or(self.interfaces.len());
                if found.is_none() {
                    write::interface_description(&mut self.out, &interface);
                    self.interfaces.push(interface);
                }
                if let Ok(chunk) = &mut self.chunks[number] {
                    chunk.interfaces.push(id as u32);
                }
            }
            if let Ok(chunk) = &mut self.chunks[number] {
                chunk.next += 1;
            }
        }
    }

    /// Writes the next packet; returns false after the last.
    fn write_packet(&mut self) -> io::Result<bool> {
        if self.ahead.is_empty() {
            self.prefetch()?;
        }
        let Some((number, location)) = self.ahead.pop_front() else {
            return Ok(false);
        };
        if let Err(absent) = &self.chunks[number] {
            let counts = &mut *self.counts.borrow_mut();
            *counts.absent.entry(absent.clone()).or_default() += 1;
            return Ok(true);
        }
        let content = self.decompress_frame(number, location.frame)?;
        let bytes = content.bytes.get(location.offset..).unwrap_or_default();
        let found = blocks(bytes)
            .next()
            .and_then(|block| Some((block, block.enhanced_packet()?)))
            .filter(|(_, packet)| packet.timestamp == location.time_ns);
        let (block, packet) =
            found.ok_or_else(|| damaged(&location.chunk, "has another packet than its index says"))?;
        let id = self.write_interface(number, packet.interface_id as usize)?;
        let options = PacketOptions::parse(packet.options());
        let process = content.processes.of_packet(&options, packet.timestamp);
        let mut copy = block.bytes.to_vec();
        copy[HEADER_LEN..][..4].copy_from_slice(&id.to_le_bytes());
        match process.filter(|process| !self.describe(number, process)) {
            Some(process) => {
                write::with_process_in_comment(&mut self.out, &copy, &process.comment());
            }
            None => self.out.extend_from_slice(&copy),
        }
        self.counts.borrow_mut().packets += 1;
        Ok(true)
    }

    /// Describes a process before its first packet. Returns false if the number stands for another host's process:
    /// numbers are unique in a file.
    fn describe(&mut self, number: usize, process: &NamedProcess<'_>) -> bool {
        let host = (self.chunks[number].as_ref()).map_or("", |chunk| &chunk.host);
        let known = self
            .described
            .entry(process.id)
            .or_insert_with(|| Described { host: host.to_owned(), processes: Vec::new() });
        if known.host != host {
            return false;
        }
        if let Some(described) = process.described
            && !known.processes.contains(described)
        {
            write::process(&mut self.out, described);
            known.processes.push(described.clone());
        }
        true
    }
}

impl<I: Iterator<Item = io::Result<PacketLocation>>> Read for Packets<I> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.read == self.out.len() {
            self.out.clear();
            self.read = 0;
        }
        while self.out.len() < FRAME_LEN / 4 && self.write_packet()? {}
        let length = into.len().min(self.out.len() - self.read);
        into[..length].copy_from_slice(&self.out[self.read..self.read + length]);
        self.read += length;
        Ok(length)
    }
}
