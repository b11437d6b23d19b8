//! Compressed files with a table of their frames, of which only those are read that hold a span of time.
//!
//! A frame may be left out only if nothing that follows depends on it. So each frame that is looked at has to begin with
//! a record, to name no interface that the first frame does not describe, and to be no earlier than the frames before it
//! that were looked at. What is not so is read from the start to the end, as is a file without a table.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::rc::Rc;

use super::compressed::Compression;
use super::{CaptureReader, Step};
use crate::pcapng::block::{INTERFACE_DESCRIPTION, SECTION_HEADER};
use crate::seekable::{self, Frame};

/// A file whose frames are known.
#[derive(Debug)]
pub struct Seekable<R> {
    file: R,
    compression: Compression,
    frames: Vec<Frame>,
    read: Rc<Cell<u64>>,
}

/// The times of a frame's first packet; none where it holds no packet.
type First = Option<u64>;

impl<R: Read + Seek> Seekable<R> {
    /// The frames of a file by the table at its end; none where it has no such table. The file's position is moved.
    pub fn open(mut file: R) -> io::Result<Option<Self>> {
        let mut magic = Vec::with_capacity(4);
        file.rewind()?;
        file.by_ref().take(4).read_to_end(&mut magic)?;
        let compression = Compression::of(&magic);
        let frames = match compression {
            Compression::None => None,
            _ => seekable::frames_of(&mut file, compression).ok(),
        };
        file.rewind()?;
        Ok(frames.filter(|frames| frames.len() > 2).map(|frames| Self {
            file,
            compression,
            frames,
            read: Rc::default(),
        }))
    }

    /// Compressed bytes that were read so far, by what [`Self::between`] gave back too.
    pub fn bytes_read(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.read)
    }

    /// The file's first frame, those with packets of a span of time, and the last one, where statistics stand.
    ///
    /// `span` tells earliest time and end in nanoseconds by the time of the first packet. None where frames cannot be
    /// told apart by time.
    pub fn between(mut self, span: impl FnOnce(u64) -> (u64, u64)) -> io::Result<Option<Parts<R>>> {
        let first = self.unpack(0)?;
        let Some((header, Some(time))) = header(&first) else {
            return Ok(None);
        };
        let (earliest, end) = span(time);
        let last = self.frames.len() - 1;
        // Frames below `from` begin before the span, those from `to` on after its end.
        let Some(from) = self.first_from(&header, time, earliest)? else {
            return Ok(None);
        };
        let Some(to) = self.first_from(&header, time, end)? else {
            return Ok(None);
        };
        // Packets of the span may follow earlier ones in the frame before.
        let middle = from.saturating_sub(1).max(1)..to.min(last).max(1);
        let wanted = middle.chain([last]);
        Ok(Some(Parts {
            frames: wanted.map(|number| self.frames[number]).collect(),
            file: self.file,
            compression: self.compression,
            current: Cursor::new(first),
            read: self.read,
        }))
    }

    /// The first frame that begins at or after a time, by halves; none if the frames are not in order.
    fn first_from(&mut self, header: &[u8], first: u64, time: u64) -> io::Result<Option<usize>> {
        let (mut low, mut high) = (0, self.frames.len());
        let mut bounds = (first, u64::MAX);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let bytes = self.unpack(middle)?;
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

    fn unpack(&mut self, number: usize) -> io::Result<Vec<u8>> {
        unpack(
            &mut self.file,
            self.compression,
            &self.frames[number],
            &self.read,
        )
    }
}

fn unpack(
    file: &mut (impl Read + Seek),
    compression: Compression,
    frame: &Frame,
    read: &Cell<u64>,
) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(frame.offset))?;
    let mut packed = Vec::new();
    let count = file
        .by_ref()
        .take(frame.compressed.into())
        .read_to_end(&mut packed)?;
    read.set(read.get() + count as u64);
    seekable::unpack(compression, frame, &packed)
}

/// What all frames depend on: the file's header, and the descriptions of interfaces. With the first packet's time.
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

/// The time that a frame begins with; the outer none if it cannot be read by itself.
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

/// What some frames of a file hold, one after the other.
#[derive(Debug)]
pub struct Parts<R> {
    file: R,
    compression: Compression,
    frames: VecDeque<Frame>,
    current: Cursor<Vec<u8>>,
    read: Rc<Cell<u64>>,
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
            let bytes = unpack(&mut self.file, self.compression, &frame, &self.read)?;
            self.current = Cursor::new(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::pcap;

    const FRAMES: u64 = 200;
    const PACKETS: u64 = 50;

    /// Frames of packets a second apart; the time of a packet tells its number.
    fn records(frame: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        if frame == 0 {
            pcap::file_header(&mut bytes, 1, 0);
        }
        for number in frame * PACKETS..(frame + 1) * PACKETS {
            let noise: Vec<u8> = (0..200u64)
                .map(|at| ((at * number * 2_654_435_761) >> 13) as u8)
                .collect();
            pcap::record(&mut bytes, number * 1_000_000_000, &noise, 200);
        }
        bytes
    }

    fn zstd() -> Vec<u8> {
        let mut writer = seekable::Writer::new(Vec::new(), 1);
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
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
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

    /// The seconds of the packets, and how much was read for them.
    fn between(file: &[u8], from: u64, to: u64) -> (Vec<u64>, u64) {
        let seekable = Seekable::open(Cursor::new(file))
            .expect("memory")
            .expect("a table");
        let read = seekable.bytes_read();
        let second = 1_000_000_000;
        let parts = seekable.between(|_| (from * second, to * second));
        let parts = parts.expect("memory").expect("frames in order");
        let mut reader = CaptureReader::new(parts).expect("a header");
        let mut seconds = Vec::new();
        while let Some(packet) = reader.next_packet().expect("whole packets") {
            let time = packet.timestamp_ns / second;
            seconds.extend((from..to).contains(&time).then_some(time));
        }
        (seconds, read.get())
    }

    #[test]
    fn only_the_frames_of_a_span_are_read() {
        let last = FRAMES * PACKETS;
        for file in [zstd(), gzip()] {
            for (from, to) in [
                (5000, 5120),
                (0, 1),
                (49, 51),
                (last - 1, last),
                (last, last + 9),
            ] {
                let (seconds, read) = between(&file, from, to);
                let expected: Vec<u64> = (from..to.min(last)).collect();
                assert_eq!(seconds, expected);
                assert!(
                    read * 5 < file.len() as u64,
                    "{read} of {} bytes for {from} to {to}",
                    file.len()
                );
            }
            let (seconds, _) = between(&file, 0, last);
            assert_eq!(seconds.len() as u64, last);
        }
    }

    #[test]
    fn frames_out_of_order_or_cut_amid_records_are_not_told_apart() {
        let whole: Vec<u8> = (0..FRAMES).flat_map(records).collect();
        let mut amid = seekable::Writer::new(Vec::new(), 1);
        for bytes in whole.chunks(5000) {
            amid.push(bytes).expect("memory");
            amid.end_frame().expect("memory");
        }
        let mut disorder = seekable::Writer::new(Vec::new(), 1);
        for frame in [0, 9, 8, 7, 6, 5, 4, 3, 2, 1] {
            disorder.push(&records(frame)).expect("memory");
            disorder.end_frame().expect("memory");
        }
        for writer in [amid, disorder] {
            let (file, _) = writer.finish().expect("memory");
            let seekable = Seekable::open(Cursor::new(&file))
                .expect("memory")
                .expect("a table");
            assert!(
                seekable
                    .between(|first| (first + 300_000_000_000, u64::MAX))
                    .expect("memory")
                    .is_none()
            );
        }
    }
}
