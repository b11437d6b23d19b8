//! Reads capture files as a stream: pcapng and pcap, of either byte order, recognised by their first bytes.
//!
//! ```
//! use trawl_packet::read::{CaptureReader, ReadError};
//! fn count(file: impl std::io::Read + Send) -> Result<usize, ReadError> {
//!     let mut reader = CaptureReader::new(file)?;
//!     let mut packets = 0;
//!     while reader.next_packet()?.is_some() {
//!         packets += 1;
//!     }
//!     Ok(packets)
//! }
//! # let empty_pcap = [&0xa1b2c3d4u32.to_le_bytes()[..], &[2, 0, 4, 0], &[0; 16]].concat();
//! # assert_eq!(count(&empty_pcap[..]).unwrap(), 0);
//! ```

pub mod compressed;

use std::io::Read;
use std::ops::Range;

pub use crate::input::{FileFormat, ReadError};
use crate::input::{Found, Input, OptionsAt, TimeFlaw};
use crate::pcap;
use crate::pcapng::block::{self, ByteOrder};
use crate::pcapng::note::{ClockNote, Note};
use crate::pcapng::options::{PacketOptions, Section, body, remark};
use crate::pcapng::processes::Processes;
use crate::pcapng::{self, Interface};

/// A packet of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Nanoseconds since 1970. Zero for simple packets, which have no time.
    pub timestamp_ns: u64,
    /// Index into [`CaptureReader::interfaces`].
    pub interface: usize,
    /// LINKTYPE_ value of that interface.
    pub link_type: u16,
    /// Byte order of the file, or of the packet's section.
    pub byte_order: ByteOrder,
    pub captured: &'a [u8],
    pub original_len: u32,
    pub options: PacketOptions<'a>,
}

/// Item that a reader has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A packet, see [`CaptureReader::current`].
    Packet,
    /// A block without a packet, see [`CaptureReader::raw`].
    Block { kind: u32 },
}

enum Format {
    Pcap(pcap::Records),
    Pcapng(pcapng::read::Sections),
}

/// Reads one file. An error ends its packets.
pub struct CaptureReader<'a> {
    input: Input<'a>,
    format: Format,
    interfaces: Vec<Interface>,
    processes: Processes,
    monotonic_offset: Option<u64>,
    /// Prefix of interface names.
    host: Option<String>,
    /// The packet that [`CaptureReader::advance`] reached.
    found: Option<Found>,
    times_beyond: u64,
    fractions_too_large: u64,
    failed: bool,
}

impl std::fmt::Debug for CaptureReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureReader").field("interfaces", &self.interfaces).finish_non_exhaustive()
    }
}

impl<'a> CaptureReader<'a> {
    /// Reads the file's header, but no packet yet.
    pub fn new(source: impl Read + Send + 'a) -> Result<Self, ReadError> {
        let mut input = Input::new(Box::new(source));
        let mut interfaces = Vec::new();
        if input.fill(1)?.is_empty() {
            return Err(ReadError::Empty);
        }
        let magic: [u8; 4] = input.array("the file's header")?;
        let format = match pcap::Magic::parse(magic) {
            _ if magic == pcapng::block::SECTION_HEADER.to_le_bytes() => {
                Format::Pcapng(pcapng::read::Sections::default())
            }
            Some(magic) => {
                let (records, interface) = pcap::Records::open(&mut input, magic)?;
                interfaces.push(interface);
                Format::Pcap(records)
            }
            None => return Err(ReadError::UnknownFormat(magic)),
        };
        Ok(Self {
            input,
            format,
            interfaces,
            processes: Processes::default(),
            monotonic_offset: None,
            host: None,
            found: None,
            times_beyond: 0,
            fractions_too_large: 0,
            failed: false,
        })
    }

    /// Names the interfaces that are read next HOST:NAME, because hosts of one capture may have interfaces of the same
    /// name.
    pub fn name_host(&mut self, host: String) {
        self.host = Some(host);
    }

    /// Returns true if interface names have the host as a prefix, and so differ from the stored ones.
    pub fn names_host(&self) -> bool {
        self.host.is_some()
    }

    /// Returns the next packet; `None` at the end.
    pub fn next_packet(&mut self) -> Result<Option<Packet<'_>>, ReadError> {
        Ok(if self.advance()? { self.current() } else { None })
    }

    /// Advances to the next packet; false at the end.
    pub fn advance(&mut self) -> Result<bool, ReadError> {
        loop {
            match self.step()? {
                Some(Step::Packet) => return Ok(true),
                Some(Step::Block { .. }) => {}
                None => return Ok(false),
            }
        }
    }

    /// Advances to the next packet, or to the next block of another type; `None` at the end.
    ///
    /// A source that would block returns [`std::io::ErrorKind::WouldBlock`], and the next call tries again. Any other error
    /// is final.
    pub fn step(&mut self) -> Result<Option<Step>, ReadError> {
        self.found = None;
        if self.failed {
            return Ok(None);
        }
        let described = self.interfaces.len();
        let step = match &mut self.format {
            Format::Pcap(records) => {
                records.advance(&mut self.input).map(|found| found.map(pcapng::read::Step::Packet))
            }
            Format::Pcapng(sections) => sections.advance(&mut self.input, &mut self.interfaces),
        };
        if let Some(host) = &self.host {
            for interface in self.interfaces.iter_mut().skip(described) {
                let name = interface.name.as_deref().unwrap_or_default();
                interface.name = Some(format!("{host}:{name}"));
            }
        }
        self.failed = step.as_ref().is_err_and(|error| !error.would_block());
        Ok(match step? {
            Some(pcapng::read::Step::Packet(found)) => {
                match found.time_flaw {
                    Some(TimeFlaw::Beyond) => self.times_beyond += 1,
                    Some(TimeFlaw::LargeFraction) => self.fractions_too_large += 1,
                    None => {}
                }
                self.found = Some(found);
                Some(Step::Packet)
            }
            Some(pcapng::read::Step::Other { kind }) => {
                self.note_block(kind);
                Some(Step::Block { kind })
            }
            None => None,
        })
    }

    /// Notes facts of a block that later packets refer to.
    fn note_block(&mut self, kind: u32) {
        let Format::Pcapng(sections) = &self.format else {
            return;
        };
        let raw = self.input.buffered().get(..sections.pending()).unwrap_or_default();
        let order = sections.byte_order();
        match kind {
            block::SECTION_HEADER => {
                let section = Section::parse(raw, order);
                let mut notes = section.comments.iter().filter_map(|comment| ClockNote::parse(comment));
                self.monotonic_offset = notes.next().map(|note| note.monotonic_offset);
            }
            // A section without an offset may hold the packets of several hosts.
            block::NAME_RESOLUTION if self.monotonic_offset.is_some() => {
                let note = remark(body(raw), order).and_then(|comment| ClockNote::parse(&comment));
                self.monotonic_offset = note.map(|note| note.monotonic_offset).or(self.monotonic_offset);
            }
            _ => {
                let body = raw.get(block::HEADER_LEN..).unwrap_or_default();
                self.processes.add(kind, body, order);
            }
        }
    }

    /// Returns the nanoseconds to add to the monotonic clock of the section's host, modulo 2^64, to get the time stamps
    /// of the current packet; `None` for a section of several hosts or of another program.
    pub fn monotonic_offset(&self) -> Option<u64> {
        self.monotonic_offset
    }

    /// Returns the processes described so far.
    pub fn processes(&self) -> &Processes {
        &self.processes
    }

    /// Returns the current packet.
    pub fn current(&self) -> Option<Packet<'_>> {
        self.packet(self.found.as_ref()?)
    }

    /// Returns the current packet's bytes and original length alone.
    pub fn captured(&self) -> Option<(&[u8], u32)> {
        let found = self.found.as_ref()?;
        let bytes = self.input.buffered().get(found.captured.clone())?;
        Some((bytes, found.original_len))
    }

    /// Returns all bytes that the file holds of the packet: more than [`Packet::captured`] if a pcap record is longer
    /// than its file's snaplen, which limits the bytes that libpcap passes on.
    pub fn stored(&self) -> Option<&[u8]> {
        let found = self.found.as_ref()?;
        let at = found.captured.start..found.stored_end;
        self.input.buffered().get(at)
    }

    /// Returns time and interface of the current packet.
    pub fn time_and_interface(&self) -> Option<(u64, usize)> {
        let found = self.found.as_ref()?;
        Some((found.timestamp_ns, found.interface))
    }

    /// Returns the number of packets whose times are before 1970 or after 2554, and were clamped.
    pub fn times_beyond(&self) -> u64 {
        self.times_beyond
    }

    /// Returns the number of packets of a pcap file whose fraction of a second is a second or more.
    pub fn fractions_too_large(&self) -> u64 {
        self.fractions_too_large
    }

    /// Returns the current record or block as stored.
    pub fn raw(&self) -> &[u8] {
        let len = match &self.format {
            Format::Pcap(records) => records.pending(),
            Format::Pcapng(sections) => sections.pending(),
        };
        self.input.buffered().get(..len).unwrap_or_default()
    }

    /// Returns the header and the packet of a pcap record, without a variant's bytes in between that the file's header
    /// does not show; `None` for pcapng.
    pub fn pcap_record(&self) -> Option<[&[u8]; 2]> {
        match &self.format {
            Format::Pcap(records) => Some(records.parts(self.raw())),
            Format::Pcapng(_) => None,
        }
    }

    /// Returns the header of a pcap file as stored; `None` for pcapng, where headers are blocks.
    pub fn pcap_header(&self) -> Option<&[u8]> {
        match &self.format {
            Format::Pcap(records) => Some(records.header()),
            Format::Pcapng(_) => None,
        }
    }

    pub fn format(&self) -> FileFormat {
        match &self.format {
            Format::Pcap(records) => records.format(),
            Format::Pcapng(_) => FileFormat::Pcapng,
        }
    }

    /// Returns the index of the current section's first interface among [`CaptureReader::interfaces`].
    pub fn first_interface(&self) -> usize {
        match &self.format {
            Format::Pcap(_) => 0,
            Format::Pcapng(sections) => sections.first_interface(),
        }
    }

    /// Returns the interfaces described so far; in pcapng more may follow with later packets.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Returns the byte order of the file, or of the current section.
    pub fn byte_order(&self) -> ByteOrder {
        match &self.format {
            Format::Pcap(records) => records.byte_order(),
            Format::Pcapng(sections) => sections.byte_order(),
        }
    }

    fn packet(&self, found: &Found) -> Option<Packet<'_>> {
        let Found { timestamp_ns, time_flaw: _, interface, original_len, captured, stored_end: _, options } =
            found.clone();
        let bytes = self.input.buffered();
        let list = |at, order| Some(pcapng::block::OptionList::new(bytes.get::<Range<_>>(at)?, order));
        let options = match options {
            OptionsAt::None => PacketOptions::default(),
            OptionsAt::List { at, order } => PacketOptions::parse(list(at, order)?),
            OptionsAt::Obsolete { at, order, drop_count } => {
                // In these blocks, codes above the flags' have other meanings or none.
                let PacketOptions { flags, comments, .. } = PacketOptions::parse(list(at, order)?);
                PacketOptions { flags, comments, drop_count, ..PacketOptions::default() }
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
