//! Files written through the page cache, and pipes.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use trawl_io::writeback::{NotOnDisk, Writeback};
use trawl_pipeline::{Blocks, Counts, FileWriter, Pressure, Stream, UNWATCHED, Unit, WriteOutcome, Writer};
use trawl_sys::process::warden::WholeBytes;
use trawl_sys::{Error, Result};

use crate::form::{Encoder, OutputForm};
use crate::intact::{Watch, lost_by_disk, refused};

/// An open file that only grows by whole units, and is cut back to the last one when the disk is full or the file was
/// changed.
#[derive(Debug)]
pub(crate) struct GrowingFile {
    file: File,
    pub(crate) name: String,
    pub(crate) written: u64,
    /// Watch over a regular file.
    watch: Option<Watch>,
    /// Number of bytes that remain, if another process or the disk removed some.
    pub(crate) left: Option<u64>,
    /// Number of bytes in whole units, from which the warden of a capture learns where to cut the file.
    whole: Option<WholeBytes>,
    is_regular: bool,
    /// Starts writing the pages of regular files to the disk early.
    writeback: Option<Writeback>,
    /// True for one of many files, which may follow each other faster than the disk confirms them.
    pub(crate) in_series: bool,
}

impl GrowingFile {
    pub(crate) fn new(file: File, name: String, whole: Option<WholeBytes>) -> Self {
        // Without early writeback, a capture to a slow disk may lose packets sooner.
        let writeback = whole.as_ref().and_then(|_| Writeback::of(file.as_fd()).ok());
        let watch = whole.as_ref().map(|_| Watch::of(&file));
        let is_regular = file.metadata().is_ok_and(|about| about.is_file());
        Self { file, name, is_regular, written: 0, watch, left: None, whole, writeback, in_series: false }
    }

    /// Appends bytes; `boundary` returns the end of the last whole unit within the first N. Returns the number of bytes
    /// appended.
    pub(crate) fn write(&mut self, bytes: &[u8], boundary: impl Fn(usize) -> usize) -> (usize, Result<()>) {
        if let Err(error) = self.check_intact() {
            return (0, Err(error));
        }
        let mut done = 0;
        let error = loop {
            if done == bytes.len() {
                break None;
            }
            match self.file.write(&bytes[done..]) {
                Ok(0) => break Some(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Some(error),
            }
        };
        let good = if done == bytes.len() { done } else { boundary(done) };
        self.written += good as u64;
        if let Some(whole) = &self.whole {
            whole.set(self.written);
        }
        if good < done && self.is_regular {
            // A failure here would concern the same full disk, which is reported below.
            let _ = self.file.set_len(self.written);
        }
        let result = match error {
            Some(error) => Err(refused(&self.name, self.written, error)),
            None => {
                let written = self.written;
                let writeback = self.writeback.as_mut();
                let kept = writeback.map_or(Ok(()), |writeback| writeback.written(written));
                kept.map_err(|failure| self.lose(failure))
            }
        };
        (good, result)
    }

    /// Handles bytes that the page cache accepted but the disk did not.
    fn lose(&mut self, failure: NotOnDisk) -> Error {
        self.left = Some(failure.from);
        lost_by_disk(&self.name, failure)
    }

    /// Waits until the bytes are on the disk.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.check_intact()?;
        let writeback = self.writeback.as_ref();
        let settled = writeback.map_or(Ok(()), |writeback| writeback.settle(!self.in_series));
        settled.map_err(|failure| self.lose(failure))
    }

    /// Fails if another process has cut or removed the file: writing after a cut would leave a hole.
    fn check_intact(&mut self) -> Result<()> {
        let Some(watch) = &mut self.watch else {
            return Ok(());
        };
        match watch.check_intact(&self.file, self.written) {
            Some(harm) => {
                self.left = Some(harm.remaining());
                Err(harm.explain(&self.name, self.written))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn check_if_due(&mut self) -> Result<()> {
        if self.watch.as_ref().is_some_and(Watch::is_due) { self.check_intact() } else { Ok(()) }
    }

    /// Ends an incomplete file after its last whole unit.
    pub(crate) fn end_at(&mut self, end: u64) {
        // A failure here would concern a file that another process has changed.
        let _ = self.file.set_len(end);
        if let Some(whole) = &self.whole {
            whole.set(end);
        }
    }
}

/// A file through the page cache.
#[derive(Debug)]
pub struct PlainFile {
    encoder: Encoder,
    file: GrowingFile,
    /// Packets written to a pcap file, whose records do not name an interface.
    written: Counts,
    outcome: WriteOutcome,
    has_failed: bool,
}

impl PlainFile {
    pub fn new(file: File, name: String, whole: Option<WholeBytes>, form: OutputForm) -> Self {
        Self {
            encoder: Encoder::new(form),
            file: GrowingFile::new(file, name, whole),
            written: Counts::default(),
            outcome: WriteOutcome::default(),
            has_failed: false,
        }
    }

    pub fn in_series(mut self, in_series: bool) -> Self {
        self.file.in_series = in_series;
        self
    }

    /// Ends an incomplete file after its last whole unit, and counts the remaining packets.
    fn check(&mut self, result: Result<()>) -> Result<Pressure> {
        self.has_failed |= result.is_err();
        if let Some(left) = self.file.left.take() {
            let (packets, end) = self.encoder.count_left(&self.file.name, left, &self.written);
            self.outcome.left = Some(packets);
            self.file.end_at(end);
        }
        result.map(|()| Pressure::Idle)
    }
}

impl Writer for PlainFile {
    fn write(&mut self, written: Blocks<'_>) -> Result<Pressure> {
        let blocks = written.bytes();
        self.encoder.encode(blocks);
        let whole = |done: usize| {
            let units = self.encoder.units(blocks);
            let ends = units.iter().map(|unit| unit.end);
            ends.take_while(|end| *end <= done).last().unwrap_or(0)
        };
        let (done, result) = self.file.write(self.encoder.encoded(blocks), whole);
        let is_pcap = self.encoder.is_pcap();
        if result.is_err() {
            for Unit { end, interface } in self.encoder.units(blocks) {
                let Some(interface) = interface else { continue };
                if end <= done { self.written.add(interface, 1) } else { self.outcome.unwritten.add(interface, 1) }
            }
        } else if is_pcap {
            self.written.add_blocks(blocks);
        }
        self.encoder.clear();
        self.check(result)
    }

    fn flush(&mut self) -> Result<Pressure> {
        let checked = self.file.check_if_due();
        self.check(checked)
    }

    fn delay(&self) -> Duration {
        UNWATCHED
    }

    fn finish(&mut self) -> WriteOutcome {
        let error = if self.has_failed {
            None
        } else {
            let settled = self.file.settle();
            self.check(settled).err()
        };
        WriteOutcome { error, ..self.outcome.clone() }
    }
}

impl FileWriter for PlainFile {
    fn length(&self) -> u64 {
        self.file.written + self.encoder.waiting() as u64
    }
}

/// A pipe, terminal or socket.
#[derive(Debug)]
pub struct Pipe {
    encoder: Encoder,
    stream: Stream,
}

impl Pipe {
    pub fn new(file: File, name: String, form: OutputForm) -> Self {
        Self { encoder: Encoder::new(form), stream: Stream::new(file, name) }
    }
}

impl FileWriter for Pipe {
    /// Returns 0: a pipe is not part of a series.
    fn length(&self) -> u64 {
        0
    }
}

impl Writer for Pipe {
    fn write(&mut self, written: Blocks<'_>) -> Result<Pressure> {
        let blocks = written.bytes();
        self.encoder.encode(blocks);
        let encoded = self.encoder.encoded(blocks);
        let put = self.stream.put(encoded, || self.encoder.units(blocks));
        self.encoder.clear();
        put
    }

    fn flush(&mut self) -> Result<Pressure> {
        self.stream.push()
    }

    fn finish(&mut self) -> WriteOutcome {
        self.stream.finish()
    }
}
