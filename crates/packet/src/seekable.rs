//! zstd in independent frames with a table of them at the end (zstd's "seekable format"): any tool decompresses the
//! whole, and who knows the table reads one frame without the others.

use std::io::{self, ErrorKind, Write};

/// Decompressed bytes of a frame, at most.
pub const FRAME_LEN: usize = 1 << 20;

const SKIPPABLE_MAGIC: u32 = 0x184d_2a5e;
const TABLE_MAGIC: u32 = 0x8f92_eab1;
/// Number of frames, descriptor, magic.
const FOOTER_LEN: usize = 9;
const ENTRY_LEN: usize = 8;
const CHECKSUM_FLAG: u8 = 0x80;

/// Where one frame lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// In the file.
    pub offset: u64,
    pub compressed: u32,
    /// In what the file holds.
    pub start: u64,
    pub decompressed: u32,
}

/// Compresses what it is given, a frame at a time.
pub struct Writer<W> {
    out: W,
    level: i32,
    frame: Vec<u8>,
    entries: Vec<(u32, u32)>,
    written: u64,
    taken: u64,
}

impl<W> std::fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("frames", &self.entries.len())
            .finish_non_exhaustive()
    }
}

impl<W: Write> Writer<W> {
    pub fn new(out: W, level: i32) -> Self {
        Self {
            out,
            level,
            frame: Vec::with_capacity(FRAME_LEN),
            entries: Vec::new(),
            written: 0,
            taken: 0,
        }
    }

    /// Adds bytes that stay together: a frame is ended before them, rather than amid them, unless they are longer than
    /// one.
    pub fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.frame.len() + bytes.len() > FRAME_LEN {
            self.end_frame()?;
        }
        self.taken += bytes.len() as u64;
        self.frame.extend_from_slice(bytes);
        Ok(())
    }

    /// Bytes that were given to be compressed.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Compressed bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    fn end_frame(&mut self) -> io::Result<()> {
        if self.frame.is_empty() {
            return Ok(());
        }
        let compressed = zstd::bulk::compress(&self.frame, self.level)?;
        self.out.write_all(&compressed)?;
        self.entries
            .push((compressed.len() as u32, self.frame.len() as u32));
        self.written += compressed.len() as u64;
        self.frame.clear();
        Ok(())
    }

    /// Writes the last frame and the table. Gives back what was written to, and the length of it all.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        self.end_frame()?;
        let length = self.entries.len() * ENTRY_LEN + FOOTER_LEN;
        let mut table = Vec::with_capacity(length + 8);
        table.extend_from_slice(&SKIPPABLE_MAGIC.to_le_bytes());
        table.extend_from_slice(&(length as u32).to_le_bytes());
        for (compressed, decompressed) in &self.entries {
            table.extend_from_slice(&compressed.to_le_bytes());
            table.extend_from_slice(&decompressed.to_le_bytes());
        }
        table.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        table.push(0);
        table.extend_from_slice(&TABLE_MAGIC.to_le_bytes());
        self.out.write_all(&table)?;
        let length = self.written + table.len() as u64;
        Ok((self.out, length))
    }
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

/// Length of the table, with its header, that a file ends with, told by its last 9 bytes.
pub fn table_len(end: &[u8]) -> io::Result<usize> {
    let footer = end
        .last_chunk::<FOOTER_LEN>()
        .ok_or_else(|| damaged("too short for a seek table"))?;
    let [n0, n1, n2, n3, flags, magic @ ..] = *footer;
    if u32::from_le_bytes(magic) != TABLE_MAGIC {
        return Err(damaged("no seek table at the end"));
    }
    let entry = ENTRY_LEN + if flags & CHECKSUM_FLAG == 0 { 0 } else { 4 };
    Ok(8 + u32::from_le_bytes([n0, n1, n2, n3]) as usize * entry + FOOTER_LEN)
}

/// The frames of a file, by the bytes that it ends with: the whole table, or more.
pub fn frames(end: &[u8]) -> io::Result<Vec<Frame>> {
    let length = table_len(end)?;
    let table = end
        .len()
        .checked_sub(length)
        .map(|from| &end[from..])
        .ok_or_else(|| damaged("the seek table is longer than the file"))?;
    let (header, entries) = table.split_at(8);
    if header[..4] != SKIPPABLE_MAGIC.to_le_bytes()
        || header[4..] != (length as u32 - 8).to_le_bytes()
    {
        return Err(damaged("the seek table has no header"));
    }
    let flags = end[end.len() - 5];
    let entry = ENTRY_LEN + if flags & CHECKSUM_FLAG == 0 { 0 } else { 4 };
    let (mut offset, mut start) = (0, 0);
    let frames = entries[..entries.len() - FOOTER_LEN]
        .chunks_exact(entry)
        .map(|entry| {
            let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| entry[at + i]));
            let frame = Frame {
                offset,
                compressed: word(0),
                start,
                decompressed: word(4),
            };
            offset += u64::from(frame.compressed);
            start += u64::from(frame.decompressed);
            frame
        });
    Ok(frames.collect())
}

/// What a frame holds.
pub fn decompress(frame: &Frame, compressed: &[u8]) -> io::Result<Vec<u8>> {
    // No frame may ask for more memory than a block of a capture file can need.
    const MOST: u32 = 64 << 20;
    if frame.decompressed > MOST {
        return Err(damaged("a frame claims to hold more than 64 MiB"));
    }
    let bytes = zstd::bulk::decompress(compressed, frame.decompressed as usize)?;
    if bytes.len() != frame.decompressed as usize {
        return Err(damaged("a frame holds less than the seek table says"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_frame_is_found_by_the_table(lengths in prop::collection::vec(0usize..300_000, 0..12)) {
            let mut writer = Writer::new(Vec::new(), 1);
            let mut whole = Vec::new();
            for (number, length) in lengths.iter().enumerate() {
                let bytes = vec![number as u8; *length];
                writer.push(&bytes).expect("memory takes it");
                whole.extend_from_slice(&bytes);
            }
            let (file, length) = writer.finish().expect("memory takes it");
            prop_assert_eq!(length, file.len() as u64);
            let mut read = Vec::new();
            for frame in frames(&file).expect("a table") {
                let compressed = &file[frame.offset as usize..][..frame.compressed as usize];
                prop_assert_eq!(frame.start, read.len() as u64);
                read.extend(decompress(&frame, compressed).expect("a frame"));
            }
            prop_assert_eq!(&read, &whole);
            prop_assert_eq!(zstd::decode_all(&file[..]).expect("zstd reads it"), whole);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), entries in any::<u32>()) {
            let mut end = bytes;
            let _ = frames(&end);
            end.extend_from_slice(&entries.to_le_bytes());
            end.push(0);
            end.extend_from_slice(&TABLE_MAGIC.to_le_bytes());
            prop_assert!(frames(&end).is_err() || entries <= 8);
        }
    }
}
