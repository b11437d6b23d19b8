//! Rates of generators, trawl's and the peers': counted by the device at which the frames arrive.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};
use trawl_packet::net::mac_text;

use trawl_gen::engine::Packet;
use trawl_gen::pace::Rate;
use trawl_gen::run::Sending;
use trawl_gen::source::InTurn;
use trawl_gen::{Engine, Source};
use trawl_lab::program::{Does, Loaded};
use trawl_lab::{Pair, PairOptions, sender};
use trawl_packet::build::Template;
use trawl_packet::pcap::{file_header, record};
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_sys::{Error, Result, files::create};

use super::definition::Space;
use super::programs::spread;
use super::{Bench, Case, Measured, Outcome, Stop};
use crate::configuration::{Configuration, DEFAULTS, ONLY_DEFAULTS, with_gro};
use crate::machine::Sample;
use crate::model::{Agreement, Experiment, Finding};
use crate::process::{self, Background};
use crate::scratch::Scratch;
use crate::traffic::{CHECKSUM, SENDER_CPU, Sent, Traffic, label, received, sent_by};

/// Length of the Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;
/// Number of alternating destination ports in the experiments that vary them.
const PORTS: u16 = 1000;
const TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Delay after a peer's first frame, after which all of its threads run.
const WARM_UP: Duration = Duration::from_millis(200);

pub fn cases(space: &Space) -> Result<Vec<Case>> {
    let seconds = space.number("seconds")?;
    let size = space.number("size")? as usize;
    let replayed = (space.number("replayed_mib")? * 1048576.0) as usize;
    Case::each(space, "threads", |series, threads| {
        let generator = series.to_owned();
        let job = Job { cpus: spread(threads), size, seconds, replayed };
        Ok(move |bench: &Bench| measure(bench, &generator, &job))
    })
}

pub fn judge(experiment: &Experiment) -> Finding {
    let best = |is_ours: bool| {
        let points = experiment.points.iter();
        let own = points.filter(|one| one.x == 1.0 && one.series.starts_with("trawl") == is_ours);
        own.max_by(|a, b| a.value.median.total_cmp(&b.value.median))
    };
    let Some(ours) = best(true) else {
        return Finding::default();
    };
    let rate = ours.value.median;
    let ahead = best(false).map_or(String::new(), |theirs| {
        let times = rate / theirs.value.median;
        format!(", {times:.1} times the best peer's ({})", theirs.series)
    });
    Finding {
        agrees: Agreement::NotMeasured,
        shows: format!("1 thread: {} (Mpps)", experiment.listed("mpps", 1.0, "")),
        sentence: format!(
            "{} sends {rate:.2} Mpps from one core{ahead}. No study publishes a figure to compare with.",
            ours.series
        ),
    }
}

#[derive(Clone, Debug)]
struct Job {
    cpus: Vec<usize>,
    size: usize,
    seconds: f64,
    /// Bytes of the recording that is replayed.
    replayed: usize,
}

/// Returns the configurations of a generator to try, the defaults first.
fn grid(generator: &str) -> &'static [Configuration] {
    const LIVE: [Configuration; 3] = [DEFAULTS, with_gro(&["--batch", "128"]), with_gro(&["--batch", "256"])];
    const TRAFGEN: [Configuration; 4] = [
        DEFAULTS,
        with_gro(&["--qdisc-path"]),
        with_gro(&["--ring-size", "4MiB"]),
        with_gro(&["--ring-size", "64MiB"]),
    ];
    const IPERF: [Configuration; 2] = [DEFAULTS, with_gro(&["-w", "4M"])];
    match generator {
        "trawl live" => &LIVE,
        "trafgen" => &TRAFGEN,
        "iperf3" => &IPERF,
        _ => &ONLY_DEFAULTS,
    }
}

/// Measures a generator in its best configuration.
fn measure(bench: &Bench, series: &str, job: &Job) -> Outcome {
    let (generator, manner) = series.split_once(", ").unwrap_or((series, ""));
    let alone = Job { cpus: vec![SENDER_CPU], ..job.clone() };
    // A recorder may have the same name.
    let name = format!("{generator} (generator)");
    let configuration = bench.tuned.choose(&name, grid(generator), |configuration| {
        Ok(one(bench, generator, configuration.options, &alone, false)?.values["mpps"])
    })?;
    let options = configuration.options;
    match manner {
        // Independent senders, on an interface each: the most that these CPUs can send.
        "unrelated senders" => unrelated(bench, generator, options, job),
        "ports vary" => one(bench, generator, options, job, true),
        _ => one(bench, generator, options, job, false),
    }
}

fn unrelated(bench: &Bench, generator: &str, options: &[&str], job: &Job) -> Outcome {
    let alone = |cpu: &usize| Job { cpus: vec![*cpu], ..job.clone() };
    let jobs: Vec<Job> = job.cpus.iter().map(alone).collect();
    let all = std::thread::scope(|scope| {
        let start = |job| scope.spawn(move || one(bench, generator, options, job, false));
        let running: Vec<_> = jobs.iter().map(start).collect();
        let joined = running.into_iter().map(|one| match one.join() {
            Ok(measured) => measured,
            Err(panicked) => std::panic::resume_unwind(panicked),
        });
        joined.collect::<Result<Vec<_>, Stop>>()
    })?;
    let rates = all.iter().filter_map(|one| one.values.get("mpps"));
    Ok(Measured { values: [("mpps", rates.sum())].into(), seconds: job.seconds, ..Measured::default() })
}

fn one(bench: &Bench, generator: &str, options: &[&str], job: &Job, ports_vary: bool) -> Outcome {
    let lab = Pair::new(&PairOptions::default())?;
    if generator == "plain sendmmsg loop" {
        return plain(&lab, job).map_err(Stop::from);
    }
    if let Some(engine) = generator.strip_prefix("trawl ") {
        let _drop = Loaded::native(Does::Drop, &lab.b)?;
        let ports = format!("1-{PORTS}");
        let traffic = Traffic::flood(job.size, job.seconds, &job.cpus).with(&["--engine", engine]).with(options);
        let traffic = if ports_vary { traffic.with(&["--dst-port", &ports]) } else { traffic };
        let before = received(&lab.b)?;
        let sent = match engine {
            "replay" if job.cpus.len() > 1 => {
                let why = "a recording is sent by one thread";
                return Err(Stop::NotHere(why.to_owned()));
            }
            "replay" => replay(bench, &lab, job)?,
            _ => traffic.send(&bench.trawl, &lab.a, &lab.b)?,
        };
        let arrived = received(&lab.b)? - before;
        return Ok(measured(sent, arrived));
    }
    let path = bench.peers.path(generator)?;
    let cpus: Vec<String> = job.cpus.iter().map(usize::to_string).collect();
    let mut command = process::command_in_network(&lab.a.name, "taskset");
    command.args(["-c", &cpus.join(",")]);
    let threads = job.cpus.len().to_string();
    // iperf3's server has to answer; the frames of the others go no further than the device.
    let _drop = match generator {
        "iperf3" => None,
        _ => Some(Loaded::native(Does::Drop, &lab.b)?),
    };
    let mut _server = None;
    let mut _frame = None;
    match generator {
        "xdp-trafficgen" => {
            let mac = mac_text(lab.b.mac);
            command.arg(path).args(["udp", "-m", &mac, "-t", &threads]);
            if ports_vary {
                command.args(["-d", &PORTS.to_string()]);
            }
            command.arg(&lab.a.interface);
        }
        "trafgen" => {
            let file = Scratch::new(&bench.scratch, "trafgen")?;
            std::fs::write(file.path(), packet(&lab, job.size - CHECKSUM))
                .map_err(|e| Error::os(format!("cannot write {}", file.path().display()), e))?;
            command.arg(path).args(["--dev", &lab.a.interface]);
            command.args(["--cpus", &threads, "--conf"]).arg(file.path());
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
            return Err(Stop::NotHere(format!("unknown generator {generator}")));
        }
    }
    rate(command.args(options), &lab, job.seconds)
}

/// Sends in a loop of sendmmsg, 64 frames in a call, through a packet socket without any option.
fn plain(lab: &Pair, job: &Job) -> Result<Measured> {
    let _drop = Loaded::native(Does::Drop, &lab.b)?;
    let cpus: Vec<Option<usize>> = job.cpus.iter().copied().map(Some).collect();
    let frame = sender::udp_from(lab.a.mac, job.size - CHECKSUM)?;
    let open = |_| {
        let source: Box<dyn Source> = Box::new(InTurn::new(vec![frame.clone()]));
        let engine: Box<dyn Engine> = Box::new(Packet::plain(&lab.a.interface, source.longest())?);
        Ok((engine, source))
    };
    let order = Sending {
        namespace: Some(&lab.a.namespace),
        interface: &lab.a.interface,
        device: None,
        cpus: &cpus,
        rate: Rate::Unlimited,
        profile: None,
        burst: 1,
        count: None,
        duration: Some(Duration::from_secs_f64(job.seconds)),
    };
    let (sample, before) = (Sample::now(), received(&lab.b)?);
    let report = trawl_gen::run::run(&order, &open, &mut |_| true)?;
    if let Some(failure) = report.failure {
        return Err(failure);
    }
    let (cpus, disturbed) = sample.until_now();
    let sent = Sent { frames: report.figures.frames, seconds: report.figures.elapsed.as_secs_f64(), cpus, disturbed };
    Ok(measured(sent, received(&lab.b)? - before))
}

/// Returns the rate at which frames arrived.
fn measured(sent: Sent, arrived: u64) -> Measured {
    let rate = arrived as f64 / sent.seconds.max(f64::EPSILON) / 1e6;
    Measured { recorded: Some(arrived), ..Measured::after(sent, [("mpps", rate)]) }
}

/// Replays a recording of frames with different ports repeatedly.
fn replay(bench: &Bench, lab: &Pair, job: &Job) -> Result<Sent> {
    let file = Scratch::new(&bench.scratch, "replay.pcap")?;
    let fail = |e| Error::os(format!("cannot write to {}", file.path().display()), e);
    let link = Template::new().ethernet(lab.a.mac, lab.b.mac);
    let link = link.ipv4(lab.a.ipv4, lab.b.ipv4);
    let payload = vec![0; (job.size - CHECKSUM).saturating_sub(HEADERS)];
    let mut round = Vec::new();
    let mut bytes = Vec::with_capacity(job.replayed);
    file_header(&mut bytes, LINKTYPE_ETHERNET, 0);
    for port in 1..=PORTS {
        let frame = link.clone().udp(9, port).payload(payload.clone()).build();
        record(&mut round, u64::from(port) * 1000, &frame, frame.len() as u32);
    }
    while bytes.len() < job.replayed {
        bytes.extend(&round);
    }
    let mut out = create::existing_file(file.path()).map_err(fail)?;
    out.write_all(&bytes).map_err(fail)?;
    // Without this, the file would still be written to the disk during the replay.
    out.sync_all().map_err(fail)?;
    let cpus: Vec<String> = job.cpus.iter().map(usize::to_string).collect();
    let (at, duration) = (label(&lab.a), format!("{}ms", (job.seconds * 1e3) as u64));
    let mut trawl = bench.command(&["gen", "replay", "--json", "--yes", "-i", &at]);
    trawl.args(["--speed", "max", "--loop", "0", "--cpus", &cpus.join(",")]);
    sent_by(trawl.args(["--duration", &duration]).arg(file.path()), &lab.a)
}

/// Runs a command, and counts the frames of a time that begins a little after its first frame.
fn rate(command: &mut Command, lab: &Pair, seconds: f64) -> Outcome {
    let before = received(&lab.b)?;
    let mut sender = Background::spawn_with_errors(command)?;
    let deadline = Instant::now() + TIMEOUT;
    // The connection by which iperf3 controls its server sends fewer frames than this.
    while received(&lab.b)? < before + 1000 {
        if Instant::now() > deadline || sender.has_ended() {
            return Err(Stop::Failed(sender.last_errors()));
        }
        std::thread::sleep(POLL_INTERVAL);
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

/// Returns the frame in trafgen's language.
fn packet(lab: &Pair, length: usize) -> String {
    format!(
        "{{\neth(da={}, sa={}),\nipv4(sa={}, da={}),\nudp(sp=9, dp=9),\nfill(0x00, {})\n}}\n",
        mac_text(lab.b.mac),
        mac_text(lab.a.mac),
        lab.a.ipv4,
        lab.b.ipv4,
        length.saturating_sub(HEADERS)
    )
}

/// Returns the script for the kernel's own generator: a device for each of its threads.
fn pktgen(lab: &Pair, job: &Job) -> String {
    let mac = mac_text(lab.b.mac);
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
