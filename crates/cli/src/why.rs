//! `trawl why`: reasons and locations of lost packets. It sums up the records of the tap at drops, and losses that only
//! counters show.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use trawl_capture::assembly::HostFeatures;
use trawl_capture::event::Event;
use trawl_capture::point::Point;
use trawl_capture::session::{self, Attached, Ended, Observer};
use trawl_capture::subject::Subject;
use trawl_capture::summary::Summary;
use trawl_capture::taps::drop::reasons::similar;
use trawl_explain::why::drops;
use trawl_explain::why::report::LossReport;
use trawl_explain::why::{Audience, Notice, Scope, Search, record, watching_drops};
use trawl_front::bound::{Bound, parse_bound};
use trawl_pipeline::Writer;
use trawl_plan::CapturePlan;
use trawl_plan::options::{CaptureOptions, Drops, ProcessPlan};
use trawl_plan::sources::Sources;
use trawl_sink::one_file;
use trawl_source::Input;
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result, clock};

use crate::args::{LibpcapArg, NamespacesArg, SubjectArgs};
use crate::capture::progress::end_command;
use crate::program_args::refuse_options;
use crate::read::existing_files;
use crate::screen::Screen;
use crate::{exit_code, json, terminal, units};

/// Columns of a page about a reason.
const PAGE_WIDTH: usize = 80;

/// Shows lost packets: the reason, the location, and how to fix it
///
/// With files, shows the losses that --record, or a capture at the tap drop, recorded. With a command, shows the losses
/// of its processes, until it ends.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    namespaces: NamespacesArg,
    /// Only drops at this interface, NAME or NAMESPACE:NAME; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF", add = crate::completion::interfaces())]
    interfaces: Vec<String>,
    /// End after this time, for example 10s [default: at the first interrupt]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Show non-losses as well: queues of closing sockets, and groups that no socket has joined
    #[arg(long)]
    all: bool,
    /// Never trace packets by nftables (default: up to 5 s in a namespace, if several rules may have dropped packets)
    #[arg(long)]
    no_trace: bool,
    /// Record the dropped packets to this pcapng file as well, with the counters and the advice
    #[arg(long, value_name = "FILE", conflicts_with = "since")]
    record: Option<PathBuf>,
    /// Only packets of a file from this time on: 14:30:00, '2026-01-31 14:30:00', -10min, +1h after the first packet
    #[arg(long, value_name = "TIME", value_parser = parse_bound, allow_hyphen_values = true)]
    since: Option<Bound>,
    /// Show only drops that are new since this recording, or at least ten times as frequent
    #[arg(long, value_name = "FILE", add = crate::completion::paths())]
    diff: Option<String>,
    /// Explain a drop reason instead: its meaning, commands that reproduce it, the fix; `help` lists all reasons
    #[arg(long, value_name = "REASON", exclusive = true, add = crate::completion::explained_reasons())]
    explain: Option<String>,
    /// Show the result as JSON, one document at the end
    #[arg(long)]
    json: bool,
    /// Files to read, and a filter in tcpdump's syntax; with a filter, counters are left out, since they have no
    /// packets
    #[arg(value_name = "FILE… [EXPRESSION]", add = crate::completion::paths())]
    words: Vec<String>,
    #[command(flatten)]
    subject: SubjectArgs,
    #[command(flatten)]
    libpcap: LibpcapArg,
}

pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(reason) = &args.explain {
        return explain(reason);
    }
    args.libpcap.choose();
    let (files, words) = existing_files(&args.words);
    if !files.is_empty() {
        return read(&args, files, words);
    }
    if args.since.is_some() {
        let why = "only files hold what happened before";
        return Err(Error::usage("cannot use --since", why).fix("name one: trawl why FILE --since"));
    }
    let reference = args.diff.as_deref().map(open_reference).transpose()?;
    let started = Instant::now();
    let mut plan = plan(&args);
    let sites = trawl_capture::sources::find(&plan.sources, plan.options.tap, Vec::new())?;
    let namespaces = args.namespaces.open()?;
    let mut observer = Watcher {
        json: args.json,
        started: |point| Some(format!("looking for drops on {}", point.label)),
        subject: Subject::prepare(&args.subject.words, &mut plan.options, true, None)?,
        names_all: args.subject.words.is_empty(),
    };
    let mut attached = session::attach(&sites, &plan.options, HostFeatures::this(), &mut observer)?;
    let recording = args.record.as_deref();
    let mut file = recording.map(|path| one_file(path, &mut attached)).transpose()?;
    let confined = attached.keep_rights();
    // Neither an expression nor a command selects among counters.
    let with_counters = args.words.is_empty() && args.subject.words.is_empty();
    let scope = Scope {
        no_losses_too: args.all,
        with_counters,
        are_chosen: !with_counters || !args.interfaces.is_empty(),
        may_trace: !args.no_trace,
        namespaces,
        spaces: observer.subject.as_ref().and_then(Subject::spaces).cloned(),
    };
    let mut screen = Screen::new(args.json);
    let file = file.as_mut().map(|file| &mut **file as &mut dyn Writer);
    let mut search = Search::begin(scope, confined.attached(), &sites, file, &mut screen)?;
    let (summary, ended) = confined.run(&mut search, &mut observer)?;
    let seconds = started.elapsed().as_secs_f64();
    let mut report = search.into_report(&summary.total)?;
    screen.clear();
    let status = end_command(observer.subject);
    if let Some(reference) = reference {
        let reference = record::read(reference, "", None, false)?;
        report.compare(seconds, &reference.report, reference.seconds);
    }
    show(&report, args.json)?;
    match ended {
        Ended::Signal | Ended::Duration | Ended::Count | Ended::Size | Ended::Command => Ok(ExitCode::from(status)),
        Ended::Output(error) => Err(error),
        other => Err(Error::failed("cannot continue to look for drops", other)),
    }
}

/// Prints the page about a reason, or the list of all reasons.
fn explain(name: &str) -> Result<ExitCode> {
    let text = match drops::find(name) {
        Some(reason) => drops::plain(&reason.page(), PAGE_WIDTH),
        None if name == "help" => drops::reasons().map(|one| format!("{:<26} {}\n", one.name, one.short)).collect(),
        None => {
            let like = similar(name, drops::reasons().map(|one| one.name));
            let why = if like.is_empty() {
                "no page is about that reason".to_owned()
            } else {
                format!("no page is about that reason; similar ones are {}", like.join(", "))
            };
            let error = Error::usage(format!("cannot explain {name}"), why);
            return Err(error.fix("trawl why --explain help lists all reasons"));
        }
    };
    terminal::write_out(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn read(args: &Args, files: &[String], words: &[String]) -> Result<ExitCode> {
    let given = [
        (!args.interfaces.is_empty(), "-i"),
        (!args.namespaces.given().is_empty(), "--netns"),
        (args.namespaces.are_all(), "--all-namespaces"),
        (args.duration.is_some(), "--duration"),
        (args.record.is_some(), "--record"),
        (args.no_trace, "--no-trace"),
        (!args.subject.words.is_empty(), "a command"),
    ];
    refuse_options("cannot look for drops now", &given, "is not about files, and files are named")?;
    let reference = args.diff.as_deref().map(open_reference).transpose()?;
    let inputs = record::open(files, json::show_notice)?;
    let since = args.since.map(|bound| move |first| bound.absolute(first, clock::wall(), clock::local_offset()));
    let since = since.as_ref().map(|since| since as record::Since<'_>);
    let mut found = record::read(inputs, &words.join(" "), since, args.all)?;
    if let Some(reference) = reference {
        let reference = record::read(reference, "", None, false)?;
        found.report.compare(found.seconds, &reference.report, reference.seconds);
    }
    show(&found.report, args.json)?;
    Ok(exit_code(found.is_whole))
}

fn open_reference(file: &str) -> Result<Vec<Input>> {
    record::open(&[file.to_owned()], json::show_notice)
}

fn show(report: &LossReport, as_json: bool) -> Result<()> {
    json::print_as(as_json, report, || report.to_string())?;
    if as_json {
        return Ok(());
    }
    if let Some(reason) = report.explained() {
        terminal::say(&format!("more about {reason}: trawl why --explain {reason}"));
    }
    if let Some(text) = report.account() {
        terminal::say(&text);
    }
    Ok(())
}

fn plan(args: &Args) -> CapturePlan {
    let drops = Drops {
        no_losses: true,
        stack: true,
        droppers: true,
        // A command's packets may be dropped in any.
        namespaces: if args.subject.words.is_empty() {
            args.namespaces.names()
        } else {
            args.namespaces.given().to_vec()
        },
        ..Drops::default()
    };
    let sources = Sources {
        names: args.interfaces.clone(),
        netns: args.namespaces.of_interfaces().map(str::to_owned),
        ..Sources::default()
    };
    let options = CaptureOptions {
        // If the processes cannot be recorded, the lists of open sockets name them.
        process: Some(ProcessPlan { optional: true, ..ProcessPlan::default() }),
        ..watching_drops(drops, &args.words, args.duration)
    };
    CapturePlan::new(sources, options)
}

/// A reporter of a capture at drops, on standard error.
pub(crate) struct Watcher {
    pub(crate) json: bool,
    /// The message for a point that was attached.
    pub(crate) started: fn(&Point) -> Option<String>,
    pub(crate) subject: Option<Subject>,
    /// The process of each packet is wanted.
    pub(crate) names_all: bool,
}

impl Observer for Watcher {
    /// Makes the command's processes wait in new network namespaces until the taps cover these.
    fn attached(&mut self, attached: &Attached) -> Result<()> {
        let subject = self.subject.as_mut();
        subject.map_or(Ok(()), |subject| subject.watch(attached))
    }

    fn event(&mut self, event: &Event) {
        // Packets of other flows than the command's are no loss to it.
        if !self.names_all && matches!(event, Event::ProcessesUnknown { .. }) {
            return;
        }
        let text = event.to_string();
        if self.json { json::notice(None, event, &text) } else { terminal::say(&text) }
    }

    fn started(&mut self, points: &[Point]) {
        for (point, text) in points.iter().filter_map(|one| Some((one, (self.started)(one)?))) {
            if self.json { json::notice(None, &point.capturing(), &text) } else { terminal::say(&text) }
        }
        if let Some(subject) = &mut self.subject {
            subject.begin();
        }
    }

    fn entered(&mut self) -> Vec<Namespace> {
        let spaces = self.subject.as_ref().and_then(Subject::spaces);
        spaces.map_or_else(Vec::new, |spaces| spaces.entered())
    }

    fn is_urgent(&mut self) -> bool {
        let spaces = self.subject.as_ref().and_then(Subject::spaces);
        spaces.is_some_and(|spaces| spaces.is_urgent())
    }

    fn attention(&self) -> Duration {
        self.subject.as_ref().map_or(Duration::MAX, Subject::attention)
    }

    fn wakes(&self) -> Vec<BorrowedFd<'_>> {
        self.subject.as_ref().map_or_else(Vec::new, Subject::wakes)
    }

    fn is_over(&mut self) -> bool {
        self.subject.as_mut().is_some_and(Subject::is_over)
    }

    fn figures(&mut self, summary: &Summary) {
        json::event(&Event::Account(summary.total.clone()));
    }
}

impl Audience for Screen {
    fn notice(&mut self, notice: &Notice) {
        self.clear();
        json::show_notice(notice);
    }

    fn is_live(&self) -> bool {
        self.is_live()
    }

    fn report(&mut self, so_far: &LossReport) {
        self.show(&so_far.to_string());
    }
}
