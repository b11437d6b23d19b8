//! `trawl read`: the packets of capture files, as lines, as JSON, or as another file.

mod args;
mod output;
mod selection;

use std::process::ExitCode;

use trawl_packet::read::Step;
use trawl_plan::CapturePlan;
use trawl_plan::TapChoice;
use trawl_plan::options::{CaptureOptions, Memory};
use trawl_plan::sources::Sources;
use trawl_sink::Written;
use trawl_source::{Dedup, FileFilter, Input, Notice, file_filter, is_a_pipe};
use trawl_sys::Result;
use trawl_sys::events::Signals;
use trawl_sys::rights::privilege::{self, User};
use trawl_view::merge::Merge;
use trawl_view::record::PacketSource;

pub use args::ReadArgs;
use args::Request;
pub(crate) use args::{looks_like_a_file, split_files};
use output::Output;
use selection::Selection;

use crate::capture::interfaces;
use crate::doctor;
use crate::exit_code;
use crate::json;

pub fn run(args: ReadArgs) -> Result<ExitCode> {
    if args.list_interfaces {
        let options = CaptureOptions::new(TapChoice::Auto, Memory::default());
        let plan = CapturePlan::new(Sources::default(), options);
        return interfaces::list(&plan, args.json.is_some());
    }
    args.libpcap.choose();
    if args.version {
        return doctor::version();
    }
    let request = args.resolve()?;
    // Ctrl-C ends the command even while it waits for a pipe.
    let follows = request.follow && !is_a_pipe(&request.files);
    let signals = follows.then(Signals::watch).transpose()?;
    let span = |first| request.selection.span(first);
    let by_part = request.selection.can_leave_out(request.files.len());
    let inputs = request
        .files
        .iter()
        .map(|path| Input::open(path, signals.as_ref(), by_part.then_some(&span), json::show_notice))
        .collect::<Result<Vec<_>>>()?;
    if let (Some(dump), Some(first)) = (request.dump, inputs.first()) {
        dump.show(request.filter.as_ref(), first)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(option) = request.selection.only_in_pcapng() {
        for input in inputs.iter().filter(|input| input.reader.pcap_header().is_some()) {
            json::show_notice(&Notice::OnlyInPcapng { file: input.name.clone(), option });
        }
    }
    // Host names are resolved while that is still allowed, and before any output: a refused filter leaves no file.
    let filter = file_filter(request.filter.as_ref(), inputs.first())?;
    let reading = Reading::new(&request, inputs, filter)?;
    give_up_privileges(&request)?;
    reading.run(signals.as_ref())
}

/// Gives up privileges once all files are open: untrusted bytes are parsed with no more rights than that needs.
fn give_up_privileges(request: &Request) -> Result<()> {
    if let Some(user) = &request.user {
        User::find(user)?.become_it()?;
    }
    // The next file of a ring may be one that only root can read.
    if !request.follow {
        privilege::keep_none()?;
    }
    // The command of -z may need any right.
    if request.series.rotation.command.is_none() {
        privilege::forbid_all_but_files();
    }
    Ok(())
}

/// Files that are being read, and the output.
struct Reading<'a> {
    sources: Merge<Input>,
    output: Output,
    filter: Option<FileFilter<'a>>,
    selection: Selection,
    dedup: Option<Dedup>,
    /// Number of packets still wanted, if limited.
    remaining: Option<u64>,
    failed: bool,
}

impl<'a> Reading<'a> {
    fn new(request: &'a Request, inputs: Vec<Input>, filter: Option<FileFilter<'a>>) -> Result<Self> {
        Ok(Self {
            output: Output::new(request, &inputs)?,
            sources: Merge::new(inputs),
            filter,
            selection: request.selection.clone(),
            dedup: request.dedup.map(Dedup::new),
            remaining: request.count,
            failed: false,
        })
    }

    fn run(mut self, signals: Option<&Signals>) -> Result<ExitCode> {
        let mut written = Written::Taken;
        while self.remaining != Some(0) && written == Written::Taken {
            let step = self.sources.step();
            written = match step {
                Ok(Some(Step::Packet)) => self.packet()?,
                Ok(Some(Step::Block { kind })) => self.block(kind)?,
                Ok(None) => break,
                Err(error) if error.would_block() => {
                    let flushed = self.output.flush()?;
                    let input = self.sources.source_mut();
                    if input.is_some_and(|input| !input.wait(signals)) {
                        break;
                    }
                    flushed
                }
                Err(error) => {
                    if let Some(input) = self.sources.source() {
                        input.report_unreadable(&error);
                    }
                    self.failed = true;
                    Written::Taken
                }
            };
        }
        self.sources.sources().for_each(Input::report_flawed_times);
        self.output.finish(self.sources.source())?;
        self.dedup.iter().for_each(|dedup| json::show_notice(&dedup.notice()));
        Ok(exit_code(!self.failed))
    }

    fn packet(&mut self) -> Result<Written> {
        let index = self.sources.index();
        let Some(input) = self.sources.source() else {
            return Ok(Written::Taken);
        };
        if self.selection.wants_more_than_bytes() {
            let Some(packet) = PacketSource::current(&input.reader) else {
                return Ok(Written::Taken);
            };
            if !self.selection.takes(&packet) {
                return Ok(Written::Taken);
            }
        }
        if let Some(filter) = &mut self.filter {
            let (Some((bytes, length)), Some(kind)) = (input.reader.captured(), input.kind()) else {
                return Ok(Written::Taken);
            };
            if !filter.matches(kind, bytes, length)? {
                return Ok(Written::Taken);
            }
        }
        if let Some(dedup) = &mut self.dedup
            && let Some(packet) = input.reader.current()
            && dedup.is_seen(index, &packet)
        {
            return Ok(Written::Taken);
        }
        self.remaining = self.remaining.map(|count| count - 1);
        self.output.packet(index, input)
    }

    fn block(&mut self, kind: u32) -> Result<Written> {
        let index = self.sources.index();
        match self.sources.source() {
            Some(input) => self.output.block(index, input, kind),
            None => Ok(Written::Taken),
        }
    }
}
