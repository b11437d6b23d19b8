//! XDP programs beside other ways to drop, bounce and forward (studies B and D): rates by the counters of the device
//! where the frames end.

mod judge;
pub(super) mod who;
mod xdp_bench;

use std::process::Command;

use trawl_lab::program::{Does, Loaded};
use trawl_lab::{Line, LineOptions, Pair, PairOptions, Station};
use trawl_sys::{Error, Result};

use super::{Comparison, compared};
use crate::definition::Space;
use crate::model::{Experiment, Finding};
use crate::process;
use crate::scratch::Scratch;
use crate::traffic::{Napi, interface_name};
use crate::traffic::{Sent, Traffic, received};
use crate::{Bench, Case, Measure, Measured, Stop};
pub(super) use who::Who;
use who::{Mode, Verdict};

#[derive(Clone, Copy, Debug)]
pub enum Programs {
    /// By sending threads.
    Threads,
    Offload,
    /// trawl's own beside those of others, one flow from one core.
    Beside,
    /// By cores, each of which sends and receives.
    Cores,
    /// CPU use of the receiving core by offered load.
    CpuUse,
    /// By the number of routes.
    Route,
}

/// Each core has flows of its own: one that several share is a line of memory for which they wait on each other.
const FLOWS: [&str; 4] = ["--flows", "64", "--src-port", "1024-1087"];

impl Measure for Programs {
    fn cases(&self, space: &Space, bench: &Bench) -> Result<Vec<Case>> {
        let seconds = space.number("seconds")?;
        let size = space.number("size")? as usize;
        let (me, cpu) = (*self, bench.sender_cpu);
        Case::each(space, self.axis(), |series, x| {
            let who = Who::find(series)?;
            let rate = x * 1e6;
            Ok(Box::new(move |bench| match (me, who) {
                (Self::CpuUse, _) => cpu_use(bench, who, Traffic::at(size, rate, seconds, cpu)),
                (Self::Route, _) => route(bench, who, x as u32, size, seconds),
                (Self::Beside, Who::TrawlRoute | Who::Kernel) => {
                    route(bench, who, 1, size, seconds)
                }
                (Self::Cores, _) => {
                    let traffic = Traffic::flood(size, seconds, &spread(x));
                    measure(bench, who, &traffic.with(&FLOWS))
                }
                _ => measure(bench, who, &Traffic::flood(size, seconds, &spread(x))),
            }))
        })
    }

    fn judge(&self, experiment: &Experiment) -> Finding {
        match self {
            Self::Threads => judge::threads(experiment),
            Self::Offload => Finding::default(),
            Self::Beside => compared(
                experiment,
                &[
                    ("DROP native", "xdp-bench's DROP"),
                    ("TX native", "xdp-bench's TX"),
                    ("REDIRECT native", "xdp-bench's REDIRECT"),
                    ("REDIRECT by a map", "xdp-bench's REDIRECT by a map"),
                    ("trawl route", "Linux forwarding"),
                ],
                "mpps",
                Comparison::Faster,
            ),
            Self::Cores => judge::cores(experiment),
            Self::CpuUse => judge::cpu_use(experiment),
            Self::Route => judge::route(experiment),
        }
    }
}

impl Programs {
    fn axis(self) -> &'static str {
        match self {
            Self::Threads | Self::Offload | Self::Beside => "threads",
            Self::Cores => "cores",
            Self::CpuUse => "mpps",
            Self::Route => "routes",
        }
    }
}

/// The CPU of each thread: the machine's in turn.
pub(super) fn spread(threads: f64) -> Vec<usize> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (0..threads as usize).map(|thread| thread % cpus).collect()
}

/// Floods it in a line of three hosts, where every verdict can be measured.
fn measure(bench: &Bench, who: Who, traffic: &Traffic) -> Result<Measured, Stop> {
    if let Who::Xdp(_, Mode::Offloaded) = who {
        return Err(who::offload_refusal(bench));
    }
    let line = Line::new(&LineOptions::default())?;
    // Frames that arrive elsewhere are dropped there by the cheapest means.
    let mut ends = vec![Loaded::native(Does::Drop, &line.b)?];
    let (at, out) = (&line.left, &line.right);
    let is_tx = matches!(
        who,
        Who::Xdp(Verdict::Tx, _) | Who::XdpBench(Verdict::Tx, _) | Who::Extracted(Verdict::Tx)
    );
    if is_tx {
        ends.push(Loaded::native(Does::Drop, &line.a)?);
    }
    let mut placed = who.place(bench, at, out)?;
    placed.loaded = ends;
    let goal = match who {
        _ if is_tx => &line.a,
        Who::Xdp(Verdict::Redirect | Verdict::RedirectMap, _)
        | Who::XdpBench(Verdict::Redirect | Verdict::RedirectMap, _)
        | Who::Extracted(Verdict::Redirect | Verdict::RedirectMap) => &line.b,
        _ => at,
    };
    let before = received(goal)?;
    // To the router itself, so that nothing but what is measured forwards it.
    let sent = traffic.send(bench, &line.a, at)?;
    Ok(measured(&sent, received(goal)? - before))
}

pub(super) fn measured(sent: &Sent, done: u64) -> Measured {
    let rate = done as f64 / sent.seconds.max(f64::EPSILON);
    let busy: f32 = sent
        .cpus
        .iter()
        .map(|cpu| cpu.user + cpu.system + cpu.softirq)
        .sum();
    Measured {
        values: [
            ("mpps", rate / 1e6),
            ("ns_per_packet", f64::from(busy) * 1e9 / rate.max(1.0)),
        ]
        .into(),
        sent: Some(sent.frames),
        recorded: Some(done),
        seconds: sent.seconds,
        cpus: Some((sent.cpus.clone(), sent.disturbed.clone())),
        ..Measured::default()
    }
}

/// What the receiving core does at an offered load: the packets are handed to a kernel thread on a core of its own.
fn cpu_use(bench: &Bench, who: Who, traffic: Traffic) -> Result<Measured, Stop> {
    let lab = Pair::new(&PairOptions {
        interfaces: ["veth0".to_owned(), interface_name()],
        ..PairOptions::default()
    })?;
    let placed = who.place(bench, &lab.b, &lab.a)?;
    let napi = Napi::pinned(&lab.b, bench.capture_cpu)?;
    let (counted, busy) = (received(&lab.b)?, napi.cpu_seconds());
    let sent = traffic.send(bench, &lab.a, &lab.b)?;
    let busy = napi.cpu_seconds() - busy;
    let done = received(&lab.b)? - counted;
    drop(placed);
    let seconds = sent.seconds.max(f64::EPSILON);
    // A receiver that is too slow holds the sender up, on a veth: its queue takes no more.
    let offered = traffic.rate.map_or(1.0, |rate| sent.per_second() / rate);
    let mut measured = measured(&sent, done);
    measured.values = [
        ("cpu_percent", (busy / seconds).min(1.0) * 100.0),
        ("mpps", done as f64 / seconds / 1e6),
        ("offered_percent", offered.min(1.0) * 100.0),
    ]
    .into();
    Ok(measured)
}

/// Forwarding between two hosts with this many routes in the table.
fn route(
    bench: &Bench,
    who: Who,
    routes: u32,
    size: usize,
    seconds: f64,
) -> Result<Measured, Stop> {
    let line = Line::new(&LineOptions::default())?;
    let _end = Loaded::native(Does::Drop, &line.b)?;
    fill(&line.left, &line.right, &line.b, routes)?;
    let _placed = who.place(bench, &line.left, &line.right)?;
    let before = received(&line.b)?;
    let traffic = Traffic::flood(size, seconds, &[bench.sender_cpu]);
    let sent = traffic.send(bench, &line.a, &line.b)?;
    let done = received(&line.b)? - before;
    if done == 0 {
        return Err(Stop::Failed("no frame was forwarded".to_owned()));
    }
    Ok(measured(&sent, done))
}

/// Routes of prefix length 24 from 32.0.0.0 on, by way of the far host; the one that is used was there before.
fn fill(left: &Station, right: &Station, far: &Station, routes: u32) -> Result<(), Stop> {
    if routes <= 1 {
        return Ok(());
    }
    let mut batch = String::new();
    for number in 0..routes {
        let at = (32 << 16) + number;
        let line = format!(
            "route add {}.{}.{}.0/24 via {} dev {}\n",
            at >> 16,
            (at >> 8) & 255,
            at & 255,
            far.ipv4,
            right.interface
        );
        batch.push_str(&line);
    }
    let scratch = Scratch::new(&std::env::temp_dir(), "routes")?;
    std::fs::write(scratch.path(), batch).map_err(|e| Error::os("cannot write the routes", e))?;
    let mut ip = Command::new("ip");
    ip.args(["-n", &left.name, "-batch"]).arg(scratch.path());
    process::run(&mut ip)?;
    Ok(())
}
