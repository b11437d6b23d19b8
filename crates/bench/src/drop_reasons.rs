//! `drop-reasons`: what the tap at drops costs. A rule of nftables drops every frame; bare, with a tap that rejects them
//! by its filter, and with one that records them, in turn. Besides, frames that an XDP program takes without a socket
//! buffer, with the tap and without: nobody calls it for those.

use std::path::PathBuf;
use std::process::Command;

use serde::Serialize;
use trawl_sys::{Error, Result, host};

use super::Spread;
use super::count::Scratch;
use super::peer::Peer;
use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::{Engine, Job, send};
use trawl_lab::{Pair, PairOptions, sender};

const NANOSECONDS: f64 = 1e9;

#[derive(Clone, Debug)]
pub struct DropsBench {
    pub frames: u64,
    pub repetitions: u32,
    /// The program to measure, and where it records to.
    pub trawl: PathBuf,
    pub directory: PathBuf,
    pub sender_cpu: usize,
    pub capture_cpu: usize,
}

/// What stands at the drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Contender {
    /// The rule drops them, and nobody looks.
    Bare,
    /// The tap's filter rejects them.
    Rejected,
    Recorded,
    /// An XDP program takes them; nobody looks.
    NotDropped,
    /// The same with the tap attached.
    NotDroppedWithTap,
}

const ALL: [Contender; 5] = [
    Contender::Bare,
    Contender::Rejected,
    Contender::Recorded,
    Contender::NotDropped,
    Contender::NotDroppedWithTap,
];

impl Contender {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare drop",
            Self::Rejected => "drop, rejected by the tap's filter",
            Self::Recorded => "drop, recorded to a file",
            Self::NotDropped => "not dropped",
            Self::NotDroppedWithTap => "not dropped, with the tap",
        }
    }

    /// What it is compared with.
    pub fn without_tap(self) -> Option<Self> {
        match self {
            Self::Rejected | Self::Recorded => Some(Self::Bare),
            Self::NotDroppedWithTap => Some(Self::NotDropped),
            Self::Bare | Self::NotDropped => None,
        }
    }

    fn filter(self) -> Option<&'static str> {
        match self {
            Self::Rejected | Self::NotDroppedWithTap => Some("tcp port 1"),
            Self::Recorded => Some("udp"),
            Self::Bare | Self::NotDropped => None,
        }
    }

    fn is_dropped(self) -> bool {
        !matches!(self, Self::NotDropped | Self::NotDroppedWithTap)
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub contender: Contender,
    pub repetition: u32,
    pub sent: u64,
    /// For each frame, sending included.
    pub ns: f64,
    /// More than without the tap, in the same turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_ns: Option<f64>,
    /// trawl's own account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub says: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Median {
    pub contender: Contender,
    pub ns: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_ns: Option<Spread>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    pub hardware: String,
    pub os: String,
    pub cpus: usize,
    pub load: String,
    pub topology: String,
    pub frames: u64,
    pub repetitions: u32,
}

#[derive(Clone, Debug, Serialize)]
pub struct DropsResults {
    pub experiment: &'static str,
    pub conditions: Conditions,
    pub runs: Vec<Run>,
    pub medians: Vec<Median>,
    /// Why the experiment is not whole.
    pub failures: Vec<String>,
}

pub fn run(plan: &DropsBench, progress: &mut dyn FnMut(&str)) -> Result<DropsResults> {
    let conditions = Conditions::of(plan);
    let dropping = Pair::new(&PairOptions::default())?;
    drop_all(&dropping)?;
    let taking = Pair::new(&PairOptions::default())?;
    let _program = Loaded::native(Does::Drop, &taking.b)?;
    let (mut runs, mut failures): (Vec<Run>, Vec<String>) = (Vec::new(), Vec::new());
    for repetition in 1..=plan.repetitions {
        let mut order = ALL;
        // Machines are not equally fast all the time: who is first changes.
        order.rotate_left(repetition as usize % ALL.len());
        let mut turn: Vec<Run> = Vec::new();
        for contender in order {
            progress(&format!("repetition {repetition}: {}", contender.name()));
            let lab = if contender.is_dropped() {
                &dropping
            } else {
                &taking
            };
            match measure(contender, lab, plan, repetition) {
                Ok(run) => turn.push(run),
                Err(why) => failures.push(format!("{} did not run: {why}", contender.name())),
            }
        }
        let bare: Vec<(Contender, f64)> = turn.iter().map(|run| (run.contender, run.ns)).collect();
        for run in &mut turn {
            let other = run.contender.without_tap();
            let other = bare.iter().find(|(contender, _)| Some(*contender) == other);
            run.cost_ns = other.map(|(_, ns)| run.ns - ns);
        }
        runs.extend(turn);
    }
    Ok(DropsResults {
        experiment: "drop-reasons",
        conditions,
        medians: ALL
            .into_iter()
            .filter_map(|one| median(one, &runs))
            .collect(),
        runs,
        failures,
    })
}

fn median(contender: Contender, runs: &[Run]) -> Option<Median> {
    let own = || runs.iter().filter(|run| run.contender == contender);
    Some(Median {
        contender,
        ns: Spread::of(own().map(|run| run.ns))?,
        cost_ns: Spread::of(own().filter_map(|run| run.cost_ns)),
    })
}

/// A rule that drops whatever comes in.
fn drop_all(lab: &Pair) -> Result<()> {
    let hook = "{ type filter hook prerouting priority raw; policy drop; }";
    for rule in [
        "add table inet bench".to_owned(),
        format!("add chain inet bench in {hook}"),
    ] {
        let output = Command::new("ip")
            .args(["netns", "exec", &lab.b.name, "nft", &rule])
            .output()
            .map_err(|e| Error::os("cannot run nft", e))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::failed("cannot add a rule that drops", why)
                .fix("install nftables: apt-get install nftables"));
        }
    }
    Ok(())
}

fn measure(contender: Contender, lab: &Pair, plan: &DropsBench, repetition: u32) -> Result<Run> {
    let file = Scratch::new(&plan.directory, "drops.pcapng")?;
    let peer = match contender.filter() {
        None => None,
        Some(filter) => {
            let mut command = Command::new(&plan.trawl);
            let site = format!("{}:{}", lab.b.name, lab.b.interface);
            command
                .args(["capture", "--tap", "drop", "-i", &site, "-s", "64", "-w"])
                .arg(file.path())
                .arg(filter);
            let name = contender.name();
            Some(Peer::start(
                name,
                &mut command,
                plan.capture_cpu,
                "capturing on",
            )?)
        }
    };
    let sent = send(&Job {
        namespace: Some(&lab.a.namespace),
        interface: &lab.a.interface,
        frames: &[sender::udp_from(lab.a.mac, 64)?],
        count: plan.frames,
        engine: Engine::Live,
        rate: None,
        cpu: Some(plan.sender_cpu),
    })?;
    let says = peer.map(Peer::finish).transpose()?;
    Ok(Run {
        contender,
        repetition,
        sent: sent.packets,
        ns: sent.took.as_secs_f64() * NANOSECONDS / sent.packets.max(1) as f64,
        cost_ns: None,
        says: says.map(|text| text.lines().last().unwrap_or_default().to_owned()),
    })
}

impl Conditions {
    fn of(plan: &DropsBench) -> Self {
        let host = host::describe();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            hardware: host.hardware,
            os: host.os,
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            load: load.trim().to_owned(),
            topology: format!(
                "two hosts joined by a veth; live XDP frames of 64 bytes, sender and drop on CPU {}, the capture on CPU {}",
                plan.sender_cpu, plan.capture_cpu
            ),
            frames: plan.frames,
            repetitions: plan.repetitions,
        }
    }
}
