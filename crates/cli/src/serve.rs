//! `trawl serve`: statistics of this machine over HTTP: for Prometheus, as JSON, and as one small page.

mod http;
mod metrics;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde_json::json;
use trawl_capture::summary::Summary;
use trawl_figures::connections::{ConnectionFigures, Connections};
use trawl_figures::losses::{Losses, Lost};
use trawl_figures::processes::{ProcessTotals, Processes};
use trawl_figures::verdicts::{ProgramVerdicts, Verdicts};
use trawl_figures::{Counters, NamespaceInterfaces, counters};
use trawl_packet::verdict;
use trawl_pipeline::account::PacketAccount;
use trawl_program::pins;
use trawl_sys::events::{self, Signals};
use trawl_sys::rights::privilege::KeptPrivileges;
use trawl_sys::{Error, Result, clock, host};
use trawl_view::record::PacketView;
use trawl_view::stat::{Counted, Flow, Statistics};

use crate::json;
use crate::published::{self, Publisher, RunningCapture, RunningGenerator};
use crate::terminal;
use trawl_source::live::{self, LiveOptions, Viewer};

/// Serves Prometheus metrics, JSON, and a page with live plots
///
/// /metrics is for Prometheus, /figures.json has the same numbers, / is the page. Readers need no password, so only
/// this machine can connect unless --listen allows others.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464")]
    listen: SocketAddr,
    /// Capture on this interface, for verdicts, flows and a summary; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF", add = crate::completion::interfaces())]
    interfaces: Vec<String>,
    /// Count the packets of each process and container at its sockets; of the whole machine without -i and --netns
    #[arg(long)]
    process: bool,
    /// Measure the TCP connections of each process, container and pod: times, retransmissions, resets, and closed windows
    #[arg(long)]
    slow: bool,
    /// Count the verdicts of each XDP program in the kernel; always done with -i
    #[arg(long)]
    verdicts: bool,
    /// Network namespace of interfaces given without one: a name, a path or a process id; may be given several times
    #[arg(long, value_name = "NAME", add = crate::completion::namespaces())]
    netns: Vec<String>,
}

impl Args {
    /// Returns the only namespace.
    fn only_namespace(&self) -> Option<&str> {
        match &self.netns[..] {
            [one] => Some(one),
            _ => None,
        }
    }

    /// Returns the interfaces to capture on: without a namespace of its own, an interface is one of each given
    /// namespace.
    fn labels(&self) -> Vec<String> {
        match self.netns.len() {
            0 | 1 => self.interfaces.clone(),
            _ => {
                let interfaces = self.interfaces.iter();
                interfaces.flat_map(|name| self.in_each(name)).collect()
            }
        }
    }

    fn in_each(&self, interface: &str) -> Vec<String> {
        if interface.contains(':') {
            vec![interface.to_owned()]
        } else {
            let namespaces = self.netns.iter();
            namespaces.map(|netns| counters::label(netns, interface)).collect()
        }
    }

    /// Finds the namespaces and interfaces to count in.
    fn selected(&self) -> Result<Vec<NamespaceInterfaces>> {
        let mut interfaces = self.labels();
        if interfaces.is_empty() && self.netns.len() > 1 {
            interfaces = self.in_each("any");
        }
        NamespaceInterfaces::of(&interfaces, self.only_namespace())
    }
}

/// The served statistics.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub host: String,
    #[serde(flatten)]
    pub counters: Counters,
    #[serde(flatten)]
    pub own: Own,
    /// The captures and generators of other commands that run on this machine.
    pub captures: Vec<RunningCapture>,
    pub generators: Vec<RunningGenerator>,
}

/// The statistics that this command itself collects.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Own {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<Capture>,
    #[serde(flatten)]
    pub lost: Lost,
    #[serde(flatten)]
    pub verdicts: ProgramVerdicts,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessTotals>,
    #[serde(flatten)]
    pub connections: ConnectionFigures,
}

/// The summary of this command's own capture.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Capture {
    pub seen: u64,
    pub filtered_out: u64,
    pub recorded: u64,
    /// Lost packets by reason.
    pub lost: BTreeMap<Cow<'static, str>, u64>,
    pub points: Vec<CapturePoint>,
    /// Verdicts since the command began.
    pub verdicts: Vec<Verdict>,
    /// Protocols of the last minute.
    pub protocols: Vec<Counted>,
    pub flows: Vec<NamedFlow>,
}

/// A hook of an interface with the account of its packets.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CapturePoint {
    pub interface: String,
    pub netns: String,
    pub hook: String,
    #[serde(flatten)]
    pub account: PacketAccount,
}

/// Packets with a verdict at a hook.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Verdict {
    pub interface: String,
    pub netns: String,
    pub hook: String,
    pub verdict: String,
    pub packets: u64,
}

impl Verdict {
    fn label(&self) -> String {
        counters::label(&self.netns, &self.interface)
    }
}

/// A flow in its form for output: hosts by their names in /etc/hosts, protocols by theirs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NamedFlow {
    #[serde(flatten)]
    flow: Flow,
    name: String,
}

type Shared = Arc<Mutex<Own>>;

/// Locks a mutex.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// Maximum number of different verdicts that are counted, on all interfaces.
const MAX_VERDICTS: usize = 1000;
/// Number of flows that are shown.
const FLOWS: usize = 20;
/// Interval at which the counting of flows begins anew.
const RENEW: Duration = Duration::from_secs(60);

pub fn run(args: Args) -> Result<ExitCode> {
    let selected = args.selected()?;
    let listener = trawl_front::http::listen(args.listen)?;
    let address = listener.local_addr().map_err(|e| Error::os("cannot find the address", e))?;
    // Signals are blocked before any other thread is started, so that this thread receives all of them.
    let signals = Signals::watch()?;
    let is_selected = !args.interfaces.is_empty() || !args.netns.is_empty();
    let chosen = || is_selected.then(|| args.selected()).transpose();
    let of_programs = if args.verdicts || !args.interfaces.is_empty() { Some(args.selected()?) } else { None };
    let mut events = Events::attach((args.process, args.slow), of_programs, chosen)?;
    let shared: Shared = Arc::default();
    let served = Arc::clone(&shared);
    let privileges = KeptPrivileges { user: None, capabilities: counters::NEEDED_CAPABILITIES };
    // The pins' file system is opened now. If /sys hides it, it can only be reached through other processes, which a
    // confined process may not inspect.
    pins::hold();
    if args.interfaces.is_empty() {
        privileges.confine()?;
    }
    std::thread::spawn(move || {
        // Each thread has capabilities of its own. The main thread gives up the capture's once the capture is set up;
        // this thread never needs them.
        if let Err(error) = privileges.give_up_others() {
            terminal::say(&error.to_string());
            return;
        }
        let figures = || {
            Counters::read_all(&selected).map(|counters| Figures {
                host: host::name(),
                counters,
                own: locked(&served).clone(),
                captures: published::all(Publisher::Capture),
                generators: published::all(Publisher::Generator),
            })
        };
        let history = Mutex::new(History::default());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    if let Ok(figures) = figures() {
                        locked(&history).add(&figures);
                    }
                    std::thread::sleep(STEP);
                }
            });
            trawl_front::http::serve(&listener, &|request, _| {
                http::answer(request, &figures, &|| locked(&history).plots())
            });
        });
    });
    let url = format!("http://{address}/");
    let serving = format!("serving {url}");
    json::say("serving", json!({ "url": &url }), &serving);
    if !address.ip().is_loopback() {
        let text = format!("anyone who reaches {address} can read these statistics: no password is needed");
        json::say("serving_others", json!({ "url": &url }), &text);
    }
    if args.interfaces.is_empty() {
        published::ready(&serving);
        while signals.next().is_none() {
            let signals = [std::os::fd::AsFd::as_fd(&signals)];
            events::wait(&signals, UPDATE_EVERY)?;
            events.update(&shared)?;
        }
        published::stopping();
        return Ok(ExitCode::SUCCESS);
    }
    drop(signals);
    let options = LiveOptions {
        interfaces: args.labels(),
        netns: args.only_namespace().map(str::to_owned),
        keeps: counters::NEEDED_CAPABILITIES,
        ..LiveOptions::default()
    };
    let mut viewer = Watching {
        shared,
        events,
        statistics: Statistics::of_a_view(),
        since: std::time::Instant::now(),
        netns: args.only_namespace().unwrap_or_default().to_owned(),
        verdicts: HashMap::new(),
        hosts: hosts(),
        serving,
    };
    let ended = live::run(&options, &mut viewer, crate::report_unless_on_screen);
    published::stopping();
    ended?;
    Ok(ExitCode::SUCCESS)
}

/// The key by which verdicts are counted: interface, hook and verdict.
type VerdictKey = (String, String, String);

/// Returns the names of addresses in /etc/hosts, without queries to the network.
fn hosts() -> HashMap<IpAddr, String> {
    let text = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let entry = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        Some((address, words.next()?.to_owned()))
    };
    // The first name of an address counts.
    text.lines().rev().filter_map(entry).collect()
}

/// Counts of losses, verdicts, and packets and connections of processes, by programs in the kernel.
struct Events {
    losses: Losses,
    verdicts: Option<Verdicts>,
    processes: Option<Processes>,
    connections: Option<Connections>,
}

impl Events {
    /// Begins to count, also the packets and the connections of processes if they are wanted. `of_programs` are the
    /// interfaces whose XDP programs' verdicts are counted; `selected` finds the selected interfaces.
    fn attach(
        (packets, connections): (bool, bool),
        of_programs: Option<Vec<NamespaceInterfaces>>,
        selected: impl Fn() -> Result<Option<Vec<NamespaceInterfaces>>>,
    ) -> Result<Self> {
        let processes = if packets { Some(Processes::attach(selected()?)?) } else { None };
        processes.iter().filter_map(Processes::unseen).for_each(json::event);
        let connections = connections.then(|| Connections::attach(selected()?, processes.as_ref())).transpose()?;
        let mut show = |notice: &_| json::show_notice(notice);
        Ok(Self {
            losses: Losses::attach(
                selected()?,
                processes.as_ref(),
                connections.as_ref(),
                json::show_notice,
                &mut show,
            )?,
            connections,
            verdicts: of_programs.map(|selected| Verdicts::new(selected, json::show_notice)),
            processes,
        })
    }

    fn update(&mut self, shared: &Shared) -> Result<()> {
        let lost = self.losses.update(self.processes.as_mut())?;
        let verdicts = self.verdicts.as_mut().map(Verdicts::update).transpose()?;
        let processes = self.processes.as_mut().map(Processes::update).transpose()?;
        let connections =
            self.connections.as_mut().map(|one| one.update(self.processes.as_mut(), &self.losses)).transpose()?;
        let mut shared = locked(shared);
        if let Some(lost) = lost {
            shared.lost = lost;
        }
        if let Some(verdicts) = verdicts.flatten() {
            shared.verdicts = verdicts;
        }
        shared.processes = processes.unwrap_or_default();
        shared.connections = connections.unwrap_or_default();
        Ok(())
    }
}

struct Watching {
    shared: Shared,
    events: Events,
    statistics: Statistics,
    since: std::time::Instant,
    /// The namespace of interfaces given without one.
    netns: String,
    verdicts: HashMap<VerdictKey, u64>,
    /// Names in /etc/hosts.
    hosts: HashMap<IpAddr, String>,
    /// Status for the service manager.
    serving: String,
}

impl Viewer for Watching {
    fn packet(&mut self, packet: &PacketView<'_>) {
        self.statistics.add(packet);
        if let Some(verdict) = packet.verdict.filter(|one| verdict::decides(*one)) {
            let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
            let verdict = verdict::text(verdict);
            let key = (text(packet.interface), text(packet.hook), verdict);
            if self.verdicts.len() < MAX_VERDICTS || self.verdicts.contains_key(&key) {
                *self.verdicts.entry(key).or_default() += 1;
            }
        }
    }

    fn started(&mut self) {
        published::ready(&self.serving);
    }

    fn idle(&mut self) -> bool {
        true
    }

    fn interval(&self) -> Option<Duration> {
        Some(UPDATE_EVERY)
    }

    fn figures(&mut self, summary: &Summary) {
        let report = self.statistics.report(Vec::new(), FLOWS);
        if self.since.elapsed() >= RENEW {
            self.since = std::time::Instant::now();
            self.statistics = Statistics::of_a_view();
        }
        let verdict = |((label, hook, verdict), packets): (&VerdictKey, &u64)| {
            let (netns, interface) = label.split_once(':').unwrap_or((&self.netns, label));
            Verdict {
                interface: interface.to_owned(),
                netns: netns.to_owned(),
                hook: hook.clone(),
                verdict: verdict.clone(),
                packets: *packets,
            }
        };
        let mut verdicts: Vec<Verdict> = self.verdicts.iter().map(verdict).collect();
        verdicts.sort_by_key(|one| std::cmp::Reverse(one.packets));
        let flows = report.flows.into_iter();
        let flows = flows.map(|flow| self.named(flow)).collect();
        let total = &summary.total;
        let points = summary.interfaces.iter().map(|point| {
            let label = &point.interface;
            let (netns, interface) = label.split_once(':').unwrap_or((&self.netns, label));
            CapturePoint {
                interface: interface.to_owned(),
                netns: netns.to_owned(),
                hook: point.hook.clone(),
                account: point.account.clone(),
            }
        });
        let points = points.collect();
        // An error is ignored, since the counts may be readable again at the next update.
        let _ = self.events.update(&self.shared);
        locked(&self.shared).capture = Some(Capture {
            seen: total.seen,
            filtered_out: total.filtered_out,
            recorded: total.recorded,
            lost: total.lost.clone(),
            points,
            verdicts,
            protocols: report.protocols,
            flows,
        });
    }
}

impl Watching {
    fn named(&self, flow: Flow) -> NamedFlow {
        let host = |address: &str| {
            let parsed = address.parse().ok();
            let name = parsed.and_then(|address| self.hosts.get(&address));
            name.cloned().unwrap_or_else(|| address.to_owned())
        };
        let named = Flow { src: host(&flow.src), dst: host(&flow.dst), ..flow.clone() };
        NamedFlow { name: named.label(), flow }
    }
}

const UPDATE_EVERY: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_secs(5);
const STEPS: usize = 15 * 60 / 5;
/// Maximum number of lines of a plot: the lines with the highest rates.
const LINES: usize = 12;

/// Counts at one point in time, by plot and line.
type Sample = BTreeMap<(&'static str, String), u64>;

const PACKETS: &str = "Packets a second";
const BITS: &str = "Bits a second";
const VERDICTS: &str = "Verdicts a second";
const DROPS: &str = "Drops a second, by reason";
/// Plots in the order of the page, and the factor of their counts.
const PLOTS: [(&str, u64); 4] = [(PACKETS, 1), (BITS, 8), (VERDICTS, 1), (DROPS, 1)];

#[derive(Debug, Default)]
struct History {
    samples: VecDeque<(u64, Sample)>,
}

/// The data of the page: for each line the rates between two samples, `null` if unknown.
#[derive(Debug, Serialize)]
struct Plots {
    /// The end of each step, in milliseconds since 1970.
    times_ms: Vec<u64>,
    plots: Vec<Plot>,
}

#[derive(Debug, Serialize)]
struct Plot {
    title: &'static str,
    lines: Vec<Line>,
}

#[derive(Debug, Serialize)]
struct Line {
    name: String,
    per_second: Vec<Option<f64>>,
}

fn sample(figures: &Figures) -> Sample {
    let mut sample = Sample::new();
    let mut add = |plot, line: String, count: u64| {
        *sample.entry((plot, line)).or_default() += count;
    };
    for one in &figures.counters.interfaces {
        let name = one.label();
        for (direction, [packets, bytes, dropped, _]) in ["in", "out"].into_iter().zip(one.sides()) {
            add(PACKETS, format!("{name} {direction}"), packets);
            add(BITS, format!("{name} {direction}"), bytes);
            add(DROPS, format!("{name} {direction}: device"), dropped);
        }
    }
    let capture = figures.own.capture.iter();
    for verdict in capture.flat_map(|capture| &capture.verdicts) {
        let line = format!("{} {} {}", verdict.label(), verdict.hook, verdict.verdict);
        add(VERDICTS, line, verdict.packets);
    }
    for drop in &figures.own.lost.drops {
        let reason = drop.labels.iter().find(|(name, _)| *name == "reason");
        let reason = reason.map_or(String::new(), |(_, reason)| reason.clone());
        add(DROPS, reason, drop.packets);
    }
    sample
}

impl History {
    pub fn add(&mut self, figures: &Figures) {
        if self.samples.len() > STEPS {
            self.samples.pop_front();
        }
        self.samples.push_back((clock::wall(), sample(figures)));
    }

    /// Returns the plots, without lines that stayed at zero, and without empty plots.
    pub fn plots(&self) -> Plots {
        let times = self.samples.iter().skip(1);
        let plot = |(title, factor): (&'static str, u64)| Plot { title, lines: self.lines(title, factor) };
        let plots = PLOTS.into_iter().map(plot);
        Plots {
            times_ms: times.map(|(time, _)| time / 1_000_000).collect(),
            plots: plots.filter(|plot| !plot.lines.is_empty()).collect(),
        }
    }

    fn lines(&self, title: &'static str, factor: u64) -> Vec<Line> {
        let Some((_, last)) = self.samples.back() else {
            return Vec::new();
        };
        let names = last.keys().filter(|(plot, _)| *plot == title);
        let mut lines: Vec<(f64, Line)> = names
            .map(|key| {
                let pairs = self.samples.iter().zip(self.samples.iter().skip(1));
                let rate = |((from, old), (to, new)): (&(u64, Sample), &(u64, Sample))| {
                    let seconds = to.saturating_sub(*from) as f64 / 1e9;
                    // A line that a sample lacks was zero then: a verdict has no line before its first packet.
                    let was = old.get(key).copied().unwrap_or(0);
                    let grown = new.get(key)?.checked_sub(was)?;
                    (seconds > 0.0).then(|| (grown * factor) as f64 / seconds)
                };
                let per_second: Vec<Option<f64>> = pairs.map(rate).collect();
                let total = per_second.iter().flatten().sum();
                let name = key.1.clone();
                (total, Line { name, per_second })
            })
            .filter(|(total, _)| *total > 0.0)
            .collect();
        lines.sort_by(|one, other| other.0.total_cmp(&one.0));
        lines.truncate(LINES);
        lines.into_iter().map(|(_, line)| line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_figures::counters::{Counters, InterfaceCounters};

    fn figures(rx_packets: u64) -> Figures {
        Figures {
            counters: Counters {
                interfaces: vec![InterfaceCounters {
                    interface: "veth0".to_owned(),
                    netns: "blue".to_owned(),
                    rx_packets,
                    ..InterfaceCounters::default()
                }],
                ..Counters::default()
            },
            ..Figures::default()
        }
    }

    #[test]
    fn plots_have_rates_and_no_idle_lines() {
        let mut history = History::default();
        for count in [100, 100, 600] {
            history.add(&figures(count));
        }
        history.samples[0].0 = 1_000_000_000;
        history.samples[1].0 = 6_000_000_000;
        history.samples[2].0 = 11_000_000_000;
        let plots = history.plots();
        assert_eq!(plots.times_ms, [6_000, 11_000]);
        let [plot] = &plots.plots[..] else {
            panic!("{plots:?}");
        };
        let [line] = &plot.lines[..] else {
            panic!("{plots:?}");
        };
        assert_eq!((plot.title, line.name.as_str()), (PACKETS, "blue:veth0 in"));
        assert_eq!(line.per_second, [Some(0.0), Some(100.0)]);
        for _ in 0..2 * STEPS {
            history.add(&figures(600));
        }
        assert_eq!(history.plots().times_ms.len(), STEPS);
    }
}
