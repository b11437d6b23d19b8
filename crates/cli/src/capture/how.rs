//! Options for writing an output: its format, its compression, direct writes.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use trawl_capture::event::Event;
use trawl_capture::plan::CapturePlan;
use trawl_capture::session::{Observer, Session};
use trawl_io::disk::open_directly;
use trawl_pipeline::plan::{Compression, Format, Io, OutputPlan};
use trawl_pipeline::{FileWriter, Writer};
use trawl_sink::{DirectFile, Form, Packed, Pipe, PlainFile};
use trawl_sys::warden::WholeBytes;
use trawl_sys::{Error, Result, create};

use super::output;
use super::progress::Terminal;

/// Options for writing files.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    form: Form,
    io: Io,
    compression: Option<Compression>,
    /// Maximum size of a file, if known.
    pub(super) largest: Option<u64>,
}

impl How {
    pub(super) fn of(output: &OutputPlan, io: Io, session: &Session) -> Self {
        let first = session.interfaces().first().cloned().unwrap_or_default();
        let form = match output.format {
            Format::Pcapng => Form::Pcapng,
            Format::Pcap => Form::Pcap {
                link_type: first.link_type,
                snaplen: output.snaplen.unwrap_or(first.snaplen),
            },
        };
        Self {
            form,
            io,
            compression: output.compression,
            largest: None,
        }
    }

    /// Opens the writer of a file with committed lengths, or of a pipe or terminal without them.
    pub(super) fn open_any(
        self,
        file: File,
        name: String,
        whole: Option<WholeBytes>,
    ) -> Result<Box<dyn Writer + Send>> {
        Ok(match whole {
            Some(whole) => self.open(file, name, Some(whole))?,
            None => Box::new(Pipe::new(file, name, self.form)),
        })
    }

    /// Opens the writer of an empty file, directly if requested or if its file system supports it.
    pub(super) fn open(
        self,
        file: File,
        name: String,
        whole: Option<WholeBytes>,
    ) -> Result<Box<dyn FileWriter>> {
        if let Some(compression) = self.compression {
            let packed = Packed::new(file, name, whole, compression, self.form)?;
            return Ok(Box::new(packed.in_series(self.is_in_series())));
        }
        if matches!(self.form, Form::Pcapng) && self.io != Io::Buffered {
            let again = file
                .try_clone()
                .map_err(|e| Error::os(format!("cannot write to {name}"), e))?;
            match DirectFile::new(again, name.clone(), whole.clone()) {
                Ok(direct) => return Ok(Box::new(direct.up_to(self.largest))),
                Err(error) if self.io == Io::Direct => return Err(refused(&name, error)),
                // Reported before the capture began.
                Err(_) => {}
            }
        }
        let file = PlainFile::new(file, name, whole, self.form);
        Ok(Box::new(file.in_series(self.is_in_series())))
    }

    fn is_in_series(&self) -> bool {
        self.largest.is_some()
    }
}

fn refused(name: &str, error: io::Error) -> Error {
    let what = format!("cannot write directly to {name}");
    Error::os(what, error).fix("use --io auto or --io buffered")
}

/// Explains under -v why a file is written through the page cache; fails if that is not allowed. Without a file, a
/// temporary one in the series' directory is tried.
pub(super) fn check_io(
    output: &OutputPlan,
    file: Option<&File>,
    plan: &CapturePlan,
    observer: &mut Terminal,
) -> Result<()> {
    let io = plan.files.io;
    if io == Io::Buffered {
        return Ok(());
    }
    let name = output.path.display().to_string();
    let why = match output.can_be_direct() {
        false => "only pcapng files that are not compressed are written directly".to_owned(),
        true => {
            let looked = match file {
                Some(file) => Some(open_directly(file.as_fd())),
                None => example(output, plan)?.map(|file| open_directly(file.as_fd())),
            };
            match looked {
                None | Some(Ok(_)) => return Ok(()),
                Some(Err(error)) if io == Io::Direct => return Err(refused(&name, error)),
                Some(Err(error)) => format!("its file system takes no direct writes ({error})"),
            }
        }
    };
    observer.detail(&Event::NotDirect { output: name, why });
    Ok(())
}

/// Creates a temporary file in the directory of a series, if that is possible already.
fn example(output: &OutputPlan, plan: &CapturePlan) -> Result<Option<File>> {
    let directory = match output.path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let make = || create::unnamed_in(directory).ok();
    Ok(match output::user_of(plan)? {
        Some(user) => user.act_as(|| Ok(make())).ok().flatten(),
        None => make(),
    })
}
