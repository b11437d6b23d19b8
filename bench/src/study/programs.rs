//! XDP programs compared with other means to drop, bounce and forward (studies B and D): rates by the counters of the
//! final device.

use std::process::Command;

use trawl_lab::program::{Does, Loaded};
use trawl_lab::{Line, Pair, PairOptions, Station};
use trawl_sys::{Error, Result};

use super::contenders::{self, Contender, Mode, Verdict};
use super::definition::Space;
use super::{Bench, Case, Comparison, Measured, Outcome, Statements, Stop, compared};
use crate::configuration::Configuration;
use crate::machine::cpus;
use crate::model::{Agreement, Experiment, Finding};
use crate::process;
use crate::scratch::Scratch;
use crate::traffic::{Napi, SENDER_CPU, Sent, Traffic, UNANSWERED, capture_cpu, interface_name, received};

/// Arguments for separate flows of each core: a shared flow is a cache line that the cores contend for.
const FLOWS: [&str; 4] = ["--flows", "64", "--src-port", "1024-1087"];

/// Returns the size of frames, and the seconds of a run.
fn parameters(space: &Space) -> Result<(usize, f64)> {
    Ok((space.number("size")? as usize, space.number("seconds")?))
}

/// Returns the cases by sending threads.
pub fn threads(space: &Space) -> Result<Vec<Case>> {
    let (size, seconds) = parameters(space)?;
    Case::each(space, "threads", |series, threads| {
        let contender = Contender::find(series)?;
        let (name, traffic) = (series.to_owned(), Traffic::flood(size, seconds, &spread(threads)));
        Ok(move |bench: &Bench| match contender {
            Contender::TrawlRoute | Contender::Kernel => route(bench, &name, contender, 1, &traffic),
            _ => measure(bench, &name, contender, &traffic),
        })
    })
}

/// Returns the cases by cores, each of which sends and receives.
pub fn cores(space: &Space) -> Result<Vec<Case>> {
    let (size, seconds) = parameters(space)?;
    Case::each(space, "cores", |series, cores| {
        let contender = Contender::find(series)?;
        let name = series.to_owned();
        let traffic = Traffic::flood(size, seconds, &spread(cores)).with(&FLOWS);
        Ok(move |bench: &Bench| measure(bench, &name, contender, &traffic))
    })
}

/// Returns the cases that measure the CPU use of the receiving core, by offered load.
pub fn cpu_uses(space: &Space) -> Result<Vec<Case>> {
    let (size, seconds) = parameters(space)?;
    Case::each(space, "mpps", |series, millions| {
        let contender = Contender::find(series)?;
        let traffic = Traffic::at(size, millions * 1e6, seconds);
        Ok(move |bench: &Bench| cpu_use(bench, contender, &traffic))
    })
}

/// Returns the cases by the number of routes.
pub fn routes(space: &Space) -> Result<Vec<Case>> {
    let (size, seconds) = parameters(space)?;
    Case::each(space, "routes", |series, routes| {
        let (name, contender) = (series.to_owned(), Contender::find(series)?);
        let traffic = Traffic::flood(size, seconds, &[SENDER_CPU]);
        Ok(move |bench: &Bench| route(bench, &name, contender, routes as u32, &traffic))
    })
}

pub fn judge_with_peers(experiment: &Experiment) -> Finding {
    let pairs = [
        ("DROP native", "xdp-bench's DROP"),
        ("TX native", "xdp-bench's TX"),
        ("REDIRECT native", "xdp-bench's REDIRECT"),
        ("REDIRECT by a map", "xdp-bench's REDIRECT by a map"),
        ("trawl route", "Linux forwarding"),
    ];
    compared(experiment, &pairs, "mpps", Comparison::Faster)
}

/// Returns the CPU of each thread: the machine's CPUs in turn.
pub(super) fn spread(threads: f64) -> Vec<usize> {
    (0..threads as usize).map(|thread| thread % cpus()).collect()
}

/// Floods the contender in its best configuration.
fn measure(bench: &Bench, name: &str, contender: Contender, traffic: &Traffic) -> Outcome {
    if let Contender::Xdp(_, Mode::Offloaded) = contender {
        return Err(contenders::offload_refusal(bench));
    }
    let configuration = best(bench, name, contender, traffic, |configuration, traffic| {
        flooded(bench, contender, configuration, traffic)
    })?;
    flooded(bench, contender, configuration, traffic)
}

/// Returns the best configuration of a contender, by the rate of one sender.
fn best(
    bench: &Bench,
    name: &str,
    contender: Contender,
    traffic: &Traffic,
    measure: impl Fn(Configuration, &Traffic) -> Outcome,
) -> Result<Configuration, Stop> {
    let traffic = Traffic { cpus: vec![SENDER_CPU], ..traffic.clone() };
    bench.tuned.choose(name, contender.grid(), |configuration| Ok(measure(configuration, &traffic)?.values["mpps"]))
}

/// Floods the contender in a line of three hosts, which allows every verdict.
fn flooded(bench: &Bench, contender: Contender, configuration: Configuration, traffic: &Traffic) -> Outcome {
    let line = Line::new(&configuration.into())?;
    let (at, out) = (&line.left, &line.right);
    let goal = match contender.verdict() {
        Some(Verdict::Tx) => &line.a,
        Some(Verdict::Redirect | Verdict::RedirectMap) => &line.b,
        _ => at,
    };
    // Frames that arrive elsewhere are dropped there by the cheapest means.
    let mut ends = vec![Loaded::native(Does::Drop, &line.b)?];
    if contender.verdict() == Some(Verdict::Tx) {
        ends.push(Loaded::native(Does::Drop, &line.a)?);
    }
    let mut installed = contender.install(bench, at, out)?;
    installed.loaded = ends;
    // The stack would answer the frames that pass.
    let traffic = match contender.verdict() {
        Some(Verdict::Pass) => traffic.clone().with(&UNANSWERED),
        _ => traffic.clone(),
    };
    let before = received(goal)?;
    // The frames go to the router itself, so that only the contender forwards them.
    let sent = traffic.send(&bench.trawl, &line.a, at)?;
    Ok(measured(sent, received(goal)? - before))
}

/// Returns the rate of the handled packets, and the CPU time of each.
pub(super) fn measured(sent: Sent, done: u64) -> Measured {
    let rate = done as f64 / sent.seconds.max(f64::EPSILON);
    let busy: f32 = sent.cpus.iter().map(|cpu| cpu.busy()).sum();
    let nanoseconds = f64::from(busy) * 1e9 / rate.max(1.0);
    let values = [("mpps", rate / 1e6), ("ns_per_packet", nanoseconds)];
    Measured { recorded: Some(done), ..Measured::after(sent, values) }
}

/// Measures the CPU use of the receiving core at an offered load: the packets are handed to a kernel thread on a core
/// of its own.
fn cpu_use(bench: &Bench, contender: Contender, traffic: &Traffic) -> Outcome {
    let lab = Pair::new(&PairOptions { interfaces: ["veth0".to_owned(), interface_name()], ..PairOptions::default() })?;
    let installed = contender.install(bench, &lab.b, &lab.a)?;
    let napi = Napi::pinned(&lab.b, capture_cpu())?;
    let (counted, busy) = (received(&lab.b)?, napi.cpu_seconds());
    let sent = traffic.send(&bench.trawl, &lab.a, &lab.b)?;
    let busy = napi.cpu_seconds() - busy;
    let done = received(&lab.b)? - counted;
    drop(installed);
    let seconds = sent.seconds.max(f64::EPSILON);
    // On a veth, a slow receiver slows the sender down, because its queue is full.
    let offered = traffic.rate.map_or(1.0, |rate| sent.per_second() / rate);
    let values = [
        ("cpu_percent", (busy / seconds).min(1.0) * 100.0),
        ("mpps", done as f64 / seconds / 1e6),
        ("offered_percent", offered.min(1.0) * 100.0),
    ];
    Ok(Measured { recorded: Some(done), ..Measured::after(sent, values) })
}

/// Measures forwarding between two hosts with this many routes in the table.
fn route(bench: &Bench, name: &str, contender: Contender, routes: u32, traffic: &Traffic) -> Outcome {
    let configuration = best(bench, name, contender, traffic, |configuration, traffic| {
        routed(bench, contender, 1, configuration, traffic)
    })?;
    routed(bench, contender, routes, configuration, traffic)
}

fn routed(
    bench: &Bench,
    contender: Contender,
    routes: u32,
    configuration: Configuration,
    traffic: &Traffic,
) -> Outcome {
    let line = Line::new(&configuration.into())?;
    let _end = Loaded::native(Does::Drop, &line.b)?;
    fill(&line.left, &line.right, &line.b, routes)?;
    let _installed = contender.install(bench, &line.left, &line.right)?;
    let before = received(&line.b)?;
    let sent = traffic.send(&bench.trawl, &line.a, &line.b)?;
    let done = received(&line.b)? - before;
    if done == 0 {
        return Err(Stop::Failed("no frame was forwarded".to_owned()));
    }
    Ok(measured(sent, done))
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
    process::run(ip.args(["-n", &left.name, "-batch"]).arg(scratch.path()))?;
    Ok(())
}

// Conclusions from the rates of programs, compared with the studies.

pub fn judge_threads(experiment: &Experiment) -> Finding {
    let (one, _) = experiment.ends();
    let rate = |series: &str| experiment.median(series, "mpps", one);
    let mut statements = Statements::default();
    for verdict in ["DROP", "PASS", "TX", "REDIRECT"] {
        let rates = ["native", "generic"].map(|mode| rate(&format!("{verdict} {mode}")));
        if let [Some(native), Some(generic)] = rates {
            let text = format!("native {verdict} is {:.1} times generic", native / generic);
            let expected = verdict != "PASS";
            statements.check(text, (native > generic) == expected);
        }
    }
    for other in ["PASS native", "TX native", "REDIRECT native"] {
        if let (Some(drop), Some(other_rate)) = (rate("DROP native"), rate(other)) {
            let text = format!("DROP native is {:.1} times {other}", drop / other_rate);
            statements.check(text, drop >= other_rate);
        }
    }
    let rules = ["iptables DROP", "nft DROP", "nft ingress DROP"].into_iter().filter_map(rate);
    if let (Some(drop), Some(best)) = (rate("DROP native"), rules.reduce(f64::max)) {
        let times = drop / best;
        let text = format!("native DROP is {times:.1} times the firewall's best");
        statements.check(text, drop > best);
    }
    finding(experiment, &statements, one, "1 thread")
}

fn finding(experiment: &Experiment, statements: &Statements, x: f64, load: &str) -> Finding {
    let (held, broken) = (&statements.held, &statements.broken);
    let mut sentence = if held.is_empty() { String::new() } else { format!("As published: {}.", held.join("; ")) };
    if !broken.is_empty() {
        sentence.push_str(&format!(" Other than published: {}.", broken.join("; ")));
    }
    Finding {
        agrees: statements.agreement(),
        shows: format!("{load}: {} (Mpps)", experiment.listed("mpps", x, "")),
        sentence: sentence.trim().to_owned(),
    }
}

pub fn judge_cores(experiment: &Experiment) -> Finding {
    let (one, most) = experiment.ends();
    let mut statements = Statements::default();
    for series in experiment.series() {
        let rates = [one, most].map(|cores| experiment.median(&series, "mpps", cores));
        if let [Some(first), Some(last)] = rates
            && most > one
        {
            let growth = last / first;
            let text = format!("{series} grows {growth:.2} times from {one} to {most} cores");
            // Near-linear: at least three quarters of the cores' number.
            statements.check(text, growth > 0.75 * most / one);
        }
    }
    let rate = |series: &str| experiment.median(series, "mpps", one);
    let order = ["DROP native", "iptables raw DROP", "iptables conntrack DROP"];
    for pair in order.windows(2) {
        if let (Some(first), Some(second)) = (rate(pair[0]), rate(pair[1])) {
            let text = format!("{} is {:.1} times {}", pair[0], first / second, pair[1]);
            statements.check(text, first > second);
        }
    }
    finding(experiment, &statements, one, "1 core")
}

pub fn judge_cpu_use(experiment: &Experiment) -> Finding {
    let (_, most) = experiment.ends();
    let busy = |series: &str| {
        let line = experiment.line(series, "cpu_percent");
        line.last().map(|point| (point.x, point.value.median))
    };
    let (Some((_, xdp)), Some((load, linux))) = (busy("DROP native"), busy("iptables raw DROP")) else {
        return Finding::default();
    };
    Finding {
        agrees: Agreement::of(xdp < linux),
        shows: format!("at {most} Mpps: {}", experiment.listed("cpu_percent", most, " %")),
        sentence: format!(
            "At their highest load XDP uses {xdp:.0} % of the receiving core, Linux {linux:.0} % (at {load} Mpps); published: Linux \
             reaches 100 % first, XDP grows slowly."
        ),
    }
}

pub fn judge_route(experiment: &Experiment) -> Finding {
    let (one, full) = experiment.ends();
    let ratio = |x: f64| experiment.paired("trawl route", "Linux forwarding", "mpps", x);
    let Some(single) = ratio(one) else {
        return Finding::default();
    };
    let more = ratio(full).map_or(String::new(), |ratio| format!(", {:.1} times with {full} routes", ratio.median));
    Finding {
        agrees: Agreement::of(single.median > 1.5),
        shows: format!("1 route: {} (Mpps)", experiment.listed("mpps", one, "")),
        sentence: format!(
            "XDP forwarding is {:.1} times Linux's with one route{more} (published: 3 times, and 2.8 with a full table).",
            single.median
        ),
    }
}
