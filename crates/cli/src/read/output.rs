//! Where packets that were read go: standard output as text, a file, or both.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;

use trawl_kernel::{Error, Result};
use trawl_packet::pcapng::block::TSRESOL_DEFAULT;
use trawl_view::Show;
use trawl_view::json::JsonLines;
use trawl_view::print::{Precision, Printer};
use trawl_view::record::Source;
use trawl_view::rewrite::{Format, Rewriter};

use super::args::{Form, Request, format_by_name};
use super::input::{Input, identity};
use crate::{outfile, terminal};

/// Text and records are gathered up to this many bytes.
const GATHER: usize = 256 << 10;

/// Whether anybody still takes what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Taken,
    NobodyReads,
}

pub(super) struct Output {
    shown: Option<Shown>,
    rewritten: Option<Rewritten>,
    flush_each: bool,
}

impl Output {
    pub fn new(request: &Request, inputs: &[Input]) -> Result<Self> {
        let rewritten = request
            .write
            .as_deref()
            .map(|path| Rewritten::open(path, request.format, inputs, request.follow))
            .transpose()?;
        Ok(Self {
            shown: request.form.map(|form| Shown::new(form, request)),
            rewritten,
            flush_each: request.flush_each,
        })
    }

    pub fn packet(&mut self, index: usize, input: &Input) -> Result<Written> {
        if let Some(rewritten) = &mut self.rewritten {
            rewritten.packet(index, input)?;
        }
        if let Some(shown) = &mut self.shown {
            shown.packet(input);
        }
        let gathered = |text: &[u8]| text.len() >= GATHER;
        let full = self
            .shown
            .as_ref()
            .is_some_and(|shown| gathered(shown.text.as_bytes()))
            || self
                .rewritten
                .as_ref()
                .is_some_and(|rewritten| gathered(&rewritten.buffer));
        if full || self.flush_each {
            self.flush()
        } else {
            Ok(Written::Taken)
        }
    }

    pub fn block(&mut self, index: usize, input: &Input, kind: u32) -> Result<Written> {
        if let Some(rewritten) = &mut self.rewritten {
            let Rewritten {
                rewriter, buffer, ..
            } = rewritten;
            rewriter.block(buffer, index, &input.reader, kind);
            if buffer.len() >= GATHER {
                return self.flush();
            }
        }
        Ok(Written::Taken)
    }

    /// Writes what was gathered.
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
            rewritten
                .rewriter
                .start(&mut rewritten.buffer, &first.reader);
        }
        self.flush()?;
        let left_out = self
            .rewritten
            .map_or(0, |rewritten| rewritten.rewriter.left_out());
        if left_out > 0 {
            terminal::say(&format!(
                "left out {left_out} blocks of sections in big-endian order: only packets and interfaces of those can \
                 be written in another order; read one file alone to keep them"
            ));
        }
        Ok(())
    }
}

/// Packets as text on standard output.
struct Shown {
    form: Shape,
    text: String,
    precision_of_file: bool,
    /// How many interfaces were known at the last look, and whether they have different names.
    known_interfaces: usize,
    places_differ: bool,
}

enum Shape {
    Lines(Box<Printer>),
    JsonLines,
    /// An array; false until there is something in it.
    Json(bool),
}

impl Shown {
    fn new(form: Form, request: &Request) -> Self {
        Self {
            form: match form {
                Form::Lines => Shape::Lines(Box::new(Printer::new(request.print))),
                Form::JsonLines => Shape::JsonLines,
                Form::Json => Shape::Json(false),
            },
            text: if form == Form::Json {
                "[".to_owned()
            } else {
                String::new()
            },
            precision_of_file: request.precision_of_file,
            known_interfaces: 0,
            places_differ: false,
        }
    }

    fn packet(&mut self, input: &Input) {
        let Some(mut packet) = Source::current(&input.reader) else {
            return;
        };
        match &mut self.form {
            Shape::Lines(printer) => {
                let interfaces = input.reader.interfaces();
                if interfaces.len() != self.known_interfaces {
                    self.known_interfaces = interfaces.len();
                    let first = interfaces.first().map(|interface| &interface.name);
                    self.places_differ = interfaces
                        .iter()
                        .any(|interface| Some(&interface.name) != first);
                }
                if packet.hook.is_none() && !self.places_differ {
                    packet.interface = None;
                }
                if self.precision_of_file {
                    let index = input.reader.time_and_interface().map(|(_, index)| index);
                    let interface = index.and_then(|index| interfaces.get(index));
                    let is_coarse = interface.is_some_and(|i| i.tsresol <= TSRESOL_DEFAULT);
                    printer.set_precision(if is_coarse {
                        Precision::Micro
                    } else {
                        Precision::Nano
                    });
                }
                printer.line(&mut self.text, &packet);
            }
            Shape::JsonLines => JsonLines.show(&mut self.text, &packet),
            Shape::Json(begun) => {
                self.text.push_str(if *begun { ",\n" } else { "\n" });
                *begun = true;
                JsonLines.show(&mut self.text, &packet);
                self.text.truncate(self.text.trim_end().len());
            }
        }
    }

    fn end(&mut self) {
        if let Shape::Json(_) = self.form {
            self.text.push_str("\n]\n");
        }
    }

    fn flush(&mut self) -> Result<Written> {
        let taken = terminal::write_to_reader(&self.text)?;
        self.text.clear();
        Ok(if taken {
            Written::Taken
        } else {
            Written::NobodyReads
        })
    }
}

/// Packets on their way into a file.
struct Rewritten {
    rewriter: Rewriter,
    buffer: Vec<u8>,
    file: File,
    name: String,
}

impl Rewritten {
    fn open(path: &Path, format: Option<Format>, inputs: &[Input], follow: bool) -> Result<Self> {
        let read = |input: &Input| match input.reader.pcap_header() {
            Some(_) => Format::Pcap,
            None => Format::Pcapng,
        };
        let headers_differ = inputs
            .windows(2)
            .any(|pair| pair[0].reader.pcap_header() != pair[1].reader.pcap_header());
        let all_pcap = inputs.iter().all(|input| read(input) == Format::Pcap) && !headers_differ;
        let format = format
            .or_else(|| format_by_name(path))
            .unwrap_or(if all_pcap {
                Format::Pcap
            } else {
                Format::Pcapng
            });
        let verbatim = match inputs {
            [only] => read(only) == format,
            _ => all_pcap && format == Format::Pcap,
        };
        // The files of a ring are sections one after the other.
        let verbatim = verbatim && !(follow && inputs.len() > 1);
        let application = format!("trawl {}", env!("CARGO_PKG_VERSION"));
        let (file, name) = open(path, inputs)?;
        Ok(Self {
            rewriter: Rewriter::new(format, verbatim, application),
            buffer: Vec::with_capacity(2 * GATHER),
            file,
            name,
        })
    }

    fn packet(&mut self, index: usize, input: &Input) -> Result<()> {
        self.rewriter
            .packet(&mut self.buffer, index, &input.reader)
            .map_err(|why| {
                Error::failed(format!("cannot write {}", self.name), why)
                    .fix("write pcapng (--format pcapng)")
            })
    }

    fn flush(&mut self) -> Result<Written> {
        let written = self.file.write_all(&self.buffer);
        self.buffer.clear();
        match written {
            Ok(()) => Ok(Written::Taken),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Written::NobodyReads),
            Err(error) => Err(Error::os(format!("cannot write to {}", self.name), error)),
        }
    }
}

fn open(path: &Path, inputs: &[Input]) -> Result<(File, String)> {
    if path == Path::new("-") {
        let name = "standard output".to_owned();
        if io::stdout().is_terminal() {
            return Err(Error::usage(
                "cannot write packets to standard output",
                "it is a terminal",
            )
            .fix("name a file, pipe it on, or leave out -w to see lines"));
        }
        let duplicate = io::stdout().as_fd().try_clone_to_owned();
        let file = duplicate.map_err(|e| Error::os(format!("cannot write to {name}"), e))?;
        return Ok((File::from(file), name));
    }
    let name = path.display().to_string();
    let fail = |e| Error::os(format!("cannot write to {name}"), e);
    let (file, _) = outfile::open(path, None)?;
    let metadata = file.metadata().map_err(fail)?;
    let written = Some(identity(&metadata));
    if let Some(input) = inputs.iter().find(|input| input.identity == written) {
        return Err(Error::usage(
            format!("cannot write to {name}"),
            format!("{} is read from it", input.name),
        )
        .fix("write to another file"));
    }
    if metadata.is_file() {
        file.set_len(0).map_err(fail)?;
    }
    Ok((file, name))
}
