//! `trawl top`: rates, drops, verdicts and flows of interfaces as they change.

mod order;
mod redirects;
mod view;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use trawl_bpf::{bpffs, statistics};
use trawl_sys::events::Signals;
use trawl_sys::keyboard::Keyboard;
use trawl_sys::netns::Namespace;
use trawl_sys::privilege::Kept;
use trawl_sys::{Error, Result, events};
use trawl_view::record::PacketView;
use trawl_view::stat::{Counted, Flow, Interface, Statistics};

use crate::figures::{self, Counters, RuleCounters, Softnet};
use crate::libpcap::LibpcapArg;
use crate::live::{self, Viewer, Wanted};
use crate::netns::NetnsArg;
use crate::terminal;
use crate::units;
use order::{Key, Order};
use redirects::{RedirectRates, Redirects};
use view::{Page, Screen};

/// Shows live rates, drops and where they happen, verdicts, XDP run time and top flows
///
/// Without -i the counters of all interfaces are shown; with -i packets are captured as well, for verdicts, protocols
/// and flows. Keys: s changes the order of all tables, r reverses it, x shows redirects and exceptions, / filters, p pauses,
/// the arrows scroll, h shows help, q ends it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Capture on this interface too, NAME or NAMESPACE:NAME; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF")]
    interfaces: Vec<String>,
    #[command(flatten)]
    netns: NetnsArg,
    /// Time between two looks
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "1s")]
    interval: Duration,
    /// Look once, over one interval
    #[arg(long)]
    once: bool,
    /// Print JSON, one object each time
    #[arg(long)]
    json: bool,
    /// What is shown at first: all, or what the XDP tracepoints tell of redirects, exceptions, devmaps and cpumaps
    #[arg(long, value_enum, default_value_t = Page::Overview)]
    page: Page,
    /// What interfaces, programs, protocols and flows are sorted by at first
    #[arg(long, value_enum, value_name = "KEY", default_value_t = Key::Rate)]
    sort: Key,
    /// Flows to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Which packets are captured, as tcpdump takes it
    #[arg(
        value_name = "EXPRESSION",
        trailing_var_arg = true,
        requires = "interfaces"
    )]
    expression: Vec<String>,
    #[command(flatten)]
    libpcap: LibpcapArg,
}

/// One look: what happened in an interval.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Look {
    pub seconds: f64,
    pub interfaces: Vec<Rates>,
    /// In this interval, on all CPUs.
    pub softnet: Softnet,
    pub xdp_programs: Vec<ProgramRates>,
    pub guard_rules: Vec<RuleCounters>,
    /// What the XDP tracepoints told of the whole machine; absent without the right to watch them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirects: Option<Vec<RedirectRates>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captured: Option<Captured>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Rates {
    pub interface: String,
    pub rx_packets_per_second: f64,
    pub rx_bits_per_second: f64,
    pub rx_dropped: u64,
    pub rx_errors: u64,
    pub tx_packets_per_second: f64,
    pub tx_bits_per_second: f64,
    pub tx_dropped: u64,
    pub tx_errors: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct ProgramRates {
    pub interface: String,
    pub id: u32,
    pub name: String,
    pub runs_per_second: f64,
    pub nanoseconds_per_run: f64,
    /// Of one CPU, in per cent.
    pub cpu_percent: f64,
}

/// What the capture saw in the interval.
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
        view::Shown {
            page: self.page,
            order: Order {
                key: self.sort,
                reverse: false,
            },
            ..view::Shown::default()
        }
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    args.libpcap.choose();
    // Without the right to, run times stay zero.
    let _run_times = statistics::enable().ok();
    let places = looked_at(&args)?;
    // Without the right to, the page is empty and says so.
    let redirects = Redirects::watch();
    if args.page == Page::Redirects
        && let Err(error) = redirects
    {
        return Err(error);
    }
    let wants_screen = !args.once && !args.json && terminal::stdout_is_terminal();
    let mut top = Top {
        places,
        before: Counters::default(),
        since: Instant::now(),
        statistics: Statistics::of_a_view(),
        lost: (0, 0),
        looks: 0,
        screen: wants_screen
            .then(|| Screen::open(args.shown()))
            .transpose()?,
        keyboard: wants_screen.then(Keyboard::open).transpose()?,
        history: VecDeque::new(),
        failed: None,
        redirects: redirects.ok(),
        args: &args,
    };
    top.before = top.read()?;
    // Where /sys hides it, other processes lead to it, which must not be looked at from then on.
    let _ = bpffs::hold();
    if args.interfaces.is_empty() {
        let signals = Signals::watch()?;
        let takes = Kept {
            user: None,
            capabilities: figures::TAKES,
        };
        takes.confine()?;
        while top.rest() {
            events::wait(
                &[std::os::fd::AsFd::as_fd(&signals)],
                Duration::from_millis(20),
            )?;
            if signals.next().is_some() {
                break;
            }
        }
    } else {
        let wanted = Wanted {
            interfaces: args.interfaces.clone(),
            netns: args.netns.as_deref().map(str::to_owned),
            filter: args.expression.clone(),
            keeps: figures::TAKES,
            ..Wanted::default()
        };
        live::run(&wanted, &mut top)?;
    }
    match top.failed.take() {
        Some(error) => Err(error),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// A namespace whose counters are shown.
struct Looked {
    /// As it was named; nothing for trawl's own.
    name: Option<String>,
    namespace: Option<Namespace>,
    /// Names and patterns of the interfaces that are meant; none for all.
    interfaces: Vec<String>,
}

/// Where counters are read: in the order in which the namespaces are named.
fn looked_at(args: &Args) -> Result<Vec<Looked>> {
    let netns = args.netns.as_deref();
    let mut all: Vec<Looked> = Vec::new();
    let mut add = |name: Option<&str>, interface: Option<&str>| -> Result<()> {
        let known = all.iter().position(|one| one.name.as_deref() == name);
        let at = known.unwrap_or(all.len());
        if known.is_none() {
            all.push(Looked {
                name: name.map(str::to_owned),
                namespace: name.map(Namespace::open).transpose()?,
                interfaces: Vec::new(),
            });
        }
        all[at].interfaces.extend(interface.map(str::to_owned));
        Ok(())
    };
    for text in &args.interfaces {
        match text.split_once(':') {
            Some((inside, interface)) => add(Some(inside), Some(interface))?,
            None => add(netns, Some(text))?,
        }
    }
    if args.interfaces.is_empty() {
        add(netns, None)?;
    }
    for one in &mut all {
        // All interfaces are meant then.
        if one.interfaces.iter().any(|name| name == "any") {
            one.interfaces.clear();
        }
    }
    Ok(all)
}

impl Looked {
    fn counters(&self) -> Result<Counters> {
        Counters::read(self.namespace.as_ref(), &self.interfaces)
    }

    /// An interface as -i takes it.
    fn label(&self, interface: &mut String) {
        if let Some(name) = &self.name {
            interface.insert_str(0, &format!("{name}:"));
        }
    }
}

/// What is kept between two looks.
struct Top<'a> {
    args: &'a Args,
    places: Vec<Looked>,
    before: Counters,
    since: Instant,
    statistics: Statistics,
    /// Packets that the capture had lost, at the last look and now.
    lost: (u64, u64),
    looks: u64,
    screen: Option<Screen>,
    keyboard: Option<Keyboard>,
    /// Received packets a second of all interfaces, at each look.
    history: VecDeque<u64>,
    failed: Option<Error>,
    redirects: Option<Redirects>,
}

/// Looks that the history holds.
const HISTORY: usize = 240;

impl Viewer for Top<'_> {
    fn packet(&mut self, packet: &PacketView<'_>) {
        self.statistics.add(packet);
    }

    fn rest(&mut self) -> bool {
        if self.keys() {
            return false;
        }
        if self.since.elapsed() < self.args.interval {
            return true;
        }
        match self.look() {
            Ok(wanted) => wanted && !self.args.once,
            Err(error) => {
                self.failed = Some(error);
                false
            }
        }
    }

    fn figures(&mut self, summary: &trawl_tap::summary::Summary) {
        self.lost.1 = summary.total.lost.values().sum();
    }

    fn interval(&self) -> Option<Duration> {
        Some(self.args.interval)
    }
}

impl Top<'_> {
    fn read(&self) -> Result<Counters> {
        if let [place] = self.places.as_slice() {
            return place.counters();
        }
        let mut all = Counters::default();
        for place in &self.places {
            let mut here = place.counters()?;
            let programs = here.xdp_programs.iter_mut().map(|one| &mut one.interface);
            let interfaces = here.interfaces.iter_mut().map(|one| &mut one.interface);
            programs
                .chain(interfaces)
                .for_each(|name| place.label(name));
            all.softnet = here.softnet;
            all.interfaces.append(&mut here.interfaces);
            all.xdp_programs.append(&mut here.xdp_programs);
            all.guard_rules.append(&mut here.guard_rules);
        }
        Ok(all)
    }

    /// Takes what was typed; true if it is to end.
    fn keys(&mut self) -> bool {
        let (Some(keyboard), Some(screen)) = (&self.keyboard, &mut self.screen) else {
            return false;
        };
        screen.take(std::iter::from_fn(|| keyboard.key()))
    }

    /// Shows what happened since the last look; false if nobody reads any more.
    fn look(&mut self) -> Result<bool> {
        let now = self.read()?;
        let seconds = self.since.elapsed().as_secs_f64().max(1e-9);
        let order = match &self.screen {
            Some(screen) => screen.order(),
            None => self.args.shown().order,
        };
        let mut look = self.difference(&now, seconds);
        if let Some(captured) = &mut look.captured {
            order.fill(captured, &self.statistics, self.args.top);
        }
        look.redirects = self
            .redirects
            .as_mut()
            .map(|redirects| redirects.look(seconds));
        order.apply(&mut look);
        self.before = now;
        self.since = Instant::now();
        self.statistics = Statistics::of_a_view();
        self.lost.0 = self.lost.1;
        self.looks += 1;
        let packets: f64 = look
            .interfaces
            .iter()
            .map(|rates| rates.rx_packets_per_second)
            .sum();
        self.history.push_back(packets as u64);
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        if self.args.json {
            return terminal::write_to_reader(&terminal::json_line(&look)?);
        }
        let history: Vec<u64> = self.history.iter().copied().collect();
        match &mut self.screen {
            Some(screen) => screen.show(look, &history),
            None => {
                let text = view::text(&look, &history, &self.args.shown());
                terminal::write_to_reader(&terminal::printable(&text))
            }
        }
    }

    fn difference(&self, now: &Counters, seconds: f64) -> Look {
        let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
        let mut look = Look {
            seconds,
            softnet: Softnet {
                processed: now
                    .softnet
                    .processed
                    .saturating_sub(self.before.softnet.processed),
                dropped: now
                    .softnet
                    .dropped
                    .saturating_sub(self.before.softnet.dropped),
                time_squeezed: now
                    .softnet
                    .time_squeezed
                    .saturating_sub(self.before.softnet.time_squeezed),
            },
            guard_rules: now.guard_rules.clone(),
            ..Look::default()
        };
        for new in &now.interfaces {
            let old = self
                .before
                .interfaces
                .iter()
                .find(|old| old.interface == new.interface);
            let Some(old) = old else { continue };
            look.interfaces.push(Rates {
                interface: new.interface.clone(),
                rx_packets_per_second: rate(new.rx_packets, old.rx_packets),
                rx_bits_per_second: rate(new.rx_bytes, old.rx_bytes) * 8.0,
                rx_dropped: new.rx_dropped.saturating_sub(old.rx_dropped),
                rx_errors: new.rx_errors.saturating_sub(old.rx_errors),
                tx_packets_per_second: rate(new.tx_packets, old.tx_packets),
                tx_bits_per_second: rate(new.tx_bytes, old.tx_bytes) * 8.0,
                tx_dropped: new.tx_dropped.saturating_sub(old.tx_dropped),
                tx_errors: new.tx_errors.saturating_sub(old.tx_errors),
            });
        }
        for new in &now.xdp_programs {
            let old = self.before.xdp_programs.iter().find(|old| old.id == new.id);
            let (runs, time) = old.map_or((0, 0), |old| (old.runs, old.run_time_ns));
            let spent = new.run_time_ns.saturating_sub(time) as f64;
            let count = new.runs.saturating_sub(runs);
            look.xdp_programs.push(ProgramRates {
                interface: new.interface.clone(),
                id: new.id,
                name: new.name.clone(),
                runs_per_second: count as f64 / seconds,
                nanoseconds_per_run: spent / count.max(1) as f64,
                cpu_percent: spent / seconds / 1e7,
            });
        }
        if !self.args.interfaces.is_empty() {
            let report = self.statistics.report(Vec::new(), 0);
            look.captured = Some(Captured {
                packets: report.packets,
                lost: self.lost.1.saturating_sub(self.lost.0),
                verdicts: report.verdicts,
                protocols: report.protocols,
                flows: Vec::new(),
            });
        }
        look
    }
}
