//! Splits a capture's blocks into a sequence of chunks, in a thread of its own.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trawl_packet::pcapng::block::{
    ENHANCED_PACKET, INTERFACE_DESCRIPTION, INTERFACE_STATISTICS, NAME_RESOLUTION, SECTION_HEADER, blocks,
};
use trawl_packet::pcapng::note::{ClockNote, TranslationNews};

use crate::chunk::{OpenChunk, SealedChunk, interface_name};
use crate::key::Epoch;
use crate::manifest::{Fates, Manifest, Origin, State};
use crate::processes::Descriptions;
use crate::spool::Spool;
use crate::translations::Current;
use trawl_plan::outputs::FullSpool;

/// Number of chunk times after which a capture without packets writes an idle manifest, which shows that it is alive:
/// an hour, by default.
const IDLE_CHUNKS: u32 = 60;

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum size of a chunk, compressed.
    pub chunk_bytes: u64,
    pub chunk_time: Duration,
    pub spool_bytes: u64,
    pub full: FullSpool,
}

/// A run's totals.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Number of manifests.
    pub chunks: u64,
    pub recorded: u64,
    /// Recorded packets of each interface.
    pub interfaces: BTreeMap<String, u64>,
    /// Packets that were recorded and then lost because the spool's disk refused them.
    pub refused: u64,
}

#[derive(Debug)]
pub struct Chunker {
    spool: Arc<Spool>,
    epoch: Epoch,
    origin: Origin,
    bounds: Bounds,
    /// Blocks of the section, of interfaces and of names, with which each chunk begins.
    header: Vec<u8>,
    /// Name of each interface block.
    interfaces: Vec<String>,
    processes: Descriptions,
    translations: Current,
    open: Option<OpenChunk>,
    totals: Totals,
    /// Packets counted by the tap, and the part of them that manifests have reported.
    counted: Fates,
    reported: Fates,
    /// Time of the last manifest, or of the start.
    last: Instant,
    /// Error that broke the spool.
    broken: Option<io::Error>,
}

impl Chunker {
    pub fn new(spool: Arc<Spool>, origin: Origin, bounds: Bounds) -> Self {
        Self {
            epoch: spool.target.epoch.clone(),
            spool,
            origin,
            bounds,
            header: Vec::new(),
            interfaces: Vec::new(),
            processes: Descriptions::default(),
            translations: Current::default(),
            open: None,
            totals: Totals::default(),
            counted: Fates::default(),
            reported: Fates::default(),
            last: Instant::now(),
            broken: None,
        }
    }

    pub fn broken(&mut self) -> Option<io::Error> {
        self.broken.as_ref().map(|error| match error.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::new(error.kind(), error.to_string()),
        })
    }

    /// Returns true if the chunker accepts no more blocks.
    pub fn is_full(&self) -> bool {
        self.bounds.full == FullSpool::Stop && self.used() >= self.bounds.spool_bytes
    }

    fn used(&self) -> u64 {
        self.spool.used() + self.open.as_ref().map_or(0, OpenChunk::spooled)
    }

    pub fn add_blocks(&mut self, bytes: &[u8]) {
        for block in blocks(bytes) {
            match block.kind {
                SECTION_HEADER => self.header = block.bytes.to_vec(),
                INTERFACE_DESCRIPTION => {
                    self.header.extend_from_slice(block.bytes);
                    self.interfaces.push(interface_name(&block));
                    self.put_if_open(|chunk| chunk.add_other(&block));
                }
                NAME_RESOLUTION if block.names_addresses() || ClockNote::from_block(&block).is_some() => {
                    self.header.extend_from_slice(block.bytes);
                    self.put_if_open(|chunk| chunk.add_other(&block));
                }
                ENHANCED_PACKET => {
                    let Some(packet) = block.enhanced_packet() else {
                        continue;
                    };
                    self.totals.recorded += 1;
                    if let Some(name) = self.interfaces.get(packet.interface_id as usize) {
                        let count = self.totals.interfaces.entry(name.clone());
                        *count.or_default() += 1;
                    }
                    self.put(|chunk, known| chunk.add_packet(block.bytes, &packet, known));
                }
                INTERFACE_STATISTICS => self.put_if_open(|chunk| chunk.add_other(&block)),
                NAME_RESOLUTION if let Some(news) = TranslationNews::from_block(&block) => {
                    if self.translations.add(&news, block.bytes) {
                        self.put_if_open(|chunk| chunk.add_translation(block.bytes));
                    }
                }
                _ => match self.processes.add(&block) {
                    Some(id) => self.put_if_open(|chunk| chunk.add_process(id, block.bytes)),
                    None => self.put(|chunk, _| chunk.add_other(&block)),
                },
            }
        }
    }

    /// Adds a block to the open chunk, and seals the chunk if it is full.
    fn put(&mut self, into: impl FnOnce(&mut OpenChunk, &Descriptions) -> io::Result<()>) {
        if self.open.is_none() {
            self.open();
        }
        let Some(chunk) = &mut self.open else {
            // The disk refused the chunk; packets are only counted.
            return;
        };
        match into(chunk, &self.processes) {
            Ok(()) if chunk.size() >= self.bounds.chunk_bytes => self.seal(),
            Ok(()) => {}
            Err(error) => self.give_up(error),
        }
    }

    /// Adds a block only if a chunk is open: a later chunk begins with its own copy, or does not need the block.
    fn put_if_open(&mut self, into: impl FnOnce(&mut OpenChunk) -> io::Result<()>) {
        if self.open.is_some() {
            self.put(|chunk, _| into(chunk));
        }
    }

    /// Records an error, after which no more packets are accepted; the packets of the open chunk are lost.
    fn give_up(&mut self, error: io::Error) {
        self.open = None;
        self.remove_part();
        self.broken.get_or_insert(error);
    }

    /// Removes the file of a chunk whose packets count as lost: they would be recovered from it.
    fn remove_part(&self) {
        let _ = fs::remove_file(self.spool.part(self.totals.chunks));
    }

    fn open(&mut self) {
        if self.broken.is_some() {
            return;
        }
        let path = self.spool.part(self.totals.chunks);
        let mut begin = || {
            let mut chunk = OpenChunk::create(&path)?;
            blocks(&self.header).try_for_each(|block| chunk.add_other(&block))?;
            let mut translations = self.translations.begin_chunk();
            translations.try_for_each(|block| chunk.add_translation(block))?;
            Ok(chunk)
        };
        match begin() {
            Ok(chunk) => self.open = Some(chunk),
            Err(error) => self.give_up(error),
        }
    }

    /// Updates the tap's account.
    pub fn set_counts(&mut self, counted: Fates) {
        self.counted = counted;
    }

    /// Returns the time at which the next manifest is due.
    pub fn due(&self) -> Instant {
        match &self.open {
            Some(chunk) => chunk.begun + self.bounds.chunk_time,
            None => self.last + self.bounds.chunk_time * IDLE_CHUNKS,
        }
    }

    pub fn seal_due(&mut self) {
        if self.due() <= Instant::now() {
            self.seal();
        }
        self.evict();
    }

    fn evict(&self) {
        if self.bounds.full == FullSpool::Evict {
            while self.used() > self.bounds.spool_bytes && self.spool.evict_oldest() {}
        }
    }

    /// Seals the open chunk, if there is one.
    pub fn seal_open(&mut self) {
        if self.open.is_some() {
            self.seal();
        }
    }

    fn seal(&mut self) {
        let sequence = self.totals.chunks;
        let unreported = self.totals.recorded - self.reported.recorded;
        let sealed = self.open.take().map(|chunk| chunk.seal(&self.spool.whole(sequence)));
        let (state, sealed) = match sealed {
            Some(Ok(sealed)) => (self.spool.target.state(), sealed),
            Some(Err(error)) => {
                self.remove_part();
                self.broken.get_or_insert(error);
                (State::EvictedSpoolFailed, SealedChunk::default())
            }
            None if unreported > 0 => (State::EvictedSpoolFailed, SealedChunk::default()),
            None => (State::Idle, SealedChunk::default()),
        };
        let recorded = match state {
            State::Stored | State::OnHost => sealed.recorded,
            _ => unreported,
        };
        if state == State::EvictedSpoolFailed {
            self.totals.refused += recorded;
        }
        // The tap's counts may be ahead of the blocks received here.
        let in_all = Fates { recorded: self.totals.recorded, ..self.counted.clone() };
        let of_chunk = sealed.manifest(self.epoch.clone(), sequence, self.origin.clone());
        let manifest =
            Manifest { state, recorded, since_last: in_all.since(&self.reported), in_all: in_all.clone(), ..of_chunk };
        self.reported = in_all;
        self.totals.chunks += 1;
        self.last = Instant::now();
        if let Err(error) = self.spool.add(manifest) {
            self.broken.get_or_insert(error);
        }
        self.evict();
    }

    /// Seals the open chunk, and returns the totals.
    pub fn finish(mut self) -> Totals {
        if self.open.is_some() || self.totals.recorded > self.reported.recorded {
            self.seal();
        }
        self.totals
    }
}
