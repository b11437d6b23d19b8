//! `trawl read`: the packets of capture files, as lines, as JSON, or as another file.

mod args;
mod output;
mod selection;

use std::process::ExitCode;

use trawl_capture::dedup::{Dedup, Sighting};
use trawl_capture::session::Observer;
use trawl_sink::{Carried, Outputs};
use trawl_source::{Choice, FileFilter, Files, FilesPlan, Input, Notice, Wanted, file_filter, is_a_pipe};
use trawl_sys::events::Signals;
use trawl_sys::rights::privilege::{self, User};
use trawl_sys::{Result, errno};
use trawl_view::record::PacketSource;
use trawl_view::rewrite::Privacy;

pub use args::ReadArgs;
use args::Request;
pub(crate) use args::{existing_files, split_files};
use output::Shown;
use selection::Selection;

use crate::capture::display::check_terminal;
use crate::capture::interfaces;
use crate::capture::progress::{Notices, ReaderLogs, report_outputs, report_readers};
use crate::doctor;
use crate::exit_code;
use crate::json;

pub fn run(args: ReadArgs) -> Result<ExitCode> {
    if args.list_interfaces {
        return interfaces::list(&args::no_capture(), args.json.is_some());
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
    let plan = request.plan(&inputs);
    check_terminal(&plan)?;
    let user = request.user.as_deref().map(User::find).transpose()?;
    let privacy = request.privacy()?;
    let mut notices = Notices::default();
    let mut outputs = Outputs::open(&plan, None, user.clone(), &mut notices, |event| json::event(event))?;
    outputs.for_readers = FOR_READERS;
    outputs.refuse_inputs(inputs.iter().filter_map(|input| Some((input.identity?, input.name.clone()))).collect())?;
    let readers = ReaderLogs::new(outputs.readers());
    let choice = Chosen::new(&request, filter, privacy.clone());
    let files_plan = FilesPlan {
        outputs: &plan.outputs,
        privacy,
        follows: request.follow,
        flush_each: request.flush_each,
        application: format!("trawl {}", env!("CARGO_PKG_VERSION")),
    };
    let confine = || give_up_privileges(&request, user.as_ref());
    let mut files = Files::new(inputs, choice, files_plan, signals.as_ref(), confine);
    let mut report_new_readers = || readers.new_events().iter().for_each(|event| notices.event(event));
    let carried = outputs.carry(&mut files, &mut report_new_readers);
    report_new_readers();
    let Carried { outcome, outputs: summaries, .. } = carried?;
    files.notices().iter().for_each(json::show_notice);
    files.choice.end()?;
    report_outputs(&summaries);
    report_readers(&readers.fates());
    match outcome.error {
        // The reader closed the pipe, which is not a failure.
        Some(error) if error.errno() != Some(errno::EPIPE) => Err(error),
        _ => Ok(exit_code(!files.has_failed && !summaries.iter().any(|output| output.failed))),
    }
}

/// Memory for the queues of all readers of a socket.
const FOR_READERS: usize = 64 << 20;

/// Gives up privileges once all files are open: untrusted bytes are parsed with no more rights than that needs.
fn give_up_privileges(request: &Request, user: Option<&User>) -> Result<()> {
    user.map_or(Ok(()), User::become_it)?;
    // In a ring, it may be that only root can read the next file.
    if !request.follow {
        privilege::keep_none()?;
    }
    // Calls for anything but files fail from now on. Readers can still connect to a socket that is open already.
    privilege::forbid_all_but_files();
    Ok(())
}

/// The choice of packets, and their text if requested.
struct Chosen<'a> {
    filter: Option<FileFilter<'a>>,
    selection: Selection,
    dedup: Option<Dedup>,
    /// Number of packets that `dedup` left out.
    duplicates: u64,
    /// Number of packets still wanted, if limited.
    remaining: Option<u64>,
    shown: Option<Shown>,
    is_only_shown: bool,
}

impl<'a> Chosen<'a> {
    fn new(request: &'a Request, filter: Option<FileFilter<'a>>, privacy: Option<Privacy>) -> Self {
        Self {
            filter,
            selection: request.selection.clone(),
            dedup: request.dedup.map(Dedup::new),
            duplicates: 0,
            remaining: request.count,
            is_only_shown: !request.writes(),
            shown: request.form.map(|form| Shown::new(form, request, privacy)),
        }
    }

    fn is_wanted(&mut self, index: usize, input: &Input) -> Result<bool> {
        if self.selection.wants_more_than_bytes() {
            let current = PacketSource::current(&input.reader);
            if !current.is_some_and(|packet| self.selection.matches(&packet)) {
                return Ok(false);
            }
        }
        if let Some(filter) = &mut self.filter {
            let (Some((bytes, length)), Some(kind)) = (input.reader.captured(), input.kind()) else {
                return Ok(false);
            };
            if !filter.matches(kind, bytes, length)? {
                return Ok(false);
            }
        }
        let (Some(dedup), Some(packet)) = (&mut self.dedup, input.reader.current()) else {
            return Ok(true);
        };
        let is_seen = dedup.is_seen(&Sighting {
            interface: (index, packet.interface),
            direction: packet.options.direction(),
            link_type: packet.link_type,
            captured: packet.captured,
            time_ns: packet.timestamp_ns,
        });
        self.duplicates += u64::from(is_seen);
        Ok(!is_seen)
    }

    /// Ends the text, and reports the packets left out.
    fn end(&mut self) -> Result<()> {
        if let Some(shown) = &mut self.shown {
            shown.end()?;
            // If there are outputs, they report the same parts.
            shown.privacy_notice().filter(|_| self.is_only_shown).iter().for_each(json::show_notice);
        }
        if self.dedup.is_some() {
            json::show_notice(&Notice::DuplicatesLeftOut { packets: self.duplicates });
        }
        Ok(())
    }
}

impl Choice for Chosen<'_> {
    fn choose(&mut self, index: usize, input: &Input) -> Result<Wanted> {
        if !self.is_wanted(index, input)? {
            return Ok(Wanted::No);
        }
        self.remaining = self.remaining.map(|count| count - 1);
        let is_read = match &mut self.shown {
            Some(shown) => shown.packet(index, input)?,
            None => true,
        };
        Ok(if is_read && self.remaining != Some(0) { Wanted::Yes } else { Wanted::AsLast })
    }

    fn block(&mut self, index: usize, input: &Input, kind: u32) {
        self.shown.iter_mut().for_each(|shown| shown.block(index, input, kind));
    }

    fn flush(&mut self) -> Result<bool> {
        self.shown.as_mut().map_or(Ok(true), Shown::flush)
    }
}
