//! `generate`: how many frames a second each engine sends from one core, beside xdp-trafficgen and a plain loop of
//! sendmmsg. The frames go through a veth to a program that drops them; what is counted is what came there.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use trawl_gen::engine::{Live, Packet, Ring, Xsk};
use trawl_gen::pace::Rate;
use trawl_gen::pattern::{Pattern, PatternSource};
use trawl_gen::run::run as run_generator;
use trawl_gen::traffic::{Limits, Protocol, Spec, pattern};
use trawl_gen::{Engine, Source};
use trawl_kernel::{Error, Result, host};

use super::Spread;
use crate::program::{Does, Loaded};
use crate::{Pair, PairOptions, Station};

/// So many source ports take turns where ports vary; xdp-trafficgen varies destination ports as often.
const PORTS: u64 = 1000;
/// Time to get going, before the frames are counted.
const WARM_UP: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(5);
const TRAFFICGEN: &str = "xdp-trafficgen";

/// What the experiment is told.
#[derive(Clone, Debug)]
pub struct Plan {
    pub frame_bytes: usize,
    /// How long each turn counts.
    pub seconds: f64,
    pub repetitions: u32,
    /// Sender, veth and receiver are all on this one.
    pub cpu: usize,
}

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Live,
    LivePorts,
    Xsk,
    Packet,
    Ring,
    PlainLoop,
    Trafficgen,
    TrafficgenPorts,
}

const ALL: [Sender; 8] = [
    Sender::Live,
    Sender::LivePorts,
    Sender::Xsk,
    Sender::Packet,
    Sender::Ring,
    Sender::PlainLoop,
    Sender::Trafficgen,
    Sender::TrafficgenPorts,
];

impl Sender {
    fn name(self) -> &'static str {
        match self {
            Self::Live => "live, all alike",
            Self::LivePorts => "live, ports vary",
            Self::Xsk => "xsk",
            Self::Packet => "packet",
            Self::Ring => "ring",
            Self::PlainLoop => "plain sendmmsg loop",
            Self::Trafficgen => "xdp-trafficgen",
            Self::TrafficgenPorts => "xdp-trafficgen --dyn-ports",
        }
    }

    fn is_theirs(self) -> bool {
        matches!(self, Self::Trafficgen | Self::TrafficgenPorts)
    }
}

/// One turn.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub sender: &'static str,
    pub repetition: u32,
    pub received_per_second: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Median {
    pub sender: &'static str,
    pub received_per_second: Spread,
}

/// One sender's rate over another's, turn by turn.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub sender: &'static str,
    pub beside: &'static str,
    pub ratio: Spread,
}

#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub experiment: &'static str,
    pub hardware: String,
    pub os: String,
    pub load: String,
    pub cpu_use: String,
    pub frame_bytes: usize,
    pub seconds: f64,
    pub repetitions: u32,
    pub runs: Vec<Run>,
    pub medians: Vec<Median>,
    pub comparisons: Vec<Comparison>,
    pub failures: Vec<String>,
}

const BESIDE: [(Sender, Sender); 4] = [
    (Sender::Live, Sender::Trafficgen),
    (Sender::LivePorts, Sender::TrafficgenPorts),
    (Sender::Packet, Sender::PlainLoop),
    (Sender::Xsk, Sender::PlainLoop),
];

pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Outcome> {
    let host = host::describe();
    let has_trafficgen = Command::new(TRAFFICGEN)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    let mut outcome = Outcome {
        experiment: "generate",
        hardware: host.hardware,
        os: host.os,
        load: std::fs::read_to_string("/proc/loadavg")
            .unwrap_or_default()
            .trim()
            .to_owned(),
        cpu_use: format!("sender, veth and the dropping program on CPU {}", plan.cpu),
        frame_bytes: plan.frame_bytes,
        seconds: plan.seconds,
        repetitions: plan.repetitions,
        runs: Vec::new(),
        medians: Vec::new(),
        comparisons: Vec::new(),
        failures: Vec::new(),
    };
    if !has_trafficgen {
        let why =
            format!("{TRAFFICGEN} is not installed (apt-get install xdp-tools): it is left out");
        outcome.failures.push(why);
    }
    for repetition in 1..=plan.repetitions {
        for sender in ALL {
            if sender.is_theirs() && !has_trafficgen {
                continue;
            }
            progress(&format!("{}, repetition {repetition}", sender.name()));
            match turn(sender, plan) {
                Ok(received_per_second) => outcome.runs.push(Run {
                    sender: sender.name(),
                    repetition,
                    received_per_second,
                }),
                Err(why) => {
                    let text = format!("repetition {repetition}: {}: {why}", sender.name());
                    outcome.failures.push(text);
                }
            }
        }
    }
    outcome.relate();
    Ok(outcome)
}

impl Outcome {
    fn relate(&mut self) {
        let of = |sender: Sender| {
            self.runs
                .iter()
                .filter(move |run| run.sender == sender.name())
        };
        for sender in ALL {
            let rates = of(sender).map(|run| run.received_per_second);
            self.medians
                .extend(Spread::of(rates).map(|received_per_second| Median {
                    sender: sender.name(),
                    received_per_second,
                }));
        }
        for (sender, beside) in BESIDE {
            let ratios = of(sender).filter_map(|own| {
                let other = of(beside).find(|run| run.repetition == own.repetition)?;
                Some(own.received_per_second / other.received_per_second)
            });
            self.comparisons
                .extend(Spread::of(ratios).map(|ratio| Comparison {
                    sender: sender.name(),
                    beside: beside.name(),
                    ratio,
                }));
        }
    }
}

/// Frames a second that came to the dropping program.
fn turn(sender: Sender, plan: &Plan) -> Result<f64> {
    let pair = Pair::new(&PairOptions::default())?;
    let _drop = Loaded::native(Does::Drop, &pair.b)?;
    let rate = if sender.is_theirs() {
        let _process = Theirs::start(sender, &pair, plan)?;
        measure(&pair.b, plan.seconds, &|| true).map_err(|error| {
            error.mend("run it by hand to see why: version 1.3.1 does not load on newer kernels")
        })
    } else {
        ours(sender, &pair, plan)
    };
    pair.remove()?;
    rate
}

/// Counts what comes while `goes_on` says that somebody sends.
fn measure(receiver: &Station, seconds: f64, goes_on: &dyn Fn() -> bool) -> Result<f64> {
    let mut netlink = receiver.netlink()?;
    let mut count = || -> Result<(Instant, u64)> {
        let link = netlink.link(&receiver.interface)?;
        Ok((Instant::now(), link.statistics.rx_packets))
    };
    let (begin, none) = count()?;
    while count()?.1 == none {
        if begin.elapsed() > PATIENCE || !goes_on() {
            return Err(Error::failed(
                "nothing was received",
                "the sender sends nothing",
            ));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(WARM_UP);
    let (start, before) = count()?;
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let (end, after) = count()?;
    Ok((after - before) as f64 / (end - start).as_secs_f64())
}

fn ours(sender: Sender, pair: &Pair, plan: &Plan) -> Result<f64> {
    let pattern = Arc::new(frames(sender, pair, plan.frame_bytes)?);
    let over = AtomicBool::new(false);
    let interface = pair.a.interface.as_str();
    let open = |_| {
        let mut source = PatternSource::new(Arc::clone(&pattern), 0, 1);
        let longest = source.longest();
        let engine: Box<dyn Engine> = match sender {
            Sender::Xsk => Box::new(Xsk::open(interface, 0, longest)?),
            Sender::Packet => Box::new(Packet::open(interface, longest)?),
            Sender::Ring => Box::new(Ring::open(interface, longest)?),
            Sender::PlainLoop => Box::new(Packet::plain(interface, longest)?),
            _ => Box::new(Live::open(interface, &mut source, None)?),
        };
        Ok((engine, Box::new(source) as Box<dyn Source>))
    };
    let cpus = [Some(plan.cpu)];
    let order = trawl_gen::run::Plan {
        namespace: Some(&pair.a.namespace),
        interface,
        cpus: &cpus,
        rate: Rate::Unlimited,
        profile: None,
        burst: 1,
        count: None,
        duration: None,
    };
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let result = run_generator(&order, &open, &mut |_| !over.load(Ordering::Relaxed));
            over.store(true, Ordering::Relaxed);
            result
        });
        let measured = measure(&pair.b, plan.seconds, &|| !over.load(Ordering::Relaxed));
        over.store(true, Ordering::Relaxed);
        let report = match running.join() {
            Ok(report) => report?,
            Err(panicked) => std::panic::resume_unwind(panicked),
        };
        report.failure.map_or(measured, Err)
    })
}

fn frames(sender: Sender, pair: &Pair, length: usize) -> Result<Pattern> {
    let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    let mut spec = Spec::new(Protocol::Udp);
    spec.set("src-mac", mac(pair.a.mac))?;
    spec.set("dst-mac", mac(pair.b.mac))?;
    spec.set("src", pair.a.ipv4.to_string())?;
    spec.set("dst", pair.b.ipv4.to_string())?;
    spec.set("size", length.to_string())?;
    if sender == Sender::LivePorts {
        spec.set("dst-port", format!("1-{PORTS}"))?;
    }
    let limits = Limits {
        mtu: None,
        seed: 1,
        stamp: None,
    };
    Ok(pattern(&[(spec, 1)], &limits).map_err(|(_, misfit)| misfit)?)
}

/// xdp-trafficgen while it runs.
struct Theirs(Child);

impl Theirs {
    fn start(sender: Sender, pair: &Pair, plan: &Plan) -> Result<Self> {
        let namespace = format!("--net=/run/netns/{}", pair.a.name);
        let cpu = plan.cpu.to_string();
        let mac = pair.b.mac.map(|byte| format!("{byte:02x}")).join(":");
        let mut command = Command::new("nsenter");
        command
            .args([
                &namespace, "taskset", "-c", &cpu, TRAFFICGEN, "udp", "-m", &mac,
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if sender == Sender::TrafficgenPorts {
            command.args(["-d", &PORTS.to_string()]);
        }
        command.arg(&pair.a.interface);
        let child = command.spawn();
        child
            .map(Self)
            .map_err(|e| Error::os(format!("cannot start {TRAFFICGEN}"), e))
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
