//! DPDK's own capture compared with trawl's: testpmd forwards between two ports while dpdk-dumpcap records it (study
//! E). The ports are veths through DPDK's af_packet driver, so trawl can record the same frames; or, to find the
//! maximum of a capture, null ports that generate packets.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use trawl_lab::{Line, LineOptions, Station};
use trawl_sys::{Error, Result};

use super::definition::Space;
use super::{Bench, Case, Measured, Outcome, Stop, percent, unknown};
use crate::capture::trawl_capture;
use crate::model::{Agreement, Experiment, Finding};
use crate::process::{self, Background, Peer, last_lines};
use crate::recorder::Recorder;
use crate::scratch::{self, Scratch};
use crate::traffic::{Amount, SENDER_CPU, Traffic, capture_cpu, label, received};

/// 512 MiB in pages of 2 MiB.
const HUGE_PAGES: u64 = 256;

const TRAWL: &str = "trawl dpdk";
/// Library that dpdk-dumpcap needs, by its name on Debian 12.
const DUMPCAP_NEEDS: &str = "librte_mempool_dpaa.so.23";

/// Rate of the frames that each capture should keep up with.
const EASY_RATE: f64 = 100e3;
/// Size of the packets of a null port.
const NULL_SIZE: usize = 64;
/// Shortest measurement: testpmd's own counts are a second apart, and the last one must cover the capture alone.
const MIN_NULL_TIME: Duration = Duration::from_millis(2200);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Load of testpmd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Flood,
    /// This many frames at [`EASY_RATE`].
    Easy(u64),
    /// As many as the null ports generate.
    Null,
}

impl Load {
    fn of(series: &str, easy_frames: u64) -> (&str, Self) {
        match series.rsplit_once(", ") {
            Some((program, "100 kpps")) => (program, Self::Easy(easy_frames)),
            Some((program, "net_null")) => (program, Self::Null),
            _ => (series, Self::Flood),
        }
    }
}

pub fn cases(space: &Space) -> Result<Vec<Case>> {
    let seconds = space.number("seconds")?;
    let easy_frames = space.number("easy_frames")? as u64;
    let sizes = space.numbers("sizes")?;
    let mut cases = Vec::new();
    for series in space.names("series")? {
        let (program, load) = Load::of(&series, easy_frames);
        let sizes = match load {
            Load::Flood => &sizes[..],
            _ => &[NULL_SIZE as f64],
        };
        for &size in sizes {
            let program = program.to_owned();
            cases.push(Case::new(&series, size, move |bench| match load {
                Load::Null => measure_null(bench, &program, seconds),
                _ => measure(bench, &program, load, size as usize, seconds),
            }));
        }
    }
    Ok(cases)
}

pub fn judge(experiment: &Experiment) -> Finding {
    let mean = |series: &str, metric: &str| {
        let line = experiment.line(series, metric);
        let sum: f64 = line.iter().map(|point| point.value.median).sum();
        (!line.is_empty()).then(|| sum / line.len() as f64)
    };
    let forwarding = |series| mean(series, "forwarding_gbits");
    let Some(alone) = forwarding("dpdk-testpmd alone") else {
        return Finding::default();
    };
    let Some(captured) = forwarding("dpdk-dumpcap") else {
        return Finding {
            shows: format!("testpmd forwards {alone:.3} Gbit/s alone; no capture by pdump was measured"),
            ..Finding::default()
        };
    };
    let share = |series| {
        let recorded = mean(series, "capture_gbits")?;
        Some(100.0 * recorded / forwarding(series)?)
    };
    let both = |load: &str, metric: &str| {
        let of = |program: &str| mean(&format!("{program}, {load}"), metric);
        of(TRAWL).zip(of("dpdk-dumpcap"))
    };
    let mut more = String::new();
    if let Some((ours, theirs)) = both("100 kpps", "recorded_percent") {
        more.push_str(&format!("; at 100 kpps trawl records {ours:.2} % (dpdk-dumpcap {theirs:.2} %)"));
    }
    if let Some((ours, theirs)) = both("net_null", "capture_gbits")
        .zip(both("net_null", "recorded_percent"))
        .map(|((ours, theirs), (our_share, their_share))| ((mpps(ours), our_share), (mpps(theirs), their_share)))
    {
        more.push_str(&format!(
            "; with null ports {:.2} million copies a second, {:.1} % of all (dpdk-dumpcap {:.2} million, {:.1} %)",
            ours.0, ours.1, theirs.0, theirs.1
        ));
    }
    let trawl = forwarding("trawl tc beside dpdk-testpmd");
    let with_dpdk = match (forwarding(TRAWL), share(TRAWL), share("dpdk-dumpcap")) {
        (Some(rest), Some(ours), Some(theirs)) => format!(
            "; {rest:.3} under trawl's dpdk tap, which records {ours:.1} % of that (dpdk-dumpcap {theirs:.1} %)"
        ),
        _ => String::new(),
    };
    Finding {
        agrees: if captured < alone { Agreement::Yes } else { Agreement::Partly },
        shows: format!("testpmd forwards {alone:.3} Gbit/s alone, {captured:.3} under dpdk-dumpcap{with_dpdk}{more}"),
        sentence: format!(
            "Capture by pdump takes {:.0} % of the forwarding rate (published: 0 to 27 %){}. The ports are veths by af_packet, not a 10G \
             card, and all of it shares two CPUs.",
            (1.0 - captured / alone) * 100.0,
            trawl.map_or(String::new(), |trawl| format!(", trawl at tc {:.0} %", (1.0 - trawl / alone) * 100.0))
        ),
    }
}

/// Returns millions of the smallest frames per second.
fn mpps(gbits: f64) -> f64 {
    gbits * 1e3 / 8.0 / NULL_SIZE as f64
}

fn gbits(frames: u64, size: usize, seconds: f64) -> f64 {
    frames as f64 * size as f64 * 8.0 / seconds / 1e9
}

fn measure(bench: &Bench, program: &str, load: Load, size: usize, seconds: f64) -> Outcome {
    let line = Line::new(&LineOptions { queues: 1, ..LineOptions::default() })?;
    let port = |number, interface: &str| {
        // The ring has room for the packets that arrive while testpmd waits for a CPU.
        format!("--vdev=net_af_packet{number},iface={interface},framecnt=8192")
    };
    let ports = [port(0, &line.left.interface), port(1, &line.right.interface)];
    let application = Application::start(bench, program, &line, &ports)?;
    let file = Scratch::new(&bench.scratch, "pdump")?;
    let capture = capture(bench, program, &line, &application.prefix, "in", &file)?;
    let before = received(&line.b)?;
    let mut traffic = match load {
        Load::Easy(_) => Traffic::at(size, EASY_RATE, seconds),
        _ => Traffic::flood(size, seconds, &[SENDER_CPU]),
    }
    .with(&["--engine", "packet"]);
    if let Load::Easy(frames) = load {
        traffic.amount = Amount::Frames(frames);
    }
    // The frames go to the router's own address, so that its kernel forwards none of them, and testpmd all.
    let sent = traffic.send(&bench.trawl, &line.a, &line.left)?;
    let forwarded = settled(&line.b)? - before;
    let mut recorded = None;
    if let Some(peer) = capture {
        peer.wait_until_idle();
        peer.finish()?;
        recorded = Some(scratch::contents(file.path(), Some(line.left.mac), false)?.packets);
    }
    drop(application);
    let mut values = BTreeMap::from([("forwarding_gbits", gbits(forwarded, size, sent.seconds))]);
    if let Some(recorded) = recorded {
        values.insert("capture_gbits", gbits(recorded, size, sent.seconds));
        // The number of frames that should be forwarded, if testpmd keeps up.
        let whole = match load {
            Load::Easy(_) => sent.frames,
            _ => forwarded,
        };
        // The hosts send packets of their own now and then.
        let share = percent(recorded.min(whole) as f64, whole.max(1) as f64);
        values.insert("recorded_percent", share);
    }
    Ok(Measured { expected: Some(forwarded), recorded, ..Measured::after(sent, values) })
}

/// Measures the maximum of a capture of one null port, in both directions.
fn measure_null(bench: &Bench, program: &str, seconds: f64) -> Outcome {
    let line = Line::new(&LineOptions { queues: 1, ..LineOptions::default() })?;
    let ports = [0, 1].map(|number| format!("--vdev=net_null{number},size={NULL_SIZE}"));
    let application = Application::start(bench, program, &line, &ports)?;
    let file = Scratch::new(&bench.scratch, "pdump")?;
    let capture = capture(bench, program, &line, &application.prefix, "inout", &file)?;
    let began = Instant::now();
    std::thread::sleep(MIN_NULL_TIME.max(Duration::from_secs_f64(seconds)));
    let forwarded = application.own_rate()?;
    let mut values = BTreeMap::from([("forwarding_gbits", forwarded * NULL_SIZE as f64 * 8.0 / 1e9)]);
    let mut measured = Measured::default();
    if let Some(peer) = capture {
        let took = began.elapsed().as_secs_f64();
        let said = peer.finish()?;
        let recorder = match program {
            TRAWL => Recorder::TrawlTc,
            _ => Recorder::Dumpcap,
        };
        let (claimed, lost) = recorder
            .claim(&said)
            .and_then(|claim| claim.recorded.zip(claim.lost))
            .ok_or_else(|| Stop::Failed(format!("{program} does not report its losses: {said}")))?;
        let recorded = scratch::contents(file.path(), None, false)?.packets;
        let share = percent(recorded as f64, (claimed + lost).max(1) as f64);
        values.insert("capture_gbits", gbits(recorded, NULL_SIZE, took));
        values.insert("recorded_percent", share);
        measured.expected = Some(claimed + lost);
        measured.recorded = Some(recorded);
        measured.seconds = took;
    }
    Ok(Measured { values, ..measured })
}

/// A running testpmd; its files are removed on drop.
struct Application {
    running: Background,
    prefix: String,
    log: Scratch,
    _runtime: Runtime,
}

impl Application {
    fn start(bench: &Bench, program: &str, line: &Line, ports: &[String; 2]) -> Result<Self, Stop> {
        let testpmd = bench.peers.path("dpdk-testpmd")?;
        let prefix = format!("trawl{}", std::process::id());
        let log = Scratch::new(&bench.scratch, "testpmd")?;
        let mut command = process::command_in(&line.left.name, "sh");
        command
            // Its output is read during the run, and the process itself is killed at the end.
            .args(["-c", "log=$1; shift; exec \"$@\" > \"$log\" 2>&1", "sh"])
            .arg(log.path())
            .args(["stdbuf", "-oL"])
            .arg(&testpmd)
            .args(memory(program)?)
            .args(["-m", "256", "--no-pci", "-l", "0,1"])
            .args(["--file-prefix", &prefix])
            .args(ports)
            .args(["--", "--forward-mode=io", "--auto-start"])
            .args(["--stats-period=1", "--total-num-mbufs=8192"]);
        let runtime = Runtime(prefix.clone());
        let running = Background::spawn(&mut command)?;
        let mut application = Self { running, prefix, log, _runtime: runtime };
        while !application.text()?.contains("NIC statistics") {
            if application.running.has_ended() {
                return Err(Stop::Failed(last_lines(&application.text()?, 3)));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(application)
    }

    fn text(&self) -> Result<String> {
        let path = self.log.path();
        fs::read_to_string(path).map_err(|e| Error::os(format!("cannot read {}", path.display()), e))
    }

    /// Returns the packets per second of testpmd's last count, for both ports.
    fn own_rate(&self) -> Result<f64> {
        let text = self.text()?;
        let rates = text.lines().rev().filter_map(|line| {
            let rest = line.trim().strip_prefix("Rx-pps:")?;
            rest.split_whitespace().next()?.parse::<f64>().ok()
        });
        Ok(rates.take(2).sum())
    }
}

/// Returns the number of a station's received packets, once it stops growing.
fn settled(station: &Station) -> Result<u64> {
    let mut last = received(station)?;
    loop {
        std::thread::sleep(POLL_INTERVAL);
        match received(station)? {
            now if now == last => return Ok(now),
            now => last = now,
        }
    }
}

fn capture(
    bench: &Bench,
    program: &str,
    line: &Line,
    prefix: &str,
    directions: &str,
    file: &Scratch,
) -> Result<Option<Peer>, Stop> {
    let (mut command, ready) = match program {
        "dpdk-testpmd alone" => return Ok(None),
        "dpdk-dumpcap" => {
            let mut shell = process::command_in(&line.left.name, "sh");
            shell
                .args(["-c", "exec \"$0\" \"$@\" 1>&2"])
                .arg(bench.peers.path("dpdk-dumpcap")?)
                // Without this driver, it drops every packet, since testpmd has loaded other kinds of pools.
                .env("LD_PRELOAD", DUMPCAP_NEEDS);
            shell.args(["--file-prefix", prefix, "-i", "0", "-w"]).arg(file.path());
            (shell, "File:")
        }
        TRAWL => {
            let (mut trawl, ready) = trawl_capture(bench, "dpdk", directions, &["dpdk:0"], file.path());
            trawl.args(["--file-prefix", prefix]);
            (trawl, ready)
        }
        "trawl tc beside dpdk-testpmd" => trawl_capture(bench, "tc", "in", &[&label(&line.left)], file.path()),
        other => {
            return Err(
                unknown(other, "dpdk-testpmd alone, dpdk-dumpcap, trawl dpdk, trawl tc beside dpdk-testpmd").into()
            );
        }
    };
    let peer = Peer::start(program, &mut command, capture_cpu(), ready)?;
    Ok(Some(peer))
}

/// Returns the memory options. Captures within DPDK share the memory of the captured process, which requires huge
/// pages.
fn memory(program: &str) -> Result<&'static [&'static str], Stop> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free =
        meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Free:")?.trim().parse::<u64>().ok()).unwrap_or(0);
    match program {
        TRAWL | "dpdk-dumpcap" if free < HUGE_PAGES => Err(Stop::NotHere(format!(
            "{program} shares testpmd's memory, which requires {HUGE_PAGES} huge pages; {free} are free on this host \
             (sysctl -w vm.nr_hugepages={HUGE_PAGES}, with hugetlbfs mounted on /dev/hugepages)"
        ))),
        _ if free >= HUGE_PAGES => Ok(&[]),
        _ => Ok(&["--no-huge"]),
    }
}

/// Remains of a killed application: a directory under /run, and files that keep its huge pages.
struct Runtime(String);

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(PathBuf::from("/run/dpdk").join(&self.0));
        let pages = format!("{}map_", self.0);
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let mounts = mounts.lines().filter_map(|line| {
            let mut names = line.split(' ').skip(1);
            let mount = names.next()?;
            (names.next() == Some("hugetlbfs")).then_some(mount)
        });
        for entry in mounts.filter_map(|mount| fs::read_dir(mount).ok()).flatten() {
            let Ok(entry) = entry else { continue };
            if entry.file_name().to_string_lossy().starts_with(&pages) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}
