//! `trawl capture`: from the arguments to the final summary.

pub(crate) mod args;
mod display;
mod drops;
pub(crate) mod interfaces;
mod listening;
mod loans;
mod named_output;
pub(crate) mod outputs;
mod peers;
mod pod;
mod processes;
mod progress;
pub(crate) mod recording;
mod remote;
pub(crate) mod shown;
mod stored;
mod tcpdump;
mod trigger;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use trawl_bpf::layout::RECORD_MAX_CAPTURED;
use trawl_capture::assembly::HostFeatures;
use trawl_capture::capture_site::CaptureSite;
use trawl_capture::event::Event;
use trawl_capture::options::TimeSource;
use trawl_capture::plan::CapturePlan;
use trawl_capture::session::{self, Ended, Observer};
use trawl_capture::subject::Subject;
use trawl_capture::summary::Summary;
use trawl_io::libpcap::choose_for_filters;
use trawl_sink::{COMPRESSION_LIMIT, compression_threads};
use trawl_source::packets_of;
use trawl_sys::privilege::{Capabilities, User};
use trawl_sys::{Error, Result, errno};
use trawl_view::text;

pub use args::Args;
use args::Environment;
use display::{Display, Form};
use outputs::{First, Output, Outputs};
use pod::Pods;
use progress::Terminal;
use shown::Shown;

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
    let mut pods = pod::find(&mut plan)?;
    let of_pods = std::mem::take(&mut pods.interfaces);
    let mut sites = plan.sources.find(plan.options.tap, of_pods)?;
    if let Some(pod) = &pods.on_host {
        let all = sites.iter_mut();
        all.for_each(|site| site.pod = Some(Arc::clone(pod)));
    }
    outputs::check(&plan, &display, &sites)?;
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
    let mut options = plan.options.clone();
    let joins = options.across_namespaces;
    let user = plan.user.as_deref().map(User::find).transpose()?;
    let subject = Subject::prepare(&plan.command, &mut options, joins, user.as_ref())?;
    let mut observer = Terminal::new(plan, display, subject, pods);
    pods.events.iter().for_each(|event| observer.event(event));
    let account = plan.summary.as_deref();
    let account = account.map(|path| Output::open(path, plan.files.mode, user.as_ref()));
    let account = account.transpose()?;
    let shape = display.form.as_ref();
    let prints = !plan.outputs.is_empty() && shape.is_some();
    let mut outputs = Outputs::open(plan, prints, user, &mut observer)?;
    if outputs.addresses().next().is_some() {
        (options.memory, outputs.for_readers) = options.memory.with_readers()?;
    }
    for address in outputs.addresses() {
        if let Some(traffic) = listening::own_traffic(address, &sites) {
            let left_out = listening::leave_out(&mut options.filter, &traffic);
            observer.event(&Event::OwnTraffic { traffic, left_out });
        }
    }
    let options = &options;
    let loans = match &plan.tappable {
        Some(file) => loans::take(&plan.sources, file, &mut observer)?,
        None => Vec::new(),
    };
    let attached = session::attach(&sites, options, HostFeatures::this(), &mut observer)?;
    observer.watch_subject(&attached)?;
    // A deleted namespace ends once no process holds it: the session releases the namespaces of vanished interfaces.
    drop(sites);
    let geometry = attached.session().geometry();
    let snaplen = options.snaplen.min(geometry.max_captured());
    if snaplen < options.snaplen && options.snaplen < RECORD_MAX_CAPTURED as u32 {
        observer.event(&Event::SnaplenReduced { bytes: snaplen });
    }
    if options.headers && (!plan.outputs.is_empty() || plan.store.is_some()) {
        observer.event(&Event::ChecksumsCoverPayload);
    }
    if let Some(trigger) = &options.trigger {
        observer.event(&Event::armed(trigger, geometry.pool_size as u64));
    }
    let mut is_stored = true;
    let (mut summary, ended) = match (&outputs.first, &plan.store) {
        (First::None, Some(store)) => {
            let (summary, ended, outcome) = stored::record(attached, store, outputs.user, &mut observer)?;
            is_stored = stored::tell(&outcome, &store.url);
            (summary, ended)
        }
        (First::None, None) => {
            let confined = attached.confine(outputs.user, Capabilities::empty())?;
            let packets = packets_of(confined.session());
            let shape = shape.unwrap_or(&Form::Json(JsonForm::Lines));
            confined.run(&mut Shown::new(shape, packets)?, &mut observer)?
        }
        (First::One(..) | First::Series(..), _) => outputs.record(attached, shape, &mut observer)?,
    };
    published::stopping();
    loans::give_back(loans, &mut observer);
    summary.readers = observer.readers();
    observer.finish();
    summary.notices = observer.said();
    let status = observer.end_subject();
    let code = report(options.time, display, &summary, &ended, account)?;
    Ok(match is_stored {
        true if code == ExitCode::SUCCESS => ExitCode::from(status),
        true => code,
        false => ExitCode::FAILURE,
    })
}

fn report(
    time: TimeSource,
    display: &Display,
    summary: &Summary,
    ended: &Ended,
    account: Option<Output>,
) -> Result<ExitCode> {
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
    // The others left with a notice, and lost nothing.
    let readers = summary.readers.iter();
    let readers = readers.filter(|reader| reader.left.is_none() || reader.lost > 0);
    let readers = readers.cloned().map(Event::Reader);
    for event in gaps.chain(libraries).chain(triggers).chain(readers) {
        json::event(&event);
    }
    let packets = summary.total.lost.get(COMPRESSION_LIMIT).copied();
    if let Some(packets) = packets.filter(|packets| *packets > 0) {
        let threads = compression_threads();
        json::event(&Event::CompressionTooSlow { packets, threads });
    }
    json::event(&Event::Account(summary.total.clone()));
    written.map(|()| code)
}

fn write_summary(mut account: Output, summary: &Summary) -> Result<()> {
    let name = account.name.clone();
    let fail = |e| Error::os(format!("cannot write the summary to {name}"), e);
    let mut text = serde_json::to_string(summary).map_err(|e| Error::failed("cannot encode the summary as JSON", e))?;
    text.push('\n');
    account.empty()?;
    account.keep();
    account.file.write_all(text.as_bytes()).map_err(fail)
}
