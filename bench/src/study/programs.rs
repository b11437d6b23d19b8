//! XDP programs compared with other means to drop, bounce and forward (studies B and D): rates by the counters of the final
//! device.

use std::process::Command;

use trawl_lab::program::{Does, Loaded};
use trawl_lab::{Line, LineOptions, Pair, PairOptions, Station};
use trawl_sys::{Error, Result};

use super::definition::Space;
use super::{Bench, Case, Measure, Measured, Stop};
use super::{Comparison, compared};
use crate::model::{Agreement, Experiment, Finding};
use crate::process;
use crate::scratch::Scratch;
use crate::traffic::{Napi, Sent, Traffic, interface_name, received};

use super::contenders::{self, Mode, Verdict, Who};

#[derive(Clone, Copy, Debug)]
pub enum Programs {
    /// By sending threads.
    Threads,
    Offload,
    /// trawl's programs and the peers', one flow from one core.
    Beside,
    /// By cores, each of which sends and receives.
    Cores,
    /// CPU use of the receiving core by offered load.
    CpuUse,
    /// By the number of routes.
    Route,
}

/// Arguments for separate flows of each core: a shared flow is a cache line that the cores contend for.
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
            Self::Threads => judge_threads(experiment),
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
            Self::Cores => judge_cores(experiment),
            Self::CpuUse => judge_cpu_use(experiment),
            Self::Route => judge_route(experiment),
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

/// Returns the CPU of each thread: the machine's CPUs in turn.
pub(super) fn spread(threads: f64) -> Vec<usize> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (0..threads as usize).map(|thread| thread % cpus).collect()
}

/// Floods the contender in a line of three hosts, which allows every verdict.
fn measure(bench: &Bench, who: Who, traffic: &Traffic) -> Result<Measured, Stop> {
    if let Who::Xdp(_, Mode::Offloaded) = who {
        return Err(contenders::offload_refusal(bench));
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
    // To the router itself, so that only the contender forwards them.
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

/// Measures the CPU use of the receiving core at an offered load: the packets are handed to a kernel thread on a core of its
/// own.
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
    // On a veth, a slow receiver holds the sender up: its queue is full.
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

/// Measures forwarding between two hosts with this many routes in the table.
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

/// Adds routes of prefix length 24 from 32.0.0.0 on, through the far host; the used route exists already.
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

// Conclusions from the rates of programs, compared with the studies.

fn at(experiment: &Experiment, series: &str, metric: &str, x: f64) -> Option<f64> {
    let line = experiment.line(series, metric);
    line.iter()
        .find(|point| point.x == x)
        .map(|point| point.value.median)
}

fn ends(experiment: &Experiment) -> (f64, f64) {
    let xs = || experiment.points.iter().map(|point| point.x);
    (xs().fold(f64::INFINITY, f64::min), xs().fold(0.0, f64::max))
}

fn listed(experiment: &Experiment, metric: &str, x: f64, unit: &str) -> String {
    let of = |series: String| {
        let value = at(experiment, &series, metric, x)?;
        Some(format!("{series} {value:.2}{unit}"))
    };
    let parts: Vec<String> = experiment.series().into_iter().filter_map(of).collect();
    parts.join(", ")
}

fn judge_threads(experiment: &Experiment) -> Finding {
    let (one, _) = ends(experiment);
    let rate = |series: &str| at(experiment, series, "mpps", one);
    let mut held = Vec::new();
    let mut broken = Vec::new();
    let mut check = |text: String, holds: bool| {
        if holds {
            held.push(text)
        } else {
            broken.push(text)
        }
    };
    for verdict in ["DROP", "PASS", "TX", "REDIRECT"] {
        let (native, generic) = (
            rate(&format!("{verdict} native")),
            rate(&format!("{verdict} generic")),
        );
        if let (Some(native), Some(generic)) = (native, generic) {
            let expected = verdict != "PASS";
            check(
                format!("native {verdict} is {:.1} times generic", native / generic),
                (native > generic) == expected,
            );
        }
    }
    for other in ["PASS native", "TX native", "REDIRECT native"] {
        if let (Some(drop), Some(other_rate)) = (rate("DROP native"), rate(other)) {
            check(
                format!("DROP native is {:.1} times {other}", drop / other_rate),
                drop >= other_rate,
            );
        }
    }
    let rules: Vec<f64> = ["iptables DROP", "nft DROP"]
        .iter()
        .filter_map(|one| rate(one))
        .collect();
    if let (Some(drop), Some(best)) = (rate("DROP native"), rules.iter().copied().reduce(f64::max))
    {
        check(
            format!(
                "native DROP is {:.1} times the firewall's best",
                drop / best
            ),
            drop > best,
        );
    }
    finding(experiment, &held, &broken, one, "1 thread")
}

fn finding(
    experiment: &Experiment,
    held: &[String],
    broken: &[String],
    x: f64,
    place: &str,
) -> Finding {
    let agrees = match (held.is_empty(), broken.is_empty()) {
        (true, true) => Agreement::NotMeasured,
        (false, true) => Agreement::Yes,
        (true, false) => Agreement::No,
        (false, false) => Agreement::Partly,
    };
    let mut sentence = match held.is_empty() {
        true => String::new(),
        false => format!("As published: {}.", held.join("; ")),
    };
    if !broken.is_empty() {
        sentence.push_str(&format!(" Other than published: {}.", broken.join("; ")));
    }
    Finding {
        agrees,
        shows: format!("{place}: {} (Mpps)", listed(experiment, "mpps", x, "")),
        sentence: sentence.trim().to_owned(),
    }
}

fn judge_cores(experiment: &Experiment) -> Finding {
    let (one, most) = ends(experiment);
    let (mut held, mut broken) = (Vec::new(), Vec::new());
    for series in experiment.series() {
        let rates = (
            at(experiment, &series, "mpps", one),
            at(experiment, &series, "mpps", most),
        );
        if let (Some(first), Some(last)) = rates
            && most > one
        {
            let text = format!(
                "{series} grows {:.2} times from {one} to {most} cores",
                last / first
            );
            // Near-linear: at least three quarters of the cores' number.
            if last / first > 0.75 * most / one {
                held.push(text)
            } else {
                broken.push(text)
            }
        }
    }
    let rate = |series: &str| at(experiment, series, "mpps", one);
    let order = [
        "DROP native",
        "iptables raw DROP",
        "iptables conntrack DROP",
    ];
    for pair in order.windows(2) {
        if let (Some(first), Some(second)) = (rate(pair[0]), rate(pair[1])) {
            let text = format!("{} is {:.1} times {}", pair[0], first / second, pair[1]);
            if first > second {
                held.push(text)
            } else {
                broken.push(text)
            }
        }
    }
    finding(experiment, &held, &broken, one, "1 core")
}

fn judge_cpu_use(experiment: &Experiment) -> Finding {
    let (_, most) = ends(experiment);
    let busy = |series: &str| {
        let line = experiment.line(series, "cpu_percent");
        line.last().map(|point| (point.x, point.value.median))
    };
    let (Some((_, xdp)), Some((load, linux))) = (busy("DROP native"), busy("iptables raw DROP"))
    else {
        return Finding::default();
    };
    Finding {
        agrees: if xdp < linux {
            Agreement::Yes
        } else {
            Agreement::No
        },
        shows: format!(
            "at {most} Mpps: {}",
            listed(experiment, "cpu_percent", most, " %")
        ),
        sentence: format!(
            "At their highest load XDP uses {xdp:.0} % of the receiving core, Linux {linux:.0} % (at {load} Mpps); published: Linux \
             reaches 100 % first, XDP grows slowly."
        ),
    }
}

fn judge_route(experiment: &Experiment) -> Finding {
    let (one, full) = ends(experiment);
    let ratio = |x: f64| experiment.paired("trawl route", "Linux forwarding", "mpps", x);
    let Some(single) = ratio(one) else {
        return Finding::default();
    };
    let more = ratio(full).map_or(String::new(), |ratio| {
        format!(", {:.1} times with {full} routes", ratio.median)
    });
    Finding {
        agrees: if single.median > 1.5 {
            Agreement::Yes
        } else {
            Agreement::No
        },
        shows: format!("1 route: {} (Mpps)", listed(experiment, "mpps", one, "")),
        sentence: format!(
            "XDP forwarding is {:.1} times Linux's with one route{more} (published: 3 times, and 2.8 with a full table).",
            single.median
        ),
    }
}
