//! `generate`: how many frames a second each engine sends from one core, beside xdp-trafficgen and a plain loop of
//! sendmmsg; a replay beside the packet engine; two threads beside one, and beside two senders that have nothing in
//! common. The frames go through a veth to a program that drops them; what is counted is what came there.

mod recorded;
mod theirs;
mod turn;

use std::path::PathBuf;

use serde::Serialize;
use trawl_sys::{Result, host};

use super::Spread;

/// This many source ports take turns where ports vary; xdp-trafficgen varies destination ports as often.
const PORTS: u64 = 1000;
/// What the experiment is told.
#[derive(Clone, Debug)]
pub struct GenerateBench {
    pub frame_bytes: usize,
    /// How long each turn counts.
    pub seconds: f64,
    pub repetitions: u32,
    /// Sender, veth and receiver are all on this one.
    pub cpu: usize,
    /// For a second thread with all that belongs to it; `None`: one thread only.
    pub second_cpu: Option<usize>,
    /// How long the file is that is replayed, and where it is written; removed afterwards.
    pub file_bytes: u64,
    pub directory: PathBuf,
}

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Live(Shape),
    LivePorts,
    Xsk,
    Packet,
    PacketPorts(Shape),
    Ring,
    PlainLoop,
    Replay,
    Trafficgen,
    TrafficgenPorts,
}

/// How many send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    One,
    /// Threads of one run, into one interface.
    TwoThreads,
    /// Runs that share nothing, into an interface each: what the machine lets two reach.
    TwoAlone,
}

const ALL: [Sender; 14] = [
    Sender::Live(Shape::One),
    Sender::LivePorts,
    Sender::Trafficgen,
    Sender::TrafficgenPorts,
    Sender::Xsk,
    Sender::Packet,
    Sender::PlainLoop,
    Sender::Ring,
    Sender::PacketPorts(Shape::One),
    Sender::Replay,
    Sender::Live(Shape::TwoThreads),
    Sender::Live(Shape::TwoAlone),
    Sender::PacketPorts(Shape::TwoThreads),
    Sender::PacketPorts(Shape::TwoAlone),
];

impl Sender {
    fn name(self) -> &'static str {
        match self {
            Self::Live(Shape::One) => "live, all alike",
            Self::Live(Shape::TwoThreads) => "live, two threads",
            Self::Live(Shape::TwoAlone) => "live, two unrelated senders",
            Self::LivePorts => "live, ports vary",
            Self::Xsk => "xsk",
            Self::Packet => "packet",
            Self::PacketPorts(Shape::One) => "packet, ports vary",
            Self::PacketPorts(Shape::TwoThreads) => "packet, ports vary, two threads",
            Self::PacketPorts(Shape::TwoAlone) => "packet, ports vary, two unrelated senders",
            Self::Ring => "ring",
            Self::PlainLoop => "plain sendmmsg loop",
            Self::Replay => "replay, ports vary",
            Self::Trafficgen => "xdp-trafficgen",
            Self::TrafficgenPorts => "xdp-trafficgen --dyn-ports",
        }
    }

    fn is_theirs(self) -> bool {
        matches!(self, Self::Trafficgen | Self::TrafficgenPorts)
    }

    fn shape(self) -> Shape {
        match self {
            Self::Live(shape) | Self::PacketPorts(shape) => shape,
            _ => Shape::One,
        }
    }

    fn varies_ports(self) -> bool {
        matches!(self, Self::LivePorts | Self::PacketPorts(_) | Self::Replay)
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
pub struct GenerateResults {
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

const BESIDE: [(Sender, Sender); 9] = [
    (Sender::Live(Shape::One), Sender::Trafficgen),
    (Sender::LivePorts, Sender::TrafficgenPorts),
    (Sender::Packet, Sender::PlainLoop),
    (Sender::Xsk, Sender::PlainLoop),
    (Sender::Replay, Sender::PacketPorts(Shape::One)),
    (Sender::Live(Shape::TwoThreads), Sender::Live(Shape::One)),
    (Sender::Live(Shape::TwoAlone), Sender::Live(Shape::One)),
    (
        Sender::PacketPorts(Shape::TwoThreads),
        Sender::PacketPorts(Shape::One),
    ),
    (
        Sender::PacketPorts(Shape::TwoAlone),
        Sender::PacketPorts(Shape::One),
    ),
];

pub fn run(plan: &GenerateBench, progress: &mut dyn FnMut(&str)) -> Result<GenerateResults> {
    let host = host::describe();
    let missing = theirs::missing();
    let mut outcome = GenerateResults {
        experiment: "generate",
        hardware: host.hardware,
        os: host.os,
        load: std::fs::read_to_string("/proc/loadavg")
            .unwrap_or_default()
            .trim()
            .to_owned(),
        cpu_use: cpu_use(plan),
        frame_bytes: plan.frame_bytes,
        seconds: plan.seconds,
        repetitions: plan.repetitions,
        runs: Vec::new(),
        medians: Vec::new(),
        comparisons: Vec::new(),
        failures: Vec::new(),
    };
    let scratch = recorded::write(plan);
    let file = match &scratch {
        Ok(scratch) => Some(scratch.path()),
        Err(why) => {
            outcome.failures.push(format!("no replay: {why}"));
            None
        }
    };
    let senders: Vec<Sender> = ALL
        .into_iter()
        .filter(|sender| missing.is_none() || !sender.is_theirs())
        .filter(|sender| plan.second_cpu.is_some() || sender.shape() == Shape::One)
        .filter(|sender| file.is_some() || *sender != Sender::Replay)
        .collect();
    outcome.failures.extend(missing);
    for repetition in 1..=plan.repetitions {
        for sender in &senders {
            progress(&format!("{}, repetition {repetition}", sender.name()));
            match turn::turn(*sender, plan, file) {
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

/// Who did what where, and what the comparison is with.
fn cpu_use(plan: &GenerateBench) -> String {
    let second = plan.second_cpu.map_or_else(
        || "; one CPU only, so no second thread".to_owned(),
        |cpu| format!("; a second one likewise on CPU {cpu}"),
    );
    format!(
        "sender, veth and the dropping program on CPU {}{second}; the plain loop sends the same frames by a packet socket \
         without any option, 64 with a call",
        plan.cpu
    )
}

impl GenerateResults {
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
