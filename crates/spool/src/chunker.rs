//! Splits a capture's blocks into one row of chunks for each interface, in a thread of its own.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trawl_packet::pcapng::block::{
    self, ByteOrder, ENHANCED_PACKET, INTERFACE_DESCRIPTION, INTERFACE_STATISTICS, SECTION_HEADER,
    blocks,
};
use trawl_packet::pcapng::options::OptionList;

use crate::chunk::{OpenChunk, SealedChunk};
use crate::key::Epoch;
use crate::manifest::{Fates, InterfaceEnd, Manifest, Origin, State};
use crate::processes::Descriptions;
use crate::spool::Spool;
use trawl_pipeline::plan::FullSpool;

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub chunk_bytes: u64,
    pub chunk_time: Duration,
    pub spool_bytes: u64,
    pub full: FullSpool,
}

/// An interface's row of chunks.
#[derive(Debug)]
struct Row {
    interface: String,
    sequence: u64,
    /// Blocks that describe it, with which each chunk begins.
    described: Vec<u8>,
    blocks: u32,
    open: Option<OpenChunk>,
    /// Packets counted by the tap, and the part of them that manifests have reported.
    counted: Fates,
    reported: Fates,
    recorded: u64,
    /// Packets that the spool's disk refused.
    untaken: u64,
}

#[derive(Debug)]
pub struct Chunker {
    spool: Arc<Spool>,
    epoch: Epoch,
    origin: Origin,
    bounds: Bounds,
    section: Vec<u8>,
    rows: Vec<Row>,
    /// Row and number of each interface block of the capture.
    interfaces: Vec<(usize, u32)>,
    processes: Descriptions,
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
            section: Vec::new(),
            rows: Vec::new(),
            interfaces: Vec::new(),
            processes: Descriptions::default(),
            broken: None,
        }
    }

    pub fn broken(&mut self) -> Option<io::Error> {
        self.broken
            .as_ref()
            .map(|error| match error.raw_os_error() {
                Some(errno) => io::Error::from_raw_os_error(errno),
                None => io::Error::new(error.kind(), error.to_string()),
            })
    }

    /// Returns whether the chunker accepts no more blocks.
    pub fn is_full(&self) -> bool {
        self.bounds.full == FullSpool::Stop && self.used() >= self.bounds.spool_bytes
    }

    fn used(&self) -> u64 {
        let open = self.rows.iter().filter_map(|row| row.open.as_ref());
        self.spool.used() + open.map(OpenChunk::spooled).sum::<u64>()
    }

    pub fn take(&mut self, bytes: &[u8]) {
        for block in blocks(bytes) {
            match block.kind {
                SECTION_HEADER => self.section = block.bytes.to_vec(),
                INTERFACE_DESCRIPTION => self.describe(&block),
                ENHANCED_PACKET | INTERFACE_STATISTICS => self.of_interface(&block),
                _ => {
                    let process = self.processes.add(&block);
                    for row in 0..self.rows.len() {
                        self.put(row, |chunk, _| match process {
                            Some(id) => chunk.process(id, block.bytes),
                            None => chunk.other(block.bytes),
                        });
                    }
                }
            }
        }
    }

    fn describe(&mut self, block: &block::Block<'_>) {
        let options = block.body.get(8..).unwrap_or_default();
        let name = OptionList::new(options, ByteOrder::Little)
            .find(|option| option.code == block::IF_NAME)
            .map_or_else(
                || "unnamed".to_owned(),
                |option| String::from_utf8_lossy(option.value).into_owned(),
            );
        let row = match self.rows.iter().position(|row| row.interface == name) {
            Some(row) => row,
            None => {
                self.rows.push(Row {
                    interface: name,
                    sequence: 0,
                    described: Vec::new(),
                    blocks: 0,
                    open: None,
                    counted: Fates::default(),
                    reported: Fates::default(),
                    recorded: 0,
                    untaken: 0,
                });
                self.rows.len() - 1
            }
        };
        // An open chunk lacks the new block.
        if self.rows[row].open.is_some() {
            self.put(row, |chunk, _| chunk.other(block.bytes));
        }
        let at = &mut self.rows[row];
        self.interfaces.push((row, at.blocks));
        at.blocks += 1;
        at.described.extend_from_slice(block.bytes);
        if at.open.is_none() {
            self.open(row);
        }
    }

    /// Adds a block that begins with its interface's number, which differs in a chunk.
    fn of_interface(&mut self, block: &block::Block<'_>) {
        let number = block.body.first_chunk().map(|n| u32::from_le_bytes(*n));
        let interface_of = number.and_then(|number| self.interfaces.get(number as usize).copied());
        let Some((row, number)) = interface_of else {
            return;
        };
        let mut bytes = block.bytes.to_vec();
        bytes[block::HEADER_LEN..][..4].copy_from_slice(&number.to_le_bytes());
        match block.enhanced_packet() {
            Some(packet) => {
                self.rows[row].recorded += 1;
                self.put(row, |chunk, known| chunk.packet(&bytes, &packet, known));
            }
            None => self.put(row, |chunk, _| chunk.other(&bytes)),
        }
        let open = self.rows[row].open.as_ref();
        if open.is_some_and(|chunk| chunk.uncompressed() >= self.bounds.chunk_bytes) {
            self.seal(row);
            self.open(row);
        }
    }

    fn put(
        &mut self,
        row: usize,
        into: impl FnOnce(&mut OpenChunk, &Descriptions) -> io::Result<()>,
    ) {
        let Some(chunk) = &mut self.rows[row].open else {
            // The disk refused the chunk; packets are only counted.
            return;
        };
        if let Err(error) = into(chunk, &self.processes) {
            self.give_up(row, error);
        }
    }

    /// Closes a row after an error; the open chunk's packets are lost.
    fn give_up(&mut self, row: usize, error: io::Error) {
        self.rows[row].open = None;
        self.broken.get_or_insert(error);
    }

    fn open(&mut self, row: usize) {
        if self.broken.is_some() {
            return;
        }
        let at = &self.rows[row];
        let header = [&self.section[..], &at.described].concat();
        let opened = self
            .spool
            .part(&at.interface, at.sequence)
            .and_then(|path| OpenChunk::create(&path, &header));
        match opened {
            Ok(chunk) => self.rows[row].open = Some(chunk),
            Err(error) => self.give_up(row, error),
        }
    }

    /// Updates the tap's account, by interface.
    pub fn count(&mut self, counts: &HashMap<String, Fates>) {
        for row in &mut self.rows {
            if let Some(fates) = counts.get(&row.interface) {
                row.counted = fates.clone();
            }
        }
    }

    /// Returns the time at which the next chunk is due, with or without packets.
    pub fn due(&self) -> Option<Instant> {
        let begun = self
            .rows
            .iter()
            .filter_map(|row| Some(row.open.as_ref()?.begun));
        begun.min().map(|begun| begun + self.bounds.chunk_time)
    }

    pub fn seal_due(&mut self) {
        let now = Instant::now();
        for row in 0..self.rows.len() {
            let open = self.rows[row].open.as_ref();
            if open.is_some_and(|chunk| chunk.begun + self.bounds.chunk_time <= now) {
                self.seal(row);
                self.open(row);
            }
        }
        if self.bounds.full == FullSpool::Evict {
            while self.used() > self.bounds.spool_bytes && self.spool.evict_oldest() {}
        }
    }

    fn seal(&mut self, row: usize) {
        let at = &mut self.rows[row];
        let sequence = at.sequence;
        let before = at.reported.recorded;
        let sealed = at
            .open
            .take()
            .map(|chunk| chunk.seal(&self.spool.whole(&at.interface, sequence)));
        let (state, sealed) = match sealed {
            Some(Ok(sealed)) => (State::Stored, sealed),
            Some(Err(error)) => {
                self.broken.get_or_insert(error);
                (State::EvictedSpoolFailed, SealedChunk::default())
            }
            None => (State::EvictedSpoolFailed, SealedChunk::default()),
        };
        let at = &mut self.rows[row];
        let recorded = match state {
            State::Stored => sealed.recorded,
            _ => at.recorded - before,
        };
        at.untaken += if state == State::Stored { 0 } else { recorded };
        // The tap's counts may be ahead of the blocks received here.
        let in_all = Fates {
            recorded: at.recorded,
            ..at.counted.clone()
        };
        let of_chunk = sealed.manifest(
            self.epoch.clone(),
            &at.interface,
            sequence,
            self.origin.clone(),
        );
        let manifest = Manifest {
            state,
            recorded,
            since_last: in_all.since(&at.reported),
            in_all: in_all.clone(),
            ..of_chunk
        };
        at.reported = in_all;
        at.sequence += 1;
        if let Err(error) = self.spool.add(manifest) {
            self.broken.get_or_insert(error);
        }
        if self.bounds.full == FullSpool::Evict {
            while self.used() > self.bounds.spool_bytes && self.spool.evict_oldest() {}
        }
    }

    /// Seals all open chunks, and returns each interface's totals.
    pub fn finish(&mut self) -> Vec<InterfaceEnd> {
        for row in 0..self.rows.len() {
            let at = &self.rows[row];
            if at.open.is_some() || at.recorded > at.reported.recorded {
                self.seal(row);
            }
        }
        self.rows
            .iter()
            .map(|row| InterfaceEnd {
                interface: row.interface.clone(),
                chunks: row.sequence,
                recorded: row.recorded,
            })
            .collect()
    }

    /// Returns the packets that were recorded and then lost because the spool's disk refused them.
    pub fn untaken(&self) -> u64 {
        self.rows.iter().map(|row| row.untaken).sum()
    }
}
