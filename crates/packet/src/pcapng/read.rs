//! Reads pcapng: sections of either byte order, with every block type that holds a packet.

use std::ops::Range;

use super::Interface;
use super::block::{self, ByteOrder, HEADER_LEN, MIN_BLOCK_LEN, TRAILER_LEN, padded};
use super::block::{OptionList, RawOption};
use crate::input::{Found, Input, OptionsAt, ReadError, TimeFlaw};

const SECTION_HEADER_MIN_LEN: usize = MIN_BLOCK_LEN + 16;
/// Major and minor version: some writers used 1.2 for 1.0.
const VERSIONS: [[u16; 2]; 2] = [[1, 0], [1, 2]];
const BLOCK: &str = "a block";

/// The section being read.
pub(crate) struct Sections {
    order: ByteOrder,
    /// Index of this section's interface 0 among the interfaces of the whole file.
    first_interface: usize,
    /// Length of the last block returned.
    pending: usize,
}

impl Default for Sections {
    fn default() -> Self {
        Self { order: ByteOrder::Little, first_interface: 0, pending: 0 }
    }
}

/// A whole block.
pub(crate) enum Step {
    Packet(Found),
    /// A block of another type: section, interface, names, secrets, statistics, or unknown.
    Other {
        kind: u32,
    },
}

impl Sections {
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Returns the index of the section's interface 0 among the interfaces of the whole file.
    pub fn first_interface(&self) -> usize {
        self.first_interface
    }

    pub fn byte_order(&self) -> ByteOrder {
        self.order
    }

    pub fn advance(
        &mut self,
        input: &mut Input<'_>,
        interfaces: &mut Vec<Interface>,
    ) -> Result<Option<Step>, ReadError> {
        input.consume(std::mem::take(&mut self.pending));
        if input.fill(1)?.is_empty() {
            return Ok(None);
        }
        let offset = input.offset();
        let (kind, len) = self.header(input, interfaces.len())?;
        let bytes = input.whole(BLOCK, len)?;
        if self.order.u32_at(bytes, len - TRAILER_LEN) != Some(len as u32) {
            let what = "a block whose two lengths differ";
            return Err(ReadError::Malformed { offset, what });
        }
        self.pending = len;
        let body = &bytes[HEADER_LEN..len - TRAILER_LEN];
        let known = interfaces.get(self.first_interface..).unwrap_or_default();
        let packet = Body { bytes: body, order: self.order, offset };
        let found = match kind {
            block::INTERFACE_DESCRIPTION => {
                let interface = packet.interface()?;
                interfaces.push(interface);
                return Ok(Some(Step::Other { kind }));
            }
            block::ENHANCED_PACKET => packet.enhanced(known)?,
            block::SIMPLE_PACKET => packet.simple(known)?,
            block::OBSOLETE_PACKET => packet.obsolete(known)?,
            _ => return Ok(Some(Step::Other { kind })),
        };
        Ok(Some(Step::Packet(Found { interface: self.first_interface + found.interface, ..found })))
    }

    /// Returns a block's type and length. A section header sets the byte order of both.
    fn header(&mut self, input: &mut Input<'_>, interfaces: usize) -> Result<(u32, usize), ReadError> {
        let offset = input.offset();
        let malformed = |what| Err(ReadError::Malformed { offset, what });
        let [kind, len] = {
            let [a, b, c, d, e, f, g, h]: [u8; HEADER_LEN] = input.array(BLOCK)?;
            [[a, b, c, d], [e, f, g, h]]
        };
        let is_section = kind == block::SECTION_HEADER.to_le_bytes();
        if is_section {
            let start: [u8; HEADER_LEN + 8] = input.array("a section header")?;
            let [.., a, b, c, d, e, f, g, h] = start;
            self.order = match u32::from_le_bytes([a, b, c, d]) {
                block::BYTE_ORDER_MAGIC => ByteOrder::Little,
                magic if magic.swap_bytes() == block::BYTE_ORDER_MAGIC => ByteOrder::Big,
                _ => return malformed("a section header without a byte-order magic"),
            };
            let version = [[e, f], [g, h]].map(|half| self.order.u16(half));
            if !VERSIONS.contains(&version) {
                return malformed("a section of an unknown version of pcapng (known: 1.0, 1.2)");
            }
            self.first_interface = interfaces;
        }
        let (kind, len) = (self.order.u32(kind), self.order.u32(len));
        let shortest = if is_section { SECTION_HEADER_MIN_LEN } else { MIN_BLOCK_LEN };
        if (len as usize) < shortest {
            return malformed("a block shorter than its own header");
        }
        if !len.is_multiple_of(4) {
            return malformed("a block whose length is not a multiple of 4");
        }
        let limit = block::MAX_BLOCK_LEN;
        if len > limit {
            return Err(ReadError::TooLong { offset, what: BLOCK, len, limit });
        }
        Ok((kind, len as usize))
    }
}

/// The body of a whole block.
struct Body<'a> {
    bytes: &'a [u8],
    order: ByteOrder,
    offset: u64,
}

impl Body<'_> {
    fn malformed<T>(&self, what: &'static str) -> Result<T, ReadError> {
        Err(ReadError::Malformed { offset: self.offset, what })
    }

    fn u16(&self, at: usize) -> Result<u16, ReadError> {
        self.order.u16_at(self.bytes, at).map_or_else(|| self.malformed("a block too short for its type"), Ok)
    }

    fn u32(&self, at: usize) -> Result<u32, ReadError> {
        self.order.u32_at(self.bytes, at).map_or_else(|| self.malformed("a block too short for its type"), Ok)
    }

    /// Returns the range of `len` bytes from `at` on in the block, which must have them.
    fn range(&self, at: usize, len: usize) -> Result<Range<usize>, ReadError> {
        let end = at.checked_add(len).filter(|end| *end <= self.bytes.len());
        match end {
            Some(end) => Ok(HEADER_LEN + at..HEADER_LEN + end),
            None => self.malformed("a packet longer than its block"),
        }
    }

    /// Returns the range of the options after `len` bytes from `at` on, which may be empty.
    fn options(&self, at: usize, len: usize) -> Range<usize> {
        let start = (at + padded(len)).min(self.bytes.len());
        HEADER_LEN + start..HEADER_LEN + self.bytes.len()
    }

    fn describe<'i>(&self, known: &'i [Interface], id: u32) -> Result<&'i Interface, ReadError> {
        known.get(id as usize).ok_or(ReadError::UnknownInterface { offset: self.offset, id })
    }

    /// Reads the common fields of enhanced and obsolete packet blocks: time, lengths and the packet, after interface
    /// `id`.
    fn timed(&self, known: &[Interface], id: u32) -> Result<Found, ReadError> {
        let interface = self.describe(known, id)?;
        let ticks = u64::from(self.u32(4)?) << 32 | u64::from(self.u32(8)?);
        let (timestamp_ns, time_flaw) = nanoseconds(ticks, interface);
        let captured = self.range(block::EPB_FIXED_LEN, self.u32(12)? as usize)?;
        Ok(Found {
            timestamp_ns,
            time_flaw,
            interface: id as usize,
            original_len: self.u32(16)?,
            stored_end: captured.end,
            options: OptionsAt::List { at: self.options(block::EPB_FIXED_LEN, captured.len()), order: self.order },
            captured,
        })
    }

    fn enhanced(&self, known: &[Interface]) -> Result<Found, ReadError> {
        self.timed(known, self.u32(0)?)
    }

    fn simple(&self, known: &[Interface]) -> Result<Found, ReadError> {
        const DATA: usize = 4;
        let interface = self.describe(known, 0)?;
        let original_len = self.u32(0)?;
        let snaplen = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
        // The block does not state the captured length. The packet is as long as the block and the snaplen allow.
        let room = self.bytes.len().saturating_sub(DATA);
        let captured_len = (original_len.min(snaplen) as usize).min(room);
        let captured = self.range(DATA, captured_len)?;
        Ok(Found {
            timestamp_ns: 0,
            time_flaw: None,
            interface: 0,
            original_len,
            stored_end: captured.end,
            captured,
            options: OptionsAt::None,
        })
    }

    fn obsolete(&self, known: &[Interface]) -> Result<Found, ReadError> {
        const UNKNOWN_DROPS: u16 = u16::MAX;
        let found = self.timed(known, self.u16(0)?.into())?;
        let drops = self.u16(2)?;
        Ok(Found {
            options: OptionsAt::Obsolete {
                at: self.options(block::EPB_FIXED_LEN, found.captured.len()),
                order: self.order,
                drop_count: (drops != UNKNOWN_DROPS).then_some(drops.into()),
            },
            ..found
        })
    }

    fn interface(&self) -> Result<Interface, ReadError> {
        const FIXED_LEN: usize = 8;
        let mut interface = Interface {
            link_type: self.u16(0)?,
            snaplen: self.u32(4)?,
            tsresol: block::TSRESOL_DEFAULT,
            ..Interface::default()
        };
        let text = |value| Some(String::from_utf8_lossy(value).into_owned());
        let list = self.bytes.get(FIXED_LEN..).unwrap_or_default();
        for RawOption { code, value } in OptionList::new(list, self.order) {
            let long = || value.try_into().ok().map(|bytes| self.order.u64(bytes));
            match code {
                block::OPT_COMMENT => interface.comments.extend(text(value)),
                block::IF_NAME => interface.name = text(value),
                block::IF_DESCRIPTION => interface.description = text(value),
                block::IF_MACADDR => interface.mac = value.try_into().ok(),
                block::IF_SPEED => interface.speed = long(),
                block::IF_TSRESOL => {
                    interface.tsresol = value.first().copied().unwrap_or(interface.tsresol);
                }
                block::IF_FILTER => {
                    if let Some((&block::FILTER_IS_STRING, expression)) = value.split_first() {
                        interface.filter = text(expression);
                    }
                }
                block::IF_OS => interface.os = text(value),
                block::IF_TSOFFSET => interface.tsoffset = long().unwrap_or_default() as i64,
                block::IF_HARDWARE => interface.hardware = text(value),
                _ => {}
            }
        }
        Ok(interface)
    }
}

impl Interface {
    /// Reads a finished Interface Description Block; `None` for any other block.
    pub fn from_block(block: &block::Block<'_>) -> Option<Self> {
        let body = Body { bytes: block.body, order: ByteOrder::Little, offset: 0 };
        (block.kind == block::INTERFACE_DESCRIPTION).then(|| body.interface().ok()).flatten()
    }

    /// Converts a time in the interface's units to nanoseconds since 1970, or to the nearest value of 64 bits.
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        nanoseconds(ticks, self).0
    }
}

/// Converts an interface's ticks to nanoseconds since 1970. Times out of range are clamped and flagged.
fn nanoseconds(ticks: u64, interface: &Interface) -> (u64, Option<TimeFlaw>) {
    const NANOSECONDS: u128 = 1_000_000_000;
    let exponent = u32::from(interface.tsresol & !block::TSRESOL_IS_BINARY);
    let scaled = u128::from(ticks) * NANOSECONDS;
    let ns = if interface.tsresol & block::TSRESOL_IS_BINARY != 0 {
        scaled.checked_shr(exponent).unwrap_or(0)
    } else {
        10u128.checked_pow(exponent).map_or(0, |ticks_a_second| scaled / ticks_a_second)
    };
    // `ns` is below 2^94, so the sum cannot overflow.
    let offset = i128::from(interface.tsoffset) * NANOSECONDS as i128;
    let ns = ns as i128 + offset;
    let nearest = ns.clamp(0, u64::MAX.into());
    let flaw = (nearest != ns).then_some(TimeFlaw::Beyond);
    (nearest as u64, flaw)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ticks: u64, tsresol: u8, tsoffset: i64) -> (u64, Option<TimeFlaw>) {
        nanoseconds(ticks, &Interface { tsresol, tsoffset, ..Interface::default() })
    }

    #[test]
    fn units_and_offsets() {
        assert_eq!(at(1_500_000, 6, 0), (1_500_000_000, None));
        assert_eq!(at(5, 0, 0), (5_000_000_000, None));
        assert_eq!(at(123_456, 12, 0), (123, None));
        assert_eq!(at(3, 0x80 | 1, 0), (1_500_000_000, None));
        assert_eq!(at(1 << 40, 0x80 | 40, 0), (1_000_000_000, None));
        assert_eq!(at(5, 9, 2), (2_000_000_005, None));
        assert_eq!(at(5, 9, -2), (0, Some(TimeFlaw::Beyond)));
        assert_eq!(at(u64::MAX, 0, i64::MAX), (u64::MAX, Some(TimeFlaw::Beyond)));
        assert_eq!(at(u64::MAX, 127, 0), (0, None));
        assert_eq!(at(u64::MAX, 255, 0), (0, None));
    }
}
