//! The format of a file: encoding of blocks, and positions at which the file may be cut.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use trawl_io::writeback::forget;
use trawl_packet::pcap;
use trawl_packet::pcapng::block::{Block, ENHANCED_PACKET, blocks};
use trawl_pipeline::{Counts, Unit};

/// The format in which blocks are encoded.
#[derive(Clone, Copy, Debug)]
pub enum OutputForm {
    /// Bytes already in the file's format.
    Encoded,
    Pcapng,
    Pcap {
        link_type: u16,
        snaplen: u32,
    },
}

/// Encodes blocks for one file.
#[derive(Debug)]
pub(crate) struct Encoder {
    form: OutputForm,
    /// Bytes not yet written, after the header if the file has not begun.
    out: Vec<u8>,
    header: usize,
}

impl Encoder {
    pub(crate) fn new(form: OutputForm) -> Self {
        let mut out = Vec::new();
        if let OutputForm::Pcap { link_type, snaplen } = form {
            pcap::file_header(&mut out, link_type, snaplen);
        }
        Self { form, header: out.len(), out }
    }

    /// Removes the file's header from the first output and returns it: each reader's stream begins with a copy.
    pub(crate) fn take_header(&mut self) -> Vec<u8> {
        self.header = 0;
        std::mem::take(&mut self.out)
    }

    pub(crate) fn is_pcap(&self) -> bool {
        matches!(self.form, OutputForm::Pcap { .. })
    }

    /// Encodes blocks as pcap records; pcapng needs no encoding.
    pub(crate) fn encode(&mut self, bytes: &[u8]) {
        if self.is_pcap() {
            for block in blocks(bytes) {
                pcap::record_from_block(&mut self.out, &block);
            }
        }
    }

    /// Returns these blocks in the file's format: for pcap the result of the last `encode`, for pcapng the blocks
    /// themselves.
    pub(crate) fn encoded<'b>(&'b self, bytes: &'b [u8]) -> &'b [u8] {
        match self.form {
            OutputForm::Encoded | OutputForm::Pcapng => bytes,
            OutputForm::Pcap { .. } => &self.out,
        }
    }

    /// Returns the units of these encoded blocks.
    pub(crate) fn units(&self, bytes: &[u8]) -> Vec<Unit> {
        if matches!(self.form, OutputForm::Encoded) {
            let whole = Unit { end: bytes.len(), interface: None };
            return vec![whole];
        }
        let mut end = self.header;
        let mut record = Vec::new();
        let unit = |block: Block<'_>| {
            end += match self.form {
                OutputForm::Encoded | OutputForm::Pcapng => block.bytes.len(),
                OutputForm::Pcap { .. } => {
                    record.clear();
                    pcap::record_from_block(&mut record, &block);
                    record.len()
                }
            };
            let interface = block.enhanced_packet().map(|packet| packet.interface_id);
            Unit { end, interface }
        };
        blocks(bytes).map(unit).collect()
    }

    /// Discards the encoded blocks once they are written.
    pub(crate) fn clear(&mut self) {
        self.out.clear();
        self.header = 0;
    }

    /// Returns the number of bytes of a pending header.
    pub(crate) fn waiting(&self) -> usize {
        self.out.len()
    }

    /// Counts the packets in the first `end` bytes of a file, and returns the end of the last one. pcap records name no
    /// interface: the file's first packets are attributed to the first interfaces in `written`.
    pub(crate) fn count_left(&self, path: &str, end: u64, written: &Counts) -> (Counts, u64) {
        match self.form {
            OutputForm::Encoded | OutputForm::Pcapng => count_packets(path, end).unwrap_or_default(),
            OutputForm::Pcap { .. } => {
                let (records, end) = count_records(path, end).unwrap_or_default();
                let mut left = written.clone();
                left.truncate(records);
                (left, end)
            }
        }
    }
}

const SMALLEST_BLOCK: u64 = 12;

/// Opens a file in its state on the disk, without the page cache.
fn open(path: &str) -> io::Result<BufReader<File>> {
    let file = File::open(path)?;
    forget(&file, 0, file.metadata()?.len());
    Ok(BufReader::with_capacity(1 << 20, file))
}

/// Counts the packets of a pcapng file's whole blocks before `end`, and returns the end of the last block.
pub(crate) fn count_packets(path: &str, end: u64) -> io::Result<(Counts, u64)> {
    let mut file = open(path)?;
    let mut counts = Counts::default();
    let mut at = 0;
    let (mut front, mut back) = ([0; 12], [0; 4]);
    while at + SMALLEST_BLOCK <= end {
        file.read_exact(&mut front)?;
        let [kind, length, interface] = words(front);
        let next = at + u64::from(length);
        if u64::from(length) < SMALLEST_BLOCK || !length.is_multiple_of(4) || next > end {
            break;
        }
        // Skips to the length at the block's end, which in the smallest block is part of the front.
        file.seek_relative(i64::from(length) - (front.len() + back.len()) as i64)?;
        file.read_exact(&mut back)?;
        if u32::from_le_bytes(back) != length {
            break;
        }
        if kind == ENHANCED_PACKET {
            counts.add(interface, 1);
        }
        at = next;
    }
    Ok((counts, at))
}

fn words(front: [u8; 12]) -> [u32; 3] {
    [0, 4, 8].map(|at| u32::from_le_bytes([front[at], front[at + 1], front[at + 2], front[at + 3]]))
}

/// Counts the whole records of a pcap file before `end`, and returns the end of the last one.
fn count_records(path: &str, end: u64) -> io::Result<(u64, u64)> {
    const FILE_HEADER: u64 = 24;
    let mut file = open(path)?;
    if end < FILE_HEADER {
        return Ok((0, 0));
    }
    file.seek(SeekFrom::Start(FILE_HEADER))?;
    let (mut count, mut at) = (0, FILE_HEADER);
    let mut header = [0; 16];
    while at + header.len() as u64 <= end {
        file.read_exact(&mut header)?;
        let captured = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        // Space that was never written.
        if header[12..] == [0; 4] {
            break;
        }
        let next = at + header.len() as u64 + u64::from(captured);
        if next > end {
            break;
        }
        file.seek_relative(i64::from(captured))?;
        (count, at) = (count + 1, next);
    }
    Ok((count, at))
}
