//! A capture from beginning to end, a type for each phase: `Attached` has its taps and all rights, `Confined` only the
//! rights it still needs, and `Running` moves records from the rings to the writer until it ends in a summary.

mod join;
mod presence;
mod promiscuous;
mod rounds;
mod summary;
mod tend;

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use trawl_attach::card::CardEffects;
use trawl_bpf::process_watch::KnownNamespaces;
use trawl_bpf::{bpffs, deadline};
use trawl_packet::pcapng;
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::report::{Firing, StageReport};
use trawl_pipeline::{Feed, Stage, Writer};
use trawl_ring::Geometry;
use trawl_sys::clock::StepDetector;
use trawl_sys::events::Signals;
use trawl_sys::netns::Namespace;
use trawl_sys::process::warden::Warden;
use trawl_sys::rights::privilege::{Capabilities, KeptPrivileges, User};
use trawl_sys::{Error, Result, clock};

use crate::AttachedTap;
use crate::account::account_of_ring;
use crate::assembly::{Assembly, HostFeatures};
use crate::capture_site::CaptureSite;
use crate::dedup::DedupStage;
use crate::event::{Event, Gap, Gone};
use crate::merge::Merge;
use crate::once::Once;
use crate::point::Point;
use crate::process::{ProcessStage, Processes};
use crate::second::SecondLook;
use crate::summary::Summary;
use crate::taps::facts::ReadsBy;
use crate::taps::for_site;
use crate::taps::select::of_capture;
use crate::trigger::{self, Trigger};
use presence::Presence;
use promiscuous::Promiscuous;
use trawl_plan::TapChoice;
use trawl_plan::options::{CaptureOptions, TimeSource};

/// Reason for which a capture ended.
#[derive(Clone, Debug)]
pub enum Ended {
    Signal,
    Duration,
    Count,
    /// The output reached its size limit.
    Size,
    /// The requested number of events is over.
    Triggers,
    /// The command whose packets are captured ended.
    Command,
    /// All interfaces are gone; the last one's end.
    NoInterface(Gone),
    /// No tap sees packets any more, and none could be re-attached.
    Blind,
    Output(Error),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal => f.write_str("signal"),
            Self::Command => f.write_str("command"),
            Self::Duration => f.write_str("duration"),
            Self::Count => f.write_str("count"),
            Self::Size => f.write_str("size"),
            Self::Triggers => f.write_str("triggers"),
            Self::NoInterface(gone) => f.write_str(gone.name()),
            Self::Blind => f.write_str("blind"),
            Self::Output(error) => write!(f, "{error}"),
        }
    }
}

/// Receives the events of a capture.
pub trait Observer {
    fn event(&mut self, event: &Event);

    /// Called for an event shown with -v only.
    fn detail(&mut self, _event: &Event) {}

    /// Called once all taps, or the taps of later interfaces, are attached and record packets.
    fn started(&mut self, points: &[Point]);

    /// Returns wanted interfaces that are not among the known ones. Called if interfaces may join. The unchanged
    /// namespaces contain no new interfaces.
    fn appeared(&mut self, _known: &[CaptureSite], _unchanged: &[Option<Namespace>]) -> Vec<CaptureSite> {
        Vec::new()
    }

    /// Called once the taps are attached, before they see packets that count.
    fn attached(&mut self, _attached: &Attached) -> Result<()> {
        Ok(())
    }

    /// Returns network namespaces that the taps are to cover from now on.
    fn entered(&mut self) -> Vec<Namespace> {
        Vec::new()
    }

    /// Returns true if `appeared` and `entered` must be called at once.
    fn is_urgent(&mut self) -> bool {
        false
    }

    /// Called for the signal of triggers, if it is no event of the capture's own.
    fn triggered(&mut self) {}

    /// Returns true if the capture is to end.
    fn is_over(&mut self) -> bool {
        false
    }

    /// Returns the longest time until the next call of `is_over`.
    fn attention(&self) -> Duration {
        Duration::MAX
    }

    /// Returns descriptors that become readable once `is_urgent` or `is_over` has a new result, or the writer has
    /// something to do.
    fn wakes(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Returns the interval at which `figures` is called, if at all.
    fn interval(&self) -> Option<Duration> {
        None
    }

    fn figures(&mut self, summary: &Summary);

    /// Called several times a second; `summary` computes the current statistics.
    fn tick(&mut self, _summary: &mut dyn FnMut() -> Summary) {}
}

/// Events of a running capture that its summary contains.
#[derive(Debug, Default)]
struct Past {
    left: CountsOfLeft,
    /// Closed gaps in which packets passed unseen.
    unseen: Vec<Gap>,
    /// Events that started writing.
    fired: Vec<Firing>,
}

/// Counts of removed taps, by hook point.
#[derive(Debug, Default)]
struct CountsOfLeft {
    filtered_out: Vec<(u32, u64)>,
    /// Losses with their reason.
    lost: Vec<(u32, &'static str, u64)>,
}

/// A capture with the rights that it needs to run.
#[derive(Debug)]
pub struct Confined {
    attached: Attached,
    /// True if the process gave up its rights: the warden undoes the capture's changes.
    gave_up_rights: bool,
}

/// Attaches all taps. A failure leaves nothing attached. If the kernel refuses the filter, the taps are attached
/// without it, and packets are filtered in user space.
pub fn attach(
    sites: &[CaptureSite],
    options: &CaptureOptions,
    host: HostFeatures,
    observer: &mut dyn Observer,
) -> Result<Attached> {
    let attached = Planned { sites, options, host }.attach(observer)?;
    observer.attached(&attached)?;
    Ok(attached)
}

impl Attached {
    /// Makes the processes that the filter selects stop as they begin a program in a network namespace that is not
    /// among these. The caller lets them go on.
    pub fn stop_in_unknown_namespaces(&self) -> Result<Option<KnownNamespaces>> {
        let processes = self.assembly.processes.as_ref();
        let known = processes.map(|processes| processes.watch.stop_in_unknown_namespaces());
        known.transpose()
    }

    /// Returns a descriptor that becomes readable once any process executes a program; `None` if the capture does not
    /// know processes.
    pub fn executions(&self) -> Result<Option<OwnedFd>> {
        let processes = self.assembly.processes.as_ref();
        let copied = processes.map(|processes| processes.watch.as_fd().try_clone_to_owned()).transpose();
        copied.map_err(|e| Error::os("cannot watch processes", e))
    }

    /// Returns the warden that cuts files to their last whole block if trawl is killed.
    pub fn files_warden(&mut self) -> &mut Warden {
        &mut self.files
    }

    /// Gives up rights that the running capture does not need, and changes to the user, if given. The warden keeps its
    /// rights and undoes changes at the end. Must be called before threads are started.
    pub fn confine(self, user: Option<User>, besides: Capabilities) -> Result<Confined> {
        let mut capabilities = besides;
        for at in &self.taps {
            capabilities |= at.tap.needed_capabilities();
        }
        // Later interfaces need the same rights to attach.
        if self.options.joins {
            capabilities |= crate::TO_JOIN;
            // Processes lead to the network namespaces of a command. Those of other users wait there, too.
            if self.options.across_namespaces && self.options.process.is_some() {
                capabilities |= Capabilities::SYS_PTRACE | Capabilities::KILL;
            }
        }
        // If /sys hides the BPF file system, only other processes lead to it, and they cannot be inspected from now on.
        let _ = bpffs::hold();
        KeptPrivileges { user, capabilities }.confine()?;
        Ok(Confined { attached: self, gave_up_rights: true })
    }

    /// Keeps all rights, for callers that need them while the capture runs.
    pub fn keep_rights(self) -> Confined {
        Confined { attached: self, gave_up_rights: false }
    }
}

impl Confined {
    pub fn attached(&self) -> &Attached {
        &self.attached
    }

    /// Records until the capture ends.
    pub fn run(mut self, writer: &mut dyn Writer, observer: &mut dyn Observer) -> Result<(Summary, Ended)> {
        let stages = std::mem::take(&mut self.attached.stages);
        Running {
            watched: 0,
            // They were attached before their filters were watched.
            suspect: self.attached.taps.len(),
            clock_offset: self.attached.assembly.rings.clock.offset_to_wall(),
            steps: StepDetector::new(),
            joins: Joins::default(),
            memory: self.attached.assembly.rings.memory(),
            past: Past::default(),
            feed: Feed::new(stages, writer),
            gave_up_rights: self.gave_up_rights,
            capture: self.attached,
            observer,
        }
        .run()
    }
}

/// A capture that records.
struct Running<'r> {
    capture: Attached,
    past: Past,
    feed: Feed<'r>,
    observer: &'r mut dyn Observer,
    gave_up_rights: bool,
    /// Number of taps checked in this turn.
    watched: usize,
    /// Number of taps to check since filters at tc have changed.
    suspect: usize,
    clock_offset: u64,
    /// Detector of steps of the wall clock, after which the file gets the new offset of the clocks.
    steps: StepDetector,
    joins: Joins,
    /// Memory that programs have for records, in bytes.
    memory: usize,
}

/// Time of the next search, and the interfaces not to try again.
#[derive(Debug, Default)]
struct Joins {
    next: Option<Instant>,
    refused: HashSet<(String, u32)>,
    /// True while interfaces wait for others to leave.
    is_full: bool,
}

/// Values on which the counters depend, besides the rings of the first interfaces.
#[derive(Debug, Default)]
struct Current {
    /// Points of interfaces that joined.
    joined: Vec<Point>,
    /// Decisions of the stages, as of the last round.
    report: StageReport,
}

/// A capture whose taps are attached, with all rights of its process.
#[derive(Debug)]
pub struct Attached {
    sites: Vec<CaptureSite>,
    options: CaptureOptions,
    /// Stages in user space between the taps and the writer.
    stages: Vec<Box<dyn Stage>>,
    interfaces: Vec<pcapng::Interface>,
    taps: Vec<AtSite>,
    merge: Merge,
    presence: Presence,
    signals: Signals,
    started: Instant,
    started_wall: u64,
    /// Values that change during the capture, for readers of the counters.
    current: Rc<RefCell<Current>>,
    promiscuous: Promiscuous,
    /// Assembly for later taps. Declared after the taps: its warden may only be dismissed once they are detached.
    assembly: Assembly,
    /// Warden that cuts files. A separate one, because the other undoes its tasks at the end of a capture.
    files: Warden,
}

#[derive(Debug)]
struct AtSite {
    site: usize,
    name: &'static str,
    tap: Box<dyn AttachedTap>,
    health: TapHealth,
}

impl AtSite {
    fn new(site: usize, name: &'static str, tap: Box<dyn AttachedTap>) -> Self {
        Self { site, name, tap, health: TapHealth { saw: clock::wall(), blind: None, waits: false } }
    }
}

/// Health of a tap.
#[derive(Debug)]
struct TapHealth {
    /// Time at which the tap was last known to work, in nanoseconds since 1970.
    saw: u64,
    /// The current gap, and its start.
    blind: Option<(Gap, Instant)>,
    /// True while it waits, without a limit, for a program to trace.
    waits: bool,
}

/// Time limit for the verifier with a filter; after that, packets are filtered in user space.
const MOST_TO_VERIFY: Duration = Duration::from_secs(2);

/// A capture before its taps are attached.
struct Planned<'p> {
    sites: &'p [CaptureSite],
    options: &'p CaptureOptions,
    host: HostFeatures,
}

/// The taps of a capture, and the state of the kernel that belongs to them.
struct AttachedTaps {
    taps: Vec<AtSite>,
    presence: Presence,
    signals: Signals,
    promiscuous: Promiscuous,
    assembly: Assembly,
}

impl Planned<'_> {
    fn attach(self, observer: &mut dyn Observer) -> Result<Attached> {
        let Self { sites, options, .. } = self;
        options.trigger.as_ref().map_or(Ok(()), trigger::check)?;
        let after_kernel = SecondLook::after_kernel(sites, options)?;
        let in_kernel = after_kernel.as_ref().map_or_else(|| options.clone(), |second| second.in_kernel(options));
        let mut attach = || self.attach_taps(&in_kernel, observer);
        let attached = match options.follows() || in_kernel.filter.is_none() {
            // Without a filter nothing is left to user space, and packets to follow are chosen in the kernel or not at
            // all.
            true => attach(),
            false => deadline::limited(MOST_TO_VERIFY, attach),
        };
        let (attached, second) = match (attached, after_kernel) {
            (Ok(attached), None) => (attached, None),
            (Ok(attached), Some(second)) => {
                observer.event(&Event::LongChainsInUserSpace);
                (attached, Some(second))
            }
            (Err(error), _) => {
                let Some(second) = SecondLook::instead_of(&error, sites, options)? else {
                    return Err(error);
                };
                let attached = self.attach_taps(&second.in_kernel(options), observer)?;
                observer.event(&Event::FilteredInUserSpace { why: error.why().to_owned() });
                (attached, Some(second))
            }
        };
        self.begin(attached, second)
    }

    /// Attaches the taps with the options that the kernel carries out.
    fn attach_taps(&self, options: &CaptureOptions, observer: &mut dyn Observer) -> Result<AttachedTaps> {
        let sites = self.sites;
        options.check_cpu()?;
        let signals = Signals::watch_with_trigger()?;
        let mut assembly = Assembly::new(options, self.host.clone(), sites.len())?;
        assembly.expect(sites);
        if let Some(plan) = &options.process {
            assembly.watch_processes(plan)?;
        }
        for site in sites {
            let is_first = options.tap == TapChoice::Xdp
                && matches!(site.interface.xdp_attached(site.namespace.as_ref()), Ok(None));
            let effects =
                if is_first { CardEffects::of_attaching(&site.to_attach()?, options.mode.asked()) } else { None };
            if let Some(effects) = effects {
                observer.event(&Event::TouchesCard {
                    interface: site.label.clone(),
                    effects: effects.to_string(),
                    driver: effects.driver,
                });
            }
        }
        let (mut taps, mut promiscuous) = (Vec::new(), Promiscuous::default());
        for index in 0..sites.len() {
            attach_at(index, sites, &mut assembly, &mut taps, &mut promiscuous)?;
        }
        assembly.settle()?;
        if let Some(tap) = of_capture(options) {
            let attached = tap.attach(0, sites, &mut assembly)?;
            taps.push(AtSite::new(0, tap.name(), attached));
        }
        let mut presence = Presence::default();
        // Interfaces on the path of followed packets may come and go.
        if !options.follows() {
            for (index, site) in sites.iter().enumerate() {
                presence.add(index, site)?;
            }
        }
        if options.once.is_some() {
            assembly.report_unlinked();
        }
        report_events(&mut assembly, observer);
        Ok(AttachedTaps { taps, presence, signals, promiscuous, assembly })
    }

    /// Starts the rings, and puts the stages between them and the writer together.
    fn begin(self, attached: AttachedTaps, second: Option<SecondLook>) -> Result<Attached> {
        let Self { sites, options, .. } = self;
        let AttachedTaps { mut taps, presence, signals, promiscuous, mut assembly } = attached;
        let interfaces = assembly.interface_blocks(sites, 0, options);
        let mut stages: Vec<Box<dyn Stage>> = Vec::new();
        if let Some(mut second) = second {
            second.begin(&assembly.points, interfaces.len());
            stages.push(Box::new(second));
        }
        if let (Some(plan), Some(processes)) = (&options.process, &assembly.processes) {
            stages.push(Box::new(ProcessStage::new(Rc::clone(processes), plan.detail)));
        }
        stages.extend(taps.iter_mut().filter_map(|at| at.tap.stage(&interfaces)));
        if let Some(wait) = options.once {
            let most = options.count.filter(|_| options.dedup.is_none());
            stages.push(Box::new(Once::new(wait, most)));
        }
        if let Some(window) = options.dedup {
            stages.push(Box::new(DedupStage::new(window, options.count)));
        }
        let foreign_clock = options.time == TimeSource::Hardware;
        if let Some(plan) = &options.trigger {
            stages.push(Box::new(Trigger::new(plan, &assembly.points, sites, foreign_clock)?));
        }
        // Before the first packet.
        let started_wall = clock::wall();
        assembly.rings.begin();
        Ok(Attached {
            sites: sites.to_vec(),
            options: options.clone(),
            stages,
            interfaces,
            taps,
            merge: Merge::new(std::mem::take(&mut assembly.rings.streams), foreign_clock),
            presence,
            signals,
            started: Instant::now(),
            started_wall,
            current: Rc::default(),
            promiscuous,
            assembly,
            files: Warden::default(),
        })
    }
}

impl Attached {
    pub fn interfaces(&self) -> &[pcapng::Interface] {
        &self.interfaces
    }

    /// Returns the network namespaces of the interfaces, each once; `None` is the current one.
    pub fn namespaces(&self) -> impl Iterator<Item = Option<&Namespace>> {
        let label = |site: &CaptureSite| site.namespace.as_ref().map(|one| one.label().to_owned());
        let mut known = HashSet::new();
        let sites = self.sites.iter().filter(move |site| known.insert(label(site)));
        sites.map(|site| site.namespace.as_ref())
    }

    /// Returns the memory of each ring, as decided when the taps were attached.
    pub fn geometry(&self) -> Geometry {
        self.assembly.rings.geometry
    }

    /// Returns the programs that find the process of each packet, if the capture has them.
    pub fn processes(&self) -> Option<&Rc<Processes>> {
        self.assembly.processes.as_ref()
    }

    /// Returns true if programs note the rule of nftables that drops each packet.
    pub fn notes_rules(&self) -> bool {
        self.assembly.notes_rules
    }

    /// Returns the hook's name for each interface block.
    pub fn hook_names(&self) -> Vec<String> {
        let mut names = vec![String::new(); self.interfaces.len()];
        for point in self.assembly.points.iter() {
            for interface in &point.interfaces {
                names[*interface as usize].clone_from(&point.hook);
            }
        }
        names
    }

    /// Returns a function that reads the current counters of all interface blocks.
    pub fn accounts(&self) -> Box<dyn Fn() -> Vec<(u32, PacketAccount)>> {
        let points = self.assembly.points.to_vec();
        let current = Rc::clone(&self.current);
        Box::new(move || {
            let Current { joined, report } = &*current.borrow();
            let of = |point: &Point| {
                let first = point.interfaces.first().copied().unwrap_or(0);
                let mut account = account_of_ring(&point.account());
                report.correct(&mut account, &point.interfaces);
                (first, account)
            };
            points.iter().chain(joined).map(of).collect()
        })
    }
}

/// Attaches the taps of a site.
fn attach_at(
    index: usize,
    sites: &[CaptureSite],
    assembly: &mut Assembly,
    taps: &mut Vec<AtSite>,
    promiscuous: &mut Promiscuous,
) -> Result<()> {
    let site = &sites[index];
    let options = Rc::clone(&assembly.options);
    site.check_queue(&options)?;
    let (chosen, why) = for_site(site, &options)?;
    for tap in &chosen {
        let attached = match tap.attach(index, sites, assembly) {
            Ok(attached) => attached,
            // The packet's path is shown without the steps there.
            Err(error) if options.follows() => {
                assembly.event(Event::NoSteps { why: error.to_string() });
                continue;
            }
            Err(error) => return Err(error),
        };
        taps.push(AtSite::new(index, tap.name(), attached));
    }
    let has_program = chosen.iter().any(|tap| tap.facts().reads_by == ReadsBy::Program);
    // Taps with sockets of their own set promiscuous mode themselves.
    if options.promiscuous && has_program && !site.interface.loopback {
        promiscuous.add(site)?;
    }
    if options.follows() && chosen.is_empty() {
        let present = site.interface.xdp_attached(site.namespace.as_ref());
        let program = present.ok().flatten().map_or(0, |present| present.program_id);
        assembly.event(Event::NoHooks { interface: site.label.clone(), reload: site.with_hooks(program) });
    }
    if let Some(reason) = why {
        let names = chosen.iter().map(|tap| tap.name().to_owned());
        assembly.event(Event::UsingTaps { interface: site.label.clone(), taps: names.collect(), reason });
    }
    if chosen.iter().any(|tap| tap.facts().gives.verdict) {
        assembly.at_xdp.push(index);
    }
    Ok(())
}

/// Reports the events of attaching.
fn report_events(assembly: &mut Assembly, observer: &mut dyn Observer) {
    for notice in assembly.news.notices.drain(..) {
        observer.event(&notice);
    }
    for notice in assembly.news.details.drain(..) {
        observer.detail(&notice);
    }
}
