//! Buffered bytes of a capture file, the positions of packets in them, and the reasons why reading ends.

use std::io::{ErrorKind, Read};
use std::ops::Range;

use crate::pcapng::block::ByteOrder;

/// Reason why a file cannot be read further. Everything before is intact and was delivered.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read the capture file at byte {offset}: {source}")]
    Io { offset: u64, source: std::io::Error },
    #[error("the capture file is empty")]
    Empty,
    #[error(
        "not a capture file: its first bytes are {:08x}; pcapng and pcap files are read, also compressed by gzip, zstd or lz4",
        u32::from_be_bytes(*.0)
    )]
    UnknownFormat([u8; 4]),
    #[error(
        "the capture file is cut at byte {offset}: {what} should have {expected} bytes, but the file ends after \
         {found}; the packets before it are whole"
    )]
    Truncated { offset: u64, what: &'static str, expected: usize, found: usize },
    #[error("the capture file is damaged at byte {offset}: {what}")]
    Malformed { offset: u64, what: &'static str },
    #[error("the capture file is damaged at byte {offset}: {what} claims {len} bytes, more than the limit of {limit}")]
    TooLong { offset: u64, what: &'static str, len: u32, limit: u32 },
    #[error(
        "the capture file is damaged at byte {offset}: a packet names interface {id}, which the file does not describe"
    )]
    UnknownInterface { offset: u64, id: u32 },
}

impl ReadError {
    /// Returns true if the read failed only because the source has no data yet.
    pub fn would_block(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == std::io::ErrorKind::WouldBlock)
    }
}

/// Defect of a packet's time in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeFlaw {
    /// The time does not fit into 64 bits of nanoseconds since 1970.
    Beyond,
    /// The fraction of a second is a second or more.
    LargeFraction,
}

/// Position of the next packet in the input's buffer, borrowed when the packet is returned.
#[derive(Clone)]
pub(crate) struct Found {
    pub timestamp_ns: u64,
    pub time_flaw: Option<TimeFlaw>,
    pub interface: usize,
    pub original_len: u32,
    pub captured: Range<usize>,
    /// End of the packet's stored bytes: after `captured` if a record is longer than its file's snaplen.
    pub stored_end: usize,
    pub options: OptionsAt,
}

/// A packet's options, as its block type has them.
#[derive(Clone)]
pub(crate) enum OptionsAt {
    None,
    List {
        at: Range<usize>,
        order: ByteOrder,
    },
    /// Options of an obsolete packet block: its own drop count, and only some of the codes.
    Obsolete {
        at: Range<usize>,
        order: ByteOrder,
        drop_count: Option<u64>,
    },
}

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    Pcapng,
    Pcap {
        nanoseconds: bool,
        /// Alexey Kuznetzov's variant with longer record headers.
        modified: bool,
    },
}

impl FileFormat {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pcapng => "pcapng",
            Self::Pcap { modified: true, .. } => "modified pcap",
            Self::Pcap { nanoseconds: true, .. } => "nanosecond pcap",
            Self::Pcap { .. } => "pcap",
        }
    }
}

/// Bytes requested from the source at once. The buffer grows only as bytes arrive, so that a damaged length never
/// causes an allocation of its size.
const CHUNK: usize = 256 << 10;

pub(crate) struct Input<'a> {
    source: Box<dyn Read + Send + 'a>,
    /// Buffer; the bytes from `start` to `end` are read and not yet consumed.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset in the file of the byte at `start`.
    offset: u64,
}

impl<'a> Input<'a> {
    pub fn new(source: Box<dyn Read + Send + 'a>) -> Self {
        Self { source, buffer: Vec::new(), start: 0, end: 0, offset: 0 }
    }

    /// Returns the next `len` bytes; fewer only if the file ends.
    pub fn fill(&mut self, len: usize) -> Result<&[u8], ReadError> {
        while self.end - self.start < len {
            if self.end == self.buffer.len() {
                self.buffer.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
                if self.end + CHUNK > self.buffer.len() {
                    self.buffer.resize(self.end + CHUNK, 0);
                }
            }
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(ReadError::Io { offset: self.offset, source });
                }
            }
        }
        Ok(&self.buffer[self.start..self.end.min(self.start + len)])
    }

    /// Returns exactly the next `len` bytes; `what` names them in the error.
    pub fn whole(&mut self, what: &'static str, len: usize) -> Result<&[u8], ReadError> {
        let offset = self.offset;
        let bytes = self.fill(len)?;
        if bytes.len() < len {
            return Err(ReadError::Truncated { offset, what, expected: len, found: bytes.len() });
        }
        Ok(bytes)
    }

    /// Returns the next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], ReadError> {
        let offset = self.offset;
        let bytes = self.fill(N)?;
        let cut = ReadError::Truncated { offset, what, expected: N, found: bytes.len() };
        bytes.first_chunk().copied().ok_or(cut)
    }

    /// Consumes a record of `len` bytes, which were filled before.
    pub fn consume(&mut self, len: usize) {
        self.start += len;
        self.offset += len as u64;
    }

    /// Returns the offset of the current record in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the buffered bytes from the start of the current record on.
    pub fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }
}
