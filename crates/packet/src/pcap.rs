//! The older pcap format: one interface, no options, nanosecond stamps.

pub(crate) mod read;

use crate::pcapng::block::{Block, EnhancedPacket};

/// The magic of a file with nanoseconds.
pub const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
/// The magic of a file with microseconds.
pub const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
/// Alexey Kuznetzov's variant, which old Linux distributions' tcpdump wrote: longer record headers, microseconds.
pub const MAGIC_MODIFIED: u32 = 0xa1b2_cd34;

pub const FILE_HEADER_LEN: usize = 24;
pub const RECORD_HEADER_LEN: usize = 16;
/// With the interface's index, the protocol and the packet's type after the usual fields.
pub const MODIFIED_RECORD_HEADER_LEN: usize = 24;

const NANOSECONDS: u64 = 1_000_000_000;

/// Appends a file header. `snaplen` 0 is stored as libpcap's largest, which readers take as none.
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

/// Appends one record. Seconds past 2106 wrap, as the field does: the caller refuses such times.
pub fn record(out: &mut Vec<u8>, timestamp_ns: u64, captured: &[u8], original_len: u32) {
    for field in [
        (timestamp_ns / NANOSECONDS) as u32,
        (timestamp_ns % NANOSECONDS) as u32,
        captured.len() as u32,
        original_len,
    ] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    out.extend_from_slice(captured);
}

/// Appends a nanosecond Enhanced Packet Block as a record. False, and nothing appended, if the
/// block is not one.
pub fn record_from_block(out: &mut Vec<u8>, block: &Block<'_>) -> bool {
    let Some(EnhancedPacket {
        timestamp,
        captured,
        original_len,
        ..
    }) = block.enhanced_packet()
    else {
        return false;
    };
    record(out, timestamp, captured, original_len);
    true
}
