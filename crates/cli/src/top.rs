//! `trawl top`: rates, drops, verdicts and flows of interfaces as they change.

mod view;

use std::cmp::{Ordering, Reverse};
use std::collections::{HashSet, VecDeque};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use trawl_capture::traffic::{TrafficWatch, cgroups};
use trawl_explain::slow::worst::{SocketFinding, Worst};
use trawl_figures::counters::{self, ProgramCounters, RuleCounters, Softnet};
use trawl_figures::rates::{self, TrafficRates};
use trawl_figures::redirects::{self, RedirectRates, Redirects};
use trawl_figures::{Counters, NamespaceInterfaces};
use trawl_program::pins;
use trawl_sys::events::{self, Signals};
use trawl_sys::keyboard::Keyboard;
use trawl_sys::process::cgroup::Root;
use trawl_sys::rights::privilege::KeptPrivileges;
use trawl_sys::{Error, Result};
use trawl_view::record::PacketView;
use trawl_view::rows;
use trawl_view::stat::{Count, Counted, Flow, FlowKey, Interface, Statistics, bits, whole};
use view::{Page, Screen};

use crate::args::{LibpcapArg, NetnsArg};
use crate::json;
use crate::{terminal, units};
use trawl_source::live::{self, LiveOptions, Viewer};

/// Shows live rates, drops, verdicts, XDP run time and top flows
///
/// Without -i the counters of all interfaces are shown; with -i packets are captured as well, for verdicts, protocols
/// and flows. A line names the worst connection, if one is slow by the verdicts of trawl slow. Keys: s changes the order
/// of all tables, r reverses it, x shows redirects and exceptions, w processes and containers, / filters, p pauses, the
/// arrows scroll, h shows help, q ends it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Capture on this interface too, NAME or NAMESPACE:NAME; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF", add = crate::completion::interfaces())]
    interfaces: Vec<String>,
    #[command(flatten)]
    netns: NetnsArg,
    /// Time between two frames
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "1s")]
    interval: Duration,
    /// Show one frame, over one interval
    #[arg(long)]
    once: bool,
    /// Print JSON, one object for each frame
    #[arg(long)]
    json: bool,
    /// First page: the overview; redirects, exceptions, devmaps and cpumaps by the XDP tracepoints; or the packets of
    /// each process and container at its sockets, of the whole machine without -i and --netns
    #[arg(long, value_enum, default_value_t = Page::Overview)]
    page: Page,
    /// Initial order of interfaces, programs, protocols and flows
    #[arg(long, value_enum, value_name = "KEY", default_value_t = Key::Rate)]
    sort: Key,
    /// Flows to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Filter for captured packets, in tcpdump's syntax
    #[arg(value_name = "EXPRESSION", trailing_var_arg = true, requires = "interfaces")]
    expression: Vec<String>,
    #[command(flatten)]
    libpcap: LibpcapArg,
}

/// One frame: the events of an interval.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Frame {
    pub seconds: f64,
    pub interfaces: Vec<Rates>,
    /// Work in this interval, on all CPUs.
    pub softnet: Softnet,
    pub xdp_programs: Vec<ProgramRates>,
    pub guard_rules: Vec<RuleCounters>,
    /// Counts of the XDP tracepoints for the whole machine; absent without the right to watch them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirects: Option<Vec<RedirectRates>>,
    /// The most important verdict about connections; absent if there is none, or no connection can be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst_connection: Option<SocketFinding>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captured: Option<Captured>,
    /// The traffic of processes; absent while their page is not shown.
    #[serde(flatten)]
    pub traffic: Option<TrafficRates>,
    /// The reason why processes cannot be found.
    #[serde(skip)]
    pub no_traffic: Option<String>,
}

rows! {
    row: Rates((String, impl Fn(usize, usize) -> u64, f64) as (interface, grown, seconds)) {
        interface: String = interface, "interface" -15 row.interface;
        rx_packets_per_second: f64 = grown(0, 0) as f64 / seconds,
            "in pkt/s" 9 whole(row.rx_packets_per_second);
        rx_bits_per_second: f64 = grown(0, 1) as f64 / seconds * 8.0, "in" 14 bits(row.rx_bits_per_second);
        rx_dropped: u64 = grown(0, 2), "drops" 6 row.rx_dropped + row.rx_errors;
        rx_errors: u64 = grown(0, 3);
        tx_packets_per_second: f64 = grown(1, 0) as f64 / seconds,
            "out pkt/s" 9 whole(row.tx_packets_per_second);
        tx_bits_per_second: f64 = grown(1, 1) as f64 / seconds * 8.0, "out" 14 bits(row.tx_bits_per_second);
        tx_dropped: u64 = grown(1, 2), "drops" 6 row.tx_dropped + row.tx_errors;
        tx_errors: u64 = grown(1, 3);
    }
}

rows! {
    row: ProgramRates((String, &ProgramCounters, u64, f64, f64) as (interface, new, runs, spent, seconds)) {
        interface: String = interface;
        id: u32 = new.id;
        name: String = new.name.clone(),
            "XDP program" -20 row.name, "interface" -16 row.interface;
        runs_per_second: f64 = runs as f64 / seconds, "runs/s" 12 whole(row.runs_per_second);
        nanoseconds_per_run: f64 = spent / runs.max(1) as f64,
            "ns/run" 9 format!("{:.1}", row.nanoseconds_per_run);
        /// CPU time of the program, in per cent of one CPU.
        cpu_percent: f64 = spent / seconds / 1e7, "CPU" 7 format!("{:.1} %", row.cpu_percent);
    }
}

/// Packets that the capture saw in the interval.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Captured {
    pub packets: u64,
    pub lost: u64,
    pub verdicts: Vec<Interface>,
    pub protocols: Vec<Counted>,
    pub flows: Vec<Flow>,
}

impl Args {
    fn shown(&self) -> view::Shown {
        view::Shown { page: self.page, order: Order { key: self.sort, reverse: false }, ..view::Shown::default() }
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    args.libpcap.choose();
    // Without the privilege, run times stay zero.
    let _run_times = trawl_figures::measure_run_times();
    let selected = NamespaceInterfaces::of(&args.interfaces, args.netns.as_deref())?;
    // Without the privilege, the page shows no rows but the reason.
    let redirects = Redirects::watch();
    if args.page == Page::Redirects
        && let Err(error) = redirects
    {
        return Err(error);
    }
    let wants_screen = !args.once && !args.json && terminal::stdout_is_terminal();
    // The measures take time to begin, and one short frame has no verdict.
    let has_verdicts = (wants_screen || args.page == Page::Overview) && (!args.once || args.interval >= SHORTEST_LOOK);
    let namespaces = selected.iter().map(NamespaceInterfaces::number).collect::<Result<HashSet<u32>>>()?;
    // A kernel that refuses the programs, and a user without rights, have no verdicts.
    let worst = has_verdicts.then(|| Worst::attach(namespaces).ok()).flatten();
    let mut top = Top {
        selected,
        before: Counters::default(),
        since: Instant::now(),
        statistics: Statistics::of_a_view(),
        lost: (0, 0),
        screen: wants_screen.then(|| Screen::open(args.shown())).transpose()?,
        keyboard: wants_screen.then(Keyboard::open).transpose()?,
        history: VecDeque::new(),
        failed: None,
        redirects: redirects.ok(),
        worst,
        cgroups: cgroups(),
        traffic: None,
        args: &args,
    };
    if args.page == Page::Processes {
        top.watch_traffic().as_ref().map_err(Error::clone)?;
    }
    top.before = Counters::read_all(&top.selected)?;
    // The pins' file system is opened now. If /sys hides it, it can only be reached through other processes, which a
    // confined process may not inspect.
    pins::hold();
    if args.interfaces.is_empty() {
        let signals = Signals::watch()?;
        let privileges = KeptPrivileges { user: None, capabilities: counters::NEEDED_CAPABILITIES };
        privileges.confine()?;
        let keys = std::io::stdin();
        while top.idle() {
            let until_due = top.next().saturating_duration_since(Instant::now());
            let mut wakes = vec![signals.as_fd()];
            // Processes are described while they run.
            let watch = top.traffic.as_ref().and_then(|watch| watch.as_ref().ok());
            wakes.extend(watch.map(|watch| watch.owners().as_fd()));
            wakes.extend(top.has_keyboard().then(|| keys.as_fd()));
            events::wait(&wakes, until_due)?;
            if signals.next().is_some() {
                break;
            }
        }
    } else {
        let options = LiveOptions {
            interfaces: args.interfaces.clone(),
            netns: args.netns.as_deref().map(str::to_owned),
            filter: args.expression.clone(),
            keeps: counters::NEEDED_CAPABILITIES,
            ..LiveOptions::default()
        };
        live::run(&options, &mut top, crate::report_unless_on_screen)?;
    }
    match top.failed.take() {
        Some(error) => Err(error),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// State between two frames.
struct Top<'a> {
    args: &'a Args,
    selected: Vec<NamespaceInterfaces>,
    before: Counters,
    since: Instant,
    statistics: Statistics,
    /// Packets that the capture had lost, at the last frame and now.
    lost: (u64, u64),
    screen: Option<Screen>,
    keyboard: Option<Keyboard>,
    /// Received packets a second of all interfaces, at each frame.
    history: VecDeque<u64>,
    failed: Option<Error>,
    redirects: Option<Redirects>,
    worst: Option<Worst>,
    /// The root of the cgroups, opened at the start: a confined process may not open it.
    cgroups: Result<Root>,
    /// The programs that count the packets of processes, attached while their page is shown.
    traffic: Option<Result<TrafficWatch>>,
}

/// Shortest duration of a single frame with a verdict about connections.
const SHORTEST_LOOK: Duration = Duration::from_secs(1);
/// Number of frames in the history.
const HISTORY: usize = 240;

impl Viewer for Top<'_> {
    fn packet(&mut self, packet: &PacketView<'_>) {
        self.statistics.add(packet);
    }

    fn idle(&mut self) -> bool {
        if self.handle_keys() {
            return false;
        }
        if let Some(Ok(watch)) = &mut self.traffic {
            watch.refresh();
        }
        let is_shown = match self.look() {
            Ok(()) if self.since.elapsed() < self.args.interval => return true,
            Ok(()) => self.show_frame(),
            Err(error) => Err(error),
        };
        match is_shown {
            Ok(is_read) => is_read && !self.args.once,
            Err(error) => {
                self.failed = Some(error);
                false
            }
        }
    }

    fn figures(&mut self, summary: &trawl_capture::summary::Summary) {
        self.lost.1 = summary.total.lost.values().sum();
    }

    fn due(&self) -> Option<Instant> {
        Some(self.next())
    }

    fn has_keyboard(&self) -> bool {
        self.keyboard.as_ref().is_some_and(Keyboard::is_there)
    }

    fn interval(&self) -> Option<Duration> {
        Some(self.args.interval)
    }
}

impl Top<'_> {
    /// Returns the time of the next frame or look at connections.
    fn next(&self) -> Instant {
        let frame = self.since + self.args.interval;
        self.worst.as_ref().map_or(frame, |worst| frame.min(worst.due()))
    }

    /// Looks at the connections if it is time.
    fn look(&mut self) -> Result<()> {
        match &mut self.worst {
            Some(worst) if worst.due() <= Instant::now() => worst.look(),
            _ => Ok(()),
        }
    }

    /// Handles typed keys; returns true to end the view.
    fn handle_keys(&mut self) -> bool {
        let (Some(keyboard), Some(screen)) = (&self.keyboard, &mut self.screen) else {
            return false;
        };
        screen.handle_keys(std::iter::from_fn(|| keyboard.key()))
    }

    /// Shows the changes since the last frame; returns false once the reader has closed the pipe.
    fn show_frame(&mut self) -> Result<bool> {
        let now = Counters::read_all(&self.selected)?;
        let seconds = self.since.elapsed().as_secs_f64().max(1e-9);
        let order = match &self.screen {
            Some(screen) => screen.order(),
            None => self.args.shown().order,
        };
        let mut frame = self.difference(&now, seconds);
        if let Some(captured) = &mut frame.captured {
            order.fill(captured, &self.statistics, self.args.top);
        }
        frame.redirects = self.redirects.as_mut().map(|redirects| redirects.update(seconds));
        frame.worst_connection = self.worst.as_ref().and_then(Worst::found).cloned();
        match self.traffic(seconds) {
            Some(Ok(rates)) => frame.traffic = Some(rates),
            Some(Err(error)) => frame.no_traffic = Some(error.to_string()),
            None => {}
        }
        order.apply(&mut frame);
        self.before = now;
        self.since = Instant::now();
        self.statistics = Statistics::of_a_view();
        self.lost.0 = self.lost.1;
        let packets: f64 = frame.interfaces.iter().map(|rates| rates.rx_packets_per_second).sum();
        self.history.push_back(packets as u64);
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        if self.args.json {
            return terminal::write_to_reader(&json::line(&frame)?);
        }
        let history: Vec<u64> = self.history.iter().copied().collect();
        match &mut self.screen {
            Some(screen) => screen.show(frame, &history),
            None => {
                let text = view::text(&frame, &history, &self.args.shown());
                terminal::write_to_reader(&terminal::printable(&text))
            }
        }
    }

    fn watch_traffic(&mut self) -> &mut Result<TrafficWatch> {
        let cgroups = &self.cgroups;
        self.traffic.get_or_insert_with(|| {
            let cgroups = cgroups.as_ref().map_err(Error::clone)?.try_clone();
            TrafficWatch::attach(cgroups.map_err(|e| Error::os("cannot hold a cgroup", e))?)
        })
    }

    /// Returns the rates of processes if their page is shown.
    fn traffic(&mut self, seconds: f64) -> Option<Result<TrafficRates>> {
        let page = self.screen.as_ref().map_or(self.args.page, Screen::page);
        if page != Page::Processes {
            self.traffic = None;
            return None;
        }
        let everywhere = self.args.interfaces.is_empty() && self.args.netns.is_none();
        let sites = if everywhere { None } else { Some(NamespaceInterfaces::sites(&self.selected)) };
        let sites = sites.transpose();
        let watch = self.watch_traffic().as_mut().map_err(|error| error.clone());
        Some(watch.and_then(|watch| Ok(TrafficRates::new(watch.take(sites?.as_ref())?, seconds))))
    }

    fn difference(&self, now: &Counters, seconds: f64) -> Frame {
        // The names of interfaces have a prefix only if there are several namespaces.
        let named = |netns: &str, interface: &str| match self.selected.len() {
            1 => interface.to_owned(),
            _ => counters::label(netns, interface),
        };
        let interfaces = now.interfaces.iter().filter_map(|new| {
            let mut before = self.before.interfaces.iter();
            let old = before.find(|old| (&old.netns, &old.interface) == (&new.netns, &new.interface))?.sides();
            let new_sides = new.sides();
            let grown = |side: usize, counter: usize| new_sides[side][counter].saturating_sub(old[side][counter]);
            Some(Rates::new((named(&new.netns, &new.interface), grown, seconds)))
        });
        let programs = now.xdp_programs.iter().map(|new| {
            let old = self.before.xdp_programs.iter().find(|old| old.id == new.id);
            let (runs, time) = old.map_or((0, 0), |old| (old.runs, old.run_time_ns));
            let spent = new.run_time_ns.saturating_sub(time) as f64;
            let runs = new.runs.saturating_sub(runs);
            ProgramRates::new((named(&new.netns, &new.interface), new, runs, spent, seconds))
        });
        let captured = (!self.args.interfaces.is_empty()).then(|| {
            let report = self.statistics.report(Vec::new(), 0);
            Captured {
                packets: report.packets,
                lost: self.lost.1.saturating_sub(self.lost.0),
                verdicts: report.verdicts,
                protocols: report.protocols,
                flows: Vec::new(),
            }
        });
        Frame {
            seconds,
            softnet: now.softnet.since(self.before.softnet),
            guard_rules: now.guard_rules.clone(),
            interfaces: interfaces.collect(),
            xdp_programs: programs.collect(),
            captured,
            ..Frame::default()
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Key {
    /// Packets a second; of programs, runs
    #[default]
    Rate,
    /// Bits a second; of programs, CPU time
    Bits,
    /// Drops, then packets
    Drops,
    Name,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    pub key: Key,
    /// Sorts the smallest first.
    pub reverse: bool,
}

impl Order {
    pub fn next(self) -> Self {
        let key = match self.key {
            Key::Rate => Key::Bits,
            Key::Bits => Key::Drops,
            Key::Drops => Key::Name,
            Key::Name => Key::Rate,
        };
        Self { key, ..self }
    }

    pub fn name(self) -> String {
        let word = match self.key {
            Key::Rate => "rate",
            Key::Bits => "bits",
            Key::Drops => "drops",
            Key::Name => "name",
        };
        if self.reverse { format!("{word}, reversed") } else { word.to_owned() }
    }

    /// Sorts rows: the largest first, names from a to z, unless reversed.
    fn sort<T>(self, rows: &mut [T], number: impl Fn(&T) -> f64, name: impl Fn(&T) -> String) {
        rows.sort_by(|a, b| {
            let names = name(a).cmp(&name(b));
            let by = match self.key {
                Key::Name => Ordering::Equal,
                _ => number(b).total_cmp(&number(a)),
            };
            if self.reverse { by.then(names).reverse() } else { by.then(names) }
        });
    }

    /// Adds the `top` first flows of the statistics in this order.
    pub fn fill(self, captured: &mut Captured, statistics: &Statistics, top: usize) {
        let number = |count: Count| match self.key {
            Key::Bits => count.bytes,
            Key::Name => 0,
            Key::Rate | Key::Drops => count.packets,
        };
        captured.flows = if self.reverse {
            statistics.flows_by(top, |key: &FlowKey, count| Reverse((Reverse(number(count)), *key)))
        } else {
            statistics.flows_by(top, |key: &FlowKey, count| (Reverse(number(count)), *key))
        };
    }

    pub fn apply(self, frame: &mut Frame) {
        let key = self.key;
        self.sort(
            &mut frame.interfaces,
            |one| match key {
                Key::Bits => one.rx_bits_per_second + one.tx_bits_per_second,
                Key::Drops => (one.rx_dropped + one.rx_errors + one.tx_dropped + one.tx_errors) as f64,
                Key::Rate | Key::Name => one.rx_packets_per_second + one.tx_packets_per_second,
            },
            |one| one.interface.clone(),
        );
        self.sort(
            &mut frame.xdp_programs,
            |one| match key {
                Key::Bits => one.cpu_percent,
                _ => one.runs_per_second,
            },
            |one| one.name.clone(),
        );
        if let Some(rows) = &mut frame.redirects {
            self.sort(
                rows,
                |row| match key {
                    Key::Drops => row.rates.drops as f64,
                    _ => row.rates.packets as f64,
                },
                RedirectRates::label,
            );
        }
        if let Some(TrafficRates { processes, containers }) = &mut frame.traffic {
            for rows in [processes, containers] {
                self.sort(
                    rows,
                    |one| match key {
                        Key::Bits => one.rx_bits_per_second + one.tx_bits_per_second,
                        _ => one.rx_packets_per_second + one.tx_packets_per_second,
                    },
                    rates::Rates::label,
                );
            }
        }
        if let Some(captured) = &mut frame.captured {
            let number = |packets: u64, bytes: u64| match key {
                Key::Bits => bytes as f64,
                _ => packets as f64,
            };
            self.sort(&mut captured.protocols, |one| number(one.packets, one.bytes), |one| one.name.clone());
            self.sort(&mut captured.flows, |one| number(one.packets, one.bytes), trawl_view::stat::Flow::label);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rates;
    use super::*;

    fn names(key: Key, reverse: bool) -> String {
        let rates = |name: &str, packets: f64, bits: f64, dropped: u64| Rates {
            interface: name.to_owned(),
            rx_packets_per_second: packets,
            tx_bits_per_second: bits,
            rx_dropped: dropped,
            ..Rates::default()
        };
        let mut frame = Frame {
            interfaces: vec![rates("b", 1.0, 900.0, 5), rates("c", 3.0, 20.0, 0), rates("a", 2.0, 20.0, 7)],
            ..Frame::default()
        };
        Order { key, reverse }.apply(&mut frame);
        frame.interfaces.iter().map(|one| one.interface.as_str()).collect()
    }

    #[test]
    fn each_key_sorts_and_can_be_reversed() {
        assert_eq!(names(Key::Rate, false), "cab");
        assert_eq!(names(Key::Bits, false), "bac");
        assert_eq!(names(Key::Drops, false), "abc");
        assert_eq!(names(Key::Name, false), "abc");
        assert_eq!(names(Key::Rate, true), "bac");
        assert_eq!(names(Key::Name, true), "cba");
    }

    #[test]
    fn all_keys_come_in_turn() {
        let mut order = Order::default();
        let words: Vec<String> = (0..4)
            .map(|_| {
                order = order.next();
                order.name()
            })
            .collect();
        assert_eq!(words, ["bits", "drops", "name", "rate"]);
    }
}
