//! Those who take turns: a task, and whose program does it.

use std::fmt;

use trawl_attach::Request;
use trawl_packet::build::Template;
use trawl_program::Site;
use trawl_program::bundled::route::{self, Extras as RouteExtras};
use trawl_program::bundled::{Bundled, By, Extras, Target, Touch, Verdict};
use trawl_sys::{Error, Result, process};

use super::{ProgramsBench, Run, xdp_bench};
use trawl_lab::Station;
use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::{Engine, Job, Variation, send};
use trawl_lab::{Line, LineOptions};

const PORT: u16 = 9;
/// Where a UDP frame has its destination port.
const PORT_AT: u8 = 36;
/// Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Drop,
    Tx,
    /// By bpf_redirect, with swapped addresses as xdp-bench has it.
    Redirect,
    /// By a device map.
    RedirectMap,
    Route,
}

impl Task {
    pub const ALL: [Self; 5] = [
        Self::Drop,
        Self::Tx,
        Self::Redirect,
        Self::RedirectMap,
        Self::Route,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Tx => "tx",
            Self::Redirect => "redirect",
            Self::RedirectMap => "redirect-map",
            Self::Route => "route",
        }
    }

    pub(super) fn contenders(self) -> [Contender; 2] {
        let other = match self {
            Self::Route => Who::Kernel,
            _ => Who::XdpBench,
        };
        [Who::Trawl, other].map(|who| Contender { task: self, who })
    }

    /// Frames that are rewritten on their way come round again as they were left, since the kernel uses their pages
    /// again: so for the router all headers are written anew, of frames to two ports in turn.
    fn engine(self) -> Engine {
        match self {
            Self::Route => Engine::LiveVaried(Variation {
                offset: PORT_AT,
                usual: PORT.to_be_bytes(),
                other: (PORT + 1).to_be_bytes(),
                every: 2,
            }),
            _ => Engine::Live,
        }
    }

    /// The counter of the driver that tells how many frames met their fate, and where it is.
    fn fate(self, line: &Line) -> (&Station, &'static str) {
        match self {
            Self::Drop => (&line.left, "_xdp_drops"),
            Self::Tx => (&line.a, "_xdp_drops"),
            Self::Redirect | Self::RedirectMap | Self::Route => (&line.b, "_xdp_drops"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Trawl,
    XdpBench,
    Kernel,
}

impl Who {
    pub fn name(self) -> &'static str {
        match self {
            Self::Trawl => "trawl",
            Self::XdpBench => "xdp-bench",
            Self::Kernel => "kernel forwarding",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    pub task: Task,
    pub who: Who,
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.task.name(), self.who.name())
    }
}

impl Contender {
    pub(super) fn run(self, plan: &ProgramsBench, repetition: u32) -> Result<Run> {
        let line = Line::new(&LineOptions::default())?;
        let _at_b = Loaded::native(Does::Drop, &line.b)?;
        // A veth sends back only to an end that has a program.
        let _at_a = match self.task {
            Task::Tx => Some(Loaded::native(Does::Drop, &line.a)?),
            _ => None,
        };
        match self.who {
            Who::Trawl => self.load(&line)?,
            Who::XdpBench => xdp_bench::load(self.task, &line)?,
            Who::Kernel => {}
        }
        let result = self.measure(plan, repetition, &line);
        take_off(&line)?;
        result
    }

    fn measure(self, plan: &ProgramsBench, repetition: u32, line: &Line) -> Result<Run> {
        let (place, counter) = self.task.fate(line);
        let before = driver_count(place, counter)?;
        let cpu_before = process::cpu_seconds(std::process::id());
        let sent = send(&Job {
            namespace: Some(&line.a.namespace),
            interface: &line.a.interface,
            frames: &[frame(line, plan.frame_bytes)?],
            count: plan.frames,
            engine: self.task.engine(),
            rate: None,
            cpu: Some(plan.cpu),
        })?;
        let cpu_seconds = process::cpu_seconds(std::process::id()) - cpu_before;
        let done = driver_count(place, counter)? - before;
        let seconds = sent.took.as_secs_f64();
        Ok(Run {
            task: self.task.name(),
            who: self.who.name(),
            repetition,
            sent: sent.packets,
            done,
            seconds,
            done_per_second: done as f64 / seconds,
            sender_cpu: cpu_seconds / seconds,
            done_per_cpu_second: done as f64 / cpu_seconds.max(f64::EPSILON),
        })
    }

    fn load(self, line: &Line) -> Result<()> {
        let right = || line.right.interface.clone();
        let (bundled, touch) = match self.task {
            Task::Drop => (Bundled::Verdict(Verdict::Drop), Touch::None),
            Task::Tx => (Bundled::Verdict(Verdict::Tx), Touch::None),
            Task::Redirect => (
                Bundled::Redirect(Target::One(right(), By::Helper)),
                Touch::Swap,
            ),
            Task::RedirectMap => (
                Bundled::Redirect(Target::One(right(), By::Devmap)),
                Touch::Swap,
            ),
            Task::Route => {
                return route::load(
                    &[site(&line.left)?, site(&line.right)?],
                    &Request::default(),
                    RouteExtras::default(),
                )
                .map(drop);
            }
        };
        let extras = Extras {
            touch,
            ..Extras::default()
        };
        bundled
            .load(extras, &site(&line.left)?, &Request::default())
            .map(drop)
    }
}

/// In order, so that failures are told; the lab goes in any case.
fn take_off(line: &Line) -> Result<()> {
    for station in [&line.left, &line.right] {
        let site = site(station)?;
        for installed in trawl_program::Installed::all(&site)? {
            installed.detach(&site)?;
        }
    }
    Ok(())
}

pub(super) fn site(station: &Station) -> Result<Site> {
    Site::find(&format!("{}:{}", station.name, station.interface), None)
}

fn frame(line: &Line, size: usize) -> Result<Vec<u8>> {
    let payload = size.checked_sub(HEADERS).ok_or_else(|| {
        Error::usage(
            format!("cannot build a UDP frame of {size} bytes"),
            format!("it takes {HEADERS} at least"),
        )
    })?;
    Ok(Template::new()
        .ethernet(line.a.mac, line.left.mac)
        .ipv4(line.a.ipv4, line.b.ipv4)
        .udp(40_000, PORT)
        .payload(vec![0; payload])
        .build())
}

/// A counter of the driver over all receive queues.
fn driver_count(station: &Station, ending: &str) -> Result<u64> {
    let statistics = station.ethtool()?.statistics()?;
    let own = |name: &String| name.starts_with("rx_queue_") && name.ends_with(ending);
    let found = statistics.iter().filter(|(name, _)| own(name));
    Ok(found.map(|(_, count)| *count).sum())
}
