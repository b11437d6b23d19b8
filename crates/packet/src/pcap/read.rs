//! Reads the older pcap format, of both byte orders and resolutions.

use std::io::Read;

use super::{
    FILE_HEADER_LEN, MAGIC_MICROSECONDS, MAGIC_MODIFIED, MAGIC_NANOSECONDS,
    MODIFIED_RECORD_HEADER_LEN, RECORD_HEADER_LEN,
};
use crate::pcapng::Interface;
use crate::pcapng::block::{ByteOrder, TSRESOL_NANOSECONDS};
use crate::read::Input;
use crate::read::{FileFormat, Found, OptionsAt, ReadError};

/// Longest packet that is taken for possible: far above any snapshot length in use.
const MAX_PACKET_LEN: u32 = 16 << 20;

/// Bits between the link type and what is said of a frame check sequence.
const RESERVED_OF_LINK_TYPE: u32 = 0x03ff_0000;

const MICROSECONDS: u8 = 6;
const RECORD: &str = "a packet record";

/// What the first four bytes of a pcap file say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Magic {
    order: ByteOrder,
    /// A negative power of ten.
    resolution: u8,
    record_header_len: usize,
}

impl Magic {
    pub fn parse(bytes: [u8; 4]) -> Option<Self> {
        [ByteOrder::Little, ByteOrder::Big]
            .into_iter()
            .find_map(|order| {
                let (resolution, record_header_len) = match order.u32(bytes) {
                    MAGIC_NANOSECONDS => (TSRESOL_NANOSECONDS, RECORD_HEADER_LEN),
                    MAGIC_MICROSECONDS => (MICROSECONDS, RECORD_HEADER_LEN),
                    MAGIC_MODIFIED => (MICROSECONDS, MODIFIED_RECORD_HEADER_LEN),
                    _ => return None,
                };
                Some(Self {
                    order,
                    resolution,
                    record_header_len,
                })
            })
    }
}

/// Which of a record's two lengths comes first. Before version 2.3 it was the original one; writers of 2.3 did either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lengths {
    CapturedFirst,
    OriginalFirst,
    LesserIsCaptured,
}

/// The records after a file header.
pub(crate) struct Records {
    magic: Magic,
    lengths: Lengths,
    nanoseconds_a_tick: u64,
    header: [u8; FILE_HEADER_LEN],
    /// As much of a packet as the file's header announces: libpcap hands on no more, whatever a record holds.
    most_captured: usize,
    /// Length of the record that was handed out last.
    pending: usize,
}

impl Records {
    pub fn byte_order(&self) -> ByteOrder {
        self.magic.order
    }

    pub fn format(&self) -> FileFormat {
        FileFormat::Pcap {
            nanoseconds: self.magic.resolution == TSRESOL_NANOSECONDS,
            modified: self.magic.record_header_len == MODIFIED_RECORD_HEADER_LEN,
        }
    }

    /// The file's header as it is stored.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Reads the file header: where to go on, and the one interface of the file.
    pub fn open<R: Read>(
        input: &mut Input<R>,
        magic: Magic,
    ) -> Result<(Self, Interface), ReadError> {
        let header: [u8; FILE_HEADER_LEN] = input.array("the file's header")?;
        input.consume(FILE_HEADER_LEN);
        let Magic {
            order, resolution, ..
        } = magic;
        let word = |at: usize| order.u32_at(&header, at).unwrap_or_default();
        let half = |at: usize| order.u16_at(&header, at).unwrap_or_default();
        let malformed = |offset, what| Err(ReadError::Malformed { offset, what });
        if word(20) & RESERVED_OF_LINK_TYPE != 0 {
            return malformed(20, "a link type of more than 16 bits");
        }
        if !matches!((half(4), half(6)), (2, 0..=4) | (543, 0)) {
            return malformed(4, "a version of pcap that is not known (2.0 to 2.4 are)");
        }
        let interface = Interface {
            // The upper half, as far as it is not reserved, tells of a frame check sequence at the end of packets.
            link_type: word(20) as u16,
            snaplen: word(16),
            tsresol: resolution,
            ..Interface::default()
        };
        let lengths = match (half(4), half(6)) {
            (2, 0..3) | (543, 0) => Lengths::OriginalFirst,
            (2, 3) => Lengths::LesserIsCaptured,
            _ => Lengths::CapturedFirst,
        };
        let nanoseconds_a_tick = if resolution == MICROSECONDS { 1000 } else { 1 };
        Ok((
            Self {
                magic,
                lengths,
                nanoseconds_a_tick,
                header,
                most_captured: match interface.snaplen {
                    0 => usize::MAX,
                    snaplen => snaplen as usize,
                },
                pending: 0,
            },
            interface,
        ))
    }

    pub fn advance<R: Read>(&mut self, input: &mut Input<R>) -> Result<Option<Found>, ReadError> {
        input.consume(std::mem::take(&mut self.pending));
        if input.fill(1)?.is_empty() {
            return Ok(None);
        }
        let header: [u8; RECORD_HEADER_LEN] = input.array(RECORD)?;
        let order = self.magic.order;
        let field = |at: usize| order.u32_at(&header, at).unwrap_or_default();
        let (seconds, fraction, first, second) = (field(0), field(4), field(8), field(12));
        let (captured_len, original_len) = match self.lengths {
            Lengths::CapturedFirst => (first, second),
            Lengths::OriginalFirst => (second, first),
            Lengths::LesserIsCaptured => (first.min(second), first.max(second)),
        };
        if captured_len > MAX_PACKET_LEN {
            return Err(ReadError::TooLong {
                offset: input.offset(),
                what: RECORD,
                len: captured_len,
                limit: MAX_PACKET_LEN,
            });
        }
        let start = self.magic.record_header_len;
        let end = start + captured_len as usize;
        input.whole(RECORD, end)?;
        self.pending = end;
        let fraction = u64::from(fraction) * self.nanoseconds_a_tick;
        Ok(Some(Found {
            timestamp_ns: u64::from(seconds) * 1_000_000_000 + fraction,
            interface: 0,
            original_len,
            captured: start..start + self.most_captured.min(captured_len as usize),
            options: OptionsAt::None,
        }))
    }
}
