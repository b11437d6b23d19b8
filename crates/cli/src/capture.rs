//! `trawl capture`: from the arguments to the account at the end.

mod args;
mod beside;
mod checks;
mod drops;
mod how;
pub(crate) mod interfaces;
mod loans;
mod output;
mod peers;
mod pod;
mod progress;
mod recording;
mod remote;
mod shown;
mod stored;
mod tcpdump;
mod trigger;
pub(crate) mod words;

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use trawl_kernel::privilege::{Capabilities, Kept};
use trawl_kernel::warden::{self, Task, WholeBytes};
use trawl_kernel::{Error, Result, errno, host};
use trawl_sink::{Compression, Fate, NextFiles, Series, SeriesPlan, Several};
use trawl_tap::account::{OutputSummary, Summary};
use trawl_tap::assembly::Host;
use trawl_tap::notice::Notice;
use trawl_tap::session::{Ended, Observer, Session};
use trawl_tap::sink::{Counting, Sink};

pub use args::{Args, AtName, DirectionName};
use beside::{Outputs, Wanted};
use checks::{check_format, check_link_types};
use how::How;
use output::Output;
use progress::Terminal;
use recording::Io;
use shown::Shown;
use trawl_view::json::JsonLines;
use trawl_view::print::{PrintOptions, Printer};
use trawl_view::record::BlockOrigin;

use crate::json::{self, Remark};
use crate::{outfile, service, terminal};

pub fn run(mut args: Args) -> Result<ExitCode> {
    if args.drops.asks_for_help() {
        return drops::list_reasons();
    }
    args.read_outputs()?;
    let options = args.options()?;
    args.verifier_log.begin()?;
    if args.list_interfaces {
        return interfaces::list(args.netns.as_deref(), args.json, &options);
    }
    if args.remote.are_named() {
        return remote::run(&args);
    }
    let sites = interfaces::find(&args)?;
    check_format(&args, &sites)?;
    args.tcpdump.check_link_types(&sites)?;
    if args.tcpdump.only_shows() {
        return args.tcpdump.show(&sites, options.filter.as_ref());
    }
    let series = series_of(&args)?;
    let mut observer = Terminal::new(&args);
    let outputs = Outputs::open(&args, series.is_some(), &mut observer)?;
    if let Err(error) = outputs.check_io(&args, series.is_some(), &mut observer) {
        outputs.discard();
        return Err(error);
    }
    let loans = match &args.tappable {
        Some(file) => loans::take(&args, file, &mut observer)?,
        None => Vec::new(),
    };
    let session = Session::attach(&sites, &options, this_host(), &mut observer);
    // A namespace that is deleted ends when nobody holds it: the session lets go of those that left.
    drop(sites);
    let checked = session.and_then(|session| {
        check_link_types(&args, &session)?;
        Ok(session)
    });
    let mut session = match checked {
        Ok(session) => session,
        Err(error) => {
            outputs.discard();
            return Err(error);
        }
    };
    let snaplen = options.snaplen.min(options.geometry.max_captured());
    if snaplen < options.snaplen && args.snaplen != 0 {
        observer.notice(&Notice::SnaplenReduced { bytes: snaplen });
    }
    if let Some(plan) = &options.trigger {
        let ring_bytes = options.geometry.pool_size as u64;
        observer.notice(&words::waiting_for(plan, ring_bytes));
    }
    let mut is_stored = true;
    let Outputs {
        account,
        first,
        others,
    } = outputs;
    let (mut summary, ended) = match (first, series, &args.store.store) {
        (Some(output), _, _) => record(session, (output, others), &args, &mut observer)?,
        (None, Some(plan), _) => record_series(session, (plan, others), &args, &mut observer)?,
        (None, None, Some(url)) => {
            confine(&mut session, &args)?;
            let (summary, ended, outcome) =
                stored::record(session, url, &args.store, &mut observer)?;
            is_stored = stored::tell(&outcome, url);
            (summary, ended)
        }
        (None, None, None) => show(session, &args, &mut observer)?,
    };
    service::stopping();
    loans::give_back(loans, &mut observer);
    observer.finish();
    summary.notices = observer.said();
    let code = report(&args, &summary, &ended, account)?;
    Ok(if is_stored { code } else { ExitCode::FAILURE })
}

/// The files that packets go to, if those have names of their own: what is there by the name that was given stays.
fn series_of(args: &Args) -> Result<Option<SeriesPlan>> {
    let is_file = |path: &&PathBuf| {
        !output::is_open_already(path)
            && std::fs::metadata(path).map_or(true, |about| about.is_file())
    };
    let path = args.write.first().filter(is_file);
    args.recording.check(path.is_some())?;
    let is_direct = path.is_some() && how::can_be_direct(&args.first, args);
    if args.recording.io == Io::Direct && !is_direct {
        let why = "only pcapng files are, if they are not compressed";
        return Err(Error::usage("cannot write directly", why).fix("use --io auto"));
    }
    let Some(path) = path else {
        return Ok(None);
    };
    let plan = args.recording.series(path, args.trigger.is_asked_for());
    if plan.is_asked_for() && path.to_str().is_none() {
        let what = format!("cannot write a series of files to {}", path.display());
        return Err(Error::usage(what, "the name is not UTF-8").fix("name it otherwise"));
    }
    Ok(Some(plan).filter(SeriesPlan::is_asked_for))
}

fn record(
    mut session: Session,
    (output, mut others): (Output, Others),
    args: &Args,
    observer: &mut Terminal,
) -> Result<(Summary, Ended)> {
    let whole = output.start()?;
    if whole.is_none() && (!others.is_empty() || args.recording.print) {
        // A pipe takes what it takes: nothing waits for it that others want.
        others.insert(0, (args.first.clone(), output));
        let first = || Ok(Box::new(Counting::default()) as Box<dyn Sink>);
        return run_beside(session, ("", first, others), args, observer);
    }
    let how = How::of(&args.first, args, &session);
    if let Some(whole) = &whole {
        let file = warden::hold(output.file.as_fd())?;
        session.files_warden().watch([Task::CutFile {
            file,
            whole: whole.clone(),
        }])?;
    }
    let Output { file, name, .. } = output;
    let said = name.clone();
    let first = move || Ok(how.open_any(file, name, whole)? as Box<dyn Sink>);
    run_beside(session, (&said, first, others), args, observer)
}

/// The outputs beside the first.
type Others = Vec<(Wanted, Output)>;

/// From here on the capture has only the rights that it needs.
fn confine(session: &mut Session, args: &Args) -> Result<()> {
    session.confine(args.user.clone(), Capabilities::empty())
}

/// Runs with the outputs that are named beside the first.
fn run_beside(
    mut session: Session,
    (name, first, others): (&str, impl FnOnce() -> Result<Box<dyn Sink>>, Others),
    args: &Args,
    observer: &mut Terminal,
) -> Result<(Summary, Ended)> {
    confine(&mut session, args)?;
    let mut first = first()?;
    let beside = beside::start(others, &session, args)?;
    if beside.is_empty() && args.first.snaplen.is_none() {
        return session.run(first.as_mut(), observer);
    }
    let mut sink = Several::new(name.to_owned(), first, args.first.snaplen, beside);
    let mut ran = session.run(&mut sink, observer);
    for fate in sink.end() {
        let Fate {
            name,
            recorded,
            lost,
            error,
            failed,
            compresses_too_slowly,
        } = fate;
        let why = match &error {
            Some(error) => {
                let text = error.to_string();
                json::say(
                    &Remark::OutputFailed {
                        error: text.clone(),
                    },
                    &text,
                );
                String::new()
            }
            None if compresses_too_slowly => format!(": {}", words::compression_limits()),
            None => ": it could not keep up".to_owned(),
        };
        let output = OutputSummary {
            name,
            recorded,
            lost,
            failed,
            error: error.map(|error| error.to_string()),
        };
        if lost > 0 {
            let text = format!("{}: {lost} recorded packets lost{why}", output.name);
            json::say(&Remark::Output(&output), &text);
        }
        if let Ok((summary, _)) = &mut ran {
            summary.outputs.push(output);
        }
    }
    ran
}

fn record_series(
    session: Session,
    (plan, others): (SeriesPlan, Others),
    args: &Args,
    observer: &mut Terminal,
) -> Result<(Summary, Ended)> {
    let mut how = How::of(&args.first, args, &session);
    how.largest = plan.largest();
    let whole = WholeBytes::new()?;
    let mode = args.file_mode;
    let make = move |path: &Path| {
        outfile::check_regular(path)?;
        let (file, _) = outfile::open(path, mode)?;
        let fail = |e| Error::os(format!("cannot write to {}", path.display()), e);
        file.set_len(0).map_err(fail)?;
        Ok(file)
    };
    // A command is the user's own, and may need what trawl does not; as somebody else it has what that one has.
    let kept = (args.user.is_some() || plan.command.is_none()).then(|| Kept {
        user: args.user.clone(),
        capabilities: match args.user {
            Some(_) => Capabilities::empty(),
            None => Capabilities::DAC_OVERRIDE | Capabilities::FOWNER,
        },
    });
    let make = Box::new(make);
    let files = NextFiles::start(plan.clone(), make, whole.clone(), kept.as_ref())?;
    let open = move |file: File, name: String| {
        Ok(how.open(file, name, Some(whole.clone()))? as Box<dyn Sink>)
    };
    let accounts = session.accounts();
    let name = plan.path.clone();
    let first = move || {
        let tell = Box::new(json::waits_for_commands);
        let series = Series::new(plan, files, Box::new(open), accounts, tell);
        Ok(Box::new(series) as Box<dyn Sink>)
    };
    run_beside(session, (&name, first, others), args, observer)
}

fn places(session: &Session) -> Vec<BlockOrigin> {
    session
        .interfaces()
        .iter()
        .zip(session.hook_names())
        .map(|(interface, hook)| BlockOrigin::new(interface, hook))
        .collect()
}

fn show(mut session: Session, args: &Args, observer: &mut Terminal) -> Result<(Summary, Ended)> {
    confine(&mut session, args)?;
    let places = places(&session);
    if args.json {
        return session.run(&mut Shown::new(JsonLines, places)?, observer);
    }
    let options = PrintOptions {
        id: args.id,
        colour: terminal::colours_wanted(),
        ..args.lines.options(false)
    };
    let printer = Printer::new(options);
    session.run(&mut Shown::new(printer, places)?, observer)
}

fn this_host() -> Host {
    let host = host::describe();
    Host {
        os: host.os,
        hardware: host.hardware,
        application: format!("trawl {}", env!("CARGO_PKG_VERSION")),
    }
}

fn report(
    args: &Args,
    summary: &Summary,
    ended: &Ended,
    account: Option<Output>,
) -> Result<ExitCode> {
    let blind = summary.unseen.iter().any(|gap| gap.to_ns.is_none());
    let code = match ended {
        Ended::Blind => ExitCode::FAILURE,
        Ended::Signal | Ended::Duration | Ended::Count | Ended::Size | Ended::Triggers => {
            ExitCode::SUCCESS
        }
        // The reader has seen enough: no failure of ours.
        Ended::Output(error) if error.errno() == Some(errno::EPIPE) => ExitCode::SUCCESS,
        Ended::Output(error) => {
            let text = error.to_string();
            json::say(
                &Remark::OutputFailed {
                    error: text.clone(),
                },
                &text,
            );
            ExitCode::FAILURE
        }
        // The observer has said so already, unless it was to be quiet.
        Ended::NoInterface(gone) => {
            if args.quiet {
                json::say(&Remark::Gone(gone), &words::gone(gone));
            }
            ExitCode::FAILURE
        }
    };
    let failed = summary.outputs.iter().any(|output| output.failed);
    let code = if blind || failed {
        ExitCode::FAILURE
    } else {
        code
    };
    let written = account.map_or(Ok(()), |account| write_summary(account, summary));
    if args.wants_hardware_time() {
        let stamped: u64 = summary
            .interfaces
            .iter()
            .map(|point| point.hardware_stamped)
            .sum();
        let all = summary.total.recorded;
        let text = format!("{stamped} of {all} recorded packets carry the hardware's time");
        let recorded = all;
        json::say(&Remark::HardwareTime { stamped, recorded }, &text);
    }
    let errors = summary.interfaces.iter();
    let largest = errors.filter_map(|point| point.time_error_max_ns).max();
    if let Some(error) = largest.filter(|_| args.lines.is_verbose()) {
        let text = format!("time stamps are wrong by at most {error} ns");
        json::say(&Remark::TimeError { at_most_ns: error }, &text);
    }
    for gap in &summary.unseen {
        json::say(&Remark::Unseen(gap), &words::unseen(gap));
    }
    for library in summary
        .interfaces
        .iter()
        .filter_map(|point| point.library.as_ref())
    {
        json::say(&Remark::Library(library), &words::library(library));
    }
    if let Some(triggers) = &summary.triggers {
        json::say(&Remark::Triggers(triggers), &words::triggers(triggers));
    }
    let packets = summary.total.lost.get(Compression::LIMIT).copied();
    if let Some(packets) = packets.filter(|packets| *packets > 0) {
        let threads = Compression::threads();
        let remark = Remark::CompressionTooSlow { packets, threads };
        json::say(&remark, &words::compression_limits());
    }
    json::say(&Remark::Account(&summary.total), &summary.total.to_string());
    written.map(|()| code)
}

fn write_summary(mut account: Output, summary: &Summary) -> Result<()> {
    let name = account.name.clone();
    let fail = |e| Error::os(format!("cannot write the summary to {name}"), e);
    let mut text = serde_json::to_string(summary)
        .map_err(|e| Error::failed("cannot put the summary into JSON", e))?;
    text.push('\n');
    account.start()?;
    account.file.write_all(text.as_bytes()).map_err(fail)
}
