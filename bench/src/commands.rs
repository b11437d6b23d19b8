//! `trawl bench run`, `resume`, `list` and `peers`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use trawl_front::{exit_code, json, terminal};
use trawl_sys::events::Signals;
use trawl_sys::process::trawl_binary;
use trawl_sys::process::warden::{Undo, Warden};
use trawl_sys::{Error, Result};

use crate::harness::Bench;
use crate::hosts::Hosts;
use crate::limit::limits;
use crate::model::{Experiment, PeerRecord, Report, Request};
use crate::peers::Peers;
use crate::scratch::Remains;
use crate::study::catalogue;
use crate::study::definition::{Definition, Profile};
use crate::study::run::{Progress, run as run_experiments};
use crate::tuning::Tuned;
use crate::{results, xsk};

const SCRATCH: &str = "/var/tmp";
/// Experiments for two hosts.
const ON_HOSTS: [&str; 5] =
    ["capture-bandwidth", "capture-size", "capture-filtered", "mechanism-efficiency", "mechanism-elapsed"];

#[derive(Debug, clap::Args)]
pub struct Run {
    /// The experiments, by name (trawl bench list)
    #[arg(value_name = "NAME", required_unless_present_any = ["study", "all"], add = ArgValueCandidates::new(names))]
    names: Vec<String>,
    /// All experiments of this study: A to E, or trawl's own: F for the store, G for its parts
    #[arg(long, value_name = "LETTER", value_delimiter = ',')]
    study: Vec<String>,
    /// All experiments
    #[arg(long, conflicts_with_all = ["names", "study"])]
    all: bool,
    /// A few points, each a fraction of a second: all experiments together need less than 15 minutes
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// The study's own rates, sizes, times and repetitions
    #[arg(long)]
    full: bool,
    /// Repetitions, interleaved over all series [default: 3 with --quick, the study's with --full]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: Option<u32>,
    /// Only these of trawl's own series, by tap: hook, xdp, tc, packet
    #[arg(long, value_name = "TAP", value_delimiter = ',')]
    taps: Vec<String>,
    /// Only these peers (trawl bench peers); none: no peer
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    peers: Vec<String>,
    /// A peer's binary, instead of the installed one
    #[arg(long, value_name = "NAME=PATH", value_parser = pair)]
    peer: Vec<(String, String)>,
    /// Set a parameter of all experiments, or of one as EXPERIMENT.KEY=VALUE; separate the values of a list by commas
    /// or semicolons; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Directory for results.json and results.csv [default: trawl-bench-TIME]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// A file that names a sending and a receiving host, reached by ssh, for the experiments that capture
    #[arg(long, value_name = "FILE.toml")]
    hosts: Option<PathBuf>,
    /// Directory of captures while they are measured
    #[arg(long, value_name = "DIR", default_value = SCRATCH)]
    scratch: PathBuf,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// Continues a run that was interrupted
#[derive(Debug, clap::Args)]
pub struct Resume {
    /// The directory of the unfinished run
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// Lists the experiments of the published studies
#[derive(Debug, clap::Args)]
pub struct List {
    /// Print JSON, with every parameter
    #[arg(long)]
    json: bool,
}

/// Lists the programs that trawl is compared with, their versions, and how to get missing ones
#[derive(Debug, clap::Args)]
pub struct ListPeers {
    /// A peer's binary, instead of the installed one
    #[arg(long, value_name = "NAME=PATH", value_parser = pair)]
    peer: Vec<(String, String)>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn pair(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

fn names() -> Vec<CompletionCandidate> {
    let all = catalogue::ALL.iter();
    all.map(|entry| CompletionCandidate::new(entry.name)).collect()
}

impl Run {
    /// Returns the experiments, each once. With `groups`, a group stands for all its experiments.
    pub fn experiments(&self, groups: bool) -> Result<Vec<String>> {
        let mut found: Vec<&str> = Vec::new();
        if self.all {
            found.extend(catalogue::ALL.iter().map(|entry| entry.name));
        }
        for letter in &self.study {
            found.extend(catalogue::of_study(letter)?);
        }
        for name in &self.names {
            match (groups, name.as_str()) {
                (true, "store") => found.extend(catalogue::of_study("F")?),
                (true, "load-balance") => found.extend(["load-balance", "load-balance-moves"]),
                _ => found.push(catalogue::find(name)?.name),
            }
        }
        let mut experiments: Vec<String> = Vec::new();
        for name in found {
            if !experiments.iter().any(|one| one == name) {
                experiments.push(name.to_owned());
            }
        }
        Ok(experiments)
    }

    fn request(&self, experiments: Vec<String>) -> Result<Request> {
        if self.hosts.is_some()
            && let Some(other) = experiments.iter().find(|name| !ON_HOSTS.contains(&name.as_str()))
        {
            return Err(Error::usage(
                format!("--hosts with {other}"),
                format!("experiments for two hosts are {}", ON_HOSTS.join(", ")),
            ));
        }
        let set: BTreeMap<String, String> = self.set.iter().cloned().collect();
        check_keys(&set, &experiments)?;
        let known = Peers::names();
        let is_known = |peer: &String| peer == "none" || known.contains(&peer.as_str());
        if let Some(peer) = self.peers.iter().find(|peer| !is_known(peer)) {
            return Err(Error::usage(format!("--peers {peer}"), format!("known are {}", known.join(", "))));
        }
        Ok(Request {
            experiments,
            profile: if self.full { Profile::Full } else { Profile::Quick },
            repeat: self.repeat,
            set,
            taps: self.taps.clone(),
            peers: self.peers.clone(),
            no_peers: self.peers.iter().any(|peer| peer == "none"),
            peer_paths: self.peer.iter().cloned().collect(),
            hosts: self.hosts.as_ref().map(|path| path.display().to_string()),
            scratch: self.scratch.display().to_string(),
        })
    }
}

/// Refuses a key that none of the experiments has.
fn check_keys(set: &BTreeMap<String, String>, experiments: &[String]) -> Result<()> {
    let find = |name: &String| catalogue::find(name)?.definition();
    let definitions = experiments.iter().map(find).collect::<Result<Vec<_>>>()?;
    for key in set.keys() {
        let (only, plain) = match key.split_once('.') {
            Some((experiment, plain)) => (Some(experiment), plain),
            None => (None, key.as_str()),
        };
        let is_meant = |one: &Definition| only.is_none_or(|name| name == one.name);
        if !definitions.iter().any(|one| is_meant(one) && one.has(plain)) {
            let known = definitions.iter().flat_map(|one| one.quick.keys().chain(one.full.keys()));
            let known: BTreeSet<&str> = known.map(String::as_str).collect();
            let known: Vec<&str> = known.into_iter().collect();
            return Err(Error::usage(
                format!("--set {key}"),
                format!("none of these experiments has that parameter; known are {}", known.join(", ")),
            ));
        }
    }
    Ok(())
}

/// Runs the experiments; by the names of groups too, if `groups` is true.
pub fn run(args: &Run, groups: bool) -> Result<ExitCode> {
    let request = args.request(args.experiments(groups)?)?;
    let directory = args.output.clone().unwrap_or_else(free_directory);
    if results::json_path(&directory).exists() {
        return Err(Error::failed(
            format!("{} holds results already", directory.display()),
            "they would be overwritten",
        )
        .fix(format!("trawl bench resume {} continues it; -o DIR writes to another directory", directory.display())));
    }
    carry_out(&request, &directory, None, args.json)
}

pub fn resume(args: &Resume) -> Result<ExitCode> {
    let before = results::load(&args.directory)?;
    let request = before.request.clone();
    let directory = if args.directory.is_dir() {
        args.directory.as_path()
    } else {
        args.directory.parent().unwrap_or(Path::new(""))
    };
    carry_out(&request, directory, Some(before), args.json)
}

fn free_directory() -> PathBuf {
    let seconds = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    format!("trawl-bench-{seconds}").into()
}

fn carry_out(request: &Request, directory: &Path, before: Option<Report>, json: bool) -> Result<ExitCode> {
    let trawl = trawl_binary()?;
    let scratch = PathBuf::from(&request.scratch);
    let bench = Bench {
        scratch: scratch.clone(),
        peers: Peers::find(&request.peer_paths)?,
        hosts: request.hosts.as_ref().map(|file| Hosts::open(Path::new(file), &trawl)).transpose()?,
        trawl,
        tuned: Tuned::from(before.as_ref().map_or(Vec::new(), |one| one.configurations.clone())),
    };
    let mut warden = Warden::default();
    let remains = Remains::of_this_process(&scratch);
    warden.watch([Box::new(remains) as Box<dyn Undo>])?;
    let signals = Signals::watch()?;
    let mut screen = Screen::default();
    let mut stopped = false;
    let mut watch = |progress: &Progress| {
        stopped |= signals.next().is_some();
        screen.draw(progress);
        !stopped
    };
    let result = run_experiments(request, &bench, directory, before, &mut watch);
    screen.end();
    let report = result?;
    drop(warden);
    if json {
        json::print(&report)?
    } else {
        terminal::write_out(&show(&report, directory))?
    }
    if !report.complete {
        terminal::say(&format!(
            "interrupted: the results so far are in {0}; trawl bench resume {0} continues the run",
            directory.display()
        ));
        return Ok(ExitCode::FAILURE);
    }
    // A failure that is expected on this host does not count.
    let has_failed = |one: &Experiment| one.runs.is_empty() && one.failures.iter().any(|failure| !failure.expected);
    Ok(exit_code(!report.experiments.iter().any(has_failed)))
}

pub fn list(args: &List) -> Result<ExitCode> {
    let definitions = catalogue::ALL.iter().map(catalogue::Entry::definition).collect::<Result<Vec<_>>>()?;
    let line = |one: &Definition| format!("{:<22} {}  {}\n", one.name, one.study, one.title);
    let text = || definitions.iter().map(line).collect();
    json::print_as(args.json, &definitions, text).map(|()| ExitCode::SUCCESS)
}

pub fn peers(args: &ListPeers) -> Result<ExitCode> {
    let peers = Peers::find(&args.peer.iter().cloned().collect())?;
    let line = |one: &PeerRecord| format!("{:<15} {}\n", one.name, one.state());
    let text = || peers.records().iter().map(line).collect();
    json::print_as(args.json, &peers.records(), text).map(|()| ExitCode::SUCCESS)
}

/// Receives by AF_XDP, or by recv if 0 queues are given, until interrupted: for the experiments that compare mechanisms
#[derive(Debug, clap::Args)]
pub struct ReceiveXsk {
    namespace: String,
    interface: String,
    queues: u32,
    file: PathBuf,
}

pub fn receive_xsk(args: &ReceiveXsk) -> Result<ExitCode> {
    let (namespace, interface, file) = (&args.namespace, &args.interface, &args.file);
    match args.queues {
        0 => xsk::receive_by_calls(namespace, interface, file)?,
        queues => xsk::receive(namespace, interface, queues, file)?,
    }
    Ok(ExitCode::SUCCESS)
}

// Output of experiments for people: the progress, and the results.

/// A line of progress: on a terminal it is overwritten, elsewhere each experiment has one.
#[derive(Default)]
struct Screen {
    experiment: String,
    shown: bool,
}

impl Screen {
    fn draw(&mut self, progress: &Progress) {
        let Progress { done, total, .. } = progress;
        let left = progress.left.map(|left| format!(", {} left", minutes(left)));
        let left = left.unwrap_or_default();
        let head = format!("[{}/{total}{left}] {}", done + 1, progress.experiment);
        if terminal::stderr_is_terminal() {
            self.shown = true;
            terminal::show_over(&format!(
                "{head}: {} at {}, repetition {}",
                progress.series, progress.x, progress.repetition
            ));
        } else if self.experiment != progress.experiment {
            self.experiment.clone_from(&progress.experiment);
            terminal::say(&head);
        }
    }

    fn end(&self) {
        if self.shown {
            terminal::end_line();
        }
    }
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02} min", seconds / 60, seconds % 60)
}

fn show(report: &Report, directory: &Path) -> String {
    let mut lines = Vec::new();
    for experiment in &report.experiments {
        let definition = &experiment.definition;
        lines.push(format!("{}: {}", definition.name, definition.title));
        for metric in &definition.metrics {
            let points = experiment.points.iter();
            let mut points = points.filter(|point| point.metric == metric.name).peekable();
            if points.peek().is_some() {
                lines.push(format!("  {}:", metric.label));
            }
            for point in points {
                let value = &point.value;
                let times = match value.repetitions {
                    1 => "1 repetition".to_owned(),
                    count => format!("{count} repetitions"),
                };
                let mark = match point.disturbed {
                    0 => "",
                    _ => "  (disturbed)",
                };
                lines.push(format!(
                    "    {:<34} {:>10} {:<7} {:>10.3} {} ({:.3} to {:.3}, {times}){mark}",
                    point.series, point.x, definition.x.unit, value.median, metric.unit, value.low, value.high
                ));
            }
        }
        for claim in wrong_claims(experiment) {
            lines.push(format!("  wrong claim: {claim}"));
        }
        for failure in &experiment.failures {
            lines.push(format!("  {}: {}", failure.series, failure.message));
        }
        lines.extend(limits(experiment).map(|limits| format!("  {limits}")));
        lines.push(format!("  shape agrees: {}", experiment.finding.agrees.text()));
        let finding = &experiment.finding;
        for text in [&finding.shows, &finding.sentence] {
            if !text.is_empty() {
                lines.push(format!("  {text}"));
            }
        }
    }
    lines.push(format!("results: {0}; trawl bench report {0} makes a page of them\n", directory.display()));
    lines.join("\n")
}

fn wrong_claims(experiment: &Experiment) -> Vec<String> {
    let mut wrong: BTreeMap<&str, usize> = BTreeMap::new();
    for run in &experiment.runs {
        if run.claim.as_ref().is_some_and(|claim| claim.wrong) {
            *wrong.entry(&run.series).or_default() += 1;
        }
    }
    wrong
        .into_iter()
        .map(|(series, runs)| format!("{series} contradicts its file and the device in {runs} runs"))
        .collect()
}
