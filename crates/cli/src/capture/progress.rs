//! Messages on standard error while a capture runs, and the report when it ends.

use std::io::Write as _;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use trawl_capture::capture_site::CaptureSite;
use trawl_capture::event::{Event, OutputSummary, ReaderSummary};
use trawl_capture::pods::Pods;
use trawl_capture::point::Point;
use trawl_capture::session::{Attached, Ended, Observer};
use trawl_capture::subject::Subject;
use trawl_capture::summary::Summary;
use trawl_plan::CapturePlan;
use trawl_plan::options::TimeSource;
use trawl_sink::{COMPRESSION_LIMIT, Output, ReaderFate, ReaderLog, ReaderNews, compression_threads};
use trawl_spool::Control;
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result, errno};

use super::display::Display;
use super::interfaces::Joining;
use crate::published::{Published, Publisher, RunningCapture};
use crate::{json, published, terminal};

/// Interval between updates of the live line.
const LIVE: Duration = Duration::from_secs(1);

/// Writer of messages on standard error while the capture runs.
pub(super) struct Terminal {
    quiet: bool,
    /// Notices are written as JSON.
    json: bool,
    verbose: bool,
    stats: Option<Duration>,
    /// The output file.
    file: Option<PathBuf>,
    live_line: bool,
    /// All events, for the summary.
    events: Vec<Event>,
    previous: Option<(f64, u64)>,
    joining: Joining,
    /// Live statistics for `trawl serve`, and for the agent of this capture.
    published: Vec<Published>,
    /// The thread that makes chunks for a store.
    chunks: Option<Control>,
    readers: ReaderLogs,
    subject: Option<Subject>,
}

impl Terminal {
    pub(super) fn new(plan: &CapturePlan, display: &Display, subject: Option<Subject>, pods: &Pods) -> Self {
        let has_agent = plan.store.as_ref().is_some_and(|store| store.kept.is_some());
        let published =
            [Published::begin(Publisher::Capture), has_agent.then(Published::to_agent).flatten()].into_iter();
        Self {
            quiet: display.quiet,
            json: display.json,
            verbose: display.verbose,
            // By default, statistics are for a user at a terminal who does not see the packets there.
            stats: display.stats.or_else(|| {
                let is_watched = !plan.outputs.is_empty() && terminal::stderr_is_terminal();
                (is_watched && !display.quiet).then_some(LIVE)
            }),
            file: plan.outputs.first().map(|output| output.path.clone()),
            live_line: false,
            events: Vec::new(),
            previous: None,
            joining: Joining::new(&plan.sources, plan.options.tap, subject.as_ref().and_then(Subject::spaces), pods),
            published: published.flatten().collect(),
            chunks: None,
            readers: ReaderLogs::default(),
            subject,
        }
    }

    /// Sets the thread that makes chunks, which then gets the statistics from time to time.
    pub(super) fn set_chunker(&mut self, chunks: Control) {
        self.chunks = Some(chunks);
    }

    /// Reports the events of the readers of these outputs.
    pub(super) fn watch_readers(&mut self, logs: impl Iterator<Item = (String, ReaderLog)>) {
        self.readers = ReaderLogs::new(logs);
    }

    /// Returns the outcomes of all readers, once the outputs have ended.
    pub(super) fn readers(&mut self) -> Vec<ReaderSummary> {
        self.report_new_readers();
        self.readers.fates()
    }

    fn report_new_readers(&mut self) {
        self.readers.new_events().iter().for_each(|event| self.event(event));
    }

    /// Takes all events so far.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Ends the command whose packets were captured. Returns its exit status.
    pub(super) fn end_subject(&mut self) -> u8 {
        end_command(self.subject.take())
    }

    pub(super) fn finish(&mut self) {
        if std::mem::take(&mut self.live_line) {
            terminal::end_line();
        }
    }

    /// Reports the end of the capture, and writes the summary to its file.
    pub(super) fn report(
        &self,
        time: TimeSource,
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
                if self.quiet {
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
        if let Some(at_most_ns) = largest.filter(|_| self.verbose) {
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

pub(super) fn write_summary(mut account: Output, summary: &impl Serialize) -> Result<()> {
    let name = account.name.clone();
    let fail = |e| Error::os(format!("cannot write the summary to {name}"), e);
    let mut text = serde_json::to_string(summary).map_err(|e| Error::failed("cannot encode the summary as JSON", e))?;
    text.push('\n');
    account.empty()?;
    account.keep();
    account.file.write_all(text.as_bytes()).map_err(fail)
}

/// Ends the command whose packets were seen. Reports its failure, and returns its exit status.
pub(crate) fn end_command(subject: Option<Subject>) -> u8 {
    let ended = subject.map(Subject::end).unwrap_or_default();
    if let Some(failure) = ended.failure {
        terminal::say(&failure);
    }
    ended.status
}

/// Logs of the readers of outputs, by the outputs' names.
#[derive(Default)]
pub(crate) struct ReaderLogs(Vec<(String, ReaderLog)>);

impl ReaderLogs {
    pub fn new(logs: impl Iterator<Item = (String, ReaderLog)>) -> Self {
        Self(logs.collect())
    }

    /// Returns the events since the last call.
    pub fn new_events(&self) -> Vec<Event> {
        let news = self.0.iter().flat_map(|(output, log)| {
            let news = log.new_events().into_iter();
            news.map(|news| reader_event(output.clone(), news))
        });
        news.collect()
    }

    /// Returns the outcomes of all readers.
    pub fn fates(&self) -> Vec<ReaderSummary> {
        let fates = self.0.iter().flat_map(|(output, log)| {
            let fates = log.fates().into_iter();
            fates.map(|fate| reader_summary(output, fate))
        });
        fates.collect()
    }
}

fn reader_event(output: String, news: ReaderNews) -> Event {
    match news {
        ReaderNews::Joined(reader) => Event::ReaderJoined { output, reader },
        ReaderNews::Left(fate) => Event::Reader(reader_summary(&output, fate)),
        ReaderNews::Refused { reader, why } => Event::ReaderRefused { output, reader, why },
    }
}

fn reader_summary(output: &str, fate: ReaderFate) -> ReaderSummary {
    ReaderSummary { output: output.to_owned(), reader: fate.reader, sent: fate.sent, lost: fate.lost, left: fate.left }
}

/// Reports the events of the outputs.
#[derive(Default)]
pub(crate) struct Notices {
    pub quiet: bool,
    pub verbose: bool,
}

impl Observer for Notices {
    fn event(&mut self, event: &Event) {
        if !self.quiet || matches!(event, Event::Listening { any_port: true, .. }) {
            json::event(event);
        }
    }

    fn detail(&mut self, event: &Event) {
        if self.verbose {
            self.event(event);
        }
    }

    fn started(&mut self, _points: &[Point]) {}

    fn figures(&mut self, _summary: &Summary) {}
}

impl Observer for Terminal {
    fn event(&mut self, event: &Event) {
        self.events.push(event.clone());
        // A quiet capture still reports gaps, and a port that the kernel chose: nobody else knows the port.
        let is_needed =
            matches!(event, Event::Blind(_) | Event::SeesAgain(_) | Event::Listening { any_port: true, .. });
        if !self.quiet || is_needed {
            self.finish();
            if self.json { json::notice(None, event, &event.to_string()) } else { terminal::say(&event.to_string()) }
        }
    }

    fn detail(&mut self, event: &Event) {
        if self.verbose {
            self.event(event);
        }
    }

    /// Makes the command wait in new network namespaces until those are captured.
    fn attached(&mut self, attached: &Attached) -> Result<()> {
        self.subject.as_mut().map_or(Ok(()), |subject| subject.watch(attached))
    }

    fn started(&mut self, points: &[Point]) {
        for point in points {
            self.event(&point.capturing());
        }
        let labels: Vec<&str> = points.iter().map(|point| point.label.as_str()).collect();
        let status = if labels.is_empty() {
            "waiting for interfaces".to_owned()
        } else {
            format!("capturing on {}", labels.join(", "))
        };
        published::ready(&status);
        if let Some(subject) = &mut self.subject {
            subject.begin();
        }
    }

    fn appeared(&mut self, known: &[CaptureSite], unchanged: &[Option<Namespace>]) -> Vec<CaptureSite> {
        let mut events = Vec::new();
        let mut say = |event| events.push(event);
        let found = self.joining.appeared(known, unchanged, &mut say);
        events.iter().for_each(|event| self.event(event));
        found
    }

    fn is_urgent(&mut self) -> bool {
        self.joining.is_urgent()
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

    fn interval(&self) -> Option<Duration> {
        self.stats
    }

    fn tick(&mut self, summary: &mut dyn FnMut() -> Summary) {
        self.report_new_readers();
        if let Some(chunks) = &self.chunks {
            chunks.account(summary().accounts());
        }
        for published in self.published.iter_mut().filter(|one| one.is_due()) {
            let summary = summary();
            published.publish(&RunningCapture::new(&summary.total, summary.memory_bytes));
        }
    }

    fn triggered(&mut self) {
        self.chunks.iter().for_each(Control::seal);
    }

    fn figures(&mut self, summary: &Summary) {
        let (then, recorded) = self.previous.unwrap_or_default();
        let rate = (summary.total.recorded - recorded) as f64 / (summary.seconds - then).max(1e-9);
        self.previous = Some((summary.seconds, summary.total.recorded));
        let mut text = format!("{:.1} s: {}, {rate:.0} a second", summary.seconds, summary.total);
        let about = self.file.as_ref().and_then(|path| path.metadata().ok());
        if let Some(about) = about.filter(|about| about.is_file()) {
            text.push_str(&format!(", file {:.1} MiB", about.len() as f64 / 1048576.0));
        }
        if terminal::stderr_is_terminal() {
            terminal::show_over(&text);
            self.live_line = true;
        } else {
            json::event_as(&Event::Account(summary.total.clone()), &text);
        }
    }
}
