//! Compressed files in independent frames with a table of them at the end: zstd's "seekable format" for zstd and lz4,
//! the extra fields of empty members for gzip. Any tool decompresses the whole file, and a reader of the table can
//! decompress one frame without the others.

use std::collections::VecDeque;
use std::io::{self, Cursor, ErrorKind, Read, Seek, SeekFrom, Write};

use crate::pcapng::block::{INTERFACE_DESCRIPTION, SECTION_HEADER};
use crate::read::compressed::Compression;
use crate::read::{CaptureReader, Step};

/// Maximum number of decompressed bytes in a frame.
pub const FRAME_LEN: usize = 1 << 20;

const SKIPPABLE_MAGIC: u32 = 0x184d_2a5e;
const TABLE_MAGIC: u32 = 0x8f92_eab1;
/// Number of frames, descriptor, magic.
const FOOTER_LEN: usize = 9;
const ENTRY_LEN: usize = 8;
const CHECKSUM_FLAG: u8 = 0x80;

/// Position of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Offset in the file.
    pub offset: u64,
    pub compressed: u32,
    /// Offset in the decompressed data.
    pub start: u64,
    pub decompressed: u32,
}

/// Compresses data, a frame at a time.
pub struct Writer<W> {
    out: W,
    level: i32,
    frame: Vec<u8>,
    entries: Vec<(u32, u32)>,
    written: u64,
    pushed: u64,
}

impl<W> std::fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("frames", &self.entries.len()).finish_non_exhaustive()
    }
}

impl<W: Write> Writer<W> {
    pub fn new(out: W, level: i32) -> Self {
        Self { out, level, frame: Vec::with_capacity(FRAME_LEN), entries: Vec::new(), written: 0, pushed: 0 }
    }

    /// Adds bytes that stay in one frame, unless they are longer than a frame.
    pub fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.make_room(bytes.len())?;
        self.pushed += bytes.len() as u64;
        self.frame.extend_from_slice(bytes);
        Ok(())
    }

    /// Ends the current frame unless `length` bytes fit into it. Returns the number of ended frames.
    pub fn make_room(&mut self, length: usize) -> io::Result<usize> {
        if self.frame.len() + length > FRAME_LEN {
            self.end_frame()?;
        }
        Ok(self.entries.len())
    }

    /// Returns the number of uncompressed bytes added so far.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Returns the number of compressed bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the number of bytes that wait for compression.
    pub fn pending(&self) -> u64 {
        self.frame.len() as u64
    }

    /// Ends the current frame.
    pub fn end_frame(&mut self) -> io::Result<()> {
        if self.frame.is_empty() {
            return Ok(());
        }
        let mut compressor = zstd::bulk::Compressor::new(self.level)?;
        // A reader of one frame cannot check the hash of the whole file.
        compressor.include_checksum(true)?;
        let compressed = compressor.compress(&self.frame)?;
        self.out.write_all(&compressed)?;
        self.entries.push((compressed.len() as u32, self.frame.len() as u32));
        self.written += compressed.len() as u64;
        self.frame.clear();
        Ok(())
    }

    /// Writes the last frame and the table. Returns the output and its total length.
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

/// Returns the length of the table at the end of a file, with its header, from the file's last 9 bytes.
pub fn table_len(end: &[u8]) -> io::Result<usize> {
    let footer = end.last_chunk::<FOOTER_LEN>().ok_or_else(|| damaged("too short for a seek table"))?;
    let [n0, n1, n2, n3, flags, magic @ ..] = *footer;
    if u32::from_le_bytes(magic) != TABLE_MAGIC {
        return Err(damaged("no seek table at the end"));
    }
    let entry = ENTRY_LEN + if flags & CHECKSUM_FLAG == 0 { 0 } else { 4 };
    Ok(8 + u32::from_le_bytes([n0, n1, n2, n3]) as usize * entry + FOOTER_LEN)
}

/// Returns the frames of a file from its last bytes: the whole table, or more.
pub fn frames(end: &[u8]) -> io::Result<Vec<Frame>> {
    let length = table_len(end)?;
    let table = end
        .len()
        .checked_sub(length)
        .map(|from| &end[from..])
        .ok_or_else(|| damaged("the seek table is longer than the file"))?;
    let (header, entries) = table.split_at(8);
    if header[..4] != SKIPPABLE_MAGIC.to_le_bytes() || header[4..] != (length as u32 - 8).to_le_bytes() {
        return Err(damaged("the seek table has no header"));
    }
    let flags = end[end.len() - 5];
    let entry = ENTRY_LEN + if flags & CHECKSUM_FLAG == 0 { 0 } else { 4 };
    Ok(placed(&entries[..entries.len() - FOOTER_LEN], entry))
}

/// Decompresses a frame of a chunk. A frame of more than [`FRAME_LEN`] is one block, as [`Writer`] makes it: others are
/// refused before they are decompressed.
pub fn decompress(frame: &Frame, compressed: &[u8]) -> io::Result<Vec<u8>> {
    if frame.decompressed as usize > FRAME_LEN {
        let mut head = [0; 8];
        zstd::stream::read::Decoder::new(compressed)?.read_exact(&mut head)?;
        if le32(&head, 4) != frame.decompressed {
            return Err(damaged("a frame is larger than 1 MiB, but does not consist of one block"));
        }
    }
    unpack(Compression::Zstd, frame, compressed)
}

/// Decompresses a frame.
pub fn unpack(compression: Compression, frame: &Frame, compressed: &[u8]) -> io::Result<Vec<u8>> {
    // No frame may require more memory than a block of a capture file can need.
    const MAX_LEN: u32 = 64 << 20;
    if frame.decompressed > MAX_LEN {
        return Err(damaged("a frame claims to hold more than 64 MiB"));
    }
    let length = frame.decompressed as usize;
    let streamed = |source: &mut dyn Read| {
        let mut bytes = Vec::new();
        source.take(length as u64 + 1).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    let bytes = match compression {
        Compression::None => compressed.to_vec(),
        // Streamed, so that no more is allocated than is decompressed.
        Compression::Zstd => streamed(&mut zstd::stream::read::Decoder::new(compressed)?)?,
        Compression::Lz4 => streamed(&mut lz4_flex::frame::FrameDecoder::new(compressed))?,
        Compression::Gzip => streamed(&mut flate2::read::GzDecoder::new(compressed))?,
    };
    if bytes.len() != length {
        return Err(damaged("the length of a frame differs from the seek table"));
    }
    Ok(bytes)
}

/// Returns the frames of a file from the table at its end, reading nothing else.
pub fn frames_of(file: &mut (impl Read + Seek), compression: Compression) -> io::Result<Vec<Frame>> {
    let length = file.seek(SeekFrom::End(0))?;
    let (table, frames) = match compression {
        Compression::Gzip => gzip_frames(file, length)?,
        _ => {
            let footer = bytes_at(file, length.checked_sub(FOOTER_LEN as u64), FOOTER_LEN)?;
            let table = table_len(&footer)?;
            let end = bytes_at(file, length.checked_sub(table as u64), table)?;
            (table as u64, frames(&end)?)
        }
    };
    let end = frames.last().map(|frame| frame.offset + u64::from(frame.compressed));
    if end.unwrap_or(0) + table != length {
        return Err(damaged("the seek table does not match the file's length"));
    }
    Ok(frames)
}

/// Reads bytes without allocating for bytes beyond the end of the file.
fn bytes_at(file: &mut (impl Read + Seek), at: Option<u64>, length: usize) -> io::Result<Vec<u8>> {
    let at = at.ok_or_else(|| damaged("the seek table is longer than the file"))?;
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    file.by_ref().take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() == length { Ok(bytes) } else { Err(damaged("the seek table is longer than the file")) }
}

/// Reads the tables of a gzip file in the extra fields of empty members, which are found from the end. Returns their
/// length.
fn gzip_frames(file: &mut (impl Read + Seek), length: u64) -> io::Result<(u64, Vec<Frame>)> {
    /// Number of entries, an empty block, and checksum and length of no data.
    const END: usize = 14;
    /// Header of a member, length of the extra field, name and length of the subfield.
    const START: usize = 16;
    let mut tables = Vec::new();
    let (mut at, mut packed) = (length, 0u64);
    while at != packed {
        let end = bytes_at(file, at.checked_sub(END as u64), END)?;
        let count = le32(&end, 0) as usize;
        let fits = count > 0 && count <= usize::from(u16::MAX) / ENTRY_LEN;
        if !fits || end[4..] != [3, 0, 0, 0, 0, 0, 0, 0, 0, 0] {
            return Err(damaged("no seek table at the end"));
        }
        let whole = START + count * ENTRY_LEN + END;
        let member = bytes_at(file, at.checked_sub(whole as u64), whole)?;
        if member[..4] != [0x1f, 0x8b, 8, 4] || member[12..14] != *b"TW" {
            return Err(damaged("the seek table has no header"));
        }
        let entries = member[START..START + count * ENTRY_LEN].to_vec();
        packed += entries.chunks_exact(ENTRY_LEN).map(|entry| u64::from(le32(entry, 0))).sum::<u64>();
        at -= whole as u64;
        tables.push(entries);
        if packed > at {
            return Err(damaged("the seek table does not match the file's length"));
        }
    }
    tables.reverse();
    Ok((length - at, placed(&tables.concat(), ENTRY_LEN)))
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]))
}

/// Returns the positions of consecutive frames from their lengths.
fn placed(entries: &[u8], entry_len: usize) -> Vec<Frame> {
    let (mut offset, mut start) = (0, 0);
    let frames = entries.chunks_exact(entry_len).map(|entry| {
        let frame = Frame { offset, compressed: le32(entry, 0), start, decompressed: le32(entry, 4) };
        offset += u64::from(frame.compressed);
        start += u64::from(frame.decompressed);
        frame
    });
    frames.collect()
}

/// A file with its frames.
#[derive(Debug)]
pub struct Seekable<R> {
    file: R,
    compression: Compression,
    frames: Vec<Frame>,
}

/// Time of a frame's first packet; `None` without a packet.
type First = Option<u64>;

impl<R: Read + Seek> Seekable<R> {
    /// Opens a file by the table at its end; `None` without a table. Moves the file's position.
    pub fn open(mut file: R) -> io::Result<Option<Self>> {
        let mut magic = Vec::with_capacity(4);
        file.rewind()?;
        file.by_ref().take(4).read_to_end(&mut magic)?;
        let compression = Compression::of(&magic);
        let frames = match compression {
            Compression::None => None,
            _ => frames_of(&mut file, compression).ok(),
        };
        file.rewind()?;
        Ok(frames.filter(|frames| frames.len() > 2).map(|frames| Self { file, compression, frames }))
    }

    /// Returns the file's first frame, the frames with packets of a time span, and the last one, which holds the
    /// statistics. `span` returns the earliest time and the end in nanoseconds, from the time of the first packet.
    /// `None` if the frames are not ordered by time.
    pub fn between(mut self, span: impl FnOnce(u64) -> (u64, u64)) -> io::Result<Option<Parts<R>>> {
        let first = self.read_frame(0)?;
        let Some((header, Some(time))) = header(&first) else {
            return Ok(None);
        };
        let (earliest, end) = span(time);
        let last = self.frames.len() - 1;
        // Frames below `from` begin before the span, and frames from `to` on after its end.
        let Some(from) = self.first_from(&header, time, earliest)? else {
            return Ok(None);
        };
        let Some(to) = self.first_from(&header, time, end)? else {
            return Ok(None);
        };
        // Packets of the span may follow earlier ones in the preceding frame.
        let middle = from.saturating_sub(1).max(1)..to.min(last).max(1);
        let wanted = middle.chain([last]);
        Ok(Some(Parts {
            frames: wanted.map(|number| self.frames[number]).collect(),
            file: self.file,
            compression: self.compression,
            current: Cursor::new(first),
        }))
    }

    /// Finds the first frame that begins at or after a time, by binary search; `None` if the frames are out of order.
    fn first_from(&mut self, header: &[u8], first: u64, time: u64) -> io::Result<Option<usize>> {
        let (mut low, mut high) = (0, self.frames.len());
        let mut bounds = (first, u64::MAX);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let bytes = self.read_frame(middle)?;
            let Some(begins) = begins(header, &bytes) else {
                return Ok(None);
            };
            if begins.is_some_and(|time| time < bounds.0 || time > bounds.1) {
                return Ok(None);
            }
            match begins {
                Some(begins) if begins < time => (low, bounds.0) = (middle, begins),
                begins => (high, bounds.1) = (middle, begins.unwrap_or(bounds.1)),
            }
        }
        Ok(Some(high))
    }

    fn read_frame(&mut self, number: usize) -> io::Result<Vec<u8>> {
        read_frame(&mut self.file, self.compression, &self.frames[number])
    }
}

fn read_frame(file: &mut (impl Read + Seek), compression: Compression, frame: &Frame) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(frame.offset))?;
    let mut packed = Vec::new();
    file.by_ref().take(frame.compressed.into()).read_to_end(&mut packed)?;
    unpack(compression, frame, &packed)
}

/// Returns the file's header and interface descriptions, which all frames depend on, and the first packet's time.
fn header(frame: &[u8]) -> Option<(Vec<u8>, First)> {
    let mut reader = CaptureReader::new(frame).ok()?;
    let mut header = reader.pcap_header().unwrap_or_default().to_vec();
    let (mut sections, mut first) = (0, None);
    while let Some(step) = reader.step().ok()? {
        match step {
            Step::Packet => {
                first = first.or(reader.time_and_interface().map(|(time, _)| time));
            }
            Step::Block { kind } => {
                sections += usize::from(kind == SECTION_HEADER);
                if matches!(kind, SECTION_HEADER | INTERFACE_DESCRIPTION) {
                    header.extend_from_slice(reader.raw());
                }
            }
        }
    }
    // Interfaces of another section have numbers of their own.
    (sections <= 1).then_some((header, first))
}

/// Returns the time of a frame's first packet, or the outer `None` if the frame cannot be read without the frames before.
fn begins(header: &[u8], frame: &[u8]) -> Option<First> {
    let mut reader = CaptureReader::new(header.chain(frame)).ok()?;
    let mut first = None;
    let (mut sections, mut before) = (0, 0);
    while let Some(step) = reader.step().ok()? {
        match step {
            Step::Packet => {
                let (time, _) = reader.time_and_interface()?;
                if time < before {
                    return None;
                }
                before = time;
                first = first.or(Some(time));
            }
            Step::Block { kind } => sections += usize::from(kind == SECTION_HEADER),
        }
    }
    (sections <= 1).then_some(first)
}

/// The contents of some consecutive frames of a file.
#[derive(Debug)]
pub struct Parts<R> {
    file: R,
    compression: Compression,
    frames: VecDeque<Frame>,
    current: Cursor<Vec<u8>>,
}

impl<R: Read + Seek> Read for Parts<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.current.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            let Some(frame) = self.frames.pop_front() else {
                return Ok(0);
            };
            let bytes = read_frame(&mut self.file, self.compression, &frame)?;
            self.current = Cursor::new(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::pcap;

    proptest! {
        #[test]
        fn frames_are_found_by_the_table(lengths in prop::collection::vec(0usize..300_000, 0..12)) {
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
        fn large_frames_are_decompressed_if_they_are_one_block(more in 1u32..5000, one in any::<bool>()) {
            let length = FRAME_LEN as u32 + more;
            let mut block = vec![0; length as usize];
            let claimed = if one { length } else { 64 };
            block[4..8].copy_from_slice(&claimed.to_le_bytes());
            let mut writer = Writer::new(Vec::new(), 1);
            writer.push(&block).expect("memory");
            let (file, _) = writer.finish().expect("memory");
            let frame = frames(&file).expect("a table")[0];
            let read = decompress(&frame, &file[..frame.compressed as usize]);
            prop_assert_eq!(read.is_ok_and(|bytes| bytes == block), one);
        }

        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), entries in any::<u32>()) {
            let mut end = bytes;
            let _ = frames(&end);
            end.extend_from_slice(&entries.to_le_bytes());
            end.push(0);
            end.extend_from_slice(&TABLE_MAGIC.to_le_bytes());
            prop_assert!(frames(&end).is_err() || entries <= 8);
        }
    }

    const FRAMES: u64 = 200;
    const PACKETS: u64 = 50;

    /// Returns a frame of packets a second apart; the time of a packet encodes its number.
    fn records(frame: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        if frame == 0 {
            pcap::file_header(&mut bytes, 1, 0);
        }
        for number in frame * PACKETS..(frame + 1) * PACKETS {
            let noise: Vec<u8> = (0..200u64).map(|at| ((at * number * 2_654_435_761) >> 13) as u8).collect();
            pcap::record(&mut bytes, number * 1_000_000_000, &noise, 200);
        }
        bytes
    }

    fn zstd() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), 1);
        for frame in 0..FRAMES {
            writer.push(&records(frame)).expect("memory");
            writer.end_frame().expect("memory");
        }
        writer.finish().expect("memory").0
    }

    fn gzip() -> Vec<u8> {
        let mut file = Vec::new();
        let mut entries = Vec::new();
        for frame in 0..FRAMES {
            let raw = records(frame);
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&raw).expect("memory");
            let packed = encoder.finish().expect("memory");
            entries.extend((packed.len() as u32).to_le_bytes());
            entries.extend((raw.len() as u32).to_le_bytes());
            file.extend(packed);
        }
        file.extend([0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff]);
        file.extend((entries.len() as u16 + 8).to_le_bytes());
        file.extend(*b"TW");
        file.extend((entries.len() as u16 + 4).to_le_bytes());
        file.extend(&entries);
        file.extend((FRAMES as u32).to_le_bytes());
        file.extend([3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        file
    }

    /// A file that counts the bytes read from it.
    struct Counting<'a>(Cursor<&'a [u8]>, Arc<AtomicU64>);

    impl Read for Counting<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.0.read(buffer)?;
            self.1.fetch_add(count as u64, Ordering::Relaxed);
            Ok(count)
        }
    }

    impl Seek for Counting<'_> {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    /// Returns the seconds of the packets, and the number of bytes read for them.
    fn between(file: &[u8], from: u64, to: u64) -> (Vec<u64>, u64) {
        let read = Arc::default();
        let seekable =
            Seekable::open(Counting(Cursor::new(file), Arc::clone(&read))).expect("memory").expect("a table");
        let second = 1_000_000_000;
        let parts = seekable.between(|_| (from * second, to * second));
        let parts = parts.expect("memory").expect("frames in order");
        let mut reader = CaptureReader::new(parts).expect("a header");
        let mut seconds = Vec::new();
        while let Some(packet) = reader.next_packet().expect("whole packets") {
            let time = packet.timestamp_ns / second;
            seconds.extend((from..to).contains(&time).then_some(time));
        }
        (seconds, read.load(Ordering::Relaxed))
    }

    #[test]
    fn only_frames_of_the_span_are_read() {
        let last = FRAMES * PACKETS;
        for file in [zstd(), gzip()] {
            for (from, to) in [(5000, 5120), (0, 1), (49, 51), (last - 1, last), (last, last + 9)] {
                let (seconds, read) = between(&file, from, to);
                let expected: Vec<u64> = (from..to.min(last)).collect();
                assert_eq!(seconds, expected);
                assert!(read * 5 < file.len() as u64, "{read} of {} bytes for {from} to {to}", file.len());
            }
            let (seconds, _) = between(&file, 0, last);
            assert_eq!(seconds.len() as u64, last);
        }
    }

    #[test]
    fn frames_out_of_order_or_cut_amid_records_are_not_selected() {
        let whole: Vec<u8> = (0..FRAMES).flat_map(records).collect();
        let mut amid = Writer::new(Vec::new(), 1);
        for bytes in whole.chunks(5000) {
            amid.push(bytes).expect("memory");
            amid.end_frame().expect("memory");
        }
        let mut disorder = Writer::new(Vec::new(), 1);
        for frame in [0, 9, 8, 7, 6, 5, 4, 3, 2, 1] {
            disorder.push(&records(frame)).expect("memory");
            disorder.end_frame().expect("memory");
        }
        for writer in [amid, disorder] {
            let (file, _) = writer.finish().expect("memory");
            let seekable = Seekable::open(Cursor::new(&file)).expect("memory").expect("a table");
            assert!(seekable.between(|first| (first + 300_000_000_000, u64::MAX)).expect("memory").is_none());
        }
    }
}
