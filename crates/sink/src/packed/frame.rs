//! The frames of compressed files and the tables after them.
//!
//! A table is a list of the frames' lengths, compressed and uncompressed, each four bytes. For zstd and lz4 it is in a
//! frame that readers skip, like zstd's "seekable format", and ends with the number of frames, a zero byte and a magic
//! number. For gzip it is in the extra field of empty members (subfield `TW`), each of which ends with the number of
//! its entries before ten bytes of empty data.

use std::io::Write;

use lz4_flex::frame::{BlockSize, FrameEncoder, FrameInfo};
use trawl_plan::outputs::Compression;

const SKIPPABLE: u32 = 0x184d_2a5e;
const SEEKABLE: u32 = 0x8f92_eab1;
/// zstd's fastest ordinary level: speed matters more than the last per cent.
const ZSTD_LEVEL: i32 = 1;
/// Entries that fit into the extra field of a gzip member.
const GZIP_ENTRIES: usize = 8000;

const THREADS_MAX: usize = 4;

/// Loss reason of packets that could not be compressed in time.
pub const COMPRESSION_LIMIT: &str = "compression";

/// Returns the number of threads that compress a file.
pub fn compression_threads() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    cpus.min(THREADS_MAX)
}

/// Makes a frame that can be decompressed independently.
pub(super) fn pack(compression: Compression, bytes: &[u8]) -> Vec<u8> {
    let packed = match compression {
        Compression::Zstd => zstd::bulk::compress(bytes, ZSTD_LEVEL),
        Compression::Lz4 => lz4(bytes),
        Compression::Gzip => gzip(bytes),
    };
    // Writing into memory does not fail.
    packed.unwrap_or_default()
}

pub(super) fn table(compression: Compression, frames: &[(u32, u32)]) -> Vec<u8> {
    match compression {
        Compression::Zstd | Compression::Lz4 => skippable(frames),
        Compression::Gzip => frames.chunks(GZIP_ENTRIES).flat_map(empty_member).collect(),
    }
}

fn lz4(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    // All frames have the same block size, so that readers can reuse their buffers.
    let form = FrameInfo::new().block_size(BlockSize::Max1MB);
    let mut encoder = FrameEncoder::with_frame_info(form, Vec::new());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

fn entries(frames: &[(u32, u32)]) -> impl Iterator<Item = u8> + '_ {
    let words = frames.iter().flat_map(|(packed, raw)| [*packed, *raw]);
    words.flat_map(u32::to_le_bytes)
}

fn skippable(frames: &[(u32, u32)]) -> Vec<u8> {
    let length = frames.len() as u32 * 8 + 9;
    let mut table = Vec::new();
    table.extend(SKIPPABLE.to_le_bytes());
    table.extend(length.to_le_bytes());
    table.extend(entries(frames));
    table.extend((frames.len() as u32).to_le_bytes());
    table.push(0);
    table.extend(SEEKABLE.to_le_bytes());
    table
}

fn empty_member(frames: &[(u32, u32)]) -> Vec<u8> {
    let length = frames.len() as u16 * 8 + 4;
    // Deflate, with an extra field, without a time, of an unknown system.
    let mut member = vec![0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff];
    member.extend((length + 4).to_le_bytes());
    member.extend(*b"TW");
    member.extend(length.to_le_bytes());
    member.extend(entries(frames));
    member.extend((frames.len() as u32).to_le_bytes());
    // An empty block, with a checksum and a length of zero.
    member.extend([3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    member
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn unpack(compression: Compression, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match compression {
            Compression::Zstd => {
                zstd::stream::copy_decode(bytes, &mut out).expect("zstd");
            }
            Compression::Lz4 => {
                // The decoder ends with each frame, and continues on the next call.
                let mut decoder = lz4_flex::frame::FrameDecoder::new(bytes);
                while decoder.read_to_end(&mut out).expect("lz4") > 0 {}
            }
            Compression::Gzip => {
                let mut decoder = flate2::read::MultiGzDecoder::new(bytes);
                decoder.read_to_end(&mut out).expect("gzip");
            }
        }
        out
    }

    /// Returns the table of a file, located by its last bytes.
    fn table(compression: Compression, file: &[u8]) -> Vec<(u32, u32)> {
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes"));
        let end = match compression {
            Compression::Gzip => file.len() - 14,
            _ => file.len() - 9,
        };
        let count = word(end) as usize;
        let start = end - 8 * count;
        (0..count).map(|entry| (word(start + 8 * entry), word(start + 8 * entry + 4))).collect()
    }

    #[test]
    fn any_frame_can_be_read_with_the_table_alone() {
        for compression in [Compression::Zstd, Compression::Lz4, Compression::Gzip] {
            let lengths = [10_000, 400_000, 1 << 20, 70_000, 3];
            let parts: Vec<Vec<u8>> = lengths.iter().map(|length| vec![7; *length]).collect();
            let packed: Vec<Vec<u8>> = parts.iter().map(|part| pack(compression, part)).collect();
            let frames: Vec<(u32, u32)> =
                packed.iter().zip(&parts).map(|(packed, part)| (packed.len() as u32, part.len() as u32)).collect();
            let mut file = packed.concat();
            file.extend(super::table(compression, &frames));
            let found = table(compression, &file);
            assert_eq!(found, frames);
            let start: u32 = found[..3].iter().map(|(packed, _)| packed).sum();
            let third = &file[start as usize..(start + found[3].0) as usize];
            assert_eq!(unpack(compression, third), parts[3]);
            // All frames one after the other.
            file.truncate(packed.concat().len());
            assert_eq!(unpack(compression, &file), parts.concat());
        }
    }
}
