//! The cost of the store: a capture into it, the building of the index, and the search for one packet among many.

use std::cell::RefCell;
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;
use trawl_sys::process::children_cpu_seconds;
use trawl_sys::{Error, Result};

use super::definition::Space;
use super::{Bench, Case, Measured, Outcome, Statements, Stop, named, percent, unknown};
use crate::capture::Running;
use crate::made_up::{Made, NEEDLE};
use crate::model::{Claim, Experiment, Finding};
use crate::process;
use crate::recorder::{Fate, Recorder, Setting, StoreAt};
use crate::scratch::Directory;
use crate::traffic::{SENDER_CPU, Sent, Traffic, capture_cpu};

const MILLION: f64 = 1e6;
/// Packets of the host that has the needle.
const FEW: u64 = 1000;
const FEW_FLOWS: usize = 100;
/// Time after which a server must listen.
const READY: Duration = Duration::from_secs(10);
/// Aims of the experiments.
const INDEX_MPPS: f64 = 1.0;
const INDEX_BYTES: f64 = 30.0;
const SENDER_PERCENT: f64 = 97.0;
const SEARCH_SECONDS: f64 = 2.0;

pub fn judge_capture(experiment: &Experiment) -> Finding {
    let aims = [("of_file_percent", SENDER_PERCENT, true), ("hidden_percent", 0.0, false)];
    judge(experiment, &aims)
}

pub fn judge_index(experiment: &Experiment) -> Finding {
    let aims = [("mpps", INDEX_MPPS, true), ("bytes_per_packet", INDEX_BYTES, false)];
    judge(experiment, &aims)
}

pub fn judge_search(experiment: &Experiment) -> Finding {
    judge(experiment, &[("seconds", SEARCH_SECONDS, false)])
}

/// Judges each value against its aim at every x value: at least the aim, or at most.
fn judge(experiment: &Experiment, aims: &[(&str, f64, bool)]) -> Finding {
    let (mut shows, mut statements) = (Vec::new(), Statements::default());
    let definition = &experiment.definition;
    for (metric, aim, at_least) in aims {
        let Some(axis) = definition.metrics.iter().find(|one| one.name == *metric) else {
            continue;
        };
        for point in experiment.points.iter().filter(|one| one.metric == *metric) {
            let (value, x) = (point.value.median, &definition.x);
            let text = format!(
                "{}, {} {}: {} {value:.2} {} (aim: {aim})",
                point.series, point.x, x.unit, axis.label, axis.unit
            );
            shows.push(text.clone());
            statements.check(text, (value >= *aim) == *at_least || value == *aim);
        }
    }
    Finding {
        agrees: statements.agreement(),
        sentence: match statements.broken.len() {
            0 => "All aims are reached.".to_owned(),
            missed => format!("{missed} of {} aims are not reached here.", shows.len()),
        },
        shows: shows.join("; "),
    }
}

/// Kind of store that a capture writes to.
#[derive(Clone, Copy, Debug)]
enum Target {
    Directory,
    Versitygw,
}

/// A store of the experiment's own, and its server.
struct TestStore {
    at: StoreAt,
    _server: Option<process::Background>,
    _directory: Directory,
}

pub fn captures(space: &Space) -> Result<Vec<Case>> {
    let seconds = space.number("seconds")?;
    Case::each(space, "sizes", |series, x| {
        let (name, rate) = match series.split_once(" at ") {
            Some((name, rate)) => (name, rate.strip_suffix(" kpps").and_then(|n| n.parse().ok())),
            None => (series, None),
        };
        let target = match name {
            "directory" => Target::Directory,
            "versitygw" => Target::Versitygw,
            _ => {
                return Err(unknown(series, "directory and versitygw, with a rate or without: directory at 200 kpps"));
            }
        };
        let load = Load { target, rate, size: x as usize, seconds };
        Ok(move |bench: &Bench| load.measure(bench))
    })
}

#[derive(Clone, Copy, Debug)]
struct Load {
    target: Target,
    rate: Option<f64>,
    size: usize,
    seconds: f64,
}

/// Result of one capture.
struct Captured {
    sent: Sent,
    claim: Option<Claim>,
    /// CPU time of the capture, in user space and kernel, until it had ended.
    cpu_seconds: f64,
    /// Frames for each CPU second of the sending process, which includes the hook.
    per_cpu_second: f64,
}

impl Load {
    fn measure(self, bench: &Bench) -> Outcome {
        if bench.hosts.is_some() {
            return Err(Stop::NotHere("store-capture is not run on two hosts".into()));
        }
        let opened = self.target.open(bench)?;
        let file = self.capture(bench, None)?;
        let store = self.capture(bench, Some(opened.at.clone()))?;
        let total = account(bench, &opened.at)?;
        let count = |what: &str| total["total"][what].as_u64().unwrap_or(0);
        let bytes: u64 =
            total["captures"].as_array().map_or(0, |all| all.iter().filter_map(|one| one["bytes"].as_u64()).sum());
        let sent = store.sent.frames;
        let lost = store.claim.as_ref().and_then(|claim| claim.lost).unwrap_or(0);
        let accounted = count("stored") + count("spooled") + count("evicted") + lost;
        let hidden = sent.saturating_sub(accounted);
        let seconds = store.sent.seconds;
        let of_sent = |count: u64| percent(count as f64, sent as f64);
        let values = [
            ("sent_mpps", store.sent.per_second() / MILLION),
            ("of_file_percent", percent(store.per_cpu_second, file.per_cpu_second)),
            ("stored_percent", of_sent(count("stored"))),
            ("hidden_percent", of_sent(hidden)),
            ("capture_cpu_percent", percent(store.cpu_seconds, seconds)),
            ("file_cpu_percent", percent(file.cpu_seconds, file.sent.seconds)),
            ("stored_mbytes", bytes as f64 / seconds / MILLION),
        ];
        Ok(Measured {
            expected: Some(sent),
            recorded: Some(count("stored")),
            claim: store.claim,
            ..Measured::after(store.sent, values)
        })
    }

    fn capture(self, bench: &Bench, store: Option<StoreAt>) -> Result<Captured, Stop> {
        let recorder = Recorder::TrawlHook(Fate::Drop);
        let setting = Setting { store, ..Setting::default() };
        let running = Running::start(bench, recorder, &setting)?;
        let begun = running.peer.cpu_seconds();
        // Random payloads of many flows hardly compress, like real traffic.
        let flows = ["--flows", "1000", "--src-port", "1024-65535"];
        let traffic = match self.rate {
            Some(kpps) => Traffic::at(self.size, kpps * 1e3, self.seconds),
            None => Traffic::flood(self.size, self.seconds, &[SENDER_CPU]),
        };
        let traffic = traffic.with(&flows).with(&["--payload", "random"]);
        let before = children_cpu_seconds();
        let sent = traffic.send(&bench.trawl, &running.lab.a, &running.lab.b)?;
        let sender = children_cpu_seconds() - before;
        let others = children_cpu_seconds();
        let said = running.peer.finish()?;
        let cpu_seconds = children_cpu_seconds() - others - begun;
        Ok(Captured {
            claim: recorder.claim(&said),
            cpu_seconds,
            per_cpu_second: sent.frames as f64 / sender.max(f64::EPSILON),
            sent,
        })
    }
}

fn account(bench: &Bench, store: &StoreAt) -> Result<Value> {
    let mut list = bench.command(&["store", "ls", "--json", &store.url, "--spool"]);
    list.arg(&store.spool);
    list.envs(store.environment.iter().map(|(name, value)| (name, value)));
    process::json_of(&mut list)
}

const BUCKET: &str = "trawl";
const KEY: &str = "trawl-bench";

impl Target {
    fn open(self, bench: &Bench) -> Result<TestStore, Stop> {
        let directory = Directory::new(&bench.scratch, "capture")?;
        let spool = directory.path().join("spool");
        let store = directory.path().join("store");
        let bucket = store.join(BUCKET);
        std::fs::create_dir_all(&bucket).map_err(|e| Error::os(format!("cannot make {}", bucket.display()), e))?;
        let (url, environment, server) = match self {
            Self::Directory => (format!("file://{}", bucket.display()), Vec::new(), None),
            Self::Versitygw => {
                let (server, environment) = serve(bench, &store)?;
                (format!("s3://{BUCKET}"), environment, Some(server))
            }
        };
        Ok(TestStore { at: StoreAt { url, spool, environment }, _server: server, _directory: directory })
    }
}

/// Serves the subdirectories of a directory as buckets; returns the environment in which S3's clients reach them.
fn serve(bench: &Bench, root: &Path) -> Result<(process::Background, Vec<(String, String)>), Stop> {
    let program = bench.peers.path("versitygw")?;
    let address = std::net::TcpListener::bind(("127.0.0.1", 0))
        .and_then(|free| free.local_addr())
        .map_err(|e| Error::os("cannot find a free port", e))?;
    let mut server = process::command(program);
    // Nothing reads its log of requests. Without the log, it does not report that it is ready either.
    server.args(["--quiet", "--access", KEY, "--secret", KEY]);
    server.args(["--port", &address.to_string()]);
    server.args(["posix", "--nometa"]).arg(root);
    let server = server.stdout(Stdio::null()).stderr(Stdio::null());
    let server = process::Background::spawn(server)?;
    let until = Instant::now() + READY;
    while std::net::TcpStream::connect(address).is_err() {
        if Instant::now() > until {
            return Err(Error::failed("cannot start versitygw", "it does not listen").into());
        }
        std::thread::sleep(READY / 200);
    }
    let environment = [
        ("AWS_ENDPOINT", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "false".to_owned()),
        ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", KEY.to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("NO_PROXY", "127.0.0.1".to_owned()),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value));
    Ok((server, environment.to_vec()))
}

/// A store that is made on first use, and kept for all repetitions.
#[derive(Clone, Default)]
struct Kept(Rc<RefCell<Option<Made>>>);

impl Kept {
    fn with<T>(&self, make: impl FnOnce() -> Result<Made>, act: impl FnOnce(&Made) -> Result<T>) -> Result<T> {
        match &mut *self.0.borrow_mut() {
            Some(made) => act(made),
            none => act(none.insert(make()?)),
        }
    }
}

pub fn indexes(space: &Space) -> Result<Vec<Case>> {
    let packets = (space.number("packets")? * MILLION) as u64;
    let case = |x: f64| {
        let kept = Kept::default();
        Case::new("trawl store index", x, move |bench| {
            let make = || Made::new(bench, packets, x as usize);
            Ok(kept.with(make, |made| index(bench, made))?)
        })
    };
    Ok(space.numbers("flows")?.into_iter().map(case).collect())
}

/// Measures the index on one CPU.
fn index(bench: &Bench, made: &Made) -> Result<Measured> {
    let mut command = process::command("taskset");
    command.args(["-c", &capture_cpu().to_string()]);
    command.arg(&bench.trawl);
    command.args(["store", "index", "--rebuild", "--json", &made.url()]);
    let began = Instant::now();
    let before = children_cpu_seconds();
    let said = process::json_of(&mut command)?;
    let cpu_seconds = children_cpu_seconds() - before;
    let seconds = began.elapsed().as_secs_f64();
    let count = |what: &str| said[what].as_f64().unwrap_or(0.0);
    Ok(Measured {
        values: [
            ("mpps", count("packets") / cpu_seconds / MILLION),
            ("elapsed_mpps", count("packets") / seconds / MILLION),
            ("bytes_per_packet", count("bytes") / count("packets")),
        ]
        .into(),
        expected: Some(made.packets),
        recorded: said["packets"].as_u64(),
        seconds,
        ..Measured::default()
    })
}

pub fn searches(space: &Space) -> Result<Vec<Case>> {
    let flows = space.number("flows")? as usize;
    let most = space.number("made")?;
    let mut cases = Vec::new();
    for x in space.numbers("rows")? {
        let kept = Kept::default();
        let hosts = (x / most).ceil().max(1.0);
        let packets = (x / hosts * MILLION) as u64;
        for series in space.names("series")? {
            let (target, name) = match series.strip_prefix("versitygw, ") {
                Some(name) => (Target::Versitygw, name),
                None => (Target::Directory, series.as_str()),
            };
            let (kept, search) = (kept.clone(), named(name, SEARCHES)?);
            cases.push(Case::new(&series, x, move |bench| {
                let make = || haystack(bench, packets, flows, hosts as u64);
                kept.with(make, |made| Ok(find(bench, target, search, made)))?
            }));
        }
    }
    Ok(cases)
}

fn haystack(bench: &Bench, packets: u64, flows: usize, hosts: u64) -> Result<Made> {
    let mut made = Made::new(bench, packets, flows)?;
    bench.run(&["store", "index", "--json", &made.url()])?;
    made.multiply(hosts)?;
    made.add_needle(FEW, FEW_FLOWS)?;
    Ok(made)
}

/// Option of `trawl store query`, the beginning of its value, which the needle completes, and further arguments.
type Search = (&'static str, &'static str, &'static [&'static str]);

const SEARCHES: &[(&str, Search)] = &[
    ("SQL: address", ("--csv", SQL, &[])),
    ("filter: packet", ("--filter", "src host ", &[])),
    ("filter: packet of an hour", ("--filter", "src host ", &HOUR)),
];
const SQL: &str = "SELECT time FROM packets WHERE src = ";
const HOUR: [&str; 4] = ["--from", "1767225600", "--to", "1767229200"];

/// Searches for one packet.
fn find(bench: &Bench, target: Target, (option, begun, more): Search, made: &Made) -> Outcome {
    let (url, environment, _server) = match target {
        Target::Directory => (made.url(), Vec::new(), None),
        Target::Versitygw => {
            let (root, bucket) = made.bucket();
            let (server, environment) = serve(bench, &root)?;
            (format!("s3://{bucket}"), environment, Some(server))
        }
    };
    let wanted = match option {
        "--csv" => format!("{begun}'{NEEDLE}'"),
        _ => format!("{begun}{NEEDLE}"),
    };
    let mut query = bench.command(&["store", "query", "--store", &url, "--spool", "/nonexistent"]);
    query.args([option, &wanted]).args(more).envs(environment);
    let began = Instant::now();
    let said = process::run(&mut query)?;
    let seconds = began.elapsed().as_secs_f64();
    let found = said.lines().filter(|line| !line.starts_with("time")).count();
    if found != 1 {
        return Err(Error::failed("the search for one packet", format!("it found {found}")).into());
    }
    Ok(Measured {
        values: [("seconds", seconds), ("mrows", made.packets as f64 / seconds / MILLION)].into(),
        expected: Some(1),
        recorded: Some(found as u64),
        seconds,
        ..Measured::default()
    })
}
