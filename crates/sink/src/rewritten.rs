//! Packets of files that are written to files again: as they are, merged, or in another format.

mod files;

use std::fmt;
use std::path::Path;

use trawl_capture::event::Event;
use trawl_packet::pcapng::block::{self, blocks};
use trawl_packet::read::FileFormat;
use trawl_plan::outputs::Compression;
use trawl_source::{Input, Notice};
use trawl_sys::{Error, Result};
use trawl_view::record::PacketSource;
use trawl_view::rewrite::{Format, LeftOut, Privacy, Rewriter};

use crate::SeriesPlan;
use files::Files;
pub use files::Written;

/// Records are gathered up to this size.
const GATHER: usize = 256 << 10;

/// Options for the files.
#[derive(Debug)]
pub struct RewritePlan {
    /// The format, if it does not follow from the name or from the inputs.
    pub format: Option<Format>,
    /// Limits of files, in the packets' time.
    pub series: SeriesPlan,
    pub compression: Option<Compression>,
    pub privacy: Option<Privacy>,
    /// True if inputs are followed: the files of a ring become one.
    pub follows: bool,
    pub application: String,
}

/// Packets that are written to files.
pub struct Rewritten {
    rewriter: Rewriter,
    format: Format,
    buffer: Vec<u8>,
    files: Files,
    /// Set if more than one file is possible.
    is_series: bool,
}

impl fmt::Debug for Rewritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rewritten").field("format", &self.format).finish_non_exhaustive()
    }
}

impl Rewritten {
    /// Opens the first file, unless its name depends on its first packet.
    pub fn open(plan: RewritePlan, inputs: &[Input], tell: fn(&Event)) -> Result<Self> {
        let path = Path::new(&plan.series.path);
        let read = |input: &Input| match input.reader.pcap_header() {
            Some(_) => Format::Pcap,
            None => Format::Pcapng,
        };
        // The file's variant becomes known later.
        let is_modified = |input: &Input| matches!(input.reader.format(), FileFormat::Pcap { modified: true, .. });
        let headers_differ = inputs.windows(2).any(|pair| pair[0].reader.pcap_header() != pair[1].reader.pcap_header());
        let all_pcap = inputs.iter().all(|input| read(input) == Format::Pcap) && !headers_differ;
        let format = plan.format.or_else(|| format_by_name(path)).unwrap_or(if all_pcap {
            Format::Pcap
        } else {
            Format::Pcapng
        });
        let verbatim = match inputs {
            [only] => read(only) == format,
            [first, ..] => all_pcap && format == Format::Pcap && !is_modified(first),
            [] => false,
        };
        // The files of a ring are consecutive sections.
        let verbatim = verbatim && !(plan.follows && inputs.len() > 1);
        let rewriter = Rewriter::new(format, verbatim, plan.application);
        Ok(Self {
            rewriter: match plan.privacy {
                Some(privacy) => rewriter.with_privacy(privacy),
                None => rewriter,
            },
            format,
            buffer: Vec::with_capacity(2 * GATHER),
            is_series: plan.series.is_asked_for(),
            files: Files::open(plan.series, plan.compression, inputs, tell)?,
        })
    }

    /// Adds a packet.
    pub fn packet(&mut self, index: usize, input: &Input) -> Result<Written> {
        let begun = self.buffer.len();
        self.rewriter.start(&mut self.buffer, &input.reader);
        if self.is_series {
            self.files.begins_with(&self.buffer[begun..]);
        }
        let from = self.buffer.len();
        self.rewriter.packet(&mut self.buffer, index, &input.reader).map_err(|why| {
            let name = self.files.name().to_owned();
            self.files.discard();
            Error::failed(format!("cannot write {name}"), why).fix("write pcapng (--format pcapng)")
        })?;
        match self.is_series {
            true => self.assign(from, PacketSource::time_ns(&input.reader)),
            false => Ok(Written::Taken),
        }
    }

    /// Assigns the packet that was appended to the current file or the next one.
    fn assign(&mut self, from: usize, time_ns: u64) -> Result<Written> {
        let mut written = Written::Taken;
        if self.files.is_due(time_ns, self.buffer.len())? {
            let is_first = !self.files.has_begun();
            if is_first {
                self.files.turn(time_ns)?;
            } else {
                written = self.files.write(&self.buffer[..from])?;
                self.buffer.drain(..from);
                self.files.turn(time_ns)?;
            }
        }
        self.files.takes(time_ns);
        // An interface's description may precede its first packet.
        if self.format == Format::Pcapng {
            let from = from.min(self.buffer.len());
            for block in blocks(&self.buffer[from..]) {
                if block.kind == block::INTERFACE_DESCRIPTION {
                    self.files.begins_with(block.bytes);
                }
            }
        }
        Ok(written)
    }

    /// Adds a block of another type.
    pub fn block(&mut self, index: usize, input: &Input, kind: u32) {
        let from = self.buffer.len();
        self.rewriter.block(&mut self.buffer, index, &input.reader, kind);
        if !self.is_series {
            return;
        }
        for block in blocks(&self.buffer[from..]) {
            match block.kind {
                block::SECTION_HEADER => {
                    self.files.forget_header();
                    self.files.begins_with(block.bytes);
                }
                block::INTERFACE_DESCRIPTION => self.files.begins_with(block.bytes),
                _ => {}
            }
        }
    }

    /// Returns true if enough is gathered for a write.
    pub fn is_due(&self) -> bool {
        self.buffer.len() >= GATHER
    }

    /// Writes the gathered bytes.
    pub fn flush(&mut self) -> Result<Written> {
        // The name of a file may depend on its first packet, which has not arrived yet.
        if !self.files.has_begun() {
            return Ok(Written::Taken);
        }
        let written = self.files.write(&self.buffer);
        self.buffer.clear();
        written
    }

    /// Ends the files, of which the last one begins with the header of this input if it holds no packet, and returns what
    /// they lack.
    pub fn finish(mut self, input: Option<&Input>) -> Result<Vec<Notice>> {
        if let Some(input) = input {
            self.rewriter.start(&mut self.buffer, &input.reader);
        }
        self.flush()?;
        self.files.end()?;
        self.files.wait_for_commands()?;
        let private = self.rewriter.private().filter(|left_out| *left_out != LeftOut::default());
        let private = private.map(|LeftOut { contents, comments, blocks }| Notice::LeftOutForPrivacy {
            packets: contents,
            comments,
            blocks,
        });
        let blocks = self.rewriter.left_out();
        let big_endian = (blocks > 0).then_some(Notice::BlocksLeftOut { blocks });
        Ok(private.into_iter().chain(big_endian).collect())
    }
}

/// Returns the format that a file's name implies, compressed or not.
fn format_by_name(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()? {
        "gz" | "zst" | "lz4" => format_by_name(Path::new(path.file_stem()?)),
        "pcapng" | "ntar" => Some(Format::Pcapng),
        "pcap" | "cap" | "dmp" => Some(Format::Pcap),
        _ => None,
    }
}
