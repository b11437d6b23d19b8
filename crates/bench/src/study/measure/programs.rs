//! XDP programs beside other ways to drop, bounce and forward (studies B and D): rates by the counters of the device
//! where the frames end.

use std::process::Command;
use std::time::{Duration, Instant};

use trawl_kernel::{Error, Result};
use trawl_lab::program::{Does, Loaded};
use trawl_lab::{Line, LineOptions, Pair, PairOptions, Station};

use crate::study::definition::Space;
use crate::study::harness::process::{self, Background};
use crate::study::harness::traffic::{Sent, Traffic, received};
use crate::study::model::{Agreement, Experiment, Finding};
use crate::study::{Bench, Case, Measure, Measured, Stop};

#[derive(Clone, Copy, Debug)]
pub enum Programs {
    /// By sending threads.
    Threads,
    Offload,
    /// By cores, each of which sends and receives.
    Cores,
    /// CPU use of the receiving core by offered load.
    CpuUse,
    /// By the number of routes.
    Route,
}

/// What handles the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Xdp(Verdict, Mode),
    XdpBench(Verdict, Mode),
    Iptables,
    IptablesRaw,
    Conntrack,
    Nft,
    TrawlRoute,
    XdpForward,
    Kernel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Drop,
    Pass,
    Tx,
    Redirect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Native,
    Generic,
    Offloaded,
}

const WHO: &[(&str, Who)] = &[
    ("DROP native", Who::Xdp(Verdict::Drop, Mode::Native)),
    ("DROP generic", Who::Xdp(Verdict::Drop, Mode::Generic)),
    ("DROP offloaded", Who::Xdp(Verdict::Drop, Mode::Offloaded)),
    ("PASS native", Who::Xdp(Verdict::Pass, Mode::Native)),
    ("PASS generic", Who::Xdp(Verdict::Pass, Mode::Generic)),
    ("TX native", Who::Xdp(Verdict::Tx, Mode::Native)),
    ("TX generic", Who::Xdp(Verdict::Tx, Mode::Generic)),
    ("REDIRECT native", Who::Xdp(Verdict::Redirect, Mode::Native)),
    (
        "REDIRECT generic",
        Who::Xdp(Verdict::Redirect, Mode::Generic),
    ),
    (
        "xdp-bench DROP native",
        Who::XdpBench(Verdict::Drop, Mode::Native),
    ),
    (
        "xdp-bench PASS native",
        Who::XdpBench(Verdict::Pass, Mode::Native),
    ),
    (
        "xdp-bench TX native",
        Who::XdpBench(Verdict::Tx, Mode::Native),
    ),
    (
        "xdp-bench REDIRECT native",
        Who::XdpBench(Verdict::Redirect, Mode::Native),
    ),
    ("iptables DROP", Who::Iptables),
    ("iptables raw DROP", Who::IptablesRaw),
    ("iptables conntrack DROP", Who::Conntrack),
    ("nft DROP", Who::Nft),
    ("trawl route", Who::TrawlRoute),
    ("xdp-forward", Who::XdpForward),
    ("Linux forwarding", Who::Kernel),
];

const SETTLE: Duration = Duration::from_millis(500);

impl Measure for Programs {
    fn cases(&self, space: &Space, bench: &Bench) -> Result<Vec<Case>> {
        let seconds = space.number("seconds")?;
        let size = space.number("size")? as usize;
        let mut cases = Vec::new();
        for series in space.words("series")? {
            let who = find(&series)?;
            let xs = space.numbers(self.axis())?;
            for x in xs {
                let (me, cpu) = (*self, bench.sender_cpu);
                let rate = x * 1e6;
                cases.push(Case {
                    series: series.clone(),
                    x,
                    run: Box::new(move |bench| match me {
                        Self::CpuUse => cpu_use(bench, who, Traffic::at(size, rate, seconds, cpu)),
                        Self::Route => route(bench, who, x as u32, size, seconds),
                        _ => measure(bench, who, &Traffic::flood(size, seconds, &spread(x))),
                    }),
                });
            }
        }
        Ok(cases)
    }

    fn judge(&self, experiment: &Experiment) -> Finding {
        match self {
            Self::Threads => judge_threads(experiment),
            Self::Offload => Finding::default(),
            Self::Cores => judge_cores(experiment),
            Self::CpuUse => judge_cpu_use(experiment),
            Self::Route => judge_route(experiment),
        }
    }
}

impl Programs {
    fn axis(self) -> &'static str {
        match self {
            Self::Threads | Self::Offload => "threads",
            Self::Cores => "cores",
            Self::CpuUse => "mpps",
            Self::Route => "routes",
        }
    }
}

fn find(series: &str) -> Result<Who> {
    let found = WHO.iter().find(|(name, _)| *name == series);
    found.map(|(_, who)| *who).ok_or_else(|| {
        let names: Vec<&str> = WHO.iter().map(|(name, _)| *name).collect();
        Error::usage(
            format!("series {series:?}"),
            format!("there are {}", names.join("; ")),
        )
    })
}

/// The CPU of each thread: the machine's in turn.
fn spread(threads: f64) -> Vec<usize> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (0..threads as usize).map(|thread| thread % cpus).collect()
}

/// What was put in place for a run, in the order in which it goes.
#[derive(Default)]
struct Placed {
    _background: Option<Background>,
    loaded: Vec<Loaded>,
    unload: Vec<(std::path::PathBuf, Vec<String>)>,
}

impl Drop for Placed {
    fn drop(&mut self) {
        for (program, arguments) in &self.unload {
            let _ = process::run(process::command(program).args(arguments));
        }
    }
}

fn label(station: &Station) -> String {
    format!("{}:{}", station.name, station.interface)
}

impl Who {
    /// Puts it on the receiving interface; `out` is where it sends frames on to.
    fn place(self, bench: &Bench, at: &Station, out: &Station) -> Result<Placed, Stop> {
        let mut placed = Placed::default();
        match self {
            Self::Xdp(verdict, mode) => load(bench, verdict, mode, at, out, &mut placed)?,
            Self::XdpBench(verdict, mode) => {
                let mut command = process::command_in(&at.name, bench.peers.path("xdp-bench")?);
                let mode = if mode == Mode::Native {
                    "native"
                } else {
                    "skb"
                };
                match verdict {
                    Verdict::Drop => command.args(["drop", &at.interface, "-m", mode]),
                    Verdict::Pass => command.args(["pass", &at.interface, "-m", mode]),
                    Verdict::Tx => command.args(["tx", &at.interface, "-m", mode]),
                    Verdict::Redirect => {
                        command.args(["redirect", &at.interface, &out.interface, "-m", mode])
                    }
                };
                let started = Background::start(&mut command, "\n").map_err(first_line)?;
                placed._background = Some(started);
            }
            Self::Iptables => rule(
                bench,
                at,
                "iptables",
                &["-A", "INPUT", "-p", "udp", "-j", "DROP"],
            )?,
            Self::IptablesRaw => {
                rule(
                    bench,
                    at,
                    "iptables",
                    &["-t", "raw", "-A", "PREROUTING", "-p", "udp", "-j", "DROP"],
                )?;
            }
            Self::Conntrack => rule(
                bench,
                at,
                "iptables",
                &[
                    "-A",
                    "INPUT",
                    "-m",
                    "conntrack",
                    "--ctstate",
                    "NEW,ESTABLISHED,RELATED",
                    "-j",
                    "DROP",
                ],
            )?,
            Self::Nft => {
                let ruleset = "add table inet trawl; add chain inet trawl in { type filter hook input priority 0 ; }; \
                               add rule inet trawl in meta l4proto udp drop";
                rule(bench, at, "nft", &[ruleset])?;
            }
            Self::TrawlRoute => {
                let (left, right) = (label(at), label(out));
                trawl(bench, &["route", "load", &left, &right])?;
                placed.unload.push((
                    bench.trawl.clone(),
                    ["route", "unload", &left, &right].map(str::to_owned).into(),
                ));
            }
            Self::XdpForward => {
                let path = bench.peers.path("xdp-forward")?;
                let mut command = process::command_in(&at.name, &path);
                command.args(["load", "-f", "fib-direct", &at.interface, &out.interface]);
                process::run(&mut command)?;
                let words = [
                    "netns",
                    "exec",
                    &at.name,
                    &path.to_string_lossy(),
                    "unload",
                    &at.interface,
                    &out.interface,
                ];
                placed
                    .unload
                    .push(("ip".into(), words.map(str::to_owned).into()));
            }
            Self::Kernel => {}
        }
        Ok(placed)
    }
}

fn load(
    bench: &Bench,
    verdict: Verdict,
    mode: Mode,
    at: &Station,
    out: &Station,
    placed: &mut Placed,
) -> Result<(), Stop> {
    let site = label(at);
    let mut words = vec!["xdp", "load", &site];
    match verdict {
        Verdict::Drop => words.push("drop"),
        Verdict::Pass => words.push("pass"),
        Verdict::Tx => words.push("tx"),
        Verdict::Redirect => words.extend(["redirect", "--to", &out.interface, "--touch", "swap"]),
    }
    words.extend([
        "--mode",
        match mode {
            Mode::Native => "native",
            Mode::Generic => "skb",
            Mode::Offloaded => "hw",
        },
    ]);
    trawl(bench, &words)?;
    placed.unload.push((
        bench.trawl.clone(),
        ["xdp", "unload", &site].map(str::to_owned).into(),
    ));
    Ok(())
}

fn trawl(bench: &Bench, words: &[&str]) -> Result<(), Stop> {
    process::run(process::command(&bench.trawl).args(words)).map_err(first_line)?;
    Ok(())
}

fn first_line(error: Error) -> Stop {
    Stop::Failed(
        error
            .to_string()
            .lines()
            .take(3)
            .collect::<Vec<_>>()
            .join(" "),
    )
}

fn rule(bench: &Bench, at: &Station, tool: &str, words: &[&str]) -> Result<(), Stop> {
    let mut command = process::command_in(&at.name, bench.peers.path(tool)?);
    process::run(command.args(words))?;
    Ok(())
}

/// Floods it in a line of three hosts, where every verdict can be measured.
fn measure(bench: &Bench, who: Who, traffic: &Traffic) -> Result<Measured, Stop> {
    if let Who::Xdp(_, Mode::Offloaded) = who {
        return Err(offload(bench));
    }
    let line = Line::new(&LineOptions::default())?;
    // Frames that arrive elsewhere are dropped there by the cheapest means.
    let mut ends = vec![Loaded::native(Does::Drop, &line.b)?];
    let (at, out) = (&line.left, &line.right);
    let is_tx = matches!(
        who,
        Who::Xdp(Verdict::Tx, _) | Who::XdpBench(Verdict::Tx, _)
    );
    if is_tx {
        ends.push(Loaded::native(Does::Drop, &line.a)?);
    }
    let mut placed = who.place(bench, at, out)?;
    placed.loaded = ends;
    let goal = match who {
        _ if is_tx => &line.a,
        Who::Xdp(Verdict::Redirect, _) | Who::XdpBench(Verdict::Redirect, _) => &line.b,
        _ => at,
    };
    let before = received(goal)?;
    // To the router itself, so that nothing but what is measured forwards it.
    let sent = traffic.send(bench, &line.a, at)?;
    Ok(measured(&sent, received(goal)? - before))
}

fn measured(sent: &Sent, done: u64) -> Measured {
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

/// Looks for a network card that runs XDP programs itself.
fn offload(bench: &Bench) -> Stop {
    let mut command = process::command(&bench.trawl);
    let lab = match Pair::new(&PairOptions::default()) {
        Ok(lab) => lab,
        Err(why) => return why.into(),
    };
    command.args(["xdp", "load", &label(&lab.b), "drop", "--mode", "hw"]);
    let refusal = match process::run(&mut command) {
        Ok(_) => return Stop::Failed("a veth took an offloaded program".to_owned()),
        Err(why) => why.to_string(),
    };
    let drivers = cards();
    let cards = match drivers.is_empty() {
        true => "it has no network card".to_owned(),
        false => format!("its network cards use {}", drivers.join(", ")),
    };
    Stop::NotHere(format!(
        "no device of this host can offload XDP: {cards}, and offloading needs a card such as Netronome's (nfp). The kernel's \
         answer for the lab's veth: {}",
        refusal.lines().next().unwrap_or_default()
    ))
}

fn cards() -> Vec<String> {
    let own = |entry: std::fs::DirEntry| {
        let driver = std::fs::read_link(entry.path().join("device/driver")).ok()?;
        Some(format!(
            "{} ({})",
            driver.file_name()?.to_string_lossy(),
            entry.file_name().to_string_lossy()
        ))
    };
    let devices = std::fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten();
    devices.filter_map(own).collect()
}

/// What the receiving core does at an offered load: the packets are handed to a kernel thread on a core of its own.
fn cpu_use(bench: &Bench, who: Who, traffic: Traffic) -> Result<Measured, Stop> {
    let interface = napi_name();
    let lab = Pair::new(&PairOptions {
        interfaces: ["veth0".to_owned(), interface],
        ..PairOptions::default()
    })?;
    let placed = who.place(bench, &lab.b, &lab.a)?;
    pin_napi(&lab.b, bench.capture_cpu)?;
    let counted = received(&lab.b)?;
    let sent = traffic.send(bench, &lab.a, &lab.b)?;
    traffic.reached(&sent)?;
    let done = received(&lab.b)? - counted;
    drop(placed);
    let core = sent
        .cpus
        .get(bench.capture_cpu)
        .copied()
        .unwrap_or_default();
    let mut measured = measured(&sent, done);
    measured.values = [
        (
            "cpu_percent",
            f64::from(core.user + core.system + core.softirq) * 100.0,
        ),
        ("mpps", done as f64 / sent.seconds / 1e6),
    ]
    .into();
    Ok(measured)
}

/// A name by which the kernel's threads of an interface are found among all others.
pub(super) fn napi_name() -> String {
    format!("tn{}", std::process::id() % 10_000_000)
}

/// Gives each queue a kernel thread (threaded NAPI), and puts these on one CPU.
pub(super) fn pin_napi(station: &Station, cpu: usize) -> Result<(), Stop> {
    let setting = format!("/sys/class/net/{}/threaded", station.interface);
    let mut shell = process::command_in(&station.name, "sh");
    shell.args(["-c", &format!("echo 1 > {setting}")]);
    process::run(&mut shell).map_err(|why| {
        Stop::NotHere(format!(
            "this kernel has no threaded NAPI for a veth: {why}"
        ))
    })?;
    let wanted = format!("napi/{}-", station.interface);
    let deadline = Instant::now() + SETTLE * 10;
    loop {
        let threads = threads_named(&wanted);
        if !threads.is_empty() {
            for thread in threads {
                trawl_kernel::process::pin(thread, cpu)?;
            }
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Stop::NotHere(
                "the kernel made no threads for NAPI".to_owned(),
            ));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn threads_named(prefix: &str) -> Vec<u32> {
    // The kernel cuts names after 15 characters.
    let prefix: String = prefix.chars().take(15).collect();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
            name.starts_with(&prefix).then_some(id)
        })
        .collect()
}

/// Forwarding between two hosts with so many routes in the table.
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
    let path = std::env::temp_dir().join(format!("trawl-bench-{}-routes", std::process::id()));
    std::fs::write(&path, batch).map_err(|e| Error::os("cannot write the routes", e))?;
    let mut ip = Command::new("ip");
    ip.args(["-n", &left.name, "-batch"]).arg(&path);
    let result = process::run(&mut ip);
    let _ = std::fs::remove_file(&path);
    result?;
    Ok(())
}

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
