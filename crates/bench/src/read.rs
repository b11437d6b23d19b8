//! `read`: trawl beside tcpdump at recordings. The same file is printed to a pipe, and filtered and written again, by
//! one and the other in turn; what both made is compared.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::Serialize;
use trawl_packet::build::{Tcp, Template};
use trawl_packet::pcap;
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_sys::{Error, Result, host};

use super::Spread;
use super::count::Scratch;
use super::leftovers::MARK;

/// Frames of the recording that differ; then they come again at other times.
const DIFFERENT: u32 = 5000;
/// One frame in N is a DNS query.
const QUERY_EVERY: u32 = 100;
const MICROSECONDS_APART: u64 = 3;

#[derive(Clone, Debug)]
pub struct ReadBench {
    pub bytes: u64,
    pub repetitions: u32,
    /// The program to measure, and where recordings are written.
    pub trawl: PathBuf,
    pub directory: PathBuf,
}

/// What is done with the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Lines to a pipe.
    Print,
    /// A filter that most packets match, and a file.
    Rewrite,
    /// A filter that few packets match, and a file.
    Select,
}

const TASKS: [Task; 3] = [Task::Print, Task::Rewrite, Task::Select];

impl Task {
    pub fn name(self) -> &'static str {
        match self {
            Self::Print => "print to a pipe",
            Self::Rewrite => "filter and rewrite, most match",
            Self::Select => "filter and rewrite, 1 % matches",
        }
    }

    fn filter(self) -> Option<&'static str> {
        match self {
            Self::Print => None,
            Self::Rewrite => Some("ip and not udp port 53"),
            Self::Select => Some("udp port 53"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Contender {
    Trawl,
    Tcpdump,
}

const CONTENDERS: [Contender; 2] = [Contender::Trawl, Contender::Tcpdump];

impl Contender {
    pub fn name(self) -> &'static str {
        match self {
            Self::Trawl => "trawl",
            Self::Tcpdump => "tcpdump",
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub task: Task,
    pub contender: Contender,
    pub repetition: u32,
    pub seconds: f64,
    /// Lines or bytes that were made.
    pub made: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Median {
    pub task: Task,
    pub contender: Contender,
    pub packets_per_second: Spread,
    pub bytes_per_second: Spread,
    /// Of the times of one repetition: how many times as fast as tcpdump.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times_tcpdump: Option<Spread>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ReadResults {
    pub experiment: &'static str,
    pub hardware: String,
    pub os: String,
    pub load: String,
    pub packets: u64,
    pub bytes: u64,
    pub repetitions: u32,
    pub runs: Vec<Run>,
    pub medians: Vec<Median>,
    /// Why the experiment is not whole.
    pub failures: Vec<String>,
}

pub fn run(plan: &ReadBench, progress: &mut dyn FnMut(&str)) -> Result<ReadResults> {
    let host::Description { os, hardware } = host::describe();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    progress("writing the recording");
    let recording = Scratch::new(&plan.directory, "recording.pcap")?;
    let (packets, bytes) = write_recording(recording.path(), plan.bytes)?;
    let mut runs: Vec<Run> = Vec::new();
    let mut failures = Vec::new();
    for repetition in 1..=plan.repetitions {
        for task in TASKS {
            let mut order = CONTENDERS;
            // Who is first changes.
            order.rotate_left(repetition as usize % CONTENDERS.len());
            for contender in order {
                progress(&format!(
                    "repetition {repetition}: {}, {}",
                    task.name(),
                    contender.name()
                ));
                match measure(plan, recording.path(), task, contender) {
                    Ok((seconds, made)) => runs.push(Run {
                        task,
                        contender,
                        repetition,
                        seconds,
                        made,
                    }),
                    Err(why) => failures.push(format!("{} did not run: {why}", contender.name())),
                }
            }
        }
    }
    for task in TASKS.into_iter().filter(|task| *task != Task::Print) {
        let made = |contender| {
            let is_its = |run: &&Run| run.task == task && run.contender == contender;
            runs.iter().find(is_its).map(|run| run.made)
        };
        if let (Some(ours), Some(theirs)) = (made(Contender::Trawl), made(Contender::Tcpdump))
            && ours != theirs
        {
            failures.push(format!(
                "{}: trawl wrote {ours} bytes, tcpdump {theirs}",
                task.name()
            ));
        }
    }
    let medians = TASKS
        .into_iter()
        .flat_map(|task| CONTENDERS.map(|contender| (task, contender)))
        .filter_map(|(task, contender)| median(task, contender, packets, bytes, &runs))
        .collect();
    Ok(ReadResults {
        experiment: "read",
        hardware,
        os,
        load: load.trim().to_owned(),
        packets,
        bytes,
        repetitions: plan.repetitions,
        medians,
        runs,
        failures,
    })
}

fn median(
    task: Task,
    contender: Contender,
    packets: u64,
    bytes: u64,
    runs: &[Run],
) -> Option<Median> {
    let own = |contender: Contender| {
        runs.iter()
            .filter(move |run| run.task == task && run.contender == contender)
    };
    let rate = |amount: u64| Spread::of(own(contender).map(|run| amount as f64 / run.seconds));
    let times = own(contender).filter_map(|run| {
        let mut theirs = own(Contender::Tcpdump);
        let theirs = theirs.find(|other| other.repetition == run.repetition)?;
        Some(theirs.seconds / run.seconds)
    });
    Some(Median {
        task,
        contender,
        packets_per_second: rate(packets)?,
        bytes_per_second: rate(bytes)?,
        times_tcpdump: Spread::of(times).filter(|_| contender == Contender::Trawl),
    })
}

/// Frames of many lengths, of TCP and UDP, and DNS queries among them: how many, and how long the file is.
fn write_recording(path: &Path, least: u64) -> Result<(u64, u64)> {
    let fail = |e| Error::os(format!("cannot write {}", path.display()), e);
    let frames: Vec<Vec<u8>> = (0..DIFFERENT).map(frame).collect();
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path).map_err(fail)?);
    let mut record = Vec::new();
    pcap::file_header(&mut record, LINKTYPE_ETHERNET, 0);
    let (mut packets, mut bytes) = (0, 0);
    for (number, frame) in frames.iter().cycle().enumerate() {
        let time = 1_700_000_000_000_000_000 + number as u64 * MICROSECONDS_APART * 1000;
        pcap::record(&mut record, time, frame, frame.len() as u32);
        out.write_all(&record).map_err(fail)?;
        bytes += record.len() as u64;
        packets += 1;
        record.clear();
        if bytes >= least {
            break;
        }
    }
    out.flush().map_err(fail)?;
    Ok((packets, bytes))
}

fn frame(number: u32) -> Vec<u8> {
    let [_, _, high, low] = number.to_be_bytes();
    let template = Template::new().ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let ip = template.ipv4([10, 0, high, low], [10, 1, 0, 1]);
    if number.is_multiple_of(QUERY_EVERY) {
        let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05trawl\x04test\x00\x00\x01\x00\x01";
        return ip.udp(number as u16, 53).payload(query.to_vec()).build();
    }
    let payload = vec![number as u8; [10, 500, 1400][number as usize % 3]];
    match number % 2 {
        0 => ip.udp(number as u16, 4000).payload(payload).build(),
        _ => {
            let tcp = Tcp {
                src: number as u16,
                dst: 443,
                ..Tcp::default()
            };
            ip.tcp(tcp).payload(payload).build()
        }
    }
}

/// How long it took, and how much was made.
fn measure(
    plan: &ReadBench,
    recording: &Path,
    task: Task,
    contender: Contender,
) -> Result<(f64, u64)> {
    let mut command = match contender {
        Contender::Trawl => {
            let mut trawl = Command::new(&plan.trawl);
            trawl.arg("read");
            trawl
        }
        // As root, since it would not be allowed to write to most directories.
        Contender::Tcpdump => {
            let mut tcpdump = Command::new("tcpdump");
            tcpdump.args(["-n", "-Z", "root"]);
            tcpdump
        }
    };
    command.arg("-r").arg(recording);
    let written = match task {
        Task::Print => None,
        Task::Rewrite | Task::Select => Some(Scratch::new(&plan.directory, "rewritten.pcap")?),
    };
    if let Some(written) = &written {
        command.arg("-w").arg(written.path());
    }
    command.args(task.filter());
    let what = contender.name();
    let fail = |e| Error::os(format!("cannot run {what}"), e);
    let began = Instant::now();
    let mut child = trawl_sys::process::with_signals(&mut command)
        .env(MARK, std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(fail)?;
    let mut lines = 0;
    if let Some(mut pipe) = child.stdout.take() {
        let mut buffer = vec![0; 1 << 20];
        loop {
            match pipe.read(&mut buffer).map_err(fail)? {
                0 => break,
                count => lines += newlines(&buffer[..count]),
            }
        }
    }
    let status = child.wait().map_err(fail)?;
    let seconds = began.elapsed().as_secs_f64();
    if !status.success() {
        return Err(Error::failed(format!("{what} ended"), status));
    }
    let made = match &written {
        Some(written) => std::fs::metadata(written.path()).map_err(fail)?.len(),
        None => lines,
    };
    Ok((seconds, made))
}

fn newlines(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte == b'\n').count() as u64
}
