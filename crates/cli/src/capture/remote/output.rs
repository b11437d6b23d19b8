//! Output of the packets of all hosts: one pcapng, lines, or JSON.

use std::io::{self, Write};
use std::path::Path;

use trawl_packet::read::CaptureReader;
use trawl_plan::outputs::{Format, OutputPlan};
use trawl_sys::{Error, Result};
use trawl_view::Show;
use trawl_view::json::JsonLines;
use trawl_view::record::PacketSource;
use trawl_view::rewrite::{Format as Written, Rewriter};

use crate::capture::display::Display;
use crate::terminal;
use trawl_hosts::Output as HostOutput;
use trawl_sink::Output as File;

/// Number of bytes that are collected before a write.
const GATHER: usize = 256 << 10;

enum Form {
    File(Box<Rewriter>, File),
    Shown(Box<dyn Show + Send>),
}

pub(super) struct Output {
    form: Form,
    bytes: Vec<u8>,
    text: String,
}

impl Output {
    pub fn open(outputs: &[OutputPlan], display: &Display, open: impl Fn(&Path) -> Result<File>) -> Result<Self> {
        let form = match (outputs, &display.form) {
            ([], Some(form)) => Form::Shown(form.writer()),
            ([], None) => Form::Shown(Box::new(JsonLines)),
            ([output], _) if output.listen.is_some() => {
                let what = format!("cannot write to {}", output.path.display());
                let why = "captures of other hosts have no readers on a socket";
                return Err(Error::usage(what, why).fix("name a file, or '-' for a pipe"));
            }
            ([output], _) => {
                let name = output.path.display();
                if output.compression.is_some() {
                    return Err(Error::usage(
                        format!("cannot write {name}"),
                        "captures of other hosts are not compressed here",
                    )
                    .fix("name a file that ends in .pcapng, or keep them with --store"));
                }
                let format = match output.format {
                    Format::Pcapng => Written::Pcapng,
                    Format::Pcap => Written::Pcap,
                };
                let application = format!("trawl {}", env!("CARGO_PKG_VERSION"));
                let file = open(&output.path)?;
                file.empty()?;
                Form::File(Box::new(Rewriter::new(format, false, application)), file)
            }
            _ => {
                return Err(Error::usage(
                    "cannot write captures of other hosts to several files",
                    "only one file is possible",
                ));
            }
        };
        Ok(Self { form, bytes: Vec::new(), text: String::new() })
    }

    pub fn finish(mut self) -> Result<()> {
        if let Form::Shown(form) = &mut self.form {
            form.end(&mut self.text);
        }
        self.flush().map(drop)
    }
}

impl HostOutput for Output {
    fn block(&mut self, host: usize, reader: &CaptureReader<'_>, kind: u32) {
        if let Form::File(rewriter, file) = &mut self.form {
            file.keep();
            rewriter.block(&mut self.bytes, host, reader, kind);
        }
    }

    /// Writes a packet; returns false if the reader is gone.
    fn packet(&mut self, host: usize, reader: &CaptureReader<'_>) -> Result<bool> {
        match &mut self.form {
            Form::File(rewriter, file) => {
                file.keep();
                rewriter
                    .packet(&mut self.bytes, host, reader)
                    .map_err(|why| Error::failed(format!("cannot write {}", file.name), why).fix("--format pcapng"))?;
            }
            Form::Shown(form) => {
                if let Some(packet) = PacketSource::current(reader) {
                    form.show(&mut self.text, &packet);
                }
            }
        }
        match self.bytes.len() + self.text.len() >= GATHER {
            true => self.flush(),
            false => Ok(true),
        }
    }

    /// Writes the collected bytes; returns false if the reader is gone.
    fn flush(&mut self) -> Result<bool> {
        let Form::File(_, file) = &mut self.form else {
            let taken = terminal::write_to_reader(&self.text)?;
            self.text.clear();
            return Ok(taken);
        };
        let written = file.file.write_all(&self.bytes);
        self.bytes.clear();
        match written {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Error::os(format!("cannot write to {}", file.name), error)),
        }
    }
}
