//! A pcapng file written past the page cache: segments of the ring as they are, all other blocks gathered in aligned
//! buffers. Blocks that arrive slowly are first written through the page cache, and once more when their buffer is
//! full.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use trawl_io::disk::{Aligned, Disk, Done, Piece, UNIT, Write, first_hole};
use trawl_io::writeback::{NotOnDisk, wait_for};
use trawl_packet::pcapng::block::blocks;
use trawl_packet::pcapng::write::filling;
use trawl_pipeline::{Blocks, FileWriter, Leased, Pressure, Stored, UNWATCHED, WriteOutcome, Writer};
use trawl_sys::process::warden::WholeBytes;
use trawl_sys::{Error, Result};

use crate::form;
use crate::intact::{Harm, Watch, lost_by_disk, refused};

const BUFFER: usize = 1 << 20;
/// Maximum number of buffers that are being filled or written.
const BUFFERS: usize = 8;
/// Maximum number of pieces that are started together.
const BATCH: usize = 32;
/// Size of reserved portions of disk space.
const RESERVE: u64 = 64 << 20;
/// Interval at which slowly arriving blocks are written.
const FLUSH_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct DirectFile {
    plain: File,
    name: String,
    disk: Disk,
    whole_bytes: Option<WholeBytes>,
    /// Received bytes not yet queued for the disk; `tail_at` is their position in the file.
    tail: Aligned,
    tail_at: u64,
    spare: Vec<Aligned>,
    buffers: usize,
    queue: VecDeque<Write>,
    /// Written pieces that end with the beginning of a block.
    kept: VecDeque<(u64, Piece)>,
    /// Ends of blocks not yet in the file; `whole` is the last one in it.
    boundaries: VecDeque<u64>,
    whole: u64,
    /// End of the contiguous bytes in the file.
    done_to: u64,
    /// End of the bytes on the disk; later bytes may be in the page cache only.
    on_disk_to: u64,
    length: u64,
    reserved: u64,
    /// Maximum length of the file.
    max_length: u64,
    flushed: Instant,
    watch: Watch,
    /// End of the bytes that were intact at the last check.
    intact_to: u64,
    outcome: WriteOutcome,
    has_failed: bool,
}

impl DirectFile {
    /// Opens an empty file for direct writing. Fails if its file system does not support that.
    pub fn new(plain: File, name: String, whole_bytes: Option<WholeBytes>) -> io::Result<Self> {
        let disk = Disk::open(plain.as_fd())?;
        let watch = Watch::of(&plain);
        let buffer = || Aligned::new(BUFFER).map_err(|e| io::Error::other(e.to_string()));
        Ok(Self {
            plain,
            name,
            disk,
            whole_bytes,
            tail: buffer()?,
            tail_at: 0,
            spare: vec![buffer()?],
            buffers: 2,
            queue: VecDeque::new(),
            kept: VecDeque::new(),
            boundaries: VecDeque::new(),
            whole: 0,
            done_to: 0,
            on_disk_to: 0,
            length: 0,
            reserved: 0,
            max_length: u64::MAX,
            flushed: Instant::now(),
            watch,
            intact_to: 0,
            outcome: WriteOutcome::default(),
            has_failed: false,
        })
    }

    /// Limits the reserved space to this length.
    pub fn up_to(mut self, most: Option<u64>) -> Self {
        self.max_length = most.unwrap_or(u64::MAX);
        self
    }

    /// Handles finished writes, and starts the next ones.
    fn pump(&mut self, wait: bool) -> Result<()> {
        if let Some(done) = self.disk.finished(wait) {
            self.complete_writes(done)?;
        }
        if self.disk.is_idle() && !self.queue.is_empty() {
            let count = self.queue.len().min(BATCH);
            let batch: Vec<Write> = self.queue.drain(..count).collect();
            if let Some(last) = batch.last() {
                self.reserve(last.offset + last.piece.bytes().len() as u64);
            }
            self.disk.start(batch);
        }
        Ok(())
    }

    /// Reserves disk space up to `end`. A failure is ignored: it only lets the file fragment.
    fn reserve(&mut self, end: u64) {
        if end <= self.reserved {
            return;
        }
        let from = self.length.max(self.reserved);
        let size = RESERVE.min(self.max_length.saturating_sub(from)).max(end.saturating_sub(from));
        match self.disk.reserve(from, size) {
            Ok(()) => self.reserved = from + size,
            Err(_) => self.reserved = u64::MAX,
        }
    }

    fn complete_writes(&mut self, done: Vec<Done>) -> Result<()> {
        let mut failure = None;
        let mut reached = self.done_to;
        for Done { write, written } in done {
            if failure.is_none() {
                let bytes = write.piece.bytes();
                let at = write.offset + written as u64;
                // Write the rest through the page cache; if that fails as well, its error is the reason.
                let (more, error) = write_at(&self.plain, &bytes[written..], at);
                reached = reached.max(at + more as u64);
                failure = error;
            }
            self.kept.push_back((write.offset, write.piece));
        }
        // The page cache accepts bytes that the disk does not, and some file systems use it for a direct write that
        // fails: the bytes must be on the disk before they count.
        let length = reached - self.on_disk_to;
        self.check(wait_for(&self.plain, self.on_disk_to, length))?;
        (self.done_to, self.on_disk_to) = (reached, reached);
        self.advance();
        failure.map_or(Ok(()), |error| self.fail(error))
    }

    /// Advances the last boundary, and releases the pieces before it.
    fn advance(&mut self) {
        while let Some(boundary) = self.boundaries.front().filter(|end| **end <= self.done_to) {
            self.whole = *boundary;
            self.boundaries.pop_front();
        }
        if let Some(bytes) = &self.whole_bytes {
            bytes.set(self.whole);
        }
        while let Some((at, piece)) = self.kept.front()
            && at + piece.bytes().len() as u64 <= self.whole
        {
            if let Some((_, Piece::Buffer(mut buffer))) = self.kept.pop_front() {
                buffer.clear();
                self.spare.push(buffer);
            }
        }
    }

    /// Cuts the file after its last whole block, and counts the packets that are not in it.
    fn fail(&mut self, error: io::Error) -> Result<()> {
        self.check(wait_for(&self.plain, self.on_disk_to, 0))?;
        let mut rest = Vec::new();
        let mut start = None;
        let queued = self.queue.drain(..).map(|write| (write.offset, write.piece));
        for (at, piece) in self.kept.drain(..).chain(queued) {
            start.get_or_insert(at);
            rest.extend_from_slice(piece.bytes());
        }
        let start = start.unwrap_or(self.tail_at);
        rest.extend_from_slice(self.tail.bytes());
        rest.drain(..(self.whole - start) as usize);
        let in_file = (self.done_to - self.whole) as usize;
        let mut more = 0;
        for block in blocks(&rest) {
            if more + block.bytes.len() > in_file {
                break;
            }
            more += block.bytes.len();
        }
        self.whole += more as u64;
        self.outcome.unwritten.add_blocks(&rest[more..]);
        self.truncate_to(self.whole);
        Err(refused(&self.name, self.whole, error))
    }

    /// Cuts the file to this length, and resets the state of pending writes.
    fn truncate_to(&mut self, end: u64) {
        if let Some(bytes) = &self.whole_bytes {
            bytes.set(end);
        }
        // A failure here would concern the same disk.
        let _ = self.plain.set_len(end);
        self.tail.clear();
        self.boundaries.clear();
        (self.tail_at, self.whole, self.done_to, self.length) = (end, end, end, end);
        self.on_disk_to = self.on_disk_to.min(end);
    }

    /// Queues the tail for writing.
    fn push_tail(&mut self) -> Result<()> {
        while self.spare.is_empty() {
            if self.buffers < BUFFERS || (self.disk.is_idle() && self.queue.is_empty()) {
                self.spare.push(Aligned::new(BUFFER)?);
                self.buffers += 1;
                break;
            }
            self.pump(true)?;
        }
        let next = self.spare.pop().ok_or_else(|| Error::failed("cannot write", "no buffer"))?;
        let full = std::mem::replace(&mut self.tail, next);
        let offset = self.tail_at;
        self.tail_at += full.bytes().len() as u64;
        self.queue.push_back(Write { offset, piece: Piece::Buffer(full) });
        Ok(())
    }

    /// Gathers blocks. Each buffer ends with a whole block, because nothing cuts the file if trawl and its warden are
    /// both killed.
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        let mut is_larger_than_buffers = false;
        while !rest.is_empty() {
            let room = self.tail.room();
            let count = if is_larger_than_buffers { rest.len().min(room) } else { whole_blocks(rest, room) };
            if count == 0 {
                is_larger_than_buffers = self.tail.bytes().is_empty();
                self.fill_up();
            }
            self.tail.extend(&rest[..count]);
            self.length += count as u64;
            rest = &rest[count..];
            let is_done = self.tail.room() == 0 || (count == 0 && !is_larger_than_buffers);
            if is_done && let Err(error) = self.push_tail() {
                self.outcome.unwritten.add_blocks(rest);
                return Err(error);
            }
        }
        self.boundaries.push_back(self.length);
        Ok(())
    }

    /// Pads the current buffer up to the disk's unit.
    fn fill_up(&mut self) {
        let mut pad = vec![0; to_next_unit(self.length)];
        filling(&mut pad);
        self.tail.extend(&pad);
        self.length += pad.len() as u64;
        self.boundaries.push_back(self.length);
    }

    /// Writes slowly arriving blocks through the page cache.
    fn flush_tail(&mut self) -> Result<()> {
        if !self.disk.is_idle() || !self.queue.is_empty() || self.done_to >= self.length {
            return Ok(());
        }
        let from = (self.done_to - self.tail_at) as usize;
        let (count, error) = write_at(&self.plain, &self.tail.bytes()[from..], self.done_to);
        self.done_to += count as u64;
        self.flushed = Instant::now();
        self.advance();
        error.map_or(Ok(()), |error| self.fail(error))
    }

    /// Ends the file after its last whole block if another process has cut it.
    fn check_intact(&mut self) -> Result<()> {
        let harm = match self.watch.check_intact(&self.plain, self.done_to) {
            Some(harm) => harm,
            // Bytes written since the cut are after a hole, which includes the last bytes of the last check.
            None => match first_hole(&self.plain, self.intact_to.saturating_sub(UNIT as u64)) {
                Ok(end) if end < self.done_to => Harm::Cut(first_hole(&self.plain, 0).unwrap_or(end)),
                _ => {
                    self.intact_to = self.done_to;
                    return Ok(());
                }
            },
        };
        let error = harm.explain(&self.name, self.done_to);
        while self.disk.finished(true).is_some() {}
        self.count_remaining(harm.remaining());
        Err(error)
    }

    /// Ends the file after the last block before `end`.
    fn count_remaining(&mut self, end: u64) {
        self.queue.clear();
        self.kept.clear();
        let (packets, whole) = form::count_packets(&self.name, end).unwrap_or_default();
        self.outcome.left = Some(packets);
        self.truncate_to(whole);
    }

    /// Counts the remaining packets if the disk did not accept all bytes.
    fn check(&mut self, waited: io::Result<()>) -> Result<()> {
        let Err(error) = waited else {
            return Ok(());
        };
        let from = self.on_disk_to;
        self.count_remaining(from);
        Err(lost_by_disk(&self.name, NotOnDisk { from, error }))
    }
}

/// Returns the number of bytes written, and the error if not all.
fn write_at(file: &File, bytes: &[u8], at: u64) -> (usize, Option<io::Error>) {
    let mut done = 0;
    while done < bytes.len() {
        match file.write_at(&bytes[done..], at + done as u64) {
            Ok(0) => return (done, Some(io::ErrorKind::WriteZero.into())),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (done, Some(error)),
        }
    }
    (done, None)
}

/// Minimum size of a block.
const SMALLEST: usize = 32;

/// Returns the distance to the next multiple of a unit, with space for a block or none in between.
fn to_next_unit(length: u64) -> usize {
    match (length.next_multiple_of(UNIT as u64) - length) as usize {
        0 => 0,
        room @ 1..SMALLEST => room + UNIT,
        room => room,
    }
}

/// Returns the number of bytes in whole blocks that fit into this space, with space for another block or none after
/// them.
fn whole_blocks(bytes: &[u8], room: usize) -> usize {
    let fits = |length: usize| length == room || length + SMALLEST <= room;
    if fits(bytes.len()) {
        return bytes.len();
    }
    let mut end = 0;
    let ends = blocks(bytes).map(|block| {
        end += block.bytes.len();
        end
    });
    let inside = ends.take_while(|end| *end <= room);
    inside.filter(|end| fits(*end)).last().unwrap_or(0)
}

impl DirectFile {
    /// Queues a whole segment, which begins at a disk unit.
    fn queue_segment(&mut self, mut segment: Box<dyn Leased>) -> Result<()> {
        let ready = self.pump(false).map(|()| self.fill_up());
        let ready = ready.and_then(|()| if self.tail.bytes().is_empty() { Ok(()) } else { self.push_tail() });
        if let Err(error) = ready {
            self.outcome.unwritten.add_blocks(segment.bytes());
            return Err(error);
        }
        segment.fill_up(UNIT, filling);
        let offset = self.tail_at;
        self.tail_at += segment.bytes().len() as u64;
        self.length = self.tail_at;
        self.boundaries.push_back(self.length);
        self.queue.push_back(Write { offset, piece: Piece::Segment(segment) });
        self.pump(false)
    }

    fn settle(&mut self) -> Result<()> {
        while !self.disk.is_idle() || !self.queue.is_empty() {
            self.pump(true)?;
        }
        self.flush_tail()?;
        self.intact_to = 0;
        self.check_intact()?;
        // Files of a limited size may follow each other faster than the disk confirms them.
        self.check(match self.max_length {
            u64::MAX => self.plain.sync_data(),
            _ => wait_for(&self.plain, self.on_disk_to, 0),
        })?;
        if self.reserved > self.length {
            // Frees the rest of the reserved space. The length stays.
            let _ = self.plain.set_len(self.length);
            self.reserved = 0;
        }
        Ok(())
    }

    fn answer(&mut self, result: Result<()>) -> Result<Pressure> {
        self.has_failed |= result.is_err();
        result.map(|()| Pressure::WantsSegments)
    }
}

impl Writer for DirectFile {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let result = match blocks {
            Blocks::Segment(segment) => self.queue_segment(segment),
            Blocks::Bytes(bytes) | Blocks::Stored(Stored { bytes, .. }) => match self.pump(false) {
                Ok(()) => self.append(bytes),
                Err(error) => {
                    self.outcome.unwritten.add_blocks(bytes);
                    Err(error)
                }
            },
            Blocks::EventBegin | Blocks::EventEnd | Blocks::Refused => Ok(()),
        };
        self.answer(result)
    }

    fn flush(&mut self) -> Result<Pressure> {
        let pumped = self.pump(false);
        let checked = pumped.and_then(|()| if self.watch.is_due() { self.check_intact() } else { Ok(()) });
        let is_due = self.done_to == 0 || self.flushed.elapsed() >= FLUSH_EVERY;
        let written = checked.and_then(|()| if is_due { self.flush_tail() } else { Ok(()) });
        self.answer(written)
    }

    /// Finished writes make room for others at once.
    fn due(&self) -> Option<Instant> {
        if !self.disk.is_idle() || !self.queue.is_empty() {
            return Some(Instant::now());
        }
        (self.done_to < self.length && !self.has_failed).then(|| self.flushed + FLUSH_EVERY)
    }

    fn delay(&self) -> Duration {
        UNWATCHED
    }

    fn finish(&mut self) -> WriteOutcome {
        let error = if self.has_failed {
            None
        } else {
            let settled = self.settle();
            self.answer(settled).err()
        };
        WriteOutcome { error, ..self.outcome.clone() }
    }
}

impl FileWriter for DirectFile {
    fn length(&self) -> u64 {
        self.length
    }

    /// Each buffer may be padded to the next unit.
    fn filling(&self, bytes: usize) -> u64 {
        let more = bytes.saturating_sub(self.tail.room());
        (more.div_ceil(BUFFER / 2) * (UNIT + SMALLEST)) as u64
    }
}
