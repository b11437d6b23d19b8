//! A capture from beginning to end, a type for each phase: `Attached` has its taps and all rights, `Confined` only the
//! rights it still needs, and `Running` moves records from the rings to the writer until it ends in a summary.

mod join;
mod presence;
mod promiscuous;
mod rounds;
mod summary;
mod tend;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use trawl_bpf::{bpffs, deadline};
use trawl_packet::pcapng;
use trawl_pipeline::account::Account;
use trawl_pipeline::{Feed, Stage, Writer, staged};
use trawl_ring::Geometry;
use trawl_sys::events::Signals;
use trawl_sys::netns::Namespace;
use trawl_sys::privilege::{Capabilities, Kept, User};
use trawl_sys::warden::Warden;
use trawl_sys::{Error, Result, clock};

use crate::AttachedTap;
use crate::assembly::{Assembly, Host, Point};
use crate::capture_site::CaptureSite;
use crate::event::{Event, Gap, Gone};
use crate::filter::Filter;
use crate::merge::Merge;
use crate::options::{Options, TimeSource};
use crate::second::{Fates, SecondLook};
use crate::summary::Summary;
use crate::taps::select::select;
use crate::taps::{dpdk, drop, pcap};
use crate::trigger::{self, Trigger};
use join::Joins;
use presence::Presence;
use promiscuous::Promiscuous;

/// Why a capture ended.
#[derive(Clone, Debug)]
pub enum Ended {
    Signal,
    Duration,
    Count,
    /// The output has as many bytes as were wanted.
    Size,
    /// As many events as were wanted are over.
    Triggers,
    /// All interfaces are gone; the last one's end.
    NoInterface(Gone),
    /// No tap sees packets any more, and none could be attached again.
    Blind,
    Output(Error),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal => f.write_str("signal"),
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

/// Is told of what happens on the way.
pub trait Observer {
    fn event(&mut self, event: &Event);

    /// Something that only those want to know who ask for more.
    fn detail(&mut self, _event: &Event) {}

    /// Everything is attached, or what has appeared since, and packets are being recorded.
    fn started(&mut self, points: &[Point]);

    /// The interfaces that are wanted too and that are not among those known; asked for where a capture joins such. In the
    /// namespaces that are unchanged there are none.
    fn appeared(
        &mut self,
        _known: &[CaptureSite],
        _unchanged: &[Option<Namespace>],
    ) -> Vec<CaptureSite> {
        Vec::new()
    }

    /// How often `figures` is wanted, if at all.
    fn interval(&self) -> Option<Duration> {
        None
    }

    fn figures(&mut self, summary: &Summary);

    /// Called several times a second; `summary` computes the current figures.
    fn looked_after(&mut self, _summary: &mut dyn FnMut() -> Summary) {}
}

/// What taps counted that are gone, by hook point.
#[derive(Debug, Default)]
struct CountsOfLeft {
    filtered_out: Vec<(u32, u64)>,
    /// By reason.
    lost: Vec<(u32, &'static str, u64)>,
}

/// A capture whose taps are attached, and which has all the rights of its process.
#[derive(Debug)]
pub struct Attached(Session);

/// A capture with the rights that it runs with.
#[derive(Debug)]
pub struct Confined {
    session: Session,
    /// The process gave up its rights: the warden undoes what the capture changed.
    gave_up_rights: bool,
}

/// Attaches all taps. When this fails, nothing is left attached. If it is the filter that the kernel does not take, the
/// taps are attached without it, and what does not match is left out in user space.
pub fn attach(
    sites: &[CaptureSite],
    options: &Options,
    host: Host,
    observer: &mut dyn Observer,
) -> Result<Attached> {
    Session::attach(sites, options, host, observer).map(Attached)
}

impl Attached {
    pub fn session(&self) -> &Session {
        &self.0
    }

    /// The warden that cuts files to their last whole block if trawl is killed.
    pub fn files_warden(&mut self) -> &mut Warden {
        &mut self.0.files
    }

    /// Gives up what the capture does not need while it runs, and changes to a user where one is named. What is to be
    /// undone at its end is then left to the warden, which keeps its rights. To be called before threads are started.
    pub fn confine(self, user: Option<User>, besides: Capabilities) -> Result<Confined> {
        let mut capabilities = besides;
        for at in &self.0.taps {
            capabilities |= at.tap.keeps();
        }
        // Interfaces that appear are attached to as those of the beginning were.
        if self.0.options.joins {
            capabilities |= crate::TO_JOIN;
        }
        // Where /sys hides it, other processes lead to it, which must not be looked at from then on.
        let _ = bpffs::hold();
        Kept { user, capabilities }.confine()?;
        Ok(Confined {
            session: self.0,
            gave_up_rights: true,
        })
    }

    /// Keeps all rights, for callers that need them while the capture runs.
    pub fn keep_rights(self) -> Confined {
        Confined {
            session: self.0,
            gave_up_rights: false,
        }
    }
}

impl Confined {
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Records until something ends it.
    pub fn run(
        mut self,
        writer: &mut dyn Writer,
        observer: &mut dyn Observer,
    ) -> Result<(Summary, Ended)> {
        let stages = std::mem::take(&mut self.session.stages);
        Running {
            watched: 0,
            clock_offset: self.session.assembly.clock.offset_to_wall(),
            joins: Joins::default(),
            feed: Feed::new(staged(stages, writer)),
            gave_up_rights: self.gave_up_rights,
            session: self.session,
            observer,
        }
        .run()
    }
}

/// A capture that records.
struct Running<'r> {
    session: Session,
    feed: Feed<'r>,
    observer: &'r mut dyn Observer,
    gave_up_rights: bool,
    /// How many of the taps have been looked at in this turn.
    watched: usize,
    clock_offset: u64,
    joins: Joins,
}

/// What a capture consists of once its taps are attached.
#[derive(Debug)]
pub struct Session {
    sites: Vec<CaptureSite>,
    options: Options,
    /// What is done to packets in user space before the writer has them.
    stages: Vec<Box<dyn Stage>>,
    /// The decisions of the second look, if there is one.
    fates: Option<Rc<RefCell<Fates>>>,
    /// The state of the trigger, if there is one.
    triggered: Option<Rc<RefCell<trigger::Shared>>>,
    interfaces: Vec<pcapng::Interface>,
    taps: Vec<AtSite>,
    merge: Merge,
    presence: Presence,
    signals: Signals,
    started: Instant,
    started_wall: u64,
    /// The points of interfaces that joined, for readers of accounts.
    joined: Rc<RefCell<Vec<Point>>>,
    left: CountsOfLeft,
    /// Closed gaps in which packets passed unseen.
    unseen: Vec<Gap>,
    promiscuous: Promiscuous,
    /// What more taps are attached with. After the taps: its warden may only be dismissed when they have been detached.
    assembly: Assembly,
    /// Cuts files; apart, for the other may be told to undo its tasks at the end of every capture.
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
        Self {
            site,
            name,
            tap,
            health: TapHealth {
                saw: clock::wall(),
                blind: None,
                waits: false,
            },
        }
    }
}

/// What is known of whether a tap sees packets.
#[derive(Debug)]
struct TapHealth {
    /// When it was last found to see, in nanoseconds since 1970.
    saw: u64,
    /// Since when it has been found not to.
    blind: Option<(Gap, Instant)>,
    /// It waits for a program to look at, for as long as that takes.
    waits: bool,
}

/// What the verifier may take for a program with a filter, before packets are filtered in user space.
const MOST_TO_VERIFY: Duration = Duration::from_secs(2);

impl Session {
    fn attach(
        sites: &[CaptureSite],
        options: &Options,
        host: Host,
        observer: &mut dyn Observer,
    ) -> Result<Self> {
        options.trigger.as_ref().map_or(Ok(()), trigger::check)?;
        let after_kernel = SecondLook::after_kernel(sites, options)?;
        let in_kernel = after_kernel
            .as_ref()
            .map_or_else(|| options.clone(), |second| second.in_kernel(options));
        let mut attach = || Self::attach_taps(sites, &in_kernel, host.clone(), observer);
        let attached = match options.follows() || in_kernel.filter.is_none() {
            // Without a filter nothing is left to user space, and ways are chosen in the kernel or not at all.
            true => attach(),
            false => deadline::limited(MOST_TO_VERIFY, attach),
        };
        let (mut session, mut second) = match (attached, after_kernel) {
            (Ok(session), None) => return Ok(session),
            (Ok(session), Some(second)) => {
                observer.event(&Event::LongChainsInUserSpace);
                (session, second)
            }
            (Err(error), _) => {
                let Some(second) = SecondLook::instead_of(&error, sites, options)? else {
                    return Err(error);
                };
                let session = Self::attach_taps(sites, &second.in_kernel(options), host, observer)?;
                observer.event(&Event::FilteredInUserSpace {
                    why: error.why().to_owned(),
                });
                (session, second)
            }
        };
        session.options = options.clone();
        let filter = options.filter.as_ref().map(Filter::text);
        for interface in &mut session.interfaces {
            interface.filter.clone_from(&filter);
            interface.snaplen = options.snaplen;
        }
        second.begin(&session.assembly.points, session.interfaces.len());
        session.fates = Some(Rc::clone(&second.fates));
        session.stages.insert(0, Box::new(second));
        Ok(session)
    }

    fn attach_taps(
        sites: &[CaptureSite],
        options: &Options,
        host: Host,
        observer: &mut dyn Observer,
    ) -> Result<Self> {
        options.check_cpu()?;
        let signals = Signals::watch_with_trigger()?;
        let mut assembly = Assembly::new(options, host, sites.len())?;
        assembly.expect(sites);
        for site in sites {
            if let Some(notice) = crate::taps::xdp::card::effects(site, options) {
                observer.event(&notice);
            }
        }
        let (mut taps, mut promiscuous) = (Vec::new(), Promiscuous::default());
        let mut at_xdp = Vec::new();
        for (index, site) in sites.iter().enumerate() {
            if attach_at(index, site, &mut assembly, &mut taps, &mut promiscuous)? {
                at_xdp.push(site);
            }
        }
        assembly.settle()?;
        let mut stages: Vec<Box<dyn Stage>> = Vec::new();
        let mut words = None;
        if let Some(drops) = &options.drops {
            let (tap, point, found) = drop::attach(sites, &at_xdp, drops, &mut assembly)?;
            taps.push(AtSite::new(0, drop::HOOK, tap));
            words = Some((point, found));
        }
        let mut presence = Presence::default();
        // What is only looked at on the way may come and go.
        if !options.follows() {
            for (index, site) in sites.iter().enumerate() {
                presence.add(index, site)?;
            }
        }
        tell(&mut assembly, observer);
        let interfaces = assembly.interface_blocks(sites, 0);
        if let Some((point, mut words)) = words {
            words.begin(point, &interfaces);
            stages.push(Box::new(words));
        }
        let foreign_clock = options.time == TimeSource::Hardware;
        let trigger = options
            .trigger
            .as_ref()
            .map(|plan| Trigger::new(plan, &assembly.points, sites, foreign_clock))
            .transpose()?;
        let triggered = trigger.as_ref().map(|one| Rc::clone(&one.shared));
        if let Some(trigger) = trigger {
            stages.push(Box::new(trigger));
        }
        // Before the first packet.
        let started_wall = clock::wall();
        assembly.begin();
        Ok(Self {
            sites: sites.to_vec(),
            options: options.clone(),
            stages,
            fates: None,
            triggered,
            interfaces,
            taps,
            merge: Merge::new(std::mem::take(&mut assembly.streams), foreign_clock),
            presence,
            signals,
            started: Instant::now(),
            started_wall,
            joined: Rc::default(),
            left: CountsOfLeft::default(),
            unseen: Vec::new(),
            promiscuous,
            assembly,
            files: Warden::default(),
        })
    }

    pub fn interfaces(&self) -> &[pcapng::Interface] {
        &self.interfaces
    }

    /// The memory of each ring, as it was decided when the taps were attached.
    pub fn geometry(&self) -> Geometry {
        self.assembly.geometry
    }

    /// The hook's name for each interface block.
    pub fn hook_names(&self) -> Vec<String> {
        let mut names = vec![String::new(); self.interfaces.len()];
        for point in &self.assembly.points {
            for interface in &point.interfaces {
                names[*interface as usize].clone_from(&point.hook);
            }
        }
        names
    }

    /// Reads the accounts of all interface blocks, as they are by then.
    pub fn accounts(&self) -> Box<dyn Fn() -> Vec<(u32, Account)>> {
        let points = self.assembly.points.clone();
        let joined = Rc::clone(&self.joined);
        Box::new(move || {
            let of = |point: &Point| {
                let first = point.interfaces.first().copied().unwrap_or(0);
                (first, Account::from_ring(&point.account()))
            };
            points.iter().chain(&*joined.borrow()).map(of).collect()
        })
    }
}

/// Attaches the taps of a site; tells whether one of them sees verdicts.
fn attach_at(
    index: usize,
    site: &CaptureSite,
    assembly: &mut Assembly,
    taps: &mut Vec<AtSite>,
    promiscuous: &mut Promiscuous,
) -> Result<bool> {
    let options = Rc::clone(&assembly.options);
    site.check_queue(&options)?;
    let selection = select(site, &options)?;
    for tap in &selection.taps {
        let attached = match tap.attach(index, site, assembly) {
            Ok(attached) => attached,
            // A way is shown without the steps there.
            Err(error) if options.follows() => {
                assembly.event(Event::NoSteps {
                    why: error.to_string(),
                });
                continue;
            }
            Err(error) => return Err(error),
        };
        taps.push(AtSite::new(index, tap.name(), attached));
    }
    let own_sockets = ["packet", pcap::NAME, dpdk::NAME];
    let sees_beside_socket = selection
        .taps
        .iter()
        .any(|tap| !own_sockets.contains(&tap.name()));
    // Taps with sockets of their own see to it themselves.
    if options.promiscuous && sees_beside_socket && !site.interface.loopback {
        promiscuous.add(site)?;
    }
    if options.follows() && selection.taps.is_empty() {
        let present = site.interface.xdp_attached(site.namespace.as_ref());
        let program = present
            .ok()
            .flatten()
            .map_or(0, |present| present.program_id);
        assembly.event(Event::NoHooks {
            interface: site.label.clone(),
            reload: site.with_hooks(program),
        });
    }
    if let Some(reason) = selection.why {
        let names = selection.taps.iter().map(|tap| tap.name().to_owned());
        assembly.event(Event::UsingTaps {
            interface: site.label.clone(),
            taps: names.collect(),
            reason,
        });
    }
    Ok(selection.taps.iter().any(|tap| tap.facts().gives.verdict))
}

/// Says what there was to say while taps were attached.
fn tell(assembly: &mut Assembly, observer: &mut dyn Observer) {
    for notice in assembly.notices.drain(..) {
        observer.event(&notice);
    }
    for notice in assembly.details.drain(..) {
        observer.detail(&notice);
    }
}
