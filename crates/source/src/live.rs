//! Packets of running interfaces for commands with live statistics: a capture whose records go to a view.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use trawl_capture::assembly::HostFeatures;
use trawl_capture::event::Event;
use trawl_capture::memory;
use trawl_capture::pods;
use trawl_capture::point::Point;
use trawl_capture::session::{self, Attached, Ended, Observer};
use trawl_capture::summary::Summary;
use trawl_pipeline::{Blocks, Pressure, WriteOutcome, Writer};
use trawl_plan::CapturePlan;
use trawl_plan::TapChoice;
use trawl_plan::filter::Filter;
use trawl_plan::options::{CaptureOptions, ProcessDetail, ProcessPlan, Taps};
use trawl_plan::sources::Sources;
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result};
use trawl_view::record::{PacketView, RingPackets};

use crate::packets_of;

/// Bytes of each packet that contain its headers.
const HEADERS: u32 = 128;
/// Memory for records: a view falls behind only briefly.
const MEMORY: u64 = 32 << 20;

/// Interfaces to capture on, and options for the capture.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    pub interfaces: Vec<String>,
    pub netns: Option<String>,
    pub duration: Option<Duration>,
    pub count: Option<u64>,
    pub filter: Vec<String>,
    /// Captures all bytes of each packet, not the headers only.
    pub whole: bool,
    /// Finds the process of each packet.
    pub processes: bool,
    /// Capabilities that the viewer itself needs, in addition to the capture's.
    pub keeps: Capabilities,
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self {
            interfaces: Vec::new(),
            netns: None,
            duration: None,
            count: None,
            filter: Vec::new(),
            whole: false,
            processes: false,
            keeps: Capabilities::empty(),
        }
    }
}

/// A consumer of packets, also called between them.
pub trait Viewer {
    fn packet(&mut self, packet: &PacketView<'_>);

    /// Called when no more packets are waiting; returns false to end the capture.
    fn idle(&mut self) -> bool;

    /// Called once the capture is set up.
    fn started(&mut self) {}

    /// Called with the summary so far, at every `interval`.
    fn figures(&mut self, _summary: &Summary) {}

    fn interval(&self) -> Option<Duration> {
        None
    }

    /// Returns the time at which `idle` has something to do although no packets came.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Returns whether standard input has keys for `idle`.
    fn has_keyboard(&self) -> bool {
        false
    }
}

impl LiveOptions {
    fn plan(&self) -> CapturePlan {
        let taps = Taps { tap: TapChoice::Auto, with_tc: false, with_drops: false };
        let usual = taps.usual();
        let expression = self.filter.join(" ");
        let options = CaptureOptions {
            filter: (!expression.is_empty()).then_some(Filter::Expression(expression)),
            snaplen: if self.whole { usual.snaplen } else { HEADERS },
            count: self.count,
            duration: self.duration,
            // Statistics show which owners are uncertain.
            process: self.processes.then(|| ProcessPlan { detail: ProcessDetail::Full, ..ProcessPlan::default() }),
            memory: memory::at_most(MEMORY),
            ..usual
        };
        let sources = Sources { names: self.interfaces.clone(), netns: self.netns.clone(), ..Sources::default() };
        CapturePlan::new(sources, options)
    }
}

/// Shows packets until the time is over, a signal arrives or the viewer has seen enough; returns the summary.
pub fn run(options: &LiveOptions, viewer: &mut dyn Viewer, on_event: fn(&Event)) -> Result<Summary> {
    let plan = options.plan();
    let shared = std::cell::RefCell::new(viewer);
    let mut observer = Figures { viewer: &shared, keys: std::io::stdin(), on_event };
    let confined = attach(&plan, &mut observer)?.confine(None, options.keeps)?;
    let mut writer = Viewed { viewer: &shared, packets: packets_of(confined.attached()) };
    let (summary, ended) = confined.run(&mut writer, &mut observer)?;
    into_result(ended).map(|()| summary)
}

/// Captures into a writer until the capture ends or a signal arrives.
pub fn run_into(mut plan: CapturePlan, writer: &mut dyn Writer) -> Result<()> {
    let mut observer = Silent;
    let pods = pods::find(&mut plan)?;
    let sites = trawl_capture::sources::find(&plan.sources, plan.options.tap, pods.interfaces)?;
    let attached = session::attach(&sites, &plan.options, HostFeatures::this(), &mut observer)?;
    let confined = attached.confine(None, Capabilities::empty())?;
    let (_, ended) = confined.run(writer, &mut observer)?;
    into_result(ended)
}

fn attach(plan: &CapturePlan, observer: &mut dyn Observer) -> Result<Attached> {
    let sites = trawl_capture::sources::find(&plan.sources, plan.options.tap, Vec::new())?;
    session::attach(&sites, &plan.options, HostFeatures::this(), observer)
}

fn into_result(ended: Ended) -> Result<()> {
    match ended {
        Ended::Output(error) => Err(error),
        Ended::NoInterface(gone) => Err(Error::failed("the capture ended", gone)),
        _ => Ok(()),
    }
}

struct Silent;

impl Observer for Silent {
    fn event(&mut self, _event: &Event) {}

    fn started(&mut self, _points: &[Point]) {}

    fn figures(&mut self, _summary: &Summary) {}
}

type Shared<'a, 'v> = std::cell::RefCell<&'a mut (dyn Viewer + 'v)>;

struct Viewed<'a, 'b, 'v> {
    viewer: &'b Shared<'a, 'v>,
    packets: RingPackets,
}

impl Writer for Viewed<'_, '_, '_> {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let mut viewer = self.viewer.borrow_mut();
        self.packets.each(blocks.bytes(), |packet, _| viewer.packet(packet));
        Ok(Pressure::Idle)
    }

    fn flush(&mut self) -> Result<Pressure> {
        Ok(if self.viewer.borrow_mut().idle() { Pressure::Idle } else { Pressure::Full })
    }

    fn due(&self) -> Option<Instant> {
        self.viewer.borrow().due()
    }

    fn finish(&mut self) -> WriteOutcome {
        WriteOutcome::default()
    }
}

struct Figures<'a, 'b, 'v> {
    viewer: &'b Shared<'a, 'v>,
    keys: std::io::Stdin,
    on_event: fn(&Event),
}

impl Observer for Figures<'_, '_, '_> {
    fn event(&mut self, event: &Event) {
        (self.on_event)(event);
    }

    fn started(&mut self, points: &[Point]) {
        for point in points {
            self.event(&point.capturing());
        }
        self.viewer.borrow_mut().started();
    }

    fn wakes(&self) -> Vec<BorrowedFd<'_>> {
        self.viewer.borrow().has_keyboard().then(|| self.keys.as_fd()).into_iter().collect()
    }

    fn interval(&self) -> Option<Duration> {
        self.viewer.borrow().interval()
    }

    fn figures(&mut self, summary: &Summary) {
        self.viewer.borrow_mut().figures(summary);
    }
}
