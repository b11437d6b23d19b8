//! Pipes, terminals and sockets: pcapng blocks as they are, or pcap record by record.

use std::fs::File;

use trawl_packet::pcap;
use trawl_packet::pcapng::block::blocks;
use trawl_sys::Result;
use trawl_tap::sink::Sink;
use trawl_tap::stream::{End, Stream};

/// A pipe that pcapng goes into.
#[derive(Debug)]
pub struct PcapngStream(Stream);

impl PcapngStream {
    pub fn new(file: File, name: String) -> Self {
        Self(Stream::new(file, name))
    }
}

impl Sink for PcapngStream {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.put(bytes, bytes, || {
            let mut end = 0;
            let whole = blocks(bytes).map(|block| {
                end += block.bytes.len();
                (end, end)
            });
            whole.collect()
        })
    }

    fn take_unwritten(&mut self) -> Vec<u8> {
        self.0.take_unwritten()
    }

    fn stream(&mut self) -> Option<&mut Stream> {
        Some(&mut self.0)
    }
}

/// A pipe that pcap goes into.
#[derive(Debug)]
pub struct PcapStream {
    stream: Stream,
    records: Vec<u8>,
}

impl PcapStream {
    pub fn new(file: File, name: String, link_type: u16, snaplen: u32) -> Self {
        let mut records = Vec::new();
        pcap::file_header(&mut records, link_type, snaplen);
        Self {
            stream: Stream::new(file, name),
            records,
        }
    }
}

impl Sink for PcapStream {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut ends: Vec<End> = Vec::new();
        let mut taken = 0;
        for block in blocks(bytes) {
            pcap::record_from_block(&mut self.records, &block);
            taken += block.bytes.len();
            ends.push((self.records.len(), taken));
        }
        let result = self.stream.put(&self.records, bytes, || ends);
        self.records.clear();
        result
    }

    fn take_unwritten(&mut self) -> Vec<u8> {
        self.stream.take_unwritten()
    }

    fn stream(&mut self) -> Option<&mut Stream> {
        Some(&mut self.stream)
    }
}
