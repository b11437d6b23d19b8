//! The output file of packets, or a series of files by size and by the packets' time; compressed or not.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use trawl_capture::event::Event;
use trawl_pipeline::{Blocks, FileWriter, write_patiently};
use trawl_plan::outputs::Compression;
use trawl_source::{Input, identity};
use trawl_sys::{Error, Result, clock, errno, files::outfile};

use crate::{
    Finished, OutputForm, Packed, Pipe, PlainFile, SeriesPlan, check_command, is_nearly_full, wait_for_commands,
};

/// The result of a write: the bytes were accepted, or the reader has closed the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Taken,
    NobodyReads,
}

pub(super) struct Files {
    plan: SeriesPlan,
    compression: Option<Compression>,
    /// Input files, which must not be written to.
    inputs: Vec<(Option<(u64, u64)>, String)>,
    /// Bytes at the start of each file.
    header: Vec<u8>,
    current: Option<Current>,
    number: u64,
    /// The latest name without a number.
    last: Option<PathBuf>,
    finished: Finished,
    tell: fn(&Event),
}

struct Current {
    writer: Box<dyn FileWriter>,
    name: String,
    path: PathBuf,
    /// Bytes written; an upper bound if the file is compressed.
    written: u64,
    /// The time of its first packet.
    began_ns: Option<u64>,
}

impl Files {
    /// Opens the first file, unless its name depends on its first packet.
    pub fn open(
        plan: SeriesPlan,
        compression: Option<Compression>,
        inputs: &[Input],
        tell: fn(&Event),
    ) -> Result<Self> {
        let is_pipe = plan.path == "-";
        if is_pipe && (plan.is_asked_for() || compression.is_some()) {
            return Err(Error::usage(
                "cannot write a series of files, or a compressed one, to standard output",
                "this requires files with names",
            )
            .fix("-w FILE"));
        }
        plan.rotation.command.as_deref().map_or(Ok(()), check_command)?;
        let of = |input: &Input| (input.identity, input.name.clone());
        let mut files = Self {
            compression,
            inputs: inputs.iter().map(of).collect(),
            header: Vec::new(),
            current: None,
            number: 0,
            last: None,
            finished: Finished::of(plan.clone()),
            plan,
            tell,
        };
        if !files.plan.path.contains('%') {
            files.begin(clock::wall())?;
        }
        Ok(files)
    }

    /// Returns the name of the current file.
    pub fn name(&self) -> &str {
        let current = self.current.as_ref();
        current.map_or(&self.plan.path, |current| &current.name)
    }

    /// Returns true if a file is open.
    pub fn has_begun(&self) -> bool {
        self.current.is_some()
    }

    /// Adds bytes with which every further file begins; the current file already has them.
    pub fn begins_with(&mut self, bytes: &[u8]) {
        self.header.extend_from_slice(bytes);
    }

    /// Discards the header, as another section begins.
    pub fn forget_header(&mut self) {
        self.header.clear();
    }

    /// Returns true if a packet of this time, with the bytes waiting before it, belongs into another file than the
    /// current one.
    pub fn is_due(&mut self, time_ns: u64, bytes: usize) -> Result<bool> {
        let Some(current) = &mut self.current else {
            return Ok(true);
        };
        let Some(began) = current.began_ns else {
            return Ok(false);
        };
        let length = self.plan.rotation.time.map(|time| time.as_nanos() as u64);
        if length.is_some_and(|length| time_ns.saturating_sub(began) >= length) {
            return Ok(true);
        }
        let size = self.plan.rotation.size.unwrap_or(u64::MAX);
        let fits = |written: u64| written + bytes as u64 <= size;
        if fits(current.written) {
            return Ok(false);
        }
        if self.compression.is_none() {
            return Ok(true);
        }
        current.writer.compact()?;
        current.written = current.writer.length();
        Ok(!fits(current.written) || is_nearly_full(size - current.written, size))
    }

    /// Records a packet of this time in the current file.
    pub fn takes(&mut self, time_ns: u64) {
        if let Some(current) = &mut self.current {
            current.began_ns.get_or_insert(time_ns);
        }
    }

    /// Ends the current file and begins the one that starts with a packet of this time.
    pub fn turn(&mut self, time_ns: u64) -> Result<()> {
        let is_first = self.current.is_none();
        self.end()?;
        self.finished.make_room();
        self.begin(time_ns)?;
        // The header of the first file comes with its packets.
        if !is_first {
            let header = std::mem::take(&mut self.header);
            self.write(&header)?;
            self.header = header;
        }
        Ok(())
    }

    fn begin(&mut self, time_ns: u64) -> Result<()> {
        self.number += 1;
        let is_used = |path: &Path| self.finished.has(path);
        let path = self.plan.name(self.number, time_ns, &mut self.last, is_used);
        let (file, name) = open(&path, &self.inputs, self.plan.is_asked_for())?;
        let form = OutputForm::Encoded;
        // Standard output may be a file that another program began.
        let is_own = path != Path::new("-") && file.metadata().is_ok_and(|about| about.is_file());
        let writer: Box<dyn FileWriter> = match self.compression {
            None if is_own => Box::new(PlainFile::new(file, name.clone(), None, form)),
            None => Box::new(Pipe::new(file, name.clone(), form)),
            Some(compression) => Box::new(Packed::new(file, name.clone(), None, compression, form)?),
        };
        self.current = Some(Current { writer, name, path, written: 0, began_ns: None });
        Ok(())
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<Written> {
        let Some(current) = &mut self.current else {
            return Ok(Written::Taken);
        };
        current.written += bytes.len() as u64;
        match write_patiently(current.writer.as_mut(), Blocks::Bytes(bytes)) {
            Err(error) if error.errno() == Some(errno::EPIPE) => Ok(Written::NobodyReads),
            written => written.map(|()| Written::Taken),
        }
    }

    /// Ends the current file.
    pub fn end(&mut self) -> Result<()> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        current.writer.finish().error.map_or(Ok(()), Err)?;
        self.finished.add(current.path, current.writer.length());
        Ok(())
    }

    /// Waits for the commands that were started for finished files.
    pub fn wait_for_commands(&mut self) -> Result<()> {
        let tell = self.tell;
        wait_for_commands(|| self.finished.running(), |count| tell(&Event::WaitsForCommands { count }))
    }

    /// Removes the current file, which cannot be completed: half of it would look whole.
    pub fn discard(&mut self) {
        if let Some(current) = self.current.take()
            && std::fs::metadata(&current.path).is_ok_and(|about| about.is_file())
        {
            // If its directory does not allow that, the file is at least empty.
            let _ = File::create(&current.path);
            let _ = std::fs::remove_file(&current.path);
        }
    }
}

fn open(path: &Path, inputs: &[(Option<(u64, u64)>, String)], is_of_series: bool) -> Result<(File, String)> {
    if path == Path::new("-") {
        let name = "standard output".to_owned();
        if io::stdout().is_terminal() {
            return Err(Error::usage("cannot write packets to standard output", "it is a terminal")
                .fix("name a file, pipe it on, or leave out -w to see lines"));
        }
        let duplicate = io::stdout().as_fd().try_clone_to_owned();
        let file = duplicate.map_err(|e| Error::os(format!("cannot write to {name}"), e))?;
        return Ok((File::from(file), name));
    }
    let name = path.display().to_string();
    let fail = |e| Error::os(format!("cannot write to {name}"), e);
    if is_of_series {
        outfile::check_regular(path)?;
    }
    let (file, _) = outfile::open(path, None)?;
    let metadata = file.metadata().map_err(fail)?;
    let written = Some(identity(&metadata));
    if let Some((_, input)) = inputs.iter().find(|(input, _)| *input == written) {
        return Err(Error::usage(format!("cannot write to {name}"), format!("{input} is read from it"))
            .fix("write to another file"));
    }
    if metadata.is_file() {
        file.set_len(0).map_err(fail)?;
    }
    Ok((file, name))
}
