//! Files and pipes: pcapng blocks as they are, or a pcap file record by record.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use trawl_kernel::warden::WholeBytes;
use trawl_kernel::writeback::Writeback;
use trawl_kernel::{Error, Result, errno};
use trawl_packet::pcap;
use trawl_packet::pcapng::block::blocks;
use trawl_tap::sink::Sink;

/// An open output that is only ever grown by whole units, and cut back to the last one when it is full.
#[derive(Debug)]
struct Output {
    file: File,
    name: String,
    written: u64,
    /// How long a file is that another process has cut.
    cut_to: Option<u64>,
    /// Kept at the number of good bytes, for the warden; regular files have one.
    whole: Option<WholeBytes>,
    /// Regular files have their pages written to the disk as they come.
    writeback: Option<Writeback>,
}

impl Output {
    fn new(file: File, name: String, whole: Option<WholeBytes>) -> Self {
        // Without it the capture works as well, only with a slow disk it may lose packets sooner.
        let writeback = whole
            .as_ref()
            .and_then(|_| Writeback::of(file.as_fd()).ok());
        Self {
            file,
            name,
            written: 0,
            cut_to: None,
            whole,
            writeback,
        }
    }

    /// Writes bytes of which `boundary` tells how many of the first N form whole units. Returns how many went out.
    fn write(&mut self, bytes: &[u8], boundary: impl Fn(usize) -> usize) -> (usize, Result<()>) {
        // Where it was cut, a hole would be left.
        if self.whole.is_some()
            && let Ok(about) = self.file.metadata()
            && about.len() < self.written
        {
            self.cut_to = Some(about.len());
            let what = format!("cannot go on writing to {}", self.name);
            let why = format!(
                "another process cut it to {} of {} bytes: packets that were recorded are lost",
                about.len(),
                self.written
            );
            return (0, Err(Error::failed(what, why)));
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
        if let Some(writeback) = &mut self.writeback {
            writeback.written(self.written);
        }
        if let Some(whole) = &self.whole {
            whole.set(self.written);
            if good < done {
                // A failure here would be about the same full disk, which is told below.
                let _ = self.file.set_len(self.written);
            }
        }
        (good, error.map_or(Ok(()), |error| Err(self.explain(error))))
    }

    fn explain(&self, error: io::Error) -> Error {
        let errno = error.raw_os_error();
        let error = Error::os(format!("cannot write to {}", self.name), error);
        match errno {
            Some(errno::ENOSPC) => error.fix(format!(
                "it ends behind the last whole packet ({} bytes); free some space or write elsewhere",
                self.written
            )),
            Some(errno::EFBIG) => error.fix(format!(
                "it ends after the last whole packet ({} bytes); ulimit -f tells the limit",
                self.written
            )),
            _ => error,
        }
    }
}

/// A pcapng file or pipe: the blocks go out as they come in.
#[derive(Debug)]
pub struct PcapngFile {
    output: Output,
    unwritten: Vec<u8>,
    /// The packets that are left of a file that was cut, by interface block.
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

    /// Ends a file that was cut after its last whole block, and counts what is left.
    fn count_what_is_left(&mut self, length: u64) {
        let Output { name, file, .. } = &self.output;
        let end = crate::walk::last_boundary(name, length).unwrap_or(0);
        // A failure here would be about a file that is not ours alone any more.
        let _ = file.set_len(end);
        if let Some(whole) = &self.output.whole {
            whole.set(end);
        }
        self.found = Some(crate::walk::packets(name, end).unwrap_or_default());
    }
}

impl Sink for PcapngFile {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let whole_blocks =
            |count: usize| blocks(&bytes[..count]).map(|block| block.bytes.len()).sum();
        let (good, result) = self.output.write(bytes, whole_blocks);
        if result.is_err() {
            self.unwritten.extend_from_slice(&bytes[good..]);
        }
        if let Some(length) = self.output.cut_to.take() {
            self.count_what_is_left(length);
        }
        result
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
        }
    }
}

impl Sink for PcapFile {
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
        if result.is_err() {
            self.unwritten.extend_from_slice(&bytes[last_end(good).1..]);
        }
        self.records.clear();
        result
    }

    fn take_unwritten(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unwritten)
    }
}
