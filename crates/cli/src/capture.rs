//! `trawl capture`: from the arguments to the final summary.

pub(crate) mod args;
mod beside;
mod checks;
mod display;
mod drops;
mod how;
pub(crate) mod interfaces;
mod loans;
mod named_output;
mod output;
mod peers;
mod pod;
mod progress;
pub(crate) mod recording;
mod remote;
pub(crate) mod shown;
mod stored;
mod tcpdump;
mod trigger;

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use trawl_bpf::layout::RECORD_MAX_CAPTURED;
use trawl_capture::assembly::Host;
use trawl_capture::capture_site::CaptureSite;
use trawl_capture::event::Event;
use trawl_capture::options::TimeSource;
use trawl_capture::plan::CapturePlan;
use trawl_capture::session::{self, Attached, Confined, Ended, Observer};
use trawl_capture::summary::{OutputSummary, Summary};
use trawl_io::libpcap::choose_for_filters;
use trawl_pipeline::plan::{Io, OutputPlan};
use trawl_pipeline::{Counts, Writer};
use trawl_sink::{
    COMPRESSION_LIMIT, Fate, NextFiles, Series, SeriesPlan, Several, compression_threads,
};
use trawl_sys::privilege::{Capabilities, Kept};
use trawl_sys::warden::{self, CutFile, Undo, WholeBytes};
use trawl_sys::{Error, Result, errno};

pub use args::Args;
use args::Environment;
use beside::Outputs;
use checks::{check_format, check_link_types};
use display::{Display, Form};
use how::How;
use output::Output;
use progress::Terminal;
use shown::{Shown, packets};
use trawl_view::json::JsonLines;
use trawl_view::print::Printer;
use trawl_view::text;

use crate::args::begin_verifier_log;
use crate::{json, outfile, published, terminal};

pub fn run(args: Args) -> Result<ExitCode> {
    if args.drops.asks_for_help() {
        return drops::list_reasons();
    }
    let plan = match &args.plan {
        Some(file) => args.only_plan(file)?,
        None => args.resolve(&Environment::here())?,
    };
    let display = args.display(&plan);
    if args.list_interfaces {
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
        return remote::run(&args.remote, &plan, &display);
    }
    let sites = interfaces::find(&plan)?;
    check_format(&plan, &display, &sites)?;
    if let Some(wanted) = &plan.link_type {
        tcpdump::check_link_type(wanted, &sites)?;
    }
    if args.tcpdump.only_shows() {
        return args.tcpdump.show(&sites, plan.options.filter.as_ref());
    }
    carry_out(&plan, &display, sites)
}

/// Prints a plan without the options that were not given: on several lines for people, on one for machines.
fn show_plan(plan: &CapturePlan, on_one_line: bool) -> Result<ExitCode> {
    let fail = |e| Error::failed("cannot print the plan", e);
    let mut plan = serde_json::to_value(plan).map_err(fail)?;
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
fn carry_out(plan: &CapturePlan, display: &Display, sites: Vec<CaptureSite>) -> Result<ExitCode> {
    let options = &plan.options;
    let series = series_of(plan)?;
    let mut observer = Terminal::new(plan, display);
    let prints = !plan.outputs.is_empty() && display.form.is_some();
    let outputs = Outputs::open(plan, series.is_some(), prints, &mut observer)?;
    if let Err(error) = outputs.check_io(plan, series.is_some(), &mut observer) {
        outputs.discard();
        return Err(error);
    }
    let loans = match &plan.tappable {
        Some(file) => loans::take(&plan.sources, file, &mut observer)?,
        None => Vec::new(),
    };
    let attached = session::attach(&sites, options, Host::this(), &mut observer);
    // A deleted namespace ends once no process holds it: the session releases the namespaces of vanished interfaces.
    drop(sites);
    let checked = attached.and_then(|attached| {
        check_link_types(plan, attached.session())?;
        Ok(attached)
    });
    let attached = match checked {
        Ok(attached) => attached,
        Err(error) => {
            outputs.discard();
            return Err(error);
        }
    };
    let geometry = attached.session().geometry();
    let snaplen = options.snaplen.min(geometry.max_captured());
    if snaplen < options.snaplen && options.snaplen < RECORD_MAX_CAPTURED as u32 {
        observer.event(&Event::SnaplenReduced { bytes: snaplen });
    }
    if let Some(trigger) = &options.trigger {
        observer.event(&Event::armed(trigger, geometry.pool_size as u64));
    }
    let mut is_stored = true;
    let Outputs {
        account,
        first,
        others,
    } = outputs;
    let run = Run { plan, display };
    let (mut summary, ended) = match (first, series, &plan.store) {
        (Some(output), _, _) => run.record(attached, output, others, &mut observer)?,
        (None, Some(series), _) => run.record_series(attached, series, others, &mut observer)?,
        (None, None, Some(store)) => {
            let user = output::user_of(plan)?;
            let confine = |attached| run.confine(attached);
            let (summary, ended, outcome) =
                stored::record(attached, store, user, confine, &mut observer)?;
            is_stored = stored::tell(&outcome, &store.url);
            (summary, ended)
        }
        (None, None, None) => run.show(attached, &mut observer)?,
    };
    published::stopping();
    loans::give_back(loans, &mut observer);
    observer.finish();
    summary.notices = observer.said();
    let code = report(plan, display, &summary, &ended, account)?;
    Ok(if is_stored { code } else { ExitCode::FAILURE })
}

/// Returns the series of files that packets are written to, if one is planned. A file with the name as given is left
/// alone.
fn series_of(plan: &CapturePlan) -> Result<Option<SeriesPlan>> {
    let is_file = |output: &&OutputPlan| {
        !output::is_open_already(&output.path)
            && std::fs::metadata(&output.path).map_or(true, |about| about.is_file())
    };
    let first = plan.outputs.first().filter(is_file);
    if plan.files.io == Io::Direct && !first.is_some_and(OutputPlan::can_be_direct) {
        let why = "only pcapng files are, if they are not compressed";
        return Err(Error::usage("cannot write directly", why).fix("use --io auto"));
    }
    let Some(output) = first else {
        recording::refuse_rotation(&plan.rotation)?;
        return Ok(None);
    };
    let series = SeriesPlan {
        path: output.path.to_string_lossy().into_owned(),
        rotation: plan.rotation.clone(),
        by_event: plan.options.trigger.is_some(),
    };
    if series.is_asked_for() && output.path.to_str().is_none() {
        let what = format!(
            "cannot write a series of files to {}",
            output.path.display()
        );
        return Err(Error::usage(what, "the name is not UTF-8").fix("choose a name in UTF-8"));
    }
    Ok(Some(series).filter(SeriesPlan::is_asked_for))
}

/// A capture whose taps are attached, and that still has to open its outputs.
struct Run<'a> {
    plan: &'a CapturePlan,
    display: &'a Display,
}

impl Run<'_> {
    fn record(
        &self,
        mut attached: Attached,
        output: Output,
        mut others: Others,
        observer: &mut Terminal,
    ) -> Result<(Summary, Ended)> {
        let first = &self.plan.outputs[0];
        let whole = output.start()?;
        if whole.is_none() && (!others.is_empty() || self.display.form.is_some()) {
            // A slow pipe must not stall the other outputs, so it gets its own queue.
            others.insert(0, (first.clone(), output));
            let first = || Ok(Box::new(Counts::default()) as Box<dyn Writer>);
            return self.run_several(attached, "", first, others, observer);
        }
        let how = How::of(first, self.plan.files.io, attached.session());
        if let Some(whole) = &whole {
            let file = warden::hold(output.file.as_fd())?;
            attached.files_warden().watch([Box::new(CutFile {
                file,
                whole: whole.clone(),
            }) as Box<dyn Undo>])?;
        }
        let Output { file, name, .. } = output;
        let said = name.clone();
        let first = move || Ok(how.open_any(file, name, whole)? as Box<dyn Writer>);
        self.run_several(attached, &said, first, others, observer)
    }

    /// Drops all rights that the capture does not need.
    fn confine(&self, attached: Attached) -> Result<Confined> {
        attached.confine(output::user_of(self.plan)?, Capabilities::empty())
    }

    /// Records to the first output and to the ones after it.
    fn run_several(
        &self,
        attached: Attached,
        name: &str,
        first: impl FnOnce() -> Result<Box<dyn Writer>>,
        others: Others,
        observer: &mut Terminal,
    ) -> Result<(Summary, Ended)> {
        let confined = self.confine(attached)?;
        let mut first = first()?;
        let snaplen = self.plan.outputs.first().and_then(|output| output.snaplen);
        let beside = beside::start(others, confined.session(), self.plan, self.display)?;
        if beside.is_empty() && snaplen.is_none() {
            return confined.run(first.as_mut(), observer);
        }
        let mut sink = Several::new(name.to_owned(), first, snaplen, beside);
        let mut ran = confined.run(&mut sink, observer);
        for fate in sink.end() {
            let output = account_of(fate);
            if let Ok((summary, _)) = &mut ran {
                summary.outputs.push(output);
            }
        }
        ran
    }

    fn record_series(
        &self,
        attached: Attached,
        series: SeriesPlan,
        others: Others,
        observer: &mut Terminal,
    ) -> Result<(Summary, Ended)> {
        let mut how = How::of(
            &self.plan.outputs[0],
            self.plan.files.io,
            attached.session(),
        );
        how.largest = series.largest();
        let whole = WholeBytes::new()?;
        let mode = self.plan.files.mode;
        let make = move |path: &Path| {
            outfile::check_regular(path)?;
            let (file, _) = outfile::open(path, mode)?;
            let fail = |e| Error::os(format!("cannot write to {}", path.display()), e);
            file.set_len(0).map_err(fail)?;
            Ok(file)
        };
        let user = output::user_of(self.plan)?;
        // A command is the user's own, and may need more rights than trawl; run as another user, it has that user's
        // rights.
        let kept = (user.is_some() || series.rotation.command.is_none()).then(|| Kept {
            capabilities: match user {
                Some(_) => Capabilities::empty(),
                None => Capabilities::DAC_OVERRIDE | Capabilities::FOWNER,
            },
            user,
        });
        let make = Box::new(make);
        let files = NextFiles::start(series.clone(), make, whole.clone(), kept.as_ref())?;
        let open = move |file: File, name: String| how.open(file, name, Some(whole.clone()));
        let accounts = attached.session().accounts();
        let name = series.path.clone();
        let first = move || {
            let tell = Box::new(|count| json::event(&Event::WaitsForCommands { count }));
            let series = Series::new(series, files, Box::new(open), accounts, tell);
            Ok(Box::new(series) as Box<dyn Writer>)
        };
        self.run_several(attached, &name, first, others, observer)
    }

    fn show(&self, attached: Attached, observer: &mut Terminal) -> Result<(Summary, Ended)> {
        let confined = self.confine(attached)?;
        let packets = packets(confined.session());
        match &self.display.form {
            Some(Form::Lines(options)) => {
                let printer = Printer::new(*options);
                confined.run(&mut Shown::new(printer, packets)?, observer)
            }
            Some(Form::Json) | None => confined.run(&mut Shown::new(JsonLines, packets)?, observer),
        }
    }
}

/// The outputs after the first.
type Others = Vec<(OutputPlan, Output)>;

/// Reports the losses of an output, and returns its summary.
fn account_of(fate: Fate) -> OutputSummary {
    let output = OutputSummary {
        name: fate.name,
        recorded: fate.recorded,
        lost: fate.lost,
        failed: fate.failed,
        error: fate.error.map(|error| error.to_string()),
        too_few_cpus: fate.compresses_too_slowly.then(compression_threads),
    };
    if let Some(error) = output.error.clone() {
        json::event(&Event::OutputFailed { error });
    }
    if output.lost > 0 {
        json::event(&Event::Output(output.clone()));
    }
    output
}

fn report(
    plan: &CapturePlan,
    display: &Display,
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
    let code = if blind || failed {
        ExitCode::FAILURE
    } else {
        code
    };
    let written = account.map_or(Ok(()), |account| write_summary(account, summary));
    if plan.options.time == TimeSource::Hardware {
        let stamped: u64 = summary
            .interfaces
            .iter()
            .map(|point| point.hardware_stamped)
            .sum();
        json::event(&Event::HardwareTime {
            stamped,
            recorded: summary.total.recorded,
        });
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
    let mut text = serde_json::to_string(summary)
        .map_err(|e| Error::failed("cannot encode the summary as JSON", e))?;
    text.push('\n');
    account.start()?;
    account.file.write_all(text.as_bytes()).map_err(fail)
}
