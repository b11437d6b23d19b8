//! Output of packets that were read: standard output as text, a file, or both.

use std::collections::HashMap;
use std::path::Path;

use serde_json::json;
use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::block::{self, TSRESOL_DEFAULT, blocks};
use trawl_packet::read::FileFormat;
use trawl_sys::{Error, Result};
use trawl_view::Show;
use trawl_view::json::{JsonArray, JsonLines};
use trawl_view::print::{Precision, Printer};
use trawl_view::record::PacketSource;
use trawl_view::rewrite::{Format, Rewriter};

use super::args::{Form, Request, format_by_name};
use super::files::{Files, Written};
use super::privacy;
use crate::json;
use crate::terminal;
use trawl_source::Input;

/// Text and records are buffered up to this size.
const GATHER: usize = 256 << 10;

pub(super) struct Output {
    shown: Option<Shown>,
    rewritten: Option<Rewritten>,
    flush_each: bool,
}

impl Output {
    pub fn new(request: &Request, inputs: &[Input]) -> Result<Self> {
        let rewritten = request.write.as_deref().map(|path| Rewritten::open(path, request, inputs)).transpose()?;
        Ok(Self {
            shown: request.form.map(|form| Shown::new(form, request)),
            rewritten,
            flush_each: request.flush_each,
        })
    }

    pub fn packet(&mut self, index: usize, input: &Input) -> Result<Written> {
        if let Some(rewritten) = &mut self.rewritten
            && rewritten.packet(index, input)? == Written::NobodyReads
        {
            return Ok(Written::NobodyReads);
        }
        if let Some(shown) = &mut self.shown {
            shown.packet(index, input);
        }
        let gathered = |text: &[u8]| text.len() >= GATHER;
        let full = self.shown.as_ref().is_some_and(|shown| gathered(shown.text.as_bytes()))
            || self.rewritten.as_ref().is_some_and(|rewritten| gathered(&rewritten.buffer));
        if full || self.flush_each { self.flush() } else { Ok(Written::Taken) }
    }

    pub fn block(&mut self, index: usize, input: &Input, kind: u32) -> Result<Written> {
        if let Some(rewritten) = &mut self.rewritten {
            rewritten.block(index, input, kind);
            if rewritten.buffer.len() >= GATHER {
                return self.flush();
            }
        }
        Ok(Written::Taken)
    }

    /// Writes the buffered data.
    pub fn flush(&mut self) -> Result<Written> {
        let mut written = Written::Taken;
        if let Some(rewritten) = &mut self.rewritten {
            written = rewritten.flush()?;
        }
        if let Some(shown) = &mut self.shown
            && shown.flush()? == Written::NobodyReads
        {
            written = Written::NobodyReads;
        }
        Ok(written)
    }

    pub fn finish(mut self, inputs: Option<&Input>) -> Result<()> {
        if let Some(shown) = &mut self.shown {
            shown.end();
        }
        if let (Some(rewritten), Some(first)) = (&mut self.rewritten, inputs) {
            rewritten.rewriter.start(&mut rewritten.buffer, &first.reader);
        }
        self.flush()?;
        if let Some(rewritten) = &mut self.rewritten {
            rewritten.files.end()?;
            rewritten.files.wait_for_commands()?;
        }
        let Some(rewriter) = self.rewritten.map(|rewritten| rewritten.rewriter) else {
            return Ok(());
        };
        if let Some(left_out) = rewriter.private() {
            privacy::report(left_out);
        }
        let left_out = rewriter.left_out();
        if left_out > 0 {
            let blocks = if left_out == 1 { "block" } else { "blocks" };
            let text = format!(
                "left out {left_out} {blocks} of sections in big-endian order: the numbers in blocks of an unknown type \
                 cannot be written in another order; read the file alone to keep them"
            );
            json::say("blocks_left_out", json!({ "blocks": left_out }), &text);
        }
        Ok(())
    }
}

/// Packets as text on standard output.
struct Shown {
    form: Shape,
    text: String,
    precision_of_file: bool,
    /// Names of each file's interfaces.
    names: HashMap<usize, Names>,
}

/// State that records if the interfaces of a file have different names.
#[derive(Default)]
struct Names {
    /// Number of interfaces seen: each of many sections may describe some more.
    known: usize,
    differ: bool,
}

impl Names {
    fn look_at(&mut self, interfaces: &[Interface]) {
        // The next file of a ring.
        if interfaces.len() < self.known {
            *self = Self::default();
        }
        let first = interfaces.first().map(|interface| &interface.name);
        let new = interfaces.get(self.known..).unwrap_or_default();
        self.differ |= new.iter().any(|one| Some(&one.name) != first);
        self.known = interfaces.len();
    }
}

enum Shape {
    Lines(Box<Printer>),
    /// Number of packets.
    Count(u64),
    JsonLines,
    /// An array; true once it has an element.
    Json(JsonArray),
}

impl Shown {
    fn new(form: Form, request: &Request) -> Self {
        Self {
            form: match form {
                Form::Lines => Shape::Lines(Box::new(Printer::new(request.print))),
                Form::Count => Shape::Count(0),
                Form::JsonLines => Shape::JsonLines,
                Form::Json => Shape::Json(JsonArray::default()),
            },
            text: String::new(),
            precision_of_file: request.precision_of_file,
            names: HashMap::new(),
        }
    }

    fn packet(&mut self, index: usize, input: &Input) {
        if let Shape::Count(count) = &mut self.form {
            *count += 1;
            return;
        }
        let Some(mut packet) = PacketSource::current(&input.reader) else {
            return;
        };
        match &mut self.form {
            Shape::Count(_) => {}
            Shape::Lines(printer) => {
                let interfaces = input.reader.interfaces();
                let names = self.names.entry(index).or_default();
                names.look_at(interfaces);
                if packet.hook.is_none() && !names.differ {
                    packet.interface = None;
                }
                if self.precision_of_file {
                    let index = input.reader.time_and_interface().map(|(_, index)| index);
                    let interface = index.and_then(|index| interfaces.get(index));
                    let is_coarse = interface.is_some_and(|i| i.tsresol <= TSRESOL_DEFAULT);
                    printer.set_precision(if is_coarse { Precision::Micro } else { Precision::Nano });
                }
                printer.line(&mut self.text, &packet);
            }
            Shape::JsonLines => JsonLines.show(&mut self.text, &packet),
            Shape::Json(array) => array.show(&mut self.text, &packet),
        }
    }

    fn end(&mut self) {
        match &mut self.form {
            Shape::Json(array) => array.end(&mut self.text),
            Shape::Count(1) => self.text.push_str("1 packet\n"),
            Shape::Count(count) => self.text.push_str(&format!("{count} packets\n")),
            Shape::Lines(_) | Shape::JsonLines => {}
        }
    }

    fn flush(&mut self) -> Result<Written> {
        let taken = terminal::write_to_reader(&self.text)?;
        self.text.clear();
        Ok(if taken { Written::Taken } else { Written::NobodyReads })
    }
}

/// Packets that are written to files.
struct Rewritten {
    rewriter: Rewriter,
    format: Format,
    buffer: Vec<u8>,
    files: Files,
    /// Set if more than one file is possible.
    is_series: bool,
}

impl Rewritten {
    fn open(path: &Path, request: &Request, inputs: &[Input]) -> Result<Self> {
        let read = |input: &Input| match input.reader.pcap_header() {
            Some(_) => Format::Pcap,
            None => Format::Pcapng,
        };
        // The file's variant becomes known later.
        let is_modified = |input: &Input| matches!(input.reader.format(), FileFormat::Pcap { modified: true, .. });
        let headers_differ = inputs.windows(2).any(|pair| pair[0].reader.pcap_header() != pair[1].reader.pcap_header());
        let all_pcap = inputs.iter().all(|input| read(input) == Format::Pcap) && !headers_differ;
        let format = request.format.or_else(|| format_by_name(path)).unwrap_or(if all_pcap {
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
        let verbatim = verbatim && !(request.follow && inputs.len() > 1);
        let application = format!("trawl {}", env!("CARGO_PKG_VERSION"));
        let rewriter = Rewriter::new(format, verbatim, application);
        Ok(Self {
            // The key is read before the file is made.
            rewriter: match privacy::of(request)? {
                Some(privacy) => rewriter.with_privacy(privacy),
                None => rewriter,
            },
            format,
            buffer: Vec::with_capacity(2 * GATHER),
            is_series: request.series.is_asked_for(),
            files: Files::open(request.series.clone(), request.compression, inputs)?,
        })
    }

    fn packet(&mut self, index: usize, input: &Input) -> Result<Written> {
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

    fn block(&mut self, index: usize, input: &Input, kind: u32) {
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

    fn flush(&mut self) -> Result<Written> {
        // The name of a file may depend on its first packet, which has not arrived yet.
        if !self.files.has_begun() {
            return Ok(Written::Taken);
        }
        let written = self.files.write(&self.buffer);
        self.buffer.clear();
        written
    }
}
