//! Packets of running interfaces for commands that show figures: a capture whose records go to a view.

use std::time::Duration;

use clap::Parser;
use trawl_kernel::privilege::Capabilities;
use trawl_kernel::ring::SHARE_MIN;
use trawl_kernel::{Error, Result, events, host};
use trawl_tap::account::Summary;
use trawl_tap::assembly::{Host, Point};
use trawl_tap::capture_site::CaptureSite;
use trawl_tap::notice::Notice;
use trawl_tap::options::Options;
use trawl_tap::session::{Ended, Observer, Session};
use trawl_tap::sink::Sink;
use trawl_tap::table;
use trawl_view::record::{BlockOrigin, PacketView, RingBlocks, Source, add_places};

use crate::{capture, json, terminal};

/// Bytes of each packet that headers lie in.
const HEADERS: u32 = 128;
const MEMORY: u64 = 32 << 20;

/// Memory for records: a view is behind for a moment only.
fn memory() -> u64 {
    MEMORY.max(SHARE_MIN * events::cpu_count() as u64)
}

/// The arguments that `trawl capture` would be given for this.
#[derive(Debug, Parser)]
struct CaptureArguments {
    #[command(flatten)]
    args: capture::Args,
}

/// Which interfaces, and how their packets are seen.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub interfaces: Vec<String>,
    pub netns: Option<String>,
    pub duration: Option<Duration>,
    pub count: Option<u64>,
    pub filter: Vec<String>,
    /// All bytes of each packet, not the headers only.
    pub whole: bool,
    /// What the kernel drops too, where it can be seen.
    pub drops: bool,
    /// What the viewer's own figures take, beside what the capture does.
    pub keeps: Capabilities,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            interfaces: Vec::new(),
            netns: None,
            duration: None,
            count: None,
            filter: Vec::new(),
            whole: false,
            drops: false,
            keeps: Capabilities::empty(),
        }
    }
}

/// What is done with the packets, and between them.
pub trait Viewer {
    fn packet(&mut self, packet: &PacketView<'_>);

    /// Nothing more is at hand for now; false ends it.
    fn rest(&mut self) -> bool;

    /// The capture is set up.
    fn started(&mut self) {}

    /// The account so far, as often as `interval` says.
    fn figures(&mut self, _summary: &Summary) {}

    fn interval(&self) -> Option<Duration> {
        None
    }
}

/// Shows packets until the time is over, a signal comes or the viewer has seen enough; the account at the end.
pub fn run(wanted: &Wanted, viewer: &mut dyn Viewer) -> Result<Summary> {
    let mut words = Vec::new();
    for interface in &wanted.interfaces {
        words.extend(["-i".to_owned(), interface.clone()]);
    }
    if let Some(netns) = &wanted.netns {
        words.extend(["--netns".to_owned(), netns.clone()]);
    }
    if wanted.drops && table::DROP.missing().is_empty() {
        words.extend(["--tap".to_owned(), "auto,drop".to_owned()]);
    }
    if !wanted.whole {
        words.extend(["-s".to_owned(), HEADERS.to_string()]);
    }
    if let Some(count) = wanted.count {
        words.extend(["-c".to_owned(), count.to_string()]);
    }
    if let Some(duration) = wanted.duration {
        words.extend([
            "--duration".to_owned(),
            format!("{}ms", duration.as_millis().max(1)),
        ]);
    }
    words.extend(["--memory".to_owned(), memory().to_string()]);
    words.push("--".to_owned());
    words.extend(wanted.filter.iter().cloned());
    let prepared = Prepared::new(words)?;
    let ended_by_viewer = std::cell::Cell::new(false);
    let shared = std::cell::RefCell::new(viewer);
    let mut observer = Figures { viewer: &shared };
    let mut session = prepared.attach(&mut observer)?;
    session.confine(None, wanted.keeps)?;
    let places = session
        .interfaces()
        .iter()
        .zip(session.hook_names())
        .map(|(interface, hook)| BlockOrigin::new(interface, hook))
        .collect();
    let mut sink = Viewed {
        viewer: &shared,
        places,
        described: 0,
        ended: &ended_by_viewer,
    };
    let (summary, ended) = session.run(&mut sink, &mut observer)?;
    match ended {
        Ended::Output(_) if ended_by_viewer.get() => Ok(summary),
        ended => fine(ended).map(|()| summary),
    }
}

/// Captures into a sink, with the arguments that `trawl capture` takes, until it ends by itself or by a signal.
pub fn run_into(words: &[String], sink: &mut dyn Sink) -> Result<()> {
    let prepared = Prepared::new(words.to_vec())?;
    let mut observer = Silent;
    let mut session = prepared.attach(&mut observer)?;
    session.confine(None, Capabilities::empty())?;
    let (_, ended) = session.run(sink, &mut observer)?;
    fine(ended)
}

fn fine(ended: Ended) -> Result<()> {
    match ended {
        Ended::Output(error) => Err(error),
        Ended::NoInterface(gone) => Err(Error::failed(
            "the capture ended",
            capture::words::gone(&gone),
        )),
        _ => Ok(()),
    }
}

/// What a session is made from.
struct Prepared {
    options: Options,
    sites: Vec<CaptureSite>,
}

impl Prepared {
    fn new(mut words: Vec<String>) -> Result<Self> {
        words.insert(0, "capture".to_owned());
        let arguments = CaptureArguments::try_parse_from(words)
            .map_err(|e| Error::usage("cannot capture", e))?;
        Ok(Self {
            options: arguments.args.options()?,
            sites: capture::interfaces::find(&arguments.args)?,
        })
    }

    fn attach(&self, observer: &mut dyn Observer) -> Result<Session> {
        let described = host::describe();
        let host = Host {
            os: described.os,
            hardware: described.hardware,
            application: format!("trawl {}", env!("CARGO_PKG_VERSION")),
        };
        Session::attach(&self.sites, &self.options, host, observer)
    }
}

struct Silent;

impl Observer for Silent {
    fn notice(&mut self, _notice: &Notice) {}

    fn started(&mut self, _points: &[Point]) {}

    fn figures(&mut self, _summary: &Summary) {}
}

type Shared<'a, 'v> = std::cell::RefCell<&'a mut (dyn Viewer + 'v)>;

struct Viewed<'a, 'b, 'v> {
    viewer: &'b Shared<'a, 'v>,
    places: Vec<BlockOrigin>,
    /// Interface blocks that came among the packets.
    described: usize,
    ended: &'b std::cell::Cell<bool>,
}

impl Sink for Viewed<'_, '_, '_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut viewer = self.viewer.borrow_mut();
        add_places(&mut self.places, &mut self.described, bytes);
        let mut source = RingBlocks::new(bytes, &self.places);
        while let Ok(true) = source.advance() {
            if let Some(packet) = source.current() {
                viewer.packet(&packet);
            }
        }
        Ok(())
    }

    fn rest(&mut self) -> Result<()> {
        if self.viewer.borrow_mut().rest() {
            return Ok(());
        }
        self.ended.set(true);
        Err(Error::failed(
            "the view ended",
            "its reader has seen enough",
        ))
    }
}

struct Figures<'a, 'b, 'v> {
    viewer: &'b Shared<'a, 'v>,
}

impl Observer for Figures<'_, '_, '_> {
    fn notice(&mut self, notice: &Notice) {
        if json::is_wanted() {
            json::notice(None, notice, &capture::words::notice(notice));
        } else if !terminal::stdout_is_terminal() {
            terminal::say(&capture::words::notice(notice));
        }
    }

    fn started(&mut self, points: &[Point]) {
        for point in points {
            self.notice(&capture::words::capturing(point));
        }
        self.viewer.borrow_mut().started();
    }

    fn interval(&self) -> Option<Duration> {
        self.viewer.borrow().interval()
    }

    fn figures(&mut self, summary: &Summary) {
        self.viewer.borrow_mut().figures(summary);
    }
}
