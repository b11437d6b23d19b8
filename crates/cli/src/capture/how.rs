//! How an output is written: its form, its compression, directly or not.

use std::fs::File;

use trawl_kernel::warden::WholeBytes;
use trawl_kernel::{Error, Result};
use trawl_sink::{
    Compression, DirectFile, Form, Packed, PcapFile, PcapStream, PcapngFile, PcapngStream,
};
use trawl_tap::notice::Notice;
use trawl_tap::session::Session;
use trawl_tap::sink::Sink;

use super::args::{Args, Format};
use super::beside::Wanted;
use super::recording::Io;

/// How files are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    form: Form,
    io: Io,
    compression: Option<Compression>,
    /// How large a file may become, where that is known.
    pub(super) largest: Option<u64>,
}

impl How {
    /// As was said of this output, or of all.
    pub(super) fn of(wanted: &Wanted, args: &Args, session: &Session) -> Self {
        let first = session.interfaces().first().cloned().unwrap_or_default();
        let form = match wanted.format.unwrap_or(args.format_of(&wanted.path)) {
            Format::Pcapng => Form::Pcapng,
            Format::Pcap => Form::Pcap {
                link_type: first.link_type,
                snaplen: wanted.snaplen.unwrap_or(first.snaplen),
            },
        };
        Self {
            form,
            io: args.recording.io,
            compression: args.recording.compression(&wanted.path, wanted.compress),
            largest: None,
        }
    }

    /// The same for what may be a pipe or a terminal: such a one has no whole bytes.
    pub(super) fn open_any(
        self,
        file: File,
        name: String,
        whole: Option<WholeBytes>,
    ) -> Result<(Box<dyn Sink + Send>, Option<Notice>)> {
        if whole.is_some() {
            return self.open(file, name, whole);
        }
        let sink: Box<dyn Sink + Send> = match self.form {
            Form::Pcapng => Box::new(PcapngStream::new(file, name)),
            Form::Pcap { link_type, snaplen } => {
                Box::new(PcapStream::new(file, name, link_type, snaplen))
            }
        };
        Ok((sink, None))
    }

    /// What is written to this empty file, and what there is to say about it.
    pub(super) fn open(
        self,
        file: File,
        name: String,
        whole: Option<WholeBytes>,
    ) -> Result<(Box<dyn Sink + Send>, Option<Notice>)> {
        if let Some(compression) = self.compression {
            let packed = Packed::new(file, name, whole, compression, self.form)?;
            return Ok((Box::new(packed.in_series(self.is_in_series())), None));
        }
        match self.form {
            Form::Pcapng => pcapng_file(file, name, whole, self),
            Form::Pcap { link_type, snaplen } => {
                let file = PcapFile::new(file, name, whole, link_type, snaplen);
                Ok((Box::new(file.in_series(self.is_in_series())), None))
            }
        }
    }

    fn is_in_series(&self) -> bool {
        self.largest.is_some()
    }
}

/// A file that is written as was asked for, or as its file system can.
fn pcapng_file(
    file: File,
    name: String,
    whole: Option<WholeBytes>,
    how: How,
) -> Result<(Box<dyn Sink + Send>, Option<Notice>)> {
    let mut detail = None;
    let io = how.io;
    if io != Io::Buffered {
        let again = file
            .try_clone()
            .map_err(|e| Error::os(format!("cannot write to {name}"), e))?;
        match DirectFile::new(again, name.clone(), whole.clone()) {
            Ok(direct) => return Ok((Box::new(direct.up_to(how.largest)), None)),
            Err(error) if io == Io::Direct => {
                let what = format!("cannot write directly to {name}");
                return Err(Error::os(what, error).fix("use --io auto or --io buffered"));
            }
            Err(error) => {
                detail = Some(Notice::NotDirect {
                    output: name.clone(),
                    why: error.to_string(),
                });
            }
        }
    }
    let file = PcapngFile::new(file, name, whole).in_series(how.is_in_series());
    Ok((Box::new(file), detail))
}
