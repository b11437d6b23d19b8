//! `trawl why`: reasons and locations of lost packets. It sums up the records of the tap at drops, and losses that only
//! counters show.

mod advice;
mod bridge;
pub(crate) mod counted;
mod culprits;
mod noted;
mod record;
pub(crate) mod report;
mod ruleset;
mod socket_drops;
mod traced;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::json;
use trawl_capture::TapChoice;
use trawl_capture::assembly::HostFeatures;
use trawl_capture::event::Event;
use trawl_capture::filter::Filter;
use trawl_capture::options::{CaptureOptions, Drops, Memory, MemorySize, ProcessPlan};
use trawl_capture::plan::CapturePlan;
use trawl_capture::point::Point;
use trawl_capture::session::{self, Attached, Ended, Observer};
use trawl_capture::sources::Sources;
use trawl_capture::summary::Summary;
use trawl_front::bound::{Bound, parse_bound};
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::{Blocks, Pressure, WriteOutcome, Writer};
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result};
use trawl_view::record::RingPackets;
use trawl_view::why::Tally;

use crate::args::{LibpcapArg, NamespacesArg};
use crate::program_args::refuse_options;
use crate::read::{Input, looks_like_a_file, split_files};
use crate::subject::{Subject, SubjectArgs};
use crate::{capture, exit_code, json, terminal, units};

use counted::{Counted, Differences};
use culprits::Culprits;
use record::Recording;
use report::{Knowledge, LossReport};

/// Bytes of a packet that contain its addresses and ports, even through tunnels.
pub const SNAPLEN: u32 = 256;
const RING_SIZE: u64 = 4 << 20;
/// Number of rows of which the objects that dropped the packets are found.
const MOST_EXPLAINED: usize = 32;
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Shows lost packets: the reason, the location, and how to fix it
///
/// With files, those that --record, or a capture at the tap drop, recorded. With a command, the losses of its
/// processes, until it ends.
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
    /// Only what a file holds from this time on: 14:30:00, '2026-01-31 14:30:00', -10min, +1h after the first packet
    #[arg(long, value_name = "TIME", value_parser = parse_bound, allow_hyphen_values = true)]
    since: Option<Bound>,
    /// Show only what is new since this recording, or at least ten times as frequent
    #[arg(long, value_name = "FILE", add = crate::completion::paths())]
    diff: Option<String>,
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
    let sites = plan.sources.find(plan.options.tap, Vec::new())?;
    let namespaces = args.namespaces.open()?;
    let mut observer = Watcher {
        json: args.json,
        started: |point| Some(format!("looking for drops on {}", point.label)),
        subject: Subject::prepare(&args.subject.words, &mut plan.options, true, None)?,
    };
    let mut attached = session::attach(&sites, &plan.options, HostFeatures::this(), &mut observer)?;
    observer.watch_subject(&attached)?;
    let recording = args.record.as_deref();
    let mut file = recording.map(|path| capture::outputs::one_file(path, &mut attached)).transpose()?;
    let confined = attached.keep_rights();
    // Neither an expression nor a command selects among counters.
    let counted = args.words.is_empty() && args.subject.words.is_empty();
    let spaces = observer.subject.as_ref().and_then(Subject::spaces);
    let mut culprits = Culprits::new(!counted || !args.interfaces.is_empty(), spaces.cloned());
    let counted = counted.then(|| Counted::new(&sites, namespaces).map(Rc::new)).transpose()?;
    if let Some(counted) = &counted {
        culprits.begin(counted.namespaces());
    }
    let may_trace = !args.no_trace && !confined.session().notes_rules();
    let tally = Rc::new(RefCell::new(Tally::default()));
    let tallying = Tallying {
        tally: Rc::clone(&tally),
        no_losses_too: args.all,
        packets: capture::shown::packets(confined.session()),
        counted: counted.clone(),
        known: Knowledge::default(),
        culprits,
        may_trace,
        looked_at: 0,
        shown: Instant::now(),
        lines: 0,
        live: !args.json && terminal::stdout_is_terminal(),
    };
    let mut sink = Recording { counts: tallying, file: file.as_mut().map(|file| &mut **file as &mut dyn Writer) };
    let (summary, ended) = confined.run(&mut sink, &mut observer)?;
    sink.counts.clear();
    let seconds = started.elapsed().as_secs_f64();
    let status = observer.subject.map_or(0, Subject::end);
    let mut known = std::mem::take(&mut sink.counts.known);
    let mut culprits = std::mem::take(&mut sink.counts.culprits);
    drop(sink);
    let tally = tally.take();
    for (key, row) in tally.sorted().into_iter().take(MOST_EXPLAINED) {
        known.blames.insert(key.clone(), culprits.of(key, row, &tally));
    }
    let differences = differences(counted.as_deref(), true)?;
    let mut report = LossReport::new(&tally, &differences, &summary.total, &mut known);
    if let Some(file) = &mut file {
        record::append(&mut **file, &report)?;
    }
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

/// Splits the files at the beginning from the expression after them.
fn existing_files(words: &[String]) -> (&[String], &[String]) {
    let (files, rest) = split_files(words);
    // No expression begins with such a word: it is a missing file.
    let is_file = |name: &String| name == "-" || Path::new(name).exists() || looks_like_a_file(name);
    match files.first().is_some_and(is_file) {
        true => (files, rest),
        false => (&[], words),
    }
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
    let inputs = record::open(files)?;
    let mut found = record::read(inputs, &words.join(" "), args.since, args.all)?;
    if let Some(reference) = reference {
        let reference = record::read(reference, "", None, false)?;
        found.report.compare(found.seconds, &reference.report, reference.seconds);
    }
    show(&found.report, args.json)?;
    Ok(exit_code(found.is_whole))
}

fn open_reference(file: &str) -> Result<Vec<Input>> {
    record::open(&[file.to_owned()])
}

fn show(report: &LossReport, as_json: bool) -> Result<()> {
    json::print_as(as_json, report, || report.to_string())?;
    if let (false, Some(text)) = (as_json, report.account()) {
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
        namespaces: match args.subject.words.is_empty() {
            true => args.namespaces.names(),
            false => args.namespaces.given().to_vec(),
        },
        ..Drops::default()
    };
    let sources = Sources {
        names: args.interfaces.clone(),
        netns: args.namespaces.of_interfaces().map(str::to_owned),
        ..Sources::default()
    };
    let options = CaptureOptions {
        // Without it, the lists of open sockets name processes.
        process: Some(ProcessPlan { optional: true, ..ProcessPlan::default() }),
        ..watching_drops(drops, &args.words, args.duration)
    };
    CapturePlan::new(sources, options)
}

/// Returns the options of a capture at drops whose records this process reads itself.
pub fn watching_drops(drops: Drops, expression: &[String], duration: Option<Duration>) -> CaptureOptions {
    let expression = expression.join(" ");
    let memory = Memory::growing_to(MemorySize::ForEachCpu(RING_SIZE));
    CaptureOptions {
        drops: Some(drops),
        filter: (!expression.is_empty()).then_some(Filter::Expression(expression)),
        snaplen: SNAPLEN,
        duration,
        ..CaptureOptions::new(TapChoice::Drop, memory)
    }
}

fn say_tracing(netns: Option<&str>) {
    let seconds = traced::AT_MOST.as_secs();
    let place = netns.map_or_else(String::new, |netns| format!(" in {netns}"));
    let text = format!(
        "tracing packets{place} by nftables for at most {seconds} s, to find the rules that drop some; --no-trace prevents it"
    );
    let data = json!({ "netns": netns, "seconds": seconds });
    json::say("tracing_packets", data, &text);
}

fn differences(counted: Option<&Counted>, with_sockets: bool) -> Result<Differences> {
    counted.map_or_else(|| Ok(Differences::default()), |counted| counted.differences(with_sockets))
}

/// A reporter of a capture at drops, on standard error.
pub(crate) struct Watcher {
    pub(crate) json: bool,
    /// The message for a point that was attached.
    pub(crate) started: fn(&Point) -> Option<String>,
    pub(crate) subject: Option<Subject>,
}

impl Watcher {
    /// Makes the command's processes wait in new network namespaces until the taps cover these.
    pub(crate) fn watch_subject(&mut self, attached: &Attached) -> Result<()> {
        let subject = self.subject.as_mut();
        subject.map_or(Ok(()), |subject| subject.watch(attached))
    }
}

impl Observer for Watcher {
    fn event(&mut self, event: &Event) {
        // Packets of other flows than the command's are no loss to it.
        if self.subject.is_some() && matches!(event, Event::ProcessesUnknown { .. }) {
            return;
        }
        let text = event.to_string();
        match self.json {
            true => json::notice(None, event, &text),
            false => terminal::say(&text),
        }
    }

    fn started(&mut self, points: &[Point]) {
        for (point, text) in points.iter().filter_map(|one| Some((one, (self.started)(one)?))) {
            match self.json {
                true => json::notice(None, &point.capturing(), &text),
                false => terminal::say(&text),
            }
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

    fn is_over(&mut self) -> bool {
        self.subject.as_mut().is_some_and(Subject::is_over)
    }

    fn figures(&mut self, summary: &Summary) {
        json::event(&Event::Account(summary.total.clone()));
    }
}

/// A writer that counts packets, and shows the counts so far on a terminal.
struct Tallying {
    tally: Rc<RefCell<Tally>>,
    no_losses_too: bool,
    packets: RingPackets,
    counted: Option<Rc<Counted>>,
    known: Knowledge,
    culprits: Culprits,
    /// True if packets may be traced: programs do not note the rules that drop them.
    may_trace: bool,
    /// Number of rows of which the objects that may have dropped packets were read.
    looked_at: usize,
    shown: Instant,
    lines: usize,
    live: bool,
}

impl Tallying {
    /// Looks at the objects that may have dropped the packets of new rows.
    fn look(&mut self) {
        let tally = Rc::clone(&self.tally);
        let tally = tally.borrow();
        if tally.rows.len() <= self.looked_at {
            return;
        }
        self.looked_at = tally.rows.len();
        for (key, row) in &tally.rows {
            self.culprits.look(key);
            if self.may_trace && self.culprits.trace(key, row) {
                self.clear();
                say_tracing(key.netns.as_deref());
            }
        }
    }

    fn show(&mut self) {
        if !self.live || self.shown.elapsed() < LOOK_EVERY {
            return;
        }
        self.clear();
        self.shown = Instant::now();
        let differences = differences(self.counted.as_deref(), false).unwrap_or_default();
        let (tally, account) = (self.tally.borrow(), PacketAccount::default());
        let report = LossReport::new(&tally, &differences, &account, &mut self.known);
        let (text, lines) = terminal::fitted(&report.to_string());
        self.lines = lines;
        // A closed terminal ends the command by a signal.
        let _ = terminal::write_out(&text);
    }

    /// Erases the shown text from the terminal.
    fn clear(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        if lines > 0 {
            let _ = terminal::write_control(&format!("\x1b[{lines}A\x1b[J"));
        }
    }
}

impl Writer for Tallying {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let mut tally = self.tally.borrow_mut();
        self.packets.each(blocks.bytes(), |packet, _| {
            tally.count(packet, self.no_losses_too);
        });
        drop(tally);
        self.flush()
    }

    fn flush(&mut self) -> Result<Pressure> {
        self.look();
        self.show();
        Ok(Pressure::Idle)
    }

    fn finish(&mut self) -> WriteOutcome {
        WriteOutcome::default()
    }
}
