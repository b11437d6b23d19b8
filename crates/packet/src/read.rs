//! Reads capture files as a stream: pcapng and pcap, of either byte order, told apart by their
//! first bytes.
//!
//! ```
//! use trawl_packet::read::{CaptureReader, ReadError};
//! fn count(file: impl std::io::Read) -> Result<usize, ReadError> {
//!     let mut reader = CaptureReader::new(file)?;
//!     let mut packets = 0;
//!     while reader.next_packet()?.is_some() {
//!         packets += 1;
//!     }
//!     Ok(packets)
//! }
//! # let empty_pcap = [&0xa1b2c3d4u32.to_le_bytes()[..], &[0; 20]].concat();
//! # assert_eq!(count(&empty_pcap[..]).unwrap(), 0);
//! ```

mod input;

use std::io::Read;
use std::ops::Range;

use crate::pcap;
use crate::pcapng::{self, Interface, block::ByteOrder, options::PacketOptions};
pub(crate) use input::Input;

/// Why a file cannot be read on. What came before is sound and has been delivered.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read the capture file at byte {offset}: {source}")]
    Io { offset: u64, source: std::io::Error },
    #[error("the capture file is empty")]
    Empty,
    #[error("not a capture file: it begins with {0:02x?}; pcapng and pcap files are read")]
    UnknownFormat([u8; 4]),
    #[error(
        "a modified pcap file (magic a1b2cd34, Kuznetzov's patch): not supported; \
         'editcap -F pcapng IN OUT' converts it"
    )]
    ModifiedPcap,
    #[error(
        "the capture file is cut at byte {offset}: {what} should have {expected} bytes, {found} \
         are there; the packets before it are whole"
    )]
    Truncated {
        offset: u64,
        what: &'static str,
        expected: usize,
        found: usize,
    },
    #[error("the capture file is damaged at byte {offset}: {what}")]
    Malformed { offset: u64, what: &'static str },
    #[error(
        "the capture file is damaged at byte {offset}: {what} claims {len} bytes, more than the \
         {limit} that are taken for possible"
    )]
    TooLong {
        offset: u64,
        what: &'static str,
        len: u32,
        limit: u32,
    },
    #[error(
        "the capture file is damaged at byte {offset}: a packet of interface {id}, of which there \
         is no description"
    )]
    UnknownInterface { offset: u64, id: u32 },
}

/// One packet of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Since 1970, whatever units the file has. Zero where the file has no time: simple packets.
    pub timestamp_ns: u64,
    /// Index into [`CaptureReader::interfaces`].
    pub interface: usize,
    /// LINKTYPE_ value of that interface.
    pub link_type: u16,
    /// Of the file, or of the section that it stands in.
    pub byte_order: ByteOrder,
    pub captured: &'a [u8],
    pub original_len: u32,
    pub options: PacketOptions<'a>,
}

/// Where the next packet is in the input's buffer; its borrow begins when it is handed out.
#[derive(Clone)]
pub(crate) struct Found {
    pub timestamp_ns: u64,
    pub interface: usize,
    pub original_len: u32,
    pub captured: Range<usize>,
    pub options: OptionsAt,
}

/// A packet's options, as far as its block type has them.
#[derive(Clone)]
pub(crate) enum OptionsAt {
    None,
    List {
        at: Range<usize>,
        order: ByteOrder,
    },
    /// Of an obsolete packet block: a drop count of its own, and only some of the codes.
    Obsolete {
        at: Range<usize>,
        order: ByteOrder,
        drop_count: Option<u64>,
    },
}

enum Format {
    Pcap(pcap::read::Records),
    Pcapng(pcapng::read::Sections),
}

/// Reads one file. After an error there are no more packets.
pub struct CaptureReader<R> {
    input: Input<R>,
    format: Format,
    interfaces: Vec<Interface>,
    /// The packet that [`CaptureReader::advance`] came to.
    found: Option<Found>,
    failed: bool,
}

impl<R> std::fmt::Debug for CaptureReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureReader")
            .field("interfaces", &self.interfaces)
            .finish_non_exhaustive()
    }
}

impl<R: Read> CaptureReader<R> {
    /// Reads the file's header, no packet yet.
    pub fn new(source: R) -> Result<Self, ReadError> {
        let mut input = Input::new(source);
        let mut interfaces = Vec::new();
        if input.fill(1)?.is_empty() {
            return Err(ReadError::Empty);
        }
        let magic: [u8; 4] = input.array("the file's header")?;
        let format = match pcap::read::Magic::parse(magic) {
            _ if magic == pcapng::block::SECTION_HEADER.to_le_bytes() => {
                Format::Pcapng(pcapng::read::Sections::default())
            }
            Some(pcap::read::Magic::Known { order, resolution }) => {
                let (records, interface) =
                    pcap::read::Records::open(&mut input, order, resolution)?;
                interfaces.push(interface);
                Format::Pcap(records)
            }
            Some(pcap::read::Magic::Modified) => return Err(ReadError::ModifiedPcap),
            None => return Err(ReadError::UnknownFormat(magic)),
        };
        Ok(Self {
            input,
            format,
            interfaces,
            found: None,
            failed: false,
        })
    }

    /// The next packet; `None` at the end.
    pub fn next_packet(&mut self) -> Result<Option<Packet<'_>>, ReadError> {
        Ok(if self.advance()? {
            self.current()
        } else {
            None
        })
    }

    /// Goes to the next packet; false at the end.
    pub fn advance(&mut self) -> Result<bool, ReadError> {
        self.found = None;
        if self.failed {
            return Ok(false);
        }
        let found = match &mut self.format {
            Format::Pcap(records) => records.next(&mut self.input),
            Format::Pcapng(sections) => sections.next(&mut self.input, &mut self.interfaces),
        };
        self.failed = found.is_err();
        self.found = found?;
        Ok(self.found.is_some())
    }

    /// The packet that the reader has come to.
    pub fn current(&self) -> Option<Packet<'_>> {
        self.packet(self.found.as_ref()?)
    }

    /// The interfaces described so far; in pcapng more may follow with later packets.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Of the file, or of the section that is being read.
    pub fn byte_order(&self) -> ByteOrder {
        match &self.format {
            Format::Pcap(records) => records.byte_order(),
            Format::Pcapng(sections) => sections.byte_order(),
        }
    }

    fn packet(&self, found: &Found) -> Option<Packet<'_>> {
        let Found {
            timestamp_ns,
            interface,
            original_len,
            captured,
            options,
        } = found.clone();
        let bytes = self.input.buffered();
        let list = |at, order| {
            Some(pcapng::options::Options::new(
                bytes.get::<Range<_>>(at)?,
                order,
            ))
        };
        let options = match options {
            OptionsAt::None => PacketOptions::default(),
            OptionsAt::List { at, order } => PacketOptions::parse(list(at, order)?),
            OptionsAt::Obsolete {
                at,
                order,
                drop_count,
            } => {
                // Codes above the flags' mean other things here or nothing.
                let PacketOptions {
                    flags, comments, ..
                } = PacketOptions::parse(list(at, order)?);
                PacketOptions {
                    flags,
                    comments,
                    drop_count,
                    ..PacketOptions::default()
                }
            }
        };
        Some(Packet {
            timestamp_ns,
            interface,
            link_type: self.interfaces.get(interface)?.link_type,
            byte_order: self.byte_order(),
            captured: bytes.get(captured)?,
            original_len,
            options,
        })
    }
}
