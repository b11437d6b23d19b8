//! The meaning of the options of packets, sections and interfaces.

use std::borrow::Cow;

use serde::Serialize;

use super::block::{self, ByteOrder, HEADER_LEN, OptionList, RawOption, TRAILER_LEN};
use super::{Direction, PacketProcess, Verdict};

/// A packet block's options, interpreted. Of a repeated option that may occur once, the first counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PacketOptions<'a> {
    pub flags: Option<u32>,
    pub queue: Option<u32>,
    pub packet_id: Option<u64>,
    pub drop_count: Option<u64>,
    /// First verdict; a file may hold several, see [`OptionList`] for the others.
    pub verdict: Option<Verdict<'a>>,
    pub process: Option<PacketProcess>,
    pub darwin_process: Option<u32>,
    pub comments: Vec<Cow<'a, str>>,
}

impl<'a> PacketOptions<'a> {
    /// Parses options. Unknown codes and values of a wrong length are skipped.
    pub fn parse(options: OptionList<'a>) -> Self {
        let order = options.byte_order();
        let number = |value: &[u8]| value.try_into().ok().map(|bytes| order.u32(bytes));
        let long = |value: &[u8]| value.try_into().ok().map(|bytes| order.u64(bytes));
        let mut parsed = Self::default();
        for RawOption { code, value } in options {
            match code {
                block::OPT_COMMENT => parsed.comments.push(String::from_utf8_lossy(value)),
                block::EPB_FLAGS => parsed.flags = parsed.flags.or(number(value)),
                block::EPB_QUEUE => parsed.queue = parsed.queue.or(number(value)),
                block::EPB_PACKETID => parsed.packet_id = parsed.packet_id.or(long(value)),
                block::EPB_DROPCOUNT => parsed.drop_count = parsed.drop_count.or(long(value)),
                block::EPB_VERDICT => parsed.verdict = parsed.verdict.or(verdict(value, order)),
                block::EPB_DARWIN_PROCESS => {
                    parsed.darwin_process = parsed.darwin_process.or(number(value));
                }
                block::EPB_PROCESS => parsed.process = parsed.process.or(process(value, order)),
                _ => {}
            }
        }
        parsed
    }

    pub fn direction(&self) -> Option<Direction> {
        self.flags.and_then(Direction::from_flags)
    }
}

/// Parses an `epb_verdict` value. The 64-bit value is in the section's order, as in Wireshark.
pub fn verdict(value: &[u8], order: ByteOrder) -> Option<Verdict<'_>> {
    let (&kind, value) = value.split_first()?;
    let number = value.try_into().ok().map(|bytes| order.u64(bytes));
    Some(match (kind, number) {
        (block::VERDICT_EBPF_TC, Some(action)) => Verdict::Tc(action),
        (block::VERDICT_EBPF_XDP, Some(action)) => Verdict::Xdp(action),
        _ => Verdict::Other { kind, value },
    })
}

fn process(value: &[u8], order: ByteOrder) -> Option<PacketProcess> {
    let (id, thread) = value.split_first_chunk()?;
    let process = PacketProcess { id: order.u32(*id), thread: order.u32(thread.try_into().ok()?) };
    // Zero stands for an unknown process.
    (process.id != 0).then_some(process)
}

/// The machine and the program that wrote a section.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Section {
    pub hardware: Option<String>,
    pub os: Option<String>,
    pub application: Option<String>,
    pub comments: Vec<String>,
}

/// Number of addresses that a Name Resolution Block names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Names {
    pub ipv4: u64,
    pub ipv6: u64,
}

/// An Interface Statistics Block: the interface's number in its section, and the packets that did not get into the
/// file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterfaceCounts {
    pub interface: u32,
    /// Begin and end of the capture, in the interface's units of time.
    pub start: Option<u64>,
    pub end: Option<u64>,
    pub comments: Vec<String>,
    pub received: Option<u64>,
    pub interface_dropped: Option<u64>,
    pub os_dropped: Option<u64>,
}

/// Returns the body of a whole block.
pub(crate) fn body(block: &[u8]) -> &[u8] {
    let end = block.len().saturating_sub(TRAILER_LEN);
    block.get(HEADER_LEN..end).unwrap_or_default()
}

impl Section {
    /// Parses a whole Section Header Block.
    pub fn parse(block: &[u8], order: ByteOrder) -> Self {
        const FIXED_LEN: usize = 16;
        let mut section = Self::default();
        let list = body(block).get(FIXED_LEN..).unwrap_or_default();
        for RawOption { code, value } in OptionList::new(list, order) {
            let text = String::from_utf8_lossy(value).into_owned();
            match code {
                block::OPT_COMMENT => section.comments.push(text),
                block::SHB_HARDWARE => section.hardware = Some(text),
                block::SHB_OS => section.os = Some(text),
                block::SHB_USERAPPL => section.application = Some(text),
                _ => {}
            }
        }
        section
    }
}

/// Returns the comment in the body of a Name Resolution Block without names, see [`super::write::remark`].
pub(crate) fn remark(body: &[u8], order: ByteOrder) -> Option<Cow<'_, str>> {
    /// Length of the end mark after a block's names.
    const NO_NAMES: usize = 4;
    let (names, options) = body.split_at_checked(NO_NAMES)?;
    let mut options = OptionList::new(options, order);
    let comment = options.find(|option| option.code == block::OPT_COMMENT).filter(|_| names == [0; NO_NAMES])?;
    Some(String::from_utf8_lossy(comment.value))
}

impl Names {
    /// Parses a whole Name Resolution Block, whose records are laid out like options.
    pub fn parse(block: &[u8], order: ByteOrder) -> Self {
        let mut names = Self::default();
        for RawOption { code, value } in OptionList::new(body(block), order) {
            match code {
                block::NRB_IPV4 if value.len() > 4 => names.ipv4 += 1,
                block::NRB_IPV6 if value.len() > 16 => names.ipv6 += 1,
                _ => {}
            }
        }
        names
    }
}

impl InterfaceCounts {
    /// Parses a whole Interface Statistics Block; `None` if it is too short.
    pub fn parse(block: &[u8], order: ByteOrder) -> Option<Self> {
        const FIXED_LEN: usize = 12;
        let body = body(block);
        let mut counts = Self { interface: order.u32_at(body, 0)?, ..Self::default() };
        for RawOption { code, value } in OptionList::new(body.get(FIXED_LEN..)?, order) {
            let count = value.try_into().ok().map(|bytes| order.u64(bytes));
            // The high half of a time is stored first.
            let time = count.map(|time| match order {
                ByteOrder::Little => time.rotate_left(32),
                ByteOrder::Big => time,
            });
            match code {
                block::ISB_STARTTIME => counts.start = time,
                block::ISB_ENDTIME => counts.end = time,
                block::OPT_COMMENT => {
                    let text = String::from_utf8_lossy(value);
                    counts.comments.push(text.into_owned());
                }
                block::ISB_IFRECV => counts.received = count,
                block::ISB_IFDROP => counts.interface_dropped = count,
                block::ISB_OSDROP => counts.os_dropped = count,
                _ => {}
            }
        }
        Some(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcapng::write;

    #[test]
    fn list_may_end_without_a_mark_and_stops_before_a_bad_length() {
        let bytes = [2, 0, 4, 0, 1, 0, 0, 0, 6, 0, 200, 0, 1, 2, 3, 4];
        let options: Vec<_> = OptionList::new(&bytes, ByteOrder::Little).collect();
        assert_eq!(options, [RawOption { code: 2, value: &[1, 0, 0, 0] }]);
    }

    #[test]
    fn big_endian_values() {
        let bytes = [0, 6, 0, 4, 0, 0, 0, 9, 0, 7, 0, 9, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        let parsed = PacketOptions::parse(OptionList::new(&bytes, ByteOrder::Big));
        assert_eq!(parsed.queue, Some(9));
        assert_eq!(parsed.verdict, Some(Verdict::Xdp(1)));
    }

    #[test]
    fn value_of_a_wrong_length_is_skipped() {
        let bytes = [6, 0, 2, 0, 9, 9, 0, 0, 7, 0, 2, 0, 2, 1, 0, 0];
        let parsed = PacketOptions::parse(OptionList::new(&bytes, ByteOrder::Little));
        assert_eq!(parsed.queue, None);
        assert_eq!(parsed.verdict, Some(Verdict::Other { kind: 2, value: &[1] }));
    }

    #[test]
    fn written_details_round_trip() {
        let mut out = Vec::new();
        write::section_header(
            &mut out,
            &write::SectionHeader {
                hardware: Some("a board"),
                os: Some("Linux"),
                userappl: Some("trawl"),
                comment: Some("why"),
            },
        );
        let section = Section::parse(&out, ByteOrder::Little);
        assert_eq!(section.hardware.as_deref(), Some("a board"));
        assert_eq!(section.os.as_deref(), Some("Linux"));
        assert_eq!(section.application.as_deref(), Some("trawl"));
        assert_eq!(section.comments, ["why"]);
        out.clear();
        write::interface_statistics(
            &mut out,
            &write::InterfaceStatistics { interface_id: 3, if_dropped: Some(7), ..Default::default() },
        );
        let counts = InterfaceCounts::parse(&out, ByteOrder::Little).unwrap();
        assert_eq!((counts.interface, counts.interface_dropped), (3, Some(7)));
    }

    #[test]
    fn names_of_both_families_are_counted_in_whole_and_cut_blocks() {
        let mut block = [block::NAME_RESOLUTION.to_be_bytes(), [0; 4]].concat();
        for (kind, len) in [(1u16, 6u16), (2, 20), (2, 18), (1, 4), (0, 0)] {
            block.extend(kind.to_be_bytes());
            block.extend(len.to_be_bytes());
            block.resize(block.len() + usize::from(len).next_multiple_of(4), b'a');
        }
        block.extend([0; 4]);
        let names = Names::parse(&block, ByteOrder::Big);
        assert_eq!((names.ipv4, names.ipv6), (1, 2));
        for cut in 0..block.len() {
            Names::parse(&block[..cut], ByteOrder::Big);
            Section::parse(&block[..cut], ByteOrder::Little);
            InterfaceCounts::parse(&block[..cut], ByteOrder::Big);
        }
    }
}
