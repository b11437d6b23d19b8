//! Files and pipes: pcapng blocks as they are, or a pcap file record by record.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use trawl_io::writeback::{NotOnDisk, Writeback};
use trawl_packet::pcap;
use trawl_packet::pcapng::block::blocks;
use trawl_sys::warden::WholeBytes;
use trawl_sys::{Error, Result};
use trawl_tap::sink::{Counting, Sink};

use crate::intact::{Watch, lost_by_disk, refused};

/// An open output that is only ever grown by whole units, and cut back to the last one when it is full.
#[derive(Debug)]
struct Output {
    file: File,
    name: String,
    written: u64,
    /// Looks after a regular file.
    watch: Option<Watch>,
    /// How much of what was written can still be found, where another process or the disk took some of it.
    left: Option<u64>,
    /// Kept at the number of good bytes, for the warden; regular files have one.
    whole: Option<WholeBytes>,
    /// Regular files have their pages written to the disk as they come.
    writeback: Option<Writeback>,
    /// One of many files, which may come faster than a disk tells that it keeps them.
    in_series: bool,
}

impl Output {
    fn new(file: File, name: String, whole: Option<WholeBytes>) -> Self {
        // Without it the capture works as well, only with a slow disk it may lose packets sooner.
        let writeback = whole
            .as_ref()
            .and_then(|_| Writeback::of(file.as_fd()).ok());
        let watch = whole.as_ref().map(|_| Watch::of(&file));
        Self {
            file,
            name,
            written: 0,
            watch,
            left: None,
            whole,
            writeback,
            in_series: false,
        }
    }

    /// Writes bytes of which `boundary` tells how many of the first N form whole units. Returns how many went out.
    fn write(&mut self, bytes: &[u8], boundary: impl Fn(usize) -> usize) -> (usize, Result<()>) {
        if let Err(error) = self.look() {
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
        let good = if done == bytes.len() {
            done
        } else {
            boundary(done)
        };
        self.written += good as u64;
        if let Some(whole) = &self.whole {
            whole.set(self.written);
            if good < done {
                // A failure here would be about the same full disk, which is told below.
                let _ = self.file.set_len(self.written);
            }
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

    /// The disk did not take what the page cache had taken.
    fn lose(&mut self, failure: NotOnDisk) -> Error {
        self.left = Some(failure.from);
        lost_by_disk(&self.name, failure)
    }

    /// Waits until the disk has it.
    fn settle(&mut self) -> Result<()> {
        self.look()?;
        let writeback = self.writeback.as_ref();
        let settled = writeback.map_or(Ok(()), |writeback| writeback.settle(!self.in_series));
        settled.map_err(|failure| self.lose(failure))
    }

    /// Fails where another process has cut or removed the file: after a cut, a hole would be left.
    fn look(&mut self) -> Result<()> {
        let Some(watch) = &mut self.watch else {
            return Ok(());
        };
        match watch.look(&self.file, self.written) {
            Some(harm) => {
                self.left = Some(harm.left());
                Err(harm.explain(&self.name, self.written))
            }
            None => Ok(()),
        }
    }

    fn look_now_and_then(&mut self) -> Result<()> {
        match self.watch.as_ref().is_some_and(Watch::is_due) {
            true => self.look(),
            false => Ok(()),
        }
    }

    /// Ends a file that lacks something after its last whole unit.
    fn end_at(&mut self, end: u64) {
        // A failure here would be about a file that is not ours alone any more.
        let _ = self.file.set_len(end);
        if let Some(whole) = &self.whole {
            whole.set(end);
        }
    }
}

/// A pcapng file or pipe: the blocks go out as they come in.
#[derive(Debug)]
pub struct PcapngFile {
    output: Output,
    unwritten: Vec<u8>,
    /// The packets that are left of a file that lacks something, by interface block.
    found: Option<Vec<u64>>,
}

impl PcapngFile {
    pub fn new(file: File, name: String, whole: Option<WholeBytes>) -> Self {
        Self {
            output: Output::new(file, name, whole),
            unwritten: Vec::new(),
            found: None,
        }
    }

    pub fn in_series(mut self, in_series: bool) -> Self {
        self.output.in_series = in_series;
        self
    }

    /// Ends a file that lacks something after its last whole block, and counts what is left.
    fn count_what_is_left(&mut self) {
        let Some(left) = self.output.left.take() else {
            return;
        };
        let (found, end) = crate::walk::packets(&self.output.name, left).unwrap_or_default();
        self.found = Some(found);
        self.output.end_at(end);
    }
}

impl Sink for PcapngFile {
    fn length(&self) -> u64 {
        self.output.written
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let whole_blocks =
            |count: usize| blocks(&bytes[..count]).map(|block| block.bytes.len()).sum();
        let (good, result) = self.output.write(bytes, whole_blocks);
        if result.is_err() {
            self.unwritten.extend_from_slice(&bytes[good..]);
        }
        self.count_what_is_left();
        result
    }

    fn rest(&mut self) -> Result<()> {
        let intact = self.output.look_now_and_then();
        self.count_what_is_left();
        intact
    }

    fn settle(&mut self) -> Result<()> {
        let settled = self.output.settle();
        self.count_what_is_left();
        settled
    }

    fn found(&self) -> Option<Vec<u64>> {
        self.found.clone()
    }

    fn take_unwritten(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unwritten)
    }
}

/// A pcap file or pipe with nanoseconds: the packets alone.
#[derive(Debug)]
pub struct PcapFile {
    output: Output,
    records: Vec<u8>,
    unwritten: Vec<u8>,
    /// The packets that were written.
    written: Counting,
    /// Those that are left of a file that lacks something.
    found: Option<Vec<u64>>,
}

impl PcapFile {
    pub fn new(
        file: File,
        name: String,
        whole: Option<WholeBytes>,
        link_type: u16,
        snaplen: u32,
    ) -> Self {
        let mut records = Vec::new();
        pcap::file_header(&mut records, link_type, snaplen);
        Self {
            output: Output::new(file, name, whole),
            records,
            unwritten: Vec::new(),
            written: Counting::default(),
            found: None,
        }
    }

    pub fn in_series(mut self, in_series: bool) -> Self {
        self.output.in_series = in_series;
        self
    }

    /// As with pcapng. The records do not say by which interface they came: the file's first packets are taken to be of
    /// its first interfaces.
    fn count_what_is_left(&mut self) {
        let Some(left) = self.output.left.take() else {
            return;
        };
        let (mut left, end) = crate::walk::records(&self.output.name, left).unwrap_or_default();
        let mut found = self.written.packets.clone();
        for count in &mut found {
            *count = left.min(*count);
            left -= *count;
        }
        self.found = Some(found);
        self.output.end_at(end);
    }
}

impl Sink for PcapFile {
    fn length(&self) -> u64 {
        self.output.written + self.records.len() as u64
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        // Ends of records, with the ends of the blocks they came from.
        let mut ends = vec![(self.records.len(), 0)];
        let mut taken = 0;
        for block in blocks(bytes) {
            pcap::record_from_block(&mut self.records, &block);
            taken += block.bytes.len();
            ends.push((self.records.len(), taken));
        }
        let last_end = |count: usize| {
            ends.iter()
                .rev()
                .find(|(end, _)| *end <= count)
                .copied()
                .unwrap_or((0, 0))
        };
        let (good, result) = self.output.write(&self.records, |count| last_end(count).0);
        let (written, unwritten) = bytes.split_at(last_end(good).1);
        if result.is_err() {
            self.unwritten.extend_from_slice(unwritten);
        }
        self.records.clear();
        self.count_what_is_left();
        self.written.write(written).and(result)
    }

    fn rest(&mut self) -> Result<()> {
        let intact = self.output.look_now_and_then();
        self.count_what_is_left();
        intact
    }

    fn settle(&mut self) -> Result<()> {
        let settled = self.output.settle();
        self.count_what_is_left();
        settled
    }

    fn found(&self) -> Option<Vec<u64>> {
        self.found.clone()
    }

    fn take_unwritten(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unwritten)
    }
}
