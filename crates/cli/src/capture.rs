//! `trawl capture`: from the arguments to the final summary.

pub(crate) mod args;
mod display;
mod drops;
pub(crate) mod interfaces;
pub(crate) mod named_output;
mod peers;
mod pod;
mod processes;
pub(crate) mod progress;
pub(crate) mod recording;
mod remote;
mod stored;
mod tcpdump;
mod trigger;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;
use trawl_capture::capture_site::CaptureSite;
use trawl_capture::event::{Event, OutputSummary, ReaderSummary};
use trawl_capture::filter::choose_for_filters;
use trawl_capture::own_traffic::{leave_out, own_traffic};
use trawl_capture::pods::{self, Pods};
use trawl_capture::session::{Ended, Observer};
use trawl_capture::subject::Subject;
use trawl_capture::summary::Summary;
use trawl_plan::CapturePlan;
use trawl_plan::options::TimeSource;
use trawl_plan::outputs::OutputPlan;
use trawl_sink::{COMPRESSION_LIMIT, Output, Outputs, are_same, compression_threads, one_link_type};
use trawl_sys::rights::privilege::User;
use trawl_sys::{Error, Result, errno};
use trawl_view::{Show, text};

pub use args::Args;
use args::Environment;
use display::{Display, Form};
use progress::Terminal;

use crate::args::{JsonForm, begin_verifier_log};
use crate::helpers::FLEET;
use crate::{json, published, terminal};

pub fn run(args: Args) -> Result<ExitCode> {
    if args.drops.asks_for_help() {
        return drops::list_reasons();
    }
    let mut plan = match &args.plan {
        Some(file) => args.only_plan(file)?,
        None => args.resolve(&Environment::here())?,
    };
    let display = args.display(&plan);
    if args.lists_interfaces() {
        return interfaces::list(&plan, display.json);
    }
    if args.dry_run {
        return show_plan(&plan, display.json);
    }
    if let Some(path) = &plan.verifier_log {
        begin_verifier_log(path)?;
    }
    if let Some(path) = &plan.options.peers.library {
        choose_for_filters(path);
    }
    if args.remote.are_named() {
        return remote::capture(&args.remote, &plan, &display);
    }
    if plan.store.is_some() {
        // Refused before anything is attached.
        FLEET.command()?;
    }
    let mut pods = pods::find(&mut plan)?;
    let of_pods = std::mem::take(&mut pods.interfaces);
    let mut sites = trawl_capture::sources::find(&plan.sources, plan.options.tap, of_pods)?;
    if let Some(pod) = &pods.on_host {
        let all = sites.iter_mut();
        all.for_each(|site| site.pod = Some(Arc::clone(pod)));
    }
    check_outputs(&plan, &display, &sites)?;
    if let Some(wanted) = &plan.link_type {
        tcpdump::check_link_type(wanted, &sites)?;
    }
    if args.tcpdump.only_shows() {
        return args.tcpdump.show(&sites, plan.options.filter.as_ref());
    }
    carry_out(&plan, &display, sites, &pods)
}

/// Prints a plan without the options that were not given: on several lines for people, on one for machines.
fn show_plan(plan: &CapturePlan, on_one_line: bool) -> Result<ExitCode> {
    let fail = |e| Error::failed("cannot print the plan", e);
    let mut plan = plan.to_json();
    json::remove_nulls(&mut plan);
    match on_one_line {
        true => json::print(&plan)?,
        false => {
            let text = serde_json::to_string_pretty(&plan).map_err(fail)?;
            terminal::write_out(&format!("{}\n", text::in_json(&text)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Captures as planned, and compiles the summary.
fn carry_out(plan: &CapturePlan, display: &Display, sites: Vec<CaptureSite>, pods: &Pods) -> Result<ExitCode> {
    let mut plan = plan.clone();
    let joins = plan.options.across_namespaces;
    let user = plan.user.as_deref().map(User::find).transpose()?;
    let subject = Subject::prepare(&plan.command, &mut plan.options, joins, user.as_ref())?;
    let mut observer = Terminal::new(&plan, display, subject, pods);
    pods.events.iter().for_each(|event| observer.event(event));
    let account = plan.summary.as_deref();
    let account = account.map(|path| Output::open(path, plan.files.mode, user.as_ref())).transpose()?;
    let mut outputs =
        Outputs::open(&plan, shown(&plan, display), user.clone(), &mut observer, |event| json::event(event))?;
    observer.watch_readers(outputs.readers());
    if outputs.addresses().next().is_some() {
        (plan.options.memory, outputs.for_readers) = trawl_capture::memory::with_readers(plan.options.memory)?;
    }
    for address in outputs.addresses() {
        if let Some(traffic) = own_traffic(address, &sites) {
            let left_out = leave_out(&mut plan.options.filter, &traffic);
            observer.event(&Event::OwnTraffic { traffic, left_out });
        }
    }
    let (mut summary, ended, is_stored) =
        trawl_capture::run(&plan, sites, &mut observer, |attached, observer| match &plan.store {
            Some(store) => {
                let (summary, ended, outcome) = stored::record(attached, store, user, observer)?;
                Ok((summary, ended, stored::tell(&outcome, &store.url)))
            }
            None => outputs.record(attached, observer).map(|(summary, ended)| (summary, ended, true)),
        })?;
    published::stopping();
    summary.readers = observer.readers();
    observer.finish();
    summary.notices = observer.said();
    let status = observer.end_subject();
    let code = report(plan.options.time, display, &summary, &ended, account)?;
    Ok(match is_stored {
        true if code == ExitCode::SUCCESS => ExitCode::from(status),
        true => code,
        false => ExitCode::FAILURE,
    })
}

/// Returns the form in which packets are shown on standard output: JSON if they go nowhere else.
fn shown(plan: &CapturePlan, display: &Display) -> Option<Box<dyn Show + Send>> {
    let form = display.form.as_ref().or(plan.outputs.is_empty().then_some(&Form::Json(JsonForm::Lines)));
    form.filter(|_| plan.store.is_none()).map(Form::writer)
}

/// Refuses a summary in the same file as packets.
fn check_account(plan: &CapturePlan, display: &Display, account: &Path) -> Result<()> {
    let mut others: Vec<PathBuf> = plan.outputs.iter().map(|one| one.path.clone()).collect();
    let shows_json = matches!(display.form, Some(Form::Json(_))) && plan.outputs.is_empty();
    others.extend(shows_json.then(|| Path::new("-").to_owned()));
    match others.iter().find(|other| are_same(other, account)) {
        Some(other) => {
            let what = format!("cannot write packets and the summary to {}", other.display());
            Err(Error::usage(what, "each would overwrite the other").fix("name another file for --summary"))
        }
        None => Ok(()),
    }
}

/// Checks the outputs of a plan: their link types, the summary's file, a terminal.
fn check_outputs(plan: &CapturePlan, display: &Display, sites: &[CaptureSite]) -> Result<()> {
    one_link_type(plan.format(), sites.iter().map(|site| site.interface.link_type))?;
    if plan.anonymize.is_some() && plan.store.is_some() {
        let why = "a store keeps packets as they were";
        return Err(Error::usage("cannot anonymize", why).fix("anonymize what is read from the store: --packets FILE"));
    }
    if let Some(account) = &plan.summary {
        check_account(plan, display, account)?;
    }
    check_terminal(plan)
}

/// Refuses to write packets to a terminal.
pub(crate) fn check_terminal(plan: &CapturePlan) -> Result<()> {
    let to_terminal = plan.outputs.iter().any(OutputPlan::is_stdout) && terminal::stdout_is_terminal();
    if to_terminal {
        return Err(Error::usage("cannot write packets to standard output", "it is a terminal")
            .fix("name a file, pipe it on, or leave out -w to see lines"));
    }
    Ok(())
}

fn report(
    time: TimeSource,
    display: &Display,
    summary: &Summary,
    ended: &Ended,
    account: Option<Output>,
) -> Result<ExitCode> {
    report_outputs(&summary.outputs);
    let blind = summary.unseen.iter().any(|gap| gap.to_ns.is_none());
    let code = match ended {
        Ended::Blind => ExitCode::FAILURE,
        Ended::Signal | Ended::Duration | Ended::Count | Ended::Size | Ended::Triggers | Ended::Command => {
            ExitCode::SUCCESS
        }
        // The reader closed the pipe, which is not a failure.
        Ended::Output(error) if error.errno() == Some(errno::EPIPE) => ExitCode::SUCCESS,
        Ended::Output(error) => {
            let error = error.to_string();
            json::event(&Event::OutputFailed { error });
            ExitCode::FAILURE
        }
        // The observer has reported it already, unless it is quiet.
        Ended::NoInterface(gone) => {
            if display.quiet {
                json::event(&Event::Gone(gone.clone()));
            }
            ExitCode::FAILURE
        }
    };
    let failed = summary.outputs.iter().any(|output| output.failed);
    let code = if blind || failed { ExitCode::FAILURE } else { code };
    let written = account.map_or(Ok(()), |account| write_summary(account, summary));
    if time == TimeSource::Hardware {
        let stamped: u64 = summary.interfaces.iter().map(|point| point.hardware_stamped).sum();
        json::event(&Event::HardwareTime { stamped, recorded: summary.total.recorded });
    }
    let errors = summary.interfaces.iter();
    let largest = errors.filter_map(|point| point.time_error_max_ns).max();
    if let Some(at_most_ns) = largest.filter(|_| display.verbose) {
        json::event(&Event::TimeError { at_most_ns });
    }
    let gaps = summary.unseen.iter().cloned().map(Event::Unseen);
    let points = summary.interfaces.iter();
    let libraries = points.filter_map(|point| point.library.clone().map(Event::Library));
    let triggers = summary.triggers.clone().map(Event::Triggers);
    for event in gaps.chain(libraries).chain(triggers) {
        json::event(&event);
    }
    report_readers(&summary.readers);
    let packets = summary.total.lost.get(COMPRESSION_LIMIT).copied();
    if let Some(packets) = packets.filter(|packets| *packets > 0) {
        let threads = compression_threads();
        json::event(&Event::CompressionTooSlow { packets, threads });
    }
    json::event(&Event::Account(summary.total.clone()));
    written.map(|()| code)
}

/// Reports the outputs that lack packets.
pub(crate) fn report_outputs(outputs: &[OutputSummary]) {
    for output in outputs {
        if let Some(error) = output.error.clone() {
            json::event(&Event::OutputFailed { error });
        }
        if output.lost + output.not_kept > 0 {
            json::event(&Event::Output(output.clone()));
        }
    }
}

/// Reports the readers that stayed until the end, or lack packets.
pub(crate) fn report_readers(readers: &[ReaderSummary]) {
    // The others left with a notice, and lost nothing.
    let readers = readers.iter().filter(|reader| reader.left.is_none() || reader.lost > 0);
    readers.for_each(|reader| json::event(&Event::Reader(reader.clone())));
}

fn write_summary(mut account: Output, summary: &impl Serialize) -> Result<()> {
    let name = account.name.clone();
    let fail = |e| Error::os(format!("cannot write the summary to {name}"), e);
    let mut text = serde_json::to_string(summary).map_err(|e| Error::failed("cannot encode the summary as JSON", e))?;
    text.push('\n');
    account.empty()?;
    account.keep();
    account.file.write_all(text.as_bytes()).map_err(fail)
}
