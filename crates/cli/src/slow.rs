//! `trawl slow`: why connections are slow, and who is to blame.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use trawl_capture::assembly::HostFeatures;
use trawl_capture::session::{self, Ended};
use trawl_capture::subject::Subject;
use trawl_explain::slow::chosen::Chosen;
use trawl_explain::slow::file;
use trawl_explain::slow::live::{Audience, Live, News, SocketFinding, SocketReport};
use trawl_explain::slow::record::Draft;
use trawl_explain::why::watching_drops;
use trawl_pipeline::Writer;
use trawl_plan::filter::Filter;
use trawl_plan::options::{CaptureOptions, Drops, ProcessPlan};
use trawl_plan::sources::Sources;
use trawl_plan::{CapturePlan, TapChoice};
use trawl_sink::one_file;
use trawl_source::{Input, file_filter};
use trawl_sys::{Error, Result, clock};

use crate::args::{LibpcapArg, NamespacesArg, SubjectArgs};
use crate::capture::progress::end_command;
use crate::program_args::refuse_options;
use crate::read::existing_files;
use crate::screen::Screen;
use crate::why::Watcher;
use crate::{exit_code, json, terminal, units};

/// Shows why connections are slow: the cause, its evidence, and where to look
///
/// Measures the TCP connections and the questions to name servers of this host, those that exist already too, until the
/// first interrupt. Names loss, on the path or by a rule here, reordering, distance, queues, slow readers, slow answers,
/// full buffers and listen queues, waiting for a CPU, packets that are too large, refused and reset connections, and slow
/// or silent name servers. A connection that has nothing to say is not slow.
///
/// With files, names the causes that their packets show; the first 128 bytes of each packet are enough. With a command,
/// shows the connections of its processes, until it ends.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    namespaces: NamespacesArg,
    /// Only the connections of this process and its children
    #[arg(long, value_name = "PID", conflicts_with = "subject")]
    pid: Option<u32>,
    /// End after this time, for example 10s [default: at the first interrupt]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Record the packets of the connections with a verdict to this pcapng file, with the verdict as a comment, and the
    /// packets of theirs that the kernel dropped
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Show each cause as soon as it is found, as a line; one that lasts is shown once. Measures anew after each TIME [default:
    /// 60s]; a cause that is not found for twice as long is new again
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "60s", value_parser = units::duration, conflicts_with = "record")]
    events: Option<Duration>,
    /// Show the result as JSON
    #[arg(long)]
    json: bool,
    /// Files to read, and a filter in tcpdump's syntax for packets or connections
    #[arg(value_name = "FILE… [EXPRESSION]", add = crate::completion::paths())]
    words: Vec<String>,
    #[command(flatten)]
    subject: SubjectArgs,
    #[command(flatten)]
    libpcap: LibpcapArg,
}

pub fn run(args: Args) -> Result<ExitCode> {
    args.libpcap.choose();
    let (files, words) = existing_files(&args.words);
    if files.is_empty() { watch(&args) } else { read(&args, files, words) }
}

fn read(args: &Args, files: &[String], words: &[String]) -> Result<ExitCode> {
    let given = [
        (!args.namespaces.given().is_empty(), "--netns"),
        (args.namespaces.are_all(), "--all-namespaces"),
        (args.pid.is_some(), "--pid"),
        (args.duration.is_some(), "--duration"),
        (args.record.is_some(), "--record"),
        (args.events.is_some(), "--events"),
        (!args.subject.words.is_empty(), "a command"),
    ];
    refuse_options("cannot look at connections now", &given, "is not about files, and files are named")?;
    let open = |name: &String| Input::open(Path::new(name), None, None, json::show_notice);
    let inputs: Vec<Input> = files.iter().map(open).collect::<Result<_>>()?;
    let found = file::read(inputs, &words.join(" "))?;
    json::print_as(args.json, &found.report, || found.report.to_string())?;
    Ok(exit_code(found.is_whole))
}

fn watch(args: &Args) -> Result<ExitCode> {
    let expression = (!args.words.is_empty()).then(|| Filter::Expression(args.words.join(" ")));
    let filter = file_filter(expression.as_ref(), None)?;
    let mut plan = plan(args);
    let sites = trawl_capture::sources::find(&plan.sources, plan.options.tap, Vec::new())?;
    let namespaces = args.namespaces.open()?;
    let mut observer = Watcher {
        json: args.json,
        started: |point| point.site.is_none().then(|| "measuring connections".to_owned()),
        subject: Subject::prepare(&args.subject.words, &mut plan.options, true, None)?,
        names_all: false,
    };
    let draft = args.record.as_deref().map(Draft::begin).transpose()?;
    let mut attached = session::attach(&sites, &plan.options, HostFeatures::this(), &mut observer)?;
    let mut file = draft.as_ref().map(|draft| one_file(&draft.all(), &mut attached)).transpose()?;
    let confined = attached.keep_rights();
    let in_any = namespaces.is_empty() || observer.subject.is_some() || args.pid.is_some();
    let numbers = || namespaces.iter().map(|one| one.identity().1 as u32).collect();
    let chosen = Chosen {
        namespaces: (!in_any).then(numbers),
        of_processes: observer.subject.is_some() || args.pid.is_some(),
        filter,
    };
    let file = file.as_mut().map(|file| &mut **file as &mut dyn Writer);
    let mut news = args.events.map(|period| News::new(2 * period));
    let mut screen = Screen::new(args.json);
    let has_audience = screen.is_live() || news.is_some();
    let mut show = |so_far: &SocketReport| match &mut news {
        Some(news) => show_new(news, so_far, args.json),
        None => {
            screen.show(&so_far.to_string());
            Ok(())
        }
    };
    let audience = has_audience.then_some(&mut show as Audience<'_>);
    let mut live = Live::begin(confined.attached(), chosen, file, audience, args.events)?;
    let (summary, ended) = confined.run(&mut live, &mut observer)?;
    let (report, culprits) = live.into_report(&summary.total)?;
    screen.clear();
    if let (Some(draft), Some(path)) = (draft, &args.record) {
        let packets = draft.finish(&culprits, json::show_notice)?;
        terminal::say(&format!("{packets} packets of connections with a verdict are in {}", path.display()));
    }
    let status = end_command(observer.subject);
    match &mut news {
        Some(news) => show_new(news, &report, args.json)?,
        None => json::print_as(args.json, &report, || report.to_string())?,
    }
    match ended {
        Ended::Signal | Ended::Duration | Ended::Count | Ended::Size | Ended::Command => Ok(ExitCode::from(status)),
        Ended::Output(error) => Err(error),
        other => Err(Error::failed("cannot continue to measure connections", other)),
    }
}

/// A cause that was not shown before.
#[derive(Serialize)]
struct New<'a> {
    time_ns: u64,
    #[serde(flatten)]
    finding: &'a SocketFinding,
}

fn show_new(news: &mut News, report: &SocketReport, as_json: bool) -> Result<()> {
    news.of(report, Instant::now()).into_iter().try_for_each(|finding| {
        json::print_as(as_json, &New { time_ns: clock::wall(), finding }, || finding.text() + "\n")
    })
}

/// Returns the plan of a capture at drops in all namespaces, whose packets explain losses; with a recording, of packets at
/// the interfaces too.
fn plan(args: &Args) -> CapturePlan {
    let drops = Drops { no_losses: true, stack: true, droppers: true, ..Drops::default() };
    let mut options = CaptureOptions {
        process: Some(ProcessPlan {
            process: args.pid,
            // The measures note who reads. A choice of processes needs to know about those that only send, too.
            without_uses: args.pid.is_none() && args.subject.words.is_empty(),
            ..ProcessPlan::default()
        }),
        ..watching_drops(drops, &[], args.duration)
    };
    let mut sources = Sources::default();
    if args.record.is_some() {
        options = CaptureOptions {
            tap: TapChoice::Tc,
            filter: Some(Filter::Expression(RECORDED.to_owned())),
            joins: true,
            across_namespaces: args.namespaces.are_all(),
            ..options
        };
        let any = |netns: &String| format!("{netns}:any");
        sources.names = match args.namespaces.given() {
            _ if args.namespaces.are_all() => vec!["any".to_owned(), "*:any".to_owned()],
            [] => vec!["any".to_owned()],
            names => names.iter().map(any).collect(),
        };
    }
    CapturePlan::new(sources, options)
}

/// The packets of which the ones with a verdict are kept.
const RECORDED: &str = "tcp or udp port 53";
