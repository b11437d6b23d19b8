//! `capture-bandwidth`: how fast packets that an XDP program drops can be recorded to a file, beside the bare drop
//! and beside tcpdump (after figure 2 of "xdpcap: XDP Packet Capture").

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;
use trawl_kernel::{Error, Result};
use trawl_packet::pcapng::block::blocks;

use super::Conditions;
use super::peer::Peer;
use crate::program::{Does, Loaded};
use crate::sender::{Engine, Job, Sent, send};
use crate::{Pair, PairOptions, frame};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    pub frames: u64,
    pub frame_bytes: usize,
    /// Frames a second; `None`: as fast as they go.
    pub rate: Option<u64>,
    /// Where the captures are written; removed afterwards.
    pub directory: PathBuf,
    pub ring_size: String,
    pub repetitions: u32,
    /// The program to measure.
    pub trawl: PathBuf,
    pub sender_cpu: usize,
    pub capture_cpu: usize,
    pub with_tcpdump: bool,
}

/// One mechanism's run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub mechanism: &'static str,
    pub sent: u64,
    pub seconds: f64,
    /// Frames a second that went through the interface meanwhile.
    pub sent_per_second: f64,
    /// Counted in the file itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
    /// User and system time of the capture program, of one CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture_cpu: Option<f64>,
    /// Its own last words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub says: String,
}

/// All runs, and what follows from them.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub experiment: &'static str,
    pub conditions: Conditions,
    pub runs: Vec<Run>,
    pub ratios: Vec<Ratios>,
}

/// Compared within one repetition.
#[derive(Clone, Debug, Serialize)]
pub struct Ratios {
    /// trawl's recorded rate over the bare drop's rate.
    pub of_bare_drop: f64,
    /// Nanoseconds a packet that recording adds to the XDP path.
    pub added_ns: f64,
    /// Packets that trawl lost.
    pub lost: u64,
    /// trawl's recorded rate over tcpdump's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_tcpdump: Option<f64>,
}

pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Outcome> {
    let options = PairOptions::default();
    let mut conditions = Conditions::here();
    conditions.queues = options.queues;
    conditions.frame_bytes = plan.frame_bytes;
    conditions.frames = plan.frames;
    conditions.ring_size = plan.ring_size.clone();
    conditions.cpu_use = format!(
        "sender, veth and XDP program on CPU {}, capture on CPU {}",
        plan.sender_cpu, plan.capture_cpu
    );
    let mut outcome = Outcome {
        experiment: "capture-bandwidth",
        conditions,
        runs: Vec::new(),
        ratios: Vec::new(),
    };
    for _ in 0..plan.repetitions {
        progress("bare drop");
        let bare = bare_drop(plan, &options)?;
        progress("trawl");
        let trawl = trawl(plan, &options)?;
        let tcpdump = if plan.with_tcpdump {
            progress("tcpdump");
            Some(tcpdump(plan, &options)?)
        } else {
            None
        };
        let recorded_rate = |run: &Run| run.recorded_per_second.unwrap_or(0.0);
        outcome.ratios.push(Ratios {
            of_bare_drop: recorded_rate(&trawl) / bare.sent_per_second,
            added_ns: 1e9 / trawl.sent_per_second - 1e9 / bare.sent_per_second,
            lost: trawl.sent.saturating_sub(trawl.recorded.unwrap_or(0)),
            of_tcpdump: tcpdump
                .as_ref()
                .map(|run| recorded_rate(&trawl) / recorded_rate(run)),
        });
        outcome
            .runs
            .extend([bare, trawl].into_iter().chain(tcpdump));
    }
    Ok(outcome)
}

fn bare_drop(plan: &Plan, options: &PairOptions) -> Result<Run> {
    let lab = Pair::new(options)?;
    let _program = Loaded::native(Does::Drop, &lab.b)?;
    let sent = send_all(plan, &lab)?;
    Ok(result("bare drop", &sent))
}

fn trawl(plan: &Plan, options: &PairOptions) -> Result<Run> {
    let lab = Pair::new(options)?;
    let _program = Loaded::native(Does::DropWithHook, &lab.b)?;
    let file = Scratch::new(&plan.directory, "trawl.pcapng")?;
    let mut command = Command::new(&plan.trawl);
    command.args([
        "capture",
        "--netns",
        &lab.b.name,
        "-i",
        &lab.b.interface,
        "--tap",
        "hook",
    ]);
    command
        .args(["--ring-size", &plan.ring_size, "-w"])
        .arg(file.path());
    let peer = Peer::start("trawl", &mut command, plan.capture_cpu, "capturing on")?;
    let mut run = captured("trawl", plan, &lab, peer, file.path())?;
    run.recorded = Some(count_pcapng(file.path())?);
    run.recorded_per_second = run.recorded.map(|count| count as f64 / run.seconds);
    Ok(run)
}

fn tcpdump(plan: &Plan, options: &PairOptions) -> Result<Run> {
    let lab = Pair::new(options)?;
    // tcpdump sees nothing of what XDP drops: here the frames go up and are thrown away behind it.
    let file = Scratch::new(&plan.directory, "tcpdump.pcap")?;
    let mut command = Command::new("ip");
    command.args([
        "netns",
        "exec",
        &lab.b.name,
        "tcpdump",
        "-n",
        "-i",
        &lab.b.interface,
        "-B",
        "65536",
    ]);
    command
        .args(["--time-stamp-precision=nano", "-Z", "root", "-w"])
        .arg(file.path());
    let peer = Peer::start("tcpdump", &mut command, plan.capture_cpu, "listening on")?;
    let mut run = captured("tcpdump", plan, &lab, peer, file.path())?;
    let header = 24;
    let record = 16 + plan.frame_bytes as u64;
    run.recorded = run
        .file_bytes
        .map(|bytes| bytes.saturating_sub(header) / record);
    run.recorded_per_second = run.recorded.map(|count| count as f64 / run.seconds);
    Ok(run)
}

fn captured(
    mechanism: &'static str,
    plan: &Plan,
    lab: &Pair,
    peer: Peer,
    file: &Path,
) -> Result<Run> {
    let before = peer.cpu_seconds();
    let sent = send_all(plan, lab)?;
    let cpu = (peer.cpu_seconds() - before) / sent.took.as_secs_f64();
    let said = peer.finish()?;
    let size = std::fs::metadata(file)
        .map_err(|e| Error::os(format!("cannot look at {}", file.display()), e))?;
    Ok(Run {
        capture_cpu: Some(cpu),
        file_bytes: Some(size.len()),
        says: said.lines().last().unwrap_or_default().to_owned(),
        ..result(mechanism, &sent)
    })
}

fn send_all(plan: &Plan, lab: &Pair) -> Result<Sent> {
    let frames = [frame::experimental(lab.a.mac, lab.b.mac, plan.frame_bytes)];
    send(&Job {
        namespace: Some(&lab.a.namespace),
        interface: &lab.a.interface,
        frames: &frames,
        count: plan.frames,
        engine: Engine::Live,
        rate: plan.rate,
        cpu: Some(plan.sender_cpu),
    })
}

fn result(mechanism: &'static str, sent: &Sent) -> Run {
    Run {
        mechanism,
        sent: sent.packets,
        seconds: sent.took.as_secs_f64(),
        sent_per_second: sent.per_second(),
        recorded: None,
        recorded_per_second: None,
        file_bytes: None,
        capture_cpu: None,
        says: String::new(),
    }
}

/// Counts the packets of a file that trawl wrote.
fn count_pcapng(path: &Path) -> Result<u64> {
    let fail = |e| Error::os(format!("cannot read {}", path.display()), e);
    let mut file = File::open(path).map_err(fail)?;
    let mut buffer = vec![0u8; 4 << 20];
    let mut held = 0;
    let mut count = 0;
    loop {
        let read = file.read(&mut buffer[held..]).map_err(fail)?;
        held += read;
        let mut whole = 0;
        for block in blocks(&buffer[..held]) {
            whole += block.bytes.len();
            count += u64::from(block.enhanced_packet().is_some());
        }
        if read == 0 || whole == 0 {
            let what = || format!("cannot count the packets of {}", path.display());
            return if held == whole {
                Ok(count)
            } else {
                Err(Error::failed(what(), "it does not end with a whole block"))
            };
        }
        buffer.copy_within(whole..held, 0);
        held -= whole;
    }
}

/// A file that is gone when the run is over.
struct Scratch(PathBuf);

impl Scratch {
    fn new(directory: &Path, name: &str) -> Result<Self> {
        let path = directory.join(format!("trawl-bench-{}-{name}", std::process::id()));
        File::create(&path)
            .map_err(|e| Error::os(format!("cannot write to {}", path.display()), e))?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
