//! What the blocks without packets say: the section's header, names of addresses, counts of an interface.

use super::block::{self, ByteOrder, HEADER_LEN, TRAILER_LEN};
use super::options::{Options, RawOption};

/// The machine and the program that wrote a section.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Section {
    pub hardware: Option<String>,
    pub os: Option<String>,
    pub application: Option<String>,
    pub comments: Vec<String>,
}

/// Addresses of which a Name Resolution Block has names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Names {
    pub ipv4: u64,
    pub ipv6: u64,
}

/// An Interface Statistics Block: the interface's number in its section, and what did not get into the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InterfaceCounts {
    pub interface: u32,
    pub received: Option<u64>,
    pub interface_dropped: Option<u64>,
    pub os_dropped: Option<u64>,
}

fn body(block: &[u8]) -> &[u8] {
    let end = block.len().saturating_sub(TRAILER_LEN);
    block.get(HEADER_LEN..end).unwrap_or_default()
}

impl Section {
    /// `block` is a whole Section Header Block.
    pub fn parse(block: &[u8], order: ByteOrder) -> Self {
        const FIXED_LEN: usize = 16;
        let mut section = Self::default();
        let list = body(block).get(FIXED_LEN..).unwrap_or_default();
        for RawOption { code, value } in Options::new(list, order) {
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

impl Names {
    /// `block` is a whole Name Resolution Block. Its records are laid out as options are.
    pub fn parse(block: &[u8], order: ByteOrder) -> Self {
        let mut names = Self::default();
        for RawOption { code, value } in Options::new(body(block), order) {
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
    /// `block` is a whole Interface Statistics Block; `None` if it is too short for one.
    pub fn parse(block: &[u8], order: ByteOrder) -> Option<Self> {
        const FIXED_LEN: usize = 12;
        let body = body(block);
        let mut counts = Self {
            interface: order.u32_at(body, 0)?,
            ..Self::default()
        };
        for RawOption { code, value } in Options::new(body.get(FIXED_LEN..)?, order) {
            let count = value.try_into().ok().map(|bytes| order.u64(bytes));
            match code {
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
    fn what_was_written_is_read_back() {
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
            &write::InterfaceStatistics {
                interface_id: 3,
                if_dropped: Some(7),
                ..Default::default()
            },
        );
        let counts = InterfaceCounts::parse(&out, ByteOrder::Little).unwrap();
        assert_eq!((counts.interface, counts.interface_dropped), (3, Some(7)));
    }

    #[test]
    fn names_of_both_families_are_counted_and_cut_blocks_are_survived() {
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
