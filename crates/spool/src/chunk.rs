//! A chunk that is being written: a pcapng file in the spool, compressed as it grows.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use sha2::{Digest, Sha256};
use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::block::{self, Block, EnhancedPacket};
use trawl_packet::seekable;
use trawl_sys::clock;

use crate::key::Epoch;
use crate::manifest::{Clock, FORMAT, Fates, Manifest, Origin, State, hex};
use crate::processes::Descriptions;

const LEVEL: i32 = 1;

/// Writes to a file and hashes the written bytes.
#[derive(Debug)]
struct HashedFile {
    file: File,
    digest: Sha256,
}

impl Write for HashedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.digest.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[derive(Debug)]
pub struct OpenChunk {
    path: PathBuf,
    writer: seekable::Writer<HashedFile>,
    pub begun: Instant,
    pub recorded: u64,
    pub first_ns: Option<u64>,
    pub last_ns: Option<u64>,
    /// Name of each interface block, and its packets.
    interfaces: Vec<(String, u64)>,
    /// Number of the current frame, and the processes that it describes.
    frame: usize,
    described: HashSet<u32>,
    translations: u64,
}

/// A finished chunk on the disk.
#[derive(Clone, Debug, Default)]
pub struct SealedChunk {
    pub sha256: String,
    pub bytes: u64,
    pub uncompressed_bytes: u64,
    pub recorded: u64,
    pub interfaces: BTreeMap<String, u64>,
    pub first_ns: Option<u64>,
    pub last_ns: Option<u64>,
    pub translations: u64,
}

impl SealedChunk {
    /// Makes the manifest of this chunk, sealed now. Its counts are the chunk's own.
    pub fn manifest(self, epoch: Epoch, sequence: u64, origin: Origin) -> Manifest {
        let fates = Fates { recorded: self.recorded, ..Fates::default() };
        Manifest {
            format: FORMAT,
            epoch,
            sequence,
            state: State::Stored,
            sha256: self.sha256,
            bytes: self.bytes,
            uncompressed_bytes: self.uncompressed_bytes,
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            sealed_ns: clock::wall(),
            sealed_boot_ns: Some(clock::since_boot()),
            translations: self.translations,
            recorded: self.recorded,
            interfaces: self.interfaces,
            since_last: fates.clone(),
            in_all: fates,
            clock: Clock::now(),
            origin,
            recovered: false,
            seal: String::new(),
        }
    }
}

impl OpenChunk {
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = trawl_sys::files::create::new_file(path, 0o600)?;
        let writer = seekable::Writer::new(HashedFile { file, digest: Sha256::new() }, LEVEL);
        Ok(Self {
            path: path.to_owned(),
            writer,
            begun: Instant::now(),
            recorded: 0,
            first_ns: None,
            last_ns: None,
            interfaces: Vec::new(),
            frame: 0,
            described: HashSet::new(),
            translations: 0,
        })
    }

    /// Adds a packet's block, in a frame that describes its process. `packet` is its contents.
    pub fn add_packet(&mut self, block: &[u8], packet: &EnhancedPacket<'_>, known: &Descriptions) -> io::Result<()> {
        if let Some((id, descriptions)) = known.of(packet) {
            let length: usize = descriptions.iter().map(Vec::len).sum();
            self.make_room(length + block.len())?;
            if self.described.insert(id) {
                for description in descriptions {
                    self.writer.push(description)?;
                }
            }
        }
        let time_ns = packet.timestamp;
        self.recorded += 1;
        if let Some((_, count)) = self.interfaces.get_mut(packet.interface_id as usize) {
            *count += 1;
        }
        self.first_ns = Some(self.first_ns.map_or(time_ns, |first| first.min(time_ns)));
        self.last_ns = self.last_ns.max(Some(time_ns));
        self.writer.push(block)
    }

    /// Adds another description of a process, if packets of the current frame have this process.
    pub fn add_process(&mut self, id: u32, description: &[u8]) -> io::Result<()> {
        self.make_room(description.len())?;
        if self.described.contains(&id) { self.writer.push(description) } else { Ok(()) }
    }

    fn make_room(&mut self, length: usize) -> io::Result<()> {
        let frame = self.writer.make_room(length)?;
        if std::mem::replace(&mut self.frame, frame) != frame {
            self.described.clear();
        }
        Ok(())
    }

    /// Adds the block of a translated connection.
    pub fn add_translation(&mut self, block: &[u8]) -> io::Result<()> {
        self.translations += 1;
        self.writer.push(block)
    }

    /// Adds a block of any other type.
    pub fn add_other(&mut self, block: &Block<'_>) -> io::Result<()> {
        if block.kind == block::INTERFACE_DESCRIPTION {
            self.interfaces.push((interface_name(block), 0));
        }
        self.writer.push(block.bytes)
    }

    /// Returns the maximum size of the chunk if it were sealed now.
    pub fn size(&self) -> u64 {
        self.writer.written() + self.writer.pending()
    }

    /// Returns the number of bytes in the spool so far.
    pub fn spooled(&self) -> u64 {
        self.writer.written()
    }

    /// Flushes the file to the disk and renames it.
    pub fn seal(self, to: &Path) -> io::Result<SealedChunk> {
        let uncompressed_bytes = self.writer.pushed();
        let mut interfaces = BTreeMap::new();
        for (name, count) in self.interfaces.into_iter().filter(|(_, count)| *count > 0) {
            *interfaces.entry(name).or_default() += count;
        }
        let (summed, bytes) = self.writer.finish()?;
        summed.file.sync_all()?;
        std::fs::rename(&self.path, to)?;
        Ok(SealedChunk {
            sha256: hex(&summed.digest.finalize()),
            bytes,
            uncompressed_bytes,
            recorded: self.recorded,
            interfaces,
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            translations: self.translations,
        })
    }
}

/// Name of an interface whose block has none.
pub const UNNAMED: &str = "unnamed";

/// Returns the name in an interface block.
pub fn interface_name(block: &Block<'_>) -> String {
    let interface = Interface::from_block(block);
    let name = interface.and_then(|interface| interface.name);
    name.unwrap_or_else(|| UNNAMED.to_owned())
}

#[cfg(test)]
mod tests {
    use trawl_packet::pcapng::block::blocks;
    use trawl_packet::pcapng::options::PacketOptions;
    use trawl_packet::pcapng::processes::Processes;
    use trawl_packet::pcapng::{PacketProcess, Process, write};

    use super::*;

    #[test]
    fn each_frame_describes_its_processes() {
        let directory = std::env::temp_dir();
        let path = directory.join(format!("trawl-chunk-{}", std::process::id()));
        let mut chunk = OpenChunk::create(&path).expect("a file");
        let mut known = Descriptions::default();
        let mut block = Vec::new();
        for number in 0..3000_u32 {
            let id = 1 + number % 7;
            // A new program from time to time.
            if number % 100 < 7 {
                block.clear();
                write::process(
                    &mut block,
                    &Process {
                        id,
                        name: Some(format!("program-{}", number / 100)),
                        start_ns: Some(number.into()),
                        ..Process::default()
                    },
                );
                let described = blocks(&block).next().expect("a block");
                let id = known.add(&described).expect("a process");
                chunk.add_process(id, &block).expect("a disk");
            }
            block.clear();
            write::enhanced_packet(
                &mut block,
                &write::EnhancedPacket {
                    timestamp_ns: number.into(),
                    captured: &[0; 1000],
                    original_len: 1000,
                    process: Some(PacketProcess { id, thread: 0 }),
                    ..write::EnhancedPacket::default()
                },
            );
            let packet = blocks(&block).next().and_then(|one| one.enhanced_packet()).expect("a packet");
            chunk.add_packet(&block, &packet, &known).expect("a disk");
        }
        chunk.seal(&path).expect("a disk");
        let file = std::fs::read(&path).expect("a file");
        std::fs::remove_file(&path).expect("a file");
        let frames = seekable::frames(&file).expect("a table");
        assert!(frames.len() > 2, "{}", frames.len());
        let mut packets = 0;
        for frame in frames {
            let from = frame.offset as usize;
            let compressed = &file[from..from + frame.compressed as usize];
            let bytes = seekable::decompress(&frame, compressed).expect("a frame");
            let mut processes = Processes::default();
            for block in blocks(&bytes) {
                processes.add_block(&block);
                let Some(packet) = block.enhanced_packet() else {
                    continue;
                };
                let options = PacketOptions::parse(packet.options());
                let process = processes.of_packet(&options, packet.timestamp);
                // The last program that began in this process.
                let (time, slot) = (packet.timestamp, packet.timestamp % 7);
                let began = (0..=time).rev().find(|at| at % 100 < 7 && at % 7 == slot);
                let expected = format!("program-{}", began.expect("one began") / 100);
                assert_eq!(process.and_then(|one| one.name), Some(&*expected), "{time}");
                packets += 1;
            }
        }
        assert_eq!(packets, 3000);
    }
}
