//! The older pcap format: one interface, no options, nanosecond timestamps.

use std::cmp::Ordering;

use crate::input::{FileFormat, Found, Input, OptionsAt, ReadError, TimeFlaw};
use crate::pcapng::Interface;
use crate::pcapng::block::{Block, ByteOrder, EnhancedPacket, LINKTYPE_ETHERNET, LINKTYPE_NULL, TSRESOL_NANOSECONDS};

/// Magic of a file with nanoseconds.
pub const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Magic of a file with microseconds.
pub const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
/// Magic of Alexey Kuznetzov's variant, written by old Linux distributions' tcpdump: longer record headers,
/// microseconds.
pub const MAGIC_MODIFIED: u32 = 0xa1b2_cd34;

pub const FILE_HEADER_LEN: usize = 24;
pub const RECORD_HEADER_LEN: usize = 16;
/// Length of a record header with the interface's index, the protocol and the packet's type after the usual fields.
pub const MODIFIED_RECORD_HEADER_LEN: usize = 24;

const NANOSECONDS: u64 = 1_000_000_000;

/// Appends a file header. `snaplen` 0 is stored as libpcap's maximum, which readers treat as none.
pub fn file_header(out: &mut Vec<u8>, link_type: u16, snaplen: u32) {
    const MAX_SNAPLEN: u32 = 262_144;
    let snaplen = if snaplen == 0 { MAX_SNAPLEN } else { snaplen };
    out.extend_from_slice(&MAGIC_NANOSECONDS.to_le_bytes());
    out.extend_from_slice(&2u16.to_le_bytes());
    out.extend_from_slice(&4u16.to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&snaplen.to_le_bytes());
    out.extend_from_slice(&u32::from(link_type).to_le_bytes());
}

/// Appends a record. Seconds past 2106 wrap, as the field does: the caller refuses such times.
pub fn record(out: &mut Vec<u8>, timestamp_ns: u64, captured: &[u8], original_len: u32) {
    for field in
        [(timestamp_ns / NANOSECONDS) as u32, (timestamp_ns % NANOSECONDS) as u32, captured.len() as u32, original_len]
    {
        out.extend_from_slice(&field.to_le_bytes());
    }
    out.extend_from_slice(captured);
}

/// Appends a nanosecond Enhanced Packet Block as a record. Returns false and appends nothing if the block is not one.
pub fn record_from_block(out: &mut Vec<u8>, block: &Block<'_>) -> bool {
    let Some(EnhancedPacket { timestamp, captured, original_len, .. }) = block.enhanced_packet() else {
        return false;
    };
    record(out, timestamp, captured, original_len);
    true
}

/// Longest plausible packet: far above any snapshot length in use.
const MAX_PACKET_LEN: u32 = 16 << 20;

/// Bits between the link type and the length of a frame check sequence.
const RESERVED_OF_LINK_TYPE: u32 = 0x03ff_0000;

const LINKTYPE_TOKEN_RING: u16 = 6;
const LINKTYPE_FDDI: u16 = 10;
const MICROSECONDS: u8 = 6;
const RECORD: &str = "a packet record";

/// Lengths of record headers in files with the usual magic: the usual one, Nokia's, and Red Hat 6.1's.
const USUAL_HEADERS: &[usize] = &[RECORD_HEADER_LEN, 20, MODIFIED_RECORD_HEADER_LEN];
/// Lengths of record headers in files with the modified magic; the longer one is SuSE 6.3's.
const MODIFIED_HEADERS: &[usize] = &[MODIFIED_RECORD_HEADER_LEN, 28];
/// Records that are examined to find the length of their headers.
const RECORDS_TO_EXAMINE: usize = 4;
/// Consecutive plausible records, up to the end of the file, that prove a variant.
const MIN_AGREEING: usize = 2;
/// Longest packet in a file whose variant is visible in its records only: libpcap's maximum.
const MAX_VARIANT_PACKET_LEN: u32 = 262_144;

/// Properties of a pcap file that follow from its magic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Magic {
    order: ByteOrder,
    /// A negative power of ten.
    resolution: u8,
    /// Possible lengths; the first is usual, the others, which the file header cannot show, are tried if the first is
    /// implausible.
    record_headers: &'static [usize],
}

impl Magic {
    pub fn parse(bytes: [u8; 4]) -> Option<Self> {
        [ByteOrder::Little, ByteOrder::Big].into_iter().find_map(|order| {
            let (resolution, record_headers) = match order.u32(bytes) {
                MAGIC_NANOSECONDS => (TSRESOL_NANOSECONDS, &USUAL_HEADERS[..1]),
                MAGIC_MICROSECONDS => (MICROSECONDS, USUAL_HEADERS),
                MAGIC_MODIFIED => (MICROSECONDS, MODIFIED_HEADERS),
                _ => return None,
            };
            Some(Self { order, resolution, record_headers })
        })
    }
}

/// Returns the standard link type for one of AIX, which uses RFC 1573's interface types.
fn link_type_of_aix(stored: u16) -> Option<u16> {
    Some(match stored {
        6 => LINKTYPE_ETHERNET,
        9 => LINKTYPE_TOKEN_RING,
        15 => LINKTYPE_FDDI,
        24 => LINKTYPE_NULL,
        _ => return None,
    })
}

/// Order of a record's two lengths. Before version 2.3 the original one came first; writers of 2.3 did either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lengths {
    CapturedFirst,
    OriginalFirst,
    LesserIsCaptured,
}

/// The records after a file header.
pub(crate) struct Records {
    order: ByteOrder,
    /// A negative power of ten.
    resolution: u8,
    lengths: Lengths,
    /// Possible lengths of a record's header: one length once the first record was examined.
    record_headers: &'static [usize],
    /// True for a file without a variant's magic.
    is_usual: bool,
    nanoseconds_a_tick: u64,
    header: [u8; FILE_HEADER_LEN],
    /// Longest captured length by the file's header: libpcap passes on no more of a longer record.
    most_captured: usize,
    /// Length of the last record returned.
    pending: usize,
}

impl Records {
    pub fn byte_order(&self) -> ByteOrder {
        self.order
    }

    pub fn format(&self) -> FileFormat {
        FileFormat::Pcap {
            nanoseconds: self.resolution == TSRESOL_NANOSECONDS,
            modified: self.record_headers[0] != RECORD_HEADER_LEN,
        }
    }

    /// Returns the file's header as stored.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Returns a record's header, as long as the file's header implies, and the packet.
    pub fn parts<'a>(&self, record: &'a [u8]) -> [&'a [u8]; 2] {
        let stored = self.record_headers[0];
        let length = if self.is_usual { RECORD_HEADER_LEN } else { stored };
        [&record[..length.min(record.len())], record.get(stored..).unwrap_or_default()]
    }

    /// Reads the file header. Returns the position of the records, and the file's one interface.
    pub fn open(input: &mut Input<'_>, magic: Magic) -> Result<(Self, Interface), ReadError> {
        let header: [u8; FILE_HEADER_LEN] = input.array("the file's header")?;
        input.consume(FILE_HEADER_LEN);
        let Magic { order, mut resolution, record_headers } = magic;
        let word = |at: usize| order.u32_at(&header, at).unwrap_or_default();
        let half = |at: usize| order.u16_at(&header, at).unwrap_or_default();
        let malformed = |offset, what| Err(ReadError::Malformed { offset, what });
        if word(20) & RESERVED_OF_LINK_TYPE != 0 {
            return malformed(20, "a link type of more than 16 bits");
        }
        if !matches!((half(4), half(6)), (2, 0..=4) | (543, 0)) {
            return malformed(4, "an unknown version of pcap (known: 2.0 to 2.4)");
        }
        // The upper half, outside of the reserved bits, describes a frame check sequence at the end of packets.
        let mut link_type = word(20) as u16;
        if let ((2, 2), Some(other)) = ((half(4), half(6)), link_type_of_aix(link_type)) {
            link_type = other;
            resolution = TSRESOL_NANOSECONDS;
        }
        let interface = Interface { link_type, snaplen: word(16), tsresol: resolution, ..Interface::default() };
        let lengths = match (half(4), half(6)) {
            (2, 0..3) | (543, 0) => Lengths::OriginalFirst,
            (2, 3) => Lengths::LesserIsCaptured,
            _ => Lengths::CapturedFirst,
        };
        let nanoseconds_a_tick = if resolution == MICROSECONDS { 1000 } else { 1 };
        Ok((
            Self {
                order,
                resolution,
                lengths,
                record_headers,
                is_usual: record_headers[0] == RECORD_HEADER_LEN,
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

    pub fn advance(&mut self, input: &mut Input<'_>) -> Result<Option<Found>, ReadError> {
        input.consume(std::mem::take(&mut self.pending));
        if input.fill(1)?.is_empty() {
            return Ok(None);
        }
        let header: [u8; RECORD_HEADER_LEN] = input.array(RECORD)?;
        self.detect_header_length(input)?;
        let RecordHeader { seconds, fraction, captured_len, original_len } = self.fields(&header);
        if captured_len > MAX_PACKET_LEN {
            return Err(ReadError::TooLong {
                offset: input.offset(),
                what: RECORD,
                len: captured_len,
                limit: MAX_PACKET_LEN,
            });
        }
        let start = self.record_headers[0];
        let end = start + captured_len as usize;
        input.whole(RECORD, end)?;
        self.pending = end;
        let fraction = u64::from(fraction) * self.nanoseconds_a_tick;
        Ok(Some(Found {
            timestamp_ns: u64::from(seconds) * 1_000_000_000 + fraction,
            time_flaw: (fraction >= 1_000_000_000).then_some(TimeFlaw::LargeFraction),
            interface: 0,
            original_len,
            captured: start..start + self.most_captured.min(captured_len as usize),
            stored_end: end,
            options: OptionsAt::None,
        }))
    }

    fn fields(&self, header: &[u8; RECORD_HEADER_LEN]) -> RecordHeader {
        let field = |at: usize| self.order.u32_at(header, at).unwrap_or_default();
        let (first, second) = (field(8), field(12));
        let (captured_len, original_len) = match self.lengths {
            Lengths::CapturedFirst => (first, second),
            Lengths::OriginalFirst => (second, first),
            Lengths::LesserIsCaptured => (first.min(second), first.max(second)),
        };
        RecordHeader { seconds: field(0), fraction: field(4), captured_len, original_len }
    }

    /// Examines the first records: their headers have the usual length unless that is implausible and several
    /// consecutive records agree on another.
    fn detect_header_length(&mut self, input: &mut Input<'_>) -> Result<(), ReadError> {
        let [usual, others @ ..] = self.record_headers else {
            return Ok(());
        };
        if others.is_empty() {
            return Ok(());
        }
        let mut chosen = 0;
        let misfit = self.misfit(input, *usual)?;
        if misfit != Misfit::None {
            for (index, other) in others.iter().enumerate() {
                if self.agree(input, *other, misfit)? {
                    chosen = index + 1;
                    break;
                }
            }
        }
        self.record_headers = &self.record_headers[chosen..=chosen];
        Ok(())
    }

    /// Returns the reason why the buffered bytes are no records with headers of the usual length. Waits for the rest of
    /// a partial header.
    fn misfit(&self, input: &mut Input<'_>, header_len: usize) -> Result<Misfit, ReadError> {
        let mut examined = self.check_records(input.buffered(), header_len);
        if let End::InAHeader(at) = examined.end {
            fill(input, at + RECORD_HEADER_LEN)?;
            examined = self.check_records(input.buffered(), header_len);
        }
        Ok(match examined.end {
            End::Enough | End::OfTheFile | End::InARecord(_) => Misfit::None,
            End::InAHeader(_) => Misfit::Rest,
            End::Nonsense => Misfit::Lengths,
        })
    }

    /// Returns whether several consecutive records have headers of this length. A single one may be a coincidence:
    /// bytes after a damaged record, or the rest of a cut one.
    fn agree(&self, input: &mut Input<'_>, header_len: usize, misfit: Misfit) -> Result<bool, ReadError> {
        let mut known = 0;
        loop {
            let examined = self.check_records(input.buffered(), header_len);
            match examined.end {
                End::Enough => return Ok(misfit == Misfit::Lengths),
                End::Nonsense => return Ok(false),
                End::OfTheFile | End::InAHeader(_) | End::InARecord(_) => {}
            }
            // The records may continue in bytes that have not been read yet.
            if input.buffered().len() > known {
                known = input.buffered().len();
                let at = match examined.end {
                    End::InAHeader(at) | End::InARecord(at) => at,
                    _ => known,
                };
                fill(input, at + RECORD_HEADER_LEN)?;
                continue;
            }
            return Ok(match examined.end {
                End::OfTheFile => examined.records >= MIN_AGREEING,
                _ => misfit == Misfit::Lengths && examined.records > MIN_AGREEING,
            });
        }
    }

    /// Checks how far these bytes are records with headers of this length.
    fn check_records(&self, bytes: &[u8], header_len: usize) -> Examined {
        let is_variant = header_len != self.record_headers[0];
        let mut at = 0;
        let mut first_seconds = None;
        for records in 0..RECORDS_TO_EXAMINE {
            let end = |end| Examined { records, end };
            let Some(header) = bytes.get(at..).and_then(|rest| rest.first_chunk()) else {
                return end(match at.cmp(&bytes.len()) {
                    Ordering::Less => End::InAHeader(at),
                    Ordering::Equal => End::OfTheFile,
                    Ordering::Greater => End::InARecord(at),
                });
            };
            let fields = self.fields(header);
            // No packet exceeds the maximum, and no more is captured than was sent.
            if fields.original_len > MAX_PACKET_LEN || fields.captured_len > fields.original_len {
                return end(End::Nonsense);
            }
            let first = *first_seconds.get_or_insert(fields.seconds);
            if is_variant && !self.is_like_record(&fields, first) {
                return end(End::Nonsense);
            }
            at += header_len + fields.captured_len as usize;
        }
        Examined { records: RECORDS_TO_EXAMINE, end: End::Enough }
    }

    /// Returns whether fields are plausible for a record in a doubtful position: neither zeroes nor the bytes of a
    /// packet are.
    fn is_like_record(&self, fields: &RecordHeader, first_seconds: u32) -> bool {
        const YEAR: u32 = 365 * 24 * 60 * 60;
        (1..=MAX_VARIANT_PACKET_LEN).contains(&fields.captured_len)
            && fields.original_len <= MAX_VARIANT_PACKET_LEN
            && u64::from(fields.fraction) * self.nanoseconds_a_tick < 1_000_000_000
            && fields.seconds.abs_diff(first_seconds) <= YEAR
    }
}

/// Reads until the input holds `len` bytes or ends. Fails only if the source would block: the next read meets any other
/// error again.
fn fill(input: &mut Input<'_>, len: usize) -> Result<(), ReadError> {
    match input.fill(len) {
        Err(error) if error.would_block() => Err(error),
        _ => Ok(()),
    }
}

/// Usual fields of a record's header.
struct RecordHeader {
    seconds: u32,
    fraction: u32,
    captured_len: u32,
    original_len: u32,
}

/// Result of reading bytes as records with headers of some length.
struct Examined {
    /// Number of plausible headers.
    records: usize,
    end: End,
}

/// Position at which the examination of records ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// After the maximum number of records.
    Enough,
    /// At the end of the file's bytes.
    OfTheFile,
    /// In the partial header that begins here.
    InAHeader(usize),
    /// In the partial record that ends here.
    InARecord(usize),
    /// At a header with impossible lengths.
    Nonsense,
}

/// Reason why bytes are no records with headers of the usual length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Misfit {
    None,
    Lengths,
    /// The remaining bytes are shorter than a header.
    Rest,
}
