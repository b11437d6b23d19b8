//! Capture files as a source of blocks: packets are merged by time, chosen one by one, and anonymized if requested.

use std::fmt;
use std::path::Path;

use trawl_packet::pcapng::block::{self, LINKTYPE_ETHERNET, blocks};
use trawl_packet::read::{FileFormat, Step};
use trawl_pipeline::{Blocks, Feed, Origin, PartKind, Pressure, Source, SourceState, Stored, StoredPart};
use trawl_plan::outputs::{Format, OutputPlan};
use trawl_sys::Result;
use trawl_sys::events::Signals;
use trawl_view::merge::Merge;
use trawl_view::record::PacketSource;
use trawl_view::rewrite::{Privacy, Rewriter};

use crate::{Input, Notice};

/// Records are gathered up to this size.
const GATHER: usize = 256 << 10;

/// A [`Choice`]'s answer about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    No,
    Yes,
    /// No further packet is wanted.
    AsLast,
}

/// A choice of packets, which may also show them.
pub trait Choice {
    /// Chooses the current packet of a file, which has this number.
    fn choose(&mut self, file: usize, input: &Input) -> Result<Wanted>;

    /// Called for the current block of a file, of this type and without a packet.
    fn block(&mut self, _file: usize, _input: &Input, _kind: u32) {}

    /// Called when no more packets are available for now, and at the end. Returns false if no more are wanted.
    fn flush(&mut self) -> Result<bool>;
}

/// Returns the format of an output by its name, or else the format of all files, if they have the same.
pub fn format_for(path: &Path, inputs: &[Input]) -> Format {
    Format::of_name(path).unwrap_or_else(|| if has_one_header(inputs) { Format::Pcap } else { Format::Pcapng })
}

/// Returns true if all files are of pcap and have the same header.
fn has_one_header(inputs: &[Input]) -> bool {
    let header = |input: &Input| input.reader.pcap_header().map(<[u8]>::to_vec);
    inputs.iter().all(|input| header(input).is_some())
        && inputs.windows(2).all(|pair| header(&pair[0]) == header(&pair[1]))
}

/// Returns true if the blocks or records of files can be copied into a file of this format.
fn can_be_copied(format: Format, inputs: &[Input], follows: bool) -> bool {
    // The record layout of modified pcap files becomes known only from their packets.
    let is_modified = |input: &Input| matches!(input.reader.format(), FileFormat::Pcap { modified: true, .. });
    match inputs {
        [only] => only.reader.pcap_header().is_some() == (format == Format::Pcap),
        // The files of a ring are consecutive sections.
        [first, ..] => format == Format::Pcap && !follows && has_one_header(inputs) && !is_modified(first),
        [] => false,
    }
}

/// Options for [`Files`].
#[derive(Debug, Default)]
pub struct FilesPlan<'a> {
    /// Outputs of the blocks; without any, files are only read.
    pub outputs: &'a [OutputPlan],
    pub privacy: Option<Privacy>,
    /// True if inputs are followed: the files of a ring become one.
    pub follows: bool,
    /// True if each packet is written as soon as it is read.
    pub flush_each: bool,
    /// Name of the application in the section headers.
    pub application: String,
}

/// Blocks that are gathered for the outputs.
#[derive(Debug)]
struct Gathered {
    rewriter: Rewriter,
    origin: Origin,
    bytes: Vec<u8>,
    parts: Vec<StoredPart>,
}

/// Capture files as a source.
pub struct Files<'a, C> {
    inputs: Merge<Input>,
    pub choice: C,
    signals: Option<&'a Signals>,
    gathered: Option<Gathered>,
    flush_each: bool,
    /// Called once the outputs are open.
    confine: Option<Box<dyn FnOnce() -> Result<()> + 'a>>,
    /// True once the section header is written alone.
    is_begun: bool,
    /// True if a file has no more bytes for now.
    waits: bool,
    end: End,
    /// True if a file could not be read to its end.
    pub has_failed: bool,
}

/// Progress of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    NotYet,
    /// All packets that are wanted were read.
    Read,
    /// The outputs receive the remaining blocks.
    Written,
    /// The outputs want no more packets.
    Stopped,
}

impl<C> fmt::Debug for Files<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("end", &self.end).finish_non_exhaustive()
    }
}

impl<'a, C: Choice> Files<'a, C> {
    /// Reads the inputs; `signals` end the command while files are followed. `confine` gives up rights.
    pub fn new(
        inputs: Vec<Input>,
        choice: C,
        plan: FilesPlan<'_>,
        signals: Option<&'a Signals>,
        confine: impl FnOnce() -> Result<()> + 'a,
    ) -> Self {
        let gathered = plan.outputs.first().map(|first| Gathered::new(first, &inputs, &plan));
        Self {
            gathered: gathered.map(|gathered| match plan.privacy {
                Some(privacy) => Gathered { rewriter: gathered.rewriter.with_privacy(privacy), ..gathered },
                None => gathered,
            }),
            inputs: Merge::new(inputs),
            choice,
            signals,
            flush_each: plan.flush_each,
            confine: Some(Box::new(confine)),
            is_begun: false,
            waits: false,
            end: End::NotYet,
            has_failed: false,
        }
    }

    /// Reports flawed times of packets, and returns the notices about parts that the outputs lack.
    pub fn notices(&self) -> Vec<Notice> {
        self.inputs.sources().for_each(Input::report_flawed_times);
        let Some(Gathered { rewriter, .. }) = &self.gathered else {
            return Vec::new();
        };
        let private = rewriter.left_out_for_privacy().and_then(Notice::of_privacy);
        let blocks = rewriter.blocks_left_out();
        let big_endian = (blocks > 0).then_some(Notice::BlocksLeftOut { blocks });
        private.into_iter().chain(big_endian).collect()
    }

    /// Reads the next packet or block. Returns the link type of a packet that is wanted.
    fn advance(&mut self) -> Result<Option<u16>> {
        let index = match self.inputs.step() {
            Ok(Some(step)) => {
                let index = self.inputs.index();
                let Some(input) = self.inputs.source() else {
                    return Ok(None);
                };
                if let Step::Block { kind } = step {
                    self.choice.block(index, input, kind);
                    self.gathered.iter_mut().for_each(|gathered| gathered.block(index, input, kind));
                    return Ok(None);
                }
                index
            }
            Ok(None) => {
                self.end = End::Read;
                return Ok(None);
            }
            Err(error) if error.would_block() => {
                self.waits = true;
                return Ok(None);
            }
            Err(error) => {
                self.inputs.source().into_iter().for_each(|input| input.report_unreadable(&error));
                self.has_failed = true;
                return Ok(None);
            }
        };
        let Some(input) = self.inputs.source() else {
            return Ok(None);
        };
        let wanted = self.choice.choose(index, input)?;
        if wanted == Wanted::No {
            return Ok(None);
        }
        if wanted == Wanted::AsLast {
            self.end = End::Read;
        }
        self.gathered.iter_mut().for_each(|gathered| gathered.packet(index, input));
        Ok(Some(input.kind().map_or(LINKTYPE_ETHERNET, |(link_type, _)| link_type)))
    }

    /// Waits until a file has more bytes.
    fn wait_for_files(&mut self) {
        if std::mem::take(&mut self.waits)
            && let Some(input) = self.inputs.source_mut()
            && !input.wait(self.signals)
        {
            self.end = End::Read;
        }
    }

    /// Writes the gathered blocks.
    fn write(&mut self, feed: &mut Feed<'_>) -> Result<()> {
        self.gathered.as_mut().map_or(Ok(()), |gathered| gathered.write(feed))
    }
}

impl<C: Choice> Source for Files<'_, C> {
    fn origin(&self) -> Origin {
        self.gathered.as_ref().map_or(Origin::Files, |gathered| gathered.origin)
    }

    fn start(&mut self) -> Result<()> {
        self.confine.take().map_or(Ok(()), |confine| confine())
    }

    /// Returns the type of the first packet that is wanted: the first interface may have none.
    fn link_type(&mut self) -> Result<u16> {
        self.gathered.iter_mut().for_each(Gathered::begin);
        while self.end == End::NotYet {
            if let Some(link_type) = self.advance()? {
                return Ok(link_type);
            }
            self.wait_for_files();
        }
        let first = self.inputs.sources().find_map(|input| input.reader.interfaces().first());
        Ok(first.map_or(LINKTYPE_ETHERNET, |interface| interface.link_type))
    }

    fn poll(&mut self, feed: &mut Feed<'_>) -> Result<SourceState> {
        if self.end == End::Stopped {
            return Ok(SourceState::Ended);
        }
        // Files wait for every output.
        if !matches!(feed.pressure, Pressure::Idle | Pressure::WantsSegments) {
            return Ok(SourceState::Idle);
        }
        if let Some(gathered) = &mut self.gathered
            && !std::mem::replace(&mut self.is_begun, true)
            && gathered.origin == Origin::Files
        {
            gathered.begin();
            gathered.write_first(feed)?;
            return Ok(SourceState::Idle);
        }
        while self.end == End::NotYet {
            let is_wanted = self.advance()?.is_some();
            let is_full = self.gathered.as_ref().is_some_and(|gathered| gathered.bytes.len() >= GATHER);
            if is_full || self.waits || (is_wanted && self.flush_each) {
                self.write(feed)?;
                if (self.waits || self.flush_each) && !self.choice.flush()? {
                    self.end = End::Read;
                }
                return Ok(if self.waits { SourceState::Idle } else { SourceState::Moved });
            }
        }
        if self.end == End::Written {
            return Ok(SourceState::Ended);
        }
        self.end = End::Written;
        if let (Some(gathered), Some(input)) = (&mut self.gathered, self.inputs.source()) {
            gathered.start(input);
        }
        self.choice.flush()?;
        self.write(feed)?;
        Ok(SourceState::Idle)
    }

    fn wait(&mut self, feed: &Feed<'_>) -> Result<()> {
        if let Pressure::Blocked(reader) = &feed.pressure {
            return reader.wait();
        }
        self.wait_for_files();
        Ok(())
    }

    fn stop(&mut self) {
        self.end = End::Stopped;
    }
}

impl Gathered {
    fn new(first: &OutputPlan, inputs: &[Input], plan: &FilesPlan<'_>) -> Self {
        let format = first.format;
        let is_alone = plan.outputs.len() == 1 && first.listen.is_none() && first.snaplen.is_none();
        // Records of pcap are not copied with changes.
        let copies =
            can_be_copied(format, inputs, plan.follows) && (plan.privacy.is_none() || format == Format::Pcapng);
        let is_stored = is_alone && (copies || format == Format::Pcapng);
        let application = plan.application.clone();
        let rewriter = if is_stored {
            Rewriter::new(copies, application)
        } else {
            Rewriter::new(false, application).in_nanoseconds()
        };
        Self {
            rewriter,
            origin: if is_stored { Origin::FilesAsStored } else { Origin::Files },
            bytes: Vec::with_capacity(2 * GATHER),
            parts: Vec::new(),
        }
    }

    fn begin(&mut self) {
        self.rewriter.begin(&mut self.bytes);
    }

    /// Appends the header of a file, unless it has begun.
    fn start(&mut self, input: &Input) {
        let from = self.bytes.len();
        self.rewriter.start(&mut self.bytes, &input.reader);
        if self.bytes.len() > from {
            self.parts.push(StoredPart { end: self.bytes.len(), kind: PartKind::Header });
        }
    }

    fn packet(&mut self, index: usize, input: &Input) {
        self.start(input);
        let from = self.bytes.len();
        self.rewriter.packet(&mut self.bytes, index, &input.reader);
        self.record_parts(from, block::ENHANCED_PACKET, PartKind::Packet(PacketSource::time_ns(&input.reader)));
    }

    fn block(&mut self, index: usize, input: &Input, kind: u32) {
        let from = self.bytes.len();
        self.rewriter.block(&mut self.bytes, index, &input.reader, kind);
        self.record_parts(from, kind, PartKind::Other);
    }

    /// Records the appended parts; `kind` is the type of the block that was read, and `part` its kind if it is a
    /// packet.
    fn record_parts(&mut self, from: usize, kind: u32, part: PartKind) {
        let of = |kind| match kind {
            block::SECTION_HEADER => PartKind::Header,
            block::INTERFACE_DESCRIPTION => PartKind::Description,
            block::ENHANCED_PACKET => part,
            _ => PartKind::Other,
        };
        if !self.rewriter.is_verbatim() {
            let mut end = from;
            self.parts.extend(blocks(&self.bytes[from..]).map(|block| {
                end += block.bytes.len();
                StoredPart { end, kind: of(block.kind) }
            }));
        } else if self.bytes.len() > from {
            self.parts.push(StoredPart { end: self.bytes.len(), kind: of(kind) });
        }
    }

    /// Writes the section header alone.
    fn write_first(&mut self, feed: &mut Feed<'_>) -> Result<()> {
        let length = blocks(&self.bytes).next().map_or(0, |block| block.bytes.len());
        let rest = self.bytes.split_off(length);
        let written = self.write(feed);
        self.bytes = rest;
        written
    }

    fn write(&mut self, feed: &mut Feed<'_>) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let written = feed.write(match self.origin {
            Origin::FilesAsStored => Blocks::Stored(Stored { bytes: &self.bytes, parts: &self.parts }),
            _ => Blocks::Bytes(&self.bytes),
        });
        self.bytes.clear();
        self.parts.clear();
        written
    }
}
