//! A store of chunks without an index, made by tests.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use trawl_packet::build::{Ipv4, Layer, Template};
use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::block::blocks;
use trawl_packet::pcapng::write::{self, EnhancedPacket};
use trawl_spool::chunk::{OpenChunk, SealedChunk};
use trawl_spool::key::{self, Epoch};
use trawl_spool::manifest::{Origin, Sealed};
use trawl_spool::processes::Descriptions;

/// 2026-11-30, in nanoseconds since 1970.
const FIRST_NS: u64 = 1_796_000_000_000_000_000;

/// A store in a directory, removed after the test.
pub struct Stored(pub PathBuf);

impl Stored {
    pub fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("trawl-index-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        Self(directory)
    }

    fn write(&self, key: &str, bytes: &[u8]) {
        let path = self.0.join(key);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("a directory");
        fs::write(path, bytes).expect("a file");
    }

    /// Stores a chunk with its manifest and its mark.
    pub fn put(&self, sealed: &SealedChunk, chunk: &[u8], sequence: u64) {
        let epoch = Epoch { capture: "c".into(), host: "h".into(), boot: "b".into(), epoch: "1".into() };
        let origin = Origin { options: Vec::new(), trawl: String::new() };
        let manifest = sealed.clone().manifest(epoch, sequence, origin);
        self.write(&manifest.key().packets(), chunk);
        self.write(&manifest.key().manifest(), &manifest.to_bytes());
        self.write(&key::mark(&manifest.key().manifest()), &[]);
    }

    /// Makes a chunk of packets of this many TCP connections.
    pub fn chunk(&self, connections: u32) -> (SealedChunk, Vec<u8>) {
        let path = self.0.join("chunk");
        let mut chunk = OpenChunk::create(&path).expect("a file");
        let known = Descriptions::default();
        let mut bytes = Vec::new();
        write::interface_description(&mut bytes, &Interface::default());
        blocks(&bytes).for_each(|block| chunk.add_other(&block).expect("a disk"));
        let link = Template::new().ethernet([2; 6], [4; 6]);
        let ip = Ipv4::new(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let mut frame = link.layer(Layer::Ipv4(ip)).build();
        // TCP, with a header of 20 bytes and some payload.
        frame.truncate(14 + 20);
        frame[14 + 9] = 6;
        frame.extend([0; 12]);
        frame.extend([5 << 4, 0x10, 0, 0, 0, 0, 0, 0]);
        frame.extend([7; 8]);
        let length = u16::try_from(frame.len() - 14).expect("a short packet");
        frame[16..18].copy_from_slice(&length.to_be_bytes());
        for connection in 0..connections {
            let source = 0x0a00_0000 + connection;
            frame[26..30].copy_from_slice(&source.to_be_bytes());
            let timestamp_ns = FIRST_NS + u64::from(connection) * 1000;
            let original_len = frame.len() as u32;
            bytes.clear();
            let packet = EnhancedPacket { timestamp_ns, captured: &frame, original_len, ..EnhancedPacket::default() };
            write::enhanced_packet(&mut bytes, &packet);
            for block in blocks(&bytes) {
                let packet = block.enhanced_packet().expect("a packet");
                chunk.add_packet(block.bytes, &packet, &known).expect("a disk");
            }
        }
        let sealed = chunk.seal(&path).expect("a disk");
        let bytes = fs::read(&path).expect("a file");
        fs::remove_file(&path).expect("a file");
        (sealed, bytes)
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
