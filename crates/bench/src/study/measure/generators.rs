//! How fast generators send, trawl's and the peers': counted by the device at which the frames arrive.

use std::fmt::Write as _;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use trawl_lab::program::{Does, Loaded};
use trawl_lab::{Pair, PairOptions};
use trawl_sys::{Error, Result};

use super::programs::spread;
use crate::count::Scratch;
use crate::study::definition::Space;
use crate::study::harness::process::{self, Background};
use crate::study::harness::traffic::{CHECKSUM, Traffic, received};
use crate::study::machine::Sample;
use crate::study::model::{Agreement, Experiment, Finding};
use crate::study::{Bench, Case, Measure, Measured, Stop};

/// Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// After a peer's first frame, so that all of its threads are at work.
const WARM_UP: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug)]
pub struct Generators;

impl Measure for Generators {
    fn cases(&self, space: &Space, _: &Bench) -> Result<Vec<Case>> {
        let seconds = space.number("seconds")?;
        let size = space.number("size")? as usize;
        let mut cases = Vec::new();
        for series in space.words("series")? {
            for threads in space.numbers("threads")? {
                let who = series.clone();
                let job = Job {
                    cpus: spread(threads),
                    size,
                    seconds,
                };
                cases.push(Case {
                    series: series.clone(),
                    x: threads,
                    run: Box::new(move |bench| measure(bench, &who, &job)),
                });
            }
        }
        Ok(cases)
    }

    fn judge(&self, experiment: &Experiment) -> Finding {
        let at_one = |is_ours: bool| {
            let own = experiment
                .points
                .iter()
                .filter(|point| point.x == 1.0 && point.series.starts_with("trawl") == is_ours);
            own.max_by(|a, b| a.value.median.total_cmp(&b.value.median))
        };
        let Some(ours) = at_one(true) else {
            return Finding::default();
        };
        let shows: Vec<String> = experiment
            .points
            .iter()
            .filter(|point| point.x == 1.0)
            .map(|point| format!("{} {:.2}", point.series, point.value.median))
            .collect();
        let beside = at_one(false).map_or(String::new(), |theirs| {
            format!(
                ", {:.1} times the best peer's ({})",
                ours.value.median / theirs.value.median,
                theirs.series
            )
        });
        Finding {
            agrees: Agreement::NotMeasured,
            shows: format!("1 thread: {} (Mpps)", shows.join(", ")),
            sentence: format!(
                "{} sends {:.2} Mpps from one core{beside}. No study publishes a figure to compare with.",
                ours.series, ours.value.median
            ),
        }
    }
}

#[derive(Clone, Debug)]
struct Job {
    cpus: Vec<usize>,
    size: usize,
    seconds: f64,
}

fn measure(bench: &Bench, who: &str, job: &Job) -> std::result::Result<Measured, Stop> {
    let lab = Pair::new(&PairOptions::default())?;
    if let Some(engine) = who.strip_prefix("trawl ") {
        let _drop = Loaded::native(Does::Drop, &lab.b)?;
        let traffic = Traffic::flood(job.size, job.seconds, &job.cpus).with(&["--engine", engine]);
        let before = received(&lab.b)?;
        let sent = traffic.send(bench, &lab.a, &lab.b)?;
        let arrived = received(&lab.b)? - before;
        return Ok(Measured {
            values: [(
                "mpps",
                arrived as f64 / sent.seconds.max(f64::EPSILON) / 1e6,
            )]
            .into(),
            sent: Some(sent.frames),
            recorded: Some(arrived),
            seconds: sent.seconds,
            cpus: Some((sent.cpus, sent.disturbed)),
            ..Measured::default()
        });
    }
    let path = bench.peers.path(who)?;
    let cpus: Vec<String> = job.cpus.iter().map(usize::to_string).collect();
    let mut command = process::command_beside(&lab.a.name, "taskset");
    command.args(["-c", &cpus.join(",")]);
    let threads = job.cpus.len().to_string();
    // iperf3's server has to answer; nothing of the others' comes further than the device.
    let _drop = match who {
        "iperf3" => None,
        _ => Some(Loaded::native(Does::Drop, &lab.b)?),
    };
    let mut _server = None;
    let mut _frame = None;
    match who {
        "xdp-trafficgen" => {
            let mac = lab.b.mac.map(|byte| format!("{byte:02x}")).join(":");
            command.arg(path).args(["udp", "-m", &mac, "-t", &threads]);
            command.arg(&lab.a.interface);
        }
        "trafgen" => {
            let file = Scratch::new(&bench.scratch, "trafgen")?;
            std::fs::write(file.path(), packet(&lab, job.size - CHECKSUM))
                .map_err(|e| Error::os(format!("cannot write {}", file.path().display()), e))?;
            command.arg(path).args(["--dev", &lab.a.interface]);
            command
                .args(["--cpus", &threads, "--conf"])
                .arg(file.path());
            _frame = Some(file);
        }
        "iperf3" => {
            let mut server = process::command_in(&lab.b.name, &path);
            server.args(["-s", "-1", "--forceflush"]);
            _server = Some(Background::start(&mut server, "listening")?);
            let payload = (job.size - CHECKSUM).saturating_sub(HEADERS).to_string();
            let time = (job.seconds + WARM_UP.as_secs_f64()).ceil() + 1.0;
            command.arg(path).args(["-c", &lab.b.ipv4.to_string()]);
            command.args(["-u", "-b", "0", "-l", &payload, "-P", &threads]);
            command.args(["-t", &time.to_string()]);
        }
        "pktgen" => {
            command.args(["sh", "-c", &pktgen(&lab, job)]);
        }
        _ => {
            return Err(Stop::NotHere(format!(
                "trawl does not know how to send by {who}"
            )));
        }
    }
    rate(&mut command, &lab, job.seconds)
}

/// Runs until it was counted for a time, beginning a little after its first frame.
fn rate(command: &mut Command, lab: &Pair, seconds: f64) -> std::result::Result<Measured, Stop> {
    let before = received(&lab.b)?;
    let mut sender = Sender::start(command)?;
    let deadline = Instant::now() + PATIENCE;
    // More than what a connection of its own to the other end sends.
    while received(&lab.b)? < before + 1000 {
        if Instant::now() > deadline || sender.has_ended() {
            return Err(Stop::Failed(sender.last_words()));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    std::thread::sleep(WARM_UP);
    let (sample, start, first) = (Sample::now(), Instant::now(), received(&lab.b)?);
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let arrived = received(&lab.b)? - first;
    let took = start.elapsed().as_secs_f64();
    Ok(Measured {
        values: [("mpps", arrived as f64 / took / 1e6)].into(),
        recorded: Some(arrived),
        seconds: took,
        cpus: Some(sample.until_now()),
        ..Measured::default()
    })
}

/// A peer that sends until it is dropped.
struct Sender(Child);

impl Sender {
    fn start(command: &mut Command) -> Result<Self> {
        command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map(Self)
            .map_err(|e| Error::os("cannot start a generator", e))
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    fn last_words(&mut self) -> String {
        let _ = self.0.kill();
        let mut said = String::new();
        if let Some(mut pipe) = self.0.stderr.take() {
            let _ = pipe.read_to_string(&mut said);
        }
        let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
        match lines.split_at(lines.len().saturating_sub(3)).1 {
            [] => "it sent nothing, and said nothing".to_owned(),
            last => last.join("; "),
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // The interrupt lets it detach what it attached; the rest goes with its namespace.
        let _ = trawl_sys::process::interrupt(self.0.id());
        let deadline = Instant::now() + PATIENCE / 5;
        while !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(LOOK_EVERY);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The frame in trafgen's language.
fn packet(lab: &Pair, length: usize) -> String {
    let mac = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
    let mut text = String::from("{\n");
    let _ = writeln!(
        text,
        "eth(da={}, sa={}),\nipv4(sa={}, da={}),\nudp(sp=9, dp=9),\nfill(0x00, {})\n}}",
        mac(lab.b.mac),
        mac(lab.a.mac),
        lab.a.ipv4,
        lab.b.ipv4,
        length.saturating_sub(HEADERS)
    );
    text
}

/// What is written to the kernel's own generator: a device for each of its threads.
fn pktgen(lab: &Pair, job: &Job) -> String {
    let mac = lab.b.mac.map(|byte| format!("{byte:02x}")).join(":");
    let mut script = String::from("set -e; cd /proc/net/pktgen\n");
    let interface = &lab.a.interface;
    for (number, cpu) in job.cpus.iter().enumerate() {
        let device = format!("{interface}@{number}");
        let _ = writeln!(script, "echo rem_device_all > kpktgend_{cpu}");
        let _ = writeln!(script, "echo add_device {device} > kpktgend_{cpu}");
        let settings = [
            "count 0".to_owned(),
            format!("pkt_size {}", job.size - CHECKSUM),
            format!("dst {}", lab.b.ipv4),
            format!("dst_mac {mac}"),
            format!("queue_map_min {number}"),
            format!("queue_map_max {number}"),
        ];
        for setting in settings {
            let _ = writeln!(script, "echo {setting} > {device}");
        }
    }
    script.push_str("trap 'echo stop > pgctrl' INT TERM\necho start > pgctrl\n");
    script
}
