//! Block types and option codes, a cheap walk over finished little-endian blocks in a buffer, and one over the options of a
//! block.

pub const SECTION_HEADER: u32 = 0x0a0d_0d0a;
pub const INTERFACE_DESCRIPTION: u32 = 1;
/// Obsolete type, which old files contain.
pub const OBSOLETE_PACKET: u32 = 2;
pub const SIMPLE_PACKET: u32 = 3;
pub const NAME_RESOLUTION: u32 = 4;
pub const INTERFACE_STATISTICS: u32 = 5;
pub const ENHANCED_PACKET: u32 = 6;
pub const DECRYPTION_SECRETS: u32 = 0x0a;
/// Trawl's own type, for local use: padding, so that the next block is aligned for the disk.
pub const FILLING: u32 = 0x8054_524c;

/// Custom Block that may be copied to other files.
pub const CUSTOM: u32 = 0x0000_0bad;
/// Wireshark's enterprise number, and its type of block that describes a process.
pub const WIRESHARK: u32 = 32622;
pub const WIRESHARK_PROCESS: u32 = 3;

pub const PROCESS_NAME: u16 = 2;
pub const PROCESS_PATH: u16 = 3;
pub const PROCESS_COMMAND: u16 = 4;
pub const PROCESS_PARENT: u16 = 5;
pub const PROCESS_USER_ID: u16 = 6;
pub const PROCESS_USER: u16 = 7;
pub const PROCESS_START: u16 = 9;

/// First 32 bits of a section's body, as seen by a reader in the section's own order.
pub const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

pub const OPT_END: u16 = 0;
pub const OPT_COMMENT: u16 = 1;

pub const SHB_HARDWARE: u16 = 2;
pub const SHB_OS: u16 = 3;
pub const SHB_USERAPPL: u16 = 4;

pub const IF_NAME: u16 = 2;
pub const IF_DESCRIPTION: u16 = 3;
pub const IF_MACADDR: u16 = 6;
pub const IF_SPEED: u16 = 8;
pub const IF_TSRESOL: u16 = 9;
pub const IF_FILTER: u16 = 11;
pub const IF_OS: u16 = 12;
pub const IF_TSOFFSET: u16 = 14;
pub const IF_HARDWARE: u16 = 15;

pub const EPB_FLAGS: u16 = 2;
/// A hash of the packet's bytes; in obsolete packet blocks too.
pub const EPB_HASH: u16 = 3;
pub const EPB_DROPCOUNT: u16 = 4;
pub const EPB_PACKETID: u16 = 5;
pub const EPB_QUEUE: u16 = 6;
pub const EPB_VERDICT: u16 = 7;
pub const EPB_PROCESS: u16 = 8;
/// Darwin: the number of a process's block among such blocks.
pub const EPB_DARWIN_PROCESS: u16 = 0x8001;

/// Records of a Name Resolution Block: an IPv4 or IPv6 address and its names.
pub const NRB_IPV4: u16 = 1;
pub const NRB_IPV6: u16 = 2;

pub const ISB_STARTTIME: u16 = 2;
pub const ISB_ENDTIME: u16 = 3;
pub const ISB_IFRECV: u16 = 4;
pub const ISB_IFDROP: u16 = 5;
pub const ISB_FILTERACCEPT: u16 = 6;
pub const ISB_OSDROP: u16 = 7;
pub const ISB_USRDELIV: u16 = 8;

/// First octet of an `epb_verdict`: the kind of program that gave the verdict.
pub const VERDICT_EBPF_TC: u8 = 1;
pub const VERDICT_EBPF_XDP: u8 = 2;

pub const DIRECTION_MASK: u32 = 0b11;
pub const DIRECTION_INBOUND: u32 = 0b01;
pub const DIRECTION_OUTBOUND: u32 = 0b10;

/// First octet of an `if_filter`: the rest is the expression as text.
pub const FILTER_IS_STRING: u8 = 0;

pub const TSRESOL_NANOSECONDS: u8 = 9;
/// Bit that makes the rest a power of two instead of ten.
pub const TSRESOL_IS_BINARY: u8 = 0x80;
/// Resolution of a file without `if_tsresol`.
pub const TSRESOL_DEFAULT: u8 = 6;

pub const LINKTYPE_NULL: u16 = 0;
pub const LINKTYPE_ETHERNET: u16 = 1;
pub const LINKTYPE_PPP: u16 = 9;
pub const LINKTYPE_PPP_HDLC: u16 = 50;
pub const LINKTYPE_PPP_ETHER: u16 = 51;
pub const LINKTYPE_RAW: u16 = 101;
pub const LINKTYPE_C_HDLC: u16 = 104;
pub const LINKTYPE_LINUX_SLL: u16 = 113;
pub const LINKTYPE_IPV4: u16 = 228;
pub const LINKTYPE_IPV6: u16 = 229;
pub const LINKTYPE_LINUX_SLL2: u16 = 276;

/// Type and total length in front of a block's body.
pub const HEADER_LEN: usize = 8;
/// The total length again, after the body.
pub const TRAILER_LEN: usize = 4;
/// Shortest possible block: no body.
pub const MIN_BLOCK_LEN: usize = HEADER_LEN + TRAILER_LEN;
/// Interface, timestamp high and low, captured and original length.
pub const EPB_FIXED_LEN: usize = 20;
/// Interface, and time high and low.
pub const ISB_FIXED_LEN: usize = 12;
/// Longest block that a reader accepts: a 16 MiB packet and its options. A longer one is damage.
pub const MAX_BLOCK_LEN: u32 = 32 << 20;

/// Returns the length with the padding to a 32-bit boundary.
pub const fn padded(len: usize) -> usize {
    (len + 3) & !3
}

/// Byte order of a section's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    pub fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    pub fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    pub fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    pub(crate) fn u16_at(self, bytes: &[u8], at: usize) -> Option<u16> {
        Some(self.u16(*bytes.get(at..)?.first_chunk()?))
    }

    pub(crate) fn u32_at(self, bytes: &[u8], at: usize) -> Option<u32> {
        Some(self.u32(*bytes.get(at..)?.first_chunk()?))
    }
}

/// A whole block of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block<'a> {
    pub kind: u32,
    /// Header, body and trailer: the bytes of the file.
    pub bytes: &'a [u8],
    pub body: &'a [u8],
}

impl<'a> Block<'a> {
    pub fn total_len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the block as an Enhanced Packet Block, if it is a well-formed one.
    pub fn enhanced_packet(&self) -> Option<EnhancedPacket<'a>> {
        (self.kind == ENHANCED_PACKET).then(|| EnhancedPacket::parse(self.body, ByteOrder::Little)).flatten()
    }

    /// Returns true if it names addresses, unlike a block of names that only carries a comment.
    pub fn names_addresses(&self) -> bool {
        self.kind == NAME_RESOLUTION && !self.body.starts_with(&[0; 2])
    }
}

/// Appends a packet's whole little-endian block with at most `max_len` of the packet's bytes.
pub fn push_cut(block: &[u8], max_len: u32, out: &mut Vec<u8>) {
    /// Offset of the captured length: after type and length of the block, interface and time.
    const CAPTURED: usize = 20;
    const DATA: usize = 28;
    let word = |at: usize| -> Option<u32> {
        let bytes = block.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let cut = word(CAPTURED).filter(|captured| *captured > max_len).and_then(|captured| {
        let options = block.get(DATA + captured.next_multiple_of(4) as usize..)?;
        let data = block.get(DATA..DATA + max_len as usize)?;
        Some((data, options))
    });
    let Some((data, options)) = cut else {
        out.extend_from_slice(block);
        return;
    };
    let padded = data.len().next_multiple_of(4);
    let length = ((DATA + padded + options.len()) as u32).to_le_bytes();
    let start = out.len();
    out.extend_from_slice(&block[..DATA]);
    out[start + 4..start + 8].copy_from_slice(&length);
    out[start + CAPTURED..start + CAPTURED + 4].copy_from_slice(&max_len.to_le_bytes());
    out.extend_from_slice(data);
    out.resize(start + DATA + padded, 0);
    out.extend_from_slice(&options[..options.len() - 4]);
    out.extend_from_slice(&length);
}

/// Walks the whole little-endian blocks at the front of `bytes`. It ends at the first block that is cut or malformed;
/// [`Blocks::rest`] then holds the remaining bytes.
pub fn blocks(bytes: &[u8]) -> Blocks<'_> {
    Blocks { rest: bytes }
}

/// Iterator made by [`blocks`].
#[derive(Debug, Clone)]
pub struct Blocks<'a> {
    rest: &'a [u8],
}

impl<'a> Blocks<'a> {
    /// Returns bytes not yet walked. If any remain after the end, the next block is cut or malformed.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Block<'a>;

    fn next(&mut self) -> Option<Block<'a>> {
        let order = ByteOrder::Little;
        let kind = order.u32_at(self.rest, 0)?;
        let total = order.u32_at(self.rest, 4)? as usize;
        if total < MIN_BLOCK_LEN || !total.is_multiple_of(4) {
            return None;
        }
        let (bytes, rest) = self.rest.split_at_checked(total)?;
        let body = &bytes[HEADER_LEN..total - TRAILER_LEN];
        if order.u32_at(bytes, total - TRAILER_LEN)? as usize != total {
            return None;
        }
        self.rest = rest;
        Some(Block { kind, bytes, body })
    }
}

/// The parts of an Enhanced Packet Block's body, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct EnhancedPacket<'a> {
    pub interface_id: u32,
    /// Time in the interface's units: nanoseconds since 1970 in files that trawl writes.
    pub timestamp: u64,
    pub original_len: u32,
    pub captured: &'a [u8],
    options: &'a [u8],
    order: ByteOrder,
}

impl<'a> EnhancedPacket<'a> {
    /// Parses a body; `None` if it is too short for its lengths.
    pub fn parse(body: &'a [u8], order: ByteOrder) -> Option<Self> {
        let (fixed, rest) = body.split_at_checked(EPB_FIXED_LEN)?;
        let word = |at| order.u32_at(fixed, at);
        let timestamp = u64::from(word(4)?) << 32 | u64::from(word(8)?);
        let captured_len = word(12)? as usize;
        Some(Self {
            interface_id: word(0)?,
            timestamp,
            original_len: word(16)?,
            captured: rest.get(..captured_len)?,
            options: rest.get(padded(captured_len)..)?,
            order,
        })
    }

    pub fn captured_len(&self) -> usize {
        self.captured.len()
    }

    pub fn options(&self) -> OptionList<'a> {
        OptionList::new(self.options, self.order)
    }
}

/// An option as stored, without its padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawOption<'a> {
    pub code: u16,
    pub value: &'a [u8],
}

/// Iterator over an option list. It ends at the end mark, at the end of the bytes, or before an option whose length
/// does not fit: readers differ on those, and the packet itself is intact.
#[derive(Debug, Clone)]
pub struct OptionList<'a> {
    rest: &'a [u8],
    order: ByteOrder,
}

impl<'a> OptionList<'a> {
    pub fn new(bytes: &'a [u8], order: ByteOrder) -> Self {
        Self { rest: bytes, order }
    }

    /// Returns the byte order of the option values.
    pub fn byte_order(&self) -> ByteOrder {
        self.order
    }
}

impl<'a> Iterator for OptionList<'a> {
    type Item = RawOption<'a>;

    fn next(&mut self) -> Option<RawOption<'a>> {
        let code = self.order.u16_at(self.rest, 0)?;
        let len = usize::from(self.order.u16_at(self.rest, 2)?);
        if code == OPT_END {
            return None;
        }
        let value = self.rest.get(4..4 + len)?;
        self.rest = self.rest.get(4 + padded(len)..).unwrap_or_default();
        Some(RawOption { code, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcapng::write;

    fn two_blocks() -> Vec<u8> {
        let mut out = Vec::new();
        write::section_header(&mut out, &write::SectionHeader::default());
        write::enhanced_packet(
            &mut out,
            &write::EnhancedPacket {
                interface_id: 7,
                timestamp_ns: 0x1234_5678_9abc_def0,
                captured: &[1, 2, 3, 4, 5],
                original_len: 60,
                queue: Some(3),
                ..Default::default()
            },
        );
        out
    }

    #[test]
    fn walks_whole_blocks_and_reads_a_packet() {
        let bytes = two_blocks();
        let mut walk = blocks(&bytes);
        assert_eq!(walk.next().unwrap().kind, SECTION_HEADER);
        let block = walk.next().unwrap();
        let packet = block.enhanced_packet().unwrap();
        assert_eq!(packet.interface_id, 7);
        assert_eq!(packet.timestamp, 0x1234_5678_9abc_def0);
        assert_eq!(packet.captured, &[1, 2, 3, 4, 5]);
        assert_eq!(packet.original_len, 60);
        assert!(packet.options().any(|o| o.code == EPB_QUEUE && o.value == [3, 0, 0, 0]));
        assert!(walk.next().is_none());
        assert!(walk.rest().is_empty());
    }

    #[test]
    fn stops_before_a_cut_or_damaged_block() {
        let bytes = two_blocks();
        let first = blocks(&bytes).next().unwrap().total_len();
        for cut in first..bytes.len() {
            let mut walk = blocks(&bytes[..cut]);
            assert_eq!(walk.by_ref().count(), 1, "cut at {cut}");
            assert_eq!(walk.rest().len(), cut - first);
        }
        let mut damaged = bytes.clone();
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(blocks(&damaged).count(), 1);
    }

    #[test]
    fn captured_length_beyond_the_body_is_refused() {
        let mut body = vec![0; EPB_FIXED_LEN + 8];
        body[12..16].copy_from_slice(&9u32.to_le_bytes());
        assert!(EnhancedPacket::parse(&body, ByteOrder::Little).is_none());
        body[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(EnhancedPacket::parse(&body, ByteOrder::Little).is_none());
    }
}
