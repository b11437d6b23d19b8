//! Reads the older pcap format, of both byte orders and resolutions.

use std::io::Read;

use super::{
    FILE_HEADER_LEN, MAGIC_MICROSECONDS, MAGIC_MODIFIED, MAGIC_NANOSECONDS, RECORD_HEADER_LEN,
};
use crate::pcapng::Interface;
use crate::pcapng::block::{ByteOrder, TSRESOL_NANOSECONDS};
use crate::read::Input;
use crate::read::{Found, OptionsAt, ReadError};

/// Longest packet that is taken for possible: far above any snapshot length in use.
const MAX_PACKET_LEN: u32 = 16 << 20;

const MICROSECONDS: u8 = 6;
const RECORD: &str = "a packet record";

/// What the first four bytes of a pcap file say.
pub(crate) enum Magic {
    /// `resolution` is a negative power of ten.
    Known {
        order: ByteOrder,
        resolution: u8,
    },
    Modified,
}

impl Magic {
    pub fn parse(bytes: [u8; 4]) -> Option<Self> {
        [ByteOrder::Little, ByteOrder::Big]
            .into_iter()
            .find_map(|order| match order.u32(bytes) {
                MAGIC_NANOSECONDS => Some(Self::Known {
                    order,
                    resolution: TSRESOL_NANOSECONDS,
                }),
                MAGIC_MICROSECONDS => Some(Self::Known {
                    order,
                    resolution: MICROSECONDS,
                }),
                MAGIC_MODIFIED => Some(Self::Modified),
                _ => None,
            })
    }
}

/// The records behind a file header.
pub(crate) struct Records {
    order: ByteOrder,
    nanoseconds_a_tick: u64,
    /// Length of the record that was handed out last.
    pending: usize,
}

impl Records {
    pub fn byte_order(&self) -> ByteOrder {
        self.order
    }

    /// Reads the file header: where to go on, and the one interface of the file.
    pub fn open<R: Read>(
        input: &mut Input<R>,
        order: ByteOrder,
        resolution: u8,
    ) -> Result<(Self, Interface), ReadError> {
        let header: [u8; FILE_HEADER_LEN] = input.array("the file's header")?;
        input.consume(FILE_HEADER_LEN);
        let [.., a, b, c, d, e, f, g, h] = header;
        let interface = Interface {
            // The upper half tells of a frame check sequence at the end of packets.
            link_type: order.u32([e, f, g, h]) as u16,
            snaplen: order.u32([a, b, c, d]),
            tsresol: resolution,
            ..Interface::default()
        };
        let nanoseconds_a_tick = if resolution == MICROSECONDS { 1000 } else { 1 };
        Ok((
            Self {
                order,
                nanoseconds_a_tick,
                pending: 0,
            },
            interface,
        ))
    }

    pub fn next<R: Read>(&mut self, input: &mut Input<R>) -> Result<Option<Found>, ReadError> {
        input.consume(std::mem::take(&mut self.pending));
        if input.fill(1)?.is_empty() {
            return Ok(None);
        }
        let header: [u8; RECORD_HEADER_LEN] = input.array(RECORD)?;
        let field = |at: usize| {
            self.order
                .u32([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let (seconds, fraction, captured_len, original_len) =
            (field(0), field(4), field(8), field(12));
        if captured_len > MAX_PACKET_LEN {
            return Err(ReadError::TooLong {
                offset: input.offset(),
                what: RECORD,
                len: captured_len,
                limit: MAX_PACKET_LEN,
            });
        }
        let end = RECORD_HEADER_LEN + captured_len as usize;
        input.whole(RECORD, end)?;
        self.pending = end;
        let fraction = u64::from(fraction) * self.nanoseconds_a_tick;
        Ok(Some(Found {
            timestamp_ns: u64::from(seconds) * 1_000_000_000 + fraction,
            interface: 0,
            original_len,
            captured: RECORD_HEADER_LEN..end,
            options: OptionsAt::None,
        }))
    }
}
